// The last phase of a step in halves: as fused/wide/update.cuh, with jobs of its own.
//
// A job is W (F, P) of one layer, a vector of parameters as a matrix of P = 32 columns, or a dense layer on graphs with its
// bias as row F. Its gradient is the sum of `parts` matrices, what fused_half_dw and the pass leave. The weights of layers
// are written as panels both ways: what the pass reads.
// Traffic: reads 4 n (parts + 5), writes 12 n and 4 n of panels.
#pragma once

#include "fused/fp16/stage.cuh"
#include "fused/wide/update.cuh"

namespace fused {

// Four neighbours of a weight in panels, 8 bytes.
__device__ __forceinline__ void store_fp16x4(Fp16* to, Four value) {
  *reinterpret_cast<uint2*>(to) = make_uint2(to_fp16x2(value.v[0] * WEIGHT_SCALE, value.v[1] * WEIGHT_SCALE),
                                             to_fp16x2(value.v[2] * WEIGHT_SCALE, value.v[3] * WEIGHT_SCALE));
}

// The two forms of W (F, P): forward (P / 64, K / 64, 64, 64), its columns, backward (K / 64, P / 64, 64, 64), its rows, or
// null; K is F rounded up to 64.
struct WeightPanels {
  Fp16 *forward, *backward;
  int P, K;

  // Four neighbours of row k, from column p on; and of column p, from row k on.
  __device__ __forceinline__ void write_row(int k, int p, Four value) const {
    if (backward == nullptr) return;
    const long long panel = static_cast<long long>(k / FP16_PANEL) * (P / FP16_PANEL) + p / FP16_PANEL;
    store_fp16x4(backward + panel * FP16_PANEL * FP16_PANEL + in_fp16_panel(k % FP16_PANEL, p % FP16_PANEL), value);
  }
  __device__ __forceinline__ void write_column(int k, int p, Four value) const {
    const long long panel = static_cast<long long>(p / FP16_PANEL) * (K / FP16_PANEL) + k / FP16_PANEL;
    store_fp16x4(forward + panel * FP16_PANEL * FP16_PANEL + in_fp16_panel(p % FP16_PANEL, k % FP16_PANEL), value);
  }
};

// As the host fills it: three times 8 bytes, then 4 bytes a field.
struct Fp16Job {
  static constexpr bool BY_GRAPHS = false, PREFETCHES = true;
  static constexpr int HEIGHT = 2, PARTIALS_AT_ONCE = 3;
  static constexpr const float* left = nullptr;
  const float* right;        // (parts, rows, P)
  Fp16 *forward, *backward;  // panels, or null
  int weight, bias;          // where they start in the flat arrays; row F is the bias
  int n_rows, F, P, K;       // F, or F + 1 with the bias; columns of U
  int partials, partial_stride;

  __device__ __forceinline__ int rows() const { return n_rows; }
  __device__ __forceinline__ int start(int k) const { return k < F ? weight + k * P : bias + (k - F) * P; }
  __device__ __forceinline__ static void stage(const long long* stage, int block, int blocks) {
    stage_tiles(*reinterpret_cast<const Fp16Stage*>(stage), block, blocks, wait_for_previous);
  }

  __device__ __forceinline__ float prepared(float value) const { return value; }
  __device__ __forceinline__ void write_row(int k, int p, Four value) const {
    WeightPanels{forward, backward, P, K}.write_row(k, p, value);
  }
  __device__ __forceinline__ void write_column(int k, int p, Four value) const {
    WeightPanels{forward, backward, P, K}.write_column(k, p, value);
  }
};

using Fp16Update = WideUpdate<Fp16Job>;

}  // namespace fused
