// The middle of a pass: from Z of the last layer to the loss and back to G of every row.
//
//   R[b] = sum | mean | max over the rows of graph b of Z,    logits = R W + b
//
// A block has 64 columns of R and the rows of W that belong to them. It sends its part of a graph's logits to the block that
// has the graph, in whose shared memory the slices' parts are added in order; that block finds loss and gradient, and sends
// the gradient to all. Then dR of a block's columns, and G = dR where Z > 0. READ_GRAPHS graphs are taken at a time.
//
// Shared memory: ReadShared, in the place of the tile of U, which is free here; Z stays where it is. Bank conflicts: of the
// rows of W, which lie as they come, and of what the pool writes.
#pragma once

#include "fused_pass_product.cuh"
#include "fused_readout.cuh"

namespace fused {

constexpr int READ_GRAPHS = 16, NO_ROW = 255;
constexpr int GRAPH_LD = READ_GRAPHS + 4, LOGIT_LD = MAX_OUTPUTS + 4;

struct ReadShared {
  float weights[HALF_PANEL * MAX_OUTPUTS];              // rows as they come
  float pooled[HALF_PANEL][GRAPH_LD];                   // R of the graphs at hand
  float inbox[READ_GRAPHS + 2][LOGIT_LD];               // parts of this block's graphs, those of the slices side by side
  float logits[READ_GRAPHS / 2][LOGIT_LD], own_gradient[READ_GRAPHS / 2][LOGIT_LD];  // of this block's graphs
  float gradient[MAX_OUTPUTS][GRAPH_LD];                // of all
  float targets[READ_GRAPHS * MAX_OUTPUTS], loss_weight[MAX_OUTPUTS], bias[MAX_OUTPUTS];
  float back[TILE_ROWS][ROW_LD];                        // dR of all graphs of the tile
  double losses[READ_GRAPHS];
  float label_weight;
  unsigned char peaks[TILE_ROWS][HALF_PANEL];
};
static_assert(sizeof(ReadShared) <= sizeof(PassShared::u), "the readout does not fit in the place of U");

// Four lanes, numbered s, have a sum of each of four graphs; each gets that of graph s. `to` is ordered by graphs.
__device__ __forceinline__ float scatter_sums(const float (&sum)[4], int s) {
  const bool odd = s & 1, upper = s & 2;
  const float low = upper ? sum[0] : sum[2], high = upper ? sum[1] : sum[3];  // what the other half wants
  const float first = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(FULL_WARP, low, 2);
  const float second = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(FULL_WARP, high, 2);
  return (odd ? second : first) + __shfl_xor_sync(FULL_WARP, odd ? first : second, 1);
}

__device__ __forceinline__ void add_quad(float (&sum)[4], float factor, const float4& of_graphs) {
  sum[0] = fmaf(factor, of_graphs.x, sum[0]), sum[1] = fmaf(factor, of_graphs.y, sum[1]);
  sum[2] = fmaf(factor, of_graphs.z, sum[2]), sum[3] = fmaf(factor, of_graphs.w, sum[3]);
}

// S slices; `tile` and `slice` are this block's.
template <int S>
struct PassReadout {
  static constexpr int P = S * HALF_PANEL;
  PassShared& at;
  const Owner& own;
  int tile, slice;

  __device__ __forceinline__ ReadShared& read() const { return *reinterpret_cast<ReadShared*>(at.u); }
  __device__ __forceinline__ int outputs() const { return static_cast<int>(at.pass.n_outputs); }

