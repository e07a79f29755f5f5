// The sparse products of wide layers: U from the Y of the layer before, V and the transpose of dY from G; and the panels of
// the weights. fused/wide/layers.cu has the kernels, their shapes and launches.
#pragma once

#include "fused/wide/gemm.cuh"

namespace fused {

// Tiles of rows of the products.
__device__ __forceinline__ int tiles_of(int N) { return max(ceil_div(N, BM), 1); }

// Batch norm of a column: z = (y - mean) slope + beta.
struct Column {
  float mean, inverse, slope, beta;
};

__device__ inline Column column_of(const float* stats, const float* gamma, const float* beta, int p, int P) {
  const float offset = beta != nullptr ? beta[p] : 0.f;
  if (stats == nullptr) return {0.f, 1.f, 1.f, offset};
  const float inverse = stats[P + p];
  return {stats[p], inverse, gamma[p] * inverse, offset};
}

// Rows of panels that the products read.
__device__ __forceinline__ int padded(int N) { return ceil_div(N, DEPTH) * DEPTH; }

constexpr int ROW_THREADS = 256;

template <int WIDTH>
struct Vector {
  float v[WIDTH];
};

template <int WIDTH>
__device__ __forceinline__ Vector<WIDTH> load(const float* from) {
  Vector<WIDTH> to;
  if constexpr (WIDTH == 4) {
    const float4 found = *reinterpret_cast<const float4*>(from);
    to.v[0] = found.x, to.v[1] = found.y, to.v[2] = found.z, to.v[3] = found.w;
  } else {
    to.v[0] = *from;
  }
  return to;
}

// Round for a product in TF32.
template <int WIDTH>
__device__ __forceinline__ Vector<WIDTH> rounded(Vector<WIDTH> from, int round) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) from.v[i] = round ? __uint_as_float(to_tf32(from.v[i])) : from.v[i];
  return from;
}

template <int WIDTH>
__device__ __forceinline__ void store(float* to, const Vector<WIDTH>& from) {
  if constexpr (WIDTH == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(from.v[0], from.v[1], from.v[2], from.v[3]);
  } else {
    *to = from.v[0];
  }
}

template <int WIDTH>
struct Columns {
  Column of[WIDTH];

  __device__ __forceinline__ Columns(const float* stats, const float* gamma, const float* beta, int p, int P) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) of[i] = {0.f, 1.f, 1.f, 0.f};
    if (stats != nullptr) {
      const Vector<WIDTH> mean = load<WIDTH>(stats + p), inverse = load<WIDTH>(stats + P + p),
                          scale = load<WIDTH>(gamma + p);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) of[i] = {mean.v[i], inverse.v[i], scale.v[i] * inverse.v[i], 0.f};
    }
    if (beta == nullptr) return;
    const Vector<WIDTH> shift = load<WIDTH>(beta + p);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) of[i].beta = shift.v[i];
  }
};

// Up to BATCH entries of a sparse row from k on, loaded together; index -1: none.
template <int BATCH>
struct Entries {
  int index[BATCH];
  float value[BATCH];

  __device__ __forceinline__ void read(const int* indices, const float* values, int k, int end) {
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      index[b] = k + b < end ? indices[k + b] : -1;
      value[b] = k + b < end ? values[k + b] : 0.f;
    }
  }
  __device__ __forceinline__ void keep_channel(int c, int C) {
    if (C == 1) return;
#pragma unroll
    for (int b = 0; b < BATCH; ++b) index[b] = index[b] >= 0 && index[b] % C == c ? index[b] / C : -1;
  }
};

// 32 rows and columns of a matrix in shared memory.
struct RowTile {
  static constexpr int LD = PANEL + 1;
  float of[PANEL * LD];

  // Whether row i of the matrix is in the tile.
  __device__ __forceinline__ static bool has(int i, int i0) { return static_cast<unsigned>(i - i0) < PANEL; }
  template <int WIDTH>
  __device__ __forceinline__ void put(int row, int column, const Vector<WIDTH>& from) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) of[row * LD + column + w] = from.v[w];
  }
  template <int WIDTH>
  __device__ __forceinline__ Vector<WIDTH> get(int row, int column) const {
    Vector<WIDTH> to;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) to.v[w] = of[row * LD + column + w];
    return to;
  }
};

struct PropagateParams {
  float* u;                               // (N, K) panels
  const float *y, *stats, *gamma, *beta;  // (N, F), (2, F), (F,): of the layer before
  const unsigned char* kept;
  const int *indptr, *indices;  // (N + 1,), (nnz,)
  const float* values;
  const int* size;
  Members members;
  float keep_scale;
  int F, C, K, capacity, identity, round;
};

