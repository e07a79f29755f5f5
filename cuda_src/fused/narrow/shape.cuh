// The shapes of layers that the phases of a narrow step are templates over. No kernels here.
//
// Every phase is one template over a shape. `AnyShape` takes all sizes from the kernel's parameters. `FixedShape<COLUMNS,
// CHANNELS, KIND>` has them as constants: the compiler drops loops over columns and channels, guards of ragged rows and
// arithmetic of strides. It has no dropout, so it reads no bits. Both take the same struct of parameters, of which a fixed
// shape ignores the sizes; where only one shape needs a line, the phase asks `Shape::IS_FIXED`.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

// Where a layer's U comes from: it is staged (the first layer), gathered over the adjacency, or the row of the layer
// before (a dense layer). The host numbers them so.
enum LayerKind { FIRST, CONVOLUTION, DENSE };

// Columns of U: C F neighbours' sums and C row sums, rounded up.
__host__ __device__ constexpr int columns_of_u(int F, int C) { return (C * F + C + 7) / 8 * 8; }

// Any layer.
struct AnyShape {
  static constexpr bool IS_FIXED = false, IS_FIRST = false;  // it may be the first layer
  int F, C, P, K, kind;

  template <class Params>
  __device__ __forceinline__ explicit AnyShape(const Params& at) : F(at.F), C(at.C), P(at.P), K(at.K), kind(at.kind) {}

  // Bits of dropout and the scale of what it keeps.
  template <class Bits>
  __device__ __forceinline__ Bits* kept(Bits* bits) const {
    return bits;
  }
  __device__ __forceinline__ float keep_scale(float scale) const { return scale; }
};

// What fixed shapes have in common.
template <int COLUMNS, int CHANNELS>
struct WithoutDropout {
  static constexpr bool IS_FIXED = true;
  static constexpr int C = CHANNELS, P = COLUMNS;

  template <class Bits>
  __device__ __forceinline__ Bits* kept(Bits*) const {
    return nullptr;
  }
  __device__ __forceinline__ float keep_scale(float) const { return 1.f; }
};

// A graph convolution from COLUMNS columns to COLUMNS columns over CHANNELS channels, without dropout.
template <int COLUMNS, int CHANNELS, LayerKind KIND>
struct FixedShape : WithoutDropout<COLUMNS, CHANNELS> {
  static constexpr bool IS_FIRST = false;
  static constexpr int F = COLUMNS, K = columns_of_u(COLUMNS, CHANNELS), kind = KIND;

  template <class Params>
  __device__ __forceinline__ explicit FixedShape(const Params&) {}
};

// The first layer: its U has as many columns as the data set gives, and no phase asks for F.
template <int COLUMNS, int CHANNELS>
struct FixedShape<COLUMNS, CHANNELS, FIRST> : WithoutDropout<COLUMNS, CHANNELS> {
  static constexpr bool IS_FIRST = true;
  static constexpr int F = 0, kind = FIRST;
  int K;

  template <class Params>
  __device__ __forceinline__ explicit FixedShape(const Params& at) : K(at.K) {}
};

}  // namespace fused