  // R of the graphs from `first` on: a warp has a graph, a lane columns lane and lane + 32.
  __device__ __forceinline__ void pool(int first, int n) const {
    const int kind = static_cast<int>(at.pass.readout);
#pragma unroll 1
    for (int graph = own.warp; graph < n; graph += WORKERS / 32) {
      const int begin = at.first_row[first + graph], rows = at.graph_rows[first + graph];
      float sum[2] = {};
      int peak[2] = {NO_ROW, NO_ROW};
      if (kind == 2) {
#pragma unroll 2
        for (int i = begin; i < begin + rows; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float z = at.rows[i][own.lane + 32 * half];
            if (peak[half] == NO_ROW || is_higher(z, i, sum[half], peak[half])) sum[half] = z, peak[half] = i;
          }
        }
      } else {
#pragma unroll 8
        for (int i = begin; i < begin + rows; ++i) sum[0] += at.rows[i][own.lane], sum[1] += at.rows[i][own.lane + 32];
      }
      float* input = at.pass.input + static_cast<long long>(at.step.first_graph + first + graph) * P + slice * HALF_PANEL;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = own.lane + 32 * half;
        const float pooled = kind == 1 && rows > 0 ? sum[half] / rows : sum[half];
        read().pooled[c][graph] = pooled;
        if (kind == 2) read().peaks[first + graph][c] = static_cast<unsigned char>(peak[half]);
        input[c] = pooled;
      }
    }
  }

  // This slice's part of the logits, to the blocks that have the graphs: 16 outputs and four graphs a warp at a time. Four
  // lanes share two outputs, each has every fourth column.
  __device__ __forceinline__ void multiply(int n) const {
    const ReadShared& r = read();
    const int K = outputs(), s = own.t, width = ceil_div(K, 16), jobs = width * ceil_div(n, 4);
#pragma unroll 1
    for (int job = own.warp; job < jobs; job += WORKERS / 32) {
      const int quad = job / width, k = (job - quad * width) * 16 + own.g, other = k + 8;
      float sum[4] = {}, of_other[4] = {};
      const float *weight = r.weights + s * K + min(k, K - 1), *next = r.weights + s * K + min(other, K - 1);
#pragma unroll 4
      for (int i = 0; i < HALF_PANEL / 4; ++i) {
        const float4 pooled = *reinterpret_cast<const float4*>(&r.pooled[4 * i + s][4 * quad]);
        add_quad(sum, weight[4 * i * K], pooled);
        add_quad(of_other, next[4 * i * K], pooled);
      }
      const float found = scatter_sums(sum, s), found_other = scatter_sums(of_other, s);
      const int graph = 4 * quad + s, round = graph / S;
      if (graph >= n) continue;
      const unsigned to = address_in_block(r.inbox[round * S + slice], graph - round * S);
      if (k < K) store_in_block(to + 4 * k, found);
      if (other < K) store_in_block(to + 4 * other, found_other);
    }
  }

  // Loss and gradient of this block's graphs, a warp each: to all blocks.
  __device__ __forceinline__ void find_losses(int first, int n) const {
    const int K = outputs(), round = own.warp, graph = round * S + slice;
    if (graph >= n) return;
    ReadShared& r = read();
#pragma unroll 2
    for (int k = own.lane; k < K; k += 32) {
      float sum = r.bias[k];
#pragma unroll
      for (int s = 0; s < S; ++s) sum += r.inbox[round * S + s][k];
      r.logits[round][k] = sum;
    }
    __syncwarp();
    float* gradient = r.own_gradient[round];
    const double loss =
        loss_of_graph<4>(gradient, r.logits[round], r.targets + graph * (at.pass.loss == 1 ? 1 : K), r.loss_weight, K,
                         static_cast<int>(at.pass.loss), r.label_weight);
    float* result = at.pass.gradient + static_cast<long long>(at.step.first_graph + first + graph) * K;
#pragma unroll 2
    for (int k = own.lane; k < K; k += 32) {  // what this lane wrote
      const float own_gradient = gradient[k];
#pragma unroll
      for (int s = 0; s < S; ++s) store_in_block(address_in_block(&r.gradient[k][graph], s), own_gradient);
      result[k] = own_gradient;
    }
    if (own.lane > 0) return;
    const unsigned to = address_in_block(r.losses + graph, 0);  // the first block adds them up
    store_in_block(to, __int_as_float(__double2loint(loss)));
    store_in_block(to + 4, __int_as_float(__double2hiint(loss)));
  }

  // dR, divided by the rows of a graph for means: eight columns and four graphs a warp at a time. Four lanes share a column,
  // each has every fourth output.
  __device__ __forceinline__ void multiply_back(int first, int n) const {
    ReadShared& r = read();
    const int K = outputs(), s = own.t, jobs = HALF_PANEL / 8 * ceil_div(n, 4);
#pragma unroll 1
    for (int job = own.warp; job < jobs; job += WORKERS / 32) {
      const int quad = job / (HALF_PANEL / 8), f = job % (HALF_PANEL / 8) * 8 + own.g, graph = 4 * quad + s;
      float sum[4] = {};
#pragma unroll 4
      for (int k = s; k < K; k += 4)
        add_quad(sum, r.weights[f * K + k], *reinterpret_cast<const float4*>(&r.gradient[k][4 * quad]));
      const float found = scatter_sums(sum, s);
      if (graph >= n) continue;
      const float rows = at.pass.readout == 1 ? max(static_cast<int>(at.graph_rows[first + graph]), 1) : 1;
      r.back[first + graph][f] = __fdividef(found, rows);
    }
  }

  // G of this thread's values: dR where it is open.
  template <class IsOpen>
  __device__ __forceinline__ void give(float (&g)[OWN], IsOpen is_open) const {
#pragma unroll
    for (int i = 0; i < OWN; i += 4) {
      const int row = own.row(i);  // and the next one
      const unsigned pair = *reinterpret_cast<const unsigned short*>(at.graph_of_row + row);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const unsigned found = pair >> 8 * e & 255;
        const int graph = found == NO_ROW ? 0 : found;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool is_there = found != NO_ROW && is_open(i + e + 2 * h, graph, row + e, own.column(h));
          g[i + e + 2 * h] = is_there ? read().back[graph][own.column(h)] : 0.f;
        }
      }
    }
  }

  // What the workers of all blocks have stored in this one's shared memory is there.
  __device__ __forceinline__ static void meet(unsigned long long* barrier, int first) {
    sync_workers();
    if (threadIdx.x < S) arrive_at_block(barrier, threadIdx.x);
    wait_for_blocks(barrier, first / READ_GRAPHS & 1);
  }

  // From Z in `rows` to G of this thread's values; `is_positive(i)`: whether Z > 0.
  template <class IsPositive>
  __device__ __forceinline__ void run(float (&g)[OWN], IsPositive is_positive) const {
    ReadShared& r = read();
    double total = 0.0;
#pragma unroll 1
    for (int first = 0; first < max(at.step.n_graphs, 1); first += READ_GRAPHS) {
      const int n = min(at.step.n_graphs - first, READ_GRAPHS);
      if (first > 0) {
        arrive_at_cluster();
        wait_for_cluster();  // all blocks have read the parts
      }
      pool(first, n);
      if (first == 0) wait_barrier(&at.head, 0);
      wait_for(HEAD);
      STAMP(48);
      multiply(n);
      STAMP(49);
      meet(&at.are_read, first);
      STAMP(50);
      find_losses(first, n);
      STAMP(51);
      meet(&at.are_back, first);
      STAMP(52);
      multiply_back(first, n);
      for (int graph = 0; slice == 0 && threadIdx.x == WORKERS - 1 && graph < n; ++graph) total += r.losses[graph];
      sync_workers();
      STAMP(53);
    }
    if (at.pass.readout != 2) {
      give(g, [&](int i, int, int, int) { return is_positive(i); });
    } else {
      give(g, [&](int i, int graph, int row, int c) { return is_positive(i) && r.peaks[graph][c] == row; });
    }
    if (slice == 0 && threadIdx.x == WORKERS - 1) at.pass.losses[tile] = total;
  }
};

}  // namespace fused
