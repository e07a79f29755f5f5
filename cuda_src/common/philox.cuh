// Philox4x64-10, the counter-based generator of random bits (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011). The layout of key and counter is that of gcnbatch/philox.py:
//
//     key = (seed, purpose)    counter = (block + 1, step, epoch, 0)
//
// Block b yields the 32-bit values of elements 8 b ... 8 b + 7: of each 64-bit word, the low 32 bits come first.

#pragma once

constexpr int PHILOX_ELEMENTS = 8;  // whose values a block has

struct PhiloxKey {
  unsigned long long seed, purpose, epoch, step;
};

// The eight 32-bit values of one block.
struct PhiloxBlock {
  unsigned value[PHILOX_ELEMENTS];
};

__device__ inline PhiloxBlock philox(const PhiloxKey& key, unsigned long long block) {
  unsigned long long c0 = block + 1, c1 = key.step, c2 = key.epoch, c3 = 0;
  unsigned long long k0 = key.seed, k1 = key.purpose;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long high0 = __umul64hi(c0, 0xD2E7470EE14C6C93ull), low0 = c0 * 0xD2E7470EE14C6C93ull;
    const unsigned long long high1 = __umul64hi(c2, 0xCA5A826395121157ull), low1 = c2 * 0xCA5A826395121157ull;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B97F4A7C15ull;
    k1 += 0xBB67AE8584CAA73Bull;
  }
  return {{unsigned(c0), unsigned(c0 >> 32), unsigned(c1), unsigned(c1 >> 32), unsigned(c2), unsigned(c2 >> 32),
           unsigned(c3), unsigned(c3 >> 32)}};
}

// Bit i: whether dropout keeps element i of a block, whose random value is then at least `threshold`.
__device__ __forceinline__ unsigned kept_of_block(const PhiloxKey& key, unsigned long long block, unsigned threshold) {
  if (threshold == 0) return 0xff;
  unsigned kept = 0;
  const PhiloxBlock drawn = philox(key, block);
#pragma unroll
  for (int i = 0; i < PHILOX_ELEMENTS; ++i) kept |= (drawn.value[i] >= threshold) << i;
  return kept;
}
