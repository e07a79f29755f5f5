// Flags in memory that the devices of several ranks of a host write: how a rank learns that another has written. No
// kernels.
//
// A flag is a number that only grows, so nothing is ever cleared. The writer releases it for the whole system, after what it
// announces; the reader acquires it.
#pragma once

#include "common/common.cuh"

constexpr int MAX_RANKS = 16;     // of one host
constexpr int MOST_SECONDS = 60;  // that a kernel waits for another rank

// Write a flag; whoever reads it sees all that this block wrote before its last __syncthreads.
__device__ __forceinline__ void put_flag(unsigned char* flag, unsigned turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(turn) : "memory");
#endif
}

__device__ __forceinline__ unsigned get_flag(const unsigned char* flag) {
  unsigned turn = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(turn) : "l"(flag) : "memory");
#endif
  return turn;
}

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Repeat `is_ready` until it returns true; the kernel fails if that takes too long.
template <class Ready>
__device__ __forceinline__ void wait_until(Ready is_ready) {
  unsigned long long begun = 0;
#pragma unroll 1
  for (unsigned tries = 1; !is_ready(); ++tries) {
    if (tries % 4096 != 0) continue;
    const unsigned long long now = nanoseconds();
    if (begun == 0) begun = now;
    if (now - begun > MOST_SECONDS * 1000000000ull) __trap();
  }
}
