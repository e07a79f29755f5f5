// Staging without an update: for an epoch's first step and for batches outside an epoch. All others: beside an update.
//
// Launch: 256 threads, members in z; blocks, in a cohort warps, stride over the graphs.
#include "fused/shared/optimizer.cuh"
#include "fused/shared/stage.cuh"

using namespace fused;

struct StageParams {
  const Stage* stage;
  Members members;
};

extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, 1)
    fused_stage(const __grid_constant__ StageParams params) {
  const Stage& stage = *params.members.of_step(params.stage);
  stage_batch<Stagers<SHARES_LAUNCHES>>(stage, stage.progress, blockIdx.x, gridDim.x, wait_for_previous);
}
