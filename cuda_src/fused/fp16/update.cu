// The fp16 form besides its step and its products: update, staging, and the weights as panels. fused/FUSED.md follows the
// step.
// Requires: sm_90a; elsewhere the kernels are empty.
#include "fused/fp16/update.cuh"
#include "fused/shared/async_copy.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, 4)
    fused_fp16_update(const __grid_constant__ Fp16UpdateParams params) {
  __shared__ Fp16Update::Tile tile;
  __shared__ float4 old_values[3][Fp16Update::HEIGHT][UPDATE_THREADS];
  const int block = blockIdx.x, n_stages = params.common.n_stages;
  if constexpr (!HAS_WARPGROUPS) return;
  if (block < n_stages) {
    stage_tiles(*params.stage, block, n_stages, wait_for_previous);
  } else {
    const Fp16Update update = {params.common};
    const WideChunk chunk = update.chunk(block - n_stages);
    update.run(block - n_stages, chunk, params.jobs[chunk.job], tile, {old_values});
  }
}

// Stage the first batch of an epoch; the others are staged beside the update.
//
// Launch: 256 threads; blocks stride over graphs and tiles.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) fused_fp16_stage(const Fp16Stage* __restrict__ stage) {
  if constexpr (HAS_WARPGROUPS) stage_tiles(*stage, blockIdx.x, gridDim.x, wait_for_previous);
}

// Write the weights W (F, P) as panels, when they did not come from an update; backward may be null.
//
// Launch: 256 threads, four weights each way in each; grid (P / 32, K / 32). Traffic: reads 4 F P, writes 4 K P.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    fused_fp16_weights(Fp16* forward, Fp16* backward, const float* weight, int F, int P, int K) {
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
