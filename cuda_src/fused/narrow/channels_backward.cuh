// Backward pass of a layer with several channels: the gradient of the previous layer; see fused/narrow/channels.cuh.
//
//   V[j, c] = row j of A_c^T dY,   dZ_prev[j] = sum over the channels of j's pairs of V[j, c] W_c^T,
//   G_prev = dZ_prev where Z_prev > 0 and dropout kept it, scaled
//
// Each split also stores its columns of dY, which the gradient of the weights reads.
// Source: own. Names and shapes as in fused/narrow/backward.cuh; dy (N, 64), sums_prev (ceil(N / 16), 64, 2).
// Launch, shared memory, determinism, requirements: as in the forward pass, for the columns of G_prev.
// Traffic: reads 4 (2 SPLITS N P + C F P blocks / SPLITS), writes 4 N (F + P); everything in L2.
#pragma once

#include "fused/narrow/channels.cuh"

namespace fused {

struct ChannelsBackwardParams {
  NarrowBackwardParams layer;
  float* dy;
};

// Shared memory of a block.
template <class Share>
struct ChannelsBackward {
  float* weights;  // (C, COLUMNS, ROW_FLOATS): the block's rows of each W_c; row f at place f % 4 * QUADS + f / 4
  OfY of;
  Columns prev;
  float* dy;  // (CHANNEL_ROWS, ROW_FLOATS): dY of the tile's rows
  float*
      v;  // (MOST_PAIRS, ROW_FLOATS), and the products V[j, c] W_c^T; then G_prev and G_prev xhat_prev, (CHANNEL_ROWS,
          // SUMMED_STRIDE) each
  Pairs<Share> pairs;
  float* entries;  // TileEntries

  __device__ __forceinline__ ChannelsBackward(float4* shared4, int C, const float* y, const float* g)
      : weights(reinterpret_cast<float*>(shared4)),
        of(of_y_at(weights + C * Share::COLUMNS * ROW_FLOATS, y, g, CHANNEL_COLUMNS)),
        prev(columns_at(of.dgamma + CHANNEL_COLUMNS, CHANNEL_COLUMNS)),
        dy(prev.beta + CHANNEL_COLUMNS),
        v(dy + TILE_FLOATS),
        pairs(v + Share::PRODUCT_FLOATS),
        entries(v + Share::PRODUCT_FLOATS + Share::PAIR_FLOATS) {}

  // Copy the rows from f0 on of each channel's packed weights; the copies arrive later.
  __device__ __forceinline__ void copy_weights(const float* packed, int f0, int C) const {
#pragma unroll 2
    for (int q = threadIdx.x; q < C * Share::COLUMNS * ROW_QUADS; q += THREADS) {
      const int row = q / ROW_QUADS, c = row / Share::COLUMNS, place = row % Share::COLUMNS, p = q % ROW_QUADS * 4;
      const int f = f0 + place % Share::QUADS * 4 + place / Share::QUADS;
      copy_async<4>(weights + row * ROW_FLOATS + p, packed + (c * CHANNEL_COLUMNS + f) * CHANNEL_COLUMNS + p, 4);
    }
    commit_copies();
  }

  // Copy the entries of a tile, and find its first pairs. All threads call, and wait before they read.
  __device__ __forceinline__ typename Pairs<Share>::Found open(TileEntries& of_tile, int first, int N, int C) const {
    of_tile.copy_starts(first, N, C);
    __syncthreads();  // starts are copied; all threads have read the previous tile
    of_tile.copy(C);
    return pairs.find(of_tile, 0, C);
  }

  // The products of PAIRS_AT_ONCE pairs with the rows `column` + 4 THREADS_OF_GROUP t … + 3 of W_c.
  __device__ __forceinline__ void multiply(int first, int c, int column,
                                           float4 (&sum)[Share::PAIRS_AT_ONCE][Share::THREAD_QUADS]) const {
    const float* w = weights + (c * Share::COLUMNS + column / 4) * ROW_FLOATS;
#pragma unroll
    for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r)
#pragma unroll
      for (int t = 0; t < Share::THREAD_QUADS; ++t) sum[r][t] = zero4();
#pragma unroll 1
    for (int p = 0; p < CHANNEL_COLUMNS; p += 4) {
      float4 x[Share::PAIRS_AT_ONCE];
#pragma unroll
      for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r)
        x[r] = *reinterpret_cast<const float4*>(v + (first + r) * ROW_FLOATS + p);
#pragma unroll
      for (int t = 0; t < Share::THREAD_QUADS; ++t) {
        const auto row = [&](int f) {  // of W_c
          return *reinterpret_cast<const float4*>(w + (f * Share::QUADS + Share::THREADS_OF_GROUP * t) * ROW_FLOATS +
                                                  p);
        };
        const float4 w4[4] = {row(0), row(1), row(2), row(3)};
#pragma unroll
        for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r)
          sum[r][t] = make_float4(dot(sum[r][t].x, x[r], w4[0]), dot(sum[r][t].y, x[r], w4[1]),
                                  dot(sum[r][t].z, x[r], w4[2]), dot(sum[r][t].w, x[r], w4[3]));
      }
    }
  }

 private:
  __device__ __forceinline__ static float dot(float sum, float4 a, float4 b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
  }
};

