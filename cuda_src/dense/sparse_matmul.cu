// Sparse features (CSR) times dense weights, and the gradient by the weights.
//
//   forward   y[n, p]  = sum over entries k of row n of  data[k] * w[indices[k], p]       X (N, F), W (F, P), Y (N, P)
//   backward  dw[f, p] = sum over entries k of column f of  data[order[k]] * dy[t_rows[k], p]      dY (N, P), dW (F, P)
//
// The gradient uses the structure of the transpose: t_indptr (F+1,), t_rows (nnz,) the row of each entry of a column,
// order (nnz,) its index in `data`, so it always uses the present values (dropout changes them).
// Determinism: each output has one writer and a fixed order of summation: repeats to the bit.
#include "common/graph_view.cuh"

// ---------------------------------------------------------------------------------------------------------- helpers

constexpr int COLUMN_THREADS = 128;  // threads that share one column of X

struct SparseBackwardParams {
  float* dw;
  const float *dy, *data;
  const int *t_indptr, *t_rows, *order;
  int width, lane_bits;
};

// One column f of X (blockIdx.x) and one block of 2^lane_bits vectors of P (blockIdx.y). The groups of lanes take the
// column's entries in turn. Shuffles reduce the partial sums inside a warp, then shared memory over the warps.
template <typename Vec>
__device__ __forceinline__ void sparse_column_product(const SparseBackwardParams& params) {
  const auto [dw, dy, data, t_indptr, t_rows, order, width, lane_bits] = params;
  __shared__ Vec partial[COLUMN_THREADS / 32][32];
  const int lane = threadIdx.x & ((1 << lane_bits) - 1), group = threadIdx.x >> lane_bits;
  const int column = ((blockIdx.y << lane_bits) + lane) * VEC_WIDTH<Vec>;
  const bool live = column < width;
  Vec sum = zero_vec<Vec>();
  if (live) {
    sum = sparse_row_product<Vec>(dy + column, width, t_rows, data, order, __ldg(t_indptr + blockIdx.x) + group,
                                  __ldg(t_indptr + blockIdx.x + 1), COLUMN_THREADS >> lane_bits);
  }
  sum = sum_over_bits(sum, lane_bits, 5);
  if ((threadIdx.x & 31) == lane) partial[threadIdx.x >> 5][lane] = sum;
  __syncthreads();
  if (group == 0 && live) {
    sum = partial[0][lane];
#pragma unroll
    for (int warp = 1; warp < COLUMN_THREADS / 32; ++warp) sum = add_vec(sum, partial[warp][lane]);
    store_vec(dw + (long long)blockIdx.x * width + column, sum);
  }
}

// ----------------------------------------------------------------------------------------------------- entry points

// Source: own; the row product of spmm/csr.cu.
// Shapes: y and w have row strides, so a launch may compute one graph's rows and one channel's columns.
// Launch: as spmm_csr_float4. Cora's first layer, (2708, 1433) with 18 entries per row, P = 16: 4 groups of 4 lanes per
//   row, 16 rows per block, 170 blocks.
// Traffic: reads 4 (N + 1) + 8 nnz + 4 min(nnz, F) P bytes, writes 4 N P; W stays in L2.
// Requirements: P, both strides and both pointers divisible by 4 floats.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void sparse_matmul_forward_float4(
    float* __restrict__ y, const float* __restrict__ w, const int* __restrict__ indptr, const int* __restrict__ indices,
    const float* __restrict__ data, long long y_first, long long w_first, int y_stride, int w_stride, int first_row,
    int n_rows, int width, int lane_bits, int group_bits, int passes, int chunks) {
  sparse_rows_product<float4>(y + y_first, w + w_first, indptr + first_row, indices, data, y_stride, w_stride, n_rows,
                              width, 0, lane_bits, group_bits, passes, chunks);
}

// The same with single floats, for any P, stride and alignment.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void sparse_matmul_forward_float1(
    float* __restrict__ y, const float* __restrict__ w, const int* __restrict__ indptr, const int* __restrict__ indices,
    const float* __restrict__ data, long long y_first, long long w_first, int y_stride, int w_stride, int first_row,
    int n_rows, int width, int lane_bits, int group_bits, int passes, int chunks) {
  sparse_rows_product<float>(y + y_first, w + w_first, indptr + first_row, indices, data, y_stride, w_stride, n_rows,
                             width, 0, lane_bits, group_bits, passes, chunks);
}

// Source: own. The papers' citation GCN adds to dW with atomics; a gather over the transpose needs none.
// Launch: 128 threads, grid (F, blocks of 2^lane_bits vectors of P). Cora, P = 16: 1433 blocks of 32 groups of 4 lanes,
//   with 128 entries of a column in flight.
// Shared memory: 128 vectors (2 KB); consecutive lanes use consecutive banks.
// Traffic: reads 4 (F + 1) + 12 nnz + 4 nnz P bytes (dY from L2), writes 4 F P. A column without entries becomes 0.
// Requirements: P and the pointers divisible by 4 floats.
KERNEL(sparse_matmul_backward_float4, SparseBackwardParams, (COLUMN_THREADS, ROW_BLOCKS),
       sparse_column_product<float4>);

// The same with single floats, for any P and alignment.
KERNEL(sparse_matmul_backward_float1, SparseBackwardParams, (COLUMN_THREADS, ROW_BLOCKS), sparse_column_product<float>);
