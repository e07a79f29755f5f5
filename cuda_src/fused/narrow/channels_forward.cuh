// Forward pass of a layer with several channels: Y and the moments of its columns; see fused/narrow/channels.cuh.
//
// Source: own. Forward of any narrow layer (fused/narrow/forward.cuh) multiplies all columns of U, most of them 0.
// Shapes: y (N, 64); moments (ceil(N / 16), 64, 2); y_prev (N, 64); indptr (N C + 1,), indices, values; x: row sums a_c of
//   the data set, source (N,): its rows; packed (C 64 + C, 64); kept: dropout bits of this layer.
// Launch: 512 threads, four blocks a tile or one (Share), members in z. 1,133 rows, a model alone: 144 blocks.
// Shared memory: dynamic, `narrow.geometry.channels_forward`. The four lanes of a group read the same rows of its pairs,
//   and together consecutive weights.
// Each split also stores its columns of U, which the gradient of the weights reads.
// Traffic: reads 4 (SPLITS N F + C F P blocks / SPLITS), writes 4 (N + pairs) P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit, whatever the blocks.
// Requirements: 64 columns in and out; at most MOST_CHANNELS channels.
#pragma once

#include "fused/narrow/channels.cuh"

namespace fused {

// Shared memory of a block.
template <class Share>
struct ChannelsForward {
  float* weights;  // (C 64 + C, COLUMNS): those of all channels, then the biases
  Columns columns;
  float* z;  // (CHANNEL_ROWS, ROW_FLOATS): Z of the tile's rows; then Y, (CHANNEL_ROWS, SUMMED_STRIDE)
  float* u;  // (MOST_PAIRS, ROW_FLOATS), and the products U[i, c] W_c + a_c[i] b_c
  Pairs<Share> pairs;
  float* entries;   // TileEntries
  float* row_sums;  // (CHANNEL_ROWS C,), after the entries

  __device__ __forceinline__ ChannelsForward(float4* shared4, int C)
      : weights(reinterpret_cast<float*>(shared4)),
        columns(columns_at(weights + C * (CHANNEL_COLUMNS + 1) * Share::COLUMNS, CHANNEL_COLUMNS)),
        z(columns.beta + CHANNEL_COLUMNS),
        u(z + TILE_FLOATS),
        pairs(u + Share::PRODUCT_FLOATS),
        entries(u + Share::PRODUCT_FLOATS + Share::PAIR_FLOATS),
        row_sums(entries + ENTRY_FLOATS + CHANNEL_ROWS * C + 1) {}

  // Copy the columns from p0 on of packed weights; the copies arrive later.
  __device__ __forceinline__ void copy_weights(const float* packed, int p0, int C) const {
#pragma unroll 2
    for (int q = threadIdx.x; q < C * (CHANNEL_COLUMNS + 1) * Share::QUADS; q += THREADS)
      copy_async<4>(weights + 4 * q, packed + q / Share::QUADS * CHANNEL_COLUMNS + p0 + q % Share::QUADS * 4, 4);
    commit_copies();
  }

  // Copy what the batch says of a tile, and find its first pairs. All threads call, and wait before they read; row sums arrive
  // later.
  __device__ __forceinline__ typename Pairs<Share>::Found open(const NarrowForwardParams& params, TileEntries& of,
                                                               int first, int N, int C) const {
    of.copy_starts(first, N, C);
    const int rows = min(CHANNEL_ROWS, N - first);
#pragma unroll 1
    for (int e = threadIdx.x; e < rows * C; e += THREADS) {
      const int source = params.members.of_step(params.source)[first + e / C];
      copy_async<1>(row_sums + e, params.x + static_cast<long long>(source) * params.x_stride + e % C, 1);
    }
    commit_copies();
    __syncthreads();  // starts are copied; all threads have read the previous tile
    of.copy(C);
    return pairs.find(of, 0, C);
  }

  // The products of PAIRS_AT_ONCE pairs of channel c and columns `column` + 4 THREADS_OF_GROUP t.
  __device__ __forceinline__ void multiply(int first, int c, int column, int C,
                                           float4 (&sum)[Share::PAIRS_AT_ONCE][Share::THREAD_QUADS]) const {
    constexpr int NEXT = 4 * Share::THREADS_OF_GROUP;
    const float* w = weights + c * CHANNEL_COLUMNS * Share::COLUMNS + column;
    const float* bias = weights + (C * CHANNEL_COLUMNS + c) * Share::COLUMNS + column;
#pragma unroll
    for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r) {
      const int row = pairs.row[first + r];
      const float of_row = row == Pairs<Share>::NONE ? 0.f : row_sums[row * C + c];
#pragma unroll
      for (int t = 0; t < Share::THREAD_QUADS; ++t)
        sum[r][t] = add_scaled4(zero4(), of_row, *reinterpret_cast<const float4*>(bias + NEXT * t));
    }
#pragma unroll(Share::UNROLLED)
    for (int k = 0; k < CHANNEL_COLUMNS; k += 4) {
      float x[Share::PAIRS_AT_ONCE][4];
#pragma unroll
      for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r) {
        const float4 x4 = *reinterpret_cast<const float4*>(u + (first + r) * ROW_FLOATS + k);
        x[r][0] = x4.x, x[r][1] = x4.y, x[r][2] = x4.z, x[r][3] = x4.w;
      }
#pragma unroll
      for (int t = 0; t < Share::THREAD_QUADS; ++t) {
        float4 w4[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w4[i] = *reinterpret_cast<const float4*>(w + (k + i) * Share::COLUMNS + NEXT * t);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r) sum[r][t] = add_product(sum[r][t], x[r][i], w4[i]);
      }
    }
  }
};

