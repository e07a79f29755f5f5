// The loss of a global batch from those of the ranks' parts (dense/loss.cu).
//
// own, sums (2,): loss and weight of this rank's part, and their sums over the ranks. The gradient by this rank's logits
// was divided by its own weight; here it is scaled to the weight of all. `totals` (2,) float64 receives the sums, unless
// it is null.
// Source: own. Shapes: dlogits flat (n,). Launch: `elementwise`; n = 0: one block. Shared memory: none.
// Bytes: reads and writes 4 n. Bank conflicts: none. Determinism: repeats to the bit.

extern "C" __global__ void __launch_bounds__(256)
    ranks_loss(float* dlogits, double* totals, const float* __restrict__ own, const float* __restrict__ sums,
               long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) dlogits[i] *= sums[1] > 0.f ? own[1] / sums[1] : 0.f;
  if (i > 0 || totals == nullptr) return;
  totals[0] += sums[0];
  totals[1] += sums[1];
}
