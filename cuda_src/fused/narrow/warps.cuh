// What narrow phases share in which few warps have a whole tile, for layers of 64 columns and 1 channel in large cohorts:
// teams of warps, the entries of A, and sums over neighbours. No kernels here.
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

constexpr int COLUMNS_OF_WARPS = 10 * GROUP;  // floats: columns of Y with dbeta / N and dgamma / N, and of Y_prev
constexpr int ENTRIES_OF_ROW = 5;  // of A in shared memory, on average over a warp's rows; the others are in memory
constexpr int ENTRIES_OF_WARP = TILE * ENTRIES_OF_ROW + BATCH;  // a warp reads up to BATCH beyond its last one
constexpr int ENTRIES_OF_WARPS = 2 * WARPS * ENTRIES_OF_WARP;   // floats: rows of nodes, and factors
constexpr int MOST_RESTS = 16;                                  // rows k of W' beyond GROUP
constexpr int MOST_OF_WARPS = GROUP + MOST_RESTS;               // the largest K

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

// ---- sums over neighbours ----

// An entry of A: where its node's row begins in a matrix of GROUP columns, and its value.
struct Entry {
  int row;
  float factor;
};

// The entries of A in the rows that a warp gathers. They are copied to shared memory if at most ENTRIES_OF_ROW a row on average: then
// a neighbour is one load from memory away.
struct EntriesOfWarp {
  int place;  // lane l: the place of the first entry of row l, from that of row 0 on; that of the last row is its end
  bool are_held;
  const int* nodes;
  const float* factors;

  // This warp's share of the entries of TILE rows a warp that a block has room for.
  __device__ __forceinline__ static Entry* held(float* of_block) {
    return reinterpret_cast<Entry*>(of_block) + threadIdx.x / 32 * ENTRIES_OF_WARP;
  }
  // `n_rows` rows from `first` on.
  __device__ __forceinline__ void load(float* of_block, int n_rows, const int* indptr, const int* indices,
                                       const float* values, int first, int N) {
    const int lane = threadIdx.x % 32;
    place = lane <= n_rows ? indptr[min(first + lane, N)] : 0;
    const int begin = same_in_warp(place);
    place -= begin;
    nodes = indices + begin, factors = values + begin;
    const int count = __shfl_sync(FULL_WARP, place, n_rows);
    are_held = count <= n_rows * ENTRIES_OF_ROW;
    if (!are_held) return;
    Entry* to = held(of_block);
#pragma unroll 1
    for (int e = lane; e < count; e += 32) to[e] = {nodes[e] * GROUP, factors[e]};
    __syncwarp();
  }
};

// Entries in shared memory. What lies there beyond a row's entries may be read.
struct HeldEntries {
  const Entry* at;

  __device__ __forceinline__ int row(int e, bool exists) const {
    const int found = at[e].row;
    return exists ? found : 0;
  }
  __device__ __forceinline__ float factor(int e, bool) const { return at[e].factor; }
};

// Entries in memory.
struct StoredEntries {
  const int* nodes;
  const float* factors;

  __device__ __forceinline__ int row(int e, bool exists) const { return exists ? nodes[e] * GROUP : 0; }
  __device__ __forceinline__ float factor(int e, bool exists) const { return exists ? factors[e] : 0.f; }
};

// sum += factor * term, if `exists`. Predicates instead of a branch: the compiler would load what only a branch needs inside of it.
__device__ __forceinline__ void add_if(bool exists, float4& sum, float factor, const float4& term) {
  asm("{ .reg .pred p;\n"
      "setp.ne.s32 p, %4, 0;\n"
      "@p fma.rn.f32 %0, %5, %6, %0;\n"
      "@p fma.rn.f32 %1, %5, %7, %1;\n"
      "@p fma.rn.f32 %2, %5, %8, %2;\n"
      "@p fma.rn.f32 %3, %5, %9, %3; }"
      : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
      : "r"(static_cast<int>(exists)), "f"(factor), "f"(term.x), "f"(term.y), "f"(term.z), "f"(term.w));
}

