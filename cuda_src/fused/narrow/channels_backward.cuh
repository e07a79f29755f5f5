// Backward pass of a layer with several channels: the gradient of the previous layer; see fused/narrow/channels.cuh.
//
//   V[j, c] = row j of A_c^T dY,   dZ_prev[j] = sum over the channels of j's pairs of V[j, c] W_c^T,
//   G_prev = dZ_prev where Z_prev > 0 and dropout kept it, scaled
//
// Each split also stores its columns of V, which the gradient of the weights reads.
// Source: own. Names and shapes as in fused/narrow/backward.cuh; v (N C, 64), sums_prev (ceil(N / 16), 64, 2).
// Launch, shared memory, determinism, requirements: as in the forward pass, for a quarter of G_prev's columns.
// Traffic: reads 4 (8 entries P + C F P blocks / 4), writes 4 N (F + P); everything in L2.
#pragma once

#include "fused/narrow/channels.cuh"

namespace fused {

struct ChannelsBackwardParams {
  NarrowBackwardParams layer;
  float* v;
};

// Shared memory of a block.
struct ChannelsBackward {
  float* weights;  // (C, SPLIT_COLUMNS, ROW_FLOATS): the block's rows of each W_c; row f at place f % 4 * 4 + f / 4
  OfY of;
  Columns prev;
  float *dy, *entries;  // (CHANNEL_ROWS, ROW_FLOATS): dY of the tile's rows; TileEntries
  float* v;         // (MOST_PAIRS, ROW_FLOATS); then G_prev and G_prev xhat_prev, (CHANNEL_ROWS, SUMMED_STRIDE) each
  float* products;  // (MOST_PAIRS, SPLIT_COLUMNS): V[j, c] W_c^T
  Pairs pairs;

  __device__ __forceinline__ ChannelsBackward(float4* shared4, int C, const float* y, const float* g)
      : weights(reinterpret_cast<float*>(shared4)),
        of(of_y_at(weights + C * SPLIT_COLUMNS * ROW_FLOATS, y, g, CHANNEL_COLUMNS)),
        prev(columns_at(of.dgamma + CHANNEL_COLUMNS, CHANNEL_COLUMNS)),
        dy(prev.beta + CHANNEL_COLUMNS),
        entries(dy + TILE_FLOATS),
        v(entries + ENTRY_FLOATS),
        products(v + MOST_PAIRS * ROW_FLOATS),
        pairs(products + MOST_PAIRS * SPLIT_COLUMNS) {}

  // Copy the entries of the rows from `first` on, and find the channels of each row; a warp has a row at a time, a lane a
  // channel.
  __device__ __forceinline__ void find_channels(TileEntries& of, const int* t_indptr, int first, int N, int C) const {
    of.copy(t_indptr[first * C], t_indptr[min(first + CHANNEL_ROWS, N) * C]);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = threadIdx.x / 32; r < CHANNEL_ROWS; r += WARPS) {
      const int row = (first + r) * C + lane;
      const bool has_entry = first + r < N && lane < C && t_indptr[row + 1] > t_indptr[row];
      const unsigned found = __ballot_sync(FULL_WARP, has_entry);
      if (lane == 0) pairs.channels[r] = found;
    }
  }

