// Device code of the sparse kernels: the view of one graph in a ragged batch, vectors of 1 or 4 floats, and the product
// of a sparse row with a dense matrix. No kernels.
#pragma once

#include "common/common.cuh"

// The rows and entries of one graph in a block-diagonal matrix.
struct GraphView {
  int first_row, n_rows, first_entry, n_entries;
};

// Graph `graph` of a batch. node_ptr (B+1,) counts nodes; a node has rows_per_node rows (1 forward, C transposed).
__device__ __forceinline__ GraphView graph_of_batch(const int* node_ptr, const int* indptr, int graph,
                                                    int rows_per_node) {
  const int first_row = node_ptr[graph] * rows_per_node, end_row = node_ptr[graph + 1] * rows_per_node;
  const int first_entry = indptr[first_row];
  return {first_row, end_row - first_row, first_entry, indptr[end_row] - first_entry};
}

// Offset of a row of a dense matrix. The product may exceed 32 bits.
__device__ __forceinline__ long long row_offset(int row, int stride) { return static_cast<long long>(row) * stride; }

// ---------------------------------------------------------------------------------------------------------- vectors

template <typename Vec>
constexpr int VEC_WIDTH = sizeof(Vec) / sizeof(float);

template <typename Vec>
__device__ __forceinline__ Vec load_vec(const float* source) {
  return __ldg(reinterpret_cast<const Vec*>(source));
}

template <typename Vec>
__device__ __forceinline__ void store_vec(float* target, Vec value) {
  *reinterpret_cast<Vec*>(target) = value;
}

template <typename Vec>
__device__ __forceinline__ Vec zero_vec();
template <>
__device__ __forceinline__ float zero_vec<float>() {
  return 0.0f;
}
template <>
__device__ __forceinline__ float4 zero_vec<float4>() {
  return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// sum + weight * x, rounded once per component.
__device__ __forceinline__ float add_scaled(float sum, float weight, float x) { return fmaf(weight, x, sum); }
__device__ __forceinline__ float4 add_scaled(float4 sum, float weight, float4 x) {
  return make_float4(fmaf(weight, x.x, sum.x), fmaf(weight, x.y, sum.y), fmaf(weight, x.z, sum.z),
                     fmaf(weight, x.w, sum.w));
}

__device__ __forceinline__ float add_vec(float a, float b) { return a + b; }
__device__ __forceinline__ float4 add_vec(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float shuffle_xor_vec(float x, int offset) {
  return __shfl_xor_sync(0xffffffffu, x, offset);
}
__device__ __forceinline__ float4 shuffle_xor_vec(float4 x, int offset) {
  return make_float4(shuffle_xor_vec(x.x, offset), shuffle_xor_vec(x.y, offset), shuffle_xor_vec(x.z, offset),
                     shuffle_xor_vec(x.w, offset));
}

// ------------------------------------------------------------------------------------------------------- sparse rows

constexpr int NEIGHBOURS = 4;  // rows of the dense matrix that a thread has in flight

// Minimum number of resident blocks of 256 threads per multiprocessor for row kernels: as many as the thread limit
// allows, because only other rows hide the latency of a row's three dependent loads. On an H200, 5 blocks (40
// registers) instead of 8 (32) were up to 16 % slower from 512 columns on. On sm_103, 8 blocks would leave too few
// registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int ROW_BLOCKS = 4;
#elif defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ == 1030 || \
                                 __CUDA_ARCH__ == 1100 || __CUDA_ARCH__ >= 1200)
constexpr int ROW_BLOCKS = 6;
#else
constexpr int ROW_BLOCKS = 8;
#endif

// Add COUNT entries first, first + step, … to `sum`, each  weight(entry) * in[column(entry), this thread's columns].
// All indices and weights are loaded before the first dense row, and all dense rows before the first is used. So all
// entries together cost the latency of three dependent loads (pointer, index, row).
template <typename Vec, int COUNT>
__device__ __forceinline__ Vec add_entries(Vec sum, const float* __restrict__ in, int in_stride,
                                           const int* __restrict__ indices, const float* __restrict__ data,
                                           const int* __restrict__ order, int first, int step) {
  int column[COUNT];
  float weight[COUNT];
  Vec row[COUNT];
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
    const int entry = first + u * step;
    column[u] = __ldg(indices + entry);
    weight[u] = __ldg(data + (order ? __ldg(order + entry) : entry));
  }
#pragma unroll
  for (int u = 0; u < COUNT; ++u) row[u] = load_vec<Vec>(in + row_offset(column[u], in_stride));
#pragma unroll
  for (int u = 0; u < COUNT; ++u) sum = add_scaled(sum, weight[u], row[u]);
  return sum;
}

