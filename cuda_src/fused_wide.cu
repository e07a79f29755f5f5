// The fused backend's layers of wide weights: about 128 columns and more, where the products take the time.
//
// fused.cuh tells the arithmetic of a layer, FUSED.md the step. One layer is two kernels forward and three backward:
//
//   fused_propagate            U = [A_1 Z | … | A_C Z | a | 0], Z made from the Y of the layer before
//   fused_product_…            Y = U W', and the moments of its columns: the layer's batch norm
//   fused_propagate_backward   dY of G through batch norm, and V = A_cᵀ dY, channels side by side
//   fused_product_dx_…         dZ = V Wᵀ, G = dZ through dropout and ReLU, and the sums that batch norm's gradient wants
//   fused_product_dw_…         dW' = Uᵀ dY, in parts by rows
//
// G is the gradient by relu's input, i.e. by batch norm's output. Products come in two precisions: `tf32`, and `3xtf32`,
// which keeps float32's accuracy; how they multiply is told in fused_gemm.cuh.
//
// Shapes: y, g (N, P), weight (F, C P), bias (C P,), float32, row-major without gaps; u, v, dy_t and the packed weights
//   are panels (fused_gemm.cuh). N = size[0] is known on the device only; grids are made for a capacity, blocks beyond N
//   leave. stats (2, P): mean and 1 / sqrt(var + epsilon); sums (2, P): dbeta = Σ g and dgamma = Σ g x̂. Both are null
//   without batch norm. gamma, beta (P,). kept: a bit per element, eight to a byte, or null without dropout;
//   keep_scale = 1 / (1 - rate). round: whether panels are for TF32; if not, those of B have their rests behind them.
// Order: size, weights and adjacency are read before the kernel before has ended; they are older (fused.cuh).
// Determinism: bit-repeatable; every sum has a fixed order, partial results are folded by the block that is last.
// Requires: sm_90a for the products (elsewhere they do nothing). Any N, F, C, P; nothing is lost to borders where N
//   divides by 128 and F and P by 64. NaN passes; in 3xTF32 an infinity becomes NaN.

#include "fused_gemm.cuh"

namespace fused {

// ---- batch norm by columns ----

// Number, mean and sum of squared distances from the mean of some values (batch_norm.cu).
struct Moments {
  float number, mean, squares;
};

__device__ inline Moments combine(const Moments& a, const Moments& b) {
  if (b.number == 0.f) return a;
  if (a.number == 0.f) return b;
  const float number = a.number + b.number, share = __fdividef(b.number, number), delta = b.mean - a.mean;
  return {number, a.mean + delta * share, a.squares + b.squares + delta * delta * a.number * share};
}

using ::combine;

// What batch norm and relu make of a column: z = (y - mean) slope + beta.
struct Column {
  float mean, inverse, slope, beta;
};

__device__ inline Column column_of(const float* stats, const float* gamma, const float* beta, int p, int P) {
  if (stats == nullptr) return {0.f, 1.f, 1.f, 0.f};
  const float inverse = stats[P + p];
  return {stats[p], inverse, gamma[p] * inverse, beta != nullptr ? beta[p] : 0.f};
}

// ---- reductions over the rows of a tile ----

constexpr int ROW_GROUPS = BM / OWN_ROWS;

// Combine what the row groups of a block found; the first has the total. All threads call; `slots`: MULTIPLYING values in
// shared memory that nobody uses.
template <class T>
__device__ __forceinline__ void fold_groups(T& total, T* slots) {
  if (threadIdx.x < MULTIPLYING) slots[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= BN) return;
#pragma unroll
  for (int group = 1; group < ROW_GROUPS; ++group) total = combine(total, slots[group * BN + threadIdx.x]);
}

// Add 1 to a counter that goes back to 0 at `limit`; return what it was. What the block's threads wrote before is visible
// to who counts after, and the other way round.
__device__ __forceinline__ unsigned count(unsigned* counter, unsigned limit) {
  unsigned before = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(limit - 1)
               : "memory");
#endif
  return before;
}

