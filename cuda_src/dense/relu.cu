// ReLU: y = max(x, 0), and its gradient dx = dy where y > 0, else 0. As in NumPy, y is NaN where x is.
//
// Shapes: flat, n float32. Launch: `elementwise`, 4 elements per thread; 950 x 64: 60 blocks of 256.
// Shared memory: none. Bytes: forward reads 4 n, writes 4 n; backward reads 8 n, writes 4 n. Bank conflicts: none.
// Determinism: repeats to the bit. Requires: nothing; arrays that are not aligned to 16 bytes are read float by float.
//   y may be x, and dx may be dy.

#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) relu_forward(float* y, const float* x, long long n) {
  const long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 v = load4(x + i, n - i, is_aligned(x, 0));
  store4(y + i, positive(v), n - i, is_aligned(y, 0));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    relu_backward(float* dx, const float* dy, const float* __restrict__ y, long long n) {
  const long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 g = load4(dy + i, n - i, is_aligned(dy, 0)), v = load4(y + i, n - i, is_aligned(y, 0));
  const float4 kept =
      make_float4(v.x > 0.f ? g.x : 0.f, v.y > 0.f ? g.y : 0.f, v.z > 0.f ? g.z : 0.f, v.w > 0.f ? g.w : 0.f);
  store4(dx + i, kept, n - i, is_aligned(dx, 0));
}
