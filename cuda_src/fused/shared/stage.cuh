// Staging: copy the next batch from the data set on the device to the arrays that a step reads, at fixed addresses.
#pragma once

#include "fused/shared/fused.cuh"
#include "graph/join.cuh"

namespace fused {

// Arguments of staging; the host fills them once.
struct Stage {
  // The batch: its size; node_ptr (B+1,); adjacency (N, N C), or with a row for each node and channel (N C, N), and its
  // transpose (N C, N) in CSR (null: the same); x (N, K): U of the first layer; targets (B, T) as bits; features (B, D): those of
  // whole graphs, scaled.
  int* size;
  int *node_ptr, *indptr, *indices;
  float* values;
  int *t_indptr, *t_indices;
  float *t_values, *x;  // x null: kernels read the rows of the data set, whose numbers `source` (N,) has
  int* source;
  int* targets;
  float* features;
  // The epoch; graphs: all graphs in order; batch_ptr (S+1,): each step's first entry of graphs; nodes, edges, t_edges: each
  // graph's first node or edge in its batch, and after a step's graphs the step's total, so that step s begins at
  // batch_ptr[s] + s.
  const int* progress;
  const int *batch_ptr, *graphs, *nodes, *edges, *t_edges;
  // The data set: node_ptr (G+1,); CSR with node indices relative to the graph; x (nodes, K); targets (G, T);
  // features (G, D) and the scaling of its columns (`scaled_feature`).
  const int *set_node_ptr, *set_indptr, *set_indices;
  const float* set_values;
  const int *set_t_indptr, *set_t_indices;
  const float *set_t_values, *set_x;
  const int* set_targets;
  const float *set_features, *feature_mean, *feature_scale;
  // panel_rows: x is written as panels of so many rows (in_panel), padded with zeros; 0: as rows of K columns.
  long long C, K, T, D, panel_rows;
  long long rows_of_node;  // of the adjacency: 1 or C
  float feature_limit;
  const int2* set_starts;  // (G+1,): each graph's first node, and first entry of the adjacency
};

// The threads that stage a graph together. A model alone gives each graph a block, so that it is staged soon; a cohort has a graph
// for every warp.
template <bool ARE_WARPS_>
struct Stagers {
  static constexpr bool ARE_WARPS = ARE_WARPS_;

  __device__ __forceinline__ static unsigned rank() { return ARE_WARPS ? threadIdx.x % 32 : threadIdx.x; }
  __device__ __forceinline__ static unsigned size() { return ARE_WARPS ? 32 : blockDim.x; }
  // This team's number among those of all blocks, for block `block`; and how many teams `blocks` blocks have.
  __device__ __forceinline__ static int number(int block) {
    return ARE_WARPS ? block * (blockDim.x / 32) + threadIdx.x / 32 : block;
  }
  __device__ __forceinline__ static int in_all(int blocks) { return ARE_WARPS ? blocks * (blockDim.x / 32) : blocks; }

  // Copy `count` elements through `change`. A warp has AT_ONCE loads in flight a lane: the compiler does not move loads above
  // stores, which may go to the same place for all that it knows.
  template <int AT_ONCE = 2, class T, class Change>
  __device__ __forceinline__ static void copy(T* target, const T* source, int count, Change change) {
    if constexpr (ARE_WARPS) {
#pragma unroll 1
      for (int first = rank(); first < count; first += 32 * AT_ONCE) {
        T held[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u)
          if (first + 32 * u < count) held[u] = source[first + 32 * u];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u)
          if (first + 32 * u < count) target[first + 32 * u] = change(held[u]);
      }
    } else {
#pragma unroll 4
      for (int i = rank(); i < count; i += size()) target[i] = change(source[i]);
    }
  }
};

constexpr int SECTOR = 32;                 // bytes of an L2 sector
constexpr int QUADS = 6, QUADS_EARLY = 5;  // float4 loads of a lane in flight; a graph of 19 nodes has 12 of 80 columns

using StagersOfBlock = Stagers<false>;

