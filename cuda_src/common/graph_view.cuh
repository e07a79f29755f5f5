// What the sparse kernels share: the view of one graph in a ragged batch, vectors of 1 or 4 floats, and the product of
// one sparse row with a dense matrix. No kernels here.
#pragma once

// The rows, and with them the entries, that one graph owns in a block-diagonal matrix.
struct GraphView {
  int first_row, n_rows, first_entry, n_entries;
};

// Graph b of a batch: node_ptr (B+1,) counts nodes, each of which has rows_per_node rows (1 forward, C transposed).
__device__ __forceinline__ GraphView graph_of_batch(const int* node_ptr, const int* indptr, int graph,
                                                    int rows_per_node) {
  const int first_row = node_ptr[graph] * rows_per_node, end_row = node_ptr[graph + 1] * rows_per_node;
  const int first_entry = indptr[first_row];
  return {first_row, end_row - first_row, first_entry, indptr[end_row] - first_entry};
}

// Where a row of a dense matrix begins: 64 bits, the product may pass 2^31.
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

// sum + weight * x, each component with one rounding.
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

// Blocks of 256 threads that a multiprocessor shall hold of a kernel on rows: all that its threads allow, because it is
// other rows that hide a row's three dependent loads. On an H200, 5 blocks (40 registers) instead of 8 (32) were up to
// 16 % slower from 512 columns on. On sm_103 8 blocks would leave too few registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int ROW_BLOCKS = 4;
#elif defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ == 1030 || \
                                 __CUDA_ARCH__ == 1100 || __CUDA_ARCH__ >= 1200)
constexpr int ROW_BLOCKS = 6;
#else
constexpr int ROW_BLOCKS = 8;
#endif

// sum + the entries first, first + step, … (COUNT of them), each  weight(entry) * in[column(entry), this thread's
// columns]. Indices and weights of all are loaded before the first dense row is asked for, and all rows before the first
// is used: they cost the latency of three dependent loads (pointer, index, row) together.
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

// sum over entries first, first + step, … < end of  weight(entry) * in[column(entry), this thread's columns].
//
// `in` points at the thread's first column of row 0. `order` is null, or says where the weight of each entry stands.
// Tried on an H200: one entry at a time, up to 18 % slower, but up to 4 % faster where rows have one entry; two at a
// time, 2 % faster to 12 % slower; loads beyond the end predicated off instead of left out, slower everywhere.
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

// Sum over threads whose numbers in the warp differ only in bits low … high-1, in fixed order; all 32 must call.
template <typename Vec>
__device__ __forceinline__ Vec sum_over_bits(Vec value, int low, int high) {
  for (int offset = 1 << low; offset < 1 << high; offset <<= 1) {
    value = add_vec(value, shuffle_xor_vec(value, offset));
  }
  return value;
}

// A row of threads per sparse row: 2^group_bits groups of 2^lane_bits lanes. A lane owns one vector of columns in each of
// `chunks` column blocks (those of blockIdx.y), a group every 2^group_bits-th entry; groups are folded by shuffles in
// fixed order. A block walks `passes` times over its consecutive rows, so that neighbours in the same graph are found in
// L1. Both keep blocks few where there is enough work: a block that lives for one short row costs more to start.
// `order` as in sparse_row_product; `accumulate` adds to `out` instead of overwriting it.
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