// Combine what threads found of their 32 rows into the tile's, and what tiles found into the matrix's. True in the 64
// threads that hold a column's total. `slots` as above.
//   put(value)   hand on what the tile found; get(tile) is what another one handed on
//   store()      what else the block has to write: on its way while the tiles are counted
template <class T, class Put, class Get, class Store>
__device__ bool fold_tiles(T& total, T* slots, unsigned* counters, int tiles, Put put, Get get, Store store) {
  __shared__ bool is_last;
  const int group = threadIdx.x / BN;
  fold_groups(total, slots);
  if (group == 0) put(total);
  __syncthreads();
  unsigned before = 0;
  if (threadIdx.x == 0) before = count(counters + blockIdx.x, tiles);
  store();
  if (threadIdx.x == 0) is_last = before == tiles - 1;
  __syncthreads();
  if (!is_last) return false;
  total = T{};
#pragma unroll 4
  for (int tile = group; group < ROW_GROUPS && tile < tiles; tile += ROW_GROUPS) total = combine(total, get(tile));
  fold_groups(total, slots);
  return group == 0;
}

__device__ __forceinline__ int tiles_of(int N) { return max(ceil_div(N, BM), 1); }

// ---- forward ----

template <int PRODUCTS>
__device__ void product(float* y, float* stats, float* running_mean, float* running_var, float* partials,
                        unsigned* counters, const float* u, const float* weight, const int* size, float epsilon,
                        float momentum, int P, int K, int capacity, int fresh) {
  if constexpr (!HAS_WARPGROUPS) return;
  if (fresh) wait_for_previous();
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, N = size[0], tiles = tiles_of(N);
  if (blockIdx.y >= tiles) return;
  const int p = n0 + OwnValues::column();
  const bool multiplies = threadIdx.x < MULTIPLYING, exists = multiplies && p < P;
  OwnValues own;
  const AlongDepth operands = {{u, capacity, BM}, {weight, P, min(max(P - n0, 0), BN)}, m0, n0, K};
  float old_mean = 0.f, old_var = 0.f;
  const auto read_ahead = [&] {
    if (stats != nullptr && exists) old_mean = running_mean[p], old_var = running_var[p];
  };
  multiply<PRODUCTS>(own, operands, true, read_ahead);

  const auto store = [&] {
    if (multiplies) own.store(y, m0, n0, N, P);
  };
  if (stats == nullptr) return store();

  Moments total = {};
  if (multiplies) {
    const int rows = min(max(N - m0 - own.first_row(), 0), OWN_ROWS);
    float sum = 0.f;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) sum += r < rows ? own.value[r] : 0.f;
    total.number = rows, total.mean = rows > 0 ? sum / rows : 0.f;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
      const float distance = own.value[r] - total.mean;
      total.squares += r < rows ? distance * distance : 0.f;
    }
  }
  float2* found = reinterpret_cast<float2*>(partials) + p;
  const auto put = [&](const Moments& of_tile) {
    if (exists) found[blockIdx.y * static_cast<long long>(P)] = make_float2(of_tile.mean, of_tile.squares);
  };
  const auto get = [&](int tile) {
    if (!exists) return Moments{};
    const float2 of_tile = load_l2(found + tile * static_cast<long long>(P));
    return Moments{static_cast<float>(min(N - tile * BM, BM)), of_tile.x, of_tile.y};
  };
  if (!fold_tiles(total, reinterpret_cast<Moments*>(behind_tile()), counters, tiles, put, get, store)) return;
  if (!exists || N == 0) return;
  stats[p] = total.mean;
  stats[P + p] = 1.f / sqrtf(total.squares / N + epsilon);
  running_mean[p] = old_mean + momentum * (total.mean - old_mean);
  running_var[p] = old_var + momentum * (total.squares / max(N - 1, 1) - old_var);
}

// ---- backward ----

