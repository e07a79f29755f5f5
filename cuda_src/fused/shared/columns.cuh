// Batch norm of the columns of a layer's Y, from the partial moments of blocks of 512 threads. No kernels here.
//
// Each block reduces the partial moments that it needs. Eight neighbouring lanes own a column, so its sums are shuffles.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

constexpr int TILE = 16, THREADS = 32 * TILE;  // rows of a tile; one warp gathers a row
constexpr int WARPS = THREADS / 32;
constexpr int GROUP = 64;  // columns that a block processes at a time

// ---- distribution of rows over blocks ----

// Block b of `parts` blocks has tiles b, b + parts, …; return how many blocks have a tile.
__device__ __forceinline__ int parts_in_use(int N, int parts) { return min(parts, (N + TILE - 1) / TILE); }

// The number of rows of each of `parts` blocks.
struct RowsOfParts {
  int tiles, further;  // tiles of every block; blocks with one more
  int last, missing;   // the block with the last tile; rows missing from that tile

  __device__ RowsOfParts(int N, int parts) {
    const int all = (N + TILE - 1) / TILE;
    tiles = all <= parts ? 1 : all / parts;
    further = max(all - tiles * parts, 0);
    last = further > 0 ? further - 1 : min(all, parts) - 1;
    missing = all * TILE - N;
  }

  __device__ int operator()(int part) const { return (tiles + (part < further)) * TILE - (part == last ? missing : 0); }
};

// ---- columns ----

// Batch norm of one column: Z = relu(normal(y)).
struct Column {
  float mean, inverse, slope, beta;

  __device__ __forceinline__ float normal(float y) const { return (y - mean) * slope + beta; }
  __device__ __forceinline__ float x_hat(float y) const { return (y - mean) * inverse; }
};

// Batch norm of all columns, in shared memory. Each array has columns_of(P) elements, so that float4 loads stay inside.
struct Columns {
  float *mean, *inverse, *slope, *beta;

  __device__ __forceinline__ Column column(int p) const { return {mean[p], inverse[p], slope[p], beta[p]}; }
};

__device__ __forceinline__ Columns columns_at(float* shared, int P) {
  const int n = columns_of(P);
  return {shared, shared + n, shared + 2 * n, shared + 3 * n};
}

// Statistics of a layer's columns: inputs and outputs. `gamma` null: no batch norm, or inference, where `beta` is the
// shift (`Folding`).
struct Statistics {
  const float* moments;  // (parts, columns_of(P), 2): mean and sum of squared deviations of each block's rows
  float* stats;          // (2, P): mean, inverse; read if parts = 0, else written by the block that `keep`s them
  float *running_mean, *running_var;
  const float *gamma, *beta;
  int parts;
  float epsilon, momentum;
};

// Statistics of this block's member. They are parameters of a kernel: a reference is read where its pointer is moved.
__device__ __forceinline__ Statistics statistics_of(const Members& members, const float* const& moments,
                                                    float* const& stats, float* const& running_mean,
                                                    float* const& running_var, const float* const& gamma,
                                                    const float* const& beta, const int& parts, const float& epsilon,
                                                    const float& momentum) {
  return {members.of_step(moments),
          members.of_step(stats),
          members.of_model(running_mean),
          members.of_model(running_var),
          members.of_model_or_null(gamma),
          members.of_model_or_null(beta),
          parts,
          epsilon,
          momentum};
}

// Those that an earlier kernel reduced.
__device__ __forceinline__ Statistics final_statistics(const Members& members, const float* stats, const float* gamma,
                                                       const float* beta) {
  return {nullptr,
          const_cast<float*>(members.of_step(stats)),
          nullptr,
          nullptr,
          members.of_model_or_null(gamma),
          members.of_model_or_null(beta),
          0,
          0.f,
          0.f};
}

constexpr int COLUMN_LANES = THREADS / GROUP;               // neighbouring threads of a warp that own a column
constexpr int PARTS_IN_FLIGHT = 4;                          // loads in flight per thread
constexpr int MOMENTS_IN_FLIGHT = SHARES_LAUNCHES ? 4 : 5;  // the same of moments: all of 1,280 rows for a model alone
constexpr int REDUCTION_STRIDE = GROUP + 4;  // pairs: 8 warps' sums of 4 columns need two wavefronts of 32 banks
constexpr int REDUCTION_FLOATS = 2 * WARPS * REDUCTION_STRIDE;

// Sum over the lanes of a column; every lane gets it.
__device__ __forceinline__ float2 sum_of_lanes(float2 sum) {
  return make_float2(warp_sum(sum.x, COLUMN_LANES), warp_sum(sum.y, COLUMN_LANES));
}

