// What the kernels of fused/kipf/step.cu are made of; no kernels here.
#pragma once

#include "dense/loss.cuh"
#include "fused/shared/optimizer.cuh"

namespace kipf {

constexpr int THREADS = 256, PARTS = 4;  // of a block; parts that it splits into for short rows
constexpr int WARPS = THREADS / 32;
constexpr int AHEAD = 4;       // entries that a thread has asked for before it uses the first
constexpr int SHORT_PATH = 8;  // products of an entry of U that one thread sums up

__device__ __forceinline__ int pad(int columns) { return (columns + 3) / 4 * 4; }

// ---- who does what ----

// Rows of very different lengths are dealt out with the longest first, order (n_tasks,): the first `n_long` have a block
// each, then a block does PARTS at a time.
struct Share {
  int task;             // -1: none
  int thread, threads;  // of those that share the task
  int part;

  __device__ __forceinline__ Share(const int* order, int block, int n_long, int n_tasks) {
    const bool is_long = block < n_long;
    threads = is_long ? THREADS : THREADS / PARTS;
    part = is_long ? 0 : threadIdx.x / (THREADS / PARTS);
    thread = threadIdx.x - part * threads;
    const int i = is_long ? block : n_long + (block - n_long) * PARTS + part;
    task = i < n_tasks ? order[i] : -1;
  }
};

__device__ __forceinline__ int blocks_for(int n_long, int n_tasks) {
  return n_long + ceil_div(n_tasks - n_long, PARTS);
}

// ---- sums of weighted rows ----

// The entries first, first + step, … below last: each a value and the row it weighs.
struct Entries {
  const float* values;
  const int* rows;  // null: entry e weighs row e
  int first, last, step;
  int stride;  // from value to value
};

struct Some {
  float value[AHEAD];
  int row[AHEAD];  // -1: none
};

__device__ __forceinline__ Some read_some(const Entries& of, int first) {
  Some some;
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) {
    const int e = first + u * of.step;
    const bool is_there = e < of.last;
    some.value[u] = is_there ? of.values[e * of.stride] : 0.f;
    some.row[u] = !is_there ? -1 : of.rows ? of.rows[e] : e;
  }
  return some;
}

__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 x) {
  sum.x += factor * x.x, sum.y += factor * x.y, sum.z += factor * x.z, sum.w += factor * x.w;
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four columns of row `row` of a matrix, of which a thread holds the place of its first in row 0.
struct Column {
  const float* start;
  int stride;

  __device__ __forceinline__ float4 operator()(int row) const {
    return *reinterpret_cast<const float4*>(start + row * stride);
  }
};

// The same where rows are not aligned, or end before the fourth column.
struct RaggedColumn {
  const float* start;
  int stride, left;

  __device__ __forceinline__ float4 operator()(int row) const { return load4(start + row * stride, left, false); }
};

// Sum of value * row(row number) over the entries, of which `some` are the first.
template <class Row>
__device__ __forceinline__ float4 sum_rows(const Entries& of, Some some, const Row& row) {
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int e = of.first; e < of.last; e += AHEAD * of.step) {
    float4 x[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      x[u] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (some.row[u] >= 0) x[u] = row(some.row[u]);
    }
    const Some next = read_some(of, e + AHEAD * of.step);
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) add_scaled(sum, some.value[u], x[u]);
    some = next;
  }
  return sum;
}

// A row is summed up by groups of 2^lane_bits neighbouring threads, four columns each.
__device__ __forceinline__ int lane_of(int thread, int lane_bits) { return thread & ((1 << lane_bits) - 1); }

// Sum over the groups of a warp, in each of them.
__device__ __forceinline__ float4 fold_warp(float4 sum, int lane_bits) {
  for (int offset = 1 << lane_bits; offset < 32; offset *= 2) {
    sum = plus(sum, make_float4(__shfl_xor_sync(FULL_WARP, sum.x, offset), __shfl_xor_sync(FULL_WARP, sum.y, offset),
                                __shfl_xor_sync(FULL_WARP, sum.z, offset), __shfl_xor_sync(FULL_WARP, sum.w, offset)));
  }
  return sum;
}

