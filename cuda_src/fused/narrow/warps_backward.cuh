// The gradient with respect to a layer's input, where a team of warps has a tile (fused/narrow/warps.cuh). No kernels here.
#pragma once

#include "fused/narrow/warps.cuh"

namespace fused {

constexpr int TRANSPOSED_STRIDE = GROUP + 4;  // of transposed weights: the transposition has two-way bank conflicts

// Columns p … p + 3 of shared memory.
__device__ __forceinline__ void load_columns(Column (&to)[4], const Columns& from, int p) {
  const auto quad = [&](const float* of) { return *reinterpret_cast<const float4*>(of + p); };
  const float4 mean = quad(from.mean), inverse = quad(from.inverse), slope = quad(from.slope), beta = quad(from.beta);
  to[0] = {mean.x, inverse.x, slope.x, beta.x}, to[1] = {mean.y, inverse.y, slope.y, beta.y};
  to[2] = {mean.z, inverse.z, slope.z, beta.z}, to[3] = {mean.w, inverse.w, slope.w, beta.w};
}

// A lane's quads of Y_prev of a tile, which it copies to shared memory before it gathers and multiplies.
template <class Team>
struct CopiedQuads {
  float* own;  // quad (j, h) of lane l is at 128 (QUADS j + h) + 4 l

  __device__ __forceinline__ explicit CopiedQuads(float* of_block)
      : own(of_block + threadIdx.x / 32 * Team::ROWS * Team::QUADS * 128 + 4 * (threadIdx.x % 32)) {}
  __device__ __forceinline__ void copy(const float* from, int rows) const {
#pragma unroll
    for (int j = 0; j < Team::ROWS; ++j)
#pragma unroll
      for (int h = 0; h < Team::QUADS; ++h)
        copy_quad(own + 128 * (Team::QUADS * j + h), from + Team::row(j) * GROUP + Team::column(h),
                  Team::row(j) < rows);
  }
  __device__ __forceinline__ float4 quad(int j, int h) const {
    return *reinterpret_cast<const float4*>(own + 128 * (Team::QUADS * j + h));
  }
};

template <class Team>
__device__ __forceinline__ void backward_tiles(const NarrowBackwardParams& params, const OfY& of, const Columns& prev,
                                               const float* weights, float* tiles, EntriesOfWarp entries, int N,
                                               int block) {
  constexpr int STRIDE = GROUP + 4;
  float *tile = tiles + Team::number() * TILE * STRIDE, *of_entries = tiles + Team::TEAMS * TILE * STRIDE;
  const CopiedQuads<Team> y_prev(of_entries + ENTRIES_OF_WARPS);
  const unsigned units = params.members.units_of_step();
  const int team = same_in_warp(Team::number());
  N = same_in_warp(N);

#pragma unroll 1
  for (int part = team * params.dx_blocks + block; part * TILE < N; part += Team::TEAMS * params.dx_blocks) {
    const OwnArrays own(units);
    const int first = part * TILE, rows = min(TILE, N - first);
    y_prev.copy(own(params.y_prev) + first * GROUP, rows);
    if (part >= Team::TEAMS * params.dx_blocks)
      entries.load(of_entries, Team::GATHERED, own(params.t_indptr), own(params.t_indices), own(params.t_values),
                   first + Team::warp() * Team::GATHERED, N);
    gather_rows<Team>(entries, of_entries, Gradients(params.y, params.g, units, of),
                      [&](int row, int column, const float4& sum) {
                        *reinterpret_cast<float4*>(tile + row * STRIDE + column) = sum;
                      });
    Team::wait();
    LaneOutputs<Team> out;  // dZ_prev, then G_prev
    out.multiply(tile, STRIDE, weights, TRANSPOSED_STRIDE, GROUP);
    wait_for_quads();
#pragma unroll
    for (int h = 0; h < Team::QUADS; ++h) {
      float y[Team::ROWS][4];
#pragma unroll
      for (int j = 0; j < Team::ROWS; ++j) {
        const float4 given = y_prev.quad(j, h);
        y[j][0] = given.x, y[j][1] = given.y, y[j][2] = given.z, y[j][3] = given.w;
      }
      Column columns[4];
      load_columns(columns, prev, Team::column(h));
      float2 sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Column& column = columns[i];
        float g[Team::ROWS], g_x_hat[Team::ROWS];
#pragma unroll
        for (int j = 0; j < Team::ROWS; ++j) {
          const bool exists = Team::row(j) < rows, is_open = exists && column.normal(y[j][i]) > 0.f;
          g[j] = out.of[j][h][i] = is_open ? out.of[j][h][i] : 0.f;
          g_x_hat[j] = exists ? __fmul_rn(g[j], column.x_hat(y[j][i])) : 0.f;
        }
        const float2 own_sums = make_float2(Team::sum_of_rows(g), Team::sum_of_rows(g_x_hat));
        sums[i] = combine(make_float2(0.f, 0.f), own_sums);
      }
      if (params.sums_prev) store_pairs<Team>(own(params.sums_prev) + part * 2 * GROUP, h, sums);
    }
    out.store(own(params.g_prev) + first * GROUP, rows);
    Team::wait();  // the tile may be overwritten
  }
}