// Reduce partial sums, pairs of floats, of columns first … first + GROUP - 1 in a fixed order. A warp adds every WARPS-th
// part, a lane two columns; then the lanes of a column add the warps' sums. All lanes of a column get the total of column
// first + threadIdx.x / COLUMN_LANES. All threads call. `pairs` (parts, columns_of(P), 2); `add(sum, part, value)` adds
// two columns' pairs of a part; `scratch` holds REDUCTION_FLOATS.
template <int IN_FLIGHT = PARTS_IN_FLIGHT, class Add>
__device__ __forceinline__ float2 reduce_parts(float* scratch, const float* pairs, int parts, int first, int P,
                                               Add add) {
  const int warp = threadIdx.x / 32, p = first + 2 * (threadIdx.x % 32), n = columns_of(P);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int base = warp; base < parts; base += IN_FLIGHT * WARPS) {
    float4 value[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      const int part = base + u * WARPS;
      if (part < parts && p < P) value[u] = *reinterpret_cast<const float4*>(pairs + (part * n + p) * 2);
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      if (base + u * WARPS < parts && p < P) add(sum, base + u * WARPS, value[u]);
    }
  }
  float2* of_warps = reinterpret_cast<float2*>(scratch);
  if (first > 0) __syncthreads();  // all threads have read the previous columns
  *reinterpret_cast<float4*>(of_warps + warp * REDUCTION_STRIDE + p - first) = sum;
  __syncthreads();
  const float2* column = of_warps + threadIdx.x % COLUMN_LANES * REDUCTION_STRIDE + threadIdx.x / COLUMN_LANES;
  return sum_of_lanes(combine(column[0], column[COLUMN_LANES * REDUCTION_STRIDE]));
}

// Batch norm of column first + threadIdx.x / COLUMN_LANES, in each of its lanes; all threads call. Deviations are relative
// to the first part's mean, which loses no accuracy: it is within a few standard deviations of the batch's mean. With
// `keep`, one lane stores the statistics.
__device__ __forceinline__ Column column_of(float* scratch, const Statistics& from, int N, int first, int P,
                                            bool keep) {
  const int p = first + threadIdx.x / COLUMN_LANES;
  Column column = {0.f, 1.f, 1.f, 0.f};
  if (from.gamma && p < P) column.slope = from.gamma[p];
  if (from.beta && p < P) column.beta = from.beta[p];
  if (from.parts > 0) {
    const RowsOfParts rows_of(N, from.parts);
    const int pair = 2 * (first + 2 * (threadIdx.x % 32));
    const float origin = p < P ? from.moments[2 * p] : 0.f;
    float4 origins = make_float4(0.f, 0.f, 0.f, 0.f);
    if (pair < 2 * P) origins = *reinterpret_cast<const float4*>(from.moments + pair);
    const auto add = [&](float4& to, int part, float4 value) {
      const float rows = rows_of(part), a = value.x - origins.x, b = value.z - origins.z;
      to.x += rows * a, to.y += value.y + rows * a * a;
      to.z += rows * b, to.w += value.w + rows * b * b;
    };
    const int parts = parts_in_use(N, from.parts);
    const float2 sum = reduce_parts<MOMENTS_IN_FLIGHT>(scratch, from.moments, parts, first, P, add);
    const float share = 1.f / N, shift = sum.x * share, squares = sum.y - sum.x * shift;
    const float variance = squares < 0.f ? 0.f : squares * share;  // NaN stays
    column.mean = origin + shift;
    column.inverse = 1.f / sqrtf(variance + from.epsilon);
    if (keep && p < P && threadIdx.x % COLUMN_LANES == 0) {
      from.stats[p] = column.mean, from.stats[P + p] = column.inverse;
      from.running_mean[p] += from.momentum * (column.mean - from.running_mean[p]);
      from.running_var[p] += from.momentum * (variance * N / max(N - 1, 1) - from.running_var[p]);
    }
  } else if (from.gamma && p < P) {
    column.mean = from.stats[p], column.inverse = from.stats[P + p];
  }
  column.slope *= column.inverse;
  return column;
}

// Fill the columns; all threads call.
__device__ __forceinline__ void set_columns(Columns columns, float* scratch, const Statistics& from, int N, int P,
                                            bool keep) {
#pragma unroll 1
  for (int first = 0; first < P; first += GROUP) {
    const int p = first + threadIdx.x / COLUMN_LANES;
    const Column column = column_of(scratch, from, N, first, P, keep);
    if (p < P && threadIdx.x % COLUMN_LANES == 0) {
      columns.mean[p] = column.mean, columns.inverse[p] = column.inverse;
      columns.slope[p] = column.slope, columns.beta[p] = column.beta;
    }
  }
}

}  // namespace fused
