// From the last layer's Y to the loss and back to its gradient: readout, dense layers on graphs, loss.
//
//   R[b] = sum | mean | max over the nodes of graph b of Z,    h_1 = R,  h_{m+1} = dropout(relu(h_m W_m + b_m)),  logits
//
// and back: dlogits of the loss, through the dense layers, dR, and G[i] = dR[b] where Z[i] > 0 and dropout kept it. The
// gradients by W_m and b_m are left to the update, as sums over graphs of inputs times gradients, both stored here.
// Losses and their gradients are those of loss.cu; their weight over the batch is known beforehand (host).
//
// Shapes: g (N, P), sums (blocks, columns_of(P), 2): of G and of G xhat; losses (blocks,) double; progress
//   (4,): the step to stage next, and N, B, step of this one; size (4,): N, B, step, epoch; rates (steps, 4): learning
//   rate, Adam's two corrections, weight of the batch's labels; node_ptr (B+1,), targets (B, K) float32, or (B, 1) int32
//   for classes; loss_weight (K,). heads (n_heads, HEAD_FIELDS): the dense layers W_m, the last is the output; see Head.
// `kind` 0 sum, 1 mean, 2 max; `loss` 0 sigmoid, 1 softmax, 2 squared.
// Launch: 512 threads, a graph per block (at a time), of which `graph_blocks` work. Batch 50: 50 blocks.
// Shared memory: dynamic; see geometry_fused.py. Columns side by side: no bank conflicts.
// Traffic: reads 8 N P + 4 P K blocks, writes 4 N P bytes; everything in L2.
// Determinism: a block per graph, fixed order: repeats to the bit.
#pragma once

#include "fused_loss.cuh"
#include "fused_tile.cuh"

