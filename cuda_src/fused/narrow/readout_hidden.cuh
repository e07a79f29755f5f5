// The readout of specialised models with one hidden dense layer: sum or mean of COLUMNS columns, HIDDEN hidden outputs with relu and
// dropout, at most MOST_OUTPUTS outputs, sigmoid or squared loss. Many features of whole graphs are multiplied by another kernel
// (fused/shared/join.cuh). Parameters are those of `readout_phase` (fused/shared/readout.cuh).
//
// As in fused/narrow/readout.cuh, eight neighbouring lanes own a column from the moments of Y to the gradient of every row, and a warp an
// output. A thread owns a hidden output: its bias, the products of the features and its dropout are ready before the wait. So a
// block has seven barriers instead of fifteen: for the moments, the rows, R, the products of R, the hidden outputs, the gradients of the
// outputs, and those of the hidden outputs.
// Launch: as `readout_phase`. Shared memory: dynamic, HIDDEN_FLOATS and the rows of a graph, as in `readout_phase`. Weights of R: a warp
//   reads 32 neighbouring ones forward, and eight lanes 128 consecutive bytes backward.
// Traffic: reads 4 N P + 4 HIDDEN (P + splits of the features) blocks, writes 4 N P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused/narrow/readout.cuh"

namespace fused {

constexpr int HIDDEN_COLUMNS = 128;  // outputs of the hidden layer with a specialised kernel
// Floats of shared memory: of weights; of all that is before the rows of a graph.
constexpr int HIDDEN_WEIGHTS = GROUP * HIDDEN_COLUMNS + (HIDDEN_COLUMNS + 1) * MOST_OUTPUTS;
constexpr int HIDDEN_FLOATS = HIDDEN_WEIGHTS + REDUCTION_FLOATS + GROUP + 2 * HIDDEN_COLUMNS + 5 * MOST_OUTPUTS;

template <int COLUMNS, int HIDDEN>
struct HiddenReadout {
  float *weights, *of_outputs;      // (COLUMNS, HIDDEN), of R; (HIDDEN, K), then the biases of the outputs
  float* scratch;                   // REDUCTION_FLOATS; partial sums of the hidden outputs
  float *readout, *hidden, *given;  // R; the hidden outputs; their gradients
  float *slopes, *targets,
      *loss_weights;  // (MOST_OUTPUTS,): derivatives of the loss, labels of a graph, weights of the outputs
  double* costs;      // (MOST_OUTPUTS,), of all graphs of a partial sum
  float* rows;        // (held_rows, held_stride(COLUMNS)): the first rows of a graph's Y
  unsigned* kept;     // (held_rows, 2): their bits of dropout
  static constexpr int SLICES_OF_R = THREADS / HIDDEN, ROWS_OF_SLICE = COLUMNS / SLICES_OF_R;
  static_assert(COLUMNS == GROUP && HIDDEN == HIDDEN_COLUMNS && SLICES_OF_R * HIDDEN <= REDUCTION_FLOATS,
                "partial sums fit where moments were reduced");

  __device__ __forceinline__ HiddenReadout(float4* shared4, int rows_held)
      : weights(reinterpret_cast<float*>(shared4)),
        of_outputs(weights + COLUMNS * HIDDEN),
        scratch(of_outputs + (HIDDEN + 1) * MOST_OUTPUTS),
        readout(scratch + REDUCTION_FLOATS),
        hidden(readout + COLUMNS),
        given(hidden + HIDDEN),
        slopes(given + HIDDEN),
        targets(slopes + MOST_OUTPUTS),
        loss_weights(targets + MOST_OUTPUTS),
        costs(reinterpret_cast<double*>(loss_weights + MOST_OUTPUTS)),
        rows(reinterpret_cast<float*>(costs + MOST_OUTPUTS)),
        kept(reinterpret_cast<unsigned*>(rows + rows_held * held_stride(COLUMNS))) {}

  // Copy the first rows of a graph and their bits of dropout, which may be null; the copies arrive later.
  __device__ __forceinline__ void copy_rows(const float* y, const unsigned char* bits, int held) const {
    constexpr int QUADS = COLUMNS / 4;
#pragma unroll 1
    for (int i = threadIdx.x / QUADS; i < held; i += THREADS / QUADS) {
      const int p = threadIdx.x % QUADS * 4;
      copy_async<4>(rows + i * held_stride(COLUMNS) + p, y + i * COLUMNS + p, 4);
    }
#pragma unroll 1
    for (int w = threadIdx.x; bits && w < held * (COLUMNS / 32); w += THREADS)
      copy_async<1>(reinterpret_cast<float*>(kept) + w, reinterpret_cast<const float*>(bits) + w, 1);
    commit_copies();
  }

