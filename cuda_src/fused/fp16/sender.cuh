// The copy warps of the fp16 step. There is one for each group of rows: it sends the rows that the compute warps have
// written. The first one also fetches all that they read.
#pragma once

#include "fused/fp16/readout.cuh"

namespace fused {

template <int S>
struct StepSender {
  static constexpr int P = S * FP16_PANEL;
  StepShared& at;
  int lane, group, tile, slice;

  __device__ __forceinline__ const Fp16* weights(const Fp16* of_all, int panels) const {
    return of_all + static_cast<long long>(slice) * panels * (FP16_PANEL * FP16_PANEL);
  }
  __device__ __forceinline__ const Fp16* panel(const Fp16* panels) const {
    return panels + (static_cast<long long>(tile) * S + slice) * (TILE_ROWS * FP16_PANEL);
  }

  // Fetch the operands of the first product, whether this step has the tile or not.
  __device__ __forceinline__ void fetch_first() const {
    if (lane > 0) return;
    const Fp16Layer& layer = at.params.layers[0];
    const int panels = layer.K / FP16_PANEL;
    const Fp16* of_tile = layer.u + static_cast<long long>(tile) * panels * (TILE_ROWS * FP16_PANEL);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      expect_bytes(&at.full[group], panels * CHUNK_BYTES);
#pragma unroll 1
      for (int q = slice; q < panels; q += S) send_chunk<S>(at, of_tile + q * (TILE_ROWS * FP16_PANEL), q, group);
      if (group == 0) fetch_low(at, weights(layer.w_forward, panels), panels);
    }
    fetch_high(at, weights(layer.w_forward, panels), panels);
  }

  // Load A or its transpose.
  __device__ __forceinline__ void fetch_rows(bool transposed) const {
    const TileRows from(at.params, tile, transposed);
    const int count = from.indptr[TILE_ROWS] - from.first;
    constexpr int AT_ONCE = 16;
    int pointer[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) pointer[i] = from.indptr[min(lane + 32 * i, TILE_ROWS)] - from.first;
#pragma unroll 1
    for (int k = lane; count <= MAX_ENTRIES && k < count; k += AT_ONCE * 32) {
      int2 found[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) found[i] = from.entry(min(k + 32 * i, count - 1));
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        if (k + 32 * i < count) at.entries[k + 32 * i] = found[i];
    }
#pragma unroll
    for (int i = 0; i < 5; ++i)
      if (lane + 32 * i <= TILE_ROWS) at.indptr[lane + 32 * i] = static_cast<short>(pointer[i]);
  }

  // Load the rows of A and the graph of each row.
  __device__ __forceinline__ void fetch_tables() const {
    const StepParams& params = at.params;
    const int first_graph = params.tile_ptr[tile], n_graphs = params.tile_ptr[tile + 1] - first_graph;
    const int own = first_graph + min(lane, max(n_graphs - 1, 0));
    int row = params.node_ptr[own] - tile * TILE_ROWS, n = params.n_nodes[own];
    fetch_rows(false);
#pragma unroll 1
    for (int graph = lane; graph < n_graphs; graph += 32) {
      if (graph != lane)
        row = params.node_ptr[first_graph + graph] - tile * TILE_ROWS, n = params.n_nodes[first_graph + graph];
      at.first_row[graph] = static_cast<unsigned char>(row), at.graph_rows[graph] = static_cast<unsigned char>(n);
#pragma unroll 4
      for (int i = 0; i < n; ++i) at.graph_of_row[row + i] = static_cast<unsigned char>(graph);
    }
  }

  // Fetch what the readout reads for graphs `first` … of the tile; the weights come with the first graphs.
  __device__ __forceinline__ void fetch_head(int first) const {
    const StepParams& params = at.params;
    ReadoutShared& r = *reinterpret_cast<ReadoutShared*>(at.u);
    const int K = params.n_outputs, n_targets = params.loss == SOFTMAX ? 1 : K;
    const int n = min(at.step.n_graphs - first, READOUT_GRAPHS) * n_targets;
    if (first == 0) {
      const int bytes = FP16_PANEL * K * static_cast<int>(sizeof(float));
      if (lane == 0) {
        expect_bytes(&at.head_full, bytes);
        tma_copy(r.weights, params.head_weight + static_cast<long long>(slice) * FP16_PANEL * K, bytes, &at.head_full);
      }
      if (lane < 8) r.weights[FP16_PANEL * K + lane] = 0.f;
      if (lane == 8) r.label_weight = params.rates[4 * at.step.number + 3];
#pragma unroll 2
      for (int k = lane; k < K; k += 32) r.loss_weight[k] = params.loss_weight[k], r.bias[k] = params.head_bias[k];
    }
    const float* targets = params.targets + static_cast<long long>(at.step.first_graph + first) * n_targets;
#pragma unroll 4
    for (int e = lane; e < n; e += 32) r.targets[e] = targets[e];
  }

  // Notify all blocks that `u` may be overwritten here, and expect the next rows.
  __device__ __forceinline__ void release_u() const {
    if (lane < GROUPS) expect_bytes(&at.full[lane], S * CHUNK_BYTES);
    __syncwarp();
    if (lane < S) arrive_at_block(&at.u_released, lane);
  }

  // Send the rows of a group of this block's panel of U or V. After the last group, the rest of the weights replaces Z or
  // dY.
  __device__ __forceinline__ void send(const Fp16* from, const Fp16* of_weights, int phase) const {
    sync_named(ROWS_WRITTEN + group);
    if (lane == 0) {
      const bool is_last = group + 1 == GROUPS;
      if (is_last) wait_barrier(&at.rows_read, phase);
      fence_async_proxy();
      if (is_last) fetch_high(at, of_weights, S);
      wait_for_blocks(&at.u_released, phase);
      send_chunk<S>(at, from, slice, group);
    }
    __syncwarp();
  }

  // Follow the compute warps: L products forward, the readout, L - 1 products backward.
  __device__ __forceinline__ void run() const {
    const int L = at.params.n_layers;
    if (group == 0) {
      fetch_tables();
      arrive_named(TABLES);
    }
#pragma unroll 1
    for (int done = 0; done < 2 * L - 1; ++done) {
      const bool is_forward = done + 1 < L, is_last = done + 2 == 2 * L;
      const Fp16Layer& next = at.params.layers[is_forward ? done + 1 : is_last ? 0 : 2 * L - 2 - done];
      const Fp16* next_weights = weights(is_forward ? next.w_forward : next.w_backward, S);
      if (group == 0) {
        sync_named(MULTIPLIED);
        if (!is_last && lane == 0) fetch_low(at, next_weights, S);
      }
      if (done + 1 == L) follow_readout();
      if (is_last) break;
      if (group == 0) release_u();
      send(panel(is_forward ? next.u : next.v), next_weights, done & 1);
    }
  }

  __device__ __forceinline__ void follow_readout() const {
    if (group == 0) {
      fetch_head(0);
      arrive_named(HEAD);
    }
    sync_cluster();  // A is read
    if (group == 0) {
      if (at.params.t_indptr != nullptr) fetch_rows(true);
      arrive_named(TABLES);
    }
#pragma unroll 1
    for (int first = READOUT_GRAPHS; first < at.step.n_graphs; first += READOUT_GRAPHS) {
      sync_cluster();
      if (group == 0) {
        fetch_head(first);
        arrive_named(HEAD);
      }
      sync_cluster();
    }
    if (group == 0) {
      sync_named(READOUT_DONE);
      fence_async_proxy();  // rows of V replace what the readout read
    }
    arrive_at_end();
  }
};

}  // namespace fused