// Only predictions share launches; their `stats`, `gamma` and `kept` are null.
template <int WIDTH>
__device__ void propagate(const PropagateParams& params) {
  const int F = params.F, C = params.C, K = params.K, capacity = params.capacity, identity = params.identity;
  float* u = params.members.of_step(params.u);
  const int pair = blockIdx.x * blockDim.y + threadIdx.y, i = C == 1 ? pair : pair / C, c = C == 1 ? 0 : pair % C;
  const int f = WIDTH * (blockIdx.y * blockDim.x + threadIdx.x);
  const int N = params.members.of_step(params.size)[BatchSize::N];
  if (blockIdx.x > 0 && i >= padded(N)) return;  // frees the multiprocessor
  constexpr int BATCH = 4;
  Entries<BATCH> entries;
  int k = 0, end = 0;
  entries.read(params.members.of_step(params.indices), params.members.of_step(params.values), 0, 0);
  if (identity) {
    entries.index[0] = i, entries.value[0] = 1.f;
  } else if (i < N) {
    k = params.members.of_step(params.indptr)[i], end = params.members.of_step(params.indptr)[i + 1];
    entries.read(params.members.of_step(params.indices), params.members.of_step(params.values), k, end);
  }
  wait_for_previous();
  if (i >= padded(N)) return;
  if (c == 0 && blockIdx.y == 0) {  // the columns that fill up the last panel
    for (int k = C * F + C + threadIdx.x; k < ceil_div(K, PANEL) * PANEL; k += blockDim.x)
      u[in_panel(i, k, capacity)] = 0.f;
  }
  const bool sums_row = f == 0;
  if (f >= F) return;
  float* to = u + in_panel(i, c * F + f, capacity);
  if (i >= N) {
    if (sums_row) u[in_panel(i, C * F + c, capacity)] = 0.f;
    return store<WIDTH>(to, {});
  }
  const Columns<WIDTH> column(SHARES_LAUNCHES ? nullptr : params.stats, SHARES_LAUNCHES ? nullptr : params.gamma,
                              params.members.of_model_or_null(params.beta), f, F);
  Vector<WIDTH> sum = {};
  float row_sum = 0.f;
  while (true) {
    entries.keep_channel(c, identity ? 1 : C);
    Vector<WIDTH> found[BATCH];
    int bits[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (entries.index[b] < 0) continue;
      const long long e = static_cast<long long>(entries.index[b]) * F + f;
      found[b] = load<WIDTH>(params.members.of_step(params.y) + e);
      bits[b] = SHARES_LAUNCHES || params.kept == nullptr ? 15 : params.kept[e >> 3] >> (e & 7);
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (entries.index[b] < 0) continue;
      row_sum += entries.value[b];
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        const float z = (found[b].v[v] - column.of[v].mean) * column.of[v].slope + column.of[v].beta;
        const float kept_z = bits[b] >> v & 1 ? params.keep_scale * positive(z) : 0.f;
        sum.v[v] = fmaf(entries.value[b], kept_z, sum.v[v]);
      }
    }
    k += BATCH;
    if (k >= end) break;
    entries.read(params.members.of_step(params.indices), params.members.of_step(params.values), k, end);
  }
  store<WIDTH>(to, rounded(sum, params.round));
  if (sums_row) u[in_panel(i, C * F + c, capacity)] = rounded<1>({row_sum}, params.round).v[0];
}

// Sum `partials` partial sums of COLUMNS columns; get(i) loads that of column threadIdx.x % COLUMNS. The first COLUMNS
// threads get the total. All THREADS threads call; `slots` holds a pair for each.
template <int COLUMNS, int THREADS, class Get>
__device__ __forceinline__ float2 reduce_partials(float2* slots, int partials, Get get) {
  constexpr int GROUPS = THREADS / COLUMNS;
  float2 total = make_float2(0.f, 0.f);
#pragma unroll 2
  for (int part = threadIdx.x / COLUMNS; part < partials; part += GROUPS) total = combine(total, get(part));
  slots[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
#pragma unroll
    for (int group = 1; group < GROUPS; ++group) total = combine(total, slots[group * COLUMNS + threadIdx.x]);
  }
  return total;
}

// Per column of a tile: dy = slope g + offset - tilt (y - mean).
struct Backward {
  float mean[PANEL], slope[PANEL], offset[PANEL], tilt[PANEL];

  __device__ __forceinline__ void set(int column, const float* stats, float2 sums, const float* gamma, int p, int P,
                                      int N) {
    const bool exists = p < P && stats != nullptr;
    const float inverse = exists ? stats[P + p] : 1.f, factor = exists ? gamma[p] * inverse : 1.f, share = 1.f / N;
    mean[column] = exists ? stats[p] : 0.f, slope[column] = factor;
    offset[column] = exists ? -factor * (sums.x * share) : 0.f;
    tilt[column] = exists ? factor * inverse * (sums.y * share) : 0.f;
  }
  __device__ __forceinline__ float of(float g, float y, int column) const {
    return fmaf(slope[column], g, offset[column]) - tilt[column] * (y - mean[column]);
  }
};

