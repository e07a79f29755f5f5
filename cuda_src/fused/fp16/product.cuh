// The products of the fp16 step, the copies of their operands, and the product with A.
#pragma once

#include "fused/fp16/step.cuh"

namespace fused {

// ---- operands ----

// Order this thread's later TMA copies after all memory accesses that a barrier has made visible to it: the copies read what
// was written, and overwrite shared memory only once it has been read.
__device__ __forceinline__ void fence_async_proxy() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// Copy to the same shared memory in all blocks of `mask`; each block's `full` counts the bytes.
__device__ __forceinline__ void tma_multicast(void* to, const void* from, int bytes, unsigned long long* full,
                                              int mask) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(full)), "h"(static_cast<unsigned short>(mask))
      : "memory");
#endif
}

// Copy the slice's weights, `panels` of 64 of the depth, in two pieces; one thread calls.
__device__ __forceinline__ void fetch_low(StepShared& at, const Fp16* weights, int panels) {
  const int bytes = min(panels, LOW_PANELS) * WEIGHT_PANEL_BYTES;
  expect_bytes(&at.w_low_full, bytes);
  tma_copy(at.w_low, weights, bytes, &at.w_low_full);
}

__device__ __forceinline__ void fetch_high(StepShared& at, const Fp16* weights, int panels) {
  const int bytes = (panels - LOW_PANELS) * WEIGHT_PANEL_BYTES;
  if (bytes <= 0) return;
  expect_bytes(&at.w_high_full, bytes);
  tma_copy(at.w_high, reinterpret_cast<const unsigned char*>(weights) + LOW_PANELS * WEIGHT_PANEL_BYTES, bytes,
           &at.w_high_full);
}

// The phases of its barriers that a product waits for.
struct Phases {
  unsigned full = 0, low = 0, high = 0;
};

// The rows of a group in a panel of U.
constexpr int CHUNK_BYTES = GROUP_ROWS * FP16_PANEL * 2;

// Send the rows of a group in a panel, which this block has written, to all S blocks of the cluster.
template <int S>
__device__ __forceinline__ void send_chunk(StepShared& at, const Fp16* panel, int q, int group) {
  tma_multicast(at.u[q] + group * CHUNK_BYTES, panel + group * (CHUNK_BYTES / 2), CHUNK_BYTES, &at.full[group],
                (1 << S) - 1);
}

// ---- products ----

// wgmma descriptor of rows of 128 bytes with the depth along them, 128-byte swizzle.
__device__ __forceinline__ unsigned long long row_descriptor(const unsigned char* rows) {
  return (shared_address(rows) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// d (64, 48) += a (64, 16) bᵀ (16, 48) in fp16, asynchronously.
__device__ __forceinline__ void wgmma_fp16(float (&d)[OWN], unsigned long long a, unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, %24, %25, 1, 1, 1, 0, "
      "0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
      : "l"(a), "l"(b));
#endif
}

// sum = (slice of Wᵀ) (rows of the group)ᵀ; meanwhile() runs beside the tensor cores.
template <class Meanwhile>
__device__ __forceinline__ void multiply_panels(float (&sum)[OWN], StepShared& at, int panels, Phases& phases,
                                                int group, Meanwhile meanwhile) {
#pragma unroll
  for (int i = 0; i < OWN; ++i) sum[i] = 0.f;
  wait_barrier(&at.w_low_full, phases.low);
  wait_barrier(&at.full[group], phases.full);
#pragma unroll 1
  for (int q = 0; q < panels; ++q) {
    if (q == LOW_PANELS) {
      wait_barrier(&at.w_high_full, phases.high);
    }
    const unsigned long long a = row_descriptor(q < LOW_PANELS ? at.w_low[q] : at.w_high[q - LOW_PANELS]);
    const unsigned long long b = row_descriptor(at.u[q] + group * CHUNK_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < FP16_PANEL / 16; ++k) wgmma_fp16(sum, a + 2 * k, b + 2 * k);
    wgmma_commit();
  }
  phases.full ^= 1, phases.low ^= 1, phases.high ^= panels > LOW_PANELS;
  meanwhile();
  wgmma_wait<0>();
}

// ---- the product with A ----

// Four neighbours of a row times `scale`, in fp16.
__device__ __forceinline__ uint2 to_fp16x4(const float4& from, float scale) {
  return make_uint2(to_fp16x2(from.x * scale, from.y * scale), to_fp16x2(from.z * scale, from.w * scale));
}

// Eight lanes share a row; this one has columns 4 lane … and 32 + 4 lane …: no bank conflicts.
struct RowSlice {
  float4 low, high;

  // Load if `is_there`.
  __device__ __forceinline__ void load(unsigned row, int lane, bool is_there = true) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile(
        "{ .reg .pred p;\n"
        "setp.ne.s32 p, %9, 0;\n"
        "@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%8];\n"
        "@p ld.shared.v4.f32 {%4, %5, %6, %7}, [%8 + 128]; }"
        : "+f"(low.x), "+f"(low.y), "+f"(low.z), "+f"(low.w), "+f"(high.x), "+f"(high.y), "+f"(high.z), "+f"(high.w)
        : "r"(row + 16 * lane), "r"(static_cast<int>(is_there))
        : "memory");
#endif
  }
  __device__ __forceinline__ static void add(float4& to, float factor, const float4& from) {
    to.x = fmaf(factor, from.x, to.x), to.y = fmaf(factor, from.y, to.y);
    to.z = fmaf(factor, from.z, to.z), to.w = fmaf(factor, from.w, to.w);
  }
  __device__ __forceinline__ void add(float factor, const RowSlice& from) {
    add(low, factor, from.low), add(high, factor, from.high);
  }
  // Store to row r of a panel.
  __device__ __forceinline__ void store(Fp16* panel, int r, int lane, float scale) const {
    *reinterpret_cast<uint2*>(panel + in_fp16_panel(r, 4 * lane)) = to_fp16x4(low, scale);
    *reinterpret_cast<uint2*>(panel + in_fp16_panel(r, 32 + 4 * lane)) = to_fp16x4(high, scale);
  }
};

