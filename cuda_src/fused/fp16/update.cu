// What a step in halves has beside its pass and its products: update, staging, the weights as panels. fused/FUSED.md follows
// the step.
// Requires: sm_90a, as the others of such a step; elsewhere they are empty.
#include "fused/fp16/update.cuh"
#include "fused/shared/async_copy.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(256, 4)
    fused_fp16_update(float* parameters, float* m, float* v, float* gradients, double* norms, double* totals,
                      const double* losses, const float* weight_decay, const float* l2, const float* rates,
                      const int* progress, const long long* jobs, const int* chunks, const long long* stage,
                      int n_chunks, int n_stages, int n_losses, int mode, int sgd, float beta1, float rest1,
                      float beta2, float rest2, float epsilon, float max_norm) {
  __shared__ float tile[2 * PANEL][Fp16Update::LD];
  __shared__ float4 ahead[3][Fp16Update::HEIGHT][UPDATE_THREADS];
  const Rule rule = {sgd, beta1, rest1, beta2, rest2, epsilon};
  const Fp16Update phase = {parameters,   m,        v,        gradients, norms, totals,  losses,
                            weight_decay, l2,       rates,    progress,  jobs,  chunks,  stage,
                            n_chunks,     n_stages, n_losses, mode,      rule,  max_norm};
  if constexpr (HAS_WARPGROUPS) phase.run(tile, {ahead});
}

// The first batch of an epoch; the others are staged beside the update.
//
// Launch: 256 threads; a block takes graphs and tiles, as many as come to it.
extern "C" __global__ void __launch_bounds__(256) fused_fp16_stage(const long long* stage) {
  if constexpr (HAS_WARPGROUPS)
    stage_tiles(*reinterpret_cast<const Fp16Stage*>(stage), blockIdx.x, gridDim.x, wait_for_previous);
}

// The weights W (F, P) as panels, when they came from elsewhere than from an update; backward may be null.
//
// Launch: 256 threads, four weights each way in each; grid (P / 32, K / 32). Traffic: reads 4 F P, writes 4 K P.
extern "C" __global__ void __launch_bounds__(256)
    fused_fp16_weights(unsigned short* forward, unsigned short* backward, const float* weight, int F, int P, int K) {
  if constexpr (!HAS_WARPGROUPS) return;
  __shared__ float tile[PANEL][PANEL + 1];
  const int row = threadIdx.x / 8, first = threadIdx.x % 8 * 4, k0 = blockIdx.y * PANEL, p0 = blockIdx.x * PANEL;
  const WeightPanels panels = {forward, backward, P, K};
  wait_for_previous();
  const Four value = Four::load(weight + static_cast<long long>(k0 + row) * P + p0 + first, k0 + row < F ? 4 : 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[row][first + i] = value.v[i];
  panels.write_row(k0 + row, p0 + first, value);
  __syncthreads();
  Four across;
#pragma unroll
  for (int i = 0; i < 4; ++i) across.v[i] = tile[first + i][row];
  panels.write_column(k0 + first, p0 + row, across);
}
