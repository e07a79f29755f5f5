// Staging in tiles: as fused/shared/stage.cuh, for the fp16 step (fused/fp16/tiles.cuh).
#pragma once

#include "fused/fp16/tiles.cuh"
#include "fused/shared/stage.cuh"

namespace fused {

// All that staging reads and writes. Differences from Stage:
//   the batch     shape (2,), its number of tiles; tile_ptr (tiles + 1,), first graph of each tile; tile_rows (tiles,), rows
//                 in use; node_ptr (B,), first row of a graph; n_nodes (B,); rowsum (144 tiles,); indptr (144 tiles + 1,),
//                 columns counted inside the tile; u panels, zeros in rows of no graph
//   the epoch     graphs in the order of their tiles; rows instead of nodes: a graph's first row, and after a step's graphs
//                 its number of nodes; tile_starts (S, tiles + 1), first graph of each tile; tile_counts (S,)
//   the set       u (nodes, K) in fp16, K a multiple of 64; rowsum (nodes,)
struct Fp16Stage {
  int* size;
  int *shape, *tile_ptr, *tile_rows, *node_ptr, *n_nodes, *indptr, *indices;
  float *values, *rowsum;
  int *t_indptr, *t_indices;
  float* t_values;
  Fp16* u;
  int* targets;
  const int* progress;
  const int *batch_ptr, *graphs, *rows, *edges, *t_edges, *tile_starts, *tile_counts;
  const int *set_node_ptr, *set_indptr, *set_indices;
  const float* set_values;
  const int *set_t_indptr, *set_t_indices;
  const float *set_t_values, *set_rowsum;
  const Fp16* set_u;
  const int* set_targets;
  long long K, T, tiles;
};

// Stage rows first … first + n - 1 of a tile of u from the set, or zeros where `source` is null.
__device__ __forceinline__ void stage_u(const Fp16Stage& at, int tile, int first, const Fp16* source, int n) {
  constexpr int OF_PANEL = FP16_PANEL / 8;  // 16-byte chunks of a row
  const int panels = static_cast<int>(at.K) / FP16_PANEL, chunks = panels * OF_PANEL;
  const uint4* from = reinterpret_cast<const uint4*>(source);
  uint4* to = reinterpret_cast<uint4*>(at.u) + static_cast<long long>(tile) * TILE_ROWS * chunks;
#pragma unroll 2
  for (int e = threadIdx.x; e < n * chunks; e += blockDim.x) {
    const int r = e / chunks, q = e - r * chunks, row = first + r;
    to[(q / OF_PANEL * TILE_ROWS + row) * OF_PANEL + (q % OF_PANEL ^ row % 8)] =
        from ? from[e] : make_uint4(0, 0, 0, 0);
  }
}

// The step to stage: its first graph in the plan, its numbers of graphs and tiles.
struct StagedStep {
  int step, begin, B, tiles;
  const int* tile_starts;

  __device__ __forceinline__ explicit StagedStep(const Fp16Stage& at) : step(at.progress[Progress::NEXT]) {
    const bool exists = step >= at.progress[Progress::FIRST] && step < at.progress[Progress::END];
    begin = exists ? at.batch_ptr[step] : 0, B = exists ? at.batch_ptr[step + 1] - begin : 0;
    tiles = exists ? at.tile_counts[step] : 0;
    tile_starts = at.tile_starts + step * (at.tiles + 1);
  }
  __device__ __forceinline__ int pointers() const { return begin + step; }  // first of the step's pointers
};

template <class Wait>
__device__ __forceinline__ void stage_graph(const Fp16Stage& at, const StagedStep& of, int b, Wait wait) {
  const int graph = at.graphs[of.begin + b], row = at.rows[of.pointers() + b], tile = row / TILE_ROWS;
  const int source = at.set_node_ptr[graph], n = at.set_node_ptr[graph + 1] - source, T = at.T;
  const int first = row - tile * TILE_ROWS, edge = at.edges[of.pointers() + b];
  const Fp16* u = at.set_u + static_cast<long long>(source) * at.K;
  const Rows<StagersOfBlock> rows(at.set_indptr, at.set_indices, at.set_values, source, n);
  rows.ask(n);
  prefetch(u, n * static_cast<int>(at.K));
  prefetch(at.set_targets + static_cast<long long>(graph) * T, T);
  wait();
  if (threadIdx.x == 0) at.node_ptr[b] = row, at.n_nodes[b] = n;
  rows.stage(at.indptr, at.indices, at.values, row, n, edge, first);
  if (at.t_indptr) {
    const Rows<StagersOfBlock> t_rows(at.set_t_indptr, at.set_t_indices, at.set_t_values, source, n);
    t_rows.stage(at.t_indptr, at.t_indices, at.t_values, row, n, at.t_edges[of.pointers() + b], first);
  }
  stage_u(at, tile, first, u, n);
  StagersOfBlock::copy(at.rowsum + row, at.set_rowsum + source, n, [](float sum) { return sum; });
  StagersOfBlock::copy(at.targets + b * T, at.set_targets + static_cast<long long>(graph) * T, T,
                       [](int bits) { return bits; });
}

// Stage what a tile has besides its graphs: its first graph, and rows of zeros after the last one.
template <class Wait>
__device__ __forceinline__ void stage_tile(const Fp16Stage& at, const StagedStep& of, int tile, Wait wait) {
  const int start = of.tile_starts[tile], end = of.tile_starts[tile + 1], last = of.pointers() + end - 1;
  int used = 0;
  if (end > start) {
    const int graph = at.graphs[of.begin + end - 1];
    used = at.rows[last] - tile * TILE_ROWS + at.set_node_ptr[graph + 1] - at.set_node_ptr[graph];
  }
  const int first = tile * TILE_ROWS + used, n = TILE_ROWS - used, is_last = tile == of.tiles - 1;
  const int edge = at.edges[last + 1], t_edge = at.t_indptr ? at.t_edges[last + 1] : 0;
  wait();
  if (threadIdx.x == 0) {
    at.tile_ptr[tile] = start, at.tile_rows[tile] = used;
    if (is_last) at.tile_ptr[of.tiles] = of.B;
  }
  stage_u(at, tile, used, nullptr, n);
  for (int r = threadIdx.x; r < n + is_last; r += blockDim.x) {
    at.indptr[first + r] = edge;
    if (at.t_indptr) at.t_indptr[first + r] = t_edge;
    if (r < n) at.rowsum[first + r] = 0.f;
  }
}

// Stage the next step, if there is one; block `block` of `blocks` takes every blocks-th graph or tile. `wait` may be called
// more than once, as in stage_batch.
template <class Wait>
__device__ __forceinline__ void stage_tiles(const Fp16Stage& at, int block, int blocks, Wait wait) {
  const StagedStep of(at);
#pragma unroll 1
  for (int unit = block; unit < of.B + of.tiles; unit += blocks) {
    if (unit < of.B) {
      stage_graph(at, of, unit, wait);
    } else {
      stage_tile(at, of, unit - of.B, wait);
    }
  }
  wait();
  if (of.tiles > 0 && block == 0 && threadIdx.x == 0) {
    const int N = at.rows[of.pointers() + of.B];
    BatchSize::write(at.size, N, of.B, of.step, at.progress[Progress::EPOCH]);
    at.shape[0] = of.tiles;
  }
}

}  // namespace fused