struct PropagateBackwardParams {
  float *dy_t, *v, *sums;           // (P, N) panels; (N, C P) panels, or null; (2, P): dbeta, dgamma
  const float *g, *y, *stats;       // (N, P), (N, P), (2, P)
  const float2* partials;           // (n, partial_stride): partial sums of G and G x̂
  const float* gamma;               // (P,)
  const int *t_indptr, *t_indices;  // (N C + 1,), (nnz,)
  const float* t_values;
  const int* size;
  int partial_stride, max_partials, graphs_per_partial;  // graphs of each; 0: 128 rows each, whatever max_partials
  int C, P, capacity, identity, round;
};

// ranks: sums over the rows of all ranks (fused/wide/ranks_layers.cu).
template <int WIDTH, class OfRanks = Alone>
__device__ void propagate_backward(const PropagateBackwardParams& params, const OfRanks& ranks = {}) {
  const int C = params.C, P = params.P, capacity = params.capacity, identity = params.identity, round = params.round;
  const float *g = params.g, *y = params.y, *stats = params.stats;
  float* v = params.v;
  __shared__ float2 slots[ROW_THREADS];
  __shared__ RowTile tile;  // of dy
  __shared__ Backward columns;
  constexpr int LANES = PANEL / WIDTH, ROWS_AT_ONCE = ROW_THREADS / LANES, BATCH = 4;
  const int i0 = ranks.row_block() * PANEL, p0 = ranks.column_block() * PANEL, column = threadIdx.x % LANES * WIDTH;
  const int p = p0 + column, N = params.size[BatchSize::N];
  const bool gathers = v != nullptr && !identity, exists = p < P;
  if (!ranks.is_first(i0) && i0 >= N) return;  // frees the multiprocessor
  Entries<BATCH> entries;
  int k = 0, end = 0;
  const auto open = [&](int i, int c) {
    const bool is_there = gathers && exists && i < N;
    k = is_there ? params.t_indptr[i * C + c] : 0, end = is_there ? params.t_indptr[i * C + c + 1] : 0;
    entries.read(params.t_indices, params.t_values, k, end);
  };
  struct Read {
    Vector<WIDTH> g, y;
  };
  const auto read = [&](int j) {
    const int e = j * P + p;
    return Read{load<WIDTH>(g + e), load<WIDTH>(y + e)};
  };
  int far = -1;  // the first loaded entry whose row is not in the tile; few are not, so one is prefetched
  Read found;
  const auto read_far = [&] {
    far = -1;
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (far < 0 && entries.index[b] >= 0 && !tile.has(entries.index[b], i0)) far = entries.index[b];
    if (far >= 0) found = read(far);
  };
  const auto dy_of = [&](const Read& from) {
    Vector<WIDTH> dy;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) dy.v[w] = columns.of(from.g.v[w], from.y.v[w], column + w);
    return dy;
  };
  const int first = i0 + threadIdx.x / LANES;
  open(first, 0);
  wait_for_previous();
  if (i0 >= N && (OfRanks::IS_ALONE || !ranks.is_first(i0))) return;  // a rank without rows sends its sums, too
  Read own;
  if (exists && first < N) own = read(first);
  read_far();
  const int own_p = p0 + threadIdx.x % PANEL;
  float2 total = make_float2(0.f, 0.f);
  const auto reduce = [&] {
    const int n_partials =
        params.graphs_per_partial > 0
            ? min(params.max_partials, ceil_div(params.size[BatchSize::B], params.graphs_per_partial))
            : tiles_of(N);
    return reduce_partials<PANEL, ROW_THREADS>(slots, n_partials, [&](int part) {
      return own_p < P ? params.partials[static_cast<long long>(part) * params.partial_stride + own_p]
                       : make_float2(0.f, 0.f);
    });
  };
  int rows = N;  // that the sums are over
  if (stats != nullptr) {
    if constexpr (OfRanks::IS_ALONE) {
      total = reduce();
    } else {
      total = ranks.sum(params, own_p, ranks.is_first(i0), reduce, rows);
    }
  }
  if (threadIdx.x < PANEL) {
    columns.set(threadIdx.x, stats, total, params.gamma, own_p, P, rows);
    if (stats != nullptr && ranks.is_first(i0) && own_p < P)
      params.sums[own_p] = total.x, params.sums[P + own_p] = total.y;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = first; i < i0 + PANEL; i += ROWS_AT_ONCE) {
    Vector<WIDTH> dy = {};
    if (exists && i < N) {
      if (i != first) own = read(i);
      dy = dy_of(own);
    }
    tile.put(i - i0, column, dy);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = first; v != nullptr && i < min(i0 + PANEL, N); i += ROWS_AT_ONCE) {
    for (int c = 0; c < C; ++c) {
      Vector<WIDTH> sum = {};  // 0 in the columns that fill up the panel
      if (identity) sum = tile.get<WIDTH>(i - i0, column);
      if (c > 0 || i != first) {
        open(i, c);
        read_far();
      }
      while (k < end) {
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
          if (entries.index[b] < 0) continue;
          const bool is_near = tile.has(entries.index[b], i0);
          const Vector<WIDTH> dy = is_near ? tile.get<WIDTH>(entries.index[b] - i0, column)
                                           : dy_of(entries.index[b] == far ? found : read(entries.index[b]));
#pragma unroll
          for (int w = 0; w < WIDTH; ++w) sum.v[w] = fmaf(entries.value[b], dy.v[w], sum.v[w]);
        }
        k += BATCH;
        if (k >= end) break;
        entries.read(params.t_indices, params.t_values, k, end);
        read_far();
      }
      store<WIDTH>(v + in_panel(i, c * ceil_div(P, PANEL) * PANEL + p, capacity), rounded(sum, round));
    }
  }
  const int q = threadIdx.x / 8, r = threadIdx.x % 8 * 4;  // 8 lanes write a row of the transpose
  if (p0 + q >= P) return;
  Vector<4> across;
