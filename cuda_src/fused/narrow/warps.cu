// Kernels of narrow layers of 64 columns and 1 channel in large cohorts, where few warps have a tile; see
// fused/narrow/warps.cuh. Launches and parameters are those of fused/narrow/step.cu.
#include "fused/narrow/warps_dw.cuh"
#include "fused/narrow/warps_forward.cuh"
#include "fused/narrow/warps_readout.cuh"

using namespace fused;

KERNEL_WITH_SHARED(fused_narrow_forward_first_64x1_warps1, NarrowForwardParams, (THREADS, 1),
                   forward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>>);
KERNEL_WITH_SHARED(fused_narrow_forward_first_64x1_warps2, NarrowForwardParams, (THREADS, 1),
                   forward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<2>>);
KERNEL_WITH_SHARED(fused_narrow_forward_first_64x1_warps4, NarrowForwardParams, (THREADS, 1),
                   forward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<4>>);
KERNEL_WITH_SHARED(fused_narrow_forward_64x1_warps1, NarrowForwardParams, (THREADS, 1),
                   forward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>>);
KERNEL_WITH_SHARED(fused_narrow_forward_64x1_warps2, NarrowForwardParams, (THREADS, 1),
                   forward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<2>>);
KERNEL_WITH_SHARED(fused_narrow_forward_64x1_warps4, NarrowForwardParams, (THREADS, 1),
                   forward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<4>>);
KERNEL(fused_narrow_readout_64x1_warps, ReadoutParams, (THREADS, READOUT_BLOCKS), readout_phase_of_graphs);
KERNEL_WITH_SHARED(fused_narrow_backward_64x1_warps1_sums1, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>, 1>);
KERNEL_WITH_SHARED(fused_narrow_backward_64x1_warps1_sums2, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>, 2>);
KERNEL_WITH_SHARED(fused_narrow_backward_64x1_warps1_sums4, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<1>, 4>);
KERNEL_WITH_SHARED(fused_narrow_backward_64x1_warps2_sums1, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<2>, 1>);
KERNEL_WITH_SHARED(fused_narrow_backward_64x1_warps4_sums1, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, CONVOLUTION>, Team<4>, 1>);
KERNEL_WITH_SHARED(fused_narrow_backward_first_64x1_sums1, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>, 1>);
KERNEL_WITH_SHARED(fused_narrow_backward_first_64x1_sums2, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>, 2>);
KERNEL_WITH_SHARED(fused_narrow_backward_first_64x1_sums4, NarrowBackwardParams, (THREADS, 1),
                   backward_phase_of_warps<FixedShape<64, 1, FIRST>, Team<1>, 4>);