// A warp's rows of the tile (TILE, GROUP) of sums over neighbours. Half a warp has a row, a lane four columns; entries are added in
// the order of NeighbourActivations and NeighbourGradients. `Source::load` loads a neighbour, `Source::term` is what is added with
// a factor. A warp loads the neighbours of MOST_PAIRS pairs of rows at once. `done(row, column, sum)` takes each quad of the tile.
template <class Team, int MOST_PAIRS, class Entries, class Source, class Done>
__device__ __forceinline__ void gather_entries(const Entries& entries, int place, const Source& source, Done done) {
  constexpr int ROWS_OF_WARP = Team::GATHERED, PAIRS = MOST_PAIRS < ROWS_OF_WARP / 2 ? MOST_PAIRS : ROWS_OF_WARP / 2;
  const int half = threadIdx.x % 32 / 16, column = 4 * (threadIdx.x % 16);
#pragma unroll 1
  for (int pair = 0; pair < ROWS_OF_WARP / 2; pair += PAIRS) {
    int begin[PAIRS], n[PAIRS];
    typename Source::Neighbour near[PAIRS][BATCH];
    const auto load = [&](int u, int k) {
#pragma unroll
      for (int e = 0; e < BATCH; ++e) near[u][e] = source.load(entries.row(begin[u] + k + e, k + e < n[u]));
    };
    int most[PAIRS];  // of the entries of both rows
    const auto add = [&](float4& total, int u, int k) {
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int e = 0; e < BATCH; ++e) {
        const bool exists = k + e < n[u];
        add_if(exists, sum, entries.factor(begin[u] + k + e, exists), source.term(near[u][e]));
      }
      total = combine(total, sum);
    };
#pragma unroll
    for (int u = 0; u < PAIRS; ++u) {
      const int row = 2 * (pair + u) + half;
      begin[u] = __shfl_sync(FULL_WARP, place, row);
      n[u] = __shfl_sync(FULL_WARP, place, row + 1) - begin[u];
      most[u] = same_in_warp(max(n[u], __shfl_xor_sync(FULL_WARP, n[u], 16)));
      load(u, 0);
    }
    __syncwarp();  // the compiler would move loads to where they are used, one after the other
#pragma unroll
    for (int u = 0; u < PAIRS; ++u) {
      float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
      add(total, u, 0);
#pragma unroll 1
      for (int k = BATCH; k < most[u]; k += BATCH) {
        load(u, k);
        __syncwarp();
        add(total, u, k);
      }
      done(Team::warp() * ROWS_OF_WARP + 2 * (pair + u) + half, column, total);
    }
  }
}

// The same, wherever the entries are.
template <class Team, class Source, class Done>
__device__ __forceinline__ void gather_rows(const EntriesOfWarp& entries, float* of_block, const Source& source,
                                            Done done) {
  if (entries.are_held) {
    gather_entries<Team, Source::PAIRS>(HeldEntries{EntriesOfWarp::held(of_block)}, entries.place, source, done);
  } else {
    gather_entries<Team, 1>(StoredEntries{entries.nodes, entries.factors}, entries.place, source, done);
  }
}

// A lane's four columns of the rows of a matrix (N, GROUP) of the member. The compiler must not see where the distance comes from:
// it would add it anew for each load.
__device__ __forceinline__ const float* at_own_columns(const float* matrix, unsigned units) {
  unsigned long long distance = static_cast<unsigned long long>(units) * REGION_UNIT + 16 * (threadIdx.x % 16);
  asm volatile("" : "+l"(distance));
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(matrix) + distance);
}

// Four columns of a Columns array, for a lane of half a warp.
__device__ __forceinline__ float4 quad_of(const float* columns) {
  return reinterpret_cast<const float4*>(columns)[threadIdx.x % 16];
}

// Activations of the previous layer: Z = relu(norm(Y)).
struct Activations {
  static constexpr int PAIRS = 4;  // of rows whose neighbours a warp loads at once
  using Neighbour = float4;
  const float* y;
  float4 mean, slope, beta;

  __device__ __forceinline__ Activations(const float* y, unsigned units, const Columns& of)
      : y(at_own_columns(y, units)), mean(quad_of(of.mean)), slope(quad_of(of.slope)), beta(quad_of(of.beta)) {}
  __device__ __forceinline__ Neighbour load(int row) const { return *reinterpret_cast<const float4*>(y + row); }
  __device__ __forceinline__ float4 term(const Neighbour& y) const {
    return make_float4(positive((y.x - mean.x) * slope.x + beta.x), positive((y.y - mean.y) * slope.y + beta.y),
                       positive((y.z - mean.z) * slope.z + beta.z), positive((y.w - mean.w) * slope.w + beta.w));
  }
};

// Pairs of rows whose neighbours' Y and G a warp loads at once. With two, these GPUs have too few registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int PAIRS_OF_GRADIENTS = 1;
#else
constexpr int PAIRS_OF_GRADIENTS = 2;
#endif

// dY, recomputed from Y and G.
struct Gradients {
  static constexpr int PAIRS = PAIRS_OF_GRADIENTS;
  struct Neighbour {
    float4 y, g;
  };
  const float *y, *g;
  float4 mean, inverse, slope, dbeta, dgamma;

  __device__ __forceinline__ Gradients(const float* y, const float* g, unsigned units, const OfY& of)
      : y(at_own_columns(y, units)),
        g(at_own_columns(g, units)),
        mean(quad_of(of.columns.mean)),
        inverse(quad_of(of.columns.inverse)),
        slope(quad_of(of.columns.slope)),
        dbeta(quad_of(of.dbeta)),
        dgamma(quad_of(of.dgamma)) {}
  __device__ __forceinline__ Neighbour load(int row) const {
    return {*reinterpret_cast<const float4*>(y + row), *reinterpret_cast<const float4*>(g + row)};
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

}  // namespace fused
