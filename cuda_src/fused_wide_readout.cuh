// From the last wide layer's Y to the loss and back to its gradient, for models of one dense layer on graphs: what
// fused_readout does, by clusters of eight blocks for eight graphs.
//
//   R[b] = sum | mean | max over the nodes of graph b of Z,    logits = R W + b
//
// A block has a slice of the columns: it pools its part of R for the eight graphs, and multiplies it with its rows of the
// weights, which it keeps in shared memory for the way back. The slices' parts of the logits are added over the
// cluster's shared memory, in order, for one graph in each block; that block finds the graph's loss and the gradient by
// its logits, which all blocks read for dR and G. So the weights are read once for eight graphs, and the nodes of a graph
// by eight blocks. The sums of G and G x̂ are folded by the cluster that is last.
//
// Shapes: as in fused_readout; sums (2, P), partials (clusters, P) float2, counters (8,); weight (P, K), bias (K,);
//   input (B, P) and gradient (B, K) of the dense layer, for the update; losses (8 clusters,).
// Launch: 256 threads, grid (8, graphs / 8), clusters (8, 1). 100 graphs: 104 blocks.
// Shared memory: dynamic, see geometry_fused_wide.py. W is read along rows and, at an odd stride, across them: no bank
//   conflicts; the eight graphs of a feature are two vectors that a warp reads at once.
// Traffic: reads 8 N P + 4 P K clusters, writes 4 N P bytes; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit.
// Requires: sm_90.
#pragma once

#include "fused_readout.cuh"

namespace fused {

// ---- clusters ----

__device__ __forceinline__ void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// What lies at `own` in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ float load_of_block(const float* own, int rank) {
  float value = 0.f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}

// ---- readout ----

// The phase with its arguments, in the order of fused_wide_readout in fused_wide_step.cu.
struct WideReadout {
  static constexpr int GRAPHS = 8, SLICES = 8, BLOCK = 256, LANES = 16, WIDTH = 4 * LANES, ROWS_AT_ONCE = 4;
  static constexpr int MAX_PARTS = 8, PARTS = BLOCK / WIDTH;

  float* logits;
  float* g;
  float* sums;
  float* partials;
  unsigned* counters;
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
  float keep_scale;
  int P;
  int K;
  int kind;
  int loss;
  int training;

  // Shared memory of a block; `slice` columns. The eight graphs of a feature or class lie side by side.
  struct Shared {
    float *weights, *pooled, *back, *dlogits, *parts, *own_logits, *own_gradient, *targets, *loss_weight;
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
    at.parts = take(GRAPHS * max(classes, BLOCK));
    at.own_logits = take(classes), at.own_gradient = take(classes), at.targets = take(classes);
    at.loss_weight = take(classes), at.weights = take(S * stride());
    return at;
  }

  // Four neighbours of row i from column p on, of which `existing` exist; and a bit each: what dropout kept.
  __device__ __forceinline__ float4 row_of(const float* matrix, int i, int p, int existing) const {
    return load4(matrix + i * P + p, existing, P % 4 == 0);
  }
  __device__ __forceinline__ unsigned bits_of(int i, int p, int existing) const {
    if (kept == nullptr) return 15;
    const int e = i * P + p;
    if (P % 4 == 0) return existing > 0 ? kept[e >> 3] >> (e & 7) & 15 : 0;
    unsigned bits = 0;
#pragma unroll
    for (int v = 0; v < 4; ++v) bits |= (v < existing && is_kept(kept, e + v)) << v;
    return bits;
  }

