// The readout of models with one hidden dense layer; see fused/narrow/readout_hidden.cuh.
#include "fused/narrow/readout_hidden.cuh"

using namespace fused;

// Only for Hopper, compilers make do with the registers for two blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int LEAST_BLOCKS = READOUT_BLOCKS;
#else
constexpr int LEAST_BLOCKS = 1;
#endif

KERNEL_WITH_SHARED(fused_narrow_readout_64x128, ReadoutParams, (THREADS, LEAST_BLOCKS),
                   readout_phase_of_hidden<GROUP, HIDDEN_COLUMNS>);
