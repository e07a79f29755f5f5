// From the last wide layer's Y to the loss and back to its gradient, for models with one dense layer on graphs: as
// fused_readout, but by clusters of eight blocks for eight graphs. For predictions it ends with the logits.
//
//   R[b] = sum | mean | max over the nodes of graph b of Z,    logits = R W + b
//
// A block owns a slice of the columns. It pools its part of R for the eight graphs and multiplies it with its rows of the
// weights, which it keeps in shared memory for the backward product. The partial logits of the slices are added over the
// cluster's shared memory, in order, one graph in each block. That block computes the graph's loss and the gradient by its
// logits. All blocks read these for dR and G. So the weights are read once for eight graphs, and the nodes of a graph by
// eight blocks. The sums of G and G x̂ over the eight graphs are partial sums of the layer's batch norm.
//
// Shapes: as in fused_readout; sums (clusters, P) float2; weight (P, K), bias (K,);
//   input (B, P) and gradient (B, K) of the dense layer, for the update; losses (8 clusters,).
// Launch: 512 threads, grid (8, graphs / 8, members), clusters (8, 1). 100 graphs: 104 blocks.
// Shared memory: dynamic, see shared_at and gcnbatch/backends/cuda/fused/wide/geometry.py. W is read along rows and, with an
//   odd stride, across them: no bank conflicts; the eight graphs of a feature are two vectors that a warp reads at once.
// Traffic: reads 8 N P + 4 P K clusters, writes 4 N P bytes; everything in L2.
// Determinism: one writer per output, fixed order: bit-repeatable.
// Requires: sm_90; elsewhere it is empty.
//
// Waits.
//   wait_for_previous   once; before it weights, labels and the bounds of graphs are read. Clusters without graphs then store
//                       a loss of 0 and leave.
//   __syncthreads       whenever a region of shared memory gets a new writer
//   cluster, 1          all threads of eight blocks: partial logits are complete; each block adds those of one graph
//   cluster, 2          gradients are complete, partial logits are read; all blocks read the eight graphs' gradients
//   cluster, 3          arrive: gradients are read; waits: at the end, so that no block leaves earlier
#pragma once

#include "fused/shared/async_copy.cuh"
#include "fused/shared/loss.cuh"
#include "fused/shared/pooling.cuh"

namespace fused {

// ---- readout ----

constexpr int READOUT_THREADS = 512;

// The parameters of fused_wide_readout, and the phase.
struct WideReadout {
  static constexpr int GRAPHS = 8, SLICES = 8, BLOCK = READOUT_THREADS, LANES = 16, WIDTH = 4 * LANES, HELD = 8;
  static constexpr int MAX_PARTIALS = 8, PARTIALS = BLOCK / WIDTH;
  static constexpr int ROW_STEP = BLOCK / LANES / GRAPHS;  // groups of lanes that share a graph's rows

  float* logits;
  float* g;
  float2* sums;
  double* losses;
  float* input;
  float* gradient;
  int* progress;
  const int* size;
  const float* rates;
  const int* node_ptr;
  const float* y;
  const float* stats;
  const float* gamma;
  const float* beta;
  const unsigned char* kept;
  const float* targets;
  const float* loss_weight;
  const float* weight;
  const float* bias;
  Members members;
  float keep_scale;
  int P;
  int K;
  int kind;
  int loss;
  int training;

  // The arrays of predictions; training does not share launches.
  __device__ __forceinline__ WideReadout of_member() const {
    WideReadout own = *this;
    own.logits = members.of_step_or_null(logits);
    own.size = members.of_step(size);
    own.node_ptr = members.of_step(node_ptr);
    own.y = members.of_step(y);
    own.beta = members.of_model_or_null(beta);
    own.weight = members.of_model(weight);
    own.bias = members.of_model(bias);
    return own;
  }

  // Shared memory of a block, for slice() columns. The values of eight graphs for a feature or class are neighbours.
  struct Shared {
    float *weights, *pooled, *back, *dlogits, *partials, *own_logits, *own_gradient, *targets, *loss_weight;
    int* peaks;
    Columns columns;
  };

