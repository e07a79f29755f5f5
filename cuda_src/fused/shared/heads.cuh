// The dense layers on graphs, after the readout: one block computes one graph, forward and backward. No kernels here.
#pragma once

#include "common/copies.cuh"
#include "fused/shared/columns.cuh"

namespace fused {

// A dense layer on graphs: weight (F, P), bias (P,); input (B, F) and gradient (B, P) are stored for the update.
struct Head {
  const float *weight, *bias;
  float *input, *gradient;
  int F, P;
  unsigned long long purpose;  // Philox purpose of its dropout

  // The same layer with the first `rows` rows of its weights and its bias at `copied`, unless that is null.
  __device__ __forceinline__ Head with_weights(const float* copied, int rows) const {
    Head head = *this;
    if (copied) head.weight = copied, head.bias = copied + rows * P;
    return head;
  }
};

// Copy the weights of all heads to shared memory, of the first one `first_rows` rows; each layer's bias follows its weights.
// The copies arrive later.
__device__ __forceinline__ void copy_weights(float* to, const Head* heads, int n_heads, int first_rows) {
#pragma unroll 1
  for (int m = 0; m < n_heads; ++m) {
    const Head head = heads[m];
    const int rows = m == 0 ? first_rows : head.F;
#pragma unroll 1
    for (int e = threadIdx.x; e < rows * head.P; e += THREADS) copy_async<1>(to + e, head.weight + e, 1);
#pragma unroll 1
    for (int k = threadIdx.x; k < head.P; k += THREADS) copy_async<1>(to + rows * head.P + k, head.bias + k, 1);
    to += (rows + 1) * head.P;
  }
}

// Whether dropout keeps element `e`, drawn on the fly: these layers are too small to store bits.
__device__ __noinline__ bool draw(const int* size, unsigned long long seed, unsigned long long purpose,
                                  unsigned threshold, long long e) {
  if (threshold == 0) return true;
  const PhiloxBlock drawn = philox({seed, purpose, static_cast<unsigned long long>(size[BatchSize::EPOCH]),
                                    static_cast<unsigned long long>(size[BatchSize::STEP])},
                                   e / 8);
  unsigned value = drawn.value[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) value = e % 8 == i ? drawn.value[i] : value;
  return value >= threshold;
}

// out[k] = base[k] + sum over f of in[f] W[f, k], W (F, P); in and out in shared memory; base may be out. `scratch` holds a
// float per thread.
__device__ __forceinline__ void dense_forward(float* out, const float* base, const float* in, const float* weight,
                                              int F, int P, float* scratch) {
  const int columns = min(power_of_two(P), THREADS), slices = THREADS / columns;
  const int reduced = min(slices, WARPS);  // slices left after each warp has added its own
#pragma unroll 1
  for (int first = 0; first < P; first += columns) {
    const int k = first + threadIdx.x % columns;
    float sum = 0.f;
    if (k < P) {
#pragma unroll 4
      for (int f = threadIdx.x / columns; f < F; f += slices) sum += in[f] * weight[f * P + k];
    }
#pragma unroll 1
    for (int offset = columns; offset < 32; offset *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    if (threadIdx.x % 32 < columns) scratch[threadIdx.x / max(columns, 32) * columns + threadIdx.x % columns] = sum;
    __syncthreads();
    if (threadIdx.x < columns && k < P) {
      sum = base[k];
#pragma unroll
      for (int s = 0; s < WARPS; ++s)
        if (s < reduced) sum += scratch[s * columns + threadIdx.x];
      out[k] = sum;
    }
    __syncthreads();
  }
}

// din[f] = sum over k of dout[k] W[f, k] for the first F inputs: neighbouring lanes share a row of W.
__device__ __forceinline__ void dense_backward(float* din, const float* dout, const Head& head, int F) {
  const int lanes = min(power_of_two(head.P), 32), lane = threadIdx.x % lanes;
#pragma unroll 1
  for (int first = 0; first < F; first += THREADS / lanes) {  // whole warps stay together for the shuffles
    const int f = first + threadIdx.x / lanes;
    float sum = 0.f;
    if (f < F) {
#pragma unroll 4
      for (int k = lane; k < head.P; k += lanes) sum += dout[k] * head.weight[f * head.P + k];
    }
    sum = warp_sum(sum, lanes);
    if (lane == 0 && f < F) din[f] = sum;
  }
  __syncthreads();
}

}  // namespace fused
