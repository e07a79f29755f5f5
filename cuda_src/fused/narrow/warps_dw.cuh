// The gradient of the weights, dW' = U^T dY, for layers of 64 columns and 1 channel in large cohorts. No kernels here.
//
// Parameters, results and their bits are those of `backward_dw`. There, a block has a tile of a sum of dW' at a time, and 288 of
// its threads multiply. Here, a group of four or eight warps owns a sum and waits for no other: a block has as many groups as sums,
// and each number of groups has a kernel. Four warps load a tile, so a group loads one or two at once, the next ones while it
// multiplies. In small cohorts a block has one sum, or two or four blocks share its columns. It loads the tiles of an average batch
// at once, and its warps multiply different ones.
// Launch: 512 threads, members in z; the groups of all blocks of a member share its sums. Eight sums: 64 members on 132
//   multiprocessors have 2 blocks and groups of four warps, 16 members 8 blocks with a sum, four members 32 blocks.
//   `dw_blocks` is at most `dw_sums`, or twice or four times as many. K is at most MOST_OF_WARPS.
// Shared memory: dynamic; see `narrow.geometry.backward_of_warps`. Half a warp reads 128 bytes of a row of dY, or less, and 16 bytes
//   for each of its rows k of a row of U.
// Traffic and determinism: as `backward_dw`.
#pragma once

#include "fused/narrow/warps_backward.cuh"

namespace fused {

constexpr int STAGING_WARPS = 4;                         // that load a tile
constexpr int STAGED_ROWS = TILE / STAGING_WARPS;        // of a warp
constexpr int BUFFERS = 2;                               // one barrier for each time that a group loads tiles
constexpr int TILES_AT_ONCE = WARPS / STAGING_WARPS;     // that all groups of a block load
constexpr int TILES_OF_BLOCK = BUFFERS * TILES_AT_ONCE;  // that a block with one sum loads
constexpr int U_STRIDE = MOST_OF_WARPS + 4;
constexpr int DY_STRIDE = GROUP + 4;
constexpr int STAGED_FLOATS = TILE * (U_STRIDE + DY_STRIDE);  // of a tile of U and dY
constexpr int G_FLOATS = TILE * GROUP;                        // of a tile of G
// Buffers of tiles, and of G. In a block with one sum, products of other teams overwrite G.
constexpr int DW_FLOATS = TILES_OF_BLOCK * (STAGED_FLOATS + G_FLOATS);
constexpr int SCRATCH_FLOATS = REDUCTION_FLOATS;  // after them
constexpr int PRODUCTS_FLOATS = 16 * THREADS / 2 * TILES_OF_BLOCK / 2;
constexpr int SPLIT_FLOATS = PRODUCTS_FLOATS - TILES_OF_BLOCK * G_FLOATS;  // after them, if blocks share a sum
static_assert(SPLIT_FLOATS >= SCRATCH_FLOATS, "the reduction is over when products are stored");

// The warps that have a sum.
template <int GROUP_WARPS>
struct WarpGroup {
  static constexpr int GROUP_THREADS = 32 * GROUP_WARPS, GROUPS = WARPS / GROUP_WARPS;
  static constexpr int TILES_AT_ONCE = GROUP_WARPS / STAGING_WARPS;

  __device__ __forceinline__ static int number() { return threadIdx.x / GROUP_THREADS; }
  // All threads of the group wait. Barrier 0 is that of the block.
  __device__ __forceinline__ static void wait() {
    asm volatile("bar.sync %0, %1;" ::"r"(number() + 1), "n"(GROUP_THREADS) : "memory");
  }
};

// A sum of dW' of one of several groups of a block. A thread has four columns of OWN_ROWS + OWN_RESTS rows k. Lanes that differ in
// bit 0 have different rows k, so that half a warp reads a row of dY from shared memory at once.
template <int GROUP_WARPS, int RESTS>
struct GradientOfGroup : WarpGroup<GROUP_WARPS> {
  static constexpr int OWNERS = 2 * GROUP_WARPS;             // threads with the same columns share K
  static constexpr int OWN_ROWS = GROUP / OWNERS;            // of the rows k below GROUP
  static constexpr int OWN_RESTS = ceil_div(RESTS, OWNERS);  // of the rows k from GROUP on
  static_assert(OWN_ROWS % 4 == 0, "four neighbouring rows k are one load");
  float4 of[OWN_ROWS + OWN_RESTS];

