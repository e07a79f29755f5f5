// Sampled products of dense rows (SDDMM): the gradient of an adjacency product by the values of its entries.
//
//   out[e] = sum over p of  a[rows[e], p] * b[columns[e], p]                                   e < n_entries, p < width
//
// With A = dY (N, P) and B = H (N, C*P), read as rows of P, the entry of channel c from node j to node i is the pair
// (i, j*C + c), as in spmm/csr.cu. With A = X, B = dX and pairs (i, i), the result is gradient times input per node. With
// A = dY, B = W and the pairs of sparse features, it is the gradient by their values. `gcnbatch explain` uses all three.
//
// Source: own. The pairs are given as coordinates, not as CSR, so a caller may sample any entries in any order: bonds
// without self-loops, for example.
// Shapes: a (M, width), b (Q, width) float32, row-major; rows, columns (n_entries,) int32; out (n_entries,) float32.
// Launch: 256 threads, 2^lane_bits lanes an entry, one vector of columns a lane and turn. 50 molecules of 40 directed
//   bonds, P = 64: 16 lanes, 16 entries a block, 125 blocks.
// Shared memory: none.
// Traffic: reads 8 n_entries + 8 n_entries width bytes, most of them from L1 / L2 (a node has about two bonds), writes
//   4 n_entries. 16 lanes read 256 bytes of a row in two transactions.
// Determinism: one lane writes each output; lanes add their columns in order, and shuffles add the lanes in fixed
//   order: repeats to the bit.
// Requirements: n_entries below 2^31 - 4096; float4: width divisible by 4, pointers aligned to 16 bytes.
#include "common/graph_view.cuh"

// ---------------------------------------------------------------------------------------------------------- helpers

struct SampledParams {
  float* out;
  const float *a, *b;
  const int *rows, *columns;
  int n_entries, width, lane_bits;
};

__device__ __forceinline__ float dot_vec(float sum, float a, float b) { return fmaf(a, b, sum); }
__device__ __forceinline__ float dot_vec(float sum, float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// One entry by 2^lane_bits lanes. Lanes of entries beyond the end add zeros, because all lanes of a warp must shuffle.
template <typename Vec>
__device__ __forceinline__ void sampled_product(const SampledParams& params) {
  const auto [out, a, b, rows, columns, n_entries, width, lane_bits] = params;
  const int lane = threadIdx.x & ((1 << lane_bits) - 1);
  const int entry = blockIdx.x * (blockDim.x >> lane_bits) + (threadIdx.x >> lane_bits);
  float sum = 0.0f;
  if (entry < n_entries) {
    const float* left = a + row_offset(__ldg(rows + entry), width);
    const float* right = b + row_offset(__ldg(columns + entry), width);
    for (int p = lane * VEC_WIDTH<Vec>; p < width; p += VEC_WIDTH<Vec> << lane_bits)
      sum = dot_vec(sum, load_vec<Vec>(left + p), load_vec<Vec>(right + p));
  }
  sum = sum_over_bits(sum, 0, lane_bits);
  if (lane == 0 && entry < n_entries) out[entry] = sum;
}

// ----------------------------------------------------------------------------------------------------- entry points

KERNEL(sddmm_float4, SampledParams, (BLOCK_THREADS, ROW_BLOCKS), sampled_product<float4>);

// The same with single floats, for any width and alignment.
KERNEL(sddmm_float1, SampledParams, (BLOCK_THREADS, ROW_BLOCKS), sampled_product<float>);
