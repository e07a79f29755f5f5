// Readout, dense layers on graphs and loss, forward and backward: from the last layer's Y to its gradient G.
//
//   R[b] = sum | mean | max over the nodes of graph b of Z, or several of them side by side
//   h_1 = [R, features of the graph],  h_{m+1} = dropout(relu(h_m W_m + b_m)),  logits
//
// and backward: dlogits of the loss, through the dense layers, dR, and G[i] = dR[b] where Z[i] > 0 and dropout kept it. The
// update computes the gradients of W_m and b_m, sums over graphs of inputs times gradients; both are stored here.
// Losses and their gradients are those of dense/loss.cu. The host knows the weight of the batch's labels beforehand. Weighted
// targets are read where they are used: a warp reads them, once.
//
// Shapes: g (N, P), sums (blocks, columns_of(P), 2): of G and of G xhat; losses (blocks,) double; rates (steps,); node_ptr
//   (B+1,), targets (B, K) float32, or (B, 1) int32 for classes; WEIGHTED: as in dense/loss.cuh; loss_weight (K,); features
//   (B, D), scaled, D may be 0;
//   heads (n_heads,): the last is the output; joined (n_joined, graphs, P of the first), as fused/shared/join.cuh leaves it, or
//   null: the block multiplies the features.
// `loss` is a Loss.
// Launch: 512 threads, members in z. Partial sum `part` of `parts_of_graphs` is that of graphs part, part + parts_of_graphs,
//   …; blocks stride over the partial sums. Batch 50: 50 partial sums of a graph each, 50 blocks for a model alone.
// Shared memory: dynamic; see `shared.geometry.readout`. The first `held_rows` rows of a graph's Y are copied there, at once; all
//   others are loaded for the sums, and again for G. Eight lanes read as many rows of a column, whose stride is a multiple of 4
//   but not of 8 banks where P is one of 8: no bank conflicts.
// Traffic: reads 4 N P + 4 P K blocks, writes 4 N P bytes; everything in L2.
// Determinism: a block per graph, fixed order: repeats to the bit.
#pragma once

#include "fused/shared/heads.cuh"
#include "fused/shared/loss.cuh"
#include "fused/shared/optimizer.cuh"
#include "fused/shared/pooling.cuh"

namespace fused {

// Blocks on a multiprocessor at once: a second one starts, and reads the batch, beside a block of the layer before.
constexpr int READOUT_BLOCKS = 2;

struct ReadoutParams {
  float *g, *sums;
  double* losses;
  int* progress;
  const int* size;
  const Rate* rates;
  const int* node_ptr;
  const float *y, *moments;
  float *stats, *running_mean, *running_var;
  const float *gamma, *beta;
  const unsigned char* kept;
  const float *targets, *loss_weight, *features, *joined;
  const Head* heads;
  const MemberValues* values;
  Members members;
  Readouts readouts;
  float epsilon, momentum;
  int n_joined, graphs, rows_at, held_rows;  // rows_at: where `rows` are in shared memory, in floats
  int first_rows;  // of the first dense layer's weights that a block reads: of those of R, and of features not in `joined`
  int parts, parts_of_graphs, P, K, D, n_heads, head_floats, weight_floats, loss;

  __device__ __forceinline__ Statistics statistics() const {
    return statistics_of(members, moments, stats, running_mean, running_var, gamma, beta, parts, epsilon, momentum);
  }
  __device__ __forceinline__ int width_of_readout() const { return readouts.n * P; }
  // Note the step in `progress`; one thread calls.
  __device__ __forceinline__ void note_progress(int N, int B) const {
    Progress::note(members.of_step(progress), N, B, members.of_step(size)[BatchSize::STEP]);
  }
};

constexpr int HELD_PADDING = 4;  // floats between rows of Y in shared memory
__host__ __device__ constexpr int held_stride(int P) { return columns_of(P) + HELD_PADDING; }

// Shared memory of a block.
struct ReadoutShared {
  float* scratch;  // REDUCTION_FLOATS
  Head* heads;
  Columns columns;
  float* sums;         // (columns_of(P), 2)
  int* peaks;          // (P,): the row of each maximum
  float* forward;      // h_1, without the features in `joined`, and the outputs of all dense layers, head_floats
  float* backward;     // the gradients of these
  float* targets;      // (K,)
  float* loss_weight;  // (K,)
  float* weights;      // of the heads, weight_floats, if they fit
  float* rows;         // (held_rows, held_stride(P)): the first rows of a graph's Y
  unsigned* kept;      // their bits of dropout, from the word of the first one on

