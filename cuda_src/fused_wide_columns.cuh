// What wide layers find out about columns: products leave a part for each tile of rows, whoever needs the whole folds
// the parts itself, in order (fused_wide.cu, fused_wide_readout.cuh).
//
// Moments are means and sums of squared distances from them, sums are Σ g and Σ g x̂; parts are (parts, stride) pairs.
#pragma once

#include "fused.cuh"

namespace fused {

constexpr int ROW_TILE = 128;  // rows of a part

__device__ __forceinline__ int tiles_of(int N) { return max(ceil_div(N, ROW_TILE), 1); }

// Sum over `parts` parts of COLUMNS columns; `get(part)` is that of column threadIdx.x % COLUMNS. The total is returned to
// the first COLUMNS threads. All THREADS threads call; `slots` holds a pair of each.
template <int COLUMNS, int THREADS, class Get>
__device__ __forceinline__ float2 fold_parts(float2* slots, int parts, Get get) {
  constexpr int GROUPS = THREADS / COLUMNS;
  float2 total = make_float2(0.f, 0.f);
#pragma unroll 2
  for (int part = threadIdx.x / COLUMNS; part < parts; part += GROUPS) total = combine(total, get(part));
  slots[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
#pragma unroll
    for (int group = 1; group < GROUPS; ++group) total = combine(total, slots[group * COLUMNS + threadIdx.x]);
  }
  return total;
}

// Batch norm of a layer, as training finds it and as it is known afterwards; see fused_tile.cuh. `gamma` null: none.
struct Norm {
  const float2* moments;  // (tiles, P); null: the statistics are known
  float* stats;           // (2, P): mean, 1 / sqrt(var + epsilon)
  float *running_mean, *running_var;
  const float *gamma, *beta;
  float epsilon, momentum;

  // Mean, inverse, slope and beta of column p: z = (y - mean) slope + beta. The first COLUMNS threads get them; `p` is
  // that of column threadIdx.x % COLUMNS. `keep`: write statistics and running ones. Distances are taken from the first
  // tile's mean, which costs no digits: it is within a few deviations of the whole's.
  template <int COLUMNS, int THREADS>
  __device__ __forceinline__ float4 column(float2* slots, int p, int P, int N, bool keep) const {
    if (gamma == nullptr) return make_float4(0.f, 1.f, 1.f, 0.f);
    const bool exists = p < P;
    const float scale = exists ? gamma[p] : 0.f, shift = exists ? beta[p] : 0.f;
    if (moments == nullptr) {
      const float inverse = exists ? stats[P + p] : 0.f;
      return make_float4(exists ? stats[p] : 0.f, inverse, scale * inverse, shift);
    }
    const float origin = exists ? moments[p].x : 0.f;
    const float2 sums = fold_parts<COLUMNS, THREADS>(slots, tiles_of(N), [&](int tile) {
      const float2 found = exists ? moments[static_cast<long long>(tile) * P + p] : make_float2(0.f, 0.f);
      const float rows = min(N - tile * ROW_TILE, ROW_TILE), distance = found.x - origin;
      return make_float2(rows * distance, found.y + rows * distance * distance);
    });
    const float share = 1.f / N, delta = sums.x * share, squares = sums.y - sums.x * delta;
    const float variance = squares < 0.f ? 0.f : squares * share;  // NaN stays
    const float mean = origin + delta, inverse = 1.f / sqrtf(variance + epsilon);
    if (keep && exists && N > 0 && threadIdx.x < COLUMNS) {
      stats[p] = mean, stats[P + p] = inverse;
      running_mean[p] += momentum * (mean - running_mean[p]);
      running_var[p] += momentum * (variance * N / max(N - 1, 1) - running_var[p]);
    }
    return make_float4(mean, inverse, scale * inverse, shift);
  }
};

}  // namespace fused