  // The products of two pairs with four rows of W_c from 4 `quad` on.
  __device__ __forceinline__ void multiply(int first, int quad) const {
    const float* w = weights + (pairs.channel[first / PAIRS_AT_ONCE] * SPLIT_COLUMNS + quad) * ROW_FLOATS;
    const float* rows = v + first * ROW_FLOATS;
    float sum[PAIRS_AT_ONCE][4] = {};
#pragma unroll 2
    for (int p = 0; p < CHANNEL_COLUMNS; p += 4) {
      float4 w4[4];
#pragma unroll
      for (int f = 0; f < 4; ++f) w4[f] = *reinterpret_cast<const float4*>(w + 4 * f * ROW_FLOATS + p);
#pragma unroll
      for (int r = 0; r < PAIRS_AT_ONCE; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(rows + r * ROW_FLOATS + p);
#pragma unroll
        for (int f = 0; f < 4; ++f) {
          sum[r][f] = fmaf(x.x, w4[f].x, sum[r][f]), sum[r][f] = fmaf(x.y, w4[f].y, sum[r][f]);
          sum[r][f] = fmaf(x.z, w4[f].z, sum[r][f]), sum[r][f] = fmaf(x.w, w4[f].w, sum[r][f]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < PAIRS_AT_ONCE; ++r)
      *reinterpret_cast<float4*>(products + (first + r) * SPLIT_COLUMNS + 4 * quad) =
          make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
  }
};

__device__ __forceinline__ void channels_backward(const ChannelsBackwardParams& params, float4* shared4) {
  const NarrowBackwardParams& layer = params.layer;
  const Members& members = layer.members;
  const int C = layer.C, N = members.of_step(layer.size)[BatchSize::N];
  const SplitOfTiles own;
  const int f0 = own.split * SPLIT_COLUMNS;
  const ChannelsBackward at(shared4, C, members.of_step(layer.y), members.of_step(layer.g));
  const int* t_indptr = members.of_step(layer.t_indptr);
  TileEntries entries(at.entries, members.of_step(layer.t_indices), members.of_step(layer.t_values));

  // Before the wait: the batch, the weights, the previous layer's statistics.
  if (own.first >= N) return wait_for_previous();
#pragma unroll 4
  for (int q = threadIdx.x; q < C * SPLIT_COLUMNS * ROW_QUADS; q += THREADS) {
    const int row = q / ROW_QUADS, c = row / SPLIT_COLUMNS, p = q % ROW_QUADS * 4;
    const int f = f0 + row % 4 * 4 + row % SPLIT_COLUMNS / 4;
    *reinterpret_cast<float4*>(at.weights + row * ROW_FLOATS + p) = *reinterpret_cast<const float4*>(
        members.of_step(layer.packed) + (c * CHANNEL_COLUMNS + f) * CHANNEL_COLUMNS + p);
  }
  set_columns(at.prev, at.v, layer.statistics_prev(), N, CHANNEL_COLUMNS, false);
  at.find_channels(entries, t_indptr, own.first, N, C);
  wait_for_previous();
  set_backward(at.of, at.v, members.of_step(layer.stats), members.of_model_or_null(layer.gamma),
               members.of_step(layer.sums), layer.sums_in_use(N), N, CHANNEL_COLUMNS);

#pragma unroll 1
  for (int first = own.first; first < N; first += own.stride) {
    if (first != own.first) at.find_channels(entries, t_indptr, first, N, C);
    __syncthreads();  // columns and channels are filled; all threads have read the previous tile
    const int row = threadIdx.x / SPLIT_QUADS, column = threadIdx.x % SPLIT_QUADS * 4;  // of a thread of the first 128
    const int i = first + threadIdx.x / ROW_QUADS, p = threadIdx.x % ROW_QUADS * 4;
    *reinterpret_cast<float4*>(at.dy + threadIdx.x / ROW_QUADS * ROW_FLOATS + p) = i < N ? dy4(at.of, i, p) : zero4();
    float4 dz = zero4();
#pragma unroll 1
    for (int c = 0; c < C;) {
      const Pairs::Found found = at.pairs.find(c, C);
      __syncthreads();  // pairs are found
#pragma unroll 1
      for (int q = threadIdx.x; q < found.pairs * ROW_QUADS; q += THREADS) {
        const int pair = q / ROW_QUADS, r = at.pairs.row[pair];
        float4 sum = zero4();
        if (r != Pairs::NONE) {
          const int t_row = (first + r) * C + at.pairs.channel[pair / PAIRS_AT_ONCE], end = t_indptr[t_row + 1];
#pragma unroll 1
          for (int entry = t_indptr[t_row]; entry < end; ++entry) {
            const int neighbour = entries.index(entry), own_row = neighbour - first;  // most neighbours are in the tile
            const float4 row = 0 <= own_row && own_row < CHANNEL_ROWS
                                   ? *reinterpret_cast<const float4*>(at.dy + own_row * ROW_FLOATS + p)
                                   : dy4(at.of, neighbour, p);
            sum = add_scaled4(sum, entries.value(entry), row);
          }
          if (p / SPLIT_COLUMNS == own.split)
            *reinterpret_cast<float4*>(members.of_step(params.v) + t_row * CHANNEL_COLUMNS + p) = sum;
        }
        *reinterpret_cast<float4*>(at.v + pair * ROW_FLOATS + p) = sum;
      }
      __syncthreads();  // V is filled
#pragma unroll 1
      for (int q = threadIdx.x; q < found.pairs / PAIRS_AT_ONCE * SPLIT_QUADS; q += THREADS)
        at.multiply(q / SPLIT_QUADS * PAIRS_AT_ONCE, q % SPLIT_QUADS);
      __syncthreads();  // products are stored
      if (row < CHANNEL_ROWS) dz = at.pairs.sum_of_row(dz, at.products, row, column, c, found.next);
      c = found.next;
      if (c < C) __syncthreads();  // pairs and products may be overwritten
    }
    if (row < CHANNEL_ROWS && first + row < N) {
      const int place = (first + row) * CHANNEL_COLUMNS + f0 + column;
      const float keep_scale = values_at(members.of_model_or_null(layer.of_dropout)).keep_scale;
      const unsigned char* kept = members.of_step_or_null(layer.kept_prev);
      const float4 y = *reinterpret_cast<const float4*>(members.of_step(layer.y_prev) + place);
      const float ys[4] = {y.x, y.y, y.z, y.w}, dzs[4] = {dz.x, dz.y, dz.z, dz.w};
      float g[4];
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const Column of = at.prev.column(f0 + column + f);
        g[f] = of.normal(ys[f]) > 0.f && is_kept(kept, place + f) ? dzs[f] * keep_scale : 0.f;
        float* out = at.v + row * SUMMED_STRIDE + column + f;
        out[0] = g[f], out[CHANNEL_ROWS * SUMMED_STRIDE] = g[f] * of.x_hat(ys[f]);
      }
      *reinterpret_cast<float4*>(members.of_step(layer.g_prev) + place) = make_float4(g[0], g[1], g[2], g[3]);
    }
    __syncthreads();  // G_prev is stored
    if (layer.sums_prev == nullptr) continue;
    const int lane = threadIdx.x % 32, f = threadIdx.x / 32, tile = (first + lane) / TILE;
    const bool exists = first + lane < N;
    const float* summed = at.v + lane * SUMMED_STRIDE + f;
    const float2 sum = make_float2(sum_of_rows(exists ? summed[0] : 0.f),
                                   sum_of_rows(exists ? summed[CHANNEL_ROWS * SUMMED_STRIDE] : 0.f));
    if (lane % TILE == 0 && exists)
      reinterpret_cast<float2*>(members.of_step(layer.sums_prev))[tile * CHANNEL_COLUMNS + f0 + f] = sum;
  }
}

}  // namespace fused
