// What narrow phases share in which few warps have a whole tile, for layers of 64 columns and 1 channel in large cohorts:
// teams of warps, their products, and copies to shared memory. No kernels here.
//
// Parameters, results and their bits are those of `forward_phase` and `backward_phase`. There, all warps of a block share a
// tile and meet at four barriers: a tile is done early, as a model alone needs. Here, a team of one, two or four warps
// gathers its 16 rows and multiplies them, and waits for no other team: more work is done at once, as a cohort needs. Each size of
// a team has a kernel; `narrow.geometry.warps_of_tile` chooses. Weights are in shared memory.
//
// A lane owns four columns, or eight, of every fourth row of the tile, or every eighth (`Team`). Sums have the order of
// fused/narrow/tile.cuh: a product is the sum of SLICES slices, a sum over rows first adds rows r and r + 8, then r + 4, r + 2 and
// r + 1. Products that it adds are rounded first: a multiply-add would have other bits.
// Launch: 512 threads, members in z; the teams of all blocks of a member share its tiles. Batch 50 of 19 nodes, 60 tiles, on 132
//   multiprocessors: 64 members have 2 blocks and teams of a warp, 16 members 8 blocks and teams of two. A batch has at most as many
//   tiles as partial sums.
// Shared memory: dynamic; see `narrow.geometry.forward_of_warps`. Half a warp reads 64 bytes of a row of
//   weights, or 16 bytes of four rows of the tile, K + 4 floats apart: no bank conflicts.
// Traffic and determinism: as the other phases.
#pragma once

#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"

namespace fused {

static_assert(SHARES_LAUNCHES, "a model alone runs the kernels of fused/narrow/step.cu");

constexpr int COLUMNS_OF_WARPS = 10 * GROUP;       // floats: columns of Y with dbeta / N and dgamma / N, and of Y_prev
constexpr int MOST_RESTS = 16;                     // rows k of W' beyond GROUP
constexpr int MOST_OF_WARPS = GROUP + MOST_RESTS;  // the largest K

// A number that all lanes of a warp have, in a way that the compiler sees: it then takes branches on it for the whole warp, and
// does not write code for lanes that part at a shuffle.
__device__ __forceinline__ int same_in_warp(int value) { return __shfl_sync(FULL_WARP, value, 0); }

// The warps that share a tile, and the outputs of a lane: ROWS rows of QUADS times four columns. Lanes that differ in bit 0 have
// different rows, and those that differ in bit 1 different columns: so half a warp reads a quad of the tile, or of the weights,
// from shared memory at once.
template <int WARPS_OF_TILE>
struct Team {
  static constexpr int TEAMS = WARPS / WARPS_OF_TILE;
  static constexpr int ROW_LANES = WARPS_OF_TILE == 4 ? 8 : 4, ROWS = TILE / ROW_LANES;
  static constexpr int OWN_COLUMNS = GROUP / WARPS_OF_TILE;           // of a warp
  static constexpr int QUADS = OWN_COLUMNS / (4 * (32 / ROW_LANES));  // of a lane
  static constexpr int GATHERED = TILE / WARPS_OF_TILE;               // rows that a warp gathers

  __device__ __forceinline__ static int number() { return threadIdx.x / (32 * WARPS_OF_TILE); }
  __device__ __forceinline__ static int warp() { return threadIdx.x / 32 % WARPS_OF_TILE; }
  __device__ __forceinline__ static int row_lane() {
    const int lane = threadIdx.x;
    return (lane & 1) | (lane >> 2 & 2) | (ROW_LANES == 8 ? lane >> 2 & 4 : 0);
  }
  __device__ __forceinline__ static int row(int j) { return row_lane() + ROW_LANES * j; }
  __device__ __forceinline__ static int column(int h) {
    const int lane = threadIdx.x, own = (lane >> 1 & 3) | (ROW_LANES == 4 ? lane >> 2 & 4 : 0);
    return warp() * OWN_COLUMNS + 4 * own + OWN_COLUMNS / QUADS * h;
  }
  // All lanes of the team wait. Barrier 0 is that of the block.
  __device__ __forceinline__ static void wait() {
    if constexpr (WARPS_OF_TILE == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(number() + 1), "n"(32 * WARPS_OF_TILE) : "memory");
    }
  }
  // Sum over the rows of a column, of which this lane has ROWS, in the order of `sum_of_rows`; each of its lanes gets it.
  __device__ __forceinline__ static float sum_of_rows(const float (&value)[ROWS]) {
    float sum;
    if constexpr (ROWS == 4) {
      sum = __fadd_rn(__fadd_rn(value[0], value[2]), __fadd_rn(value[1], value[3]));
    } else {
      sum = __fadd_rn(value[0], value[1]);
      sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 16));
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 8));
    return __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 1));
  }
};

