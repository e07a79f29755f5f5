// Rows of a matrix by number: y[i, :] = x[rows[i], :].
//
// Source: own. Shapes: x (N, P), y (M, P) float32; rows (M,) int32.
// Launch: `row_tiles` over the M rows: four columns a thread. 39,323 x 47: 16 x 16 threads, 2,458 blocks.
// Shared memory: none. Bank conflicts: none. Bytes: reads 4 M P + 4 M, writes 4 M P.
// Determinism: copies only.

#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    take_rows(float* y, const float* __restrict__ x, const int* __restrict__ rows, int M, int P) {
  const int i = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= M || p >= P) return;
  const long long from = static_cast<long long>(rows[i]) * P + p, to = static_cast<long long>(i) * P + p;
  store4(y + to, load4(x + from, P - p, is_aligned(x, P)), P - p, is_aligned(y, P));
}
