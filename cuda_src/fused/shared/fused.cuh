// What the kernels of the fused backend share; no kernels here. fused/FUSED.md tells the step as a whole.
//
// A layer of the fused step is  Y = U W'  with U = [A_1 Z | … | A_C Z | a_1 … a_C | 0]  (N, K): Z is what the layer before
// made of its own Y, A_c the adjacency of channel c, a_c the sums of its rows. The bias is then C more rows of the
// weights,  W' = [W_1; …; W_C; b_1; …; b_C],  and the product with A comes before the one with W, which yields the same:
// A (Z W + 1 b) = (A Z) W + (A 1) b. For the first layer U does not depend on any parameter.
// K is C F + C rounded up to 8; the columns beyond are 0. A dense layer is the same with A = I, C = 1.
//
// Z = dropout(relu((Y - mean) * slope + beta)) is never stored: whoever needs it makes it from Y.
// Without batch norm mean = 0, slope = inverse = 1, beta = 0. In inference it is so, too, but for beta: batch norm with the
// running statistics is folded into W', and what of it is no product is beta (`Folding`).
#pragma once

#include "common/common.cuh"
#include "common/philox.cuh"
#include "dense/matmul_tile.cuh"

namespace fused {

// ---- order of kernels ----
// A kernel may start while the one before is still running (programmatic dependent launch, from sm_90 on; elsewhere both
// lines do nothing). Each waits once, and only then lets the next one start. So between its start and its wait a kernel may
// read what the kernels before the previous one wrote, and nothing else; pointers to what others write are not
// __restrict__, so that no load moves up across the wait.

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- weights ----

// W' is kept beside the parameters as kernels want it ("packed"): (K, columns_of(P)), the rows and columns that round up
// are 0. The update writes both.
__host__ __device__ constexpr int columns_of(int P) { return (P + 3) / 4 * 4; }

// Batch norm as inference has it:  Y slope(p) + shift(p)  with the running statistics. The slope goes into column p of W'.
// The shift cannot: it is the same for all rows, while what W' adds to a row is multiplied by the row's sum of A.
struct Folding {
  const float *gamma, *beta, *running_mean, *running_var;  // null: nothing is folded
  float epsilon;

  __device__ __forceinline__ float slope(int p) const {
    return gamma ? gamma[p] / sqrtf(running_var[p] + epsilon) : 1.f;
  }
  __device__ __forceinline__ float shift(int p) const { return beta[p] - running_mean[p] * slope(p); }
};

// ---- panels ----

// What wide products read lies as panels of 32 columns (fused/wide/gemm.cuh): where element (i, k) of a matrix of `rows` rows
// is; `k` and the three after it are neighbours if k divides by 4.
constexpr int PANEL = 32;

__device__ __forceinline__ long long in_panel(int i, int k, int rows) {
  return (static_cast<long long>(k / PANEL) * rows + i) * PANEL + ((k % PANEL / 4 ^ i % 8) * 4 + k % 4);
}

// The nearest number of 11 bits; NaN and infinities pass.
__device__ __forceinline__ unsigned to_tf32(float value) {
  unsigned bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  bits = round_to_tf32(value);
#endif
  return bits;
}

// What the tensor cores cut off of a number that they read as TF32, rounded.
__device__ __forceinline__ float rest_of_tf32(float x) {
  return __uint_as_float(to_tf32(x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)));
}

// ---- activations ----

// Whether dropout kept element e; `kept` holds a bit per element, eight to a byte, or is null.
__device__ __forceinline__ bool is_kept(const unsigned char* kept, long long e) {
  return kept == nullptr || (kept[e >> 3] >> (e & 7) & 1);
}

// Draw the dropout bits of `elements` elements; the threads of `blocks` blocks share them. size[2], size[3]: step, epoch.
__device__ __noinline__ void draw_kept(int block, int blocks, unsigned char* kept, const int* size,
                                       unsigned long long seed, unsigned long long purpose, unsigned threshold,
                                       long long elements) {
  const PhiloxKey key = {seed, purpose, static_cast<unsigned long long>(size[3]),
                         static_cast<unsigned long long>(size[2])};
  for (long long b = static_cast<long long>(block) * blockDim.x + threadIdx.x; 8 * b < elements;
       b += static_cast<long long>(blocks) * blockDim.x) {
    const PhiloxBlock drawn = philox(key, b);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits |= (drawn.value[i] >= threshold) << i;
    kept[b] = static_cast<unsigned char>(bits);
  }
}

}  // namespace fused
