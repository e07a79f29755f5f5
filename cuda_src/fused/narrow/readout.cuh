// The readout of the specialised model: sum or mean of COLUMNS columns, one dense layer to at most MOST_OUTPUTS outputs,
// sigmoid or squared loss, no dropout. Results and parameters are those of `readout_phase` (fused/shared/readout.cuh).
//
// The algorithm differs. Eight neighbouring lanes own a column from the moments of Y to the gradient of every row, so its
// sums are shuffles. A warp owns an output and loads its weights into registers before the wait. So a block has three
// barriers instead of nine: for the moments, for R, and for the gradients of the outputs. Both share pooling, losses and
// columns.
// Launch: as `readout_phase`. Shared memory: 9 KB, static.
// Traffic: reads 4 N P + 8 P parts blocks, writes 4 N P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused/shared/readout.cuh"

namespace fused {

constexpr int MOST_OUTPUTS = WARPS;
constexpr int OUTPUTS_OF_LANE = MOST_OUTPUTS / COLUMN_LANES;  // of the backward pass

// A thread's weights, and the loss weight of its warp's output.
template <int COLUMNS>
struct OutputWeights {
  float2 forward;  // of output threadIdx.x / 32, for R[2 lane] and R[2 lane + 1]
  float bias, loss_weight;
  float back[OUTPUTS_OF_LANE];  // of column lanes_column(), for the outputs of this lane

  __device__ __forceinline__ OutputWeights(const Head& head, const float* loss_weights, int K)
      : forward(), bias(0.f), loss_weight(0.f), back() {
    static_assert(COLUMNS == GROUP && COLUMNS == 2 * 32, "a lane has two columns");
    const int warp = threadIdx.x / 32, of_warp = threadIdx.x % 32;
    if (warp < K) {
      forward = make_float2(head.weight[2 * of_warp * K + warp], head.weight[(2 * of_warp + 1) * K + warp]);
      bias = head.bias[warp], loss_weight = loss_weights[warp];
    }
#pragma unroll
    for (int j = 0; j < OUTPUTS_OF_LANE; ++j) {
      const int k = threadIdx.x % COLUMN_LANES + j * COLUMN_LANES;
      if (k < K) back[j] = head.weight[lanes_column() * K + k];
    }
  }
};

__device__ __forceinline__ float product_of_pair(float2 in, float2 weight) { return in.x * weight.x + in.y * weight.y; }

// The loss of the warp's output and its derivative with respect to the logit, divided by the batch's label weight.
__device__ __forceinline__ Cost cost_of_output(float logit, float target, float loss_weight, int loss,
                                               float label_weight) {
  const bool labelled = target == target;
  Cost cost = squared_cost(logit - target);
  if (loss == SIGMOID) {
    cost = sigmoid_cost(logit, labelled ? target : 0.f, loss_weight);
  } else {
    cost.slope *= 2.f;
  }
  return {labelled ? cost.value : 0.0, labelled ? cost.slope / label_weight : 0.f};
}

// A graph of the batch and this thread's rows of it; beyond the last graph n = 0.
struct GraphRows {
  int begin, n;
  ColumnRows rows;