template <int PRODUCTS>
__device__ void product_dx(float* g_prev, float2* sums_prev, const float* v, const float* weight, const float* y_prev,
                           const float* stats_prev, const float* gamma_prev, const float* beta_prev,
                           const unsigned char* kept, const int* size, float keep_scale, int F, int C, int P,
                           int capacity) {
  if constexpr (!HAS_WARPGROUPS) return;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  if (blockIdx.y >= tiles_of(size[0])) return;
  OwnValues own;
  const AlongDepth operands = {
      {v, capacity, BM}, {weight, F, min(max(F - n0, 0), BN)}, m0, n0, C * ceil_div(P, PANEL) * PANEL};
  float y[OWN_ROWS];
  unsigned is_there;  // bit r: what dropout kept
  Column of;
  const auto own_rows = [&] {  // that exist; asked for twice, as registers are short in between
    const bool exists = threadIdx.x < MULTIPLYING && n0 + OwnValues::column() < F;
    return exists ? min(max(size[0] - m0 - OwnValues::first_row(), 0), OWN_ROWS) : 0;
  };
  const auto read_ahead = [&] {
    const int f = n0 + OwnValues::column(), m = m0 + OwnValues::first_row(), rows = own_rows();
    is_there = ~0u;
    of = f < F ? column_of(stats_prev, gamma_prev, beta_prev, f, F) : Column{0.f, 1.f, 1.f, 0.f};
    const float* row = y_prev + static_cast<long long>(m) * F + f;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
      y[r] = r < rows ? *row : 0.f;
      row += F;
    }
    if (kept == nullptr) return;
#pragma unroll 8
    for (int r = 0; r < rows; ++r)
      if (!is_kept(kept, static_cast<long long>(m + r) * F + f)) is_there &= ~(1u << r);
  };
  multiply<PRODUCTS>(own, operands, true, read_ahead);

  const int f = n0 + OwnValues::column(), N = size[0], rows = own_rows();
  float2 found = make_float2(0.f, 0.f);
#pragma unroll
  for (int r = 0; r < OWN_ROWS; ++r) {
    const float distance = y[r] - of.mean;
    const bool passes = r < rows && (is_there >> r & 1) && distance * of.slope + of.beta > 0.f;
    const float g = passes ? keep_scale * own.value[r] : 0.f;
    own.value[r] = g;
    found = combine(found, make_float2(g, passes ? g * (distance * of.inverse) : 0.f));
  }
  if (threadIdx.x < MULTIPLYING) own.store(g_prev, m0, n0, N, F);
  if (sums_prev == nullptr) return;
  fold_groups(found, reinterpret_cast<float2*>(behind_tile()));
  if (threadIdx.x < BN && f < F) sums_prev[static_cast<long long>(blockIdx.y) * F + f] = found;
}

template <int PRODUCTS>
__device__ void product_dw(float* partials, const float* u, const float* dy_t, const int* size, int K, int P,
                           int capacity, int early) {
  if constexpr (!HAS_WARPGROUPS) return;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int rows = ceil_div(size[0], DEPTH) * DEPTH, part = ceil_div(ceil_div(rows, DEPTH), gridDim.z) * DEPTH;
  const int begin = min(static_cast<int>(blockIdx.z) * part, rows), end = min(begin + part, rows);
  OwnValues own;
  const AcrossDepth operands = {{u, capacity, m0, K}, {dy_t, P, min(max(P - n0, 0), BN)}, n0, begin, end, capacity};
  multiply<PRODUCTS>(own, operands, !early, [] {});
  if (threadIdx.x < MULTIPLYING) own.store(partials + static_cast<long long>(blockIdx.z) * K * P, m0, n0, K, P);
  if (early) wait_for_previous();
}

// ---- sparse rows ----

// Rows that the products read of panels.
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

// What a product in TF32 takes as it is: 11 bits.
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
    if (stats == nullptr) return;
    const Vector<WIDTH> mean = load<WIDTH>(stats + p), inverse = load<WIDTH>(stats + P + p),
                        scale = load<WIDTH>(gamma + p);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) of[i] = {mean.v[i], inverse.v[i], scale.v[i] * inverse.v[i], 0.f};
    if (beta == nullptr) return;
    const Vector<WIDTH> shift = load<WIDTH>(beta + p);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) of[i].beta = shift.v[i];
  }
};

// Up to BATCH entries of a sparse row from k on, on their way at once; index -1: none.
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

