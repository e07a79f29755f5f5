// Device functions of the kernels in fused/kipf/step.cu; no kernels here.
#pragma once

#include "dense/loss.cuh"
#include "fused/shared/optimizer.cuh"

namespace kipf {

static_assert(!fused::SHARES_LAUNCHES, "cohorts do not run the Kipf form");

constexpr int THREADS = 256, WARPS = THREADS / 32;  // of a block
constexpr int SHORT_TASKS = 4;                      // tasks that share a block
constexpr int COLUMNS = 4, MAX_LANES = 32;          // columns that a thread sums, as a float4; threads that share a row
constexpr int PREFETCHED = 4;                       // entries that a thread loads before it uses the first
constexpr int THREAD_PRODUCTS = 8;                  // an entry of U with more products is summed by a warp

// Floats of a padded row.
__device__ __forceinline__ int pad(int columns) { return (columns + COLUMNS - 1) / COLUMNS * COLUMNS; }

// A CSR matrix with 32-bit indices.
struct Csr {
  const int *indptr, *indices;
  const float* values;
};

// ---- tasks ----

// A task is a weighted sum of rows. Lengths differ by a factor of 100, so the host sorts tasks by descending length, order
// (n_tasks,). Each of the first `n_long` has a block; SHORT_TASKS of the others share one.
struct Task {
  int number;           // -1: none
  int thread, threads;  // this thread's index among the task's threads; their number
  int slot;             // index among the tasks of the block

  __device__ __forceinline__ Task(const int* order, int block, int n_long, int n_tasks) {
    const bool is_long = block < n_long;
    threads = is_long ? THREADS : THREADS / SHORT_TASKS;
    slot = is_long ? 0 : threadIdx.x / (THREADS / SHORT_TASKS);
    thread = threadIdx.x - slot * threads;
    const int i = is_long ? block : n_long + (block - n_long) * SHORT_TASKS + slot;
    number = i < n_tasks ? order[i] : -1;
  }
};

__device__ __forceinline__ int blocks_for(int n_long, int n_tasks) {
  return n_long + ceil_div(n_tasks - n_long, SHORT_TASKS);
}

// ---- weighted sums of rows ----

// The row that an entry weights: of a sparse matrix, of a dense one, or, if a kernel supports both, of either.
struct Indices {
  const int* rows;
  __device__ __forceinline__ int operator()(int e) const { return rows[e]; }
};
struct Identity {
  __device__ __forceinline__ int operator()(int e) const { return e; }
};
struct IndicesIfAny {
  const int* rows;  // null: dense
  __device__ __forceinline__ int operator()(int e) const { return rows ? rows[e] : e; }
};

// The entries first, first + step, … below last; `stride` is the distance of values.
template <class RowOf>
struct Entries {
  const float* values;
  RowOf row_of;
  int first, last, step, stride;
};

// The next entries of a thread, in registers.
struct Prefetched {
  float value[PREFETCHED];
  int row[PREFETCHED];  // -1: none
};

template <class RowOf>
__device__ __forceinline__ Prefetched prefetch(const Entries<RowOf>& entries, int first) {
  Prefetched next;
#pragma unroll
  for (int u = 0; u < PREFETCHED; ++u) {
    const int e = first + u * entries.step;
    const bool exists = e < entries.last;
    next.value[u] = exists ? entries.values[e * entries.stride] : 0.f;
    next.row[u] = exists ? entries.row_of(e) : -1;
  }
  return next;
}

__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 x) {
  sum.x += factor * x.x, sum.y += factor * x.y, sum.z += factor * x.z, sum.w += factor * x.w;
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four columns of a matrix; `start` points to the first of them in row 0.
struct Column {
  const float* start;
  int stride;

  __device__ __forceinline__ float4 operator()(int row) const {
    return *reinterpret_cast<const float4*>(start + row * stride);
  }
};

// The same for rows that are not aligned or end before the fourth column.
struct RaggedColumn {
  const float* start;
  int stride, left;

  __device__ __forceinline__ float4 operator()(int row) const { return load4(start + row * stride, left, false); }
};

// Sum of value * row(row number) over the entries; `next` holds the first of them.
template <class RowOf, class Row>
__device__ __forceinline__ float4 sum_rows(const Entries<RowOf>& entries, Prefetched next, const Row& row) {
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int e = entries.first; e < entries.last; e += PREFETCHED * entries.step) {
    float4 x[PREFETCHED];
#pragma unroll
    for (int u = 0; u < PREFETCHED; ++u) {
      x[u] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (next.row[u] >= 0) x[u] = row(next.row[u]);
    }
    const Prefetched later = prefetch(entries, e + PREFETCHED * entries.step);
#pragma unroll
    for (int u = 0; u < PREFETCHED; ++u) add_scaled(sum, next.value[u], x[u]);
    next = later;
  }
  return sum;
}

// Groups of 2^lane_bits neighbouring threads sum a row, COLUMNS columns each; groups take entries in turn.
__device__ __forceinline__ int lane_of(int thread, int lane_bits) { return thread & ((1 << lane_bits) - 1); }

