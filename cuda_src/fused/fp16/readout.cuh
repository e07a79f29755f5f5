// The middle of a pass: from Z of the last layer to the loss and back to G of every row.
//
//   R[b] = sum | mean | max over the rows of graph b of Z,    logits = R W + b
//
// A block has 64 columns of R and the rows of W that belong to them. Every block reads all slices' parts of the logits from
// the shared memory of the cluster, adds them in order, and finds all losses and their gradients by itself: one wait for
// the cluster instead of two. Then dR of its columns, and G = dR where Z > 0. READOUT_GRAPHS graphs are taken at a time.
//
// Shared memory: ReadoutShared, in the place of the tile of U, which is free here; Z stays where it is. No bank conflicts but
// two-way ones of W on the way back.
// Precision: both products on the tensor cores in three parts, which keeps float32's (3xTF32, fused/wide/gemm.cuh).
#pragma once

#include "fused/fp16/product.cuh"
#include "fused/shared/loss.cuh"
#include "fused/shared/pooling.cuh"

namespace fused {

constexpr int NO_ROW = 255;
constexpr int LOGIT_LD = (MAX_OUTPUTS + 31) / 32 * 32 + 4;

struct ReadoutShared {
  float weights[FP16_PANEL * MAX_OUTPUTS + 8];  // rows as they come; zeros behind them
  float partials[READOUT_GRAPHS][LOGIT_LD], logits[READOUT_GRAPHS][LOGIT_LD], gradient[READOUT_GRAPHS][LOGIT_LD];
  float targets[READOUT_GRAPHS * MAX_OUTPUTS], loss_weight[MAX_OUTPUTS], bias[MAX_OUTPUTS];
  float pooled[READOUT_GRAPHS][ROW_LD], back[TILE_ROWS][ROW_LD];  // R, dR of all graphs of the tile
  double losses[READOUT_GRAPHS];
  float label_weight;
  unsigned char peaks[TILE_ROWS][FP16_PANEL];
};
static_assert(sizeof(ReadoutShared) <= sizeof(StepShared::u), "the readout does not fit in the place of U");

// What lies at `own` in the shared memory of block `rank` of the cluster.
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

// Numbers in two parts of 11 bits for the tensor cores.
template <int COUNT>
struct SplitTf32 {
  unsigned large[COUNT], small[COUNT];
  __device__ __forceinline__ void split(int i, float value) {
    large[i] = __float_as_uint(value) & 0xffffe000u, small[i] = __float_as_uint(value - __uint_as_float(large[i]));
  }
};

// c (16, 8) = a (16, depth) b (depth, 8) by a warp; a(row, k), b(k, column) yield elements. Lanes ask for rows g and g + 8 of
// a at k = t, t + 4, and b at the same k, column g: rows that are 4 (a) or 8 (b) floats apart, but for multiples of 32, meet
// different banks.
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

  // R of the graphs from `first` on: a warp has a graph, a lane columns lane and lane + 32.
  __device__ __forceinline__ void pool(int first, int n) const {
    const int kind = at.params.readout;
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
      float* input =
          at.params.input + static_cast<long long>(at.step.first_graph + first + graph) * P + slice * FP16_PANEL;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = own.lane + 32 * half;
        const float pooled = kind == 1 && rows > 0 ? sum[half] / rows : sum[half];
        read().pooled[graph][c] = pooled;
        if (kind == 2) read().peaks[first + graph][c] = static_cast<unsigned char>(peak[half]);
        input[c] = pooled;
      }
    }
  }

  // This slice's part of the logits, eight outputs a warp.
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

  // Logits of n graphs, a warp each, their losses and gradients; one block of the cluster writes a graph's.
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
      const double loss = loss_of_graph(gradient, r.logits[graph], r.targets + graph * (at.params.loss == 1 ? 1 : K),
                                        r.loss_weight, K, at.params.loss, r.label_weight);
      if (own.lane == 0) r.losses[graph] = loss;
      if (K + own.lane < padded()) gradient[K + own.lane] = 0.f;
      if (graph % S != slice) continue;
      float* result = at.params.gradient + static_cast<long long>(at.step.first_graph + first + graph) * K;
#pragma unroll 4
      for (int k = own.lane; k < K; k += 32) result[k] = gradient[k];  // what this lane wrote
    }
  }

  // dR, divided by the rows of a graph for means; eight columns a warp.
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
      const float share = at.params.readout == 1 ? 1.f / max(static_cast<int>(at.graph_rows[first + graph]), 1) : 1.f;
      *reinterpret_cast<float2*>(&r.back[first + graph][n0 + 2 * own.t]) =
          make_float2(share * c[2 * i], share * c[2 * i + 1]);
    }
  }

  // G of this thread's values: dR where it is open.
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

  // From Z in `rows` to G of this thread's values; `is_positive(i)`: whether Z > 0.
  template <class IsPositive>
  __device__ __forceinline__ void run(float (&g)[OWN], IsPositive is_positive) const {
    ReadoutShared& r = read();
    double total = 0.0;
#pragma unroll 1
    for (int first = 0; first < max(at.step.n_graphs, 1); first += READOUT_GRAPHS) {
      const int n = min(at.step.n_graphs - first, READOUT_GRAPHS);
      if (first > 0) sync_cluster();  // all blocks have read the parts
      pool(first, n);
      if (first == 0) wait_barrier(&at.head_full, 0);
      sync_named(HEAD);
      multiply();
      sync_cluster();  // the parts are there
      find_losses(first, n);
      sync_workers();
      multiply_back(first, n);
      for (int graph = 0; threadIdx.x == WORKERS - 1 && graph < n; ++graph) total += r.losses[graph];
      sync_workers();
    }
    if (at.params.readout != 2) {
      scatter_gradient(g, [&](int i, int, int, int) { return is_positive(i); });
    } else {
      scatter_gradient(g, [&](int i, int graph, int row, int c) { return is_positive(i) && r.peaks[graph][c] == row; });
    }
    if (slice == 0 && threadIdx.x == WORKERS - 1) at.params.losses[tile] = total;
  }
};

}  // namespace fused