  __device__ __forceinline__ GradientOfGroup() : of() {}
  __device__ __forceinline__ static int owner() {
    return threadIdx.x / 32 % GROUP_WARPS * 2 + static_cast<int>(threadIdx.x & 1);
  }
  __device__ __forceinline__ static int quad() { return threadIdx.x / 2 % 16; }  // of columns
  __device__ __forceinline__ static int row(int k) {
    return k < OWN_ROWS ? k / 4 * 4 * OWNERS + 4 * owner() + k % 4 : GROUP + (k - OWN_ROWS) * OWNERS + owner();
  }
  // Add the products of `count` tiles of U (TILE, U_STRIDE) and dY (TILE, DY_STRIDE), one after the other. Outputs of rows k from K
  // on are not stored.
  __device__ __forceinline__ void add_tiles(const float* tiles, int count) {
#pragma unroll 1
    for (int t = 0; t < count; ++t) add(tiles + t * STAGED_FLOATS);
  }
  __device__ __forceinline__ void add(const float* tile) {
    float4 sum[OWN_ROWS + OWN_RESTS] = {};
    const float *u = tile + 4 * owner(), *dy = tile + TILE * U_STRIDE + 4 * quad();
#pragma unroll 2
    for (int r = 0; r < TILE; ++r, u += U_STRIDE, dy += DY_STRIDE) {
      const float4 b = *reinterpret_cast<const float4*>(dy);
#pragma unroll
      for (int k = 0; k < OWN_ROWS; k += 4) {
        const float4 a = *reinterpret_cast<const float4*>(u + k * OWNERS);
        sum[k] = add_product(sum[k], a.x, b), sum[k + 1] = add_product(sum[k + 1], a.y, b);
        sum[k + 2] = add_product(sum[k + 2], a.z, b), sum[k + 3] = add_product(sum[k + 3], a.w, b);
      }
#pragma unroll
      for (int k = OWN_ROWS; k < OWN_ROWS + OWN_RESTS; ++k)
        if (RESTS % OWNERS == 0 || owner() < RESTS) sum[k] = add_product(sum[k], u[row(k) - 4 * owner()], b);
    }
#pragma unroll
    for (int k = 0; k < OWN_ROWS + OWN_RESTS; ++k) of[k] = combine(of[k], sum[k]);
  }
  __device__ __forceinline__ void store(float* to, int K) const {
#pragma unroll
    for (int k = 0; k < OWN_ROWS + OWN_RESTS; ++k)
      if (row(k) < K) reinterpret_cast<float4*>(to + row(k) * GROUP)[quad()] = of[k];
  }
};

// The only sum of a block, or its share `split` of the columns of a sum that SPLITS blocks have. A thread has 4 x 4 outputs of a tile,
// so that few warps multiply much. SPLITS teams multiply different tiles; the first adds all products in order. Lanes
// that differ in bit 0 have different rows k, in bit 1 different columns.
template <int SPLITS>
struct GradientOfBlock : WarpGroup<WARPS> {
  static constexpr int QUADS = GROUP / 4 / SPLITS, TEAM_THREADS = THREADS / SPLITS,
                       TILES_OF_TEAM = TILES_OF_BLOCK / SPLITS;
  static_assert(SPLITS == 1 || 16 * TEAM_THREADS * (TILES_OF_BLOCK - TILES_OF_TEAM) <= PRODUCTS_FLOATS, "see place_of");
  float4 of[4];
  int k, p;  // the first row and column of the outputs

  __device__ __forceinline__ explicit GradientOfBlock(int split) : of() {
    const int lane = threadIdx.x % 32;
    k = 4 * (threadIdx.x % TEAM_THREADS / 32 * (32 / QUADS) + lane / 2 / QUADS * 2 + lane % 2);
    p = 4 * (split * QUADS + lane / 2 % QUADS);
  }
  __device__ __forceinline__ static int team() { return threadIdx.x / TEAM_THREADS; }

