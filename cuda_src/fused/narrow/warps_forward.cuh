// The forward phase in which a team of warps has a tile (fused/narrow/warps.cuh). No kernels here.
#pragma once

#include "fused/narrow/warps.cuh"

namespace fused {

// Floats between rows of a tile of U.
template <class Shape>
__device__ constexpr int stride_of_tile() {
  if constexpr (Shape::IS_FIRST) {
    return MOST_OF_WARPS + 4;
  } else {
    return Shape::K + 4;
  }
}

// Copy packed weights (K, GROUP) to shared memory; all loads are issued before the first is used.
__device__ __forceinline__ void copy_weights_of_warps(float4* to, const float* packed, int K) {
  constexpr int AT_ONCE = ceil_div(MOST_OF_WARPS * GROUP / 4, THREADS);
  float4 held[AT_ONCE];
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) {
    const int e = threadIdx.x + i * THREADS;
    if (e < K * GROUP / 4) held[i] = reinterpret_cast<const float4*>(packed)[e];
  }
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) {
    const int e = threadIdx.x + i * THREADS;
    if (e < K * GROUP / 4) to[e] = held[i];
  }
}

// Store the moments (GROUP, 2) of the first `rows` rows of a tile. All columns take each step together: a sum over rows waits for
// shuffles. IS_WHOLE: `rows` is TILE.
template <bool IS_WHOLE, class Team>
__device__ __forceinline__ void store_moments(const LaneOutputs<Team>& of, float* moments, int rows) {
  const auto exists = [&](int j) { return IS_WHOLE || Team::row(j) < rows; };
  float mean[Team::QUADS][4], squares[Team::QUADS][4];
#pragma unroll
  for (int h = 0; h < Team::QUADS; ++h)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value[Team::ROWS];
#pragma unroll
      for (int j = 0; j < Team::ROWS; ++j) value[j] = exists(j) ? of.of[j][h][i] : 0.f;
      const float sum = Team::sum_of_rows(value);
      mean[h][i] = IS_WHOLE ? sum * (1.f / TILE) : sum / rows;
    }
#pragma unroll
  for (int h = 0; h < Team::QUADS; ++h)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value[Team::ROWS];
#pragma unroll
      for (int j = 0; j < Team::ROWS; ++j) {
        const float distance = exists(j) ? of.of[j][h][i] - mean[h][i] : 0.f;
        value[j] = __fmul_rn(distance, distance);
      }
      squares[h][i] = Team::sum_of_rows(value);
    }
#pragma unroll
  for (int h = 0; h < Team::QUADS; ++h) {
    float2 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = make_float2(0.f, 0.f);
      join_rows(pairs[i], mean[h][i], squares[h][i], rows, 0);
    }
    store_pairs<Team>(moments, h, pairs);
  }
}

