// Forward pass of a layer with several channels: Y and the moments of its columns; see fused/narrow/channels.cuh.
//
// Source: own. Forward of any narrow layer (fused/narrow/forward.cuh) multiplies all columns of U, most of them 0.
// Shapes: y (N, 64); moments (ceil(N / 16), 64, 2); y_prev (N, 64); indptr (N+1,), indices = j C + c, values; x: row sums a_c; packed
//   (C 64 + C, 64); kept: dropout bits of this layer.
// Launch: 512 threads, four blocks a tile (SplitOfTiles), members in z. 1,133 rows, a model alone: 144 blocks.
// Shared memory: dynamic, `narrow.geometry.channels_forward`. The four lanes of a group read the same rows of two pairs, and
//   together consecutive weights: no bank conflicts.
// Traffic: reads 4 (4 entries F + C F P blocks / 4), writes 4 N P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit, whatever the blocks.
// Requirements: 64 columns in and out; at most MOST_CHANNELS channels.
#pragma once

#include "fused/narrow/channels.cuh"

namespace fused {

// Shared memory of a block.
struct ChannelsForward {
  float* weights;  // (C 64 + C, SPLIT_COLUMNS): those of all channels, then the biases
  Columns columns;
  float* z;         // (CHANNEL_ROWS, ROW_FLOATS): Z of the tile's rows
  float* u;         // (MOST_PAIRS, ROW_FLOATS), with the row sum behind each row
  float* products;  // (MOST_PAIRS, SPLIT_COLUMNS): U[i, c] W_c + a_c[i] b_c
  float* y;         // (CHANNEL_ROWS, SUMMED_STRIDE)
  Pairs pairs;

  __device__ __forceinline__ ChannelsForward(float4* shared4, int C)
      : weights(reinterpret_cast<float*>(shared4)),
        columns(columns_at(weights + C * (CHANNEL_COLUMNS + 1) * SPLIT_COLUMNS, CHANNEL_COLUMNS)),
        z(columns.beta + CHANNEL_COLUMNS),
        u(z + CHANNEL_ROWS * ROW_FLOATS),
        products(u + MOST_PAIRS * ROW_FLOATS),
        y(products + MOST_PAIRS * SPLIT_COLUMNS),
        pairs(y + SUMMED_FLOATS) {}

  // Find the channels of the rows from `first` on; a warp has a row at a time.
  __device__ __forceinline__ void find_channels(const int* indptr, const int* indices, int first, int N, int C) const {
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < CHANNEL_ROWS; r += WARPS) {
      const int i = first + r, end = i < N ? indptr[i + 1] : 0;
      unsigned found = 0;
#pragma unroll 1
      for (int entry = i < N ? indptr[i] + threadIdx.x % 32 : 0; entry < end; entry += 32)
        found |= 1u << indices[entry] % C;
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) found |= __shfl_xor_sync(FULL_WARP, found, offset);
      if (threadIdx.x % 32 == 0) pairs.channels[r] = found;
    }
  }

  // The products of two pairs, four columns from 4 `quad` on.
  __device__ __forceinline__ void multiply(int first, int quad, int C) const {
    const int c = pairs.channel[first / PAIRS_AT_ONCE];
    const float* w = weights + c * CHANNEL_COLUMNS * SPLIT_COLUMNS + 4 * quad;
    const float* rows = u + first * ROW_FLOATS;
    const float4 bias =
        *reinterpret_cast<const float4*>(weights + (C * CHANNEL_COLUMNS + c) * SPLIT_COLUMNS + 4 * quad);
    float4 sum[PAIRS_AT_ONCE];
#pragma unroll
    for (int r = 0; r < PAIRS_AT_ONCE; ++r) sum[r] = add_scaled4(zero4(), rows[r * ROW_FLOATS + CHANNEL_COLUMNS], bias);
#pragma unroll 1
    for (int k = 0; k < CHANNEL_COLUMNS; k += 4) {
      float4 w4[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w4[i] = *reinterpret_cast<const float4*>(w + (k + i) * SPLIT_COLUMNS);
#pragma unroll
      for (int r = 0; r < PAIRS_AT_ONCE; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(rows + r * ROW_FLOATS + k);
        sum[r] = add_product(sum[r], x.x, w4[0]), sum[r] = add_product(sum[r], x.y, w4[1]);
        sum[r] = add_product(sum[r], x.z, w4[2]), sum[r] = add_product(sum[r], x.w, w4[3]);
      }
    }
#pragma unroll
    for (int r = 0; r < PAIRS_AT_ONCE; ++r)
      *reinterpret_cast<float4*>(products + (first + r) * SPLIT_COLUMNS + 4 * quad) = sum[r];
  }
};

