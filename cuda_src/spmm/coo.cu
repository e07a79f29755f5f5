// Adjacency (unsorted COO, TensorFlow's SparseTensor) times dense features: the published SWA SpMM and its baseline.
//
//   out[rows[k], p] += data[k] * dense[columns[k], p]          for every entry k, p < width
//
// Operands as in spmm/csr.cu; the entries of a graph are contiguous, in any order.
// Determinism: atomic additions in any order, so results repeat within rounding, not to the bit.
#include "common/graph_view.cuh"

constexpr int SWA_COO_THREADS = 1024;  // of a block in cases 1 and 2

// ---------------------------------------------------------------------------------------------------------- helpers

// One matrix by one block: cases 1 (column_block = width) and 2 of the paper. Shared memory holds the sums of all rows
// in the block's columns. The block zeroes it, so no launch has to zero the output.
__device__ __forceinline__ void swa_coo_matrix(float* out, const float* in, const int* rows, const int* columns,
                                               const float* data, GraphView graph, int out_stride, int in_stride,
                                               int width, int first_column, int column_block, int accumulate,
                                               int sub_bits) {
  extern __shared__ float sums[];  // (n_rows, block_width)
  const int block_width = min(column_block, width - first_column);
  if (block_width <= 0) return;  // a partition beyond the last column: the whole block exits
  const int n_sums = graph.n_rows * block_width;
  for (int i = threadIdx.x; i < n_sums; i += blockDim.x) sums[i] = 0.0f;
  __syncthreads();
  const int step = 1 << sub_bits, lane = threadIdx.x & (step - 1), n_subs = blockDim.x >> sub_bits;
  for (int k = threadIdx.x >> sub_bits; k < graph.n_entries; k += n_subs) {
    const int entry = graph.first_entry + k;
    const float weight = data[entry];
    const float* source = in + row_offset(columns[entry], in_stride) + first_column;
    float* target = sums + (rows[entry] - graph.first_row) * block_width;
    for (int p = lane; p < block_width; p += step) atomicAdd(target + p, weight * source[p]);
  }
  __syncthreads();
  out += row_offset(graph.first_row, out_stride) + first_column;
  for (int i = threadIdx.x; i < n_sums; i += blockDim.x) {
    const int row = i / block_width;
    float* target = out + row_offset(row, out_stride) + (i - row * block_width);
    *target = accumulate ? *target + sums[i] : sums[i];
  }
}

// ----------------------------------------------------------------------------------------------------- entry points

// Zero a matrix (n_rows, width) with a row stride, before a kernel that adds to global memory.
// Launch: a thread per element, 256 per block. Traffic: writes 4 n_rows width bytes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_zero(float* __restrict__ out, long long out_first,
                                                                      int out_stride, int n_rows, int width) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= (long long)n_rows * width) return;
  const int row = static_cast<int>(i / width);
  out[out_first + row_offset(row, out_stride) + (i - row_offset(row, width))] = 0.0f;
}

// Source: Batched SWA SpMM for SparseTensor (Nagasaka, Nukada, Kojima, Matsuoka, CCGrid 2019, figures 3, 5-a, 5-b),
//   cases 1 and 2. A sub-warp of 2^sub_bits threads (32 when width > 16, else the power of two that holds width) per
//   non-zero.
// Shapes: rows, columns int32, data float32, (nnz,), numbered over the batch; indptr (rows + 1,) gives a graph's
//   entries; node_ptr (B+1,) with rows_per_node rows per node.
// Launch: B * 2^partition_bits blocks of 1024 threads: a matrix, or a partition of its columns, per block. Batch 100 of
//   50 nodes, P = 64: 100 blocks with 12,800 bytes each.
// Shared memory: max rows * column_block floats, at most 32 KB. Lanes of a sub-warp add to consecutive banks; different
//   sub-warps of a warp (width <= 16) may conflict in a bank or an address.
// Traffic: reads (12 nnz) * partitions + 4 nnz width, writes 4 rows width bytes.
extern "C" __global__ __launch_bounds__(SWA_COO_THREADS) void spmm_swa_coo_batched(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ rows,
    const int* __restrict__ columns, const float* __restrict__ data, const int* __restrict__ indptr,
    const int* __restrict__ node_ptr, int rows_per_node, int width, int column_block, int partition_bits,
    int sub_bits) {
  const GraphView graph = graph_of_batch(node_ptr, indptr, blockIdx.x >> partition_bits, rows_per_node);
  const int first_column = (blockIdx.x & ((1 << partition_bits) - 1)) * column_block;
  swa_coo_matrix(out, dense, rows, columns, data, graph, width, width, width, first_column, column_block, 0, sub_bits);
}

// The same for one graph and one channel, whose entries begin at first_entry and have local rows and columns.
// Launch: 2^partition_bits blocks of 1024 threads.
extern "C" __global__ __launch_bounds__(SWA_COO_THREADS) void spmm_swa_coo_graph(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ rows,
    const int* __restrict__ columns, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_entry, int n_entries, int n_rows, int width, int accumulate,
    int column_block, int sub_bits) {
  const GraphView graph = {0, n_rows, first_entry, n_entries};
  swa_coo_matrix(out + out_first, dense + dense_first, rows, columns, data, graph, out_stride, dense_stride, width,
                 blockIdx.x * column_block, column_block, accumulate, sub_bits);
}

// Source: the same paper's case 3, more than 8,192 rows: no shared memory, atomic additions to a zeroed output
//   (spmm_zero). It multiplies a batch (first_entry 0, strides width) or one graph and channel.
// Launch: a sub-warp per entry, 256 threads per block. Traffic: reads 12 nnz + 4 nnz width, adds 4 nnz width bytes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_swa_coo_global(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ rows,
    const int* __restrict__ columns, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_entry, int n_entries, int width, int sub_bits) {
  const int step = 1 << sub_bits, lane = threadIdx.x & (step - 1);
  const long long k = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> sub_bits;
  if (k >= n_entries) return;
  const long long entry = first_entry + k;
  const float weight = data[entry];
  const float* source = dense + dense_first + row_offset(columns[entry], dense_stride);
  float* target = out + out_first + row_offset(rows[entry], out_stride);
  for (int p = lane; p < width; p += step) atomicAdd(target + p, weight * source[p]);
}

// Source: TensorFlow's SparseTensorDenseMatMul, the papers' non-batched baseline: a thread per (entry, column), found
//   by division, and atomic additions to a zeroed output (spmm_zero). Scopes as in spmm_swa_coo_global.
// Launch: n_entries * width threads, 256 per block. One graph of 150 entries, P = 64: 38 blocks.
// Traffic: every thread reads its entry: 12 nnz width (from L1) + 4 nnz width, adds 4 nnz width bytes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_tf(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ rows,
    const int* __restrict__ columns, const float* __restrict__ data, long long out_first, long long dense_first,
    int out_stride, int dense_stride, int first_entry, int n_entries, int width) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long k = i / width;
  if (k >= n_entries) return;
  const int p = static_cast<int>(i - k * width);
  const long long entry = first_entry + k;
  atomicAdd(out + out_first + row_offset(rows[entry], out_stride) + p,
            data[entry] * dense[dense_first + row_offset(columns[entry], dense_stride) + p]);
}
