// The jobs of the fp16 form's update, which is the template of fused/wide/update.cuh.
//
// A job is W (F, P) of one layer, a vector of parameters as a matrix of P = 32 columns, or a dense layer on graphs with its
// bias as row F. Its gradient is the sum of `n_partials` matrices, which fused_fp16_weight_gradient and the step leave. The
// weights of layers are also written as panels, forward and backward, as the step reads them.
// Traffic: reads 4 n (partials + 5), writes 12 n and 4 n of panels.
#pragma once

#include "fused/fp16/stage.cuh"
#include "fused/wide/update.cuh"

namespace fused {

// Store four neighbours of a weight in panels, 8 bytes.
__device__ __forceinline__ void store_fp16x4(Fp16* to, Four value) {
  *reinterpret_cast<uint2*>(to) = make_uint2(to_fp16x2(value.v[0] * WEIGHT_SCALE, value.v[1] * WEIGHT_SCALE),
                                             to_fp16x2(value.v[2] * WEIGHT_SCALE, value.v[3] * WEIGHT_SCALE));
}

// The two forms of W (F, P): its columns forward, (P / 64, K / 64, 64, 64); its rows backward, (K / 64, P / 64, 64, 64), or
// null. K is F rounded up to 64.
struct WeightPanels {
  Fp16 *forward, *backward;
  int P, K;

  // Write four neighbours: of row k from column p on, of column p from row k on.
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

struct Fp16Job {
  static constexpr bool BY_GRAPHS = false, PREFETCHES = true;
  static constexpr int HEIGHT = 2, PARTIALS_AT_ONCE = 3;
  static constexpr const float* left = nullptr;
  const float* right;        // (n_partials, rows, P)
  Fp16 *forward, *backward;  // panels, or null
  int weight, bias;          // first element in the flat arrays; row F is the bias
  int n_rows, F, P, K;       // F, or F + 1 with the bias; columns of U
  int n_partials, partial_stride;

  __device__ __forceinline__ int rows() const { return n_rows; }
  __device__ __forceinline__ int start(int k) const { return k < F ? weight + k * P : bias + (k - F) * P; }

  __device__ __forceinline__ float prepared(float value) const { return value; }
  __device__ __forceinline__ void write_row(int k, int p, Four value) const {
    WeightPanels{forward, backward, P, K}.write_row(k, p, value);
  }
  __device__ __forceinline__ void write_column(int k, int p, Four value) const {
    WeightPanels{forward, backward, P, K}.write_column(k, p, value);
  }
};

constexpr int MAX_JOBS = 1 + 4 * MAX_LAYERS;  // the head; of each layer W, bias, gamma, beta

struct Fp16UpdateParams {
  UpdateParams common;
  const Fp16Stage* stage;
  Fp16Job jobs[MAX_JOBS];
};

using Fp16Update = WideUpdate<Fp16Job>;

// Rows and columns of a chunk.
constexpr int CHUNK_ROWS = Fp16Job::HEIGHT * PANEL, CHUNK_COLUMNS = PANEL;

}  // namespace fused