  __device__ __forceinline__ ReadoutShared(float4* shared, const ReadoutParams& params) {
    const int P = params.P;
    scratch = reinterpret_cast<float*>(shared);
    heads = reinterpret_cast<Head*>(scratch + REDUCTION_FLOATS);
    columns = columns_at(reinterpret_cast<float*>(heads + params.n_heads), P);
    sums = columns.beta + columns_of(P);
    peaks = reinterpret_cast<int*>(sums + 2 * columns_of(P));
    forward = reinterpret_cast<float*>(peaks + P);
    backward = forward + params.head_floats;
    targets = backward + params.head_floats;
    loss_weight = targets + params.K;
    weights = loss_weight + params.K;
    rows = scratch + params.rows_at;
    kept = reinterpret_cast<unsigned*>(rows + params.held_rows * held_stride(P));
  }
};

// A graph of the batch.
struct GraphOfBlock {
  int b, begin, n;

  // Copy its first rows to shared memory, a row by each warp, and their bits of dropout; the copies arrive later.
  __device__ __forceinline__ void copy_rows(const ReadoutParams& params, const ReadoutShared& at) const {
    const int P = params.P, held = min(n, params.held_rows), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* from = params.members.of_step(params.y) + begin * P;
#pragma unroll 1
    for (int i = warp; i < held; i += WARPS) {
      if (P % 4 == 0) {
#pragma unroll 1
        for (int p = 4 * lane; p < P; p += 128) copy_async<4>(at.rows + i * held_stride(P) + p, from + i * P + p, 4);
      } else {
#pragma unroll 1
        for (int p = lane; p < P; p += 32) copy_async<1>(at.rows + i * held_stride(P) + p, from + i * P + p, 1);
      }
    }
    if (const unsigned char* kept = params.members.of_step_or_null(params.kept)) {
      const int first = begin * P / 32, words = ceil_div((begin + held) * P, 32) - first;
      const float* bits = reinterpret_cast<const float*>(kept) + first;
#pragma unroll 1
      for (int w = threadIdx.x; w < words; w += THREADS)
        copy_async<1>(reinterpret_cast<float*>(at.kept) + w, bits + w, 1);
    }
    commit_copies();
  }