// 32 rows and columns of a matrix, in shared memory.
struct RowTile {
  static constexpr int LD = PANEL + 1;
  float of[PANEL * LD];

  // Whether row i of the matrix is here.
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

template <int WIDTH>
__device__ void propagate(float* u, const float* y, const float* stats, const float* gamma, const float* beta,
                          const unsigned char* kept, const int* indptr, const int* indices, const float* values,
                          const int* size, float keep_scale, int F, int C, int K, int capacity, int identity,
                          int round) {
  const int pair = blockIdx.x * blockDim.y + threadIdx.y, i = C == 1 ? pair : pair / C, c = C == 1 ? 0 : pair % C;
  const int f = WIDTH * (blockIdx.y * blockDim.x + threadIdx.x);
  const int N = size[0];
  if (blockIdx.x > 0 && i >= padded(N)) return;  // makes room
  constexpr int BATCH = 4;
  Entries<BATCH> entries;
  int k = 0, end = 0;
  entries.read(indices, values, 0, 0);
  if (identity) {
    entries.index[0] = i, entries.value[0] = 1.f;
  } else if (i < N) {
    k = indptr[i], end = indptr[i + 1];
    entries.read(indices, values, k, end);
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
  const Columns<WIDTH> column(stats, gamma, beta, f, F);
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
      found[b] = load<WIDTH>(y + e);
      bits[b] = kept == nullptr ? 15 : kept[e >> 3] >> (e & 7);
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (entries.index[b] < 0) continue;
      row_sum += entries.value[b];
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        const float z = (found[b].v[v] - column.of[v].mean) * column.of[v].slope + column.of[v].beta;
        const float kept_z = bits[b] >> v & 1 ? keep_scale * positive(z) : 0.f;
        sum.v[v] = fmaf(entries.value[b], kept_z, sum.v[v]);
      }
    }
    k += BATCH;
    if (k >= end) break;
    entries.read(indices, values, k, end);
  }
  store<WIDTH>(to, rounded(sum, round));
  if (sums_row) u[in_panel(i, C * F + c, capacity)] = rounded<1>({row_sum}, round).v[0];
}

