// Residual connections: a layer's output H is its activation Z plus the output of the layer before, H_l = Z_l + H_{l-1}.
//
//   forward:  H'_l = z_l + H'_{l-1},   z = relu(norm(Y)) where dropout kept it, H = keep_scale H'
//   backward: dH'_l = what the layer above wrote + dH'_{l+1} of its residual connection,   G_l = dH'_l where z_l > 0
//
// All dropouts of a model have one rate, so its scale is left to whoever reads H'. A reader takes H' as a Y without batch norm and
// without dropout: relu(H') = H'. So the forward and backward kernels and the readout know nothing of residual connections.
// Source: own. Shapes: h, g_h, g_skip, y, g (N, P); sums (parts, columns_of(P), 2): of G and of G xhat. `_prev`: the
//   layer before; its statistics are final.
// Launch: 512 threads, members in z. Forward: blocks stride over tiles of 16 rows; backward: over partial sums of tiles
//   (RowsOfParts). Batch 50 of 19 nodes: 60 blocks for a model alone.
// Shared memory: dynamic, see `narrow.geometry.residual`. Neighbouring threads read one column or neighbouring columns.
// Traffic: forward reads 8 N P and writes 4 N P bytes, backward reads 12 N P and writes 8 N P; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit, whatever the blocks.
#pragma once

#include "fused/narrow/tile.cuh"

namespace fused {

struct ResidualForwardParams {
  float* h;
  const int* size;
  const float *y, *moments;
  float *stats, *running_mean, *running_var;
  const float *gamma, *beta;
  const unsigned char* kept;
  const float *y_prev, *stats_prev, *gamma_prev, *beta_prev;
  const unsigned char* kept_prev;
  Members members;
  float epsilon, momentum;
  int parts, P;

  __device__ __forceinline__ Statistics statistics() const {
    return statistics_of(members, moments, stats, running_mean, running_var, gamma, beta, parts, epsilon, momentum);
  }
};

struct ResidualBackwardParams {
  float *g, *g_h, *sums;
  const int* size;
  const float *g_skip, *y, *stats, *gamma, *beta;
  const unsigned char* kept;
  Members members;
  int parts, P;
};

__device__ __forceinline__ void residual_forward(const ResidualForwardParams& params, float4* shared4) {
  const Members& of = params.members;
  const int P = params.P, block = blockIdx.x;
  float* scratch = reinterpret_cast<float*>(shared4);
  const Columns own = columns_at(scratch + REDUCTION_FLOATS, P), prev = columns_at(own.beta + columns_of(P), P);
  wait_for_previous();
  const int N = of.of_step(params.size)[BatchSize::N];
  if (block * TILE >= N) return;
  set_columns(prev, scratch, final_statistics(of, params.stats_prev, params.gamma_prev, params.beta_prev), N, P, false);
  set_columns(own, scratch, params.statistics(), N, P, block == 0);
  __syncthreads();
  const unsigned char *kept = of.of_step_or_null(params.kept), *kept_prev = of.of_step_or_null(params.kept_prev);
  const auto z_of = [&](const float* y, const Columns& columns, const unsigned char* bits, int place, int p) {
    return is_kept(bits, place) ? positive(columns.column(p).normal(of.of_step(y)[place])) : 0.f;
  };
#pragma unroll 1
  for (int first = block * TILE; first < N; first += gridDim.x * TILE) {
    const int end = min(first + TILE, N) * P;
#pragma unroll 2
    for (int place = first * P + threadIdx.x; place < end; place += THREADS) {
      const int p = place % P;
      of.of_step(params.h)[place] =
          z_of(params.y, own, kept, place, p) + z_of(params.y_prev, prev, kept_prev, place, p);
    }
  }
}

__device__ __forceinline__ void residual_backward(const ResidualBackwardParams& params, float4* shared4) {
  const Members& of = params.members;
  const int P = params.P, lane = threadIdx.x % COLUMN_LANES;
  float* scratch = reinterpret_cast<float*>(shared4);
  const Columns columns = columns_at(scratch + REDUCTION_FLOATS, P);
  wait_for_previous();
  const int N = of.of_step(params.size)[BatchSize::N];
  set_columns(columns, scratch, final_statistics(of, params.stats, params.gamma, params.beta), N, P, false);
  __syncthreads();
  const unsigned char* kept = of.of_step_or_null(params.kept);
  const float* g_skip = of.of_step_or_null(params.g_skip);
#pragma unroll 1
  for (int part = blockIdx.x; part < parts_in_use(N, params.parts); part += gridDim.x) {
#pragma unroll 1
    for (int p = threadIdx.x / COLUMN_LANES; p < ceil_div(P, GROUP) * GROUP; p += GROUP) {  // whole warps stay together
      const Column column = columns.column(min(p, P - 1));
      float2 sum = make_float2(0.f, 0.f);
#pragma unroll 1
      for (int first = part * TILE; first < N; first += params.parts * TILE) {
#pragma unroll
        for (int i = first + lane; i < first + TILE; i += COLUMN_LANES) {
          if (i >= N || p >= P) continue;
          const int place = i * P + p;
          const float y = of.of_step(params.y)[place];
          float total = of.of_step(params.g_h)[place];
          if (g_skip) total += g_skip[place];
          if (g_skip) of.of_step(params.g_h)[place] = total;
          const float own = column.normal(y) > 0.f && is_kept(kept, place) ? total : 0.f;
          of.of_step(params.g)[place] = own;
          sum = combine(sum, make_float2(own, own * column.x_hat(y)));
        }
      }
      sum = sum_of_lanes(sum);
      if (params.sums && lane == 0 && p < P)
        reinterpret_cast<float2*>(of.of_step(params.sums))[part * columns_of(P) + p] = sum;
    }
  }
}

}  // namespace fused
