// What the products of pieces of rows (spmm/large.cu, spmm/compressed.cu) share: marked indices, and what becomes of a
// piece's sum. No kernels.

#pragma once

#include "common/graph_view.cuh"

// The highest bit of an index marks a row of the dense operand that many entries read (spmm_mark). spmm/large.cu keeps it in
// L2.
constexpr int UNMARKED = 0x7fffffff;

// Store elements column ... column + 3 of a row of `width`, scaled.
__device__ __forceinline__ void store_row(float* row, float4 sum, float scale, int column, int width, int aligned) {
  sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
  if (aligned && column + 4 <= width) {
    __stcs(reinterpret_cast<float4*>(row + column), sum);
    return;
  }
  if (column < width) row[column] = sum.x;
  if (column + 1 < width) row[column + 1] = sum.y;
  if (column + 2 < width) row[column + 2] = sum.z;
  if (column + 3 < width) row[column + 3] = sum.w;
}

// Store a piece's elements column ... column + 3: in its row, scaled, or where that has several pieces, in its slot of
// `partials`, which spmm_large_fold reduces.
__device__ __forceinline__ void store_piece(float* out, float* partials, int target, float4 sum, const float* row_scale,
                                            int out_stride, int partial_stride, int column, int width,
                                            int out_aligned) {
  if (target >= 0) {
    store_row(out + row_offset(target, out_stride), sum, row_scale ? __ldg(row_scale + target) : 1.0f, column, width,
              out_aligned);
  } else {
    store_vec(partials + row_offset(-1 - target, partial_stride) + column, sum);
  }
}
