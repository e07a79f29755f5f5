// Batch norm over rows that several ranks hold; the kernels of dense/batch_norm.cu do the rest on a rank's own rows.
//
// Source: as dense/batch_norm.cu. The ranks' moments are combined in their order, so all ranks have equal bits.
// Shapes: x (N, P); own (3, P) and gathered (ranks, 3, P): rows, mean, unbiased variance of each rank's columns (for one
//   row or none the variance is 0); statistics (2, P) as in dense/batch_norm.cu; rows (1,) of all ranks, as float32;
//   sums (2, P): dgamma and dbeta of all ranks; dgamma, dbeta (P,).
// Launches: `elementwise` over the columns. Shared memory: none. Bank conflicts: none.
// Bytes: begin writes 12 P; combine reads 12 ranks P and writes 16 P; share reads 8 P and writes 16 P.
// Determinism: repeats to the bit.

#include "common/common.cuh"

// `own` before `batch_norm_statistics` writes mean and variance to it: N rows, 0, 0
extern "C" __global__ void __launch_bounds__(256) ranks_batch_norm_begin(float* own, int N, int P) {
  const int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p >= P) return;
  own[p] = N;
  own[P + p] = own[2 * P + p] = 0.f;
}

// statistics and running statistics from the moments of all ranks; without any row, the latter stay as they are
extern "C" __global__ void __launch_bounds__(256)
    ranks_batch_norm_combine(float* statistics, float* running_mean, float* running_var, float* rows,
                             const float* __restrict__ gathered, const float* __restrict__ x, float epsilon,
                             float momentum, int ranks, int N, int P) {
  const int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p >= P) return;
  float number = 0.f, mean = 0.f, squares = 0.f;
  for (int rank = 0; rank < ranks; ++rank) {
    const float* of = gathered + static_cast<long long>(rank) * 3 * P + p;
    const float count = of[0];
    if (count == 0.f) continue;
    const float all = number + count, delta = of[P] - mean;
    mean += delta * (count / all);
    squares += of[2 * P] * fmaxf(count - 1.f, 1.f) + delta * delta * number * (count / all);
    number = all;
  }
  const float variance = number > 0.f ? squares / number : 0.f;
  statistics[p] = mean - (N > 0 ? x[p] : 0.f);
  statistics[P + p] = 1.f / sqrtf(variance + epsilon);
  if (p == 0) *rows = number;
  if (number == 0.f) return;
  running_mean[p] += momentum * (mean - running_mean[p]);
  running_var[p] += momentum * (squares / fmaxf(number - 1.f, 1.f) - running_var[p]);
}

// `batch_norm_backward_dx` divides the sums by this rank's N rows; it must divide by those of all ranks. dgamma and dbeta
// are an equal share for each rank, because the gradients of all ranks are added at the end of the step.
extern "C" __global__ void __launch_bounds__(256)
    ranks_batch_norm_share(float* sums, float* dgamma, float* dbeta, const float* __restrict__ rows, int ranks, int N,
                           int P) {
  const int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p >= P) return;
  const float share = N / fmaxf(*rows, 1.f);
  dgamma[p] = sums[p] / ranks;
  dbeta[p] = sums[P + p] / ranks;
  sums[p] *= share;
  sums[P + p] *= share;
}
