// The phases of the products of wide layers: what follows a product in its block. fused/wide/layers.cu has the kernels with
// their shapes, fused/wide/ranks_layers.cu those of several ranks.
#pragma once

#include "fused/wide/gemm.cuh"
#include "fused/wide/rows.cuh"

namespace fused {

// ---- batch norm by columns ----

// Number, mean and sum of squared distances from the mean (dense/batch_norm.cu).
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

// ---- reductions over the rows of a tile ----

constexpr int ROW_GROUPS = BM / OWN_ROWS;

// Reduce over the row groups of a block; the first group gets the total. All threads call; `slots` holds COMPUTE_THREADS
// values of unused shared memory.
template <class T>
__device__ __forceinline__ void reduce_groups(T& total, T* slots) {
  if (threadIdx.x < COMPUTE_THREADS) slots[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= BN) return;
#pragma unroll
  for (int group = 1; group < ROW_GROUPS; ++group) total = combine(total, slots[group * BN + threadIdx.x]);
}

// Add 1 to a counter that wraps to 0 at `limit`; return its value before. Acquire and release: a later caller sees the
// earlier writes of this block.
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

// Reduce from threads to the tile, and in the last block of a column from all tiles to the matrix. Returns true in the 64
// threads that hold a column's total. `slots` as above.
//   put(value), get(tile)   store the tile's value; load that of another tile
//   store()                 the block's other output, written while the tiles are counted
template <class T, class Put, class Get, class Store>
__device__ bool reduce_tiles(T& total, T* slots, unsigned* counters, int tiles, Put put, Get get, Store store) {
  __shared__ bool is_last;
  const int group = threadIdx.x / BN;
  reduce_groups(total, slots);
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
  reduce_groups(total, slots);
  return group == 0;
}

static_assert(sizeof(Moments) * COMPUTE_THREADS + 4 * BM * TILE_LD <= EPILOGUE_BYTES, "no room after the tile");

// ---- forward ----

struct ProductParams {
  float *y, *stats, *running_mean, *running_var;  // (N, P), (2, P), (P,), (P,)
  float2* partials;                               // (tiles of rows, P)
  unsigned* counters;                             // (P / 64,), zeros
  const float *u, *weight;                        // panels
  const int* size;
  Members members;
  float epsilon, momentum;
  int P, K, capacity, fresh;

