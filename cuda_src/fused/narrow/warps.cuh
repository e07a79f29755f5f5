// Narrow phases in which a warp has a whole tile, for layers of 64 columns and 1 channel in large cohorts. No kernels here.
//
// Parameters, results and their bits are those of `forward_phase` and `backward_phase`. There, all warps of a block share a
// tile and meet at four barriers: a tile is done early, as a model alone needs. Here, a warp gathers its 16 rows and
// multiplies them without any barrier: more work is done at once, as a cohort needs. Weights are in shared memory.
//
// A lane owns rows lane / 8 + 4 j and columns 4 (lane % 8) … + 3, and these + 32. Sums have the order of fused/narrow/tile.cuh:
// a product is the sum of SLICES slices, a sum over rows first adds rows r and r + 8, then r + 4, r + 2 and r + 1. Products that
// it adds are rounded first: a multiply-add would have other bits.
// Launch: 512 threads, members in z; the warps of all blocks of a member share its tiles. Batch 50 of 19 nodes, 64 members on 132
//   multiprocessors: 60 tiles, 2 blocks a member. Batches with more tiles than partial sums run the phases of blocks.
// Shared memory: dynamic; see `narrow.geometry.forward_of_warps`, which has room for both. Lanes read 8 x 16 bytes of a row of
//   weights, 4 x 16 bytes of rows of the tile, K + 4 floats apart: no bank conflicts.
// Traffic and determinism: as the other phases.
#pragma once

#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"

namespace fused {

static_assert(SHARES_LAUNCHES, "a model alone runs the kernels of fused/narrow/step.cu");

constexpr int LANE_ROWS = 4;                  // rows of a lane
constexpr int LANE_QUADS = 2;                 // groups of four columns of a lane
constexpr int TRANSPOSED_STRIDE = GROUP + 4;  // of transposed weights: the transposition has two-way bank conflicts
constexpr int COLUMNS_OF_WARPS = 10 * GROUP;  // floats: columns of Y with dbeta / N and dgamma / N, and of Y_prev

// The row of the tile, and the first column, of a lane's outputs.
__device__ __forceinline__ int lane_row(int j) { return threadIdx.x % 32 / 8 + LANE_ROWS * j; }
__device__ __forceinline__ int lane_column(int h) { return threadIdx.x % 8 * 4 + GROUP / LANE_QUADS * h; }

// A lane's outputs of a tile: four columns of row lane_row(j) from column lane_column(h) on.
struct LaneOutputs {
  float of[LANE_ROWS][LANE_QUADS][4];

  __device__ __forceinline__ float4 quad(int j, int h) const {
    return make_float4(of[j][h][0], of[j][h][1], of[j][h][2], of[j][h][3]);
  }

  // tile (TILE, K) x weights (K, GROUP), in the order of `add_chunk` and `reduce_slices`.
  __device__ __forceinline__ void multiply(const float* tile, int tile_stride, const float* weights, int stride,
                                           int K) {
    const float* rows = tile + lane_row(0) * tile_stride;
#pragma unroll
    for (int j = 0; j < LANE_ROWS; ++j)
#pragma unroll
      for (int h = 0; h < LANE_QUADS; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) of[j][h][i] = 0.f;
#pragma unroll 1
    for (int slice = 0; slice < SLICES; ++slice) {
      float4 sum[LANE_ROWS][LANE_QUADS] = {};
#pragma unroll 1
      for (int k = 4 * slice; k < K; k += 4 * SLICES) {
        float4 x[LANE_ROWS];
#pragma unroll
        for (int j = 0; j < LANE_ROWS; ++j)
          x[j] = *reinterpret_cast<const float4*>(rows + LANE_ROWS * j * tile_stride + k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float4 w[LANE_QUADS];
#pragma unroll
          for (int h = 0; h < LANE_QUADS; ++h)
            w[h] = *reinterpret_cast<const float4*>(weights + (k + i) * stride + lane_column(h));
#pragma unroll
          for (int j = 0; j < LANE_ROWS; ++j)
#pragma unroll
            for (int h = 0; h < LANE_QUADS; ++h)
              sum[j][h] = add_product(sum[j][h], i == 0 ? x[j].x : i == 1 ? x[j].y : i == 2 ? x[j].z : x[j].w, w[h]);
        }
      }
#pragma unroll
      for (int j = 0; j < LANE_ROWS; ++j)
#pragma unroll
        for (int h = 0; h < LANE_QUADS; ++h) {
          of[j][h][0] += sum[j][h].x, of[j][h][1] += sum[j][h].y;
          of[j][h][2] += sum[j][h].z, of[j][h][3] += sum[j][h].w;
        }
    }
  }

