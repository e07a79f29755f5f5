// Asynchronous copies from global to shared memory, below sm_80 loads and stores; prefetches to L2. No kernels.

#pragma once

#include "common/common.cuh"

__device__ __forceinline__ void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Copy FLOATS floats to shared memory, asynchronously from sm_80 on. Floats beyond the first `valid` become 0.
template <int FLOATS>
__device__ void copy_async(float* to, const float* from, int valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (FLOATS == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(4 * valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(4 * valid) : "memory");
  }
#else
  if (FLOATS == 4) {
    *reinterpret_cast<float4*>(to) = load4(from, valid, true);
  } else {
    *to = valid > 0 ? *from : 0.f;
  }
#endif
}

__device__ inline void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until all but the last PENDING groups of copies have arrived.
template <int PENDING>
__device__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
