// Adjacency (CSR) of a whole batch times dense features: a family of kernels for short rows.
//
//   out[r, p] = sum over entries k of row r of  data[k] * dense[indices[k], p]          r < n_rows, p < width
//
// Source: own. Differs from spmm/csr.cu, which supports every scope, size and row length. These kernels have no code
// that a batch does not need (no strides, offsets, groups, passes or chunks), because a batch of small graphs takes a
// few microseconds, most of them for the launch and three dependent loads (pointer, index, dense row). A row has
// 2^lane_bits threads. A thread owns VECTORS vectors of the row's columns, so that one index serves several loads in
// wide rows, and has ENTRIES entries in flight. There are two ways to handle the end of a row:
//   branches (spmm_rows_float4_<VECTORS>x<ENTRIES>): the fewest instructions, but rows of different length in a warp
//     diverge, and each length runs by itself. Wide rows avoid this with a whole warp per row.
//   masks (…m): loads beyond the end are masked off, and all rows of a warp load together. On an H200, a batch of 50
//     molecules (830 rows of 1 to 5 entries) with 64 columns takes 1.73 us with 1x5m, 2.05 to 2.40 us with branches.
//     For rows of equal length, masks cost nothing below 256 columns and up to 9 % from 512 columns on.
// cuda.spmm = "auto" takes the form, the threads per row and the threads per block from a table that `gcnbatch bench
// tune` measures.
//
// Register limits: with 32 registers, the compiler keeps three entries of one vector in flight. With a fourth entry, it
// uses the first dense row before it loads the others, so the loads wait twice. Five entries need 48 registers.
// Alternatives on an H200: dense rows of a graph in shared memory, to relieve L2, were 10 to 80 % slower from 64
// columns on, because the barrier costs more than the loads. Streaming stores (st.cs) were 8 to 21 % faster if operand
// and result together just exceed L2, but only in a benchmark that repeats a product: there the operand stays in cache,
// while a network reads the result next. Loads from a clamped address instead of masked loads were 2 to 5 % slower.
//
// Shapes: out (n_rows, width), dense (columns of the matrix, width) float32, row-major; indptr (n_rows + 1,), indices
//   (nnz,) int32, data (nnz,) float32.
// Launch: 128 or 256 threads, grid.x over rows, grid.y over blocks of VECTORS * 2^lane_bits vectors, which divide the
//   row evenly unless VECTORS is 1. Batch 100 of 50 nodes, P = 64, 2x1: 8 lanes, 32 rows per block of 256, 157 blocks.
// Shared memory: none.
// Traffic: reads 4 (n_rows + 1) + 8 nnz + 4 min(nnz, columns) width bytes, writes 4 n_rows width; neighbours of the
//   same graph come from L1 / L2. 8 lanes read 128 bytes in one transaction.
// Determinism: one thread writes each output and adds the row's entries in order: repeats to the bit. All kernels of
//   the family, SWA SpMM for CSR, and spmm/csr.cu without groups give the same bits. A masked entry adds -0 * 0, which
//   changes no sum.
// Requirements: float4: width divisible by 4, pointers aligned to 16 bytes.
#include "common/graph_view.cuh"

// ---------------------------------------------------------------------------------------------------------- helpers

__host__ __device__ constexpr int at_most(int blocks) { return ROW_BLOCKS < blocks ? ROW_BLOCKS : blocks; }

// sum[i] += weight * vector i of the dense row, for COUNT entries in order. All indices and weights are loaded before
// the first dense row, and all dense rows before the first is used. `in` points to the thread's first column of dense
// row 0; its vectors are `stride` bytes apart.
template <typename Vec, int VECTORS, int COUNT>
__device__ __forceinline__ void add_in_flight(Vec* sum, const char* __restrict__ in, unsigned row_bytes,
                                              unsigned stride, const int* __restrict__ indices,
                                              const float* __restrict__ data) {
  unsigned column[COUNT];
  float weight[COUNT];
  Vec row[COUNT][VECTORS];
#pragma unroll
  for (int u = 0; u < COUNT; ++u) column[u] = __ldg(indices + u);
#pragma unroll
  for (int u = 0; u < COUNT; ++u) weight[u] = __ldg(data + u);
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
    const char* source = in + static_cast<unsigned long long>(column[u]) * row_bytes;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) row[u][i] = __ldg(reinterpret_cast<const Vec*>(source + i * stride));
  }
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum[i] = add_scaled(sum[i], weight[u], row[u][i]);
  }
}

