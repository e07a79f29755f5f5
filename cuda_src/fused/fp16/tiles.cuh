// The format of fp16 matrices, which all kernels of the fp16 form share. No kernels here.
//
// fp16 has the 11 significant bits of TF32. A product of two fp16 numbers is exact in float32, as that of two TF32 numbers
// is. So sums are as accurate, at half the bytes. fp16 has less range. All values are therefore scaled by a power of two that
// rules out overflow as long as batch norm bounds them; sums are divided by it. A value that overflows nevertheless becomes
// an infinity, then NaN, and is seen in the loss.
//
// Rows of a batch lie in tiles of TILE_ROWS that hold whole graphs. A matrix is stored as panels of 64 columns: (tiles,
// columns / 64, TILE_ROWS, 64). A row of a panel is 128 bytes, its 16-byte chunks permuted by wgmma's 128-byte swizzle. The
// same panel serves a product along its columns and one along its rows.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

static_assert(!SHARES_LAUNCHES, "cohorts do not run the fp16 form");

using Fp16 = unsigned short;  // its bits: NVRTC may come without cuda_fp16.h

constexpr int TILE_ROWS = 144, FP16_PANEL = 64;  // rows of a tile; columns of a panel
constexpr int MAX_LAYERS = 8;
constexpr int PANEL_BYTES = TILE_ROWS * FP16_PANEL * 2, WEIGHT_PANEL_BYTES = FP16_PANEL * FP16_PANEL * 2;
constexpr float WEIGHT_SCALE = 128.f;

// Offset of column k < 64 of row r in a panel; the 8 columns from a multiple of 8 on are neighbours.
__device__ __forceinline__ int in_fp16_panel(int r, int k) { return r * FP16_PANEL + ((k / 8 ^ r % 8) * 8 + k % 8); }

// Two numbers rounded to fp16, the first in the lower bits.
__device__ __forceinline__ unsigned to_fp16x2(float low, float high) {
  unsigned bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#endif
  return bits;
}

}  // namespace fused