  // Store the first `rows` rows of a tile to `to` (TILE, GROUP).
  __device__ __forceinline__ void store(float* to, int rows) const {
#pragma unroll
    for (int j = 0; j < LANE_ROWS; ++j)
#pragma unroll
      for (int h = 0; h < LANE_QUADS; ++h)
        if (lane_row(j) < rows) *reinterpret_cast<float4*>(to + lane_row(j) * GROUP + lane_column(h)) = quad(j, h);
  }
};

// Sum over the rows of a column, of which this lane has four, in the order of `sum_of_rows`; each of its lanes gets it.
__device__ __forceinline__ float sum_of_lane_rows(const float (&value)[LANE_ROWS]) {
  float sum = __fadd_rn(__fadd_rn(value[0], value[2]), __fadd_rn(value[1], value[3]));
  sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 16));
  return __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 8));
}

// The warp's tile (TILE, GROUP) of sums over neighbours. Half a warp has a row, a lane four columns; entries are added in the order
// of NeighbourActivations and NeighbourGradients. `Source::load` loads a neighbour; it is added with a factor.
template <class Source>
__device__ __forceinline__ void gather_tile(float* tile, int stride, const int* indptr, const int* indices,
                                            const float* values, int first, int N, const Source& source) {
  const int lane = threadIdx.x % 32, half = lane / 16, own = lane % 16, column = 4 * own;
  const int place = lane <= TILE ? indptr[min(first + lane, N)] : 0;
#pragma unroll 1
  for (int pair = 0; pair < TILE / 2; pair += Source::PAIRS) {
    int begin[Source::PAIRS] = {}, n[Source::PAIRS] = {}, node[Source::PAIRS] = {};
    float value[Source::PAIRS] = {};
    typename Source::Neighbour near[Source::PAIRS][BATCH];
    const auto read = [&](int u, int k) {
      node[u] = k + own < n[u] ? indices[begin[u] + k + own] : 0;
      value[u] = k + own < n[u] ? values[begin[u] + k + own] : 0.f;
    };
    const auto load = [&](int u, int k) {
#pragma unroll
      for (int e = 0; e < BATCH; ++e) {
        const int at = __shfl_sync(FULL_WARP, node[u], (k + e) % 16, 16) * GROUP + column;
        near[u][e] = source.load(at, k + e < n[u]);
      }
    };
    const auto add = [&](float4& total, int u, int k) {
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int e = 0; e < BATCH; ++e) {
        const float factor = __shfl_sync(FULL_WARP, value[u], (k + e) % 16, 16);
        const float4 term = source.term(near[u][e]);
        if (k + e < n[u])
          sum.x += factor * term.x, sum.y += factor * term.y, sum.z += factor * term.z, sum.w += factor * term.w;
      }
      total = combine(total, sum);
    };
#pragma unroll
    for (int u = 0; u < Source::PAIRS; ++u) {
      const int row = 2 * (pair + u) + half;
      begin[u] = __shfl_sync(FULL_WARP, place, row), n[u] = __shfl_sync(FULL_WARP, place, row + 1) - begin[u];
      read(u, 0);
    }
#pragma unroll
    for (int u = 0; u < Source::PAIRS; ++u) load(u, 0);
#pragma unroll
    for (int u = 0; u < Source::PAIRS; ++u) {
      float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
      add(total, u, 0);
      const int most = max(n[u], __shfl_xor_sync(FULL_WARP, n[u], 16));
#pragma unroll 1
      for (int k = BATCH; k < most; k += BATCH) {
        if (k % 16 == 0) read(u, k);
        load(u, k);
        add(total, u, k);
      }
      *reinterpret_cast<float4*>(tile + (2 * (pair + u) + half) * stride + column) = total;
    }
  }
}

