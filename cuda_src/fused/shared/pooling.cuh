// Readout of one column of one graph, R = sum | mean | max over its rows of Z; all readouts use it. No kernels here.
#pragma once

#include "fused/shared/columns.cuh"

namespace fused {

enum Pooling { SUM, MEAN, MAX };  // the host reads these values from here
constexpr int MOST_READOUTS = 3;  // side by side: one of each kind

// The readouts of a model, side by side: R (B, n P).
struct Readouts {
  unsigned char kinds[MOST_READOUTS];  // Pooling
  unsigned char n;
};

// The sum so far; for MAX the largest value so far and its row.
struct Pooled {
  float value;
  int row;  // `none`: no row yet

  __device__ __forceinline__ Pooled(int kind, int none)
      : value(kind == MAX ? -__int_as_float(0x7f800000) : 0.f), row(none) {}
  __device__ __forceinline__ Pooled(float value, int row) : value(value), row(row) {}

  __device__ __forceinline__ void take(int kind, int none, float z, int i) {
    if (kind != MAX) {
      value += z;
    } else if (row == none || is_higher(z, i, value, row)) {
      value = z, row = i;
    }
  }

  // Combine with the result of other rows.
  __device__ __forceinline__ void join(int kind, int none, const Pooled& other) {
    if (kind != MAX) {
      value += other.value;
    } else if (other.row != none && (row == none || is_higher(other.value, other.row, value, row))) {
      value = other.value, row = other.row;
    }
  }
};

// ---- one column, COLUMN_LANES lanes ----

constexpr int ROWS = 8;  // values of Y that a thread keeps in registers from the forward to the backward pass

// The rows lane, lane + COLUMN_LANES, … of a graph of n rows, in one column of Y.
struct ColumnRows {
  float held[ROWS];  // the first of them

  __device__ __forceinline__ void hold(const float* column, int stride, int n) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int i = threadIdx.x % COLUMN_LANES + r * COLUMN_LANES;
      held[r] = i < n ? column[i * stride] : 0.f;
    }
  }

  // Call use(row, y) for each row; rows that are not held are loaded from memory.
  template <class Use>
  __device__ __forceinline__ void each(const float* column, int stride, int n, Use use) const {
    const int lane = threadIdx.x % COLUMN_LANES;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (lane + r * COLUMN_LANES < n) use(lane + r * COLUMN_LANES, held[r]);
#pragma unroll 2
    for (int i = lane + ROWS * COLUMN_LANES; i < n; i += COLUMN_LANES) use(i, column[i * stride]);
  }
};

}  // namespace fused