  // Call use(row, y, whether dropout kept it) for the rows lane, lane + COLUMN_LANES, … in column p.
  template <class Use>
  __device__ __forceinline__ void each_row(const ReadoutParams& params, const ReadoutShared& at, int p, Use use) const {
    const int P = params.P, first = begin * P + p;
    const float* y = params.members.of_step(params.y) + first;
    const unsigned char* kept = params.members.of_step_or_null(params.kept);
#pragma unroll 1
    for (int i = threadIdx.x % COLUMN_LANES; i < n; i += COLUMN_LANES) {
      if (i < params.held_rows) {
        const int bit = begin * P % 32 + i * P + p;
        use(i, at.rows[i * held_stride(P) + p], kept == nullptr || at.kept[bit / 32] >> bit % 32 & 1);
      } else {
        use(i, y[i * P], is_kept(kept, first + i * P));
      }
    }
  }
};

// The column of this thread's lanes in a group of columns.
__device__ __forceinline__ int lanes_column() { return threadIdx.x / COLUMN_LANES; }

// Write one readout of a graph, (P,), to `readout`.
__device__ __forceinline__ void pool_graph(const ReadoutParams& params, const ReadoutShared& at,
                                           const GraphOfBlock& graph, float keep_scale, int kind, float* readout) {
  const int P = params.P, n = graph.n;
#pragma unroll 1
  for (int first = 0; first < P; first += GROUP) {
    const int p = first + lanes_column();
    Pooled pooled(kind, n);
    if (p < P) {
      const Column column = at.columns.column(p);
      graph.each_row(params, at, p, [&](int i, float y, bool kept) {
        pooled.take(kind, n, kept ? keep_scale * positive(column.normal(y)) : 0.f, i);
      });
    }
#pragma unroll
    for (int offset = 1; offset < COLUMN_LANES; offset *= 2)
      pooled.join(kind, n,
                  {__shfl_xor_sync(FULL_WARP, pooled.value, offset), __shfl_xor_sync(FULL_WARP, pooled.row, offset)});
    if (threadIdx.x % COLUMN_LANES == 0 && p < P) {
      readout[p] = n == 0 ? 0.f : kind == MEAN ? pooled.value / n : pooled.value;
      if (kind == MAX) at.peaks[p] = pooled.row;
    }
  }
}

// Begin the first dense layer of graph b: write the bias plus the products of the features with their weights to the place of the
// output. The features are written beside the place of R or, where another kernel multiplied them, at once to where the update
// reads them. No kernel of the forward pass writes what this reads, so it may run before the wait.
__device__ __forceinline__ void join_features(const ReadoutParams& params, const ReadoutShared& at, int b) {
  const int R = params.width_of_readout(), D = params.D;
  const Head head = at.heads[0].with_weights(params.weight_floats > 0 ? at.weights : nullptr, params.first_rows);
  const float* features = params.members.of_step(params.features) + b * D;
  float* out = at.forward + params.first_rows;
  if (params.joined == nullptr) {
#pragma unroll 1
    for (int d = threadIdx.x; d < D; d += THREADS) copy_async<1>(at.forward + R + d, features + d, 1);
    commit_copies();
  } else {
#pragma unroll 4
    for (int d = threadIdx.x; d < D; d += THREADS) head.input[b * head.F + R + d] = features[d];
  }
  wait_for_copies<0>();
  __syncthreads();  // features are copied, and weights
  if (params.joined == nullptr)
    return dense_forward(out, head.bias, at.forward + R, head.weight + R * head.P, D, head.P, at.scratch);
  const float* joined = params.members.of_step(params.joined) + b * head.P;
#pragma unroll 1
  for (int k = threadIdx.x; k < head.P; k += THREADS) {
    float sum = head.bias[k];
#pragma unroll 12
    for (int s = 0; s < params.n_joined; ++s) sum += joined[s * params.graphs * head.P + k];
    out[k] = sum;
  }
  __syncthreads();
}

// Compute the logits of graph b from R, after `join_features`; they end at `at.forward + head_floats`. Store the inputs that
// the update reads. first_graph: that of this rank in the batch of all, on which dropout depends.
__device__ __forceinline__ void heads_forward(const ReadoutParams& params, const ReadoutShared& at, int b,
                                              const MemberValues& values, int first_graph) {
  float* in = at.forward;
  const float* weights = params.weight_floats > 0 ? at.weights : nullptr;
#pragma unroll 1
  for (int m = 0; m < params.n_heads; ++m) {
    const int rows = m == 0 ? params.first_rows : at.heads[m].F;
    const Head head = at.heads[m].with_weights(weights, rows);
    float* out = in + rows;
#pragma unroll 1
    for (int f = threadIdx.x; f < rows; f += THREADS) head.input[b * head.F + f] = in[f];
    const bool is_joined = m == 0 && params.D > 0;
    dense_forward(out, is_joined ? out : head.bias, in, head.weight, is_joined ? params.width_of_readout() : head.F,
                  head.P, at.scratch);
    if (m + 1 < params.n_heads) {
#pragma unroll 1
      for (int k = threadIdx.x; k < head.P; k += THREADS) {
        const bool keep = draw(params.members.of_step(params.size), values.seed, head.purpose, values.threshold,
                               static_cast<long long>(first_graph + b) * head.P + k);
        out[k] = keep ? values.keep_scale * positive(out[k]) : 0.f;
      }
      __syncthreads();
    }
    in = out;
    if (weights) weights += (rows + 1) * head.P;
  }
}

// Compute dR, at `at.backward`, from the gradient of the logits.
__device__ __forceinline__ void heads_backward(const ReadoutParams& params, const ReadoutShared& at, int b,
                                               float keep_scale) {
  int offset = params.head_floats - params.K, weight_offset = params.weight_floats;
#pragma unroll 1
  for (int m = params.n_heads - 1; m >= 0; --m) {
    const Head sizes = at.heads[m];
    const int rows = m == 0 ? params.first_rows : sizes.F;
    offset -= rows, weight_offset -= (rows + 1) * sizes.P;
    const Head head = sizes.with_weights(params.weight_floats > 0 ? at.weights + weight_offset : nullptr, rows);
    const float* dout = at.backward + offset + rows;
#pragma unroll 1
    for (int k = threadIdx.x; k < head.P; k += THREADS) head.gradient[b * head.P + k] = dout[k];
    float* din = at.backward + offset;
    dense_backward(din, dout, head, m > 0 ? head.F : params.width_of_readout());
    if (m > 0) {  // the input went through relu and dropout, so it is 0 wherever the gradient is 0
#pragma unroll 1
      for (int f = threadIdx.x; f < head.F; f += THREADS)
        din[f] = at.forward[offset + f] > 0.f ? din[f] * keep_scale : 0.f;
      __syncthreads();
    }
  }
}

// The gradient of column p of a graph's rows: for all n of them, and what the row of the maximum gets on top.
struct Shares {
  float all, peak;

