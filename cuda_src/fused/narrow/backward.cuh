// Backward pass of a narrow layer: the gradients of the previous layer and of the weights, in one launch.
//
//   dY = slope (G - dbeta / N - xhat dgamma / N)             recomputed from G and Y wherever it is needed
//   V  = [A_1^T dY | … | A_C^T dY],  dZ_prev = V W^T,  G_prev = dZ_prev where Z_prev > 0 and dropout kept it, scaled
//   dW' = U^T dY                                               (K, P), as partial sums
//
// G is the gradient of the batch norm's output. The first blocks compute G_prev and partial sums of its columns, the others
// partial sums of dW'; neither waits for the other.
// Source: own. Shapes: g_prev (N, F), sums_prev (parts, columns_of(F), 2): sums of G_prev and of G_prev xhat_prev;
//   partials (dw_sums, K, columns_of(P)); sums (parts_of_sums, columns_of(P), 2): one part per tile of rows, or per
//   graph; stats (2, P): mean, inverse; t_indptr (N C + 1,): row i C + c is node i of A_c^T.
// `kind` is a LayerKind: the first layer has only dW'; in a dense layer V = dY. Sizes come from the shape.
// Launch: 512 threads, `dx_blocks` + `dw_blocks`, members in z; each works on tiles of 16 rows. Batch 50 of 19 nodes: 60
//   tiles, for a model alone 60 + 60 blocks.
// Shared memory: dynamic; see `narrow.geometry.backward`. Accesses as in the forward phase; dW' reads rows of U and dY
//   16 bytes at a time; the lanes of half a warp read the same.
// Traffic: reads 8 (nnz P + N P) + 4 (N F + N K + F C P blocks), writes 4 (N F + K P blocks); everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit for a given number of parts, whatever the blocks.
// Requirements: K a multiple of 8; N times F, P and K below 2^31.
#pragma once

#include "fused/narrow/shape.cuh"
#include "fused/narrow/tile.cuh"

namespace fused {

// Inputs of dY: batch norm of the columns of Y, and per column dbeta / N and dgamma / N.
struct OfY {
  Columns columns;
  float *dbeta, *dgamma;
  const float *y, *g;

  __device__ float dy(float y, float g, int p) const {
    return columns.slope[p] * (g - dbeta[p] - columns.column(p).x_hat(y) * dgamma[p]);
  }
};

__device__ __forceinline__ OfY of_y_at(float* shared, const float* y, const float* g, int P) {
  return {columns_at(shared, P), shared + 4 * columns_of(P), shared + 5 * columns_of(P), y, g};
}

// Fill them from `parts` partial sums; all threads call. All loads are issued before the first is used.
__device__ __forceinline__ void set_backward(const OfY& of, float* scratch, const float* stats, const float* gamma,
                                             const float* sums, int parts, int N, int P) {
#pragma unroll 1
  for (int first = 0; first < P; first += GROUP) {
    const int p = first + threadIdx.x / COLUMN_LANES;
    float mean = 0.f, inverse = 1.f, slope = 1.f;
    if (gamma && p < P) mean = stats[p], inverse = stats[P + p], slope = gamma[p];
    const float2 sum = reduce_parts(scratch, sums, parts, first, P, [](float4& to, int, float4 value) {
      to.x += value.x, to.y += value.y, to.z += value.z, to.w += value.w;
    });
    if (p < P && threadIdx.x % COLUMN_LANES == 0) {
      of.columns.mean[p] = mean, of.columns.inverse[p] = inverse, of.columns.slope[p] = slope * inverse;
      of.dbeta[p] = sum.x / N, of.dgamma[p] = sum.y / N;
    }
  }
}

// A warp computes a row of V, as NeighbourActivations does for U. The entries of rows i C … i C + C - 1 of the transpose are
// the neighbours of node i, channel by channel.
struct NeighbourGradients {
  int begin, n, node, channel;
  float value;
  float2 y[BATCH], g[BATCH];