template <class Share>
__device__ __forceinline__ void channels_backward(const ChannelsBackwardParams& params, float4* shared4) {
  const NarrowBackwardParams& layer = params.layer;
  const Members& members = layer.members;
  const int C = layer.C, N = members.of_step(layer.size)[BatchSize::N];
  const SplitOfTiles<Share> own;
  const int f0 = own.split * Share::COLUMNS;
  const ChannelsBackward<Share> at(shared4, C, members.of_step(layer.y), members.of_step(layer.g));
  TileEntries entries(at.entries, members.of_step(layer.t_indptr), members.of_step(layer.t_indices),
                      members.of_step(layer.t_values));

  // Before the wait: the batch, the weights, the previous layer's statistics.
  if (own.first >= N) return wait_for_previous();
  at.copy_weights(members.of_step(layer.packed), f0, C);
  set_columns(at.prev, at.v, layer.statistics_prev(), N, CHANNEL_COLUMNS, false);
  typename Pairs<Share>::Found found = at.open(entries, own.first, N, C);
  wait_for_previous();
  const auto fetch = [&](int first) {
    const int i = first + tile_row();
    return i < N ? fetch_gradient(at.of, i, tile_column()) : RawGradient{zero4(), zero4()};
  };
  RawGradient raw = {};
  if (Share::FETCHES_EARLY) raw = fetch(own.first);
  set_backward(at.of, at.v, members.of_step(layer.stats), members.of_model_or_null(layer.gamma),
               members.of_step(layer.sums), layer.sums_in_use(N), N, CHANNEL_COLUMNS);
  __syncthreads();  // columns are filled

#pragma unroll 1
  for (int first = own.first; first < N; first += own.stride) {
    if (first != own.first) found = at.open(entries, first, N, C);
    if (!Share::PREFETCHES && !(Share::FETCHES_EARLY && first == own.first)) raw = fetch(first);
    const int row = threadIdx.x / Share::QUADS, column = threadIdx.x % Share::QUADS * 4;  // if row < CHANNEL_ROWS
    const int node = first + tile_row();
    const float4 dy = node < N ? dy4(at.of, raw, tile_column()) : zero4();
    *reinterpret_cast<float4*>(at.dy + tile_row() * ROW_FLOATS + tile_column()) = dy;
    if (node < N && tile_column() / Share::COLUMNS == own.split)
      *reinterpret_cast<float4*>(members.of_step(params.dy) + node * CHANNEL_COLUMNS + tile_column()) = dy;
    if (Share::PREFETCHES) raw = fetch(first + own.stride);
    float4 dz = zero4();
    __syncthreads();  // dY, entries and pairs are filled
#pragma unroll 1
    for (int c = 0;;) {
      at.pairs.gather(
          at.v, at.dy, entries, found.pairs, first, [&](int node, int p) { return dy4(at.of, node, p); },
          [](int, int, const float4&) {});
      wait_for_copies<0>();
      __syncthreads();  // V is filled, and the weights
      at.pairs.multiply(at.v, found.pairs,
                        [&](int pair, int channel, int p, auto& sum) { at.multiply(pair, channel, p, sum); });
      __syncthreads();  // products are stored
      if (row < CHANNEL_ROWS) dz = at.pairs.sum_of_row(dz, at.v, row, column, c, found.next);
      c = found.next;
      if (c == C) break;
      __syncthreads();  // pairs and products may be overwritten
      found = at.pairs.find(entries, c, C);
      __syncthreads();  // pairs are found
    }
    if constexpr (Share::PRODUCTS == 0) __syncthreads();  // products are read
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
        float* out = at.v + row * Share::SUMMED_STRIDE + column + f;
        out[0] = g[f], out[CHANNEL_ROWS * Share::SUMMED_STRIDE] = g[f] * of.x_hat(ys[f]);
      }
      *reinterpret_cast<float4*>(members.of_step(layer.g_prev) + place) = make_float4(g[0], g[1], g[2], g[3]);
    }
    __syncthreads();  // G_prev is stored
    if (layer.sums_prev == nullptr) continue;
    const int lane = threadIdx.x % 32, tile = (first + lane) / TILE;
    const bool exists = first + lane < N;
#pragma unroll
    for (int f = threadIdx.x / 32; f < Share::COLUMNS; f += WARPS) {
      const float* summed = at.v + lane * Share::SUMMED_STRIDE + f;
      const float2 sum = make_float2(sum_of_rows(exists ? summed[0] : 0.f),
                                     sum_of_rows(exists ? summed[CHANNEL_ROWS * Share::SUMMED_STRIDE] : 0.f));
      if (lane % TILE == 0 && exists)
        reinterpret_cast<float2*>(members.of_step(layer.sums_prev))[tile * CHANNEL_COLUMNS + f0 + f] = sum;
    }
  }
}

}  // namespace fused