  __device__ __forceinline__ GraphRows(const int* node_ptr, int b, int B)
      : begin(b < B ? node_ptr[b] : 0), n(b < B ? node_ptr[b + 1] - begin : 0) {}
  __device__ __forceinline__ void hold(const float* y, int columns) {
    rows.hold(y + begin * columns + lanes_column(), columns, n);
  }
};

template <int COLUMNS>
__device__ __forceinline__ void readout_phase_of_warps(const ReadoutParams& params) {
  __shared__ float4 scratch[REDUCTION_FLOATS / 4];
  __shared__ float readout_of[COLUMNS], gradient_of[MOST_OUTPUTS];
  __shared__ double cost_of[MOST_OUTPUTS];
  const int block = blockIdx.x, parts = params.parts_of_graphs, K = params.K, kind = params.readouts.kinds[0];
  const int warp = threadIdx.x / 32, of_warp = threadIdx.x % 32, p = lanes_column(), lane = threadIdx.x % COLUMN_LANES;

  // Before the wait: kernels before the previous one wrote batch, weights and rates.
  const Head head = params.members.of_step(params.heads)[0];
  const OutputWeights<COLUMNS> weights(head, params.members.of_model(params.loss_weight), K);
  const int N = params.members.of_step(params.size)[BatchSize::N],
            B = params.members.of_step(params.size)[BatchSize::B];
  const float label_weight = fmaxf(
      params.members.of_step(params.rates)[params.members.of_step(params.size)[BatchSize::STEP]].label_weight, 1.f);
  GraphRows graph(params.members.of_step(params.node_ptr), block, B);
  wait_for_previous();

  if (block == 0 && threadIdx.x == 0) params.note_progress(N, B);
  const auto target_of = [&](int b) {
    return warp < K && b < B ? params.members.of_step(params.targets)[b * K + warp] : 0.f;
  };
  float target = target_of(block);
  graph.hold(params.members.of_step(params.y), COLUMNS);
  Column column = {};
  if (block < B && N > 0)
    column = column_of(reinterpret_cast<float*>(scratch), params.statistics(), N, 0, COLUMNS, block == 0);
#pragma unroll 1
  for (int part = block; part < parts; part += gridDim.x) {
    float2 sum = make_float2(0.f, 0.f);
    double total = 0.0;
#pragma unroll 1
    for (int b = part; b < B; b += parts) {
      const int next = b + parts < B ? b + parts : part + gridDim.x < parts ? part + gridDim.x : B;
      if (!SHARES_LAUNCHES && b != block) {
        graph = GraphRows(params.node_ptr, b, B);
        graph.hold(params.y, COLUMNS);
        target = target_of(b);
      }
      GraphRows following(params.members.of_step(params.node_ptr), SHARES_LAUNCHES ? next : B, B);
      const float* own = params.members.of_step(params.y) + graph.begin * COLUMNS + p;
      const int n = graph.n;
      // ---- readout
      Pooled pooled(SUM, n);
      graph.rows.each(own, COLUMNS, n, [&](int i, float y) { pooled.take(SUM, n, positive(column.normal(y)), i); });
      float value = warp_sum(pooled.value, COLUMN_LANES);
      if (kind == MEAN && n > 0) value /= n;
      if (lane == 0) readout_of[p] = head.input[b * COLUMNS + p] = value;
      if (SHARES_LAUNCHES) following.hold(params.members.of_step(params.y), COLUMNS);
      const float next_target = SHARES_LAUNCHES ? target_of(next) : 0.f;
      __syncthreads();
      // ---- outputs and loss
      if (warp < K) {
        const float2 in = reinterpret_cast<const float2*>(readout_of)[of_warp];
        const float logit = warp_sum(product_of_pair(in, weights.forward)) + weights.bias;
        const Cost cost = cost_of_output(logit, target, weights.loss_weight, params.loss, label_weight);
        if (of_warp == 0) {
          gradient_of[warp] = head.gradient[b * K + warp] = cost.slope;
          cost_of[warp] = cost.value;
        }
      }
      __syncthreads();
      if (warp == 0) total += warp_sum(of_warp < K ? cost_of[of_warp] : 0.0);
      // ---- backward
      float share = 0.f;
#pragma unroll
      for (int j = 0; j < OUTPUTS_OF_LANE; ++j)
        if (lane + j * COLUMN_LANES < K) share += gradient_of[lane + j * COLUMN_LANES] * weights.back[j];
      share = warp_sum(share, COLUMN_LANES);
      if (kind == MEAN) share /= n;
      graph.rows.each(own, COLUMNS, n, [&](int i, float y) {
        const float own_share = column.normal(y) > 0.f ? share : 0.f;
        params.members.of_step(params.g)[(graph.begin + i) * COLUMNS + p] = own_share;
        sum.x += own_share, sum.y += own_share * column.x_hat(y);
      });
      if (SHARES_LAUNCHES) graph = following, target = next_target;
    }
    sum = sum_of_lanes(sum);
    if (params.sums && lane == 0)
      reinterpret_cast<float2*>(params.members.of_step(params.sums))[part * COLUMNS + p] = sum;
    if (threadIdx.x == 0) params.members.of_step(params.losses)[part] = total;
    if constexpr (!SHARES_LAUNCHES) break;  // a block has one part
  }
}

}  // namespace fused
