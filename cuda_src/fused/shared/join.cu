// The products of the features of whole graphs in a launch of their own; see fused/shared/join.cuh.
//
// Order of kernels: the previous kernel is the first layer's forward pass. This one reads what the update before it wrote, and
//   writes what the readout before that read; so it waits when it is done. The next kernel starts at once: a layer's forward
//   pass, which before its wait reads only what the update wrote, too.
#include "fused/shared/async_copy.cuh"
#include "fused/shared/join.cuh"

using namespace fused;

// Blocks on a multiprocessor; on GPUs after Hopper, compilers do not make do with the registers for two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int JOINS_AT_ONCE = 1;
#else
constexpr int JOINS_AT_ONCE = 2;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, JOINS_AT_ONCE)
    fused_join(const __grid_constant__ JoinParams params) {
  let_next_start();
  __shared__ float4 shared4[JOIN_FLOATS / 4];
  join_range(params, blockIdx.x, blockIdx.y * JOIN_GRAPHS, shared4);
  wait_for_previous();
}