// Prefetch `count` elements into L2; the stagers share the work.
template <class Team = StagersOfBlock, class T>
__device__ __forceinline__ void prefetch(const T* source, int count) {
  const char* from = reinterpret_cast<const char*>(source);
  const int bytes = count * static_cast<int>(sizeof(T));
#pragma unroll 1
  for (int at = Team::rank() * SECTOR; at < bytes; at += Team::size() * SECTOR) prefetch_to_l2(from + at);
}

// One graph's rows of a CSR matrix in the batch, and their source in the data set.
template <class Team>
struct Rows {
  const int* set_indptr;
  const int* set_indices;
  const float* set_values;
  int source, n_entries;

  __device__ Rows(const int* indptr, const int* indices, const float* values, int source_row, int n_rows)
      : set_indptr(indptr + source_row),
        set_indices(indices),
        set_values(values),
        source(indptr[source_row]),
        n_entries(indptr[source_row + n_rows] - source) {}
  // The same, where the first entry and their number are known: two loads fewer, one after the other.
  __device__ Rows(const int* indptr, const int* indices, const float* values, int source_row, int source, int n_entries)
      : set_indptr(indptr + source_row),
        set_indices(indices),
        set_values(values),
        source(source),
        n_entries(n_entries) {}

  __device__ void ask_starts(int n_rows) const { prefetch<Team>(set_indptr, n_rows); }
  __device__ void ask(int n_rows) const {
    ask_starts(n_rows);
    prefetch<Team>(set_indices + source, n_entries);
    prefetch<Team>(set_values + source, n_entries);
  }

  __device__ void stage_starts(int* indptr, int row, int n_rows, int first_entry) const {
    const int shift = first_entry - source;
    Team::copy(indptr + row, set_indptr, n_rows, [=](int entry) { return entry + shift; });
  }
  __device__ void stage_entries(int* indices, float* values, int first_entry, int column_shift) const {
    Team::copy(indices + first_entry, set_indices + source, n_entries,
               [=](int column) { return column + column_shift; });
    Team::copy(values + first_entry, set_values + source, n_entries, [](float value) { return value; });
  }
  __device__ void stage(int* indptr, int* indices, float* values, int row, int n_rows, int first_entry,
                        int column_shift) const {
    stage_starts(indptr, row, n_rows, first_entry);
    stage_entries(indices, values, first_entry, column_shift);
  }
};

