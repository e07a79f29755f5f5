// Forward pass of a narrow layer in one launch: Y = U W' and the moments of its columns; see fused/shared/fused.cuh.
//
//   U[i] = [sum over entries (j, c) of row i of value Z_prev[j] | a_1[i] … a_C[i] | 0],   Z_prev recomputed from Y_prev
//
// Source: own. Unlike the `batched` operations, it writes only Y, U and column moments to memory.
// Shapes: y (N, P), u (N, K), moments (parts, columns_of(P), 2), x (N, x_stride): U itself (FIRST), else the row sums a_c (its
//   columns 0 … C-1); y_prev (N, F); indptr (N+1,), indices = j * C + c, values; packed (K, columns_of(P)); kept
//   (ceil(N P / 8),) dropout bits of this layer.
// `kind` is a LayerKind. All sizes come from the shape (fused/narrow/shape.cuh).
// Launch: 512 threads, members in z. Tiles of 16 rows are dealt to `parts` (RowsOfParts), blocks stride over these; batch 50
//   of 19 nodes: 60 tiles and parts, for a model alone a block each.
// Shared memory: dynamic, see `narrow.geometry.forward`; a warp accesses one row, consecutive columns, or rows that
//   PRODUCT_STRIDE spreads over the banks.
// Traffic: reads 4 (nnz F + K P blocks), writes 4 N (P + K); everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit for a given number of parts, whatever the blocks.
// Requirements: K a multiple of 8; N times F, P and K below 2^31.
#pragma once

#include "fused/narrow/shape.cuh"
#include "fused/narrow/tile.cuh"

namespace fused {

constexpr int FORWARD_QUADS = 3;                           // quads of weights in a thread's registers; see Weights
constexpr int FORWARD_CHUNK = 4 * SLICES * FORWARD_QUADS;  // rows of weights in a block's registers

// A warp computes a row of U, the weighted sum of its neighbours' activations; a lane has two columns at a time. `fetch`
// loads BATCH neighbours' Y_prev, `add` adds their activations. The first fetch is issued before the columns of Y_prev
// are reduced, so that both latencies overlap.
struct NeighbourActivations {
  const float* y_prev;
  const unsigned char* kept;
  int F, C;
  int begin, n;  // entries of the row; lane l holds node, channel and value of entry l of the current 32
  int node, channel;
  float value;
  float2 y[BATCH];
  unsigned wanted;  // a bit per element of y: the element exists and dropout kept it

  // A row is opened in two steps, so that other work hides the latency of both: find its entries, load the first of them.
  // In a dense layer the row itself is the only entry.
  __device__ __forceinline__ void find(const int* indptr, int i, bool exists, bool identity) {
    begin = i, n = exists;
    if (identity) return;
    begin = exists ? indptr[i] : 0;
    n = exists ? indptr[i + 1] - begin : 0;
  }
  __device__ __forceinline__ void open(const int* indices, const float* values, bool identity) {
    node = begin, channel = 0, value = 1.f;
    if (!identity) read(indices + begin, values + begin, threadIdx.x % 32);
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
      if (C > 1 || u == BATCH - 1) {  // the next entry may belong to another channel
        float* target = row + (C > 1 ? __shfl_sync(FULL_WARP, channel, (k + u) % 32) * F : 0) + column;
        if (column < F) target[0] += sum.x;
        if (column + 1 < F) target[1] += sum.y;
        sum = make_float2(0.f, 0.f);
      }
    }
  }
};

// Outputs, inputs and sizes of a layer; `_prev` is the previous layer, null in the first layer.
struct NarrowForwardParams {
  float *y, *u, *moments;
  unsigned char* kept;
  const int *size, *source;
  const float *x, *y_prev, *moments_prev;
  float *stats_prev, *running_mean_prev, *running_var_prev;
  const float *gamma_prev, *beta_prev;
  const unsigned char* kept_prev;
  const int *indptr, *indices;
  const float *values, *packed;
  const MemberValues* of_dropout;
  Members members;
  unsigned long long purpose;
  float epsilon_prev, momentum_prev;
  int parts, parts_prev, x_stride, F, C, P, K, kind;

  __device__ __forceinline__ Statistics statistics_prev() const {
    return statistics_of(members, moments_prev, stats_prev, running_mean_prev, running_var_prev, gamma_prev, beta_prev,
                         parts_prev, epsilon_prev, momentum_prev);
  }
};

// The block's tile of U in shared memory. Inputs of the next tile are prefetched into registers.
template <class Shape>
struct TileOfU {
  float* rows;  // (TILE, K + 4)
  NeighbourActivations gather;
  float4 own;  // first layer: four columns of this warp's row; else x has its row sum of channel `lane`

  __device__ __forceinline__ int stride(const Shape& shape) const { return shape.K + 4; }

