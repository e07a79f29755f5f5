// The bits that dense/relu_dropout.cu leaves for the gradient. No kernels.

#pragma once

// Bit `first` + e says whether the gradient of element e passes ReLU and dropout, which scale it. Null: all pass unscaled.
struct Kept {
  const unsigned char* bits;
  long long first;
  float scale;
};

// value[i] *= scale where the gradient of `element` + i passes, else 0, for i < N; only the first `left` elements exist.
template <int N>
__device__ __forceinline__ void keep(float (&value)[N], const Kept& kept, long long element, long long left) {
  const long long first = kept.first + element;
  const int shift = first % 8;
  unsigned passes = kept.bits[first / 8] >> shift;
  if (shift > 8 - N && left > 8 - shift) passes |= kept.bits[first / 8 + 1] << (8 - shift);
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = passes >> i & 1 ? value[i] * kept.scale : 0.f;
}
