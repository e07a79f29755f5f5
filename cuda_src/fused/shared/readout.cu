// The readout of a training step for any model; see fused/shared/readout.cuh.
#include "fused/shared/readout.cuh"

using namespace fused;

// Registers for two blocks a multiprocessor: one of them starts, and reads the batch, beside a block of the layer before.
extern "C" __global__ void __launch_bounds__(THREADS, 2) fused_readout(const __grid_constant__ ReadoutParams params) {
  extern __shared__ float4 shared4[];
  readout_phase<false>(params, shared4, [](int) { return 0; });
}

// The same for weighted targets and any loss.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_weighted_readout(const __grid_constant__ ReadoutParams params) {
  extern __shared__ float4 shared4[];
  readout_phase<true>(params, shared4, [](int) { return 0; });
}