  // The arrays of predictions; training does not share launches.
  __device__ __forceinline__ ProductParams of_member() const {
    ProductParams own = *this;
    own.y = members.of_step(y);
    own.u = members.of_step(u);
    own.weight = members.of_step(weight);
    own.size = members.of_step(size);
    return own;
  }
};

// ranks: sets the statistics of a model on several ranks (fused/wide/ranks_layers.cu).
template <int PRODUCTS, class OfRanks = Alone>
__device__ void product(const ProductParams& params, const OfRanks& ranks = {}) {
  if constexpr (!HAS_WARPGROUPS) return;
  if (params.fresh) wait_for_previous();
  const int P = params.P;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, N = params.size[BatchSize::N], tiles = tiles_of(N);
  if (blockIdx.y >= tiles) return;
  const int p = n0 + OwnValues::column();
  const bool multiplies = threadIdx.x < COMPUTE_THREADS, exists = multiplies && p < P;
  OwnValues own;
  const AlongDepth operands = {
      {params.u, params.capacity, BM}, {params.weight, P, min(max(P - n0, 0), BN)}, m0, n0, params.K};
  float old_mean = 0.f, old_var = 0.f;
  const auto prefetch_epilogue = [&] {
    if (params.stats != nullptr && exists) old_mean = params.running_mean[p], old_var = params.running_var[p];
  };
  multiply<PRODUCTS>(own, operands, true, prefetch_epilogue);

  const auto store = [&] {
    if (multiplies) own.store(params.y, m0, n0, N, P);
  };
  if (params.stats == nullptr) return store();

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
  float2* found = params.partials + p;
  const auto put = [&](const Moments& of_tile) {
    if (exists) found[blockIdx.y * static_cast<long long>(P)] = make_float2(of_tile.mean, of_tile.squares);
  };
  const auto get = [&](int tile) {
    if (!exists) return Moments{};
    const float2 of_tile = load_l2(found + tile * static_cast<long long>(P));
    return Moments{static_cast<float>(min(N - tile * BM, BM)), of_tile.x, of_tile.y};
  };
  if (!reduce_tiles(total, reinterpret_cast<Moments*>(epilogue_scratch()), params.counters, tiles, put, get, store))
    return;
  if constexpr (OfRanks::IS_ALONE) {
    if (!exists || N == 0) return;
    params.stats[p] = total.mean;
    params.stats[P + p] = 1.f / sqrtf(total.squares / N + params.epsilon);
    params.running_mean[p] = old_mean + params.momentum * (total.mean - old_mean);
    params.running_var[p] = old_var + params.momentum * (total.squares / max(N - 1, 1) - old_var);
  } else {
    if (exists) ranks.set_statistics(params, total, p, old_mean, old_var);
  }
}

// ---- backward ----

struct ProductDxParams {
  float* g_prev;                                              // (N, F)
  float2* sums_prev;                                          // (tiles of rows, F), or null
  const float *v, *weight;                                    // panels
  const float *y_prev, *stats_prev, *gamma_prev, *beta_prev;  // (N, F), (2, F), (F,), (F,): of the layer before
  const unsigned char* kept;
  const int* size;
  float keep_scale;
  int F, C, P, capacity;
};

template <int PRODUCTS>
__device__ void product_dx(const ProductDxParams& params) {
  if constexpr (!HAS_WARPGROUPS) return;
  const int F = params.F;
  const unsigned char* kept = params.kept;
  const int* size = params.size;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  if (blockIdx.y >= tiles_of(size[BatchSize::N])) return;
  OwnValues own;
  const AlongDepth operands = {{params.v, params.capacity, BM},
                               {params.weight, F, min(max(F - n0, 0), BN)},
                               m0,
                               n0,
                               params.C * ceil_div(params.P, PANEL) * PANEL};
  float y[OWN_ROWS];
  unsigned is_there;  // bit r: dropout kept row r
  Column of;
  const auto own_rows = [&] {  // number of existing rows; computed twice, because registers are short in between
    const bool exists = threadIdx.x < COMPUTE_THREADS && n0 + OwnValues::column() < F;
    return exists ? min(max(size[BatchSize::N] - m0 - OwnValues::first_row(), 0), OWN_ROWS) : 0;
  };
  const auto prefetch_epilogue = [&] {
    const int f = n0 + OwnValues::column(), m = m0 + OwnValues::first_row(), rows = own_rows();
    is_there = ~0u;
    of = f < F ? column_of(params.stats_prev, params.gamma_prev, params.beta_prev, f, F) : Column{0.f, 1.f, 1.f, 0.f};
    const float* row = params.y_prev + static_cast<long long>(m) * F + f;
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
  multiply<PRODUCTS>(own, operands, true, prefetch_epilogue);

  const int f = n0 + OwnValues::column(), N = size[BatchSize::N], rows = own_rows();
  float2 found = make_float2(0.f, 0.f);
#pragma unroll
  for (int r = 0; r < OWN_ROWS; ++r) {
    const float distance = y[r] - of.mean;
    const bool passes = r < rows && (is_there >> r & 1) && distance * of.slope + of.beta > 0.f;
    const float g = passes ? params.keep_scale * own.value[r] : 0.f;
    own.value[r] = g;
    found = combine(found, make_float2(g, passes ? g * (distance * of.inverse) : 0.f));
  }
  if (threadIdx.x < COMPUTE_THREADS) own.store(params.g_prev, m0, n0, N, F);
  if (params.sums_prev == nullptr) return;
  reduce_groups(found, reinterpret_cast<float2*>(epilogue_scratch()));
  if (threadIdx.x < BN && f < F) params.sums_prev[static_cast<long long>(blockIdx.y) * F + f] = found;
}

struct ProductDwParams {
  float* partials;        // (splits, K, P)
  const float *u, *dy_t;  // panels
  const int* size;
  int K, P, capacity, early;
};

template <int PRODUCTS>
__device__ void product_dw(const ProductDwParams& params) {
  if constexpr (!HAS_WARPGROUPS) return;
  const int K = params.K, P = params.P, capacity = params.capacity;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int rows = ceil_div(params.size[BatchSize::N], DEPTH) * DEPTH,
            part = ceil_div(ceil_div(rows, DEPTH), gridDim.z) * DEPTH;
  const int begin = min(static_cast<int>(blockIdx.z) * part, rows), end = min(begin + part, rows);
  OwnValues own;
  const AcrossDepth operands = {
      {params.u, capacity, m0, K}, {params.dy_t, P, min(max(P - n0, 0), BN)}, n0, begin, end, capacity};
  multiply<PRODUCTS>(own, operands, !params.early, [] {});
  if (threadIdx.x < COMPUTE_THREADS)
    own.store(params.partials + static_cast<long long>(blockIdx.z) * K * P, m0, n0, K, P);
  if (params.early) wait_for_previous();
}

}  // namespace fused
