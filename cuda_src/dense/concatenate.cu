// Concatenation of matrices by columns, and its gradient, the parts of dY: both copy a block of columns.
//
// Shapes: x, y (N, P) float32; rows are ldx, ldy floats apart, so that one of them is a part of a wider matrix.
// Launch: `row_tiles`, one launch per part: blocks of (columns / 4, rows) threads, 4 neighbouring columns per thread.
//   Example 950 x 64: blocks of 16 x 16 threads, grid (60, 1).
// Shared memory: none. Bytes: reads 4 N P, writes 4 N P. Bank conflicts: none. Determinism: repeats to the bit.
// Requires: nothing; rows that are not aligned to 16 bytes are copied float by float.

#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    copy_columns(float* y, const float* __restrict__ x, int ldy, int ldx, int N, int P) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (n >= N || p >= P) return;
  const float4 value = load4(x + static_cast<long long>(n) * ldx + p, P - p, is_aligned(x, ldx));
  store4(y + static_cast<long long>(n) * ldy + p, value, P - p, is_aligned(y, ldy));
}