  // Call use(row, y, whether dropout kept it) for the rows lane, lane + COLUMN_LANES, … of n in column p.
  template <class Use>
  __device__ __forceinline__ void each_row(const float* y, const unsigned char* bits, int n, int held, Use use) const {
    const int p = lanes_column();
    const float* own = rows + p;
    const unsigned* words = kept + p / 32;
    int i = threadIdx.x % COLUMN_LANES;
#pragma unroll 4
    for (; i < held; i += COLUMN_LANES)
      use(i, own[i * held_stride(COLUMNS)], bits == nullptr || words[i * (COLUMNS / 32)] >> p % 32 & 1);
#pragma unroll 1
    for (; i < n; i += COLUMN_LANES) use(i, y[i * COLUMNS + p], is_kept(bits, i * COLUMNS + p));
  }
};

template <int COLUMNS, int HIDDEN>
__device__ __forceinline__ void readout_phase_of_hidden(const ReadoutParams& params, float4* shared4) {
  using At = HiddenReadout<COLUMNS, HIDDEN>;
  const Members& members = params.members;
  const At at(shared4, params.held_rows);
  const int block = blockIdx.x, parts = params.parts_of_graphs, K = params.K, D = params.D;
  const int warp = threadIdx.x / 32, of_warp = threadIdx.x % 32, p = lanes_column(), lane = threadIdx.x % COLUMN_LANES;
  const int k = threadIdx.x % HIDDEN;  // the hidden output of this thread, one of SLICES_OF_R
  const bool owns = threadIdx.x < HIDDEN;
  // Before the wait: kernels before the previous one wrote batch, weights, rates, and the products of the features.
  const Head* heads = members.of_step(params.heads);
  {
    const float *weight = heads[0].weight, *of_outputs = heads[1].weight;
#pragma unroll 4
    for (int e = threadIdx.x; e < COLUMNS * HIDDEN; e += THREADS) copy_async<1>(at.weights + e, weight + e, 1);
#pragma unroll 1
    for (int e = threadIdx.x; e < HIDDEN * K; e += THREADS) copy_async<1>(at.of_outputs + e, of_outputs + e, 1);
    if (threadIdx.x < K) {
      copy_async<1>(at.of_outputs + HIDDEN * K + threadIdx.x, heads[1].bias + threadIdx.x, 1);
      copy_async<1>(at.loss_weights + threadIdx.x, members.of_model(params.loss_weight) + threadIdx.x, 1);
    }
    commit_copies();
  }
  const float keep_scale = values_at(members.of_model_or_null(params.values)).keep_scale;
  const int N = members.of_step(params.size)[BatchSize::N], B = members.of_step(params.size)[BatchSize::B];
  const float label_weight =
      fmaxf(members.of_step(params.rates)[members.of_step(params.size)[BatchSize::STEP]].label_weight, 1.f);
  Column column = {};
  bool is_waiting = true;
  const auto wait = [&] {
    is_waiting = false;
    wait_for_copies<0>();
    wait_for_previous();
    if (block == 0 && threadIdx.x == 0) params.note_progress(N, B);
  };
#pragma unroll 1
  for (int part = block; part < parts; part += gridDim.x) {
    float2 sum = make_float2(0.f, 0.f);
    if (threadIdx.x < MOST_OUTPUTS) at.costs[threadIdx.x] = 0.0;
    __syncthreads();  // costs are cleared
#pragma unroll 1
    for (int b = part; b < B; b += parts) {
      const int begin = members.of_step(params.node_ptr)[b], n = members.of_step(params.node_ptr)[b + 1] - begin;
      const int held = min(n, params.held_rows);
      float base = 0.f, factor = 1.f;  // of the hidden output
      if (owns) {
        base = heads[0].bias[k];
        const float* joined = members.of_step_or_null(params.joined) + b * HIDDEN + k;
#pragma unroll 12
        for (int s = 0; s < params.n_joined; ++s) base += joined[s * params.graphs * HIDDEN];
        const MemberValues values = values_at(members.of_model_or_null(params.values));
        const bool keep = draw(members.of_step(params.size), values.seed, heads[0].purpose, values.threshold,
                               static_cast<long long>(b) * HIDDEN + k);
        factor = keep ? keep_scale : 0.f;
      }
      float* input = heads[0].input + b * heads[0].F;
#pragma unroll 4
      for (int d = threadIdx.x; d < D; d += THREADS) input[COLUMNS + d] = members.of_step(params.features)[b * D + d];
      if (is_waiting) wait();

      const float* y = members.of_step(params.y) + begin * COLUMNS;
      const unsigned char* bits = members.of_step_or_null(params.kept);
      if (bits) bits += begin * (COLUMNS / 8);
      if (threadIdx.x < K)
        copy_async<1>(at.targets + threadIdx.x, members.of_step(params.targets) + b * K + threadIdx.x, 1);
      at.copy_rows(y, bits, held);
      if (b == block) column = column_of(at.scratch, params.statistics(), N, 0, COLUMNS, block == 0);
      wait_for_copies<0>();
      __syncthreads();  // rows are copied
      // ---- readout
      float value = 0.f;
      at.each_row(y, bits, n, held,
                  [&](int, float own, bool kept) { value += kept ? keep_scale * positive(column.normal(own)) : 0.f; });
      value = warp_sum(value, COLUMN_LANES);
      const bool is_mean = params.readouts.kinds[0] == MEAN;
      if (is_mean && n > 0) value /= n;
      if (lane == 0) at.readout[p] = input[p] = value;
      __syncthreads();
      // ---- hidden outputs
      float product = 0.f;
#pragma unroll
      for (int i = 0; i < At::ROWS_OF_SLICE; i += 4) {
        const int f = threadIdx.x / HIDDEN * At::ROWS_OF_SLICE + i;
        const float4 r = *reinterpret_cast<const float4*>(at.readout + f);
        product = fmaf(r.x, at.weights[f * HIDDEN + k], product);
        product = fmaf(r.y, at.weights[(f + 1) * HIDDEN + k], product);
        product = fmaf(r.z, at.weights[(f + 2) * HIDDEN + k], product);
        product = fmaf(r.w, at.weights[(f + 3) * HIDDEN + k], product);
      }
      at.scratch[threadIdx.x] = product;
      __syncthreads();
      float hidden = 0.f;
      if (owns) {
        hidden = base;
#pragma unroll
        for (int s = 0; s < At::SLICES_OF_R; ++s) hidden += at.scratch[s * HIDDEN + k];
        hidden = factor == 0.f ? 0.f : factor * positive(hidden);
        at.hidden[k] = heads[1].input[b * HIDDEN + k] = hidden;
      }
      __syncthreads();
      // ---- outputs and loss
      if (warp < K) {
        float logit = 0.f;
#pragma unroll
        for (int i = 0; i < HIDDEN; i += 32)
          logit = fmaf(at.hidden[i + of_warp], at.of_outputs[(i + of_warp) * K + warp], logit);
        logit = warp_sum(logit) + at.of_outputs[HIDDEN * K + warp];
        const Cost cost = cost_of_output(logit, at.targets[warp], at.loss_weights[warp], params.loss, label_weight);
        if (of_warp == 0) {
          at.slopes[warp] = heads[1].gradient[b * K + warp] = cost.slope;
          at.costs[warp] += cost.value;
        }
      }
      __syncthreads();
      // ---- backward
      if (owns) {
        float given = 0.f;
#pragma unroll 1
        for (int j = 0; j < K; ++j) given = fmaf(at.slopes[j], at.of_outputs[k * K + j], given);
        // Where the hidden output went through relu or dropout as 0, so does its gradient.
        given = hidden > 0.f ? given * keep_scale : 0.f;
        at.given[k] = heads[0].gradient[b * HIDDEN + k] = given;
      }
      __syncthreads();
      float share = 0.f;
#pragma unroll
      for (int i = 0; i < HIDDEN; i += 4 * COLUMN_LANES) {
        const float4 given = *reinterpret_cast<const float4*>(at.given + i + 4 * lane);
        const float4 w = *reinterpret_cast<const float4*>(at.weights + p * HIDDEN + i + 4 * lane);
        share = fmaf(given.x, w.x, share), share = fmaf(given.y, w.y, share);
        share = fmaf(given.z, w.z, share), share = fmaf(given.w, w.w, share);
      }
      share = warp_sum(share, COLUMN_LANES) * keep_scale;
      if (is_mean) share /= n;
      float* g = members.of_step(params.g) + begin * COLUMNS + p;
      at.each_row(y, bits, n, held, [&](int i, float own, bool kept) {
        const float own_share = kept && column.normal(own) > 0.f ? share : 0.f;
        g[i * COLUMNS] = own_share;
        sum.x += own_share, sum.y = fmaf(own_share, column.x_hat(own), sum.y);
      });
      if (SHARES_LAUNCHES || b + parts < B) __syncthreads();  // rows may be overwritten
    }
    if (is_waiting) wait();  // without graphs
    sum = sum_of_lanes(sum);
    if (params.sums && lane == 0) reinterpret_cast<float2*>(members.of_step(params.sums))[part * COLUMNS + p] = sum;
    if (warp == WARPS - 1) {
      const double total = warp_sum(of_warp < K ? at.costs[of_warp] : 0.0);
      if (of_warp == 0) members.of_step(params.losses)[part] = total;
    }
    if constexpr (!SHARES_LAUNCHES) break;  // a block has one part
    __syncthreads();                        // costs are read
  }
}

}  // namespace fused