// Add a row of the tile to its pairs of channels c0 … c1 - 1: its entries begin … begin + n - 1 times Z of their nodes. A warp
// has a row, a lane two columns. Most nodes are in the tile, whose Z is at `z`. `columns` are those of Y_prev, `places` the row's.
__device__ __forceinline__ void gather_row(float* u, const float* z, const float* columns, const unsigned char* places,
                                           const int* indices, const float* values, const float* y_prev,
                                           const unsigned char* kept, float keep_scale, int begin, int n, int first,
                                           int C, int c0, int c1) {
  const int lane = threadIdx.x % 32;
  constexpr int ELSEWHERE = CHANNEL_ROWS;  // the row of a node outside the tile
#pragma unroll 1
  for (int base = 0; base < n; base += 32) {
    int node = 0, where = Pairs::NONE;  // the pair, and 256 times the node's row in the tile
    float value = 0.f;
    if (base + lane < n) {
      const int index = indices[begin + base + lane];
      node = index / C, value = values[begin + base + lane];
      const int c = index - node * C, own = node - first;
      if (c0 <= c && c < c1) where = places[c] | (0 <= own && own < CHANNEL_ROWS ? own : ELSEWHERE) << 8;
    }
#pragma unroll 2
    for (int k = 0; k < min(n - base, 32); ++k) {
      const int to = __shfl_sync(FULL_WARP, where, k), pair = to & 255, own = to >> 8;
      const float factor = __shfl_sync(FULL_WARP, value, k);
      if (pair == Pairs::NONE) continue;
      float2 row;
      if (own != ELSEWHERE) {
        row = *reinterpret_cast<const float2*>(z + own * ROW_FLOATS + 2 * lane);
      } else {
        const int place = __shfl_sync(FULL_WARP, node, k) * CHANNEL_COLUMNS + 2 * lane;
        const float2 y = *reinterpret_cast<const float2*>(y_prev + place);
        const float2 mean = *reinterpret_cast<const float2*>(columns + 2 * lane);
        const float2 slope = *reinterpret_cast<const float2*>(columns + 2 * CHANNEL_COLUMNS + 2 * lane);
        const float2 beta = *reinterpret_cast<const float2*>(columns + 3 * CHANNEL_COLUMNS + 2 * lane);
        row.x = is_kept(kept, place) ? keep_scale * positive((y.x - mean.x) * slope.x + beta.x) : 0.f;
        row.y = is_kept(kept, place + 1) ? keep_scale * positive((y.y - mean.y) * slope.y + beta.y) : 0.f;
      }
      float2* sum = reinterpret_cast<float2*>(u + pair * ROW_FLOATS) + lane;
      *sum = make_float2(fmaf(factor, row.x, sum->x), fmaf(factor, row.y, sum->y));
    }
  }
}

