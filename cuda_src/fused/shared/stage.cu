// Staging without an update: for an epoch's first step and for batches outside an epoch. All others: beside an update.
//
// Launch: 256 threads, blocks stride over the graphs.
#include "fused/shared/stage.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(256, 1) fused_stage(const Stage* stage) {
  stage_batch(*stage, blockIdx.x, gridDim.x, wait_for_previous);
}