template <class Share>
__device__ __forceinline__ void channels_forward(const NarrowForwardParams& params, float4* shared4) {
  const Members& members = params.members;
  const int C = params.C, N = members.of_step(params.size)[BatchSize::N];
  // Before the wait: dropout, the weights, the batch. The previous kernel is that of the layer before, not the update.
  const SplitOfTiles<Share> own;
  const int p0 = own.split * Share::COLUMNS;
  const ChannelsForward<Share> at(shared4, C);
  TileEntries entries(at.entries, members.of_step(params.indptr), members.of_step(params.indices),
                      members.of_step(params.values));
  typename Pairs<Share>::Found found = {0, 0};
  if (own.first < N) {
    at.copy_weights(members.of_step(params.packed), p0, C);
    found = at.open(params, entries, own.first, N, C);
  }
  // The last blocks draw first: if any, they have no tile.
  if (unsigned char* kept = members.of_step_or_null(params.kept)) {
    const MemberValues dropout = values_at(members.of_model_or_null(params.of_dropout));
    draw_kept(gridDim.x - 1 - blockIdx.x, gridDim.x, kept, members.of_step(params.size), dropout.seed, params.purpose,
              dropout.threshold, static_cast<long long>(N) * CHANNEL_COLUMNS);
  }
  wait_for_previous();
  if (own.first >= N) return;
  const Activations z = {members.of_step(params.y_prev), members.of_step_or_null(params.kept_prev), at.columns,
                         values_at(members.of_model_or_null(params.of_dropout)).keep_scale};
  const auto fetch = [&](int first) {
    const int i = first + tile_row();
    return i < N ? z.fetch(i, tile_column()) : RawActivation{zero4(), 0u};
  };
  RawActivation raw = {};
  if (Share::FETCHES_EARLY) raw = fetch(own.first);
  set_columns(at.columns, at.u, params.statistics_prev(), N, CHANNEL_COLUMNS, blockIdx.x == 0);
  __syncthreads();  // columns are filled

#pragma unroll 1
  for (int first = own.first; first < N; first += own.stride) {
    if (first != own.first) found = at.open(params, entries, first, N, C);
    if (!Share::PREFETCHES && !(Share::FETCHES_EARLY && first == own.first)) raw = fetch(first);
    *reinterpret_cast<float4*>(at.z + tile_row() * ROW_FLOATS + tile_column()) = z.of(raw, tile_column());
    if (Share::PREFETCHES) raw = fetch(first + own.stride);
    const int row = threadIdx.x / Share::QUADS, column = threadIdx.x % Share::QUADS * 4;  // of Y, if row < CHANNEL_ROWS
    float4 y = zero4();
    __syncthreads();  // Z, entries and pairs are filled
#pragma unroll 1
    for (int c = 0;;) {
      at.pairs.gather(
          at.u, at.z, entries, found.pairs, first, [&](int node, int p) { return z.at(node, p); },
          [&](int pair, int p, const float4& sum) {
            const int r = at.pairs.row[pair], place = (first + r) * C + at.pairs.channel[pair / Share::PAIRS_AT_ONCE];
            if (params.u && r != Pairs<Share>::NONE && p / Share::COLUMNS == own.split)
              *reinterpret_cast<float4*>(members.of_step(params.u) + place * CHANNEL_COLUMNS + p) = sum;
          });
      wait_for_copies<0>();
      __syncthreads();  // U is filled, and weights and row sums
      at.pairs.multiply(at.u, found.pairs,
                        [&](int pair, int channel, int p, auto& sum) { at.multiply(pair, channel, p, C, sum); });
      __syncthreads();  // products are stored
      if (row < CHANNEL_ROWS) y = at.pairs.sum_of_row(y, at.u, row, column, c, found.next);
      c = found.next;
      if (c == C) break;
      __syncthreads();  // pairs and products may be overwritten
      found = at.pairs.find(entries, c, C);
      __syncthreads();  // pairs are found
    }
    if (row < CHANNEL_ROWS) {
      float* out = at.z + row * Share::SUMMED_STRIDE + column;
      out[0] = y.x, out[1] = y.y, out[2] = y.z, out[3] = y.w;
      if (first + row < N)
        *reinterpret_cast<float4*>(members.of_step(params.y) + (first + row) * CHANNEL_COLUMNS + p0 + column) = y;
    }
    __syncthreads();  // Y is stored
    if (params.moments == nullptr) continue;
    const int lane = threadIdx.x % 32, tile = (first + lane) / TILE, rows = min(N - tile * TILE, TILE);
#pragma unroll
    for (int p = threadIdx.x / 32; p < Share::COLUMNS; p += WARPS) {
      const float value = first + lane < N ? at.z[lane * Share::SUMMED_STRIDE + p] : 0.f;
      const float mean = sum_of_rows(value) / rows, distance = first + lane < N ? value - mean : 0.f;
      const float squares = sum_of_rows(distance * distance);
      if (lane % TILE == 0 && rows > 0)
        reinterpret_cast<float2*>(members.of_step(params.moments))[tile * CHANNEL_COLUMNS + p0 + p] =
            make_float2(mean, squares);
    }
  }
}

}  // namespace fused