  __device__ __forceinline__ int slice() const { return ceil_div(ceil_div(P, SLICES), 4) * 4; }
  __device__ __forceinline__ int stride() const { return K | 1; }

  __device__ __forceinline__ Shared shared_at(float* shared) const {
    const int S = slice(), classes = (K + 3) / 4 * 4;
    Shared at;
    const auto take = [&](int floats) {
      float* taken = shared;
      shared += floats;
      return taken;
    };
    at.pooled = take(GRAPHS * S), at.back = take(GRAPHS * S), at.dlogits = take(GRAPHS * classes);
    at.peaks = reinterpret_cast<int*>(take(GRAPHS * S));
    at.columns = {take(S), take(S), take(S), take(S)};
    at.partials = take(GRAPHS * max(classes, BLOCK));
    at.own_logits = take(classes), at.own_gradient = take(classes), at.targets = take(classes);
    at.loss_weight = take(classes), at.weights = take(S * stride());
    return at;
  }

  // Four neighbours of row i from column p on, of which `existing` exist; and a bit each: whether dropout kept it.
  __device__ __forceinline__ float4 row_of(const float* matrix, int i, int p, int existing) const {
    return load4(matrix + i * P + p, existing, P % 4 == 0);
  }
  __device__ __forceinline__ unsigned kept_bits(int i, int p, int existing) const {
    if (kept == nullptr) return 15;
    const int e = i * P + p;
    if (P % 4 == 0) return existing > 0 ? kept[e >> 3] >> (e & 7) & 15 : 0;
    unsigned bits = 0;
#pragma unroll
    for (int v = 0; v < 4; ++v) bits |= (v < existing && is_kept(kept, e + v)) << v;
    return bits;
  }

  // A thread's graph in the cluster, its first row in the graph, its first column of WIDTH.
  __device__ __forceinline__ static int own_graph() { return threadIdx.x / (BLOCK / GRAPHS); }
  __device__ __forceinline__ static int own_row() { return threadIdx.x / LANES % ROW_STEP; }
  __device__ __forceinline__ static int own_column() { return threadIdx.x % LANES * 4; }

  // The first rows of a thread and their dropout bits, in registers from the forward to the backward pass.
  struct Held {
    float4 row[HELD];
    unsigned bits[HELD];
  };

  __device__ __forceinline__ void hold(Held& held, int first, int c0, int begin, int end) const {
    const int c = c0 + own_column(), p = first + c, existing = c < slice() ? min(max(P - p, 0), 4) : 0;
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int i = begin + own_row() + r * ROW_STEP;
      held.row[r] = make_float4(0.f, 0.f, 0.f, 0.f), held.bits[r] = 0;
      if (i < end) held.row[r] = row_of(y, i, p, existing), held.bits[r] = kept_bits(i, p, existing);
    }
  }

  // Batch norm of four columns.
  struct FourColumns {
    float mean[4], slope[4], shift[4];

    __device__ __forceinline__ FourColumns(const Columns& from, int c, int S) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int safe = min(c + v, S - 1);
        mean[v] = from.mean[safe], slope[v] = from.slope[safe], shift[v] = from.beta[safe];
      }
    }
  };

  // Pool the rows of all graphs, from column c0 of this slice on; all threads call.
  __device__ __forceinline__ void pool(const Shared& at, const Held& held, int first, int c0, int begin, int end, int b,
                                       bool is_there) const {
    const int S = slice(), c = c0 + own_column(), p = first + c, existing = c < S ? min(max(P - p, 0), 4) : 0;
    const FourColumns columns(at.columns, c, S);
    float value[4];
    int peak[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) value[v] = kind == MAX ? -__int_as_float(0x7f800000) : 0.f, peak[v] = end;
    const auto take = [&](int i, float4 row, unsigned bits) {
      const float of_row[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float normal = (of_row[v] - columns.mean[v]) * columns.slope[v] + columns.shift[v];
        const float z = bits >> v & 1 ? keep_scale * positive(normal) : 0.f;
        if (kind != MAX) {
          value[v] += z;
        } else if (peak[v] == end || is_higher(z, i, value[v], peak[v])) {
          value[v] = z, peak[v] = i;
        }
      }
    };
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int i = begin + own_row() + r * ROW_STEP;
      if (i < end) take(i, held.row[r], held.bits[r]);
    }