__device__ __forceinline__ float4 load_quad(const float* from, bool exists) {
  return exists ? *reinterpret_cast<const float4*>(from) : make_float4(0.f, 0.f, 0.f, 0.f);
}

// Four columns of a Columns array, for a lane of half a warp.
__device__ __forceinline__ float4 quad_of(const float* columns) {
  return reinterpret_cast<const float4*>(columns)[threadIdx.x % 16];
}

// Activations of the previous layer: Z = relu(norm(Y)).
struct Activations {
  static constexpr int PAIRS = 2;  // of rows whose neighbours a warp loads at once
  using Neighbour = float4;
  const float* y;
  float4 mean, slope, beta;

  __device__ __forceinline__ Activations(const float* y, const Columns& of)
      : y(y), mean(quad_of(of.mean)), slope(quad_of(of.slope)), beta(quad_of(of.beta)) {}
  __device__ __forceinline__ Neighbour load(int at, bool exists) const { return load_quad(y + at, exists); }
  __device__ __forceinline__ float4 term(const Neighbour& y) const {
    return make_float4(positive((y.x - mean.x) * slope.x + beta.x), positive((y.y - mean.y) * slope.y + beta.y),
                       positive((y.z - mean.z) * slope.z + beta.z), positive((y.w - mean.w) * slope.w + beta.w));
  }
};

// dY, recomputed from Y and G.
struct Gradients {
  static constexpr int PAIRS = 1;
  struct Neighbour {
    float4 y, g;
  };
  const float *y, *g;
  float4 mean, inverse, slope, dbeta, dgamma;

  __device__ __forceinline__ explicit Gradients(const OfY& of)
      : y(of.y),
        g(of.g),
        mean(quad_of(of.columns.mean)),
        inverse(quad_of(of.columns.inverse)),
        slope(quad_of(of.columns.slope)),
        dbeta(quad_of(of.dbeta)),
        dgamma(quad_of(of.dgamma)) {}
  __device__ __forceinline__ Neighbour load(int at, bool exists) const {
    return {load_quad(y + at, exists), load_quad(g + at, exists)};
  }
  __device__ __forceinline__ float4 term(const Neighbour& at) const {
    return make_float4(slope.x * (at.g.x - dbeta.x - (at.y.x - mean.x) * inverse.x * dgamma.x),
                       slope.y * (at.g.y - dbeta.y - (at.y.y - mean.y) * inverse.y * dgamma.y),
                       slope.z * (at.g.z - dbeta.z - (at.y.z - mean.z) * inverse.z * dgamma.z),
                       slope.w * (at.g.w - dbeta.w - (at.y.w - mean.w) * inverse.w * dgamma.w));
  }
};

// The member's arrays of the step. Each tile moves its pointers anew from one register: held for all tiles, they take registers
// that the product needs, so the compiler must not see that the distance stays.
struct OwnArrays {
  unsigned units;

  __device__ __forceinline__ explicit OwnArrays(unsigned units_of_step) : units(units_of_step) {
    asm volatile("" : "+r"(units));
  }
  template <class T>
  __device__ __forceinline__ T* operator()(T* first) const {
    return Members::move(first, units);
  }
};

// ---- forward ----