// The same over the groups of a share, right in its first group. Every thread of the block calls; callers keep calls
// apart by a barrier.
__device__ __forceinline__ float4 fold(float4 sum, int lane_bits, const Share& share) {
  __shared__ float4 of_warp[WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  sum = fold_warp(sum, lane_bits);
  if (lane >> lane_bits == 0) of_warp[warp][lane] = sum;
  __syncthreads();
  if (share.thread >> lane_bits == 0) {
#pragma unroll
    for (int w = 1; w < WARPS; ++w)
      if (w < share.threads / 32) sum = plus(sum, of_warp[warp + w][lane]);
  }
  return sum;
}

__device__ __forceinline__ float component(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// ---- a warp's row ----

// Row `row` of A X, for X with padded rows of K columns: each group of lanes holds it. Zero beyond the last row.
struct WarpRow {
  Entries of;
  Some some;
  int lane, lane_bits;

  __device__ __forceinline__ WarpRow(const float* a_values, const int* a_rows, const int* a_ptr, int row, int n_rows,
                                     int K, int lane_bits)
      : lane(lane_of(threadIdx.x, lane_bits)), lane_bits(lane_bits) {
    const bool is_there = row < n_rows && 4 * lane < K;
    const int group = static_cast<int>(threadIdx.x % 32) >> lane_bits;
    of = {a_values, a_rows, is_there ? a_ptr[row] + group : 0, is_there ? a_ptr[row + 1] : 0, 32 >> lane_bits, 1};
    some = read_some(of, of.first);
  }

  __device__ __forceinline__ float4 times(const float* x, int K) const {
    return fold_warp(sum_rows(of, some, Column{x + 4 * lane, pad(K)}), lane_bits);
  }
};

// ---- dropout ----

// The bits of step `next`, eight elements a byte: of the elements of X up to `n_drawn_x`, then of Z. drawn (n_drawn,):
// which Philox blocks anybody asks for.
__device__ __forceinline__ void draw(int d, unsigned char* kept, const int* keys, const int* drawn,
                                     unsigned long long seed, unsigned long long purpose_x,
                                     unsigned long long purpose_z, unsigned threshold, int next, int n_drawn,
                                     int n_drawn_x) {
  if (d >= n_drawn) return;
  const PhiloxKey key = {seed, d < n_drawn_x ? purpose_x : purpose_z, static_cast<unsigned long long>(keys[2 * next]),
                         static_cast<unsigned long long>(keys[2 * next + 1])};
  const PhiloxBlock bits = philox(key, drawn[d]);
  unsigned byte = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) byte |= (bits.value[i] >= threshold) << i;
  kept[(next & 1) * n_drawn + d] = static_cast<unsigned char>(byte);
}

// The bits of a row of Z, from number `first` on; null: everything is kept.
struct Kept {
  const unsigned char* kept;
  int first;

  // Those of four columns as the lowest bits, as far as columns below `end` go.
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

struct StagedU {
  float *u_values, *t_values;
  const unsigned char* kept;
  const int* path_ptr;
  const int2* paths;  // number of the bit; bits of the value
  const int* t_place;

  __device__ __forceinline__ float product(int2 path) const {
    return kept[path.x >> 3] >> (path.x & 7) & 1 ? __int_as_float(path.y) : 0.f;
  }

  __device__ __forceinline__ void write(int u, int place, float sum) const { u_values[u] = sum, t_values[place] = sum; }

  // Entry u, of at most SHORT_PATH products; longer ones are left to a warp.
  __device__ __forceinline__ void sum_by_thread(int u) const {
    const int first = u < 0 ? 0 : path_ptr[u], length = u < 0 ? 0 : path_ptr[u + 1] - first;
    const int place = u < 0 ? 0 : t_place[u];
    const bool is_mine = u >= 0 && length <= SHORT_PATH;
    int2 path[SHORT_PATH];
#pragma unroll
    for (int i = 0; i < SHORT_PATH; ++i) path[i] = is_mine && i < length ? paths[first + i] : make_int2(0, 0);
    fused::wait_for_previous();
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < SHORT_PATH; ++i)
      if (is_mine && i < length) sum += product(path[i]);
    if (is_mine) write(u, place, sum);
  }

  __device__ __forceinline__ void sum_by_warp(int u) const {
    const int lane = threadIdx.x % 32;
    const int first = u < 0 ? 0 : path_ptr[u], last = u < 0 ? 0 : path_ptr[u + 1];
    const int place = u < 0 ? 0 : t_place[u];
    int2 path = first + lane < last ? paths[first + lane] : make_int2(0, 0);
    fused::wait_for_previous();
    float sum = 0.f;
    for (int i = first + lane; i < last; i += 32) {
      const int2 next = i + 32 < last ? paths[i + 32] : make_int2(0, 0);
      sum += product(path);
      path = next;
    }
    sum = warp_sum(sum);
    if (lane == 0 && u >= 0) write(u, place, sum);
  }
};

}  // namespace kipf
