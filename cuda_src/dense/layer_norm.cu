// Layer norm by rows over the P columns of a node: y = gamma x̂ + beta with x̂ = (x - mean) / sqrt(var + epsilon).
//
// Source: Ba, Kiros, Hinton: "Layer normalization", 2016. Unlike batch norm, a row depends on no other row. `statistics`
// (2, N) holds mean and 1 / sqrt(var + epsilon) of each row. x̂ is not stored; the backward kernels recompute it from x.
// With `relu`, the kernel writes y = max(y, 0), and the backward kernels read y (else null) and use dy only where y > 0.
//
// Shapes: x, y, dx, dy (N, P), gamma, beta, dgamma, dbeta (P,), float32, row-major without gaps.
// Launches: forward 1 and dx 1, a warp per row, 8 rows per block of 256; sums 1, `column_reduction`. Example 950 x 64:
//   119 blocks; 32 x 8 threads, grid (30, 2).
// Shared memory: none per row; 2 KB, static, for the sums. Bank conflicts: none.
// Bytes: forward reads and writes 4 N P (the second and third pass over a row hit L1); dx reads 8 N P and writes 4 N P;
//   sums read 8 N P; with ReLU, both also read y, 4 N P.
// Determinism: repeats to the bit (common/common.cuh). Requires: `partials` of 2 floats for each chunk and column,
//   `counters` 0.

#include "common/common.cuh"

namespace {

constexpr int LAYER_NORM_ROWS = 8;  // rows per block, one per warp

// dy where y > 0, else 0: the gradient of ReLU; dy itself without ReLU
__device__ inline float through_relu(const float* dy, const float* y, long long i) {
  return !y || y[i] > 0.f ? dy[i] : 0.f;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    layer_norm_forward(float* y, float* statistics, const float* __restrict__ x, const float* __restrict__ gamma,
                       const float* __restrict__ beta, float epsilon, int N, int P, int relu) {
  const int n = blockIdx.x * LAYER_NORM_ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (n >= N) return;  // the whole warp leaves
  const long long row = static_cast<long long>(n) * P;
  float sum = 0.f;
  for (int p = lane; p < P; p += 32) sum += x[row + p];
  const float mean = warp_sum(sum) / P;
  float squares = 0.f;
  for (int p = lane; p < P; p += 32) squares += (x[row + p] - mean) * (x[row + p] - mean);
  const float inverse = 1.f / sqrtf(warp_sum(squares) / P + epsilon);
  for (int p = lane; p < P; p += 32) {
    const float value = gamma[p] * ((x[row + p] - mean) * inverse) + beta[p];
    y[row + p] = relu ? positive(value) : value;
  }
  if (lane == 0) statistics[n] = mean, statistics[static_cast<long long>(N) + n] = inverse;
}

// dgamma = sum of dy x̂, dbeta = sum of dy, over the rows
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    layer_norm_backward_sums(float* dgamma, float* dbeta, float* partials, unsigned* counters,
                             const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ y,
                             const float* __restrict__ statistics, int N, int P, int rows_per_chunk) {
  const int p = blockIdx.y * blockDim.x + threadIdx.x;
  const int begin = blockIdx.x * rows_per_chunk, end = min(begin + rows_per_chunk, N);
  float2 sums = make_float2(0.f, 0.f);
  if (p < P) {
#pragma unroll 4
    for (int n = begin + threadIdx.y; n < end; n += blockDim.y) {
      const long long i = static_cast<long long>(n) * P + p;
      const float g = through_relu(dy, y, i);
      sums.x += g * ((x[i] - statistics[n]) * statistics[static_cast<long long>(N) + n]);
      sums.y += g;
    }
  }
  if (!reduce_columns(sums, reinterpret_cast<float2*>(partials), counters, P)) return;
  dgamma[p] = sums.x;
  dbeta[p] = sums.y;
}

// dx = (dy gamma - mean of dy gamma - x̂ mean of dy gamma x̂) / sqrt(var + epsilon), means over the columns
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    layer_norm_backward_dx(float* dx, const float* __restrict__ dy, const float* __restrict__ x,
                           const float* __restrict__ y, const float* __restrict__ statistics,
                           const float* __restrict__ gamma, int N, int P) {
  const int n = blockIdx.x * LAYER_NORM_ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (n >= N) return;
  const long long row = static_cast<long long>(n) * P;
  const float mean = statistics[n], inverse = statistics[static_cast<long long>(N) + n];
  float of_g = 0.f, of_product = 0.f;
  for (int p = lane; p < P; p += 32) {
    const float g = through_relu(dy, y, row + p) * gamma[p];
    of_g += g;
    of_product += g * ((x[row + p] - mean) * inverse);
  }
  of_g = warp_sum(of_g) / P, of_product = warp_sum(of_product) / P;
  for (int p = lane; p < P; p += 32) {
    const float g = through_relu(dy, y, row + p) * gamma[p], x_hat = (x[row + p] - mean) * inverse;
    dx[row + p] = inverse * (g - of_g - x_hat * of_product);
  }
}