  __device__ __forceinline__ Shares(const ReadoutParams& params, const float* gradient, int p, int n, float keep_scale)
      : all(0.f), peak(0.f) {
#pragma unroll 1
    for (int r = 0; r < params.readouts.n; ++r) {
      const int kind = params.readouts.kinds[r];
      const float share = gradient[r * params.P + p] * keep_scale * (kind == MEAN ? 1.f / n : 1.f);
      (kind == MAX ? peak : all) += share;
    }
  }
};

// Write G of a graph's rows; add the column sums of G and of G xhat to `at.sums`.
__device__ __forceinline__ void give_graph(const ReadoutParams& params, const ReadoutShared& at,
                                           const GraphOfBlock& graph, float keep_scale) {
  const int P = params.P, n = graph.n;
#pragma unroll 1
  for (int first = 0; first < P; first += GROUP) {
    const int p = first + lanes_column();
    float2 sum = make_float2(0.f, 0.f);
    if (p < P) {
      const Shares shares(params, at.backward, p, n, keep_scale);
      const int peak = at.peaks[p];
      const Column column = at.columns.column(p);
      float* g = params.members.of_step(params.g) + graph.begin * P + p;
      graph.each_row(params, at, p, [&](int i, float y, bool kept) {
        const float own = kept && column.normal(y) > 0.f ? shares.all + (i == peak ? shares.peak : 0.f) : 0.f;
        g[i * P] = own;
        sum = combine(sum, make_float2(own, own * column.x_hat(y)));
      });
    }
    sum = sum_of_lanes(sum);
    if (threadIdx.x % COLUMN_LANES == 0 && p < P) at.sums[2 * p] += sum.x, at.sums[2 * p + 1] += sum.y;
  }
}

// All partial sums of a block; any model. first_graph(step): as in `heads_forward`.
template <bool WEIGHTED, class FirstGraph>
__device__ __forceinline__ void readout_phase(const ReadoutParams& params, float4* shared4, FirstGraph first_graph) {
  const int block = blockIdx.x, blocks = gridDim.x, parts = params.parts_of_graphs, P = params.P, K = params.K;
  const ReadoutShared at(shared4, params);
  // Before the wait: kernels before the previous one wrote batch, weights and rates.
  if (params.weight_floats > 0)
    copy_weights(at.weights, params.members.of_step(params.heads), params.n_heads, params.first_rows);
#pragma unroll 1
  for (int m = threadIdx.x; m < params.n_heads; m += THREADS) at.heads[m] = params.members.of_step(params.heads)[m];
#pragma unroll 1
  for (int k = threadIdx.x; k < K; k += THREADS) at.loss_weight[k] = params.members.of_model(params.loss_weight)[k];
  const MemberValues values = values_at(params.members.of_model_or_null(params.values));
  const int N = params.members.of_step(params.size)[BatchSize::N],
            B = params.members.of_step(params.size)[BatchSize::B], n_targets = params.loss == SOFTMAX ? 1 : K;
  const float label_weight =
      params.members.of_step(params.rates)[params.members.of_step(params.size)[BatchSize::STEP]].label_weight;
  int begin = block < B ? params.members.of_step(params.node_ptr)[block] : 0,
      end = block < B ? params.members.of_step(params.node_ptr)[block + 1] : 0;
  commit_copies();
  if (params.D > 0 && block < B) {
    __syncthreads();  // heads are copied
    join_features(params, at, block);
  }
  wait_for_copies<0>();
  wait_for_previous();

  if (block == 0 && threadIdx.x == 0) params.note_progress(N, B);
#pragma unroll 1
  for (int part = block; part < parts; part += blocks) {
#pragma unroll 1
    for (int p = threadIdx.x; p < 2 * columns_of(P); p += THREADS) at.sums[p] = 0.f;
    double total = 0.0;
#pragma unroll 1
    for (int b = part; b < B; b += parts) {
      if (b != block)
        begin = params.members.of_step(params.node_ptr)[b], end = params.members.of_step(params.node_ptr)[b + 1];
      const GraphOfBlock graph = {b, begin, end - begin};
      graph.copy_rows(params, at);
#pragma unroll 1
      for (int k = threadIdx.x; !WEIGHTED && k < n_targets; k += THREADS)
        copy_async<1>(at.targets + k, params.members.of_step(params.targets) + b * n_targets + k, 1);
      commit_copies();
      if (b == block && N > 0) set_columns(at.columns, at.scratch, params.statistics(), N, P, block == 0);
      wait_for_copies<0>();
      __syncthreads();  // columns are filled; rows and targets are copied
      if (params.D > 0 && b != block) join_features(params, at, b);
#pragma unroll 1
      for (int r = 0; r < params.readouts.n; ++r)
        pool_graph(params, at, graph, values.keep_scale, params.readouts.kinds[r], at.forward + r * P);
      __syncthreads();
      heads_forward(params, at, b, values, first_graph(params.members.of_step(params.size)[BatchSize::STEP]));
      if (threadIdx.x < 32) {
        const int logits = params.head_floats - K;
        if constexpr (WEIGHTED)
          total += weighted_loss_of_graph(at.backward + logits, at.forward + logits,
                                          params.members.of_step(params.targets) + 3 * b * n_targets, at.loss_weight, K,
                                          params.loss, label_weight);
        else
          total += loss_of_graph(at.backward + logits, at.forward + logits, at.targets, at.loss_weight, K, params.loss,
                                 label_weight);
      }
      __syncthreads();
      heads_backward(params, at, b, values.keep_scale);
      give_graph(params, at, graph, values.keep_scale);
      __syncthreads();  // sums are stored; rows and columns may be overwritten
    }
#pragma unroll 1
    for (int p = threadIdx.x; params.sums && p < 2 * columns_of(P); p += THREADS)
      params.members.of_step(params.sums)[part * 2 * columns_of(P) + p] = at.sums[p];
    if (threadIdx.x == 0) params.members.of_step(params.losses)[part] = total;
    if constexpr (!SHARES_LAUNCHES) break;  // a block has one part
    __syncthreads();                        // sums may be overwritten
  }
}

}  // namespace fused