// The first row that this warp gathers in block `block` of `blocks`.
template <class Team>
__device__ __forceinline__ int first_gathered(int block, int blocks) {
  return (Team::number() * blocks + block) * TILE + Team::warp() * Team::GATHERED;
}

// A lane's outputs of a tile: four columns of row Team::row(j) from column Team::column(h) on.
template <class Team>
struct LaneOutputs {
  float of[Team::ROWS][Team::QUADS][4];

  __device__ __forceinline__ float4 quad(int j, int h) const {
    return make_float4(of[j][h][0], of[j][h][1], of[j][h][2], of[j][h][3]);
  }

  // tile (TILE, K) x weights (K, GROUP), in the order of `add_chunk` and `reduce_slices`.
  __device__ __forceinline__ void multiply(const float* tile, int tile_stride, const float* weights, int stride,
                                           int K) {
    const float* rows = tile + Team::row(0) * tile_stride;
    const float* columns = weights + Team::column(0);
#pragma unroll
    for (int j = 0; j < Team::ROWS; ++j)
#pragma unroll
      for (int h = 0; h < Team::QUADS; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) of[j][h][i] = 0.f;
#pragma unroll 1
    for (int slice = 0; slice < SLICES; ++slice) {
      float4 sum[Team::ROWS][Team::QUADS] = {};
#pragma unroll
      for (int q = 0; q < FORWARD_QUADS; ++q) {
        const int k = 4 * (slice + SLICES * q);
        if (k >= K) break;
        float4 x[Team::ROWS];
#pragma unroll
        for (int j = 0; j < Team::ROWS; ++j)
          x[j] = *reinterpret_cast<const float4*>(rows + Team::ROW_LANES * j * tile_stride + k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float4 w[Team::QUADS];
#pragma unroll
          for (int h = 0; h < Team::QUADS; ++h)
            w[h] = *reinterpret_cast<const float4*>(columns + (k + i) * stride + Team::column(h) - Team::column(0));
#pragma unroll
          for (int j = 0; j < Team::ROWS; ++j)
#pragma unroll
            for (int h = 0; h < Team::QUADS; ++h)
              sum[j][h] = add_product(sum[j][h], i == 0 ? x[j].x : i == 1 ? x[j].y : i == 2 ? x[j].z : x[j].w, w[h]);
        }
      }
#pragma unroll
      for (int j = 0; j < Team::ROWS; ++j)
#pragma unroll
        for (int h = 0; h < Team::QUADS; ++h) {
          of[j][h][0] += sum[j][h].x, of[j][h][1] += sum[j][h].y;
          of[j][h][2] += sum[j][h].z, of[j][h][3] += sum[j][h].w;
        }
    }
  }

  // Store the first `rows` rows of a tile to `to` (TILE, GROUP).
  __device__ __forceinline__ void store(float* to, int rows) const {
#pragma unroll
    for (int j = 0; j < Team::ROWS; ++j)
#pragma unroll
      for (int h = 0; h < Team::QUADS; ++h)
        if (Team::row(j) < rows) *reinterpret_cast<float4*>(to + Team::row(j) * GROUP + Team::column(h)) = quad(j, h);
  }
};

// Store pairs of sums of four columns from Team::column(h) on to `to` (GROUP, 2); the lanes of row 0 do.
template <class Team>
__device__ __forceinline__ void store_pairs(float* to, int h, const float2 (&pairs)[4]) {
  if (Team::row_lane() > 0) return;
  float4* quads = reinterpret_cast<float4*>(to + 2 * Team::column(h));
  quads[0] = make_float4(pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y);
  quads[1] = make_float4(pairs[2].x, pairs[2].y, pairs[3].x, pairs[3].y);
}

// ---- copies to shared memory ----

// Copy 16 bytes asynchronously, or write zeros if nothing exists. Copies take no registers until they arrive.
__device__ __forceinline__ void copy_quad(float* to, const float* from, bool exists = true) {
  copy_async<4>(to, from, exists ? 4 : 0);
}

// Wait for all copies of this thread.
__device__ __forceinline__ void wait_for_quads() {
  commit_copies();
  wait_for_copies<0>();
}

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

}  // namespace fused