// The teams' tiles of all blocks of a member, one after the other.
template <class Team, class Shape>
__device__ __forceinline__ void forward_tiles(const NarrowForwardParams& params, const Shape& shape,
                                              const float* weights, const Columns& columns, float* tiles,
                                              EntriesOfWarp entries, int N) {
  const int K = shape.K, stride = stride_of_tile<Shape>(), quads = K / 4, lane = threadIdx.x % 32;
  float *tile = tiles + Team::number() * TILE * stride, *of_entries = tiles + Team::TEAMS * TILE * stride;
  const unsigned units = params.members.units_of_step();

  const int team = same_in_warp(Team::number());
  N = same_in_warp(N);

#pragma unroll 1
  for (int part = team * gridDim.x + blockIdx.x; part * TILE < N; part += Team::TEAMS * gridDim.x) {
    const OwnArrays own(units);
    const int first = part * TILE, rows = min(TILE, N - first), own_row = Team::warp() * Team::GATHERED;
    if constexpr (Shape::IS_FIRST) {  // x has rows up to the end of the last tile
      const float* x = own(params.x) + (first + own_row) * params.x_stride;
      constexpr int AT_ONCE = Team::GATHERED < 8 ? Team::GATHERED : 8;
#pragma unroll 1
      for (int at = 0; at < Team::GATHERED; at += AT_ONCE) {
        if (lane >= quads) break;
        float4 given[AT_ONCE];
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r)
          given[r] = reinterpret_cast<const float4*>(x + (at + r) * params.x_stride)[lane];
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r)
          reinterpret_cast<float4*>(tile + (own_row + at + r) * stride)[lane] = given[r];
      }
    } else {
      if (part >= Team::TEAMS * gridDim.x)
        entries.load(of_entries, Team::GATHERED, own(params.indptr), own(params.indices), own(params.values),
                     first + own_row, N);
      float* u = own(params.u) + static_cast<long long>(first) * K;
      const bool is_owner = lane < Team::GATHERED;
      const float row_sum =
          is_owner && own_row + lane < rows ? own(params.x)[(first + own_row + lane) * params.x_stride] : 0.f;
      gather_rows<Team>(entries, of_entries, Activations(params.y_prev, units, columns), [&](int row, int column, const float4& sum) {
        *reinterpret_cast<float4*>(tile + row * stride + column) = sum;
        if (params.u && row < rows) *reinterpret_cast<float4*>(u + row * K + column) = sum;  // for dW'
      });
      if (is_owner) {
        const int row = own_row + lane;
        const float4 end[2] = {make_float4(row_sum, 0.f, 0.f, 0.f), make_float4(0.f, 0.f, 0.f, 0.f)};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          reinterpret_cast<float4*>(tile + row * stride + GROUP)[h] = end[h];
          if (params.u && row < rows) reinterpret_cast<float4*>(u + row * K + GROUP)[h] = end[h];
        }
      }
    }
    Team::wait();
    LaneOutputs<Team> out;
    out.multiply(tile, stride, weights, GROUP, K);
    out.store(own(params.y) + first * GROUP, rows);
    if (params.moments) {
      float* moments = own(params.moments) + part * 2 * GROUP;
      if (rows == TILE) {
        store_moments<true>(out, moments, rows);
      } else {
        store_moments<false>(out, moments, rows);
      }
    }
    Team::wait();  // the tile may be overwritten
  }
}

template <class Shape, class Team>
__device__ __forceinline__ void forward_phase_of_warps(const NarrowForwardParams& params, float4* shared4) {
  const Shape shape(params);
  const int K = shape.K, block = blockIdx.x;
  float* weights = reinterpret_cast<float*>(shared4);  // (K, GROUP)
  const Columns columns = columns_at(weights + K * GROUP, GROUP);
  float* tiles = weights + K * GROUP + COLUMNS_OF_WARPS;  // (WARPS, TILE, stride); before, scratch of the reduction
  const auto own = [&](auto* first) { return params.members.of_step(first); };

  if (Shape::IS_FIRST) wait_for_previous();  // for the update, which writes weights and batch
  const int N = params.members.of_step(params.size)[BatchSize::N];
  if (block > 0 && block * TILE >= N) return;  // makes room for the next kernel
  copy_weights_of_warps(shared4, own(params.packed), K);
  EntriesOfWarp entries = {};
  if (!Shape::IS_FIRST) {
    entries.load(tiles + Team::TEAMS * TILE * stride_of_tile<Shape>(), Team::GATHERED, own(params.indptr),
                 own(params.indices), own(params.values), first_gathered<Team>(block, gridDim.x), N);
    wait_for_previous();
  }
  if (block * TILE >= N) return;
  if (!Shape::IS_FIRST) set_columns(columns, tiles, params.statistics_prev(), N, GROUP, block == 0);
  __syncthreads();  // weights and columns are filled
  forward_tiles<Team>(params, shape, weights, columns, tiles, entries, N);
}

}  // namespace fused
