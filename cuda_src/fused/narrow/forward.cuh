// A narrow layer forward, in one launch: Y = U W' with the moments of its columns; see fused/shared/fused.cuh and fused/FUSED.md.
//
//   U[i] = [sum over entries (j, c) of row i of value Z_prev[j] | a_1[i] … a_C[i] | 0],   Z_prev from Y_prev on the fly
//
// Source: own; performance.md of the design gives the floors. It differs from the `batched` operations in that nothing
// but Y, U and column moments goes to memory, and the only thing that it waits for is Y_prev.
// Shapes: y (N, P), u (N, K), moments (gridDim.x, columns_of(P), 2), size (4,) int: N, graphs, step, epoch; x (N,
//   x_stride): U itself (`kind` 0), else from it row sums a_c (its columns 0 … C-1); y_prev (N, F); indptr (N+1,),
//   indices = j * C + c, values; packed (K, columns_of(P)); kept (ceil(N P / 8),) dropout bits of this layer.
// `kind`: 0 U is given, 1 gather over the adjacency, 2 gather of the row itself (dense layers).
// Launch: 512 threads, tiles of 16 rows dealt out to the blocks; batch 50 of 19 nodes: 60 tiles, a block each.
// Shared memory: dynamic, see geometry_fused.py; accesses are to one row, to consecutive columns, or as PRODUCT_STRIDE
//   spreads them.
// Traffic: reads 4 (nnz F + K P blocks), writes 4 N (P + K); everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit for a given number of blocks.
// Requirements: K a multiple of 8; N times F, P and K below 2^31.
#pragma once

#include "fused/shared/tile.cuh"

namespace fused {

// A row of U by a warp: the activations of its neighbours, weighted, a lane two columns at a time. `fetch` asks for BATCH
// neighbours' Y_prev, `add` makes activations of them. The first fetch comes before the columns of Y_prev are known, so
// that both are waited for together.
struct NeighbourActivations {
  const float* y_prev;
  const unsigned char* kept;
  int F, C;
  int n;  // entries of the row; lane l holds the node, channel and value of entry l of the 32 at hand
  int node, channel;
  float value;
  float2 y[BATCH];
  unsigned wanted;  // a bit per element of y: it exists and dropout kept it

  // The row's first entries; of a dense layer the row itself.
  __device__ __forceinline__ void open(const int* indptr, const int* indices, const float* values, int i, bool exists,
                                       bool identity) {
    if (identity) {
      n = exists, node = i, channel = 0, value = 1.f;
      return;
    }
    const int begin = exists ? indptr[i] : 0;
    n = exists ? indptr[i + 1] - begin : 0;
    read(indices + begin, values + begin, threadIdx.x % 32);
  }

  __device__ __forceinline__ void read(const int* indices, const float* values, int k) {
    node = k < n ? indices[k] : 0;
    value = k < n ? values[k] : 0.f;
    channel = 0;
    if (C > 1) {
      channel = node % C;
      node /= C;
    }
  }

  __device__ __forceinline__ void fetch(int k, int f) {
    const int column = f + 2 * (threadIdx.x % 32);
    wanted = 0;
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const int at = __shfl_sync(FULL_WARP, node, (k + u) % 32) * F + column;
      const bool first = k + u < n && column < F, second = k + u < n && column + 1 < F;
      y[u] = load2(y_prev + at, first, second, F % 2 == 0);
      wanted |= (first | second << 1) << 2 * u;
      if (kept) wanted &= ~((first && !is_kept(kept, at)) << 2 * u | (second && !is_kept(kept, at + 1)) << (2 * u + 1));
    }
  }

  __device__ __forceinline__ void add(float* row, const Columns& columns, float keep_scale, int k, int f) const {
    const int column = f + 2 * (threadIdx.x % 32), safe = min(column, columns_of(F) - 2);
    const float2 mean = *reinterpret_cast<const float2*>(columns.mean + safe);
    const float2 slope = *reinterpret_cast<const float2*>(columns.slope + safe);
    const float2 beta = *reinterpret_cast<const float2*>(columns.beta + safe);
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const float factor = __shfl_sync(FULL_WARP, value, (k + u) % 32) * keep_scale;
      const float a = positive((y[u].x - mean.x) * slope.x + beta.x),
                  b = positive((y[u].y - mean.y) * slope.y + beta.y);
      if (wanted >> 2 * u & 1) sum.x += factor * a;
      if (wanted >> 2 * u & 2) sum.y += factor * b;
      if (C > 1 || u == BATCH - 1) {  // the next entry may be another channel's
        float* target = row + (C > 1 ? __shfl_sync(FULL_WARP, channel, (k + u) % 32) * F : 0) + column;
        if (column < F) target[0] += sum.x;
        if (column + 1 < F) target[1] += sum.y;
        sum = make_float2(0.f, 0.f);
      }
    }
  }
};

// The phase with its arguments, in the order of fused_forward in fused/narrow/step.cu.
struct Forward {
  float* y;
  float* u;
  float* moments;
  unsigned char* kept;
  const int* size;
  const float* x;
  const float* y_prev;
  const float* moments_prev;
  float* stats_prev;
  float* running_mean_prev;
  float* running_var_prev;
  const float* gamma_prev;
  const float* beta_prev;
  const unsigned char* kept_prev;
  const int* indptr;
  const int* indices;
  const float* values;
  const float* packed;
  unsigned long long seed;
  unsigned long long purpose;
  unsigned threshold;
  float keep_scale;
  float epsilon_prev;
  float momentum_prev;
  int parts_prev;
  int x_stride;
  int F;
  int C;
  int P;
  int K;
  int kind;

