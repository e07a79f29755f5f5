// Forward pass of the first of the layers of fused/narrow/channels.cuh: Y = U W' and the moments of its columns.
//
// Source: own. Forward of any narrow layer (fused/narrow/forward.cuh) has 96 rows of W' in registers, and reads all others again
// for each tile. Here the columns of U that a set with channels stores, some 200, are too many for that: W' is in shared memory.
// Shapes: y (N, 64), moments (ceil(N / 16), 64, 2), x (nodes, K): U of the data set, source (N,): its rows, packed (K, 64); kept:
//   dropout bits of this layer.
// Launch: 512 threads, members in z; `tile_blocks` blocks stride over tiles of 16 rows. Further blocks multiply the features of
//   whole graphs (fused/shared/join.cuh): a kernel for these would make the next layer wait for one more kernel. 1,133 rows, a model
//   alone: 71 blocks, and 36.
// Shared memory: dynamic, `narrow.geometry.channels_first`; accesses as in fused/narrow/tile.cuh, and 256 consecutive bytes of W'.
// Traffic: reads 4 (N K + K P blocks), writes 4 N P bytes. Determinism: one writer per output, fixed order.
// Requirements: 64 columns out; K a multiple of 8.
#pragma once

#include "fused/narrow/channels.cuh"
#include "fused/shared/join.cuh"

namespace fused {

struct ChannelsFirstParams {
  NarrowForwardParams layer;
  JoinParams join;
  int tile_blocks, join_splits;
};

__device__ __forceinline__ void channels_first(const ChannelsFirstParams& of_both, float4* shared4) {
  const NarrowForwardParams& params = of_both.layer;
  const Members& members = params.members;
  const int K = params.K, stride = K + 4;
  float *weights = reinterpret_cast<float*>(shared4), *tile = weights + K * CHANNEL_COLUMNS;
  float* partial = tile + TILE * stride;
  const int tile_blocks = of_both.tile_blocks, first_tile = blockIdx.x * TILE, stride_of_tiles = tile_blocks * TILE;
  wait_for_previous();  // the update wrote the batch and the weights
  if (const int further = static_cast<int>(blockIdx.x) - tile_blocks; further >= 0) {
    const int splits = of_both.join_splits;
    return join_range(of_both.join, further % splits, further / splits * JOIN_GRAPHS, shared4);
  }
  // The row of U of this warp; `source` has rows up to the end of the last tile.
  const auto source_of = [&](int first) { return members.of_step(params.source)[first + threadIdx.x / 32]; };
  // Copy a tile, a row by each warp.
  const auto copy_tile = [&](int source) {
    const float* from = params.x + static_cast<long long>(source) * params.x_stride;
#pragma unroll 2
    for (int k = threadIdx.x % 32 * 4; k < K; k += 128)
      copy_async<4>(tile + threadIdx.x / 32 * stride + k, from + k, 4);
    commit_copies();
  };
  // No copy waits for the size of the batch: `source` has rows of the set beyond its end, too.
  const int source = source_of(first_tile);
#pragma unroll 4
  for (int q = threadIdx.x; q < K * ROW_QUADS; q += THREADS)
    copy_async<4>(weights + 4 * q, members.of_step(params.packed) + 4 * q, 4);
  copy_tile(source);
  const int N = members.of_step(params.size)[BatchSize::N];
  // The last blocks draw first: if any, they have no tile.
  if (unsigned char* kept = members.of_step_or_null(params.kept)) {
    const MemberValues dropout = values_at(members.of_model_or_null(params.of_dropout));
    draw_kept(tile_blocks - 1 - blockIdx.x, tile_blocks, kept, members.of_step(params.size), dropout.seed,
              params.purpose, dropout.threshold, static_cast<long long>(N) * CHANNEL_COLUMNS);
  }
  wait_for_copies<0>();
  const int slice = threadIdx.x / 32 % SLICES;
#pragma unroll 1
  for (int first = first_tile; first < N; first += stride_of_tiles) {
    const bool is_last = first + stride_of_tiles >= N;
    const int next = is_last ? 0 : source_of(first + stride_of_tiles);
    wait_for_copies<0>();
    __syncthreads();  // weights and tile are filled
    float4 sum[4] = {};
#pragma unroll 1
    for (int k = 4 * slice; k < K; k += 4 * SLICES) {
      float4 w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = *reinterpret_cast<const float4*>(weights + (k + i) * CHANNEL_COLUMNS + first_column());
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(tile + (first_row() + r) * stride + k);
        sum[r] = add_product(sum[r], x.x, w[0]), sum[r] = add_product(sum[r], x.y, w[1]);
        sum[r] = add_product(sum[r], x.z, w[2]), sum[r] = add_product(sum[r], x.w, w[3]);
      }
    }
    const float2 y = reduce_slices(sum, partial);  // waits for all threads, which then have read the tile
    if (!is_last) copy_tile(next);
    const int rows = min(TILE, N - first), p = own_column();
    const bool exists = own_row() < rows;
    if (exists) *reinterpret_cast<float2*>(members.of_step(params.y) + (first + own_row()) * CHANNEL_COLUMNS + p) = y;
    if (params.moments) {
      float2 moments[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float value = c == 0 ? y.x : y.y, mean = sum_of_rows(exists ? value : 0.f) / rows;
        const float distance = exists ? value - mean : 0.f;
        moments[c] = make_float2(mean, sum_of_rows(distance * distance));
      }
      if (own_row() == 0)
        *reinterpret_cast<float4*>(members.of_step(params.moments) + (first / TILE * CHANNEL_COLUMNS + p) * 2) =
            make_float4(moments[0].x, moments[0].y, moments[1].x, moments[1].y);
    }
  }
}

}  // namespace fused
