// Sums over neighbours, where a team of warps has a tile (fused/narrow/warps.cuh): the entries of A in shared memory, and what is summed.
// No kernels here.
//
// A warp's time is mostly the latency of its neighbours' rows. So an entry says where a row begins, the loads of several pairs of
// rows are issued before the first is used, and none waits for a branch.
#pragma once

#include "fused/narrow/warps.cuh"

namespace fused {

constexpr int ENTRIES_OF_ROW = 6;  // of A in shared memory, on average over a warp's rows; the others are in memory
constexpr int ENTRIES_OF_WARP = TILE * ENTRIES_OF_ROW + BATCH;  // a warp reads up to BATCH beyond its last one
constexpr int ENTRIES_OF_WARPS = 2 * WARPS * ENTRIES_OF_WARP;   // floats: rows of nodes, and factors

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
  static constexpr int PAIRS = 2;  // of rows whose neighbours a warp loads at once
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

}  // namespace fused
