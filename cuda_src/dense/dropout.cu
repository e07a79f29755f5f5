// Dropout: zeroes each element with probability `rate` and scales the others by 1 / (1 - rate); see common/philox.cuh.
//
// Element e is kept when its 32 random bits are at least `threshold` = floor(rate * 2^32); `mask` is 1 there, else 0.
// The array begins with element `first`: above 0 on a rank that holds later rows of a global batch.
//
// Shapes: flat, n elements; x, y, dx, dy float32, mask one byte each.
// Launch: `elementwise`, forward 8 elements (one Philox block) per thread, backward 4; 950 x 64: 30 and 60 blocks.
//   A thread of the forward kernel has a whole Philox block, of which the array may begin in the middle.
// Shared memory: none. Bytes: forward reads 4 n, writes 5 n; backward reads 5 n, writes 4 n. Bank conflicts: none.
// Determinism: repeats to the bit, with the same mask on every backend. Requires: `mask` aligned to 4 bytes.

#include "common/common.cuh"
#include "common/philox.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    dropout_forward(float* y, unsigned char* mask, const float* __restrict__ x, long long n, unsigned long long first,
                    unsigned long long seed, unsigned long long purpose, unsigned long long epoch,
                    unsigned long long step, unsigned threshold, float scale) {
  const int skipped = first % 8;  // elements of the first Philox block that lie before the array
  const long long block = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, start = 8 * block - skipped;
  if (start >= n) return;
  const PhiloxBlock drawn = philox({seed, purpose, epoch, step}, first / 8 + block);
  const bool whole = skipped % 4 == 0, x_aligned = whole && is_aligned(x, 0), y_aligned = whole && is_aligned(y, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long long at = start + 4 * half, remaining = n - at;
    bool keep[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) keep[i] = drawn.value[4 * half + i] >= threshold;
    if (whole && at >= 0 && remaining >= 4) {
      const float4 v = load4(x + at, remaining, x_aligned);
      const float4 kept = make_float4(keep[0] ? v.x * scale : 0.f, keep[1] ? v.y * scale : 0.f,
                                      keep[2] ? v.z * scale : 0.f, keep[3] ? v.w * scale : 0.f);
      store4(y + at, kept, remaining, y_aligned);
      *reinterpret_cast<uchar4*>(mask + at) = make_uchar4(keep[0], keep[1], keep[2], keep[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (at + i < 0 || i >= remaining) continue;
        y[at + i] = keep[i] ? x[at + i] * scale : 0.f;
        mask[at + i] = keep[i];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    dropout_backward(float* dx, const float* __restrict__ dy, const unsigned char* __restrict__ mask, long long n,
                     float scale) {
  const long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 g = load4(dy + i, n - i, is_aligned(dy, 0));
  uchar4 keep = make_uchar4(0, 0, 0, 0);
  if (n - i >= 4) {
    keep = *reinterpret_cast<const uchar4*>(mask + i);
  } else {
    keep.x = mask[i];
    if (n - i > 1) keep.y = mask[i + 1];
    if (n - i > 2) keep.z = mask[i + 2];
  }
  const float4 kept = make_float4(keep.x ? g.x * scale : 0.f, keep.y ? g.y * scale : 0.f, keep.z ? g.z * scale : 0.f,
                                  keep.w ? g.w * scale : 0.f);
  store4(dx + i, kept, n - i, is_aligned(dx, 0));
}