__device__ __forceinline__ void channels_forward(const NarrowForwardParams& params, float4* shared4) {
  const Members& members = params.members;
  const int C = params.C, N = members.of_step(params.size)[BatchSize::N];
  // Before the wait: dropout, the weights, the batch. The previous kernel is that of the layer before, not the update.
  const MemberValues dropout = values_at(members.of_model_or_null(params.of_dropout));
  unsigned char* kept = members.of_step_or_null(params.kept);
  if (kept)
    draw_kept(blockIdx.x, gridDim.x, kept, members.of_step(params.size), dropout.seed, params.purpose,
              dropout.threshold, static_cast<long long>(N) * CHANNEL_COLUMNS);
  const SplitOfTiles own;
  const int p0 = own.split * SPLIT_COLUMNS;
  const ChannelsForward at(shared4, C);
  const int* indptr = members.of_step(params.indptr);
  const int* indices = members.of_step(params.indices);
  const float* row_sums = members.of_step(params.x);

  if (own.first < N) {
    const float* packed = members.of_step(params.packed) + p0;
#pragma unroll 2
    for (int q = threadIdx.x; q < C * (CHANNEL_COLUMNS + 1) * SPLIT_QUADS; q += THREADS)
      reinterpret_cast<float4*>(at.weights)[q] =
          *reinterpret_cast<const float4*>(packed + q / SPLIT_QUADS * CHANNEL_COLUMNS + q % SPLIT_QUADS * 4);
    at.find_channels(indptr, indices, own.first, N, C);
  }
  wait_for_previous();
  if (own.first >= N) return;
  set_columns(at.columns, at.u, params.statistics_prev(), N, CHANNEL_COLUMNS, blockIdx.x == 0);
  const Activations z = {members.of_step(params.y_prev), members.of_step_or_null(params.kept_prev), at.columns,
                         dropout.keep_scale};

#pragma unroll 1
  for (int first = own.first; first < N; first += own.stride) {
    if (first != own.first) at.find_channels(indptr, indices, first, N, C);
    __syncthreads();  // columns and channels are filled; all threads have read the previous tile
    {
      const int r = threadIdx.x / ROW_QUADS, p = threadIdx.x % ROW_QUADS * 4;
      *reinterpret_cast<float4*>(at.z + r * ROW_FLOATS + p) = first + r < N ? z.at(first + r, p) : zero4();
    }
#pragma unroll 1
    for (int c = 0; c < C;) {
      const Pairs::Found found = at.pairs.find(c, C);
#pragma unroll 1
      for (int q = threadIdx.x; q < MOST_PAIRS * ROW_FLOATS / 4; q += THREADS)
        reinterpret_cast<float4*>(at.u)[q] = zero4();
      __syncthreads();  // pairs are found, and U is 0
      if (threadIdx.x < found.pairs && at.pairs.row[threadIdx.x] != Pairs::NONE)
        at.u[threadIdx.x * ROW_FLOATS + CHANNEL_COLUMNS] =
            row_sums[(first + at.pairs.row[threadIdx.x]) * params.x_stride +
                     at.pairs.channel[threadIdx.x / PAIRS_AT_ONCE]];
#pragma unroll 1
      for (int r = threadIdx.x / 32; r < min(CHANNEL_ROWS, N - first); r += WARPS) {
        const int begin = indptr[first + r];
        gather_row(at.u, at.z, at.columns.mean, at.pairs.place + r * MOST_CHANNELS, indices,
                   members.of_step(params.values), z.y, z.kept, z.keep_scale, begin, indptr[first + r + 1] - begin,
                   first, C, c, found.next);
      }
      __syncthreads();  // U is filled
#pragma unroll 1
      for (int q = threadIdx.x; q < found.pairs / PAIRS_AT_ONCE * SPLIT_QUADS; q += THREADS)
        at.multiply(q / SPLIT_QUADS * PAIRS_AT_ONCE, q % SPLIT_QUADS, C);
      __syncthreads();  // products are stored
      if (threadIdx.x < CHANNEL_ROWS * SPLIT_QUADS) {
        const int row = threadIdx.x / SPLIT_QUADS, column = threadIdx.x % SPLIT_QUADS * 4;
        float* out = at.y + row * SUMMED_STRIDE + column;
        float4 y = c == 0 ? zero4() : make_float4(out[0], out[1], out[2], out[3]);
        y = at.pairs.sum_of_row(y, at.products, row, column, c, found.next);
        out[0] = y.x, out[1] = y.y, out[2] = y.z, out[3] = y.w;
        if (found.next == C && first + row < N)
          *reinterpret_cast<float4*>(members.of_step(params.y) + (first + row) * CHANNEL_COLUMNS + p0 + column) = y;
      }
      c = found.next;
      if (c < C) __syncthreads();  // pairs and products may be overwritten
    }
    __syncthreads();  // Y is stored
    if (params.moments == nullptr) continue;
    const int lane = threadIdx.x % 32, p = threadIdx.x / 32, tile = (first + lane) / TILE,
              rows = min(N - tile * TILE, TILE);
    const float value = first + lane < N ? at.y[lane * SUMMED_STRIDE + p] : 0.f, mean = sum_of_rows(value) / rows;
    const float distance = first + lane < N ? value - mean : 0.f, squares = sum_of_rows(distance * distance);
    if (lane % TILE == 0 && rows > 0)
      reinterpret_cast<float2*>(members.of_step(params.moments))[tile * CHANNEL_COLUMNS + p0 + p] =
          make_float2(mean, squares);
  }
}

}  // namespace fused
