// Delay of the stream, so that the work queued after it runs without gaps and is timed without the host's overhead.
#include "common/common.cuh"

// Return when *released is not 0, or after `nanoseconds`.
//
// Source: own. Shapes: released (1,) int32 in page-locked host memory that the device maps.
// Launch: one block of one thread. Traffic: 4 bytes over the bus per read.
// Determinism: computes nothing. Requirements: none. Without the time limit, a host that waits for the device would
//   wait forever.
extern "C" __global__ void meter_hold(const int* released, long long nanoseconds) {
  const volatile int* flag = released;  // the host writes it, so every read must reach memory
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*flag == 0 && now - start < static_cast<unsigned long long>(nanoseconds));
}