// The same for the last entries of a row, `left` <= MOST of them.
template <typename Vec, int VECTORS, int MOST>
__device__ __forceinline__ void add_last(Vec* sum, const char* __restrict__ in, unsigned row_bytes, unsigned stride,
                                         const int* __restrict__ indices, const float* __restrict__ data, int left) {
  if constexpr (MOST > 0) {
    if (left == MOST)
      add_in_flight<Vec, VECTORS, MOST>(sum, in, row_bytes, stride, indices, data);
    else
      add_last<Vec, VECTORS, MOST - 1>(sum, in, row_bytes, stride, indices, data, left);
  }
}

// The same for the first COUNT of `left` >= 1 entries; loads beyond `left` are masked off.
template <typename Vec, int VECTORS, int COUNT>
__device__ __forceinline__ void add_masked(Vec* sum, const char* __restrict__ in, unsigned row_bytes, unsigned stride,
                                           const int* __restrict__ indices, const float* __restrict__ data, int left) {
  unsigned column[COUNT];
  float weight[COUNT];
  Vec row[COUNT][VECTORS];
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
    column[u] = u < left ? __ldg(indices + u) : 0;
    weight[u] = u < left ? __ldg(data + u) : -0.0f;
  }
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
    const char* source = in + static_cast<unsigned long long>(column[u]) * row_bytes;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
      row[u][i] = u < left ? __ldg(reinterpret_cast<const Vec*>(source + i * stride)) : zero_vec<Vec>();
  }
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum[i] = add_scaled(sum[i], weight[u], row[u][i]);
  }
}

// Keep a pointer in registers. Otherwise, the compiler would recompute it after every mask.
__device__ __forceinline__ void hold(const char*& pointer) { asm volatile("" : "+l"(pointer)); }

// A row by 2^lane_bits lanes, each of which owns VECTORS vectors that are 2^lane_bits vectors apart.
template <typename Vec, int VECTORS, int ENTRIES, bool MASKED>
__device__ __forceinline__ void rows_product(float* __restrict__ out, const float* __restrict__ in,
                                             const int* __restrict__ indptr, const int* __restrict__ indices,
                                             const float* __restrict__ data, unsigned n_rows, unsigned width,
                                             int lane_bits) {
  const unsigned row_bytes = width * unsigned(sizeof(float)), stride = unsigned(sizeof(Vec)) << lane_bits;
  const unsigned row = (blockIdx.x * blockDim.x + threadIdx.x) >> lane_bits;
  const unsigned column = blockIdx.y * VECTORS * stride + (threadIdx.x * unsigned(sizeof(Vec)) & (stride - 1));
  if (row >= n_rows || column >= row_bytes) return;
  const int first = __ldg(indptr + row);
  int left = __ldg(indptr + row + 1) - first;
  indices += first;
  data += first;
  const char* source = reinterpret_cast<const char*>(in) + column;
  Vec sum[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) sum[i] = zero_vec<Vec>();
  if constexpr (MASKED) {
    hold(source);
#pragma unroll 1
    for (; left > 0; left -= ENTRIES, indices += ENTRIES, data += ENTRIES)
      add_masked<Vec, VECTORS, ENTRIES>(sum, source, row_bytes, stride, indices, data, left);
  } else {
#pragma unroll 1
    for (; left > ENTRIES; left -= ENTRIES, indices += ENTRIES, data += ENTRIES)
      add_in_flight<Vec, VECTORS, ENTRIES>(sum, source, row_bytes, stride, indices, data);
    add_last<Vec, VECTORS, ENTRIES>(sum, source, row_bytes, stride, indices, data, left);
  }
  char* target = reinterpret_cast<char*>(out) + static_cast<unsigned long long>(row) * row_bytes + column;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) *reinterpret_cast<Vec*>(target + i * stride) = sum[i];
}

// ----------------------------------------------------------------------------------------------------- entry points

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void spmm_rows_float4_1x3(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float4, 1, 3, false>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}

// One entry at a time: a plain row split.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void spmm_rows_float4_2x1(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float4, 2, 1, false>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 3) void spmm_rows_float4_2x5(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float4, 2, 5, false>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 4) void spmm_rows_float4_4x2(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float4, 4, 2, false>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void spmm_rows_float4_1x3m(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float4, 1, 3, true>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, at_most(5)) void spmm_rows_float4_1x5m(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float4, 1, 5, true>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}

// For any width and alignment: single floats, up to 32 lanes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) void spmm_rows_float1_1x5m(
    float* __restrict__ out, const float* __restrict__ dense, const int* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ data, int n_rows, int width, int lane_bits) {
  rows_product<float, 1, 5, true>(out, dense, indptr, indices, data, n_rows, width, lane_bits);
}
