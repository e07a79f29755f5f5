// The readout of the fp16 step: from Z of the last layer to the loss, and back to G of every row.
//
//   R[b] = sum | mean | max over the rows of graph b of Z,    logits = R W + b
//
// A block owns 64 columns of R and the matching rows of W. Each block reads the partial logits of all slices from the
// cluster's shared memory, adds them in order, and computes all losses and gradients itself: one cluster barrier instead
// of two. Then it computes dR of its columns, and G = dR where Z > 0. READOUT_GRAPHS graphs are done at a time.
//
// Shared memory: ReadoutShared replaces the tile of U; Z stays. No bank conflicts but two-way ones of W in the backward
// product.
// Precision: both products in 3xTF32 on the tensor cores, which keeps float32's accuracy (fused/wide/gemm.cuh).
#pragma once

#include "fused/fp16/product.cuh"
#include "fused/shared/loss.cuh"
#include "fused/shared/pooling.cuh"

namespace fused {

constexpr int NO_ROW = 255;
constexpr int LOGIT_LD = (MAX_OUTPUTS + 31) / 32 * 32 + 4;

struct ReadoutShared {
  float weights[FP16_PANEL * MAX_OUTPUTS + 8];  // in the order of memory; then zeros
  float partials[READOUT_GRAPHS][LOGIT_LD], logits[READOUT_GRAPHS][LOGIT_LD], gradient[READOUT_GRAPHS][LOGIT_LD];
  float targets[READOUT_GRAPHS * MAX_OUTPUTS], loss_weight[MAX_OUTPUTS], bias[MAX_OUTPUTS];
  float pooled[READOUT_GRAPHS][ROW_LD], back[TILE_ROWS][ROW_LD];  // R, dR of all graphs of the tile
  double losses[READOUT_GRAPHS];
  float label_weight;
  unsigned char peaks[TILE_ROWS][FP16_PANEL];
};
static_assert(sizeof(ReadoutShared) <= sizeof(StepShared::u), "the readout does not fit in the place of U");

// Load from the shared memory of block `rank` of the cluster, at the address of `own`.
__device__ __forceinline__ float4 load_remote4(const float* own, int rank) {
  float4 value = make_float4(0.f, 0.f, 0.f, 0.f);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
#endif
  return value;
}

// Float32 values as sums of two TF32 values.
template <int COUNT>
struct SplitTf32 {
  unsigned large[COUNT], small[COUNT];
  __device__ __forceinline__ void split(int i, float value) {
    large[i] = __float_as_uint(value) & 0xffffe000u, small[i] = __float_as_uint(value - __uint_as_float(large[i]));
  }
};

// c (16, 8) = a (16, depth) b (depth, 8) by a warp; a(row, k) and b(k, column) return elements. A lane reads rows g and g + 8
// of a at k = t and t + 4, and column g of b at the same k. No bank conflicts where rows of a lie 4, and rows of b 8 floats
// apart modulo 32.
template <class A, class B>
__device__ __forceinline__ void multiply_3xtf32(float (&c)[4], const Owner& own, int depth, A a, B b) {
  float rest[4] = {}, other[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = 0.f;
#pragma unroll 2
  for (int k = own.t; k < depth; k += 8) {
    SplitTf32<4> left;
    SplitTf32<2> right;
#pragma unroll
    for (int i = 0; i < 4; ++i) left.split(i, a(own.g + i % 2 * 8, k + i / 2 * 4));
#pragma unroll
    for (int i = 0; i < 2; ++i) right.split(i, b(k + i * 4, own.g));
    multiply_fragments(rest, left.small, right.large);
    multiply_fragments(other, left.large, right.small);
    multiply_fragments(c, left.large, right.large);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] += rest[i] + other[i];
}

// S slices; `tile` and `slice` are this block's.
template <int S>
struct StepReadout {
  static constexpr int P = S * FP16_PANEL;
  StepShared& at;
  const Owner& own;
  int tile, slice;

  __device__ __forceinline__ ReadoutShared& read() const { return *reinterpret_cast<ReadoutShared*>(at.u); }
  __device__ __forceinline__ int outputs() const { return at.params.n_outputs; }
  __device__ __forceinline__ int padded() const { return ceil_div(outputs(), 8) * 8; }

  // R of the graphs from `first` on: a warp for each graph, columns lane and lane + 32 for each lane.
  __device__ __forceinline__ void pool(int first, int n) const {
    const int kind = at.params.readout;
#pragma unroll 1
    for (int graph = own.warp; graph < n; graph += WORKERS / 32) {
      const int begin = at.first_row[first + graph], rows = at.graph_rows[first + graph];
      float sum[2] = {};
      int peak[2] = {NO_ROW, NO_ROW};
      if (kind == MAX) {
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
      float* input =
          at.params.input + static_cast<long long>(at.step.first_graph + first + graph) * P + slice * FP16_PANEL;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = own.lane + 32 * half;
        const float pooled = kind == MEAN && rows > 0 ? sum[half] / rows : sum[half];
        read().pooled[graph][c] = pooled;
        if (kind == MAX) read().peaks[first + graph][c] = static_cast<unsigned char>(peak[half]);
        input[c] = pooled;
      }
    }
  }

  // Partial logits of this slice, eight outputs a warp.
  __device__ __forceinline__ void multiply() const {
    ReadoutShared& r = read();
    const int K = outputs();
#pragma unroll 1
    for (int n0 = own.warp * 8; n0 < padded(); n0 += WORKERS / 32 * 8) {
      float c[4];
      multiply_3xtf32(
          c, own, FP16_PANEL, [&](int graph, int f) { return r.pooled[graph][f]; },
          [&](int f, int k) { return r.weights[f * K + n0 + k]; });
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float2*>(&r.partials[own.g + 8 * i][n0 + 2 * own.t]) = make_float2(c[2 * i], c[2 * i + 1]);
    }
  }

  // Logits, losses and gradients of n graphs, a warp each. One block of the cluster stores a graph's gradient.
  __device__ __forceinline__ void find_losses(int first, int n) const {
    const int K = outputs();
    ReadoutShared& r = read();
#pragma unroll 1
    for (int graph = own.warp; graph < n; graph += WORKERS / 32) {
#pragma unroll 1
      for (int k = 4 * own.lane; k < padded(); k += 128) {
        float4 found[S], sum = *reinterpret_cast<const float4*>(r.bias + k);
#pragma unroll
        for (int s = 0; s < S; ++s) found[s] = load_remote4(&r.partials[graph][k], s);
#pragma unroll
        for (int s = 0; s < S; ++s) sum.x += found[s].x, sum.y += found[s].y, sum.z += found[s].z, sum.w += found[s].w;
        *reinterpret_cast<float4*>(&r.logits[graph][k]) = sum;
      }
      __syncwarp();
      float* gradient = r.gradient[graph];
      const double loss =
          loss_of_graph(gradient, r.logits[graph], r.targets + graph * (at.params.loss == SOFTMAX ? 1 : K),
                        r.loss_weight, K, at.params.loss, r.label_weight);
      if (own.lane == 0) r.losses[graph] = loss;
      if (K + own.lane < padded()) gradient[K + own.lane] = 0.f;
      if (graph % S != slice) continue;
      float* result = at.params.gradient + static_cast<long long>(at.step.first_graph + first + graph) * K;
#pragma unroll 4
      for (int k = own.lane; k < K; k += 32) result[k] = gradient[k];  // this lane wrote it
    }
  }

  // dR, for MEAN divided by the rows of the graph; eight columns a warp.
  __device__ __forceinline__ void multiply_back(int first, int n) const {
    ReadoutShared& r = read();
    const int K = outputs(), n0 = own.warp * 8;
    if (n0 >= FP16_PANEL) return;
    float c[4];
    multiply_3xtf32(
        c, own, padded(), [&](int graph, int k) { return r.gradient[graph][k]; },
        [&](int k, int f) { return r.weights[(n0 + f) * K + k]; });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int graph = own.g + 8 * i;
      if (graph >= n) continue;
      const float share =
          at.params.readout == MEAN ? 1.f / max(static_cast<int>(at.graph_rows[first + graph]), 1) : 1.f;
      *reinterpret_cast<float2*>(&r.back[first + graph][n0 + 2 * own.t]) =
          make_float2(share * c[2 * i], share * c[2 * i + 1]);
    }
  }

  // G of this thread's values: dR where is_open(i, graph, row, column).
  template <class IsOpen>
  __device__ __forceinline__ void scatter_gradient(float (&g)[OWN], IsOpen is_open) const {
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

  // From Z in `rows` to G of this thread's values; is_positive(i): whether Z > 0.
  template <class IsPositive>
  __device__ __forceinline__ void run(float (&g)[OWN], IsPositive is_positive) const {
    ReadoutShared& r = read();
    double total = 0.0;
#pragma unroll 1
    for (int first = 0; first < max(at.step.n_graphs, 1); first += READOUT_GRAPHS) {
      const int n = min(at.step.n_graphs - first, READOUT_GRAPHS);
      if (first > 0) sync_cluster();  // all blocks have read the partial logits
      pool(first, n);
      if (first == 0) wait_barrier(&at.head_full, 0);
      sync_named(HEAD);
      multiply();
      sync_cluster();  // the partial logits are complete
      find_losses(first, n);
      sync_workers();
      multiply_back(first, n);
      for (int graph = 0; threadIdx.x == WORKERS - 1 && graph < n; ++graph) total += r.losses[graph];
      sync_workers();
    }
    if (at.params.readout != MAX) {
      scatter_gradient(g, [&](int i, int, int, int) { return is_positive(i); });
    } else {
      scatter_gradient(g, [&](int i, int graph, int row, int c) { return is_positive(i) && r.peaks[graph][c] == row; });
    }
    if (slice == 0 && threadIdx.x == WORKERS - 1) at.params.losses[tile] = total;
  }
};

}  // namespace fused