template <class Shape>
__device__ __forceinline__ void forward_phase_of_warps(const NarrowForwardParams& params, float4* shared4) {
  const Shape shape(params);
  const int K = shape.K, stride = K + 4, block = blockIdx.x, lane = threadIdx.x % 32;
  float* weights = reinterpret_cast<float*>(shared4);  // (K, GROUP)
  const Columns columns = columns_at(weights + K * GROUP, GROUP);
  float* scratch = weights + K * GROUP + COLUMNS_OF_WARPS;  // then tiles (WARPS, TILE, K + 4)
  float* tile = scratch + threadIdx.x / 32 * TILE * stride;

  if (Shape::IS_FIRST) wait_for_previous();  // for the update, which writes weights and batch
  const int N = params.members.of_step(params.size)[BatchSize::N];
  if (N > params.parts * TILE) return forward_phase<Shape>(params, shared4);  // several tiles a part
  if (block > 0 && block * TILE >= N) return;                                 // makes room for the next kernel
  const float4* packed = reinterpret_cast<const float4*>(params.members.of_step(params.packed));
#pragma unroll 4
  for (int e = threadIdx.x; e < K * GROUP / 4; e += THREADS) shared4[e] = packed[e];
  if (!Shape::IS_FIRST) wait_for_previous();
  if (block * TILE >= N) return;
  if (!Shape::IS_FIRST) set_columns(columns, scratch, params.statistics_prev(), N, GROUP, block == 0);
  __syncthreads();  // weights and columns are filled
  const unsigned units = params.members.units_of_step();

#pragma unroll 1
  for (int part = threadIdx.x / 32 * gridDim.x + block; part * TILE < N; part += WARPS * gridDim.x) {
    const OwnArrays own(units);
    const int first = part * TILE, rows = min(TILE, N - first), quads = K / 4;
    if constexpr (Shape::IS_FIRST) {  // x has rows up to the end of the last tile
      const float* x = own(params.x) + first * params.x_stride;
#pragma unroll 8
      for (int r = 0; r < TILE; ++r)
        if (lane < quads)
          reinterpret_cast<float4*>(tile + r * stride)[lane] =
              reinterpret_cast<const float4*>(x + r * params.x_stride)[lane];
    } else {
      const float row_sum = lane < rows ? own(params.x)[(first + lane) * params.x_stride] : 0.f;
      gather_tile(tile, stride, own(params.indptr), own(params.indices), own(params.values), first, N,
                  Activations(own(params.y_prev), columns));
      if (lane < TILE) {
        float4* end = reinterpret_cast<float4*>(tile + lane * stride + GROUP);
        end[0] = make_float4(row_sum, 0.f, 0.f, 0.f), end[1] = make_float4(0.f, 0.f, 0.f, 0.f);
      }
    }
    __syncwarp();
    LaneOutputs out;
    out.multiply(tile, stride, weights, GROUP, K);
    out.store(own(params.y) + first * GROUP, rows);
    if (params.moments) {
#pragma unroll
      for (int h = 0; h < LANE_QUADS; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float value[LANE_ROWS], squares[LANE_ROWS];
#pragma unroll
          for (int j = 0; j < LANE_ROWS; ++j) value[j] = lane_row(j) < rows ? out.of[j][h][i] : 0.f;
          const float mean = sum_of_lane_rows(value) / rows;
#pragma unroll
          for (int j = 0; j < LANE_ROWS; ++j) {
            const float distance = lane_row(j) < rows ? value[j] - mean : 0.f;
            squares[j] = __fmul_rn(distance, distance);
          }
          const float sum = sum_of_lane_rows(squares);
          float2 moments = make_float2(0.f, 0.f);
          join_rows(moments, mean, sum, rows, 0);
          if (lane_row(0) == 0)
            reinterpret_cast<float2*>(own(params.moments))[part * GROUP + lane_column(h) + i] = moments;
        }
    }
    if constexpr (!Shape::IS_FIRST) {
      if (params.u) {  // for dW'
        float4* u = reinterpret_cast<float4*>(own(params.u) + first * K);
#pragma unroll 3
        for (int e = lane; e < rows * quads; e += 32)
          u[e] = reinterpret_cast<const float4*>(tile + e / quads * stride)[e % quads];
      }
    }
    __syncwarp();  // the tile may be overwritten
  }
}

// ---- backward ----

