// The readout of the specialised model in large cohorts: a warp has a graph. No kernels here.
//
// Parameters, results and their bits are those of `readout_phase_of_warps` (fused/narrow/readout.cuh). There, a block has a graph and
// three barriers; here it has none. A lane owns columns 2 lane and 2 lane + 1 with the sums of all COLUMN_LANES lanes that own
// a column there: rows r, r + 8, … add up to sum r % 8. The sums are then added as `warp_sum` adds lanes.
// Launch: 512 threads, members in z; the warps of all blocks of a member share its graphs, each of which has a partial sum. 64
//   members on 132 multiprocessors, batch 50: 2 blocks a member. Shared memory: 14 KB, static.
// Traffic: reads 8 N P, writes 4 N P bytes. Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused/narrow/readout.cuh"
#include "fused/narrow/warps.cuh"

namespace fused {

// The sums of a column's lanes, and their total.
struct SumsOfLanes {
  float of[COLUMN_LANES];

  __device__ __forceinline__ SumsOfLanes() : of() {}
  __device__ __forceinline__ float total() const {
    static_assert(COLUMN_LANES == 8, "the order of warp_sum");
    return __fadd_rn(__fadd_rn(__fadd_rn(of[0], of[4]), __fadd_rn(of[2], of[6])),
                     __fadd_rn(__fadd_rn(of[1], of[5]), __fadd_rn(of[3], of[7])));
  }
};

// ROWS rows of a graph in two columns.
template <int ROWS = COLUMN_LANES>
struct RowPairs {
  float2 y[ROWS];

  __device__ __forceinline__ void load(const float* pairs, int first, int n) {
#pragma unroll
    for (int l = 0; l < ROWS; ++l)
      y[l] = first + l < n ? *reinterpret_cast<const float2*>(pairs + (first + l) * GROUP) : make_float2(0.f, 0.f);
  }
  // Call use(lane, row, y) for the rows from `first` on.
  template <class Use>
  __device__ __forceinline__ void each(int first, int n, Use use) const {
#pragma unroll
    for (int l = 0; l < ROWS; ++l)
      if (first + l < n) use(l, first + l, y[l]);
  }
};

// A graph of the batch, and the target of output `lane`.
struct GraphOfWarp {
  int begin, n;
  float target;

