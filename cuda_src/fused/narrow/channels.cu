// Kernels of narrow layers of 64 columns with several channels, which skip what is 0 in U (fused/narrow/channels.cuh).
// The readout and the update are those of fused/narrow/step.cu.
//
// Order: first, forward of each other layer; after the readout, backward of each from the last on; weights of all layers.
#include "fused/narrow/channels_backward.cuh"
#include "fused/narrow/channels_first.cuh"
#include "fused/narrow/channels_forward.cuh"
#include "fused/narrow/channels_weights.cuh"

using namespace fused;

// Only for Hopper, compilers make do with the registers for two blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int LEAST_BLOCKS = CHANNELS_BLOCKS;
#else
constexpr int LEAST_BLOCKS = 1;
#endif

KERNEL_WITH_SHARED(fused_narrow_channels_first, ChannelsFirstParams, (THREADS, LEAST_BLOCKS), channels_first);
KERNEL_WITH_SHARED(fused_narrow_channels_forward, NarrowForwardParams, (THREADS, LEAST_BLOCKS),
                   channels_forward<QuarterOfColumns>);
KERNEL_WITH_SHARED(fused_narrow_channels_forward_whole, NarrowForwardParams, (THREADS, 1),
                   channels_forward<AllColumns>);
KERNEL_WITH_SHARED(fused_narrow_channels_backward, ChannelsBackwardParams, (THREADS, LEAST_BLOCKS),
                   channels_backward<QuarterOfColumns>);
KERNEL_WITH_SHARED(fused_narrow_channels_backward_whole, ChannelsBackwardParams, (THREADS, 1),
                   channels_backward<AllColumns>);
KERNEL_WITH_SHARED(fused_narrow_channels_weights, WeightSlabParams, (THREADS, LEAST_BLOCKS), channels_weights);
