// The products of the features of whole graphs with the first dense layer's weights, before the readout. No kernels here.
//
//   out[s, b] = features[b, range s] W[range s],   in ranges of `of_split` features
//
// In the readout, each block would read all weights of the features for its own graph: 2,265 features and 128 columns are 1.2 MB.
// Here a block reads its range of them once for 32 graphs. The readout adds the ranges in order.
// Source: own. Shapes: out (splits, graphs, P); features (B, D), scaled; weight (D, P): the rows after those of R.
// Launch: 512 threads; a block for each range and 32 graphs. Training, 2,265 features, batch 32: 36 blocks.
// Shared memory: JOIN_FLOATS: JOIN_FEATURES features of 32 graphs, and their weights for 128 columns. A warp reads the same
//   features of two graphs and 128 consecutive weights: no bank conflicts.
// Traffic: reads 4 (B + P groups) D, writes 4 splits B P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused/shared/heads.cuh"

namespace fused {

constexpr int JOIN_FEATURES = 64, JOIN_GRAPHS = 32, JOIN_COLUMNS = 128;
constexpr int JOIN_FLOATS = JOIN_GRAPHS * (JOIN_FEATURES + 4) + JOIN_FEATURES * JOIN_COLUMNS;
static_assert(JOIN_GRAPHS == 2 * WARPS && JOIN_COLUMNS == 4 * 32, "a warp has two graphs, a lane four columns");

struct JoinParams {
  float* out;
  const int* size;
  const float *features, *weight;
  Members members;
  int D, P, graphs, of_split;
};

__device__ __forceinline__ bool is_zero(float4 of) { return of.x == 0.f && of.y == 0.f && of.z == 0.f && of.w == 0.f; }

// The products of range `split` for the graphs from `first` on; `shared` has room for JOIN_FLOATS.
__device__ __forceinline__ void join_range(const JoinParams& params, int split, int first, float4* shared) {
  const auto features = reinterpret_cast<float (*)[JOIN_FEATURES + 4]>(shared);
  const auto weights = reinterpret_cast<float (*)[JOIN_COLUMNS]>(features + JOIN_GRAPHS);
  const Members& members = params.members;
  const int B = members.of_step(params.size)[BatchSize::B], P = params.P, D = params.D;
  if (first >= B) return;
  const int begin = split * params.of_split, end = min(begin + params.of_split, D);
  const float* from = members.of_step(params.features);
  const float* weight = members.of_model(params.weight);
  const bool is_aligned = P % 4 == 0 && reinterpret_cast<unsigned long long>(weight) % sizeof(float4) == 0;
  const int graph = threadIdx.x / 32 * 2, column = threadIdx.x % 32 * 4;
#pragma unroll 1
  for (int p0 = 0; p0 < P; p0 += JOIN_COLUMNS) {
    float4 sum[2] = {};
#pragma unroll 1
    for (int d0 = begin; d0 < end; d0 += JOIN_FEATURES) {
      __syncthreads();  // all threads have read the previous features
#pragma unroll 4
      for (int q = threadIdx.x; q < JOIN_FEATURES * JOIN_COLUMNS / 4; q += THREADS) {
        const int d = q / (JOIN_COLUMNS / 4), p = q % (JOIN_COLUMNS / 4) * 4;
        const int valid = d0 + d < end ? max(0, min(P - p0 - p, 4)) : 0;
        const float* row = valid > 0 ? weight + (d0 + d) * P + p0 + p : weight;
        if (is_aligned) {
          copy_async<4>(&weights[d][p], row, valid);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) copy_async<1>(&weights[d][p + i], i < valid ? row + i : row, i < valid);
        }
      }
#pragma unroll 4
      for (int e = threadIdx.x; e < JOIN_GRAPHS * JOIN_FEATURES; e += THREADS) {
        const int b = e / JOIN_FEATURES, d = e % JOIN_FEATURES;
        const bool exists = first + b < B && d0 + d < end;
        copy_async<1>(&features[b][d], exists ? from + static_cast<long long>(first + b) * D + d0 + d : from, exists);
      }
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
#pragma unroll 4
      for (int d = 0; d < JOIN_FEATURES; d += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&features[graph][d]);
        const float4 b = *reinterpret_cast<const float4*>(&features[graph + 1][d]);
        const float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
        if (is_zero(a) && is_zero(b)) continue;  // most counts of fingerprints
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 w = *reinterpret_cast<const float4*>(&weights[d + i][column]);
          sum[0] = make_float4(fmaf(as[i], w.x, sum[0].x), fmaf(as[i], w.y, sum[0].y), fmaf(as[i], w.z, sum[0].z),
                               fmaf(as[i], w.w, sum[0].w));
          sum[1] = make_float4(fmaf(bs[i], w.x, sum[1].x), fmaf(bs[i], w.y, sum[1].y), fmaf(bs[i], w.z, sum[1].z),
                               fmaf(bs[i], w.w, sum[1].w));
        }
      }
    }
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (first + graph + g >= B) continue;
      float* out = members.of_step(params.out) +
                   (static_cast<long long>(split) * params.graphs + first + graph + g) * P + p0 + column;
      const float sums[4] = {sum[g].x, sum[g].y, sum[g].z, sum[g].w};
#pragma unroll
      for (int p = 0; p < 4; ++p)
        if (p0 + column + p < P) out[p] = sums[p];
    }
  }
}

}  // namespace fused
