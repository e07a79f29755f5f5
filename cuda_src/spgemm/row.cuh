// Device code of SpGEMM: lanes that share a row, iteration over its products, a sort in registers. No kernels.
#pragma once

#include "common/common.cuh"

// Markers instead of a column: EMPTY for an unused slot; NO_COLUMN sorts after every column.
enum : int { EMPTY = -1, NO_COLUMN = 0x7fffffff };

// Outputs of a launch: size and result of each row (one pass); size only; result, at a known place.
enum Mode { SINGLE, COUNT, FILL };

constexpr int STEPS = 4;     // products that a lane has in flight
constexpr int CROWDED = 64;  // with more columns or products than this in a bucket, a bitonic sort replaces buckets

// The operands of a product.
struct Operands {
  const int* __restrict__ a_indices;
  const float* __restrict__ a_data;
  const int* __restrict__ b_indptr;
  const int* __restrict__ b_indices;
  const float* __restrict__ b_data;
};

// A group of 2^bits lanes that share a row; a warp has 32 >> bits groups. All lanes of a warp run the same code.
struct Lanes {
  int bits, lane, shift;
  __device__ explicit Lanes(int bits) : bits(bits), lane(threadIdx.x & ((1 << bits) - 1)) {
    shift = (threadIdx.x & 31) - lane;
  }
  __device__ int count() const { return 1 << bits; }
  __device__ unsigned vote(bool value) const {  // one bit per lane of this group
    return (__ballot_sync(FULL_WARP, value) >> shift) & (0xffffffffu >> (32 - count()));
  }
  __device__ int before(unsigned votes) const { return __popc(votes & ((1u << lane) - 1)); }
  template <class T>
  __device__ T from(T value, int source) const {
    return __shfl_sync(FULL_WARP, value, source, count());
  }
};

__device__ inline int min_of_lanes(int value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(FULL_WARP, value, offset));
  return value;
}

// One entry of A per lane: start and length of its row of B, and its value.
struct Entries {
  int start, length;
  float value;
  __device__ Entries(int entry, bool there, const int* a_indices, const float* a_data, const int* b_indptr)
      : start(0), length(0), value(0.0f) {
    if (!there) return;
    const int k = __ldg(a_indices + entry);
    value = __ldg(a_data + entry);
    start = __ldg(b_indptr + k);
    length = __ldg(b_indptr + k + 1) - start;
  }
};

// Iterate over the products of the entries `mine`, in order. Each step computes one product per lane and calls
// `step(column, product, place)`; column EMPTY means no product. With WHOLE_ROWS, the products of a step belong to one
// row of B, so their columns differ, and some lanes may be idle. Otherwise, a step takes products of as many rows as
// fill the lanes. The iteration ends early when `full()`. Returns the number of places. All lanes of the warp must
// call, and `step` is called by all of them together.
template <bool WHOLE_ROWS, class Step, class Full>
__device__ __forceinline__ int walk_entries(const Operands& m, const Lanes& lanes, const Entries& mine, int walked,
                                            Step step, Full full) {
  const int width = WHOLE_ROWS ? (mine.length + 31) & ~31 : mine.length;  // places that the entry takes
  int end = width;
  for (int offset = 1; offset < lanes.count(); offset *= 2) {
    const int other = lanes.from(end, max(lanes.lane - offset, 0));
    if (lanes.lane >= offset) end += other;
  }
  const int before = end - width, total = lanes.from(end, lanes.count() - 1);
  const int skew = mine.start - before, stop = mine.start + mine.length;
  for (int place = lanes.lane; __any_sync(FULL_WARP, place - lanes.lane < total && !full());
       place += STEPS * lanes.count()) {
    int column[STEPS];
    float product[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int at = place + s * lanes.count();
      int entry = 0;  // the last one that begins at or before this place
      if (WHOLE_ROWS) {
        entry = __popc(__ballot_sync(FULL_WARP, before <= at - lanes.lane)) - 1;
      } else {
        for (int half = lanes.count() / 2; half > 0; half /= 2)
          if (lanes.from(before, entry + half) <= at) entry += half;
      }
      const int address = lanes.from(skew, entry) + at, limit = lanes.from(stop, entry);
      const float value = lanes.from(mine.value, entry);
      column[s] = EMPTY;
      product[s] = 0.0f;
      if (at < total && address < limit) {
        column[s] = __ldg(m.b_indices + address);
        product[s] = __fmul_rn(value, __ldg(m.b_data + address));
      }
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) step(column[s], product[s], walked + place + s * lanes.count());
  }
  return total;
}

// A row of A with one entry: the result is the scaled row of B, without table and sort. Returns its length.
__device__ inline int write_single(int* out_indices, float* out_data, const Operands& m, int entry, int thread,
                                   int threads, bool writes) {
  const Entries one(entry, true, m.a_indices, m.a_data, m.b_indptr);
  for (int i = thread; writes && i < one.length; i += threads) {
    out_indices[i] = __ldg(m.b_indices + one.start + i);
    out_data[i] = __fadd_rn(0.0f, __fmul_rn(one.value, __ldg(m.b_data + one.start + i)));
  }
  return one.length;
}

// One step of a bitonic sort between lanes `stride` apart, in ascending or descending order.
__device__ __forceinline__ unsigned exchanged(unsigned key, int stride, int lane, bool rising) {
  const unsigned other = __shfl_xor_sync(FULL_WARP, key, stride);
  return (((lane & stride) == 0) == rising) ? min(key, other) : max(key, other);
}

// Sort PER_LANE keys per lane over a group of lanes. Key r of a lane has index r * lanes + lane. So steps with a stride
// below `lanes` are shuffles, and the others stay in the lane.
template <int PER_LANE>
__device__ __forceinline__ void sort_in_registers(unsigned (&key)[PER_LANE], const Lanes& lanes) {
  const int count = lanes.count(), lane = lanes.lane;
  for (int size = 2; size <= count; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int r = 0; r < PER_LANE; ++r)
        key[r] = exchanged(key[r], stride, lane, size < count ? (lane & size) == 0 : (r & 1) == 0);
    }
  }
#pragma unroll
  for (int size = 2; size <= PER_LANE; size *= 2) {
#pragma unroll
    for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int r = 0; r < PER_LANE; ++r) {
        if (r & stride) continue;
        const unsigned low = min(key[r], key[r + stride]), high = max(key[r], key[r + stride]);
        key[r] = (r & size) == 0 ? low : high;
        key[r + stride] = (r & size) == 0 ? high : low;
      }
    }
    for (int stride = count / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int r = 0; r < PER_LANE; ++r) key[r] = exchanged(key[r], stride, lane, (r & size) == 0);
    }
  }
}
