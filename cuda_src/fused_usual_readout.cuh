// The readout of the usual model: sum or mean of 64 columns, one dense layer to at most USUAL_OUTPUTS outputs, sigmoid or
// squared loss, no dropout. It yields what fused_readout.cuh yields; names, shapes and losses are explained there.
//
// A graph a block. Eight neighbouring lanes own a column from the moments of Y to the gradient of every row: what they
// sum, they sum by shuffles. A warp owns an output, whose weights are in registers before the wait. So the threads of a block
// wait for each other three times: for the moments, for R, and for the gradients of the outputs.
// Launch: 512 threads, a block per graph (at a time). Batch 50: 50 blocks. Shared memory: 9 KB, static.
// Traffic: reads 4 N P + 8 P parts blocks, writes 4 N P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused_readout.cuh"

namespace fused {

constexpr int USUAL_OUTPUTS = WARPS;
constexpr int OUTPUTS_OF_LANE = USUAL_OUTPUTS / COLUMN_LANES;  // whose gradients a lane weighs on the way back

// The phase with its arguments, in the order of fused_readout_usual in fused_usual.cu.
struct UsualReadout {
  float* g;
  float* sums;
  double* losses;
  int* progress;
  const int* size;
  const float* rates;
  const int* node_ptr;
  const float* y;
  const float* moments;
  float* stats;
  float* running_mean;
  float* running_var;
  const float* gamma;
  const float* beta;
  const float* targets;
  const float* loss_weight;
  const long long* heads;
  float epsilon;
  float momentum;
  int parts;
  int K;
  int kind;
  int loss;

  // `block` of `blocks`; `wait` returns when what the phase before wrote can be read.
  template <class Wait>
  __device__ __forceinline__ void run(int block, int blocks, Wait wait) const {
    __shared__ float4 scratch[FOLD_FLOATS / 4];
    __shared__ float readout_of[USUAL], gradient_of[USUAL_OUTPUTS];
    __shared__ double cost_of[USUAL_OUTPUTS];
    const int warp = threadIdx.x / 32, of_warp = threadIdx.x % 32;
    const int p = threadIdx.x / COLUMN_LANES, lane = threadIdx.x % COLUMN_LANES;

    // Batch, weights and rates are older than the phase before.
    const Head head = head_of(heads, 0);
    float2 weight = {};  // of output `warp`, by R[2 of_warp] and R[2 of_warp + 1]
    float bias = 0.f, factor = 0.f, weight_back[OUTPUTS_OF_LANE] = {};
    if (warp < K) {
      weight = make_float2(head.weight[2 * of_warp * K + warp], head.weight[(2 * of_warp + 1) * K + warp]);
      bias = head.bias[warp], factor = loss_weight[warp];
    }
#pragma unroll
    for (int j = 0; j < OUTPUTS_OF_LANE; ++j) {
      const int k = lane + j * COLUMN_LANES;
      if (k < K) weight_back[j] = head.weight[p * K + k];
    }
    const int N = size[0], B = size[1], step = size[2];
    const float label_weight = fmaxf(rates[4 * step + 3], 1.f);
    int begin = block < B ? node_ptr[block] : 0, end = block < B ? node_ptr[block + 1] : 0;
    wait();

    if (block == 0 && threadIdx.x == 0) *reinterpret_cast<int4*>(progress) = make_int4(step + 1, N, B, step);
    Column column = {};
    float2 sum = make_float2(0.f, 0.f);
    double total = 0.0;
#pragma unroll 1
    for (int b = block; b < B; b += blocks) {
      if (b != block) begin = node_ptr[b], end = node_ptr[b + 1];
      const float target = warp < K ? targets[b * K + warp] : 0.f;
      const float* own = y + begin * USUAL + p;
      const int n = end - begin;
      float held[ROWS];  // rows lane, lane + COLUMN_LANES, …: the first ROWS of them in registers
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int i = lane + r * COLUMN_LANES;
        held[r] = i < n ? own[i * USUAL] : 0.f;
      }
      if (b == block && N > 0) {
        const Statistics from = {moments, stats, running_mean, running_var, gamma, beta, parts, epsilon, momentum};
        column = column_of(reinterpret_cast<float*>(scratch), from, N, 0, USUAL, block == 0);
      }
      // ---- readout
      float value = 0.f;
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (lane + r * COLUMN_LANES < n) value += positive((held[r] - column.mean) * column.slope + column.beta);
#pragma unroll 1
      for (int i = lane + ROWS * COLUMN_LANES; i < n; i += COLUMN_LANES)
        value += positive((own[i * USUAL] - column.mean) * column.slope + column.beta);
      value = warp_sum(value, COLUMN_LANES);
      if (kind == 1 && n > 0) value /= n;
      if (lane == 0) readout_of[p] = head.input[b * USUAL + p] = value;
      __syncthreads();
      // ---- outputs and loss
      if (warp < K) {
        const float2 in = reinterpret_cast<const float2*>(readout_of)[of_warp];
        const float logit = warp_sum(in.x * weight.x + in.y * weight.y) + bias;
        const bool labelled = target == target;
        Cost cost = squared_cost(logit - target);
        if (loss == SIGMOID) {
          cost = sigmoid_cost(logit, labelled ? target : 0.f, factor);
        } else {
          cost.slope *= 2.f;
        }
        if (of_warp == 0) {
          gradient_of[warp] = head.gradient[b * K + warp] = labelled ? cost.slope / label_weight : 0.f;
          cost_of[warp] = labelled ? cost.value : 0.0;
        }
      }
      __syncthreads();
      if (warp == 0) total += warp_sum(of_warp < K ? cost_of[of_warp] : 0.0);
      // ---- and back
      float share = 0.f;
#pragma unroll
      for (int j = 0; j < OUTPUTS_OF_LANE; ++j)
        if (lane + j * COLUMN_LANES < K) share += gradient_of[lane + j * COLUMN_LANES] * weight_back[j];
      share = warp_sum(share, COLUMN_LANES);
      if (kind == 1) share /= n;
      const auto give = [&](int i, float of_row) {
        const float distance = of_row - column.mean,
                    own_share = distance * column.slope + column.beta > 0.f ? share : 0.f;
        g[(begin + i) * USUAL + p] = own_share;
        sum.x += own_share, sum.y += own_share * (distance * column.inverse);
      };
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (lane + r * COLUMN_LANES < n) give(lane + r * COLUMN_LANES, held[r]);
#pragma unroll 1
      for (int i = lane + ROWS * COLUMN_LANES; i < n; i += COLUMN_LANES) give(i, own[i * USUAL]);
    }
    sum = sum_of_lanes(sum);
    if (sums && lane == 0) reinterpret_cast<float2*>(sums)[block * USUAL + p] = sum;
    if (threadIdx.x == 0) losses[block] = total;
  }
};

}  // namespace fused
