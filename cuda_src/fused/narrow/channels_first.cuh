// Forward pass of the first of the layers of fused/narrow/channels.cuh: Y = U W' and the moments of its columns.
//
// Source: own. Forward of any narrow layer (fused/narrow/forward.cuh) has 96 rows of W' in registers, and reads all others again
// for each tile. Here the columns of U that a set with channels stores, some 200, are too many for that: W' is in shared memory.
// Shapes: y (N, 64), moments (ceil(N / 16), 64, 2), x (nodes, K): U of the data set, source (N,): its rows, packed (K, 64); kept:
//   dropout bits of this layer.
// Launch: 512 threads; blocks stride over tiles of 16 rows, members in z. 1,133 rows, a model alone: 71 blocks.
// Shared memory: dynamic, `narrow.geometry.channels_first`; accesses as in fused/narrow/tile.cuh, and 256 consecutive bytes of W'.
// Traffic: reads 4 (N K + K P blocks), writes 4 N P bytes. Determinism: one writer per output, fixed order.
// Requirements: 64 columns out; K a multiple of 8.
#pragma once

#include "fused/narrow/channels.cuh"

namespace fused {

__device__ __forceinline__ void channels_first(const NarrowForwardParams& params, float4* shared4) {
  const Members& members = params.members;
  const int K = params.K, stride = K + 4;
  float *weights = reinterpret_cast<float*>(shared4), *tile = weights + K * CHANNEL_COLUMNS;
  float* partial = tile + TILE * stride;
  wait_for_previous();  // the update wrote the batch and the weights
  const int N = members.of_step(params.size)[BatchSize::N];
  const int first_tile = blockIdx.x * TILE, stride_of_tiles = gridDim.x * TILE;
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
  const int source = source_of(first_tile);
  if (first_tile < N) {
    copy_tile(source);
#pragma unroll 4
    for (int q = threadIdx.x; q < K * ROW_QUADS; q += THREADS)
      copy_async<4>(weights + 4 * q, members.of_step(params.packed) + 4 * q, 4);
    commit_copies();
  }
  // The last blocks draw first: if any, they have no tile.
  if (unsigned char* kept = members.of_step_or_null(params.kept)) {
    const MemberValues dropout = values_at(members.of_model_or_null(params.of_dropout));
    draw_kept(gridDim.x - 1 - blockIdx.x, gridDim.x, kept, members.of_step(params.size), dropout.seed, params.purpose,
              dropout.threshold, static_cast<long long>(N) * CHANNEL_COLUMNS);
  }
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