  __device__ __forceinline__ GraphOfWarp(const ReadoutParams& params, int b, int B) : begin(0), n(0), target(0.f) {
    if (b >= B) return;
    const int* node_ptr = params.members.of_step(params.node_ptr);
    const int lane = threadIdx.x % 32;
    begin = node_ptr[b], n = same_in_warp(node_ptr[b + 1] - begin);
    if (lane < params.K) target = params.members.of_step(params.targets)[b * params.K + lane];
  }
  // Rows of columns 2 lane and 2 lane + 1 of a (N, GROUP) matrix.
  template <class T>
  __device__ __forceinline__ T* pairs(T* matrix) const {
    return matrix + begin * GROUP + 2 * (threadIdx.x % 32);
  }
};

__device__ __forceinline__ void readout_phase_of_graphs(const ReadoutParams& params) {
  __shared__ float4 scratch[REDUCTION_FLOATS / 4], columns_of_y[GROUP];
  __shared__ float2 weights[MOST_OUTPUTS * 32];  // of each output, two columns a lane
  __shared__ float biases[MOST_OUTPUTS], loss_weights[MOST_OUTPUTS], label_weight;
  __shared__ Head of_head;
  const int block = blockIdx.x, parts = params.parts_of_graphs, K = params.K, kind = params.readouts.kinds[0];
  const int lane = threadIdx.x % 32, p = 2 * lane;

  // Before the wait: kernels before the previous one wrote batch, weights and rates.
  const Head head = params.members.of_step(params.heads)[0];
  for (int e = threadIdx.x; e < K * 32; e += THREADS) {
    const float* from = head.weight + e % 32 * 2 * K + e / 32;
    weights[e] = make_float2(from[0], from[K]);
  }
  const int N = params.members.of_step(params.size)[BatchSize::N],
            B = same_in_warp(params.members.of_step(params.size)[BatchSize::B]);
  if (threadIdx.x < K) {
    biases[lane] = head.bias[lane], loss_weights[lane] = params.members.of_model(params.loss_weight)[lane];
  }
  if (threadIdx.x == 0) {
    of_head = head;
    label_weight = fmaxf(
        params.members.of_step(params.rates)[params.members.of_step(params.size)[BatchSize::STEP]].label_weight, 1.f);
  }
  const auto own = [&](auto* first) { return params.members.of_step(first); };
  const int first_part = same_in_warp(threadIdx.x / 32) * gridDim.x + block;
  GraphOfWarp graph(params, first_part, B);
  wait_for_previous();

  if (block == 0 && threadIdx.x == 0) params.note_progress(N, B);
  RowPairs<> rows;
  rows.load(graph.pairs(own(params.y)), 0, graph.n);  // they arrive while the moments are reduced
  const Columns columns = columns_at(reinterpret_cast<float*>(columns_of_y), GROUP);
  if (N > 0) set_columns(columns, reinterpret_cast<float*>(scratch), params.statistics(), N, GROUP, block == 0);
  __syncthreads();  // weights and columns are filled
  Column column[2] = {};
  if (N > 0) column[0] = columns.column(p), column[1] = columns.column(p + 1);
#pragma unroll 1
  for (int part = first_part; part < parts; part += WARPS * gridDim.x) {
    if (part != first_part) {
      graph = GraphOfWarp(params, part, B);
      rows.load(graph.pairs(own(params.y)), 0, graph.n);
    }
    const int n = graph.n;
    if (part >= B) {  // no graph
      if (lane == 0) own(params.losses)[part] = 0.0;
      continue;
    }
    // ---- readout
    SumsOfLanes pooled[2];
#pragma unroll 1
    for (int first = 0; first < n; first += COLUMN_LANES) {
      if (first > 0) rows.load(graph.pairs(own(params.y)), first, n);
      rows.each(first, n, [&](int l, int, float2 y) {
        pooled[0].of[l] += positive(column[0].normal(y.x));
        pooled[1].of[l] += positive(column[1].normal(y.y));
      });
    }
    float2 in = make_float2(pooled[0].total(), pooled[1].total());
    if (kind == MEAN && n > 0) in.x /= n, in.y /= n;
    *reinterpret_cast<float2*>(of_head.input + part * GROUP + p) = in;
    // ---- outputs and loss; lane k has output k
    float logit = 0.f;
#pragma unroll 4
    for (int k = 0; k < K; ++k) {
      const float output = warp_sum(product_of_pair(in, weights[k * 32 + lane]));
      if (lane == k) logit = output + biases[k];
    }
    Cost cost = {0.0, 0.f};
    if (lane < K) {
      cost = cost_of_output(logit, graph.target, loss_weights[lane], params.loss, label_weight);
      of_head.gradient[part * K + lane] = cost.slope;
    }
    const double total = warp_sum(lane < K ? cost.value : 0.0);
    if (lane == 0) own(params.losses)[part] = total;
    // ---- backward
    SumsOfLanes shares[2];
#pragma unroll
    for (int k = 0; k < MOST_OUTPUTS; ++k) {
      const float gradient = __shfl_sync(FULL_WARP, cost.slope, k);
      if (k < K) {
        const float2 weight = weights[k * 32 + lane];
        shares[0].of[k % COLUMN_LANES] += gradient * weight.x;
        shares[1].of[k % COLUMN_LANES] += gradient * weight.y;
      }
    }
    float2 share = make_float2(shares[0].total(), shares[1].total());
    if (kind == MEAN) share.x /= n, share.y /= n;
    float* g = graph.pairs(own(params.g));
    float4
        sums;  // of G and G x_hat in both columns: first every second row, then the others, as SumsOfLanes::total adds
#pragma unroll 1
    for (int odd = 0; odd < 2; ++odd) {
      float4 of[COLUMN_LANES / 2] = {};
#pragma unroll 1
      for (int first = odd; first < n; first += COLUMN_LANES) {
        float2 y[COLUMN_LANES / 2];
#pragma unroll
        for (int l = 0; l < COLUMN_LANES / 2; ++l)
          y[l] = *reinterpret_cast<const float2*>(graph.pairs(own(params.y)) + min(first + 2 * l, n - 1) * GROUP);
#pragma unroll
        for (int l = 0; l < COLUMN_LANES / 2; ++l) {
          if (first + 2 * l >= n) continue;
          const float2 of_row = make_float2(column[0].normal(y[l].x) > 0.f ? share.x : 0.f,
                                            column[1].normal(y[l].y) > 0.f ? share.y : 0.f);
          *reinterpret_cast<float2*>(g + (first + 2 * l) * GROUP) = of_row;
          of[l].x += of_row.x, of[l].y += of_row.x * column[0].x_hat(y[l].x);
          of[l].z += of_row.y, of[l].w += of_row.y * column[1].x_hat(y[l].y);
        }
      }
      const float4 sum = combine(combine(of[0], of[2]), combine(of[1], of[3]));
      sums = odd ? combine(sums, sum) : sum;
    }
    if (params.sums) reinterpret_cast<float4*>(own(params.sums) + part * 2 * GROUP)[lane] = sums;
  }
}

}  // namespace fused
