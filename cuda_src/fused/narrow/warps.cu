// Kernels of narrow layers of 64 columns and 1 channel in large cohorts, where few warps have a tile; see
// fused/narrow/warps.cuh. Launches and parameters are those of fused/narrow/step.cu.
#include "fused/narrow/warps_dw.cuh"
#include "fused/narrow/warps_forward.cuh"
#include "fused/narrow/warps_readout.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_forward_first_64x1_warps1(const __grid_constant__ NarrowForwardParams params) {
  extern __shared__ float4 shared4[];
  forward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_forward_first_64x1_warps2(const __grid_constant__ NarrowForwardParams params) {
  extern __shared__ float4 shared4[];
  forward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<2>>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_forward_first_64x1_warps4(const __grid_constant__ NarrowForwardParams params) {
  extern __shared__ float4 shared4[];
  forward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<4>>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_forward_64x1_warps1(const __grid_constant__ NarrowForwardParams params) {
  extern __shared__ float4 shared4[];
  forward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_forward_64x1_warps2(const __grid_constant__ NarrowForwardParams params) {
  extern __shared__ float4 shared4[];
  forward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<2>>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_forward_64x1_warps4(const __grid_constant__ NarrowForwardParams params) {
  extern __shared__ float4 shared4[];
  forward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<4>>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    fused_narrow_readout_64x1_warps(const __grid_constant__ ReadoutParams params) {
  readout_phase_of_graphs(params);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_64x1_warps1_sums1(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>, 1>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_64x1_warps1_sums2(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>, 2>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_64x1_warps1_sums4(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>, 4>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_64x1_warps2_sums1(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<2>, 1>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_64x1_warps4_sums1(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<4>, 1>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_first_64x1_sums1(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>, 1>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_first_64x1_sums2(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>, 2>(params, shared4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_narrow_backward_first_64x1_sums4(const __grid_constant__ NarrowBackwardParams params) {
  extern __shared__ float4 shared4[];
  backward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>, 4>(params, shared4);
}
