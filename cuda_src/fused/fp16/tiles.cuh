// What the kernels share that multiply halves (fused/fp16/step.cu, fused/fp16/weight_gradient.cu, fused/fp16/update.cu); no kernels here.
//
// A half has the 11 significant bits of TF32, and a product of two is exact in float32 as one of two TF32 numbers is: the
// sums are as near, at half the bytes. What a half lacks is range; so everything is kept times a power of two under which
// it cannot overflow as long as batch norm bounds it, and which the sums are divided by. What exceeds all the same becomes
// an infinity, then NaN: it is seen.
//
// Rows of a batch lie in tiles of TILE_ROWS that hold whole graphs. A matrix is panels of 64 columns: (tiles, columns / 64,
// TILE_ROWS, 64), each row of a panel 128 bytes, its 16-byte chunks exchanged as wgmma's 128-byte swizzle wants it. The same
// panel serves a product along its columns and one along its rows.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

using Fp16 = unsigned short;  // its bits: compilers of the library NVRTC come without a header for halves

constexpr int TILE_ROWS = 144, FP16_PANEL = 64;
constexpr int PANEL_BYTES = TILE_ROWS * FP16_PANEL * 2, WEIGHT_PANEL_BYTES = FP16_PANEL * FP16_PANEL * 2;
constexpr float WEIGHT_SCALE = 128.f;

// Where column k < 64 of row r of a panel is, in halves; the 8 columns from a multiple of 8 on are neighbours.
__device__ __forceinline__ int in_fp16_panel(int r, int k) { return r * FP16_PANEL + ((k / 8 ^ r % 8) * 8 + k % 8); }

// Two numbers as the nearest halves, the first in the lower bits.
__device__ __forceinline__ unsigned to_fp16x2(float low, float high) {
  unsigned bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#endif
  return bits;
}

}  // namespace fused