  // Add the products of `count` tiles of U (TILE, U_STRIDE) and dY (TILE, DY_STRIDE) in order. Outputs of rows k from K on are not
  // stored. `products`: of the other teams' tiles.
  __device__ __forceinline__ void add_tiles(const float* tiles, int count, int K, float4* products) {
    const int first = team() * TILES_OF_TEAM;
#pragma unroll 1
    for (int t = first; t < min(count, first + TILES_OF_TEAM) && k < K; ++t) {
      float4 product[4];
      multiply(product, tiles + t * STAGED_FLOATS);
      if (first == 0) {
        add(product);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) products[place_of(t, i)] = product[i];
      }
    }
    if constexpr (SPLITS > 1) {
      wait();  // the other teams' products are stored
#pragma unroll 1
      for (int t = TILES_OF_TEAM; t < count && first == 0 && k < K; ++t)
        add({products[place_of(t, 0)], products[place_of(t, 1)], products[place_of(t, 2)], products[place_of(t, 3)]});
    }
  }
  // Where outputs i of tile t of another team are.
  __device__ __forceinline__ static int place_of(int t, int i) {
    return ((t - TILES_OF_TEAM) * 4 + i) * TEAM_THREADS + threadIdx.x % TEAM_THREADS;
  }
  __device__ __forceinline__ void add(const float4 (&product)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = combine(of[i], product[i]);
  }
  __device__ __forceinline__ void multiply(float4 (&sum)[4], const float* tile) const {
    const float *u = tile + k, *dy = tile + TILE * U_STRIDE + p;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
    for (int r = 0; r < TILE; ++r, u += U_STRIDE, dy += DY_STRIDE) {
      const float4 a = *reinterpret_cast<const float4*>(u), b = *reinterpret_cast<const float4*>(dy);
      sum[0] = add_product(sum[0], a.x, b), sum[1] = add_product(sum[1], a.y, b);
      sum[2] = add_product(sum[2], a.z, b), sum[3] = add_product(sum[3], a.w, b);
    }
  }
  __device__ __forceinline__ void store(float* to, int K) const {
    if (k >= K || team() > 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<float4*>(to + (k + i) * GROUP + p) = of[i];
  }
};

// A warp's rows of a tile of U (TILE, U_STRIDE), and of Y (TILE, DY_STRIDE), which becomes dY with G (TILE, GROUP). Half a warp has a
// row of Y and G; a lane reads no quads of these but those that it copied.
struct StagedRows {
  const float *u, *y, *g;  // this lane's quads of a tile that begins at row 0
  int N, K;

  __device__ __forceinline__ StagedRows(const NarrowBackwardParams& params, const OfY& of, int N, int K)
      : u(params.members.of_step(params.u) + row() * K + 4 * (threadIdx.x % 32)),
        y(of.y + near_row(0) * GROUP + column()),
        g(of.g + near_row(0) * GROUP + column()),
        N(N),
        K(K) {
    asm volatile("" : "+l"(u), "+l"(y), "+l"(g));  // else the compiler computes them anew for each tile
  }
  __device__ __forceinline__ static int row() { return threadIdx.x / 32 % STAGING_WARPS * STAGED_ROWS; }
  __device__ __forceinline__ static int near_row(int t) { return row() + 2 * t + threadIdx.x % 32 / 16; }
  __device__ __forceinline__ static int column() { return 4 * (threadIdx.x % 16); }
  __device__ __forceinline__ static float* near_quad(float* tile) {
    return tile + TILE * U_STRIDE + near_row(0) * DY_STRIDE + column();
  }