  __device__ __forceinline__ void find(const int* t_indptr, int i, bool exists, int C, bool identity) {
    begin = i, n = exists;
    if (identity) return;
    begin = exists ? t_indptr[i * C] : 0;
    n = exists ? t_indptr[(i + 1) * C] - begin : 0;
  }
  __device__ __forceinline__ void open(const int* t_indptr, const int* t_indices, const float* t_values, int i, int C,
                                       bool identity) {
    node = begin, channel = 0, value = 1.f;
    if (!identity) read(t_indptr, t_indices, t_values, i, C, threadIdx.x % 32);
  }

  __device__ __forceinline__ void read(const int* t_indptr, const int* t_indices, const float* t_values, int i, int C,
                                       int k) {
    node = channel = 0;
    value = 0.f;
    if (k >= n) return;
    const int entry = begin + k;
    node = t_indices[entry];
    value = t_values[entry];
#pragma unroll 1
    for (int c = 1; c < C; ++c) channel += entry >= t_indptr[i * C + c];
  }

  // Load BATCH neighbours' values from a (N, P).
  __device__ __forceinline__ void fetch(float2 (&to)[BATCH], const float* from, int k, int p, int P) const {
    const int column = p + 2 * (threadIdx.x % 32);
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const int at = __shfl_sync(FULL_WARP, node, (k + u) % 32) * P + column;
      to[u] = load2(from + at, k + u < n && column < P, k + u < n && column + 1 < P, P % 2 == 0);
    }
  }

  __device__ __forceinline__ void add(float* row, const OfY& of, int k, int p, int C, int P) const {
    const int column = p + 2 * (threadIdx.x % 32), safe = min(column, columns_of(P) - 2);
    const float2 mean = *reinterpret_cast<const float2*>(of.columns.mean + safe);
    const float2 inverse = *reinterpret_cast<const float2*>(of.columns.inverse + safe);
    const float2 slope = *reinterpret_cast<const float2*>(of.columns.slope + safe);
    const float2 dbeta = *reinterpret_cast<const float2*>(of.dbeta + safe);
    const float2 dgamma = *reinterpret_cast<const float2*>(of.dgamma + safe);
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const float factor = __shfl_sync(FULL_WARP, value, (k + u) % 32);
      if (k + u < n) {
        sum.x += factor * (slope.x * (g[u].x - dbeta.x - (y[u].x - mean.x) * inverse.x * dgamma.x));
        sum.y += factor * (slope.y * (g[u].y - dbeta.y - (y[u].y - mean.y) * inverse.y * dgamma.y));
      }
      if (C > 1 || u == BATCH - 1) {  // the next entry may belong to another channel
        float* target = row + (C > 1 ? __shfl_sync(FULL_WARP, channel, (k + u) % 32) * columns_of(P) : 0) + column;
        if (column < P) target[0] += sum.x;
        if (column + 1 < P) target[1] += sum.y;
        sum = make_float2(0.f, 0.f);
      }
    }
  }
};

// A warp's row of a (N, columns) matrix on its way to a tile: the first four columns of each lane are prefetched.
struct PrefetchedRow {
  float4 held;

  // The columns from q on, 4 at a time; zeros beyond the last row and column.
  __device__ __forceinline__ static float4 load(const float* from, int i, int N, int columns, int q) {
    return i < N ? load4(from + i * columns + q, columns - q, columns % 4 == 0) : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __device__ __forceinline__ void fetch(const float* from, int i, int N, int columns) {
    const int q = 4 * (threadIdx.x % 32);
    if (q < columns) held = load(from, i, N, columns, q);
  }
  __device__ __forceinline__ void put(float* row, const float* from, int i, int N, int columns) const {
#pragma unroll 1
    for (int q = 4 * (threadIdx.x % 32); q < columns; q += 128)
      *reinterpret_cast<float4*>(row + q) = q < 128 ? held : load(from, i, N, columns, q);
  }
};

// A block's rows for dW': U, and Y, which is replaced by dY; a warp has a row. The next tile is prefetched into registers,
// with the first GROUP columns of its G.
struct RowTiles {
  float *u_row, *dy_row, *u, *dy;
  int u_stride, dy_stride, fetched;  // the tile in registers
  PrefetchedRow of_u, of_y;
  float g[GROUP / 32];

