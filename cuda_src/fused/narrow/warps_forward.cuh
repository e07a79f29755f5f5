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

// Copy packed weights (K, GROUP) to shared memory.
__device__ __forceinline__ void copy_weights_of_warps(float* to, const float* packed, int K) {
#pragma unroll
  for (int i = 0; i < ceil_div(MOST_OF_WARPS * GROUP / 4, THREADS); ++i) {
    const int e = 4 * (threadIdx.x + i * THREADS);
    if (e < K * GROUP) copy_quad(to + e, packed + e);
  }
}

// Copy this warp's rows of tile `part` of the first layer's U. x has rows up to the end of the last tile.
template <class Team>
__device__ __forceinline__ void copy_rows_of_u(float* tile, int stride, const float* x, int x_stride, int K, int part) {
  const int quad = 4 * (threadIdx.x % 32), own_row = Team::warp() * Team::GATHERED;
  if (quad >= K) return;
  const float* from = x + (part * TILE + own_row) * x_stride + quad;
  float* to = tile + own_row * stride + quad;
#pragma unroll
  for (int r = 0; r < Team::GATHERED; ++r, from += x_stride) copy_quad(to + r * stride, from);
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
  const int K = shape.K, stride = stride_of_tile<Shape>(), lane = threadIdx.x % 32;
  float *tile = tiles + Team::number() * TILE * stride, *of_entries = tiles + Team::TEAMS * TILE * stride;
  const unsigned units = params.members.units_of_step();
  const int team = same_in_warp(Team::number());
  N = same_in_warp(N);

#pragma unroll 1
  for (int part = team * gridDim.x + blockIdx.x; part * TILE < N; part += Team::TEAMS * gridDim.x) {
    const OwnArrays own(units);
    const int first = part * TILE, rows = min(TILE, N - first), own_row = Team::warp() * Team::GATHERED;
    if constexpr (Shape::IS_FIRST) {
      wait_for_quads();
    } else {
      if (part >= Team::TEAMS * gridDim.x)
        entries.load(of_entries, Team::GATHERED, own(params.indptr), own(params.indices), own(params.values),
                     first + own_row, N);
      float* u = own(params.u) + static_cast<long long>(first) * K;
      const bool is_owner = lane < Team::GATHERED;
      const float row_sum =
          is_owner && own_row + lane < rows ? own(params.x)[(first + own_row + lane) * params.x_stride] : 0.f;
      gather_rows<Team>(entries, of_entries, Activations(params.y_prev, units, columns),
                        [&](int row, int column, const float4& sum) {
                          *reinterpret_cast<float4*>(tile + row * stride + column) = sum;
                          if (params.u && row < rows)
                            *reinterpret_cast<float4*>(u + row * K + column) = sum;  // for dW'
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
    Team::wait();  // the tile may be overwritten
    const int next = part + Team::TEAMS * gridDim.x;
    if (Shape::IS_FIRST && next * TILE < N) copy_rows_of_u<Team>(tile, stride, own(params.x), params.x_stride, K, next);
    out.store(own(params.y) + first * GROUP, rows);
    if (params.moments) {
      float* moments = own(params.moments) + part * 2 * GROUP;
      if (rows == TILE) {
        store_moments<true>(out, moments, rows);
      } else {
        store_moments<false>(out, moments, rows);
      }
    }
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

  if constexpr (Shape::IS_FIRST) {
    wait_for_previous();  // for the update, which writes weights and batch
    const int stride = stride_of_tile<Shape>(), part = Team::number() * gridDim.x + block;
    if (part < params.parts)  // before N is known
      copy_rows_of_u<Team>(tiles + Team::number() * TILE * stride, stride, own(params.x), params.x_stride, K, part);
    copy_weights_of_warps(weights, own(params.packed), K);
  }
  const int N = params.members.of_step(params.size)[BatchSize::N];
  EntriesOfWarp entries = {};
  if constexpr (!Shape::IS_FIRST) {
    if (block > 0 && block * TILE >= N) return;  // makes room for the next kernel
    copy_weights_of_warps(weights, own(params.packed), K);
    entries.load(tiles + Team::TEAMS * TILE * stride_of_tile<Shape>(), Team::GATHERED, own(params.indptr),
                 own(params.indices), own(params.values), first_gathered<Team>(block, gridDim.x), N);
    wait_for_previous();
    if (N > 0) set_columns(columns, tiles, params.statistics_prev(), N, GROUP, block == 0);
  }
  wait_for_quads();
  if (block * TILE >= N) return;
  __syncthreads();  // weights, columns and the first tiles of the first layer are filled
  forward_tiles<Team>(params, shape, weights, columns, tiles, entries, N);
}

}  // namespace fused
