// Staging: copy the next batch from the data set on the device to the arrays that a step reads, at fixed addresses.
#pragma once

#include "fused/shared/fused.cuh"
#include "graph/join.cuh"

namespace fused {

// Arguments of staging; the host fills them once.
struct Stage {
  // The batch: its size; node_ptr (B+1,); adjacency (N, N C) and its transpose (null: symmetric, of
  // one channel) in CSR; x (N, K): U of the first layer; targets (B, T) as bits; features (B, D): those of whole graphs, scaled.
  int* size;
  int *node_ptr, *indptr, *indices;
  float* values;
  int *t_indptr, *t_indices;
  float *t_values, *x;
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
  float feature_limit;
};

// Copy `count` elements through `change`; all threads of the block share the work.
template <class T, class Change>
__device__ __forceinline__ void copy(T* target, const T* source, int count, Change change) {
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) target[i] = change(source[i]);
}

constexpr int SECTOR = 32;  // bytes of an L2 sector

// Prefetch `count` elements into L2; all threads of the block share the work.
template <class T>
__device__ __forceinline__ void prefetch(const T* source, int count) {
  const char* from = reinterpret_cast<const char*>(source);
  const int bytes = count * static_cast<int>(sizeof(T));
#pragma unroll 1
  for (int at = threadIdx.x * SECTOR; at < bytes; at += blockDim.x * SECTOR)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

// One graph's rows of a CSR matrix in the batch, and their source in the data set.
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

  __device__ void ask(int n_rows) const {
    prefetch(set_indptr, n_rows);
    prefetch(set_indices + source, n_entries);
    prefetch(set_values + source, n_entries);
  }

  __device__ void stage(int* indptr, int* indices, float* values, int row, int n_rows, int first_entry,
                        int column_shift) const {
    const int shift = first_entry - source;
    copy(indptr + row, set_indptr, n_rows, [=](int entry) { return entry + shift; });
    copy(indices + first_entry, set_indices + source, n_entries, [=](int column) { return column + column_shift; });
    copy(values + first_entry, set_values + source, n_entries, [](float value) { return value; });
  }
};

// Write rows first … first + n - 1 of U from the data set, or zeros if `source` is null.
__device__ __forceinline__ void stage_x(const Stage& at, int first, const float* source, int n) {
  const int K = at.K, chunks = K / 4, rows = static_cast<int>(at.panel_rows);
  const float4* from = reinterpret_cast<const float4*>(source);
#pragma unroll 2
  for (int e = threadIdx.x; e < n * chunks; e += blockDim.x) {
    const int r = e / chunks, q = e - r * chunks;
    const long long to = rows ? in_panel(first + r, 4 * q, rows) : static_cast<long long>(first) * K + 4 * e;
    *reinterpret_cast<float4*>(at.x + to) = from ? from[e] : make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// Write row b of the scaled features from those of a graph of the data set.
__device__ __forceinline__ void stage_features(const Stage& at, int b, const float* source) {
  const int D = at.D;
#pragma unroll 1
  for (int d = threadIdx.x; d < D; d += blockDim.x)
    at.features[b * D + d] = scaled_feature(source[d], at.feature_mean[d], at.feature_scale[d], at.feature_limit);
}

// Stage the next step; block `block` of `blocks` takes every blocks-th graph. A member without a step in this epoch gets an
// empty batch, B = 0: it rests. Before `wait`, the block reads
// the plan and prefetches its graph into L2. It writes after `wait` only, because other blocks may still read the current
// batch. `wait` may be called more than once.
template <class Wait>
__device__ __forceinline__ void stage_batch(const Stage& at, int block, int blocks, Wait wait) {
  const int step = Progress::read(at.progress).next;
  const int4 steps = *reinterpret_cast<const int4*>(at.progress + Progress::FIRST);  // first, end, epoch
  const bool exists = step >= steps.x && step < steps.y;
  const int begin = exists ? at.batch_ptr[step] : 0, B = exists ? at.batch_ptr[step + 1] - begin : 0;
  const int pointers = begin + step, C = at.C, T = at.T;
#pragma unroll 1
  for (int b = block; b < B; b += blocks) {
    const int graph = at.graphs[begin + b], row = at.nodes[pointers + b], n = at.nodes[pointers + b + 1] - row;
    const int source = at.set_node_ptr[graph], edge = at.edges[pointers + b];
    const Rows rows(at.set_indptr, at.set_indices, at.set_values, source, n);
    rows.ask(n);
    prefetch(at.set_x + static_cast<long long>(source) * at.K, n * static_cast<int>(at.K));
    prefetch(at.set_targets + static_cast<long long>(graph) * T, T);
    const float* features = at.set_features + graph * at.D;
    prefetch(features, static_cast<int>(at.D));
    wait();
    if (threadIdx.x == 0) at.node_ptr[b] = row;
    rows.stage(at.indptr, at.indices, at.values, row, n, edge, row * C);
    if (at.t_indptr) {
      const Rows t_rows(at.set_t_indptr, at.set_t_indices, at.set_t_values, source * C, n * C);
      t_rows.stage(at.t_indptr, at.t_indices, at.t_values, row * C, n * C, at.t_edges[pointers + b], row);
    }
    stage_x(at, row, at.set_x + static_cast<long long>(source) * at.K, n);
    copy(at.targets + b * T, at.set_targets + static_cast<long long>(graph) * T, T, [](int bits) { return bits; });
    stage_features(at, b, features);
  }
  wait();
  if (block == 0 && threadIdx.x == 0) {
    const int N = exists ? at.nodes[pointers + B] : 0;
    BatchSize::write(at.size, N, B, step, steps.z);
    if (!exists) return;
    at.node_ptr[B] = N;
    at.indptr[N] = at.edges[pointers + B];
    if (at.t_indptr) at.t_indptr[N * C] = at.t_edges[pointers + B];
  }
  if (exists && block == 0 && at.panel_rows) {
    const int N = at.nodes[pointers + B];
    stage_x(at, N, nullptr, ceil_div(N, PANEL) * PANEL - N);
  }
}

}  // namespace fused
