// Staging alone: the first step of an epoch, and batches outside of one. Other batches are staged beside an update.
//
// Launch: 256 threads, a block per graph, as far as they go.
#include "fused/shared/stage.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(256, 1) fused_stage(const Stage* stage) {
  stage_batch(*stage, blockIdx.x, gridDim.x, wait_for_previous);
}