// Copy packed weights (GROUP, GROUP) to shared memory, transposed: (GROUP, TRANSPOSED_STRIDE). A warp copies 8 x 16 at a time.
__device__ __forceinline__ void copy_transposed_weights(float* to, const float* packed) {
  constexpr int AT_ONCE = GROUP * GROUP / (8 * 16) / WARPS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto row = [&](int i) { return (warp + i * WARPS) % 8 * 8 + lane % 8; };
  const auto column = [&](int i) { return ((warp + i * WARPS) / 8 * 4 + lane / 8) * 4; };
  float4 held[AT_ONCE];
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) held[i] = *reinterpret_cast<const float4*>(packed + row(i) * GROUP + column(i));
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) {
    float* own = to + column(i) * TRANSPOSED_STRIDE + row(i);
    own[0] = held[i].x, own[TRANSPOSED_STRIDE] = held[i].y;
    own[2 * TRANSPOSED_STRIDE] = held[i].z, own[3 * TRANSPOSED_STRIDE] = held[i].w;
  }
}

// Blocks that compute G_prev.
template <class Team>
__device__ __forceinline__ void backward_dx_of_warps(const NarrowBackwardParams& params, float4* shared4, int block) {
  const int N = params.members.of_step(params.size)[BatchSize::N];
  if (blockIdx.x > 0 && block * TILE >= N) return;     // makes room for the next kernel
  float* weights = reinterpret_cast<float*>(shared4);  // W^T (GROUP, TRANSPOSED_STRIDE)
  const OfY of = of_y_at(weights + GROUP * TRANSPOSED_STRIDE, params.members.of_step(params.y),
                         params.members.of_step(params.g), GROUP);
  const Columns prev = columns_at(of.dgamma + GROUP, GROUP);
  float* tiles = weights + GROUP * TRANSPOSED_STRIDE + COLUMNS_OF_WARPS;  // of V; before, scratch of the reductions
  const auto own = [&](auto* first) { return params.members.of_step(first); };

  // Kernels before the previous one wrote weights, batch and the previous layer's statistics.
  EntriesOfWarp entries;
  entries.load(tiles + Team::TEAMS * TILE * (GROUP + 4), Team::GATHERED, own(params.t_indptr), own(params.t_indices),
               own(params.t_values), first_gathered<Team>(block, params.dx_blocks), N);
  copy_transposed_weights(weights, own(params.packed));
  set_columns(prev, tiles, params.statistics_prev(), N, GROUP, false);
  wait_for_previous();
  if (block * TILE >= N) return;
  set_backward(of, tiles, params.members.of_step(params.stats), params.members.of_model_or_null(params.gamma),
               params.members.of_step(params.sums), params.sums_in_use(N), N, GROUP);
  __syncthreads();  // weights and columns are filled
  backward_tiles<Team>(params, of, prev, weights, tiles, entries, N, block);
}

}  // namespace fused