// Sum over the entries first, first + step, … < end of  weight(entry) * in[column(entry), this thread's columns].
//
// `in` points to the thread's first column of row 0. `order` is null or holds the index of each entry's weight.
// Alternatives on an H200: one entry at a time was up to 18 % slower, but up to 4 % faster for rows of one entry; two
// at a time were 2 % faster to 12 % slower; predicated loads beyond the end were slower everywhere.
template <typename Vec>
__device__ __forceinline__ Vec sparse_row_product(const float* __restrict__ in, int in_stride,
                                                  const int* __restrict__ indices, const float* __restrict__ data,
                                                  const int* __restrict__ order, int first, int end, int step) {
  static_assert(NEIGHBOURS == 4, "the remainders below are those of 4");
  Vec sum = zero_vec<Vec>();
  int k = first;
  for (; k + 3 * step < end; k += 4 * step)
    sum = add_entries<Vec, 4>(sum, in, in_stride, indices, data, order, k, step);
  if (k + 2 * step < end) return add_entries<Vec, 3>(sum, in, in_stride, indices, data, order, k, step);
  if (k + step < end) return add_entries<Vec, 2>(sum, in, in_stride, indices, data, order, k, step);
  if (k < end) return add_entries<Vec, 1>(sum, in, in_stride, indices, data, order, k, step);
  return sum;
}

// Sum over the lanes that differ only in bits low … high-1, in fixed order. All 32 lanes must call.
template <typename Vec>
__device__ __forceinline__ Vec sum_over_bits(Vec value, int low, int high) {
  for (int offset = 1 << low; offset < 1 << high; offset <<= 1) {
    value = add_vec(value, shuffle_xor_vec(value, offset));
  }
  return value;
}

// Sparse rows times a dense matrix. 2^group_bits groups of 2^lane_bits lanes share a row. A lane owns one vector of
// columns in each of the `chunks` column blocks of blockIdx.y. A group takes every 2^group_bits-th entry; shuffles
// reduce the groups in fixed order. A block works on `passes` consecutive sets of rows, so it finds neighbours of the
// same graph in L1. Chunks and passes keep the number of blocks small: a block that computes one short row costs more
// to start than to run. `accumulate` adds to `out` instead of overwriting it.
template <typename Vec>
__device__ __forceinline__ void sparse_rows_product(float* __restrict__ out, const float* __restrict__ in,
                                                    const int* __restrict__ indptr, const int* __restrict__ indices,
                                                    const float* __restrict__ data, int out_stride, int in_stride,
                                                    int n_rows, int width, int accumulate, int lane_bits,
                                                    int group_bits, int passes, int chunks) {
  const int row_bits = lane_bits + group_bits, rows_per_pass = blockDim.x >> row_bits;
  const int lane = threadIdx.x & ((1 << lane_bits) - 1);
  const int group = (threadIdx.x >> lane_bits) & ((1 << group_bits) - 1);
  const int first_column = ((blockIdx.y * chunks << lane_bits) + lane) * VEC_WIDTH<Vec>;
  int row = blockIdx.x * rows_per_pass * passes + (threadIdx.x >> row_bits);
  for (int pass = 0; pass < passes; ++pass, row += rows_per_pass) {
    const int first = row < n_rows ? __ldg(indptr + row) + group : 0, end = row < n_rows ? __ldg(indptr + row + 1) : 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int column = first_column + (chunk << lane_bits) * VEC_WIDTH<Vec>;
      const bool live = row < n_rows && column < width;
      Vec sum = zero_vec<Vec>();
      if (live) {
        sum = sparse_row_product<Vec>(in + column, in_stride, indices, data, nullptr, first, end, 1 << group_bits);
      }
      sum = sum_over_bits(sum, lane_bits, row_bits);
      if (live && group == 0) {
        float* target = out + row_offset(row, out_stride) + column;
        store_vec(target, accumulate ? add_vec(*reinterpret_cast<Vec*>(target), sum) : sum);
      }
    }
  }
}
