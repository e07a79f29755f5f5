// MatMul, the first rung: Y = X W and its gradients dX = dY Wᵀ and dW = Xᵀ dY, a thread per output. For reading;
// training never uses it.
//
// Source: own; the straightforward loops.
// Shapes: X (N, F), W (F, P), Y (N, P), float32, row-major; gradients have the shapes of their arrays.
// Launch: `thread_per_output`, blocks of 32 columns x 8 rows. 950 x 64 x 64: grid (119, 2) for Y and dX. dW has only
//   grid (8, 2): each thread adds 950 products in sequence while most multiprocessors are idle.
// Shared memory: none.
// Traffic: a thread loads 8 bytes per multiply-add, 8 N F P in total: 31 MB for 950 x 64 x 64, whose arrays have 0.5
//   MB. L1 and L2 serve the rest.
// Determinism: one thread writes each output and sums along the depth in order: repeats to the bit.
//
// The next rung, dense/matmul.cu, copies tiles of both operands to shared memory, and a thread keeps 4 to 32 sums in
// registers: in a tile of 16 x 32 outputs, a value of X is loaded once for 32 multiply-adds, a value of W for 16. It
// splits the depth N of dW, so every multiprocessor has work. `python benchmarks/cuda_kernels.py` times both on your
// GPU.

#include "common/common.cuh"

// ---- forward: y[n][p] = sum over f of x[n][f] * w[f][p] ----
//
// Coalescing: neighbouring threads have neighbouring p, so they read neighbouring values of w and the same value of x.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    matmul_naive_forward(float* y, const float* __restrict__ x, const float* __restrict__ w, int N, int F, int P) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (n >= N || p >= P) return;
  const float* of_x = x + static_cast<long long>(n) * F;
  float sum = 0.f;
  for (int f = 0; f < F; ++f) sum = fmaf(of_x[f], w[static_cast<long long>(f) * P + p], sum);
  y[static_cast<long long>(n) * P + p] = sum;
}

// ---- dgrad: dx[n][f] = sum over p of dy[n][p] * w[f][p] ----
//
// Coalescing: none for w. Neighbouring threads have neighbouring f and read values of w that are P floats apart: a warp
// loads 32 sectors of 32 bytes for 128 useful bytes. The next rung transposes the tile on its way to shared memory.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    matmul_naive_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int N, int F, int P) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y, f = blockIdx.y * blockDim.x + threadIdx.x;
  if (n >= N || f >= F) return;
  const float *of_dy = dy + static_cast<long long>(n) * P, *of_w = w + static_cast<long long>(f) * P;
  float sum = 0.f;
  for (int p = 0; p < P; ++p) sum = fmaf(of_dy[p], of_w[p], sum);
  dx[static_cast<long long>(n) * F + f] = sum;
}

// ---- wgrad: dw[f][p] = sum over n of x[n][f] * dy[n][p] ----
//
// Coalescing: as in the forward kernel, with dy instead of w.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    matmul_naive_wgrad(float* dw, const float* __restrict__ x, const float* __restrict__ dy, int N, int F, int P) {
  const int f = blockIdx.x * blockDim.y + threadIdx.y, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (f >= F || p >= P) return;
  float sum = 0.f;
  for (int n = 0; n < N; ++n)
    sum = fmaf(x[static_cast<long long>(n) * F + f], dy[static_cast<long long>(n) * P + p], sum);
  dw[static_cast<long long>(f) * P + p] = sum;
}
