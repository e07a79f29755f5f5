// Prefix sums over a block and over a whole launch. No kernels.
//
// One pass scans a launch: a tile publishes its sum at once, then looks back over the sums of earlier tiles until it
// finds one whose prefix is known (Merrill, Garland: "Single-pass parallel prefix scan with decoupled look-back",
// 2016). Sums are of integers, so every run gives the same result.
#pragma once

#include "common/common.cuh"

constexpr int SCAN_THREADS = 256;  // of a block that calls these functions

// The state of a tile is one 64-bit word, so it is written and read atomically. The two highest bits are its kind.
constexpr unsigned long long TILE_SUM = 1ull << 62, TILE_PREFIX = 2ull << 62, TILE_VALUE = (1ull << 62) - 1;

// Sum of `value` over earlier threads of the block; `total` becomes the sum over all threads. All threads must call.
template <class T>
__device__ T block_prefix(T value, T& total) {
  __shared__ T of_warp[SCAN_THREADS / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T inclusive = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(FULL_WARP, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  __syncthreads();  // an earlier call has read `of_warp`
  if (lane == 31) of_warp[warp] = inclusive;
  __syncthreads();
  T before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < SCAN_THREADS / 32; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  return before + inclusive - value;
}

// The tile of this block, in the order in which blocks start. So all earlier tiles belong to running blocks, and
// waiting for them cannot deadlock. `ticket` is 0 before the launch.
__device__ inline int next_tile(unsigned* ticket) {
  __shared__ int tile;
  if (threadIdx.x == 0) tile = atomicAdd(ticket, 1u);
  __syncthreads();
  return tile;
}

// Sum over the tiles before `tile`, whose own sum is `total` (at least 0, below 2^62). `states` is 0 before the launch.
__device__ inline long long tile_prefix(unsigned long long* states, int tile, long long total) {
  __shared__ long long before;
  if (threadIdx.x < 32) {
    volatile unsigned long long* seen = states;
    const int lane = threadIdx.x;
    if (lane == 0) seen[tile] = (tile ? TILE_SUM : TILE_PREFIX) | total;
    long long sum = 0;
    for (int window = tile - 1; window >= 0; window -= 32) {
      unsigned long long state = TILE_PREFIX;  // for lanes before the first tile
      do {
        if (window >= lane) state = seen[window - lane];
      } while (__any_sync(FULL_WARP, state < TILE_SUM));
      const unsigned known = __ballot_sync(FULL_WARP, state >= TILE_PREFIX);
      const int last = known ? __ffs(known) - 1 : 31;
      sum += warp_sum(lane <= last ? static_cast<long long>(state & TILE_VALUE) : 0ll);
      if (known) break;
    }
    if (lane == 0) {
      if (tile) seen[tile] = TILE_PREFIX | (sum + total);
      before = sum;
    }
  }
  __syncthreads();
  return before;
}
