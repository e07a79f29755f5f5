// The loss of a global batch from those of the ranks' parts (dense/loss.cu).
//
// own, sums (2,): loss and weight of this rank's part, and their sums over the ranks. The gradient by this rank's logits
// was divided by its own weight; here it is scaled to the weight of all. `totals` (2,) float64 receives the sums, unless
// it is null.
// Source: own. Shapes: dlogits flat (n,). Launch: `elementwise`, 4 elements per thread; n = 0: one block. Shared memory: none.
// Bytes: reads and writes 4 n. Bank conflicts: none. Determinism: repeats to the bit.

#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    ranks_loss(float* dlogits, double* totals, const float* __restrict__ own, const float* __restrict__ sums,
               long long n) {
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, i = 4 * thread;
  if (i < n) {
    const float scale = sums[1] > 0.f ? own[1] / sums[1] : 0.f;
    const bool aligned = is_aligned(dlogits, 0);
    const float4 v = load4(dlogits + i, n - i, aligned);
    store4(dlogits + i, make_float4(scale * v.x, scale * v.y, scale * v.z, scale * v.w), n - i, aligned);
  }
  if (thread > 0 || totals == nullptr) return;
  totals[0] += sums[0];
  totals[1] += sums[1];
}

// total = the sum of the losses of `chunks` chunks of this rank's rows. Launch: one thread.
extern "C" __global__ void ranks_loss_of_chunks(float* total, const float* __restrict__ losses, int chunks) {
  float sum = 0.f;
  for (int i = 0; i < chunks; ++i) sum += losses[i];
  *total = sum;
}

// totals += loss and weight of all ranks. Launch: one thread.
extern "C" __global__ void ranks_add_loss(double* totals, const float* __restrict__ total,
                                          const float* __restrict__ weight) {
  totals[0] += *total;
  totals[1] += *weight;
}
