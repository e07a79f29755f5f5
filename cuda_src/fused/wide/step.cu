// The wide form besides its layers (fused/wide/layers.cu): dropout, readout, update. fused/FUSED.md follows the step.
#include "fused/wide/dropout.cuh"
#include "fused/wide/readout.cuh"
#include "fused/wide/update.cuh"

using namespace fused;

// Draw the dropout bits of all layers of a step. layers (gridDim.y,).
//
// Launch: 256 threads, grid (blocks, layers); a thread draws eight elements at a time. Traffic: writes N P / 8 a layer.
extern "C" __global__ void __launch_bounds__(DROPOUT_THREADS)
    fused_wide_dropout(const DropoutLayer* layers, const int* size, const MemberValues* of_dropout) {
  const DropoutLayer layer = layers[blockIdx.y];
  const MemberValues values = *of_dropout;
  const long long elements = layer.columns * size[BatchSize::N];
  wait_for_previous();
  draw_kept(blockIdx.x, gridDim.x, layer.kept, size, values.seed, layer.purpose, values.threshold, elements);
}

extern "C" __global__ void __launch_bounds__(READOUT_THREADS, 1) CLUSTERS_OF(8)
    fused_wide_readout(const __grid_constant__ WideReadout readout) {
  extern __shared__ float4 shared4[];
  if constexpr (HAS_CLUSTERS) readout.of_member().run(reinterpret_cast<float*>(shared4));
}

extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, 4)
    fused_wide_update(const __grid_constant__ WideUpdateParams params) {
  __shared__ WideUpdate<WideJob>::Tile tile;
  const int block = blockIdx.x, n_stages = params.common.n_stages;
  if (block < n_stages) {
    stage_batch<StagersOfBlock>(*params.stage, params.stage->progress, block, n_stages, wait_for_previous);
  } else {
    const WideUpdate<WideJob> update = {params.common};
    const WideChunk chunk = update.chunk(block - n_stages);
    const WideJob job = params.jobs[chunk.job];
    update.run(block - n_stages, chunk, job, tile, {nullptr});
  }
}
