// Layer shapes, the template parameters of the phases of a narrow step. No kernels here.
//
// Every phase is one template over a shape. `AnyShape` reads all sizes from the kernel's parameters. `FixedShape<COLUMNS,
// CHANNELS, KIND>` has them as constants: the compiler removes loops over columns and channels, bounds checks and stride
// arithmetic. It has no dropout. Both use the same parameter struct; a fixed shape ignores its sizes. Lines for only one
// shape are under `if constexpr (Shape::IS_FIXED)`.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

// Source of a layer's U: the staged batch (the first layer), neighbours gathered through the adjacency, or the previous
// layer's row (a dense layer). The host reads these values from here.
enum LayerKind { FIRST, CONVOLUTION, DENSE };

// Columns of U: C F sums over neighbours and C row sums, rounded up to 8.
__host__ __device__ constexpr int columns_of_u(int F, int C) { return (C * F + C + 7) / 8 * 8; }

// Any layer.
struct AnyShape {
  static constexpr bool IS_FIXED = false, IS_FIRST = false;  // it may be the first layer
  int F, C, P, K, kind;

  template <class Params>
  __device__ __forceinline__ explicit AnyShape(const Params& at) : F(at.F), C(at.C), P(at.P), K(at.K), kind(at.kind) {}

  // Dropout bits, and the member's numbers.
  template <class Bits>
  __device__ __forceinline__ Bits* kept(Bits* bits) const {
    return bits;
  }
  __device__ __forceinline__ MemberValues values(const MemberValues* values) const { return values_at(values); }
};

// Members that all fixed shapes share.
template <int COLUMNS, int CHANNELS>
struct WithoutDropout {
  static constexpr bool IS_FIXED = true;
  static constexpr int C = CHANNELS, P = COLUMNS;

  template <class Bits>
  __device__ __forceinline__ Bits* kept(Bits*) const {
    return nullptr;
  }
  __device__ __forceinline__ MemberValues values(const MemberValues*) const { return values_at(nullptr); }
};

// A graph convolution with COLUMNS input and output columns and CHANNELS channels, without dropout.
template <int COLUMNS, int CHANNELS, LayerKind KIND>
struct FixedShape : WithoutDropout<COLUMNS, CHANNELS> {
  static constexpr bool IS_FIRST = false;
  static constexpr int F = COLUMNS, K = columns_of_u(COLUMNS, CHANNELS), kind = KIND;

  template <class Params>
  __device__ __forceinline__ explicit FixedShape(const Params&) {}
};

// The first layer: the data set determines K; no phase uses F.
template <int COLUMNS, int CHANNELS>
struct FixedShape<COLUMNS, CHANNELS, FIRST> : WithoutDropout<COLUMNS, CHANNELS> {
  static constexpr bool IS_FIRST = true;
  static constexpr int F = 0, kind = FIRST;
  int K;

  template <class Params>
  __device__ __forceinline__ explicit FixedShape(const Params& at) : K(at.K) {}
};

}  // namespace fused
