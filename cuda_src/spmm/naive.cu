// SpMM, the first rung: adjacency (CSR) times dense features, a thread per output. For reading; never chosen by "auto".
//
//   out[r, p] = sum over entries k of row r of  data[k] * dense[indices[k], p]          r < n_rows, p < width
//
// The formula is that of spmm/csr.cu, whose header explains how one product computes the forward pass (sum_c A_c H_c)
// and the backward pass (A_cᵀ dY, on the stored transpose). `cuda.spmm = "naive"` trains with this kernel.
//
// Source: own; the straightforward loop.
// Shapes: out (n_rows, width), dense (columns of the matrix, width), float32; indptr (n_rows + 1,), indices, data
//   (nnz,).
// Launch: `thread_per_output`, blocks of 32 columns x 8 rows. Batch 50 of 19 nodes, P = 64: grid (119, 2).
// Shared memory: none.
// Traffic: reads 4 (n_rows + 1) + 8 nnz + 4 min(nnz, columns) width bytes, writes 4 n_rows width; a thread loads 12
//   bytes per multiply-add: index, weight, feature.
// Coalescing: neighbouring threads have neighbouring columns of one row. A warp reads 128 consecutive bytes of a dense
//   row; all its threads read the same index and weight.
// Determinism: one thread writes each output and adds the entries in order: repeats to the bit.
//
// In the next rung, spmm/csr.cu, a thread has four columns (float4), so it loads index and weight once for four
// multiply-adds. It also loads up to four entries before it uses the first, so their chains of dependent loads (index,
// then feature) wait for memory together. Here, the compiler does so only for complete groups of four, but an atom's
// row has about three entries. On an H200 (batch 100, dim 50, 3 entries a row; bench spmm --figure 8b, commit 4716674) this
// kernel takes 3.5 us at 64 columns and 32.6 us at 1,024, spmm/csr.cu 2.3 and 10.9, the fastest 2.1 and 9.5.
// `gcnbatch bench spmm --methods naive,csr,fastest` times the rungs on your GPU.
#include "common/graph_view.cuh"

// ---------------------------------------------------------------------------------------------------------- helpers

// One output: the sum over entries first … end - 1 of a sparse row. `in` points to the output's column in row 0 of the
// dense matrix.
__device__ __forceinline__ float naive_sum(const float* in, int in_stride, const int* indices, const float* data,
                                           int first, int end) {
  float sum = 0.0f;
  for (int k = first; k < end; ++k) sum = fmaf(data[k], in[row_offset(indices[k], in_stride)], sum);
  return sum;
}

// ----------------------------------------------------------------------------------------------------- entry points

// A whole batch: one block-diagonal matrix.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_naive_batched(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= n_rows || p >= width) return;
  out[row_offset(row, width) + p] = naive_sum(dense + p, width, indices, data, indptr[row], indptr[row + 1]);
}

// The same for one graph and one channel: n_rows rows from first_row on, with local columns. `out` and `dense` start at
// the graph's first row and the channel's first column; their strides step over the other channels.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_naive_graph(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_row, int n_rows, int width, int accumulate) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= n_rows || p >= width) return;
  const int* bounds = indptr + first_row + row;
  const float sum = naive_sum(dense + dense_first + p, dense_stride, indices, data, bounds[0], bounds[1]);
  float* target = out + out_first + row_offset(row, out_stride) + p;
  *target = accumulate ? *target + sum : sum;
}