// Sum over the groups of a warp; each group gets it.
__device__ __forceinline__ float4 reduce_warp(float4 sum, int lane_bits) {
  for (int offset = 1 << lane_bits; offset < 32; offset *= 2) {
    sum = plus(sum, make_float4(__shfl_xor_sync(FULL_WARP, sum.x, offset), __shfl_xor_sync(FULL_WARP, sum.y, offset),
                                __shfl_xor_sync(FULL_WARP, sum.z, offset), __shfl_xor_sync(FULL_WARP, sum.w, offset)));
  }
  return sum;
}

// Sum over the groups of a task; the task's first group gets it. All threads of the block call, with a barrier between two
// calls.
__device__ __forceinline__ float4 reduce_task(float4 sum, int lane_bits, const Task& task) {
  __shared__ float4 of_warp[WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  sum = reduce_warp(sum, lane_bits);
  if (lane >> lane_bits == 0) of_warp[warp][lane] = sum;
  __syncthreads();
  if (task.thread >> lane_bits == 0) {
#pragma unroll
    for (int w = 1; w < WARPS; ++w)
      if (w < task.threads / 32) sum = plus(sum, of_warp[warp + w][lane]);
  }
  return sum;
}

__device__ __forceinline__ float component(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Row `row` of A X, computed by a warp; rows of X are padded, with K columns. Zero beyond the last row.
struct WarpRow {
  Entries<Indices> entries;
  Prefetched next;
  int lane, lane_bits;

  __device__ __forceinline__ WarpRow(const Csr& a, int row, int n_rows, int K, int lane_bits)
      : lane(lane_of(threadIdx.x, lane_bits)), lane_bits(lane_bits) {
    const bool exists = row < n_rows && COLUMNS * lane < K;
    const int group = static_cast<int>(threadIdx.x % 32) >> lane_bits;
    const int begin = exists ? a.indptr[row] + group : 0, end = exists ? a.indptr[row + 1] : 0;
    entries = {a.values, {a.indices}, begin, end, 32 >> lane_bits, 1};
    next = prefetch(entries, entries.first);
  }

  // Return the four columns of the lane, in each group of lanes.
  __device__ __forceinline__ float4 times(const float* x, int K) const {
    return reduce_warp(sum_rows(entries, next, Column{x + COLUMNS * lane, pad(K)}), lane_bits);
  }
};

// ---- dropout ----

// Dropout bits: first those of X's elements, `n_drawn_x` bytes, then those of Z's.
struct Dropout {
  const int* drawn;  // (n_drawn,): the Philox blocks that have needed bits
  unsigned long long seed, purpose_x, purpose_z;
  unsigned threshold;
  float keep_scale;  // 1 / (1 - rate)
};

// The bits of a row of Z, from index `first` on; null: all elements are kept.
struct KeptRow {
  const unsigned char* kept;
  int first;

  // Return the bits of four columns as the lowest ones; those of columns from `end` on are 0.
  __device__ __forceinline__ unsigned bits(int column, int end) const {
    if (kept == nullptr) return 15;
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int bit = first + column + i;
      if (column + i < end) found |= (kept[bit >> 3] >> (bit & 7) & 1) << i;
    }
    return found;
  }
};

// ---- U of the next step ----

// A product A_ij X_jf that an entry of U sums: the index of X_jf's dropout bit, and its value.
struct __align__(8) Product {
  int bit;
  float value;
};

// U's values in both orders, and the products that each entry sums.
struct NextU {
  float *by_rows, *by_columns;
  const unsigned char* kept;
  const int* product_ptr;
  const Product* products;
  const int* place;

  __device__ __forceinline__ float value_if_kept(Product product) const {
    return kept[product.bit >> 3] >> (product.bit & 7) & 1 ? product.value : 0.f;
  }

  __device__ __forceinline__ void write(int u, int place_of_u, float sum) const {
    by_rows[u] = sum, by_columns[place_of_u] = sum;
  }

  // Sum entry u if it has at most THREAD_PRODUCTS products; -1: no entry.
  __device__ __forceinline__ void sum_by_thread(int u) const {
    const int first = u < 0 ? 0 : product_ptr[u], length = u < 0 ? 0 : product_ptr[u + 1] - first;
    const int place_of_u = u < 0 ? 0 : place[u];
    const bool is_mine = u >= 0 && length <= THREAD_PRODUCTS;
    Product own[THREAD_PRODUCTS];
#pragma unroll
    for (int i = 0; i < THREAD_PRODUCTS; ++i) own[i] = is_mine && i < length ? products[first + i] : Product{};
    fused::wait_for_previous();
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < THREAD_PRODUCTS; ++i)
      if (is_mine && i < length) sum += value_if_kept(own[i]);
    if (is_mine) write(u, place_of_u, sum);
  }

  __device__ __forceinline__ void sum_by_warp(int u) const {
    const int lane = threadIdx.x % 32;
    const int first = u < 0 ? 0 : product_ptr[u], last = u < 0 ? 0 : product_ptr[u + 1];
    const int place_of_u = u < 0 ? 0 : place[u];
    Product own = first + lane < last ? products[first + lane] : Product{};
    fused::wait_for_previous();
    float sum = 0.f;
    for (int i = first + lane; i < last; i += 32) {
      const Product next = i + 32 < last ? products[i + 32] : Product{};
      sum += value_if_kept(own);
      own = next;
    }
    sum = warp_sum(sum);
    if (lane == 0 && u >= 0) write(u, place_of_u, sum);
  }
};

}  // namespace kipf