#pragma unroll
  for (int w = 0; w < 4; ++w) across.v[w] = tile.of[(r + w) * tile.LD + q];
  across = rounded(across, round);
  float* to = params.dy_t + in_panel(p0 + q, i0 + r, P);
  store<4>(to, across);
  if (round) return;
#pragma unroll
  for (int w = 0; w < 4; ++w) across.v[w] = rest_of_tf32(across.v[w]);
  store<4>(to + static_cast<long long>(capacity) * P, across);
}

// ---- weights ----

struct WeightPanelsParams {
  float *forward, *backward, *shift;                       // panels; panels, or null; (P,), in inference
  const float *weight, *bias;                              // (F, C P), (C P,)
  const float *gamma, *beta, *running_mean, *running_var;  // as Folding; null in training
  const int* columns;                                      // (K,): the row of W' that each packed row is, or null: all
  Members members;
  float epsilon;
  int F, C, P, K, round;

  __device__ __forceinline__ WeightPanelsParams of_member() const {
    WeightPanelsParams own = *this;
    own.forward = members.of_step(forward);
    own.backward = members.of_step_or_null(backward);
    own.shift = members.of_model_or_null(shift);
    own.weight = members.of_model(weight);
    own.bias = members.of_model_or_null(bias);
    own.gamma = members.of_model_or_null(gamma);
    own.beta = members.of_model_or_null(beta);
    own.running_mean = members.of_model_or_null(running_mean);
    own.running_var = members.of_model_or_null(running_var);
    return own;
  }
};

// Thread (x, y) reads column p of row k of W'; both forms are written in whole lines, through shared memory.
__device__ inline void pack(const WeightPanelsParams& params) {
  const Folding folding = {params.gamma, params.beta, params.running_mean, params.running_var, params.epsilon};
  const int F = params.F, C = params.C, P = params.P, round = params.round;
  __shared__ float tile[PANEL][PANEL + 1];
  const int columns = ceil_div(P, PANEL) * PANEL, k0 = blockIdx.x * PANEL, p0 = blockIdx.y * PANEL;
  const long long residuals = static_cast<long long>(gridDim.x) * PANEL * P,
                  residuals_back = static_cast<long long>(C) * columns * F;
  for (int y = threadIdx.y; y < PANEL; y += blockDim.y) {
    const int place = k0 + y, p = p0 + threadIdx.x;
    const int k = params.columns == nullptr ? place : place < params.K ? params.columns[place] : C * F + C;
    const float* row = weight_row(params.weight, params.bias, k, F, C, P);
    const float value = rounded<1>({row != nullptr && p < P ? row[p] * folding.slope(p) : 0.f}, round).v[0];
    tile[y][threadIdx.x] = value;
    if (place == 0 && folding.gamma && p < P) params.shift[p] = folding.shift(p);
    if (params.backward == nullptr || k >= C * F) continue;
    float* to = params.backward + in_panel(k % F, k / F * columns + p, F);
    *to = value;
    if (!round) to[residuals_back] = rest_of_tf32(value);
  }
  __syncthreads();
  for (int y = threadIdx.y; y < PANEL && p0 + y < P; y += blockDim.y) {
    float* to = params.forward + in_panel(p0 + y, k0 + threadIdx.x, P);
    *to = tile[threadIdx.x][y];
    if (!round) to[residuals] = rest_of_tf32(tile[threadIdx.x][y]);
  }
}

}  // namespace fused
