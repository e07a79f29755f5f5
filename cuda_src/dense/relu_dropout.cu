// ReLU, then dropout (dense/relu.cu, dense/dropout.cu) in one launch: y = max(x, 0) / (1 - rate) where kept, else 0.
//
// `kept` has a bit per element: whether its gradient passes, so it was kept and y > 0. Element e of the array has bit
// first % 8 + e, so the 8 elements of a Philox block share a byte; bits outside the array are 0. Rate 0 keeps every element.
//
// Shapes: flat, n float32; kept (ceil((first % 8 + n) / 8),) bytes. Launch: `elementwise`; forward 8 elements per thread,
//   backward 4. 2,449,029 x 128: 153,065 and 306,129 blocks of 256.
// Shared memory: none. Bytes: forward reads 4 n, writes 4 n and n / 8; backward reads 4 n and n / 8, writes 4 n. Bank
//   conflicts: none. A warp's loads are contiguous: a lane draws one Philox block, but holds vectors `lane` and `lane + 32`
//   of the warp's 64, so lanes exchange bits.
// Determinism: repeats to the bit, with the same mask on every backend. Requires: nothing; arrays that are not aligned to 16
//   bytes are accessed float by float. y may be x, and dx may be dy.

#include "common/common.cuh"
#include "common/kept.cuh"
#include "common/philox.cuh"

namespace {

constexpr int WARP_ELEMENTS = 256;  // of a warp of the forward kernel

// Apply ReLU and dropout to elements at ... at + 3, of which `keep` has the bits; return the bits whose gradient passes.
__device__ __forceinline__ unsigned activate4(float* y, const float* x, long long at, long long n, bool aligned,
                                              unsigned keep, float scale) {
  if (at >= n) return 0;
  unsigned passes = 0;
  if (at >= 0) {
    const float4 v = positive(load4(x + at, n - at, aligned));
    passes = keep & ((v.x > 0.f) | (v.y > 0.f) << 1 | (v.z > 0.f) << 2 | (v.w > 0.f) << 3);
    store4(y + at,
           make_float4(keep & 1 ? v.x * scale : 0.f, keep & 2 ? v.y * scale : 0.f, keep & 4 ? v.z * scale : 0.f,
                       keep & 8 ? v.w * scale : 0.f),
           n - at, aligned);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at + i < 0 || at + i >= n) continue;
      const float v = positive(x[at + i]);
      passes |= ((keep >> i & 1) && v > 0.f) << i;
      y[at + i] = keep >> i & 1 ? v * scale : 0.f;
    }
  }
  return passes;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    relu_dropout_forward(float* y, unsigned char* __restrict__ kept, const float* x, long long n,
                         unsigned long long first, unsigned long long seed, unsigned long long purpose,
                         unsigned long long epoch, unsigned long long step, unsigned threshold, float scale) {
  const int lane = threadIdx.x % 32, skipped = first % 8;  // elements of the first Philox block before the array
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long warp_first = thread / 32 * WARP_ELEMENTS - skipped;
  if (warp_first >= n) return;
  const bool aligned = skipped % 4 == 0 && is_aligned(x, 0) && is_aligned(y, 0);
  const unsigned drawn = kept_of_block({seed, purpose, epoch, step}, first / 8 + thread, threshold);
  const int shift = lane % 2 * 4;
  const unsigned low = __shfl_sync(FULL_WARP, drawn, lane / 2) >> shift;
  const unsigned high = __shfl_sync(FULL_WARP, drawn, lane / 2 + 16) >> shift;
  const long long at = warp_first + 4 * lane;
  const unsigned passes = activate4(y, x, at, n, aligned, low & 15, scale) |
                          activate4(y, x, at + WARP_ELEMENTS / 2, n, aligned, high & 15, scale) << 4;
  // Byte `lane` has vectors 2 lane and 2 lane + 1 of the warp: the low bits of two lanes, or the high bits.
  const unsigned even = __shfl_sync(FULL_WARP, passes, 2 * lane % 32) >> (lane < 16 ? 0 : 4);
  const unsigned odd = __shfl_sync(FULL_WARP, passes, 2 * lane % 32 + 1) >> (lane < 16 ? 0 : 4);
  if (8 * thread - skipped < n) kept[thread] = (even & 15) | (odd & 15) << 4;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    relu_dropout_backward(float* dx, const float* dy, const unsigned char* __restrict__ kept, long long n,
                          long long kept_first, float scale) {
  const long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 g = load4(dy + i, n - i, is_aligned(dy, 0));
  float value[4] = {g.x, g.y, g.z, g.w};
  keep(value, {kept, kept_first, scale}, i, n - i);
  store4(dx + i, make_float4(value[0], value[1], value[2], value[3]), n - i, is_aligned(dx, 0));
}
