// Bias Add: Y = X + b on every row, and its gradient db = column sums of dY.
//
// Shapes: X, Y, dY (N, P), b, db (P,), float32; rows are ldx, ldy, lddy floats apart, so the operands may be parts of
// larger matrices.

#include "common/common.cuh"

// y[n][p] = x[n][p] + b[p]
//
// Launch: `row_tiles`: blocks of (columns / 4, rows) threads, 4 neighbouring columns per thread. Example 950 x 64:
//   blocks of 16 x 16 threads, grid (60, 1).
// Shared memory: none. Bytes: reads 4 (N P + P), writes 4 N P. Determinism: repeats to the bit.
// Requires: nothing; rows that are not aligned to 16 bytes are read float by float. y may be x.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    bias_add_forward(float* y, const float* x, const float* __restrict__ b, int ldy, int ldx, int N, int P) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (n >= N || p >= P) return;
  float4 value = load4(x + static_cast<long long>(n) * ldx + p, P - p, is_aligned(x, ldx));
  const float4 bias = load4(b + p, P - p, is_aligned(b, 0));
  value.x += bias.x, value.y += bias.y, value.z += bias.z, value.w += bias.w;
  store4(y + static_cast<long long>(n) * ldy + p, value, P - p, is_aligned(y, ldy));
}

// db[p] = sum over n of dy[n][p]; added to db if `accumulate`
//
// Launch: `column_reduction`: block (x, y) sums chunk x of the rows in columns y. Example 950 x 64: 32 x 8 threads, 30
//   chunks of 32 rows, grid (30, 2).
// Shared memory: 1 KB, static. Bytes: reads 4 N P, writes 4 P, and 4 P of partial sums per chunk. Bank conflicts: none.
// Determinism: repeats to the bit (common/common.cuh). Requires: `partials` of chunks x P floats, `counters` of one 0
//   per column block.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    bias_add_backward(float* db, float* partials, unsigned* counters, const float* __restrict__ dy, int lddy, int N,
                      int P, int rows_per_chunk, int accumulate) {
  const int p = blockIdx.y * blockDim.x + threadIdx.x;
  const int begin = blockIdx.x * rows_per_chunk, end = min(begin + rows_per_chunk, N);
  float sum = 0.f;
  if (p < P) {
#pragma unroll 4
    for (int n = begin + threadIdx.y; n < end; n += blockDim.y) sum += dy[static_cast<long long>(n) * lddy + p];
  }
  if (reduce_columns(sum, partials, counters, P)) db[p] = accumulate ? db[p] + sum : sum;
}