  // A warp pools its graph: rows begin … end - 1 of the columns of this slice.
  __device__ __forceinline__ void pool(const Shared& at, int first, int begin, int end, int b, bool is_there) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, S = slice();
#pragma unroll 1
    for (int c0 = 0; c0 < S; c0 += WIDTH) {
      const int c = c0 + lane % LANES * 4, p = first + c, existing = c < S ? min(max(P - p, 0), 4) : 0;
      float value[4];
      int peak[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) value[v] = kind == 2 ? -__int_as_float(0x7f800000) : 0.f, peak[v] = end;
      const float4 no = make_float4(0.f, 0.f, 0.f, 0.f);
      const int safe = min(c, S - 4);
      const float4 mean = *reinterpret_cast<const float4*>(at.columns.mean + safe);
      const float4 slope = *reinterpret_cast<const float4*>(at.columns.slope + safe);
      const float4 shift = *reinterpret_cast<const float4*>(at.columns.beta + safe);
#pragma unroll 1
      for (int i0 = begin + lane / LANES; i0 < end; i0 += 2 * ROWS_AT_ONCE) {
        float4 found[ROWS_AT_ONCE];
        unsigned bits[ROWS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u) {
          const int i = i0 + 2 * u;
          found[u] = i < end ? row_of(y, i, p, existing) : no;
          bits[u] = i < end ? bits_of(i, p, existing) : 0;
        }
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u) {
          const int i = i0 + 2 * u;
          const float of_row[4] = {
              positive((found[u].x - mean.x) * slope.x + shift.x), positive((found[u].y - mean.y) * slope.y + shift.y),
              positive((found[u].z - mean.z) * slope.z + shift.z), positive((found[u].w - mean.w) * slope.w + shift.w)};
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const float z = bits[u] >> v & 1 ? keep_scale * of_row[v] : 0.f;
            if (kind != 2) {
              value[v] += i < end ? z : 0.f;
            } else if (i < end && (peak[v] == end || is_higher(z, i, value[v], peak[v]))) {
              value[v] = z, peak[v] = i;
            }
          }
        }
      }
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float other = __shfl_xor_sync(FULL_WARP, value[v], LANES);
        const int other_peak = __shfl_xor_sync(FULL_WARP, peak[v], LANES);
        if (kind != 2) {
          value[v] += other;
        } else if (other_peak < end && (peak[v] == end || is_higher(other, other_peak, value[v], peak[v]))) {
          value[v] = other, peak[v] = other_peak;
        }
        if (c + v >= S || lane >= LANES) continue;
        const float pooled = v >= existing || end == begin ? 0.f : kind == 1 ? value[v] / (end - begin) : value[v];
        at.pooled[(c + v) * GRAPHS + warp] = pooled, at.peaks[(c + v) * GRAPHS + warp] = peak[v];
        if (training && is_there && v < existing) input[b * P + p + v] = pooled;
      }
    }
  }

  // sum[g] += factor * the eight graphs' numbers of a feature or class.
  __device__ __forceinline__ static void add_graphs(float (&sum)[GRAPHS], float factor, const float* of_graphs) {
    const float4 low = *reinterpret_cast<const float4*>(of_graphs);
    const float4 high = *reinterpret_cast<const float4*>(of_graphs + 4);
    sum[0] = fmaf(factor, low.x, sum[0]), sum[1] = fmaf(factor, low.y, sum[1]);
    sum[2] = fmaf(factor, low.z, sum[2]), sum[3] = fmaf(factor, low.w, sum[3]);
    sum[4] = fmaf(factor, high.x, sum[4]), sum[5] = fmaf(factor, high.y, sum[5]);
    sum[6] = fmaf(factor, high.z, sum[6]), sum[7] = fmaf(factor, high.w, sum[7]);
  }

  __device__ __forceinline__ int columns_at_once() const { return min(power_of_two(K), BLOCK); }
  __device__ __forceinline__ int n_parts() const { return min(BLOCK / columns_at_once(), MAX_PARTS); }

  // This slice's part of the logits of the eight graphs, in n_parts() parts (parts, graphs, K).
  __device__ __forceinline__ void multiply(const Shared& at) const {
    const int columns = columns_at_once(), n = n_parts(), part = threadIdx.x / columns, S = slice();
    if (part >= n) return;
#pragma unroll 1
    for (int k = threadIdx.x % columns; k < K; k += columns) {
      float sum[GRAPHS] = {};
#pragma unroll 4
      for (int f = part; f < S; f += n) add_graphs(sum, at.weights[f * stride() + k], at.pooled + f * GRAPHS);
#pragma unroll
      for (int graph = 0; graph < GRAPHS; ++graph) at.parts[(part * GRAPHS + graph) * K + k] = sum[graph];
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
        for (int k = part; k < K; k += PARTS) add_graphs(sum, at.weights[f * stride() + k], at.dlogits + k * GRAPHS);
      }
#pragma unroll
      for (int graph = 0; graph < GRAPHS; ++graph) at.parts[graph * BLOCK + threadIdx.x] = sum[graph];
      __syncthreads();
#pragma unroll
      for (int graph = part; graph < GRAPHS; graph += PARTS) {
        float total = 0.f;
#pragma unroll
        for (int other = 0; other < PARTS; ++other) total += at.parts[graph * BLOCK + other * WIDTH + threadIdx.x % WIDTH];
        if (f < S) at.back[f * GRAPHS + graph] = total;
      }
      __syncthreads();
    }
  }

  // A warp gives its graph's dR to the nodes; the block's sums of G and G x̂ go to `partials`.
  __device__ __forceinline__ void give(const Shared& at, int first, int begin, int end) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, S = slice();
    float2* of_graphs = reinterpret_cast<float2*>(at.parts);  // (GRAPHS, WIDTH)
