// Join: Y = [R, Z], the scaled features Z of whole graphs to the right of their readout R, and its gradient by R.
//
// Source: own.
// Shapes: r, dr (B, P), y, dy (B, P + D), values (G, D), mean, scale (D,) float32; rows (B,) int32. G: graphs of the
//   data set, or of a streamed batch.
// Launch: `thread_per_output`, blocks of 32 columns x 8 rows. B = 50, P = 64, D = 2265: grid (7, 73) forward, (7, 2)
//   backward. Neighbouring threads have neighbouring columns in all arrays.
// Shared memory: none.
// Traffic: forward reads 4 (B P + B D + 2 D + B) and writes 4 B (P + D) bytes; backward reads and writes 4 B P.
// Determinism: one thread computes each output; repeats to the bit.
#include "common/common.cuh"
#include "graph/join.cuh"

// ---- forward: y[b][P + d] = `scaled_feature` of values[rows[b]][d] ----
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    join_forward(float* y, const float* __restrict__ r, const float* __restrict__ values, const int* __restrict__ rows,
                 const float* __restrict__ mean, const float* __restrict__ scale, float limit, int B, int P, int D) {
  const int b = blockIdx.x * blockDim.y + threadIdx.y, column = blockIdx.y * blockDim.x + threadIdx.x;
  if (b >= B || column >= P + D) return;
  float result;
  if (column < P) {
    result = r[static_cast<long long>(b) * P + column];
  } else {
    const int d = column - P;
    result = scaled_feature(values[static_cast<long long>(rows[b]) * D + d], mean[d], scale[d], limit);
  }
  y[static_cast<long long>(b) * (P + D) + column] = result;
}

// ---- backward: dr[b][p] = dy[b][p] ----
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    join_backward(float* dr, const float* __restrict__ dy, int B, int P, int D) {
  const int b = blockIdx.x * blockDim.y + threadIdx.y, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (b >= B || p >= P) return;
  dr[static_cast<long long>(b) * P + p] = dy[static_cast<long long>(b) * (P + D) + p];
}