  // Fetch row `i` of U, before N is known: x has rows up to the end of the last tile.
  __device__ __forceinline__ void fetch_staged(const NarrowForwardParams& params, const Shape& shape, int i) {
    const int lane = threadIdx.x % 32;
    if (4 * lane < shape.K)
      own = *reinterpret_cast<const float4*>(params.members.of_step(params.x) + i * params.x_stride + 4 * lane);
  }
  // Fetch row `i` in three steps, each after what it needs has arrived: its place, its entries and row sums, its
  // neighbours. Rows of the first layer take one.
  __device__ __forceinline__ void find_row(const NarrowForwardParams& params, const Shape& shape, int i, int N) {
    if (shape.kind != FIRST) {
      gather.find(params.members.of_step(params.indptr), i, i < N, shape.kind == DENSE);
    } else if (i < N) {
      fetch_staged(params, shape, i);
    }
  }
  __device__ __forceinline__ void open_row(const NarrowForwardParams& params, const Shape& shape, int i, int N) {
    const int lane = threadIdx.x % 32;
    if (shape.kind == FIRST) return;
    gather.open(params.members.of_step(params.indices), params.members.of_step(params.values), shape.kind == DENSE);
    if (shape.kind == CONVOLUTION && i < N && lane < shape.C)
      own.x = params.members.of_step(params.x)[i * params.x_stride + lane];
  }
  __device__ __forceinline__ void fetch_neighbours(const Shape& shape) {
    if (shape.kind != FIRST) gather.fetch(0, 0);
  }

  // The warp computes row `i` of U, which is prefetched; `is_first`: the columns may not be filled yet.
  __device__ __forceinline__ void fill_row(const NarrowForwardParams& params, const Shape& shape,
                                           const Columns& columns, float keep_scale, int i, int N, bool is_first) {
    const int F = shape.F, C = shape.C, K = shape.K, lane = threadIdx.x % 32;
    float* row = rows + threadIdx.x / 32 * stride(shape);
    for (int k = 4 * lane; k < K; k += 128) {
      const bool is_held = k == 4 * lane;
      float4 given = shape.kind == FIRST && is_held ? own : make_float4(0.f, 0.f, 0.f, 0.f);
      if (shape.kind == FIRST && i < N && !is_held)
        given = *reinterpret_cast<const float4*>(params.members.of_step(params.x) + i * params.x_stride + k);
      *reinterpret_cast<float4*>(row + k) = given;
    }
    if (shape.kind == FIRST) return;
    __syncwarp();
    if (is_first) __syncthreads();  // the columns are filled
#pragma unroll 1
    for (int k = 0; k < gather.n; k += BATCH) {
      if (k > 0 && k % 32 == 0)
        gather.read(params.members.of_step(params.indices) + gather.begin,
                    params.members.of_step(params.values) + gather.begin, k + lane);
#pragma unroll 1
      for (int f = 0; f < F; f += 64) {
        if (k + f > 0) gather.fetch(k, f);
        gather.add(row, columns, keep_scale, k, f);
      }
    }
    if (i < N) {
#pragma unroll 1
      for (int c = lane; c < C; c += 32)
        row[C * F + c] =
            shape.kind == DENSE || c == lane ? own.x : params.members.of_step(params.x)[i * params.x_stride + c];
    }
  }

  // Store this warp's row, which dW' reads.
  __device__ __forceinline__ void store_row(float* u, const Shape& shape, int i) const {
    const float* row = rows + threadIdx.x / 32 * stride(shape);
    for (int q = 4 * (threadIdx.x % 32); q < shape.K; q += 128)
      *reinterpret_cast<float4*>(u + i * shape.K + q) = *reinterpret_cast<const float4*>(row + q);
  }
};

// Join the mean and the sum of squared deviations of a column's `rows` rows to those of `before` rows.
__device__ __forceinline__ void join_rows(float2& moments, float mean, float squares, int rows, int before) {
  const float share = static_cast<float>(rows) / (before + rows), delta = mean - moments.x;
  moments.x += delta * share;
  moments.y += squares + delta * delta * before * share;
}

// Add a tile's rows of column p to the moments (columns_of(P),) of the block's previous `before` rows: two passes over the
// tile's rows, then means and sums of squared deviations are combined.
__device__ __forceinline__ void join_moments(float2* moments, float value, bool exists, int rows, int before, int p,
                                             int P) {
  const float mean = sum_of_rows(exists ? value : 0.f) / rows, distance = exists ? value - mean : 0.f;
  const float squares = sum_of_rows(distance * distance);
  if (own_row() == 0 && p < P) join_rows(moments[p], mean, squares, rows, before);
}