  __device__ RowTiles(float* shared, int P, int K)
      : u(shared), dy(shared + TILE * (K + 4)), u_stride(K + 4), dy_stride(columns_of(P) + 4), fetched(-1), g() {
    u_row = u + threadIdx.x / 32 * u_stride, dy_row = dy + threadIdx.x / 32 * dy_stride;
  }

  __device__ __forceinline__ void fetch(const float* from_u, const float* y, int first, int N, int P, int K) {
    const int i = first + threadIdx.x / 32;
    of_u.fetch(from_u, i, N, K);
    of_y.fetch(y, i, N, P);
    fetched = first;
  }
  __device__ __forceinline__ void fetch_g(const float* from_g, int first, int N, int P) {
    const int i = first + threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < GROUP / 32; ++c) g[c] = i < N && lane + 32 * c < P ? from_g[i * P + lane + 32 * c] : 0.f;
  }

  // Store the tile that is prefetched, with Y.
  __device__ __forceinline__ void put(const float* from_u, const float* y, int N, int P, int K) const {
    const int i = fetched + threadIdx.x / 32;
    of_u.put(u_row, from_u, i, N, K);
    of_y.put(dy_row, y, i, N, P);
  }
  // Replace Y by dY; a warp accesses only the row that it stored.
  __device__ __forceinline__ void finish(const OfY& of, int N, int P) const {
    const int i = fetched + threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncwarp();
    const auto set = [&](int p, float g_of_row) { dy_row[p] = i < N && p < P ? of.dy(dy_row[p], g_of_row, p) : 0.f; };
#pragma unroll
    for (int c = 0; c < GROUP / 32; ++c)
      if (lane + 32 * c < columns_of(P)) set(lane + 32 * c, g[c]);
#pragma unroll 1
    for (int p = lane + GROUP; p < columns_of(P); p += 32) set(p, i < N && p < P ? of.g[i * P + p] : 0.f);
  }
};
static_assert(TILE == WARPS, "a warp has one row of a tile");

// How the tiles of rows are dealt to the partial sums of dW'. Tiles are dealt to `parts` (RowsOfParts), parts to `sums`: as
// many sums as parts, or LANES sums, which the update's lanes would otherwise add in the same order. So both have equal bits.
struct TilesOfSums {
  int N, parts, sums;

  __device__ __forceinline__ bool has(int sum) const { return sum < min(sums, parts_in_use(N, parts)); }
  // The tile after one of part `part` in the sum that has this part; N: none.
  __device__ __forceinline__ int next(int& part, int first) const { return next_tile(part, first, parts, sums, N); }
};

// A block's partial sums of dW', 4 x 4 outputs per thread. `tiles` hold the first tile of rows, U and Y. If there are more outputs,
// all tiles are read again.
__device__ __forceinline__ void weight_gradient(float* partials, RowTiles& tiles, const OfY& of, const float* u,
                                                const TilesOfSums& dealt, int block, int blocks, int P, int K) {
  const int columns = columns_of(P) / 4, outputs = K / 4 * columns, N = dealt.N;
  const auto fetch = [&](int first) {
    tiles.fetch(u, of.y, first, N, P, K);
    tiles.fetch_g(of.g, first, N, P);
  };
  bool is_put = true;
#pragma unroll 1
  for (int s = block; dealt.has(s); s += blocks) {
#pragma unroll 1
    for (int group = 0; group < outputs; group += THREADS) {
      const int output = group + threadIdx.x, k = output / columns * 4, p = output % columns * 4;
      float4 total[4] = {}, sum[4] = {};  // of the parts before, and of this part
      int part = s;
#pragma unroll 1
      for (int first = s * TILE; first < N;) {
        if (tiles.fetched != first) fetch(first);
        if (!is_put) tiles.put(u, of.y, N, P, K);
        is_put = false;
        tiles.finish(of, N, P);
        __syncthreads();  // the tiles are filled
        int next_part = part;
        const int next = dealt.next(next_part, first), following = s + blocks;
        const bool is_last_group = group + THREADS >= outputs, has_more = SHARES_LAUNCHES && dealt.has(following);
        if (is_prefetched(next, N)) {
          fetch(next);
        } else if (is_last_group && has_more) {
          fetch(following * TILE);
        }
        if (output < outputs) {
#pragma unroll 4
          for (int r = 0; r < TILE; ++r) {
            const float4 a = *reinterpret_cast<const float4*>(tiles.u + r * tiles.u_stride + k);
            const float4 b = *reinterpret_cast<const float4*>(tiles.dy + r * tiles.dy_stride + p);
            sum[0] = add_product(sum[0], a.x, b);
            sum[1] = add_product(sum[1], a.y, b);
            sum[2] = add_product(sum[2], a.z, b);
            sum[3] = add_product(sum[3], a.w, b);
          }
        }
        first = next;
        if (first < N || !is_last_group || has_more) __syncthreads();  // the tiles may be overwritten
        if (first < N && next_part == part) continue;
        part = next_part;
        if constexpr (SHARES_LAUNCHES) {
#pragma unroll
          for (int r = 0; r < 4; ++r) total[r] = combine(total[r], sum[r]), sum[r] = make_float4(0.f, 0.f, 0.f, 0.f);
        }
      }
      if (output < outputs) {
        float* out = partials + (static_cast<long long>(s) * K + k) * columns_of(P) + p;
#pragma unroll
        for (int r = 0; r < 4; ++r)
          *reinterpret_cast<float4*>(out + r * columns_of(P)) = SHARES_LAUNCHES ? total[r] : sum[r];
      }
    }
    if constexpr (!SHARES_LAUNCHES) break;  // a block has one sum
  }
}

