// Holding the stream back, so that work queued behind it runs in one go and is timed without the host's pauses.
#include "common/common.cuh"

// Returns when *released is not 0, or after `nanoseconds`.
//
// Source: own. Shapes: released (1,) int32 in page-locked host memory that the device maps.
// Launch: one block of one thread. Traffic: 4 bytes over the bus per look.
// Determinism: computes nothing. Requirements: none; the time limit keeps a host that waits for the device from waiting
//   for ever.
extern "C" __global__ void meter_hold(const int* released, long long nanoseconds) {
  const volatile int* flag = released;  // the host writes it: every look must reach the memory
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*flag == 0 && now - start < static_cast<unsigned long long>(nanoseconds));
}