namespace fused {

constexpr int HEAD_FIELDS = 8;
constexpr int ROWS = 8;  // of Y that a thread keeps from the way forward for the way back

// A dense layer on graphs: weight (F, P), bias (P,); input (B, F) and gradient (B, P) are stored for the update.
struct Head {
  const float *weight, *bias;
  float *input, *gradient;
  int F, P;
  unsigned long long purpose;
};

// Layer m of the table; its weights and bias at `copied`, if that is not null.
__device__ __forceinline__ Head head_of(const long long* heads, int m, const float* copied = nullptr) {
  const long long* at = heads + m * HEAD_FIELDS;
  Head head = {reinterpret_cast<const float*>(at[0]),
               reinterpret_cast<const float*>(at[1]),
               reinterpret_cast<float*>(at[2]),
               reinterpret_cast<float*>(at[3]),
               static_cast<int>(at[4]),
               static_cast<int>(at[5]),
               static_cast<unsigned long long>(at[6])};
  if (copied) head.weight = copied, head.bias = copied + head.F * head.P;
  return head;
}

// The weights of all heads to shared memory, each layer's bias behind its weights.
__device__ __forceinline__ void copy_weights(float* to, const long long* heads, int n_heads) {
#pragma unroll 1
  for (int m = 0; m < n_heads; ++m) {
    const Head head = head_of(heads, m);
#pragma unroll 4
    for (int e = threadIdx.x; e < head.F * head.P; e += THREADS) to[e] = head.weight[e];
#pragma unroll 1
    for (int k = threadIdx.x; k < head.P; k += THREADS) to[head.F * head.P + k] = head.bias[k];
    to += (head.F + 1) * head.P;
  }
}

__device__ __forceinline__ int power_of_two(int n) { return n <= 1 ? 1 : 1 << (32 - __clz(n - 1)); }

// Whether dropout keeps element `e`: dense layers on graphs are too small for bits of their own.
__device__ __noinline__ bool draw(const int* size, unsigned long long seed, unsigned long long purpose,
                                  unsigned threshold, long long e) {
  if (threshold == 0) return true;
  const PhiloxBlock drawn = philox(
      {seed, purpose, static_cast<unsigned long long>(size[3]), static_cast<unsigned long long>(size[2])}, e / 8);
  unsigned value = drawn.value[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) value = e % 8 == i ? drawn.value[i] : value;
  return value >= threshold;
}

// out[k] = bias[k] + sum over f of in[f] W[f, k]; in and out in shared memory. `scratch` holds a float per thread.
__device__ __forceinline__ void dense_forward(float* out, const float* in, const Head& head, float* scratch) {
  const int columns = min(power_of_two(head.P), THREADS), slices = THREADS / columns;
  const int folded = min(slices, WARPS);  // slices that are left when each warp has added its own
#pragma unroll 1
  for (int first = 0; first < head.P; first += columns) {
    const int k = first + threadIdx.x % columns;
    float sum = 0.f;
    if (k < head.P) {
#pragma unroll 4
      for (int f = threadIdx.x / columns; f < head.F; f += slices) sum += in[f] * head.weight[f * head.P + k];
    }
#pragma unroll 1
    for (int offset = columns; offset < 32; offset *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    if (threadIdx.x % 32 < columns) scratch[threadIdx.x / max(columns, 32) * columns + threadIdx.x % columns] = sum;
    __syncthreads();
    if (threadIdx.x < columns && k < head.P) {
      sum = head.bias[k];
#pragma unroll
      for (int s = 0; s < WARPS; ++s)
        if (s < folded) sum += scratch[s * columns + threadIdx.x];
      out[k] = sum;
    }
    __syncthreads();
  }
}

// din[f] = sum over k of dout[k] W[f, k]: neighbouring lanes share a row of W.
__device__ __forceinline__ void dense_backward(float* din, const float* dout, const Head& head) {
  const int lanes = min(power_of_two(head.P), 32), lane = threadIdx.x % lanes;
#pragma unroll 1
  for (int first = 0; first < head.F; first += THREADS / lanes) {  // whole warps stay together for the shuffles
    const int f = first + threadIdx.x / lanes;
    float sum = 0.f;
    if (f < head.F) {
#pragma unroll 4
      for (int k = lane; k < head.P; k += lanes) sum += dout[k] * head.weight[f * head.P + k];
    }
    sum = warp_sum(sum, lanes);
    if (lane == 0 && f < head.F) din[f] = sum;
  }
  __syncthreads();
}

// The phase with its arguments, in the order of fused_readout in fused_step.cu.
struct Readout {
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
  const unsigned char* kept;
  const float* targets;
  const float* loss_weight;
  const long long* heads;
  unsigned long long seed;
  unsigned threshold;
  float keep_scale;
  float epsilon;
  float momentum;
  int parts;
  int graph_blocks;
  int P;
  int K;
  int n_heads;
  int head_floats;
  int weight_floats;
  int kind;
  int loss;

  // `block` of `blocks`; `wait` returns when what the phase before wrote can be read.
  template <class Wait>
  __device__ __forceinline__ void run(int block, int blocks, float4* shared4, Wait wait) const {
    if (block >= graph_blocks) {
      wait();
      return;
    }
    float* scratch = reinterpret_cast<float*>(shared4);
    long long* heads_of = reinterpret_cast<long long*>(scratch + FOLD_FLOATS);  // (n_heads, HEAD_FIELDS)
    const Columns columns = columns_at(reinterpret_cast<float*>(heads_of + n_heads * HEAD_FIELDS), P);
    float* sums_of = columns.beta + columns_of(P);  // (columns_of(P), 2)
    int* peak_of = reinterpret_cast<int*>(sums_of + 2 * columns_of(P));
    float* forward_of = reinterpret_cast<float*>(peak_of + P);  // R and what each dense layer makes of it, head_floats
    float* backward_of = forward_of + head_floats;              // the gradients by them
    float* targets_of = backward_of + head_floats;              // (K,), and
    float* loss_weight_of = targets_of + K;                     // (K,)
    float* weights_of = loss_weight_of + K;                     // of the heads, weight_floats, where they fit

    // Batch, weights and rates are older than the phase before.
    if (weight_floats > 0) copy_weights(weights_of, heads, n_heads);
#pragma unroll 1
    for (int e = threadIdx.x; e < n_heads * HEAD_FIELDS; e += THREADS) heads_of[e] = heads[e];
#pragma unroll 1
    for (int k = threadIdx.x; k < K; k += THREADS) loss_weight_of[k] = loss_weight[k];
#pragma unroll 1
    for (int p = threadIdx.x; p < 2 * columns_of(P); p += THREADS) sums_of[p] = 0.f;
    const int N = size[0], B = size[1];
    const float label_weight = rates[4 * size[2] + 3];
    const int own_column = threadIdx.x / COLUMN_LANES, lane = threadIdx.x % COLUMN_LANES;
    const bool is_narrow = P <= GROUP;
    int begin = block < B ? node_ptr[block] : 0, end = block < B ? node_ptr[block + 1] : 0;
    const int n_targets = loss == 1 ? 1 : K;
    wait();

    if (block == 0 && threadIdx.x == 0) *reinterpret_cast<int4*>(progress) = make_int4(size[2] + 1, N, B, size[2]);
    bool has_columns = false;
    double total = 0.0;
#pragma unroll 1
    for (int b = block; b < B; b += graph_blocks) {
      if (has_columns) begin = node_ptr[b], end = node_ptr[b + 1];
      // This thread's rows begin + lane, + COLUMN_LANES, … of own_column: the first ROWS of them in registers.
      float held[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int i = begin + lane + r * COLUMN_LANES;
        held[r] = is_narrow && i < end && own_column < P ? y[i * P + own_column] : 0.f;
      }
      float target = 0.f;
      if (threadIdx.x < n_targets) target = targets[b * n_targets + threadIdx.x];
      if (!has_columns && N > 0) {
        const Statistics from = {moments, stats, running_mean, running_var, gamma, beta, parts, epsilon, momentum};
        set_columns(columns, scratch, from, N, P, block == 0);
      }
      has_columns = true;
      __syncthreads();  // columns are there; the readers of the graph before are done
      if (threadIdx.x < n_targets) targets_of[threadIdx.x] = target;
#pragma unroll 1
      for (int k = threadIdx.x + THREADS; k < n_targets; k += THREADS) targets_of[k] = targets[b * n_targets + k];
      // ---- readout
#pragma unroll 1
      for (int first = 0; first < P; first += GROUP) {
        const int p = first + own_column;
        float value = kind == 2 ? -__int_as_float(0x7f800000) : 0.f;
        int peak = end;
        if (p < P) {
          const float mean = columns.mean[p], slope = columns.slope[p], shift = columns.beta[p];
          const auto take = [&](int i, float of_row) {
            const float z = is_kept(kept, i * P + p) ? keep_scale * positive((of_row - mean) * slope + shift) : 0.f;
            if (kind != 2) {
              value += z;
            } else if (peak == end || is_higher(z, i, value, peak)) {
              value = z, peak = i;
            }
          };
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
            if (is_narrow && begin + lane + r * COLUMN_LANES < end) take(begin + lane + r * COLUMN_LANES, held[r]);
#pragma unroll 1
          for (int i = begin + lane + (is_narrow ? ROWS * COLUMN_LANES : 0); i < end; i += COLUMN_LANES)
            take(i, y[i * P + p]);
        }
#pragma unroll
        for (int offset = 1; offset < COLUMN_LANES; offset *= 2) {
          const float other = __shfl_xor_sync(FULL_WARP, value, offset);
          const int other_peak = __shfl_xor_sync(FULL_WARP, peak, offset);
          if (kind != 2) {
            value += other;
          } else if (other_peak < end && (peak == end || is_higher(other, other_peak, value, peak))) {
            value = other, peak = other_peak;
          }
        }
        if (lane == 0 && p < P) {
          forward_of[p] = end == begin ? 0.f : kind == 1 ? value / (end - begin) : value;
          peak_of[p] = peak;
        }
      }
      __syncthreads();
      // ---- dense layers
      int offset = 0, weight_offset = 0;
#pragma unroll 1
      for (int m = 0; m < n_heads; ++m) {
        const Head head = head_of(heads_of, m, weight_floats > 0 ? weights_of + weight_offset : nullptr);
        float *in = forward_of + offset, *out = in + head.F;
#pragma unroll 1
        for (int f = threadIdx.x; f < head.F; f += THREADS) head.input[b * head.F + f] = in[f];
        dense_forward(out, in, head, scratch);
        if (m + 1 < n_heads) {
#pragma unroll 1
          for (int k = threadIdx.x; k < head.P; k += THREADS) {
            const bool keep = draw(size, seed, head.purpose, threshold, static_cast<long long>(b) * head.P + k);
            out[k] = keep ? keep_scale * positive(out[k]) : 0.f;
          }
          __syncthreads();
        }
        offset += head.F, weight_offset += (head.F + 1) * head.P;
      }
      // ---- loss
      if (threadIdx.x < 32)
        total +=
            loss_of_graph(backward_of + offset, forward_of + offset, targets_of, loss_weight_of, K, loss, label_weight);
      __syncthreads();
      // ---- dense layers back
#pragma unroll 1
      for (int m = n_heads - 1; m >= 0; --m) {
        const Head sizes = head_of(heads_of, m);
        offset -= sizes.F, weight_offset -= (sizes.F + 1) * sizes.P;
        const Head head = head_of(heads_of, m, weight_floats > 0 ? weights_of + weight_offset : nullptr);
        const float* dout = backward_of + offset + head.F;
#pragma unroll 1
        for (int k = threadIdx.x; k < head.P; k += THREADS) head.gradient[b * head.P + k] = dout[k];
        float* din = backward_of + offset;
        dense_backward(din, dout, head);
        if (m > 0) {  // what comes in here went through relu and dropout: it is 0 where nothing may pass
#pragma unroll 1
          for (int f = threadIdx.x; f < head.F; f += THREADS)
            din[f] = forward_of[offset + f] > 0.f ? din[f] * keep_scale : 0.f;
          __syncthreads();
        }
      }
      // ---- readout back
#pragma unroll 1
      for (int first = 0; first < P; first += GROUP) {
        const int p = first + own_column;
        float2 sum = make_float2(0.f, 0.f);
        if (p < P) {
          const float share = backward_of[p] * keep_scale * (kind == 1 ? 1.f / (end - begin) : 1.f);
          const int peak = peak_of[p];
          const float mean = columns.mean[p], slope = columns.slope[p], shift = columns.beta[p];
          const float inverse = columns.inverse[p];
          const auto give = [&](int i, float of_row) {
            const bool open =
                (of_row - mean) * slope + shift > 0.f && is_kept(kept, i * P + p) && (kind != 2 || i == peak);
            const float own = open ? share : 0.f;
            g[i * P + p] = own;
            sum = combine(sum, make_float2(own, own * ((of_row - mean) * inverse)));
          };
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
            if (is_narrow && begin + lane + r * COLUMN_LANES < end) give(begin + lane + r * COLUMN_LANES, held[r]);
#pragma unroll 1
          for (int i = begin + lane + (is_narrow ? ROWS * COLUMN_LANES : 0); i < end; i += COLUMN_LANES)
            give(i, y[i * P + p]);
        }
        sum = sum_of_lanes(sum);
        if (lane == 0 && p < P) sums_of[2 * p] += sum.x, sums_of[2 * p + 1] += sum.y;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int p = threadIdx.x; sums && p < 2 * columns_of(P); p += THREADS)
      sums[block * 2 * columns_of(P) + p] = sums_of[p];
    if (threadIdx.x == 0) losses[block] = total;
  }
};

}  // namespace fused
