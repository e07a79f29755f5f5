// Maximum of two arrays: y = max(a, b) (jumping knowledge), NaN where a or b is, and its gradients: dy goes to the
// larger one, to a where they are equal.
//
// Shapes: flat, n float32. Launch: `elementwise`, 4 elements per thread; 950 x 64: 60 blocks of 256.
// Shared memory: none. Bytes: forward reads 8 n, writes 4 n; backward reads 12 n, writes 8 n. Bank conflicts: none.
// Determinism: repeats to the bit. Requires: nothing; arrays that are not aligned to 16 bytes are read float by float.

#include "common/common.cuh"

namespace {

__device__ __forceinline__ float larger(float a, float b) { return a >= b || a != a ? a : b; }

__device__ __forceinline__ float4 larger(float4 a, float4 b) {
  return make_float4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    maximum_forward(float* y, const float* a, const float* b, long long n) {
  const long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 left = load4(a + i, n - i, is_aligned(a, 0)), right = load4(b + i, n - i, is_aligned(b, 0));
  store4(y + i, larger(left, right), n - i, is_aligned(y, 0));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    maximum_backward(float* da, float* db, const float* dy, const float* a, const float* b, long long n) {
  const long long i = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 left = load4(a + i, n - i, is_aligned(a, 0)), right = load4(b + i, n - i, is_aligned(b, 0));
  const float4 g = load4(dy + i, n - i, is_aligned(dy, 0));
  const bool x = left.x >= right.x, y = left.y >= right.y, z = left.z >= right.z, w = left.w >= right.w;
  store4(da + i, make_float4(x ? g.x : 0.f, y ? g.y : 0.f, z ? g.z : 0.f, w ? g.w : 0.f), n - i, is_aligned(da, 0));
  store4(db + i, make_float4(x ? 0.f : g.x, y ? 0.f : g.y, z ? 0.f : g.z, w ? 0.f : g.w), n - i, is_aligned(db, 0));
}
