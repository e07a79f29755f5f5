// What all dense products share: their arguments, the reduction of partial sums, and storing a tile of the product.

#pragma once

#include "common/common.cuh"
#include "common/kept.cuh"

// Arguments of the forward product; `bias` may be null.
struct Forward {
  float* y;
  const float *x, *w, *bias;
  int ldy, ldx, ldw, N, F, P;
};

// Arguments of the gradient by W: `partials` of `counters` tiles; with `accumulate` it is added to `dw`.
struct Wgrad {
  float *dw, *partials;
  unsigned* counters;
  const float *x, *dy;
  int lddw, ldx, lddy, N, F, P, rows_per_part, accumulate;
};

// Arguments of the gradient by X. Leading dimensions are those of the arrays; `kept` counts elements of dx.
struct Dgrad {
  float* dx;
  const float *dy, *w;
  Kept kept;
  int lddx, lddy, ldw, N, F, P;
};

constexpr int UNGROUPED_PARTS = 32, GROUP_PARTS = 16;  // partial sums that one block adds, at most

// Write the tile at (m0, n0) to C (M, N), plus `bias` (N,) on every row unless null; `accumulate` adds to C instead. The
// gradient of ReLU and dropout is applied unless kept.bits is null.
template <class Tile>
__device__ void store(const Tile& tile, float* c, int ldc, int m0, int n0, int M, int N, bool accumulate,
                      const float* bias = nullptr, const Kept& kept = {}) {
  const bool aligned = is_aligned(c, ldc);
#pragma unroll
  for (int s = 0; s < Tile::SUMS; s += Tile::VECTOR) {
    const int m = m0 + Tile::row(s), n = n0 + Tile::column(s);
    if (m >= M || n >= N) continue;
    float* to = c + static_cast<long long>(m) * ldc + n;
    float value[Tile::VECTOR];
#pragma unroll
    for (int j = 0; j < Tile::VECTOR; ++j) {
      value[j] = tile.sum[s + j];
      if (bias && n + j < N) value[j] += bias[n + j];
      if (accumulate && n + j < N) value[j] += to[j];
    }
    if (kept.bits) keep(value, kept, to - c, N - n);
    if (aligned && n + Tile::VECTOR <= N) {
      if constexpr (Tile::VECTOR == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(value[0], value[1]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Tile::VECTOR; ++j)
        if (n + j < N) to[j] = value[j];
    }
  }
}

// tile = the sum of `count` partial sums, `step` floats apart, in order.
template <class Tile>
__device__ void add_partials(Tile& tile, const float* from, int count, long long step) {
#pragma unroll
  for (int s = 0; s < Tile::SUMS; ++s) tile.sum[s] = 0.f;
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int s = 0; s < Tile::SUMS; ++s) tile.sum[s] += __ldcg(from + i * step + s * Tile::THREADS + threadIdx.x);
  }
}

// Reduce a tile's partial sums over the `parts` blocks that share it. Returns true in the block that has the result.
// Many parts are reduced in groups: the last block of each group adds the group's sums, the last of these blocks those of
// the groups. `counters` has one for each tile, then those of groups, tile by tile.
template <class Tile>
__device__ bool reduce_parts(Tile& tile, float* partials, unsigned* counters, int tile_number, int tiles, int part,
                             int parts) {
  if (parts == 1) return true;
  constexpr long long SIZE = Tile::SUMS * Tile::THREADS;
  float* of_tile = partials + static_cast<long long>(tile_number) * parts * SIZE;  // [part][sum][thread]
  const auto write = [&](int place) {
#pragma unroll
    for (int s = 0; s < Tile::SUMS; ++s) of_tile[place * SIZE + s * Tile::THREADS + threadIdx.x] = tile.sum[s];
  };
  write(part);
  if (parts <= UNGROUPED_PARTS) {
    if (!is_last_block(counters + tile_number, parts)) return false;
    add_partials(tile, of_tile, parts, SIZE);
    return true;
  }
  const int groups = ceil_div(parts, GROUP_PARTS), group = part / GROUP_PARTS, first = group * GROUP_PARTS;
  const int members = min(GROUP_PARTS, parts - first);
  if (!is_last_block(counters + tiles + tile_number * groups + group, members)) return false;
  add_partials(tile, of_tile + first * SIZE, members, SIZE);
  write(first);  // this block alone reads the group's sums
  if (!is_last_block(counters + tile_number, groups)) return false;
  add_partials(tile, of_tile, groups, GROUP_PARTS * SIZE);
  return true;
}