// Blocks that compute G_prev.
__device__ __forceinline__ void backward_dx_of_warps(const NarrowBackwardParams& params, float4* shared4, int block) {
  constexpr int STRIDE = GROUP + 4;
  const int N = params.members.of_step(params.size)[BatchSize::N], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (blockIdx.x > 0 && block * TILE >= N) return;     // makes room for the next kernel
  float* weights = reinterpret_cast<float*>(shared4);  // W^T (GROUP, TRANSPOSED_STRIDE)
  const OfY of = of_y_at(weights + GROUP * TRANSPOSED_STRIDE, params.members.of_step(params.y),
                         params.members.of_step(params.g), GROUP);
  const Columns prev = columns_at(of.dgamma + GROUP, GROUP);
  float* scratch = weights + GROUP * TRANSPOSED_STRIDE + COLUMNS_OF_WARPS;  // then tiles
  float* tile = scratch + warp * TILE * STRIDE;                             // of V

  // Kernels before the previous one wrote weights and the previous layer's statistics.
#pragma unroll
  for (int of_block = warp; of_block < GROUP / 2; of_block += WARPS) {  // of 8 x 16 weights
    const int f = of_block % 8 * 8 + lane % 8, p = (of_block / 8 * 4 + lane / 8) * 4;
    const float4 w = *reinterpret_cast<const float4*>(params.members.of_step(params.packed) + f * GROUP + p);
    float* to = weights + p * TRANSPOSED_STRIDE + f;
    to[0] = w.x, to[TRANSPOSED_STRIDE] = w.y, to[2 * TRANSPOSED_STRIDE] = w.z, to[3 * TRANSPOSED_STRIDE] = w.w;
  }
  set_columns(prev, scratch, params.statistics_prev(), N, GROUP, false);
  wait_for_previous();
  if (block * TILE >= N) return;
  set_backward(of, scratch, params.members.of_step(params.stats), params.members.of_model_or_null(params.gamma),
               params.members.of_step(params.sums), params.sums_in_use(N), N, GROUP);
  __syncthreads();  // weights and columns are filled
  const unsigned units = params.members.units_of_step();

#pragma unroll 1
  for (int part = warp * params.dx_blocks + block; part * TILE < N; part += WARPS * params.dx_blocks) {
    const OwnArrays own(units);
    const int first = part * TILE, rows = min(TILE, N - first);
    gather_tile(tile, STRIDE, own(params.t_indptr), own(params.t_indices), own(params.t_values), first, N,
                Gradients(of));
    __syncwarp();
    LaneOutputs out;  // dZ_prev, then G_prev
    out.multiply(tile, STRIDE, weights, TRANSPOSED_STRIDE, GROUP);
    const float* y_prev = own(params.y_prev) + first * GROUP;
#pragma unroll
    for (int h = 0; h < LANE_QUADS; ++h) {
      float y[LANE_ROWS][4] = {};
#pragma unroll
      for (int j = 0; j < LANE_ROWS; ++j)
        if (lane_row(j) < rows) {
          const float4 given = *reinterpret_cast<const float4*>(y_prev + lane_row(j) * GROUP + lane_column(h));
          y[j][0] = given.x, y[j][1] = given.y, y[j][2] = given.z, y[j][3] = given.w;
        }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int f = lane_column(h) + i;
        const Column column = prev.column(f);
        float g[LANE_ROWS], g_x_hat[LANE_ROWS];
#pragma unroll
        for (int j = 0; j < LANE_ROWS; ++j) {
          const bool exists = lane_row(j) < rows, is_open = exists && column.normal(y[j][i]) > 0.f;
          g[j] = out.of[j][h][i] = is_open ? out.of[j][h][i] : 0.f;
          g_x_hat[j] = exists ? __fmul_rn(g[j], column.x_hat(y[j][i])) : 0.f;
        }
        const float sum = sum_of_lane_rows(g), sum_x_hat = sum_of_lane_rows(g_x_hat);
        if (lane_row(0) == 0 && params.sums_prev)
          reinterpret_cast<float2*>(own(params.sums_prev))[part * GROUP + f] =
              combine(make_float2(0.f, 0.f), make_float2(sum, sum_x_hat));
      }
    }
    out.store(own(params.g_prev) + first * GROUP, rows);
    __syncwarp();  // the tile may be overwritten
  }
}

}  // namespace fused