// Outputs, inputs and sizes of a layer; `_prev` is the previous layer, null in the first layer.
struct NarrowBackwardParams {
  float *g_prev, *sums_prev, *partials;
  const int* size;
  const float *y, *g, *stats, *gamma, *sums, *u, *y_prev, *stats_prev, *gamma_prev, *beta_prev;
  const unsigned char* kept_prev;
  const int *t_indptr, *t_indices;
  const float *t_values, *packed;
  const MemberValues* of_dropout;
  Members members;
  // Of tiles; of `sums` and whether these are of graphs; of dW'; blocks of either kind.
  int parts, parts_of_sums, sums_are_of_graphs, dw_sums, dx_blocks, dw_blocks;
  int F, C, P, K, kind;

  __device__ __forceinline__ Statistics statistics_prev() const {
    return final_statistics(members, stats_prev, gamma_prev, beta_prev);
  }
  // The number of partial sums of G with rows or graphs, for a batch of N nodes.
  __device__ __forceinline__ int sums_in_use(int N) const {
    return sums == nullptr      ? 0
           : sums_are_of_graphs ? min(parts_of_sums, members.of_step(size)[BatchSize::B])
                                : parts_in_use(N, parts_of_sums);
  }
};

// Shared memory of a block.
template <class Shape>
struct BackwardShared {
  float* partial;
  OfY of;
  Columns prev;
  float* sums;  // (columns_of(F), 2)
  float* tile;  // of V, or of U and dY

  __device__ __forceinline__ BackwardShared(float4* shared4, const NarrowBackwardParams& params, const Shape& shape)
      : partial(reinterpret_cast<float*>(shared4)),
        of(of_y_at(partial + PARTIAL_FLOATS, params.members.of_step(params.y), params.members.of_step(params.g),
                   shape.P)),
        prev(columns_at(of.dgamma + columns_of(shape.P), shape.F)),
        sums(prev.beta + columns_of(shape.F)),
        tile(sums + 2 * columns_of(shape.F)) {}
};

// Blocks that compute dW'.
template <class Shape>
__device__ __forceinline__ void backward_dw(const NarrowBackwardParams& params, const Shape& shape,
                                            const BackwardShared<Shape>& at, int block) {
  const int N = params.members.of_step(params.size)[BatchSize::N], P = shape.P, K = shape.K;
  if (blockIdx.x > 0 && (block >= params.dw_blocks || block * TILE >= N)) return;  // makes room for the next kernel
  RowTiles tiles(at.tile, P, K);
  tiles.fetch(params.members.of_step(params.u), params.members.of_step(params.y), block * TILE, N, P,
              K);  // kernels before the previous one wrote U and Y
  tiles.put(params.members.of_step(params.u), params.members.of_step(params.y), N, P, K);
  wait_for_previous();
  if (block * TILE >= N) return;
  tiles.fetch_g(params.members.of_step(params.g), block * TILE, N, P);
  set_backward(at.of, at.partial, params.members.of_step(params.stats), params.members.of_model_or_null(params.gamma),
               params.members.of_step(params.sums), params.sums_in_use(N), N, P);
  __syncthreads();
  const TilesOfSums dealt = {N, params.parts, params.dw_sums};
  weight_gradient(params.members.of_step(params.partials), tiles, at.of, params.members.of_step(params.u), dealt, block,
                  params.dw_blocks, P, K);
}