  // Copy the rows of the tile from row `first` on: of U and Y, which kernels before the previous one wrote, and of G. Rows beyond the
  // last are 0.
  __device__ __forceinline__ void copy_u(float* tile, int first) const {
    const int quad = 4 * (threadIdx.x % 32);
    const float *from_u = u + first * K, *from_y = y + first * GROUP;
    float* to_u = tile + row() * U_STRIDE + quad;
    if (quad < K)
#pragma unroll
      for (int r = 0; r < STAGED_ROWS; ++r, from_u += K) copy_quad(to_u + r * U_STRIDE, from_u, first + row() + r < N);
#pragma unroll
    for (int t = 0; t < STAGED_ROWS / 2; ++t)
      copy_quad(near_quad(tile) + 2 * t * DY_STRIDE, from_y + 2 * t * GROUP, first + near_row(t) < N);
  }
  __device__ __forceinline__ void copy_g(float* of_g, int first) const {
    const float* from_g = g + first * GROUP;
    of_g += near_row(0) * GROUP + column();
#pragma unroll
    for (int t = 0; t < STAGED_ROWS / 2; ++t)
      copy_quad(of_g + 2 * t * GROUP, from_g + 2 * t * GROUP, first + near_row(t) < N);
  }
  // Wait for the copies, and replace Y by dY.
  __device__ __forceinline__ void finish(float* tile, const float* of_g, const OfY& of, int first) const {
    const Gradients source(nullptr, nullptr, 0, of);
    of_g += near_row(0) * GROUP + column();
    wait_for_quads();
#pragma unroll
    for (int t = 0; t < STAGED_ROWS / 2; ++t) {
      float4* own = reinterpret_cast<float4*>(near_quad(tile) + 2 * t * DY_STRIDE);
      const float4 term = source.term({*own, *reinterpret_cast<const float4*>(of_g + 2 * t * GROUP)});
      *own = first + near_row(t) < N ? term : make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }
};

// Fill the columns of Y; all threads of a block call and wait.
__device__ __forceinline__ void set_backward_of_warps(const NarrowBackwardParams& params, const OfY& of, float* scratch,
                                                      int N) {
  set_backward(of, scratch, params.members.of_step(params.stats), params.members.of_model_or_null(params.gamma),
               params.members.of_step(params.sums), params.sums_in_use(N), N, GROUP);
  __syncthreads();
}

// Rows k of dW' beyond GROUP; the data set determines those of the first layer.
template <class Shape>
__device__ constexpr int rests_of() {
  if constexpr (Shape::IS_FIRST) {
    return MOST_RESTS;
  } else {
    return Shape::K - GROUP;
  }
}

// Blocks that compute dW', with a Gradient for each group; `block` of `params.dw_blocks`.
template <class Gradient, class Shape>
__device__ __forceinline__ void backward_dw_of_groups(const NarrowBackwardParams& params, const Shape& shape,
                                                      const OfY& of, int N, int block) {
  constexpr int AT_ONCE = Gradient::TILES_AT_ONCE;
  const int K = shape.K, sums = params.dw_sums, step = sums * TILE, loaded = threadIdx.x / 32 / STAGING_WARPS;
  const int own_tile = loaded % AT_ONCE;
  float *shared = of.dgamma + GROUP, *buffers = shared + Gradient::number() * BUFFERS * AT_ONCE * STAGED_FLOATS;
  float* of_g = shared + TILES_OF_BLOCK * STAGED_FLOATS + loaded * G_FLOATS;
  const auto tile_in = [&](int buffer) { return buffers + (buffer * AT_ONCE + own_tile) * STAGED_FLOATS; };
  const StagedRows rows(params, of, N, K);

  int s = Gradient::number() * params.dw_blocks + block, first = s * TILE;
  rows.copy_u(tile_in(0), first + own_tile * step);
  wait_for_previous();
  rows.copy_g(of_g, first + own_tile * step);
  set_backward_of_warps(params, of, shared + DW_FLOATS, N);

  Gradient total;
  int buffer = 0;
#pragma unroll 1
  while (s < sums && first < N) {
    rows.finish(tile_in(buffer), of_g, of, first + own_tile * step);
    Gradient::wait();  // the tiles are filled; all threads have read the other buffer
    int next_s = s, next = first + AT_ONCE * step;
    if (next >= N) next_s += Gradient::GROUPS * params.dw_blocks, next = next_s * TILE;
    if (next_s < sums && next < N) {
      rows.copy_u(tile_in(buffer ^ 1), next + own_tile * step);
      rows.copy_g(of_g, next + own_tile * step);
    }
    total.add_tiles(buffers + buffer * AT_ONCE * STAGED_FLOATS, min(AT_ONCE, ceil_div(N - first, step)));
    if (next_s != s) {
      total.store(params.members.of_step(params.partials) + s * K * GROUP, K);
      total = Gradient();
    }
    s = next_s, first = next, buffer ^= 1;
  }
}

// Blocks that have one sum, or share its columns with SPLITS - 1 others. They load the tiles of an average batch at once.
template <int SPLITS, class Shape>
__device__ __forceinline__ void backward_dw_of_block(const NarrowBackwardParams& params, const Shape& shape,
                                                     const OfY& of, int N, int block) {
  constexpr int LOADED = TILES_OF_BLOCK / TILES_AT_ONCE;  // tiles of a warp
  const int K = shape.K, sums = params.dw_sums, step = sums * TILE, s = block % sums;
  float *tiles = of.dgamma + GROUP, *of_g = tiles + TILES_OF_BLOCK * STAGED_FLOATS;
  float4* products = reinterpret_cast<float4*>(of_g);
  const StagedRows rows(params, of, N, K);
  GradientOfBlock<SPLITS> total(block / sums);
  int first = s * TILE;
  // use(tile of this warp, its G, its first row)
  const auto each = [&](auto use) {
#pragma unroll
    for (int i = 0; i < LOADED; ++i) {
      const int t = threadIdx.x / 32 / STAGING_WARPS + i * TILES_AT_ONCE;
      if (first + t * step < N) use(tiles + t * STAGED_FLOATS, of_g + t * G_FLOATS, first + t * step);
    }
  };

  each([&](float* tile, float*, int from) { rows.copy_u(tile, from); });
  wait_for_previous();
  each([&](float*, float* g, int from) { rows.copy_g(g, from); });
  set_backward_of_warps(params, of, tiles + DW_FLOATS, N);
#pragma unroll 1
  while (true) {
    each([&](float* tile, float* g, int from) { rows.finish(tile, g, of, from); });
    total.wait();  // the tiles are filled; G may be overwritten
    total.add_tiles(tiles, min(TILES_OF_BLOCK, ceil_div(N - first, step)), K, products);
    first += TILES_OF_BLOCK * step;
    if (first >= N) break;
    total.wait();  // all threads have read tiles and products
    each([&](float* tile, float* g, int from) { rows.copy_u(tile, from), rows.copy_g(g, from); });
  }
  total.store(params.members.of_step(params.partials) + s * K * GROUP, K);
}

// Blocks that compute dW', with a group for each of their SUMS sums.
template <class Shape, int SUMS>
__device__ __forceinline__ void backward_dw_of_warps(const NarrowBackwardParams& params, float4* shared4, int block) {
  const Shape shape(params);
  const int N = params.members.of_step(params.size)[BatchSize::N];
  if (blockIdx.x > 0 && block % params.dw_sums * TILE >= N) return;  // makes room for the next kernel
  if (N == 0) return wait_for_previous();                            // the member is idle
  const OfY of = of_y_at(reinterpret_cast<float*>(shared4), params.members.of_step(params.y),
                         params.members.of_step(params.g), GROUP);
  if constexpr (SUMS == 1) {
    const int splits = params.dw_blocks / params.dw_sums;
    if (splits == 4) {
      backward_dw_of_block<4>(params, shape, of, N, block);
    } else if (splits == 2) {
      backward_dw_of_block<2>(params, shape, of, N, block);
    } else {
      backward_dw_of_block<1>(params, shape, of, N, block);
    }
  } else {
    backward_dw_of_groups<GradientOfGroup<WARPS / SUMS, rests_of<Shape>()>>(params, shape, of, N, block);
  }
}

template <class Shape, class Team, int SUMS>
__device__ __forceinline__ void backward_phase_of_warps(const NarrowBackwardParams& params, float4* shared4) {
  const int block = blockIdx.x;
  if constexpr (!Shape::IS_FIRST)
    if (block < params.dx_blocks) return backward_dx_of_warps<Team>(params, shared4, block);
  backward_dw_of_warps<Shape, SUMS>(params, shared4, Shape::IS_FIRST ? block : block - params.dx_blocks);
}

}  // namespace fused