  // `block` of `blocks`; `wait` returns when what the phase before wrote can be read.
  template <class Wait>
  __device__ __forceinline__ void run(int block, int blocks, float4* shared4, Wait wait) const {
    float* shared = reinterpret_cast<float*>(shared4);
    const int stride = K + 4;
    float* tile = shared;
    float* partial = tile + TILE * stride;
    float* moments_of = partial + PARTIAL_FLOATS;  // (columns_of(P), 2)
    const Columns columns = columns_at(moments_of + 2 * columns_of(P), F);

    Weights<3> weights;
    const bool is_alone = P <= GROUP && K <= weights.CHUNK;  // the weights stay in registers for all tiles
    // Only the first kernel of a step follows the one that writes the weights.
    if (kind == 0) wait();
    weights.load(packed, 0, K, first_column(), columns_of(P));
    const int N = size[0], warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_first = block * TILE + warp;
    NeighbourActivations gather = {y_prev, kept_prev, F, C};
    if (kind != 0 && kept == nullptr && block > 0 && block * TILE >= N) return;  // makes room for the kernel behind
    // The first tile's own numbers: U, before N is known (there are rows up to the last tile's end), or the row sums.
    float4 own_u = make_float4(0.f, 0.f, 0.f, 0.f);
    float own_sum = kind == 2 ? 1.f : 0.f;
    if (kind == 0 && 4 * lane < K) own_u = *reinterpret_cast<const float4*>(x + own_first * x_stride + 4 * lane);
    if (kind != 0) {
      gather.open(indptr, indices, values, own_first, own_first < N, kind == 2);
      if (kind == 1 && own_first < N && lane < C) own_sum = x[own_first * x_stride + lane];
      wait();
    }

    const long long elements = static_cast<long long>(N) * P;
    if (block * TILE >= N) {
      if (kept) draw_kept(block, blocks, kept, size, seed, purpose, threshold, elements);
      return;
    }
    if (kind != 0) {
      gather.fetch(0, 0);
      const Statistics from = {moments_prev, stats_prev, running_mean_prev, running_var_prev, gamma_prev,
                               beta_prev,    parts_prev, epsilon_prev,      momentum_prev};
      set_columns(columns, partial, from, N, F, block == 0);
    }
    for (int p = threadIdx.x; p < 2 * columns_of(P); p += THREADS) moments_of[p] = 0.f;

    int before = 0;  // rows of this part in earlier tiles
#pragma unroll 1
    for (int first = block * TILE; first < N; first += blocks * TILE) {
      const int i = first + warp, rows = min(TILE, N - first);
      float* row = tile + warp * stride;
      if (before > 0) __syncthreads();  // the readers of the tile before are done
      for (int k = 4 * lane; k < K; k += 128) {
        float4 given = before == 0 && k == 4 * lane ? own_u : make_float4(0.f, 0.f, 0.f, 0.f);
        if (kind == 0 && i < N && before + k > 4 * lane) given = *reinterpret_cast<const float4*>(x + i * x_stride + k);
        *reinterpret_cast<float4*>(row + k) = given;
      }
      if (kind != 0) {
        __syncwarp();
        if (before == 0) __syncthreads();  // the columns are there
        if (before > 0) gather.open(indptr, indices, values, i, i < N, kind == 2);
#pragma unroll 1
        for (int k = 0; k < gather.n; k += BATCH) {
          if (k > 0 && k % 32 == 0) gather.read(indices + indptr[i], values + indptr[i], k + lane);
#pragma unroll 1
          for (int f = 0; f < F; f += 64) {
            if (k + f + before > 0) gather.fetch(k, f);
            gather.add(row, columns, keep_scale, k, f);
          }
        }
        if (i < N) {
#pragma unroll 1
          for (int c = lane; c < C; c += 32)
            row[C * F + c] = kind == 2 || before + c == lane ? own_sum : x[i * x_stride + c];
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int group = 0; group < P; group += GROUP) {
        float4 sum[4] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < K; chunk += weights.CHUNK) {
          if (!is_alone && before + group + chunk > 0)
            weights.load(packed, chunk, K, group + first_column(), columns_of(P));
          add_chunk(sum, tile, stride, chunk, K, weights);
        }
        const float2 out = fold_slices(sum, partial);
        const bool exists = own_row() < rows;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int p = group + own_column() + c * COLUMN_STEP;
          const float value = c == 0 ? out.x : out.y;
          if (exists && p < P) y[(first + own_row()) * P + p] = value;
          if (moments) {
            // Two passes over the column's rows, then the tile's moments join those of the part.
            const float mean = sum_of_rows(exists ? value : 0.f) / rows, distance = exists ? value - mean : 0.f;
            const float squares = sum_of_rows(distance * distance);
            if (own_row() == 0 && p < P) {
              float* own = moments_of + 2 * p;
              const float share = static_cast<float>(rows) / (before + rows), delta = mean - own[0];
              own[0] += delta * share;
              own[1] += squares + delta * delta * before * share;
            }
          }
        }
        if (u && kind != 0 && group == 0 && i < N) {
          for (int q = 4 * lane; q < K; q += 128)
            *reinterpret_cast<float4*>(u + i * K + q) = *reinterpret_cast<const float4*>(row + q);
        }
        __syncthreads();  // `partial` is free again
      }
      before += rows;
    }
    if (kept) draw_kept(block, blocks, kept, size, seed, purpose, threshold, elements);
    if (!moments) return;
    for (int p = threadIdx.x; p < 2 * columns_of(P); p += THREADS)
      moments[block * 2 * columns_of(P) + p] = moments_of[p];
  }
};

}  // namespace fused
