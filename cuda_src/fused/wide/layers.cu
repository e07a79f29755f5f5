// The layers of the wide form: about 128 columns and more, where products take most of the time.
//
// fused/shared/fused.cuh has the formulas of a layer, fused/FUSED.md the step. A layer is two kernels forward and three
// backward:
//
//   fused_wide_propagate            U = [A_1 Z | … | A_C Z | a | 0], with Z recomputed from the Y of the layer before
//   fused_wide_product_…            Y = U W', and the moments of its columns: the layer's batch norm
//   fused_wide_propagate_backward   dY from G through batch norm, and V = A_cᵀ dY, channels side by side
//   fused_wide_product_dx_…         dZ = V Wᵀ, G = dZ through dropout and ReLU, and the sums for batch norm's gradient
//   fused_wide_product_dw_…         dW' = Uᵀ dY, in partial sums over rows
//
// G is the gradient by ReLU's input, i.e. by batch norm's output. Products have two precisions: `tf32`, and `3xtf32`, which
// keeps float32's accuracy (fused/wide/gemm.cuh).
//
// Shapes: y, g (N, P), weight (F, C P), bias (C P,), float32, row-major without gaps; u, v, dy_t and the packed weights
//   are panels (fused/wide/gemm.cuh). N = size[BatchSize::N] is known on the device only; grids cover a capacity, and blocks beyond N
//   leave. stats (2, P): mean and 1 / sqrt(var + epsilon); sums (2, P): dbeta = Σ g and dgamma = Σ g x̂. Both are null
//   without batch norm. gamma, beta (P,). In predictions stats and gamma are null, and beta is the shift (`Folding`). kept: a
//   bit per element, eight to a byte, or null without dropout; keep_scale = 1 / (1 - rate). round: whether panels are for
//   TF32; else the residuals follow those of operand B.
// Launch: the kernels of predictions (propagate, product, weights) have members in the grid's third dimension.
// Order: size, weights and adjacency are read before the previous kernel has ended: an earlier one wrote them.
// Determinism: bit-repeatable; every sum has a fixed order; the last block reduces the partial sums.
// Requires: sm_90a for the products (elsewhere they are empty). Any N, F, C, P; no work is wasted where N is a multiple of
//   128 and F and P are multiples of 64. NaN propagates; in 3xTF32 an infinity becomes NaN.

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

template <int PRODUCTS>
__device__ void product(const ProductParams& params) {
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
  if (!exists || N == 0) return;
  params.stats[p] = total.mean;
  params.stats[P + p] = 1.f / sqrtf(total.squares / N + params.epsilon);
  params.running_mean[p] = old_mean + params.momentum * (total.mean - old_mean);
  params.running_var[p] = old_var + params.momentum * (total.squares / max(N - 1, 1) - old_var);
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

using namespace fused;

// ---- entry points ----

// U[i, c F + f] = Σ values[k] Z[j, f] over the entries k of row i with indices[k] = j C + c;  U[i, C F + c] = Σ values[k];
// 0 beyond.  Z = kept ? keep_scale max((y - mean) slope + beta, 0) : 0. `identity`, for dense layers: U = [Z | 1 | 0], no
// adjacency. The U of the first layer is staged instead (fused/shared/stage.cuh).
//
// Source: own; blockDim.x lanes gather one sparse row and channel, four columns each (one where F is no multiple of 4).
// Shapes: see PropagateParams.
// Launch: blocks (x lanes, 256 / x rows and channels), grid (rows C / y, lanes / x). 1850 x 512: 128 x 2, grid (928, 1).
// Traffic: reads 4 F for each entry (from L1 where nearby rows share it), writes 4 N K.
// Order: the first entries of a row are read before the previous kernel has ended.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
    fused_wide_propagate(const __grid_constant__ PropagateParams params) {
  if (params.F % 4 == 0) {
    propagate<4>(params);
  } else {
    propagate<1>(params);
  }
}

// dY = slope (G - dbeta / N - x̂ dgamma / N), written as the panels of its transpose;  V[i, c P + p] = Σ t_values[k]
// dY[t_indices[k], p] over the entries k of row i C + c of the transposed adjacency, or dY itself if `identity`. v null:
// only dY (first layer). sums (2, P) = dbeta, dgamma, reduced from partial sums: one for each 128 rows, or, if
// graphs_per_partial is not 0, one for so many graphs, at most max_partials. stats null: no batch norm, dY = G.
//
// Source: own; as fused_wide_propagate. dY of a neighbour is recomputed from its y and g, so V does not wait for dY.
// Shapes: see PropagateBackwardParams.
// Launch: 256 threads for 32 rows and columns, grid (rows / 32, P / 32). 1850 x 512: (58, 16).
// Shared memory: 7 KB, static; 4 KB of it to write whole lines of the transpose; no bank conflicts.
// Traffic: reads 8 P for each entry and row, writes 4 N P (C + 1), in 3xTF32 (C + 2).
// Waits: __syncthreads when the sums of groups are stored, when columns are set, and when the tile of dY is complete. Before
//   the previous kernel has ended, the first entries of rows are read.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
    fused_wide_propagate_backward(const __grid_constant__ PropagateBackwardParams params) {
  if (params.P % 4 == 0) {
    propagate_backward<4>(params);
  } else {
    propagate_backward<1>(params);
  }
}

// Y (N, P) = U (N, K) W' (K, P). If stats is not null, also the moments of its columns: stats = mean, 1 / sqrt(var +
// epsilon); running = (1 - momentum) running + momentum batch, with the unbiased variance (N = 1: the biased one).
// fresh: the previous kernel may have written the batch and the weights, so the kernel waits for it first.
//
// Source: own; moments are combined as in dense/batch_norm.cu.
// Launch: 288 threads, grid (P / 64, rows / 128). 1850 x 512: (8, 15).
// Shared memory: dynamic, at least 40 KB: as many stages as fit, of 24 KB, in 3xTF32 32 KB; no bank conflicts.
// Traffic: reads 4 N K for each 64 columns and 4 K P for each 128 rows (from L2), writes 4 N P.
// Waits: as fused/wide/gemm.cuh, and __syncthreads around the reductions. A counter for each 64 columns counts tiles; no
//   block waits for it: the last one reduces the moments of all tiles and resets it.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_product_tf32(const __grid_constant__ ProductParams params) {
  product<1>(params.of_member());
}

extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_product_3xtf32(const __grid_constant__ ProductParams params) {
  product<3>(params.of_member());
}

// G_prev (N, F) = kept and z > 0 ? keep_scale dZ : 0 with dZ = V (N, C P) Wᵀ and z = (y_prev - mean) slope + beta, all
// of the layer before. If sums_prev is not null: Σ G_prev and Σ G_prev x̂ of its columns for each 128 rows.
//
// Source: own.
// Launch, shared memory: as fused_wide_product with F for P. 1850 x 512 x 512: grid (8, 15).
// Traffic: reads 4 N C P for each 64 columns, 4 F C P for each 128 rows, 4 N F; writes 4 N F.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)
    fused_wide_product_dx_tf32(const __grid_constant__ ProductDxParams params) {
  product_dx<1>(params);
}

extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_product_dx_3xtf32(const __grid_constant__ ProductDxParams params) {
  product_dx<3>(params);
}

// partials[s] (K, P) = Uᵀ dY over the rows of split s < gridDim.z, or zeros if it has none. The update adds them.
//
// early: the previous kernel wrote neither U nor dY and runs beside this one, which waits for it at the end.
//
// Source: own. Rows are split because 512 x 512 sums are too few tiles for all multiprocessors.
// Launch: 288 threads, grid (P / 64, K / 128, splits). 1850 x 520 x 512: (8, 5, 3).
// Shared memory: as fused_wide_product.
// Traffic: reads 4 N K for each 64 columns and 4 N P for each 128 of K, writes 4 K P splits.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_product_dw_tf32(const __grid_constant__ ProductDwParams params) {
  product_dw<1>(params);
}

extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_product_dw_3xtf32(const __grid_constant__ ProductDwParams params) {
  product_dw<3>(params);
}

// Write the weights in the two forms that the products read: `forward`, panels of the transpose of W' (P rows, C F + C
// columns); `backward`, panels of W (F rows, the columns of each channel filled up to whole panels). In training the update
// writes both, too. `round`: to TF32. For inference gamma is not null, backward is null, and batch norm is folded into the
// weights and the shift (P,).
//
// Launch: 32 x 8 threads, grid ((C F + C) / 32, P / 32). Traffic: reads 4 K P, writes 8 K P.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    fused_wide_weights(const __grid_constant__ WeightPanelsParams params) {
  wait_for_previous();
  pack(params.of_member());
}
