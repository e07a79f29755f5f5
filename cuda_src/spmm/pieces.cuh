// What the products of pieces of rows (spmm/large.cu, spmm/compressed.cu) share: marked indices, the pieces, and what
// becomes of a piece's sum. No kernels.

#pragma once

#include "common/graph_view.cuh"

// The highest bit of an index marks a row of the dense operand that many entries read (spmm_mark). spmm/large.cu keeps it in
// L2.
constexpr int UNMARKED = 0x7fffffff;

// The rows of A as pieces: `first` (count + 1,) the first entry of each, `target` (count,) its row or, where the row has
// several pieces, -1 - slot of its partial sums. `indices` are the columns of all entries, which may be marked.
struct Pieces {
  const int *first, *target, *indices;
  int count;
};

// What a product writes: element (r, p) of `out` is out[out_first + r * out_stride + p] for p < width, scaled with
// row_scale[r] unless that is null. `partials` (slots, partial_stride) has the partial sums of rows of several pieces, which
// spmm_reduce_pieces reduces. `out_aligned`: rows can be written 16 bytes at a time.
struct Results {
  float *out, *partials;
  const float* row_scale;
  long long out_first;
  int out_stride, partial_stride, width, out_aligned;

  // Store elements column ... column + 3 of a row, scaled; with ADDS, add them to what it holds.
  template <bool ADDS = false>
  __device__ __forceinline__ void store_row(int row, float4 sum, int column) const {
    float* to = out + out_first + row_offset(row, out_stride) + column;
    const float scale = row_scale ? __ldg(row_scale + row) : 1.0f;
    sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
    if (out_aligned && column + 4 <= width) {
      if (ADDS) sum = add_vec(__ldcs(reinterpret_cast<const float4*>(to)), sum);
      __stcs(reinterpret_cast<float4*>(to), sum);
      return;
    }
    if (column < width) to[0] = ADDS ? to[0] + sum.x : sum.x;
    if (column + 1 < width) to[1] = ADDS ? to[1] + sum.y : sum.y;
    if (column + 2 < width) to[2] = ADDS ? to[2] + sum.z : sum.z;
    if (column + 3 < width) to[3] = ADDS ? to[3] + sum.w : sum.w;
  }

  // Store elements column ... column + 3 of a piece: in its row or its slot.
  template <bool ADDS = false>
  __device__ __forceinline__ void store_piece(int target, float4 sum, int column) const {
    if (target >= 0) {
      store_row<ADDS>(target, sum, column);
    } else {
      store_vec(partials + row_offset(-1 - target, partial_stride) + column, sum);
    }
  }
};