// A thread shares one row in each group; a warp has neighbouring rows.
constexpr int SLICE_LANES = 8;

__device__ __forceinline__ int slice_row(const Owner& own, int group) {
  return group * GROUP_ROWS + own.warp * (32 / SLICE_LANES) + own.lane / SLICE_LANES;
}

// The rows of A or Aᵀ of a tile, in CSR in global memory.
struct TileRows {
  const int *indptr, *indices;
  const float* values;
  int first;

  __device__ __forceinline__ TileRows(const StepParams& of, int tile, bool transposed) {
    transposed = transposed && of.t_indptr != nullptr;
    indptr = (transposed ? of.t_indptr : of.indptr) + tile * TILE_ROWS, first = indptr[0];
    indices = (transposed ? of.t_indices : of.indices) + first, values = (transposed ? of.t_values : of.values) + first;
  }
  __device__ __forceinline__ int2 entry(int k) const {
    return make_int2(indices[k] * ROW_LD * static_cast<int>(sizeof(float)), __float_as_int(values[k]));
  }
};

// Add Σ value rows[column] over the entries of a row to this thread's columns; entries come from global memory, slowly.
__device__ __forceinline__ void add_entries(RowSlice& sum, unsigned rows, const StepParams& params, int tile, int lane,
                                            int k, int end, bool transposed) {
  const TileRows from(params, tile, transposed);
#pragma unroll 1
  for (; k < end; ++k) {
    const int2 entry = from.entry(k);
    RowSlice found = {};
    found.load(rows + entry.x, lane);
    sum.add(__int_as_float(entry.y), found);
  }
}

// panel[r] = scale Σ value rows[column] over the entries of row r of A (or Aᵀ), group by group; the copy warp is notified of
// each group. If `copy` is not null, copy[r] = scale rows[r].
__device__ __forceinline__ void propagate(StepShared& at, Fp16* panel, Fp16* copy, float scale, const Owner& own,
                                          int tile, bool transposed) {
  constexpr int AT_ONCE = 4;
  const int lane = own.lane % SLICE_LANES;
  const unsigned rows = shared_address(at.rows);
  const bool fits = at.indptr[TILE_ROWS] <= MAX_ENTRIES;
  RowSlice found[AT_ONCE] = {};  // any finite number where there is no entry: its factor is 0
#pragma unroll 1
  for (int group = 0; group < GROUPS; ++group) {
    const int r = slice_row(own, group), begin = at.indptr[r], end = at.indptr[r + 1];
    RowSlice sum = {};
    if (fits) {
      int2 entry[AT_ONCE];
#pragma unroll
      for (int b = 0; b < AT_ONCE; ++b) entry[b] = begin + b < end ? at.entries[begin + b] : make_int2(0, 0);
#pragma unroll
      for (int b = 0; b < AT_ONCE; ++b) found[b].load(rows + entry[b].x, lane, begin + b < end);
#pragma unroll
      for (int b = 0; b < AT_ONCE; ++b) sum.add(__int_as_float(entry[b].y), found[b]);
#pragma unroll 1
      for (int k = begin + AT_ONCE; k < end; ++k) {
        found[0].load(rows + at.entries[k].x, lane);
        sum.add(__int_as_float(at.entries[k].y), found[0]);
      }
    } else {
      add_entries(sum, rows, at.params, tile, lane, begin, end, transposed);
    }
    sum.store(panel, r, lane, scale);
    if (copy != nullptr) {
      found[0].load(rows + r * (ROW_LD * 4), lane);
      found[0].store(copy, r, lane, scale);
    }
    arrive_named(ROWS_WRITTEN + group);
  }
  arrive(&at.rows_read);
}

}  // namespace fused