#pragma unroll 1
    for (int i = begin + own_row() + HELD * ROW_STEP; i < end; i += ROW_STEP)
      take(i, row_of(y, i, p, existing), kept_bits(i, p, existing));

    float* values_of = at.partials + threadIdx.x / LANES * WIDTH + own_column();
    int* peaks_of = reinterpret_cast<int*>(values_of) + BLOCK * 4;
#pragma unroll
    for (int v = 0; v < 4; ++v) values_of[v] = value[v], peaks_of[v] = peak[v];
    __syncthreads();
    const int graph = own_graph(), column = threadIdx.x % WIDTH, own = c0 + column;  // one column of one graph
    float total = at.partials[graph * ROW_STEP * WIDTH + column];
    int highest = reinterpret_cast<int*>(at.partials)[BLOCK * 4 + graph * ROW_STEP * WIDTH + column];
#pragma unroll
    for (int part = 1; part < ROW_STEP; ++part) {
      const int place = (graph * ROW_STEP + part) * WIDTH + column;
      const float other = at.partials[place];
      const int other_peak = reinterpret_cast<int*>(at.partials)[BLOCK * 4 + place];
      if (kind != MAX) {
        total += other;
      } else if (other_peak < end && (highest == end || is_higher(other, other_peak, total, highest))) {
        total = other, highest = other_peak;
      }
    }
    if (own < S) {
      const bool exists = first + own < P;
      const float pooled = !exists || end == begin ? 0.f : kind == MEAN ? total / (end - begin) : total;
      at.pooled[own * GRAPHS + graph] = pooled, at.peaks[own * GRAPHS + graph] = highest;
      if (training && is_there && exists) input[b * P + first + own] = pooled;
    }
    __syncthreads();
  }

  // sum[g] += factor * the eight graphs' values of a feature or class.
  __device__ __forceinline__ static void add_graphs(float (&sum)[GRAPHS], float factor, const float* of_graphs) {
    const float4 low = *reinterpret_cast<const float4*>(of_graphs);
    const float4 high = *reinterpret_cast<const float4*>(of_graphs + 4);
    sum[0] = fmaf(factor, low.x, sum[0]), sum[1] = fmaf(factor, low.y, sum[1]);
    sum[2] = fmaf(factor, low.z, sum[2]), sum[3] = fmaf(factor, low.w, sum[3]);
    sum[4] = fmaf(factor, high.x, sum[4]), sum[5] = fmaf(factor, high.y, sum[5]);
    sum[6] = fmaf(factor, high.z, sum[6]), sum[7] = fmaf(factor, high.w, sum[7]);
  }

  __device__ __forceinline__ int columns_at_once() const { return min(power_of_two(K), BLOCK); }
  __device__ __forceinline__ int n_partials() const { return min(BLOCK / columns_at_once(), MAX_PARTIALS); }

  // Partial logits of the eight graphs from this slice, (graphs, K) at the start of `partials`; all threads call.
  __device__ __forceinline__ void multiply(const Shared& at) const {
    const int columns = columns_at_once(), n = n_partials(), part = threadIdx.x / columns, S = slice();
#pragma unroll 1
    for (int k = threadIdx.x % columns; part < n && k < K; k += columns) {
      float sum[GRAPHS] = {};
#pragma unroll 4
      for (int f = part; f < S; f += n) add_graphs(sum, at.weights[f * stride() + k], at.pooled + f * GRAPHS);
#pragma unroll
      for (int graph = 0; graph < GRAPHS; ++graph) at.partials[(part * GRAPHS + graph) * K + k] = sum[graph];
    }
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; n > 1 && e < GRAPHS * K; e += BLOCK) {
      float total = at.partials[e];
#pragma unroll 3
      for (int other = 1; other < n; ++other) total += at.partials[other * GRAPHS * K + e];
      at.partials[e] = total;
    }
  }

  // dR of this slice: back[f][graph]; all threads call.
  __device__ __forceinline__ void multiply_back(const Shared& at) const {
    const int part = threadIdx.x / WIDTH, S = slice();
#pragma unroll 1
    for (int first = 0; first < S; first += WIDTH) {
      const int f = first + threadIdx.x % WIDTH;
      float sum[GRAPHS] = {};
      if (f < S) {
#pragma unroll 4
        for (int k = part; k < K; k += PARTIALS) add_graphs(sum, at.weights[f * stride() + k], at.dlogits + k * GRAPHS);
      }
#pragma unroll
      for (int graph = 0; graph < GRAPHS; ++graph) at.partials[graph * BLOCK + threadIdx.x] = sum[graph];
      __syncthreads();
#pragma unroll
      for (int graph = part; graph < GRAPHS; graph += PARTIALS) {
        float total = 0.f;
#pragma unroll
        for (int other = 0; other < PARTIALS; ++other)
          total += at.partials[graph * BLOCK + other * WIDTH + threadIdx.x % WIDTH];
        if (f < S) at.back[f * GRAPHS + graph] = total;
      }
      __syncthreads();
    }
  }

  // G of the nodes from their graph's dR, and the cluster's sums of G and G x̂. All threads call.
  __device__ __forceinline__ void scatter_gradient(const Shared& at, const Held& held, int first, int c0, int begin,
                                                   int end) const {
    const int graph = own_graph(), S = slice(), c = c0 + own_column(), p = first + c;
    const int existing = c < S ? min(max(P - p, 0), 4) : 0;
    const FourColumns columns(at.columns, c, S);
    float share[4];
    float2 sum[4] = {};  // of G and G (Y - mean)
    int peak[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int safe = min(c + v, S - 1);
      share[v] = at.back[safe * GRAPHS + graph] * keep_scale * (kind == MEAN ? 1.f / (end - begin) : 1.f);
      peak[v] = at.peaks[safe * GRAPHS + graph];
    }
    const auto put = [&](int i, float4 row, unsigned bits) {
      const float of_row[4] = {row.x, row.y, row.z, row.w};
      float own[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float distance = of_row[v] - columns.mean[v];
        const bool open =
            distance * columns.slope[v] + columns.shift[v] > 0.f && (bits >> v & 1) && (kind != MAX || i == peak[v]);
        own[v] = open ? share[v] : 0.f;
        sum[v] = combine(sum[v], make_float2(own[v], own[v] * distance));
      }
      store4(g + i * P + p, make_float4(own[0], own[1], own[2], own[3]), existing, P % 4 == 0);
    };
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int i = begin + own_row() + r * ROW_STEP;
      if (i < end) put(i, held.row[r], held.bits[r]);
    }
