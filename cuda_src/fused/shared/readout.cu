// The readout of a training step for any model; see fused/shared/readout.cuh.
#include "fused/shared/readout.cuh"

using namespace fused;

// Only for Hopper, compilers make do with the registers for two blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int LEAST_BLOCKS = READOUT_BLOCKS;
#else
constexpr int LEAST_BLOCKS = 1;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    fused_readout(const __grid_constant__ ReadoutParams params) {
  extern __shared__ float4 shared4[];
  readout_phase<false>(params, shared4, [](int) { return 0; });
}

// The same for weighted targets and any loss.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_weighted_readout(const __grid_constant__ ReadoutParams params) {
  extern __shared__ float4 shared4[];
  readout_phase<true>(params, shared4, [](int) { return 0; });
}