// The warp's row of V, from `gather`, which has already fetched its first neighbours.
template <class Shape>
__device__ __forceinline__ void fill_row(float* row, NeighbourGradients& gather, const NarrowBackwardParams& params,
                                         const Shape& shape, const OfY& of, int i) {
  const int C = shape.C, P = shape.P, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int q = 4 * lane; q < C * columns_of(P) + 4; q += 128)
    *reinterpret_cast<float4*>(row + q) = make_float4(0.f, 0.f, 0.f, 0.f);
  __syncwarp();
#pragma unroll 1
  for (int k = 0; k < gather.n; k += BATCH) {
    if (k > 0 && k % 32 == 0)
      gather.read(params.members.of_step(params.t_indptr), params.members.of_step(params.t_indices),
                  params.members.of_step(params.t_values), i, C, k + lane);
#pragma unroll 1
    for (int p = 0; p < P; p += 64) {
      if (k + p > 0) {
        gather.fetch(gather.y, params.members.of_step(params.y), k, p, P);
        gather.fetch(gather.g, params.members.of_step(params.g), k, p, P);
      }
      gather.add(row, of, k, p, C, P);
    }
  }
}

// Blocks that compute G_prev.
template <class Shape>
__device__ __forceinline__ void backward_dx(const NarrowBackwardParams& params, const Shape& shape,
                                            const BackwardShared<Shape>& at, int block) {
  const int N = params.members.of_step(params.size)[BatchSize::N], F = shape.F, C = shape.C, P = shape.P,
            warp = threadIdx.x / 32;
  if (blockIdx.x > 0 && block * TILE >= N) return;  // makes room for the next kernel
  const float keep_scale = shape.values(params.members.of_model_or_null(params.of_dropout)).keep_scale;
  const int packed_stride = columns_of(P), width = C * packed_stride, stride = width + 4;
  Weights<2> weights;
  const bool is_alone = F <= GROUP && width <= weights.CHUNK;  // weights stay in registers for all tiles
  NeighbourGradients gather;
  float2 y_own = make_float2(0.f, 0.f);  // Y of the previous layer, for this thread's elements of the first tile
  // Kernels before the previous one wrote Y and the previous layer's statistics; G, its sums and stats are newer.
  weights.load_transposed(params.members.of_step(params.packed), 0, width, first_column(), packed_stride, F);
  const auto find = [&](int i) {
    gather.find(params.members.of_step(params.t_indptr), i, i < N, C, shape.kind == DENSE);
  };
  const auto open = [&](int i) {
    gather.open(params.members.of_step(params.t_indptr), params.members.of_step(params.t_indices),
                params.members.of_step(params.t_values), i, C, shape.kind == DENSE);
  };
  find(block * TILE + warp);
  open(block * TILE + warp);
  gather.fetch(gather.y, params.members.of_step(params.y), 0, 0, P);
  const auto y_at = [&](int i, int f) {
    return load2(params.members.of_step(params.y_prev) + i * F + f, i < N && f < F, i < N && f + 1 < F, F % 2 == 0);
  };
  y_own = y_at(block * TILE + own_row(), own_column());
  set_columns(at.prev, at.partial, params.statistics_prev(), N, F, false);
  wait_for_previous();
  if (block * TILE >= N) return;

  gather.fetch(gather.g, params.members.of_step(params.g), 0, 0, P);
  set_backward(at.of, at.partial, params.members.of_step(params.stats), params.members.of_model_or_null(params.gamma),
               params.members.of_step(params.sums), params.sums_in_use(N), N, P);
  for (int f = threadIdx.x; f < 2 * columns_of(F); f += THREADS) at.sums[f] = 0.f;
  int part = block;
  bool is_first = true;
#pragma unroll 1
  for (int first = part * TILE; first < N;) {
    const int rows = min(TILE, N - first);
    __syncthreads();  // columns and sums are filled; all threads have read the previous tile
    if (!SHARES_LAUNCHES && !is_first) {
      find(first + warp);
      open(first + warp);
      gather.fetch(gather.y, params.members.of_step(params.y), 0, 0, P);
      gather.fetch(gather.g, params.members.of_step(params.g), 0, 0, P);
    }
    fill_row(at.tile + warp * stride, gather, params, shape, at.of, first + warp);
    __syncthreads();
    int next_part = part;
    const int next = next_tile(next_part, first, params.parts, params.dx_blocks, N);
    if (is_prefetched(next, N)) find(next + warp);
#pragma unroll 1
    for (int group = 0; group < F; group += GROUP) {
      const int place = (first + own_row()) * F + group + own_column();
      const float2 y = is_first && group == 0 ? y_own : y_at(first + own_row(), group + own_column());
      float4 share[4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < width; chunk += weights.CHUNK) {
        if (!is_alone && !(is_first && group + chunk == 0))
          weights.load_transposed(params.members.of_step(params.packed), chunk, width, group + first_column(),
                                  packed_stride, F);
        add_chunk(share, at.tile, stride, chunk, width, weights);
      }
      if (group == 0 && is_prefetched(next, N)) open(next + warp);
      const float2 dz = reduce_slices(share, at.partial);
      if (group == 0 && is_prefetched(next, N)) {
        gather.fetch(gather.y, params.members.of_step(params.y), 0, 0, P);
        gather.fetch(gather.g, params.members.of_step(params.g), 0, 0, P);
      }
      float2 of_columns[2] = {};  // G and G xhat
      // Moved to the member here: held from the start, it would take registers that sm_86 lacks.
      const unsigned char* kept_prev = shape.kept(params.members.of_step_or_null(params.kept_prev));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int f = group + own_column() + c;
        if (own_row() >= rows || f >= F) continue;
        const Column column = at.prev.column(f);
        const float own_y = c == 0 ? y.x : y.y;
        const bool is_open = column.normal(own_y) > 0.f && is_kept(kept_prev, place + c);
        of_columns[c].x = is_open ? (c == 0 ? dz.x : dz.y) * keep_scale : 0.f;
        of_columns[c].y = of_columns[c].x * column.x_hat(own_y);
      }
      store_pair(params.members.of_step(params.g_prev) + place, make_float2(of_columns[0].x, of_columns[1].x),
                 own_row() < rows ? F - group - own_column() : 0, F % 2 == 0);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int f = group + own_column() + c;
        float2 sum = of_columns[c];
        sum = make_float2(sum_of_rows(sum.x), sum_of_rows(sum.y));
        if (own_row() == 0 && f < F) at.sums[2 * f] += sum.x, at.sums[2 * f + 1] += sum.y;
      }
      __syncthreads();  // `partial` may be overwritten
    }
    is_first = false;
    first = next;
    if (first < N && next_part == part) continue;
    for (int f = threadIdx.x; params.sums_prev && f < 2 * columns_of(F); f += THREADS) {
      params.members.of_step(params.sums_prev)[part * 2 * columns_of(F) + f] = at.sums[f];
      if (SHARES_LAUNCHES) at.sums[f] = 0.f;
    }
    part = next_part;
  }
}

template <class Shape>
__device__ __forceinline__ void backward_phase(const NarrowBackwardParams& params, float4* shared4) {
  const Shape shape(params);
  const BackwardShared<Shape> at(shared4, params, shape);
  const int block = blockIdx.x;
  if constexpr (!Shape::IS_FIRST) {
    if (shape.kind != FIRST && block < params.dx_blocks) {
      backward_dx(params, shape, at, block);
    } else {
      backward_dw(params, shape, at, block - params.dx_blocks);
    }
  } else {
    backward_dw(params, shape, at, block);
  }
}

}  // namespace fused