#pragma unroll 1
    for (int i = begin + own_row() + HELD * ROW_STEP; i < end; i += ROW_STEP)
      put(i, row_of(y, i, p, existing), kept_bits(i, p, existing));
    if (sums == nullptr) return;
    float2* of_threads = reinterpret_cast<float2*>(at.partials);  // (BLOCK / 32, WIDTH)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum[v].x += __shfl_xor_sync(FULL_WARP, sum[v].x, LANES);
      sum[v].y += __shfl_xor_sync(FULL_WARP, sum[v].y, LANES);
      if (threadIdx.x % 32 < LANES) of_threads[threadIdx.x / 32 * WIDTH + own_column() + v] = sum[v];
    }
    __syncthreads();
    const int own = c0 + threadIdx.x;
    if (threadIdx.x < WIDTH && own < S && first + own < P) {
      float2 total = make_float2(0.f, 0.f);
#pragma unroll
      for (int warp = 0; warp < BLOCK / 32; ++warp) total = combine(total, of_threads[warp * WIDTH + threadIdx.x]);
      total.y *= at.columns.inverse[own];
      sums[blockIdx.y * P + first + own] = total;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void run(float* shared) const {
    const Shared at = shared_at(shared);
    const int S = slice(), rank = blockIdx.x, first = rank * S, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int N = size[BatchSize::N], B = size[BatchSize::B], b0 = blockIdx.y * GRAPHS, own = b0 + rank,
              b = b0 + own_graph();
    const bool is_idle = b0 >= B && blockIdx.y > 0;
    // The previous kernel wrote neither batch nor weights.
    const int begin = b < B ? node_ptr[b] : 0, end = b < B ? node_ptr[b + 1] : 0;
    const float label_weight = training ? rates[4 * size[BatchSize::STEP] + 3] : 0.f;
    if (!is_idle) {
#pragma unroll 2
      for (int f = warp; f < S; f += BLOCK / 32) {
#pragma unroll 4
        for (int k = lane; k < K; k += 32)
          at.weights[f * stride() + k] = first + f < P ? weight[static_cast<long long>(first + f) * K + k] : 0.f;
      }
      const int n_targets = loss == SOFTMAX ? 1 : K;
#pragma unroll 1
      for (int k = threadIdx.x; training && k < K; k += BLOCK) {
        at.loss_weight[k] = loss_weight[k];
        if (k < n_targets) at.targets[k] = own < B ? targets[own * n_targets + k] : 0.f;
      }
    }
    wait_for_previous();
    if (is_idle) {
      if (training && threadIdx.x == 0) losses[own] = 0.0;
      return;
    }
    Held held;
    hold(held, first, 0, begin, end);
    if (progress && own == 0 && threadIdx.x == 0) Progress::note(progress, N, B, size[BatchSize::STEP]);
#pragma unroll 1
    for (int c = threadIdx.x; c < S; c += BLOCK) {
      const int p = min(first + c, P - 1);
      const float inverse = gamma ? stats[P + p] : 1.f;
      at.columns.mean[c] = gamma ? stats[p] : 0.f, at.columns.inverse[c] = inverse;
      at.columns.slope[c] = gamma ? gamma[p] * inverse : 1.f, at.columns.beta[c] = beta ? beta[p] : 0.f;
    }
    __syncthreads();
#pragma unroll 1
    for (int c0 = 0; c0 < S; c0 += WIDTH) {
      if (c0 > 0) hold(held, first, c0, begin, end);
      pool(at, held, first, c0, begin, end, b, b < B);
    }
    multiply(at);
    sync_cluster();
#pragma unroll 1
    for (int k = threadIdx.x; k < K; k += BLOCK) {
      float sum = bias[k], found[SLICES];
#pragma unroll
      for (int s = 0; s < SLICES; ++s) found[s] = load_remote(at.partials + rank * K + k, s);
#pragma unroll
      for (int s = 0; s < SLICES; ++s) sum += found[s];
      at.own_logits[k] = sum;
      if (logits && own < B) logits[static_cast<long long>(own) * K + k] = sum;
    }
    __syncthreads();
    if (training && warp == 0) {
      double total = 0.0;
      if (own < B) {
        total = loss_of_graph(at.own_gradient, at.own_logits, at.targets, at.loss_weight, K, loss, label_weight);
      } else {
        for (int k = lane; k < K; k += 32) at.own_gradient[k] = 0.f;
      }
      if (lane == 0) losses[own] = total;
    }
    sync_cluster();  // also: the partial logits are read
    if (!training) return;
    const int from = threadIdx.x % GRAPHS;
#pragma unroll 2
    for (int k = threadIdx.x / GRAPHS; k < K; k += BLOCK / GRAPHS)
      at.dlogits[k * GRAPHS + from] = load_remote(at.own_gradient + k, from);
    arrive_at_cluster();  // the wait is at the end: other blocks read this one's gradient until then
#pragma unroll 1
    for (int k = threadIdx.x; own < B && k < K; k += BLOCK) gradient[own * K + k] = at.own_gradient[k];
    __syncthreads();
    multiply_back(at);
#pragma unroll 1
    for (int c0 = 0; c0 < S; c0 += WIDTH) {
      if (S > WIDTH) hold(held, first, c0, begin, end);
      scatter_gradient(at, held, first, c0, begin, end);
    }
    wait_for_cluster();
  }
};

}  // namespace fused