// Write rows first … first + n - 1 of U from the data set, or zeros if `source` is null.
template <class Team, int QUADS_AT_ONCE = QUADS>
__device__ __forceinline__ void stage_x(const Stage& at, int first, const float* source, int n) {
  const int K = at.K, chunks = K / 4, rows = static_cast<int>(at.panel_rows);
  const float4* from = reinterpret_cast<const float4*>(source);
  if (Team::ARE_WARPS && rows == 0) {
    float4* to = reinterpret_cast<float4*>(at.x + static_cast<long long>(first) * K);
    return Team::template copy<QUADS_AT_ONCE>(to, from, n * chunks, [](float4 quad) { return quad; });
  }
#pragma unroll 2
  for (int e = Team::rank(); e < n * chunks; e += Team::size()) {
    const int r = e / chunks, q = e - r * chunks;
    const long long to = rows ? in_panel(first + r, 4 * q, rows) : static_cast<long long>(first) * K + 4 * e;
    *reinterpret_cast<float4*>(at.x + to) = from ? from[e] : make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// Write row b of the scaled features from those of a graph of the data set. A thread has as many in flight as registers allow.
template <class Team>
__device__ __forceinline__ void stage_features(const Stage& at, int b, const float* source) {
  constexpr int FEATURES_AT_ONCE = Team::ARE_WARPS ? 2 : 4;
  const int D = at.D, size = Team::size();
  float* to = at.features + b * D;
#pragma unroll 1
  for (int first = Team::rank(); first < D; first += FEATURES_AT_ONCE * size) {
    float scaled[FEATURES_AT_ONCE];
#pragma unroll
    for (int u = 0; u < FEATURES_AT_ONCE; ++u) {
      const int d = first + u * size;
      if (d < D) scaled[u] = scaled_feature(source[d], at.feature_mean[d], at.feature_scale[d], at.feature_limit);
    }
#pragma unroll
    for (int u = 0; u < FEATURES_AT_ONCE; ++u)
      if (first + u * size < D) to[first + u * size] = scaled[u];
  }
}

// Where a graph begins in the data set.
template <class Team>
struct SourceGraph {
  int first;   // node
  int2 entry;  // its first entry and its end; of warps, which read all at once

  __device__ __forceinline__ SourceGraph(const Stage& at, int graph) {
    if constexpr (Team::ARE_WARPS) {
      const int2 start = at.set_starts[graph], end = at.set_starts[graph + 1];
      first = start.x, entry = make_int2(start.y, end.y);
    } else {
      first = at.set_node_ptr[graph];
    }
  }
  // The rows of the adjacency of its n nodes.
  __device__ __forceinline__ Rows<Team> rows(const Stage& at, int n, int of_node) const {
    if constexpr (Team::ARE_WARPS) {
      return {at.set_indptr, at.set_indices, at.set_values, first * of_node, entry.x, entry.y - entry.x};
    } else {
      return {at.set_indptr, at.set_indices, at.set_values, first * of_node, n * of_node};
    }
  }
};

// Write rows row … row + n - 1 of U, which begin at `source` in the data set, or where they are.
template <class Team, int QUADS_AT_ONCE>
__device__ __forceinline__ void stage_nodes(const Stage& at, int row, int source, int n) {
  if (at.x) {
    stage_x<Team, QUADS_AT_ONCE>(at, row, at.set_x + static_cast<long long>(source) * at.K, n);
  } else {
#pragma unroll 1
    for (int r = Team::rank(); r < n; r += Team::size()) at.source[row + r] = source + r;
  }
}

// A member's next step; `progress` is that of `at`, which warps read without waiting for `at`.
struct NextStep {
  int step, epoch, begin, B, pointers;  // its graphs begin at `begin` in the plan, their places at `pointers`
  bool exists;                          // otherwise B = 0
};

template <class Team>
__device__ __forceinline__ NextStep next_step(const Stage& at, const int* progress) {
  const int step = Progress::read(Team::ARE_WARPS ? progress : at.progress).next;
  const int4 steps = *reinterpret_cast<const int4*>(at.progress + Progress::FIRST);  // first, end, epoch
  const bool exists = step >= steps.x && step < steps.y;
  const int begin = exists ? at.batch_ptr[step] : 0, B = exists ? at.batch_ptr[step + 1] - begin : 0;
  return {step, steps.z, begin, B, begin + step, exists};
}

// Stage the next step; the teams of block `block` of `blocks` take graphs in turn with those of the other blocks. A member without
// a step in this epoch gets an empty batch, B = 0: it is idle. Before `wait`, a team reads the plan and prefetches its graph into
// L2. It writes after `wait` only, because other blocks may still read the current batch. `wait` may be called more than once.
template <class Team, class Wait>
__device__ __forceinline__ void stage_batch(const Stage& at, const int* progress, int block, int blocks, Wait wait) {
  const auto [step, epoch, begin, B, pointers, exists] = next_step<Team>(at, progress);
  const int C = at.C, T = at.T, of_node = at.rows_of_node;
#pragma unroll 1
  for (int b = Team::number(block); b < B; b += Team::in_all(blocks)) {
    const int graph = at.graphs[begin + b], row = at.nodes[pointers + b], n = at.nodes[pointers + b + 1] - row;
    const SourceGraph<Team> found(at, graph);
    const int source = found.first, edge = at.edges[pointers + b];
    const Rows<Team> rows = found.rows(at, n, of_node);
    rows.ask(n * of_node);
    prefetch<Team>(at.set_x + static_cast<long long>(source) * at.K, n * static_cast<int>(at.K));
    prefetch<Team>(at.set_targets + static_cast<long long>(graph) * T, T);
    const float* features = at.set_features + graph * at.D;
    prefetch<Team>(features, static_cast<int>(at.D));
    wait();
    if (Team::rank() == 0) at.node_ptr[b] = row;
    rows.stage(at.indptr, at.indices, at.values, row * of_node, n * of_node, edge, of_node == C ? row : row * C);
    if (at.t_indptr) {
      const Rows<Team> t_rows(at.set_t_indptr, at.set_t_indices, at.set_t_values, source * C, n * C);
      t_rows.stage(at.t_indptr, at.t_indices, at.t_values, row * C, n * C, at.t_edges[pointers + b], row);
    }
    stage_nodes<Team, QUADS>(at, row, source, n);
    Team::copy(at.targets + b * T, at.set_targets + static_cast<long long>(graph) * T, T,
               [](int bits) { return bits; });
    stage_features<Team>(at, b, features);
  }
  wait();
  if (block == 0 && threadIdx.x == 0) {
    const int N = exists ? at.nodes[pointers + B] : 0;
    BatchSize::write(at.size, N, B, step, epoch);
    if (!exists) return;
    at.node_ptr[B] = N;
    at.indptr[N * of_node] = at.edges[pointers + B];
    if (at.t_indptr) at.t_indptr[N * C] = at.t_edges[pointers + B];
  }
  if (exists && block == 0 && at.panel_rows) {
    const int N = at.nodes[pointers + B];
    stage_x<StagersOfBlock>(at, N, nullptr, ceil_div(N, PANEL) * PANEL - N);
  }
}

// The same beside a kernel that reads no more of the current batch than its size, its rows of U, and where rows of A begin: all
// else is written before `wait`. Registers are short: a lane has fewer loads of U in flight.
template <class Team, class Wait>
__device__ __forceinline__ void stage_batch_early(const Stage& at, const int* progress, int block, int blocks,
                                                  Wait wait) {
  const auto [step, epoch, begin, B, pointers, exists] = next_step<Team>(at, progress);
  const int C = at.C, T = at.T, of_node = at.rows_of_node;
#pragma unroll 1
  for (int b = Team::number(block); b < B; b += Team::in_all(blocks)) {
    const int graph = at.graphs[begin + b], row = at.nodes[pointers + b], n = at.nodes[pointers + b + 1] - row;
    const SourceGraph<Team> found(at, graph);
    const int source = found.first, edge = at.edges[pointers + b];
    const Rows<Team> rows = found.rows(at, n, of_node);
    const float* features = at.set_features + graph * at.D;
    const auto stage_rest = [&] {
      if (Team::rank() == 0) at.node_ptr[b] = row;
      rows.stage_entries(at.indices, at.values, edge, of_node == C ? row : row * C);
      Team::copy(at.targets + b * T, at.set_targets + static_cast<long long>(graph) * T, T,
                 [](int bits) { return bits; });
      stage_features<Team>(at, b, features);
    };
    rows.ask_starts(n * of_node);
    prefetch<Team>(at.set_x + static_cast<long long>(source) * at.K, n * static_cast<int>(at.K));
    stage_rest();
    wait();
    rows.stage_starts(at.indptr, row * of_node, n * of_node, edge);
    if (at.t_indptr) {
      const Rows<Team> t_rows(at.set_t_indptr, at.set_t_indices, at.set_t_values, source * C, n * C);
      const int t_edge = at.t_edges[pointers + b];
      t_rows.stage_starts(at.t_indptr, row * C, n * C, t_edge);
      t_rows.stage_entries(at.t_indices, at.t_values, t_edge, row);
    }
    stage_nodes<Team, QUADS_EARLY>(at, row, source, n);
  }
  const int N = exists && block == 0 ? at.nodes[pointers + B] : 0;
  const bool writes_end = exists && block == 0 && threadIdx.x == 0;
  const int end = writes_end ? at.edges[pointers + B] : 0;
  wait();
  if (block == 0 && threadIdx.x == 0) BatchSize::write(at.size, N, B, step, epoch);
  if (writes_end) {
    at.node_ptr[B] = N;
    at.indptr[N * of_node] = end;
    if (at.t_indptr) at.t_indptr[N * C] = at.t_edges[pointers + B];
  }
  if (exists && block == 0 && at.panel_rows) stage_x<StagersOfBlock>(at, N, nullptr, ceil_div(N, PANEL) * PANEL - N);
}

}  // namespace fused