template <class Shape>
__device__ __forceinline__ void forward_phase(const NarrowForwardParams& params, float4* shared4) {
  const Shape shape(params);
  const int F = shape.F, P = shape.P, K = shape.K, kind = shape.kind, block = blockIdx.x;
  unsigned char* kept = shape.kept(params.members.of_step_or_null(params.kept));
  float* shared = reinterpret_cast<float*>(shared4);
  float* partial = shared + TILE * (K + 4);
  float* moments_of = partial + PARTIAL_FLOATS;  // (columns_of(P), 2)
  const Columns columns = columns_at(moments_of + 2 * columns_of(P), F);
  TileOfU<Shape> tile = {
      shared,
      {params.members.of_step(params.y_prev), shape.kept(params.members.of_step_or_null(params.kept_prev)), F, shape.C},
      make_float4(kind == DENSE ? 1.f : 0.f, 0.f, 0.f, 0.f)};

  Weights<FORWARD_QUADS> weights;
  if constexpr (Shape::IS_FIXED) __builtin_assume(K <= FORWARD_CHUNK);  // the host takes AnyShape otherwise
  const bool is_alone = P <= GROUP && K <= weights.CHUNK;               // weights stay in registers for all tiles
  // Only the first kernel of a step follows the update, which writes the weights.
  if (kind == FIRST) wait_for_previous();
  weights.load(params.members.of_step(params.packed), 0, K, first_column(), columns_of(P));
  const int N = params.members.of_step(params.size)[BatchSize::N], own_first = block * TILE + threadIdx.x / 32;
  if (kind != FIRST && kept == nullptr && block > 0 && block * TILE >= N) return;  // makes room for the next kernel
  if (kind == FIRST) {
    tile.fetch_staged(params, shape, own_first);
  } else {
    tile.find_row(params, shape, own_first, N);
    tile.open_row(params, shape, own_first, N);
    wait_for_previous();
  }

  const MemberValues values = shape.values(params.members.of_model_or_null(params.of_dropout));
  const auto draw = [&] {
    const long long elements = static_cast<long long>(N) * P;
    if (kept)
      draw_kept(block, gridDim.x, kept, params.members.of_step(params.size), values.seed, params.purpose,
                values.threshold, elements);
  };
  if (block * TILE >= N) {
    draw();
    return;
  }
  if (kind != FIRST) {
    tile.fetch_neighbours(shape);
    set_columns(columns, partial, params.statistics_prev(), N, F, block == 0);
  }
  for (int p = threadIdx.x; p < 2 * columns_of(P); p += THREADS) moments_of[p] = 0.f;

  int part = block, before = 0;  // rows of this part in earlier tiles
  bool is_first = true;
#pragma unroll 1
  for (int first = part * TILE; first < N;) {
    const int i = first + threadIdx.x / 32, rows = min(TILE, N - first);
    if (!SHARES_LAUNCHES && !is_first) {
      tile.find_row(params, shape, i, N);
      tile.open_row(params, shape, i, N);
      tile.fetch_neighbours(shape);
    }
    tile.fill_row(params, shape, columns, values.keep_scale, i, N, is_first);
    __syncthreads();
    int next_part = part;
    const int next = next_tile(next_part, first, params.parts, gridDim.x, N), next_i = next + threadIdx.x / 32;
    if (is_prefetched(next, N)) tile.find_row(params, shape, next_i, N);
#pragma unroll 1
    for (int group = 0; group < P; group += GROUP) {
      float4 sum[4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < K; chunk += weights.CHUNK) {
        if (!is_alone && (!is_first || group + chunk > 0))
          weights.load(params.members.of_step(params.packed), chunk, K, group + first_column(), columns_of(P));
        add_chunk(sum, tile.rows, K + 4, chunk, K, weights);
      }
      if (group == 0 && is_prefetched(next, N)) tile.open_row(params, shape, next_i, N);
      const float2 out = reduce_slices(sum, partial);
      if (group == 0 && is_prefetched(next, N)) tile.fetch_neighbours(shape);
      const bool exists = own_row() < rows;
      store_pair(params.members.of_step(params.y) + (first + own_row()) * P + group + own_column(), out,
                 exists ? P - group - own_column() : 0, P % 2 == 0);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int p = group + own_column() + c;
        const float value = c == 0 ? out.x : out.y;
        if (params.moments) join_moments(reinterpret_cast<float2*>(moments_of), value, exists, rows, before, p, P);
      }
      if (params.u && kind != FIRST && group == 0 && i < N) tile.store_row(params.members.of_step(params.u), shape, i);
      __syncthreads();  // `partial` and the tile may be overwritten
    }
    is_first = false;
    before += rows, first = next;
    if (first < N && next_part == part) continue;
    for (int p = threadIdx.x; params.moments && p < 2 * columns_of(P); p += THREADS) {
      params.members.of_step(params.moments)[part * 2 * columns_of(P) + p] = moments_of[p];
      if (SHARES_LAUNCHES) moments_of[p] = 0.f;
    }
    part = next_part, before = 0;
  }
  draw();
}

}  // namespace fused
