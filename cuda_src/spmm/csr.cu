// Adjacency (CSR) times dense features: our general kernel, and the published SWA SpMM for CSR.
//
//   out[r, p] = sum over entries k of row r of  data[k] * dense[indices[k], p]          r < n_rows, p < width
//
// One operand layout serves both directions and both scopes.
//   forward   out = Y (N, P), dense = H (N, C*P) viewed as (N*C, P); the row of node i has the entries j*C + c of all
//             channels, so the product includes the sum over channels.
//   backward  the same kernel on the stored transpose: out = dH (N, C*P) viewed as (N*C, P), dense = dY (N, P).
//   graph     one graph and one channel (the papers' loop): rows and columns are local; `out` and `dense` start at the
//             graph's first row and the channel's first column; the strides step over the other channels.
// Determinism: one thread writes each output and sums in a fixed order: repeats to the bit.
#include "common/graph_view.cuh"

// ---------------------------------------------------------------------------------------------------------- helpers

// One row by one sub-warp of 2^sub_bits lanes, as published. A lane owns columns lane, lane + 2^sub_bits, … of the
// block's `width` columns. With one column per lane, the sum stays in a register; otherwise, the sub-warp has `width`
// floats of shared memory. No lane reads another's column, so there is no barrier.
__device__ __forceinline__ void swa_csr_row(float* out, const float* in, const int* indices, const float* data,
                                            int first, int end, int in_stride, int width, int accumulate, int sub_bits,
                                            float* sums) {
  const int lane = threadIdx.x & ((1 << sub_bits) - 1), step = 1 << sub_bits;
  if (width <= step) {
    if (lane >= width) return;
    float sum = 0.0f;
    for (int k = first; k < end; ++k) sum = fmaf(data[k], in[row_offset(indices[k], in_stride) + lane], sum);
    out[lane] = accumulate ? out[lane] + sum : sum;
    return;
  }
  for (int p = lane; p < width; p += step) sums[p] = 0.0f;
  for (int k = first; k < end; ++k) {
    const float* row = in + row_offset(indices[k], in_stride);
    const float weight = data[k];
    for (int p = lane; p < width; p += step) sums[p] = fmaf(weight, row[p], sums[p]);
  }
  for (int p = lane; p < width; p += step) out[p] = accumulate ? out[p] + sums[p] : sums[p];
}

// The part of a row that this block's column partition (blockIdx.y) covers; row counts inside the graph.
__device__ __forceinline__ void swa_csr_part(float* out, const float* in, const int* indptr, const int* indices,
                                             const float* data, GraphView graph, int row, int out_stride, int in_stride,
                                             int width, int column_block, int accumulate, int sub_bits) {
  extern __shared__ float shared[];
  const int first_column = blockIdx.y * column_block;
  const int columns = min(column_block, width - first_column);
  if (row >= graph.n_rows || columns <= 0) return;  // threads that pad the graph to the largest one
  const int r = graph.first_row + row;
  swa_csr_row(out + row_offset(r, out_stride) + first_column, in + first_column, indices, data, indptr[r],
              indptr[r + 1], in_stride, columns, accumulate, sub_bits,
              shared + (threadIdx.x >> sub_bits) * column_block);
}

// ----------------------------------------------------------------------------------------------------- entry points

// Source: own. Differs from SWA for CSR (below): the grid covers the rows of the batch without padding graphs to the
//   largest; a lane holds 16 bytes of columns in registers; four neighbours are in flight; no shared memory.
// Shapes: out (n_rows, width), dense (columns of the matrix, width) with row strides, float32; indptr (n_rows + 1,),
//   indices, data (nnz,).
// Launch: 256 threads, grid.x over rows, grid.y over blocks of 2^lane_bits vectors of columns. Batch 100 of 50 nodes, P
//   = 64: 16 lanes per row (lane_bits 4), 16 rows per block, 313 blocks. With group_bits > 0, several groups of a warp
//   share a long row.
// Traffic: reads 4 (n_rows + 1) + 8 nnz + 4 min(nnz, columns) width bytes, writes 4 n_rows width; neighbours of the
//   same graph come from L1 / L2. A warp reads whole rows of 16 * 2^lane_bits bytes.
// Requirements: width, both strides and both pointers divisible by 4 floats.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void spmm_csr_float4(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_row, int n_rows, int width, int accumulate, int lane_bits,
    int group_bits, int passes, int chunks) {
  sparse_rows_product<float4>(out + out_first, dense + dense_first, indptr + first_row, indices, data, out_stride,
                              dense_stride, n_rows, width, accumulate, lane_bits, group_bits, passes, chunks);
}

// The same with single floats, for any width, stride and alignment.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void spmm_csr_float1(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_row, int n_rows, int width, int accumulate, int lane_bits,
    int group_bits, int passes, int chunks) {
  sparse_rows_product<float>(out + out_first, dense + dense_first, indptr + first_row, indices, data, out_stride,
                             dense_stride, n_rows, width, accumulate, lane_bits, group_bits, passes, chunks);
}

// Source: Batched SWA SpMM for CSR as published (Nagasaka, Nukada, Kojima, Matsuoka, CCGrid 2019, figures 4, 5-c, 5-d).
// Shapes: as above for the whole batch; node_ptr (B+1,) with rows_per_node rows per node (1 forward, C transposed).
// Launch: blocks_per_graph * B blocks by 2^k column partitions of 256 threads; blocks_per_graph covers the largest
//   graph, so there are max rows * sub-warp * B * partitions threads. Batch 100 of 50 nodes, P = 64: 7 * 100 blocks.
// Shared memory: none if a lane has one column; else 256 / sub-warp * column_block floats, limited to 32 KB by the
//   choice of column_block. Consecutive lanes use consecutive banks.
// Traffic: as above, but indices and weights are read once per partition.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_swa_csr_batched(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, const int* __restrict__ node_ptr,
    int rows_per_node, int width, int column_block, int sub_bits, int blocks_per_graph) {
  const GraphView graph = graph_of_batch(node_ptr, indptr, blockIdx.x / blocks_per_graph, rows_per_node);
  const int row = ((blockIdx.x % blocks_per_graph) * blockDim.x + threadIdx.x) >> sub_bits;
  swa_csr_part(out, dense, indptr, indices, data, graph, row, width, width, width, column_block, 0, sub_bits);
}

// The same for one graph and one channel: rows first_row … of a matrix with local columns, as in spmm_csr_float4.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_swa_csr_graph(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_row, int n_rows, int width, int accumulate, int column_block,
    int sub_bits) {
  const GraphView graph = {0, n_rows, 0, 0};
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> sub_bits;
  swa_csr_part(out + out_first, dense + dense_first, indptr + first_row, indices, data, graph, row, out_stride,
               dense_stride, width, column_block, accumulate, sub_bits);
}