#pragma unroll 1
    for (int c0 = 0; c0 < S; c0 += WIDTH) {
      const int c = c0 + lane % LANES * 4, p = first + c, existing = c < S ? min(max(P - p, 0), 4) : 0;
      float share[4], mean[4], slope[4], shift[4], inverse[4];
      int peak[4];
      float2 sum[4] = {};
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int safe = min(c + v, S - 1);
        share[v] = at.back[safe * GRAPHS + warp] * keep_scale * (kind == 1 ? 1.f / (end - begin) : 1.f);
        peak[v] = at.peaks[safe * GRAPHS + warp];
        mean[v] = at.columns.mean[safe], slope[v] = at.columns.slope[safe], shift[v] = at.columns.beta[safe];
        inverse[v] = at.columns.inverse[safe];
      }
#pragma unroll 1
      for (int i0 = begin + lane / LANES; i0 < end; i0 += 2 * ROWS_AT_ONCE) {
        float4 found[ROWS_AT_ONCE];
        unsigned bits[ROWS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u) {
          const int i = min(i0 + 2 * u, end - 1);
          found[u] = row_of(y, i, p, existing), bits[u] = bits_of(i, p, existing);
        }
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u) {
          const int i = i0 + 2 * u;
          if (i >= end) continue;
          const float of_row[4] = {found[u].x, found[u].y, found[u].z, found[u].w};
          float own[4];
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const float distance = of_row[v] - mean[v];
            const bool open = distance * slope[v] + shift[v] > 0.f && (bits[u] >> v & 1) && (kind != 2 || i == peak[v]);
            own[v] = open ? share[v] : 0.f;
            sum[v] = combine(sum[v], make_float2(own[v], own[v] * (distance * inverse[v])));
          }
          store4(g + i * P + p, make_float4(own[0], own[1], own[2], own[3]), existing, P % 4 == 0);
        }
      }
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        sum[v].x += __shfl_xor_sync(FULL_WARP, sum[v].x, LANES);
        sum[v].y += __shfl_xor_sync(FULL_WARP, sum[v].y, LANES);
        if (lane < LANES) of_graphs[warp * WIDTH + lane * 4 + v] = sum[v];
      }
      __syncthreads();
      const int own = c0 + threadIdx.x;
      if (threadIdx.x < WIDTH && own < S && first + own < P && sums) {
        float2 total = make_float2(0.f, 0.f);
#pragma unroll
        for (int graph = 0; graph < GRAPHS; ++graph) total = combine(total, of_graphs[graph * WIDTH + threadIdx.x]);
        reinterpret_cast<float2*>(partials)[blockIdx.y * P + first + own] = total;
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void run(float* shared) const {
    const Shared at = shared_at(shared);
    const int S = slice(), rank = blockIdx.x, first = rank * S, warp = threadIdx.x / 32;
    const int N = size[0], B = size[1], b0 = blockIdx.y * GRAPHS, own = b0 + rank;
    const bool is_idle = b0 >= B && blockIdx.y > 0;
    // Batch and weights are older than the phase before.
    const int b = b0 + warp;
    const int begin = b < B ? node_ptr[b] : 0, end = b < B ? node_ptr[b + 1] : 0;
    const float label_weight = training ? rates[4 * size[2] + 3] : 0.f;
    if (!is_idle) {
      const int count = min(max(P - first, 0), S) * K;
#pragma unroll 4
      for (int e = threadIdx.x; e < S * K; e += BLOCK)
        at.weights[e / K * stride() + e % K] = e < count ? weight[static_cast<long long>(first) * K + e] : 0.f;
      const int n_targets = loss == 1 ? 1 : K;
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
    if (progress && own == 0 && threadIdx.x == 0)
      *reinterpret_cast<int4*>(progress) = make_int4(size[2] + 1, N, B, size[2]);
#pragma unroll 1
    for (int c = threadIdx.x; c < S; c += BLOCK) {
      const int p = min(first + c, P - 1);
      const float inverse = gamma ? stats[P + p] : 1.f;
      at.columns.mean[c] = gamma ? stats[p] : 0.f, at.columns.inverse[c] = inverse;
      at.columns.slope[c] = gamma ? gamma[p] * inverse : 1.f, at.columns.beta[c] = gamma ? beta[p] : 0.f;
    }
    __syncthreads();
    pool(at, first, begin, end, b, b < B);
    __syncthreads();
    multiply(at);
    arrive_at_cluster();
    wait_for_cluster();
    const int n = n_parts();
#pragma unroll 1
    for (int k = threadIdx.x; k < K; k += BLOCK) {
      float sum = bias[k];
#pragma unroll
      for (int s = 0; s < SLICES; ++s) {
#pragma unroll 2
        for (int part = 0; part < n; ++part) sum += load_of_block(at.parts + (part * GRAPHS + rank) * K + k, s);
      }
      at.own_logits[k] = sum;
      if (logits && own < B) logits[static_cast<long long>(own) * K + k] = sum;
    }
    __syncthreads();
    if (training && threadIdx.x < 32) {
      double total = 0.0;
      if (own < B) {
        total = loss_of_graph(at.own_gradient, at.own_logits, at.targets, at.loss_weight, K, loss, label_weight);
      } else {
        for (int k = threadIdx.x; k < K; k += 32) at.own_gradient[k] = 0.f;
      }
      if (threadIdx.x == 0) losses[own] = total;
    }
    arrive_at_cluster();
    wait_for_cluster();  // the readers of the parts are done, too
    if (!training) return;
#pragma unroll 1
    for (int e = threadIdx.x; e < GRAPHS * K; e += BLOCK)
      at.dlogits[e % K * GRAPHS + e / K] = load_of_block(at.own_gradient + e % K, e / K);
    arrive_at_cluster();  // awaited at the end: nobody leaves while others read its gradient
#pragma unroll 1
    for (int k = threadIdx.x; own < B && k < K; k += BLOCK) gradient[own * K + k] = at.own_gradient[k];
    __syncthreads();
    multiply_back(at);
    give(at, first, begin, end);
    wait_for_cluster();
    if (sums == nullptr) return;
    const int clusters = max(ceil_div(B, GRAPHS), 1);
    if (!is_last_block(counters + rank, clusters)) return;
#pragma unroll 1
    for (int p = first + threadIdx.x; p < min(first + S, P); p += BLOCK) {
      float2 total = make_float2(0.f, 0.f);
#pragma unroll 8
      for (int cluster = 0; cluster < clusters; ++cluster)
        total = combine(total, load_l2(reinterpret_cast<const float2*>(partials) + cluster * P + p));
      sums[p] = total.x, sums[P + p] = total.y;
    }
  }
};

}  // namespace fused