// Sum over `parts` parts of COLUMNS columns; `get(part)` is that of column threadIdx.x % COLUMNS. The total is returned to
// the first COLUMNS threads. All THREADS threads call; `slots` holds a pair of each.
template <int COLUMNS, int THREADS, class Get>
__device__ __forceinline__ float2 fold_parts(float2* slots, int parts, Get get) {
  constexpr int GROUPS = THREADS / COLUMNS;
  float2 total = make_float2(0.f, 0.f);
#pragma unroll 2
  for (int part = threadIdx.x / COLUMNS; part < parts; part += GROUPS) total = combine(total, get(part));
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

template <int WIDTH>
__device__ void propagate_backward(float* dy_t, float* v, float* sums, const float* g, const float* y,
                                   const float* stats, const float2* parts, const float* gamma, const int* t_indptr,
                                   const int* t_indices, const float* t_values, const int* size, int part_stride,
                                   int max_parts, int graphs_of_part, int C, int P, int capacity, int identity,
                                   int round) {
  __shared__ float2 slots[ROW_THREADS];
  __shared__ RowTile tile;  // of dy
  __shared__ Backward columns;
  constexpr int LANES = PANEL / WIDTH, ROWS_AT_ONCE = ROW_THREADS / LANES, BATCH = 4;
  const int i0 = blockIdx.x * PANEL, p0 = blockIdx.y * PANEL, column = threadIdx.x % LANES * WIDTH;
  const int p = p0 + column, N = size[0];
  const bool gathers = v != nullptr && !identity, exists = p < P;
  if (blockIdx.x > 0 && i0 >= N) return;  // makes room
  Entries<BATCH> entries;
  int k = 0, end = 0;
  const auto open = [&](int i, int c) {
    const bool is_there = gathers && exists && i < N;
    k = is_there ? t_indptr[i * C + c] : 0, end = is_there ? t_indptr[i * C + c + 1] : 0;
    entries.read(t_indices, t_values, k, end);
  };
  struct Read {
    Vector<WIDTH> g, y;
  };
  const auto read = [&](int j) {
    const int e = j * P + p;
    return Read{load<WIDTH>(g + e), load<WIDTH>(y + e)};
  };
  int far = -1;  // the first entry at hand whose row is not here, as few are not: it is asked for early
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
  if (i0 >= N) return;
  Read own;
  if (exists && first < N) own = read(first);
  read_far();
  const int own_p = p0 + threadIdx.x % PANEL;
  float2 total = make_float2(0.f, 0.f);
  if (stats != nullptr) {
    const int n_parts = graphs_of_part > 0 ? min(max_parts, ceil_div(size[1], graphs_of_part)) : tiles_of(N);
    total = fold_parts<PANEL, ROW_THREADS>(slots, n_parts, [&](int part) {
      return own_p < P ? parts[static_cast<long long>(part) * part_stride + own_p] : make_float2(0.f, 0.f);
    });
  }
  if (threadIdx.x < PANEL) {
    columns.set(threadIdx.x, stats, total, gamma, own_p, P, N);
    if (stats != nullptr && blockIdx.x == 0 && own_p < P) sums[own_p] = total.x, sums[P + own_p] = total.y;
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
        entries.read(t_indices, t_values, k, end);
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
  float* to = dy_t + in_panel(p0 + q, i0 + r, P);
  store<4>(to, across);
  if (round) return;
#pragma unroll
  for (int w = 0; w < 4; ++w) across.v[w] = rest_of_tf32(across.v[w]);
  store<4>(to + static_cast<long long>(capacity) * P, across);
}

// ---- weights ----

// Thread (x, y) takes column p of row k of W', through shared memory, so that both copies are written in whole lines.
__device__ inline void pack(float* forward, float* backward, const float* weight, const float* bias, int F, int C,
                            int P, int round) {
  __shared__ float tile[PANEL][PANEL + 1];
  const int columns = ceil_div(P, PANEL) * PANEL, k0 = blockIdx.x * PANEL, p0 = blockIdx.y * PANEL;
  const long long rests = static_cast<long long>(gridDim.x) * PANEL * P, rests_back = static_cast<long long>(C) * columns * F;
  for (int y = threadIdx.y; y < PANEL; y += blockDim.y) {
    const int k = k0 + y, p = p0 + threadIdx.x;
    const float* row = weight_row(weight, bias, k, F, C, P);
    const float value = rounded<1>({row != nullptr && p < P ? row[p] : 0.f}, round).v[0];
    tile[y][threadIdx.x] = value;
    if (k >= C * F) continue;
    float* to = backward + in_panel(k % F, k / F * columns + p, F);
    *to = value;
    if (!round) to[rests_back] = rest_of_tf32(value);
  }
  __syncthreads();
  for (int y = threadIdx.y; y < PANEL && p0 + y < P; y += blockDim.y) {
    float* to = forward + in_panel(p0 + y, k0 + threadIdx.x, P);
    *to = tile[threadIdx.x][y];
    if (!round) to[rests] = rest_of_tf32(tile[threadIdx.x][y]);
  }
}

}  // namespace fused

// ---- entry points ----

// U[i, c F + f] = Σ values[k] Z[j, f] over the entries k of row i with indices[k] = j C + c;  U[i, C F + c] = Σ values[k];
// 0 beyond.  Z = kept ? keep_scale max((y - mean) slope + beta, 0) : 0. `identity`, for dense layers: U = [Z | 1 | 0],
// no adjacency. The U of a first layer is staged instead (fused_stage.cuh).
//
// Source: own; one sparse row and channel by blockDim.x lanes of four columns (one where F does not divide by 4).
// Shapes: y (N, F), u (N, K) panels; indptr (N + 1,), indices, values (nnz,).
// Launch: blocks (x lanes, 256 / x rows and channels), grid (rows C / y, lanes / x). 1850 x 512: 128 x 2, grid (928, 1).
// Traffic: reads 4 F for each entry, of which what rows nearby share comes from L1, writes 4 N K.
extern "C" __global__ void __launch_bounds__(256, 4)
    fused_propagate(float* u, const float* y, const float* stats, const float* gamma, const float* beta,
                    const unsigned char* kept, const int* indptr, const int* indices, const float* values,
                    const int* size, float keep_scale, int F, int C, int K, int capacity, int identity, int round) {
  if (F % 4 == 0) {
    fused::propagate<4>(u, y, stats, gamma, beta, kept, indptr, indices, values, size, keep_scale, F, C, K, capacity,
                        identity, round);
  } else {
    fused::propagate<1>(u, y, stats, gamma, beta, kept, indptr, indices, values, size, keep_scale, F, C, K, capacity,
                        identity, round);
  }
}

// dY = slope (G - dbeta / N - x̂ dgamma / N), written as the panels of its transpose;  V[i, c P + p] = Σ t_values[k]
// dY[t_indices[k], p] over the entries k of row i C + c of the transposed adjacency, or dY itself if `identity`. v null:
// only dY (first layers). sums (2, P) = dbeta, dgamma, folded from parts: one for each 128 rows, or, if graphs_of_part
// is not 0, for so many graphs, at most max_parts. stats null: no batch norm, dY = G.
//
// Source: own; as fused_propagate. dY of a neighbour is made again from its y and g: no wait between the two results.
// Shapes: g, y (N, P); dy_t (P, N), v (N, C P) panels; t_indptr (N C + 1,), t_indices, t_values (nnz,); parts (parts,
//   part_stride) float2.
// Launch: 256 threads for 32 rows and columns, grid (rows / 32, P / 32). 1850 x 512: (58, 16).
// Shared memory: 7 KB, static, among it 4 KB to write whole lines of the transpose; no conflicts.
// Traffic: reads 8 P for each entry and row, writes 4 N P (C + 1), for 3xTF32 (C + 2).
extern "C" __global__ void __launch_bounds__(256, 4)
    fused_propagate_backward(float* dy_t, float* v, float* sums, const float* g, const float* y, const float* stats,
                             const float* parts, const float* gamma, const int* t_indptr, const int* t_indices,
                             const float* t_values, const int* size, int part_stride, int max_parts, int graphs_of_part,
                             int C, int P, int capacity, int identity, int round) {
  const float2* pairs = reinterpret_cast<const float2*>(parts);
  if (P % 4 == 0) {
    fused::propagate_backward<4>(dy_t, v, sums, g, y, stats, pairs, gamma, t_indptr, t_indices, t_values, size,
                                 part_stride, max_parts, graphs_of_part, C, P, capacity, identity, round);
  } else {
    fused::propagate_backward<1>(dy_t, v, sums, g, y, stats, pairs, gamma, t_indptr, t_indices, t_values, size,
                                 part_stride, max_parts, graphs_of_part, C, P, capacity, identity, round);
  }
}

// Y (N, P) = U (N, K) W' (K, P), and of its columns, if stats is given: stats = mean, 1 / sqrt(var + epsilon);
// running = (1 - momentum) running + momentum batch, the variance unbiased (N = 1: as it is).
// fresh: the batch and the weights may come from the kernel directly before; it is waited for at once.
//
// Source: own; moments of warps, tiles and the whole are combined as in batch_norm.cu.
// Launch: 288 threads, grid (P / 64, rows / 128). 1850 x 512: (8, 15).
// Shared memory: dynamic, at least 40 KB: as many stages as fit, of 24 KB, in 3xTF32 32 KB; no bank conflicts.
// Traffic: reads 4 N K for each 64 columns and 4 K P for each 128 rows (from L2), writes 4 N P.
// Requires: `partials` of 2 floats per row tile and column, `counters` 0, one for each 64 columns.
extern "C" __global__ void __launch_bounds__(288, 1)
    fused_product_tf32(float* y, float* stats, float* running_mean, float* running_var, float* partials,
                       unsigned* counters, const float* u, const float* weight, const int* size, float epsilon,
                       float momentum, int P, int K, int capacity, int fresh) {
  fused::product<1>(y, stats, running_mean, running_var, partials, counters, u, weight, size, epsilon, momentum, P, K,
                    capacity, fresh);
}

extern "C" __global__ void __launch_bounds__(288, 1)
    fused_product_3xtf32(float* y, float* stats, float* running_mean, float* running_var, float* partials,
                         unsigned* counters, const float* u, const float* weight, const int* size, float epsilon,
                         float momentum, int P, int K, int capacity, int fresh) {
  fused::product<3>(y, stats, running_mean, running_var, partials, counters, u, weight, size, epsilon, momentum, P, K,
                    capacity, fresh);
}

// G_prev (N, F) = kept and z > 0 ? keep_scale dZ : 0 with dZ = V (N, C P) Wᵀ and z = (y_prev - mean) slope + beta, all
// of the layer before; sums_prev: Σ G_prev and Σ G_prev x̂ of its columns in each 128 rows, unless null.
//
// Source: own.
// Launch, shared memory: as fused_product with F for P. 1850 x 512 x 512: grid (8, 15).
// Traffic: reads 4 N C P for each 64 columns, 4 F C P for each 128 rows, 4 N F; writes 4 N F.
extern "C" __global__ void __launch_bounds__(288, 2)
    fused_product_dx_tf32(float* g_prev, float* sums_prev, const float* v, const float* weight, const float* y_prev,
                          const float* stats_prev, const float* gamma_prev, const float* beta_prev,
                          const unsigned char* kept, const int* size, float keep_scale, int F, int C, int P,
                          int capacity) {
  fused::product_dx<1>(g_prev, reinterpret_cast<float2*>(sums_prev), v, weight, y_prev, stats_prev, gamma_prev,
                       beta_prev, kept, size, keep_scale, F, C, P, capacity);
}

extern "C" __global__ void __launch_bounds__(288, 1)
    fused_product_dx_3xtf32(float* g_prev, float* sums_prev, const float* v, const float* weight, const float* y_prev,
                            const float* stats_prev, const float* gamma_prev, const float* beta_prev,
                            const unsigned char* kept, const int* size, float keep_scale, int F, int C, int P,
                            int capacity) {
  fused::product_dx<3>(g_prev, reinterpret_cast<float2*>(sums_prev), v, weight, y_prev, stats_prev, gamma_prev,
                       beta_prev, kept, size, keep_scale, F, C, P, capacity);
}

// partials[s] (K, P) = Uᵀ dY over the rows of split s < gridDim.z, zeros if it has none; who reads them adds them up.
//
// early: U and dY are older than the kernel before, which runs beside this one; it is waited for at the end.
//
// Source: own. Rows are split because 512 x 512 sums are too few tiles for the multiprocessors.
// Launch: 288 threads, grid (P / 64, K / 128, splits). 1850 x 520 x 512: (8, 5, 3).
// Shared memory: as fused_product.
// Traffic: reads 4 N K for each 64 columns and 4 N P for each 128 of K, writes 4 K P splits.
extern "C" __global__ void __launch_bounds__(288, 1)
    fused_product_dw_tf32(float* partials, const float* u, const float* dy_t, const int* size, int K, int P,
                          int capacity, int early) {
  fused::product_dw<1>(partials, u, dy_t, size, K, P, capacity, early);
}

extern "C" __global__ void __launch_bounds__(288, 1)
    fused_product_dw_3xtf32(float* partials, const float* u, const float* dy_t, const int* size, int K, int P,
                            int capacity, int early) {
  fused::product_dw<3>(partials, u, dy_t, size, K, P, capacity, early);
}

// The weights in the two forms in which the products read them: `forward`, panels of the transpose of W' (P rows, C F +
// C columns), `backward`, panels of W (F rows, the columns of each channel filled up to whole panels). Whoever changes
// the weights may write them so too (`in_panel`). `round`: to 11 bits, for TF32.
//
// Launch: 32 x 8 threads, grid ((C F + C) / 32, P / 32). Traffic: reads 4 K P, writes 8 K P.
extern "C" __global__ void __launch_bounds__(256)
    fused_weight_panels(float* forward, float* backward, const float* weight, const float* bias, int F, int C, int P,
                        int round) {
  fused::wait_for_previous();
  fused::let_next_start();
  fused::pack(forward, backward, weight, bias, F, C, P, round);
}
