// MatMul of very many rows with a narrow W, as in the first layer of a GCN on one large graph: Y = X W, and the
// gradient dW = Xᵀ dY. Bound by the bandwidth of reading X once; the square tiles of dense/matmul.cu do not reach it.
//
// Source: own.
// Shapes: X (N, F), W (F, P), Y and dY (N, P) with P <= PW, float32, row-major without gaps; fp32 arithmetic.
// Bank conflicts: none. Rows of the X tile are padded by one float; W and dY are broadcast to all lanes.
// Determinism: one thread computes a sum over F in order. One thread computes a partial sum over each part of N, and a
//   second launch reduces the partial sums in order: repeats to the bit.
#include "dense/matmul_tile.cuh"

namespace {

constexpr int ROWS = 128;  // per block of the forward kernel, one per thread
constexpr int WGRAD_THREADS = 512, REDUCTION_THREADS = 64;
constexpr int DEPTH = 32;     // columns of X in a tile
constexpr int STRIDE = 33;    // of rows in the tile of X
constexpr int DY_ROWS = 32;   // rows of dY in shared memory at a time
constexpr int IN_FLIGHT = 8;  // rows of X that a thread has in flight

// Copy the tiles x[row0 ..., k0 ...] and w[k0 ..., 0 ... PW - 1], padded with zeros.
template <int PW>
__device__ void copy_tiles(float* tile_x, float* tile_w, const float* x, const float* w, int row0, int k0, int N, int F,
                           int P) {
  const int lane = threadIdx.x % DEPTH;
  for (int row = threadIdx.x / DEPTH; row < ROWS; row += ROWS / DEPTH) {
    const bool valid = row0 + row < N && k0 + lane < F;
    const float* from = valid ? x + static_cast<long long>(row0 + row) * F + k0 + lane : x;
    copy_async<1>(tile_x + row * STRIDE + lane, from, valid);
  }
  for (int element = threadIdx.x; element < DEPTH * PW; element += ROWS) {
    const int k = element / PW, p = element % PW;
    const bool valid = k0 + k < F && p < P;
    copy_async<1>(tile_w + element, valid ? w + (k0 + k) * P + p : w, valid);
  }
}

// sums += left * right[0 ... PW - 1]; all lanes read the same `right`.
template <int PW>
__device__ __forceinline__ void add_outer(float* sums, float left, const float* right) {
#pragma unroll
  for (int p = 0; p < PW; p += 4) {
    const float4 v = *reinterpret_cast<const float4*>(right + p);
    sums[p] = fmaf(left, v.x, sums[p]);
    sums[p + 1] = fmaf(left, v.y, sums[p + 1]);
    sums[p + 2] = fmaf(left, v.z, sums[p + 2]);
    sums[p + 3] = fmaf(left, v.w, sums[p + 3]);
  }
}

template <int PW>
__device__ void tall_forward(float* y, const float* x, const float* w, int N, int F, int P) {
  __shared__ float tile_x[2][ROWS * STRIDE];
  __shared__ __align__(16) float tile_w[2][DEPTH * PW];
  const int row0 = blockIdx.x * ROWS, steps = ceil_div(F, DEPTH);
  float sums[PW] = {};
  copy_tiles<PW>(tile_x[0], tile_w[0], x, w, row0, 0, N, F, P);
  commit_copies();
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // this step's tiles have arrived; all threads have read the previous step's
    if (step + 1 < steps) {
      copy_tiles<PW>(tile_x[(step + 1) % 2], tile_w[(step + 1) % 2], x, w, row0, (step + 1) * DEPTH, N, F, P);
      commit_copies();
    }
    const float *left = tile_x[step % 2] + threadIdx.x * STRIDE, *right = tile_w[step % 2];
#pragma unroll 8
    for (int k = 0; k < DEPTH; ++k) add_outer<PW>(sums, left[k], right + k * PW);
  }
  const int row = row0 + threadIdx.x;
  if (row >= N) return;
  float* to = y + static_cast<long long>(row) * P;
  const bool aligned = is_aligned(y, P);
#pragma unroll
  for (int p = 0; p < PW; p += 4)
    store4(to + p, make_float4(sums[p], sums[p + 1], sums[p + 2], sums[p + 3]), P - p, aligned);
}

// Partial sum of dW over the rows of part blockIdx.y. A thread owns 2 columns of X, with PW sums each.
template <int PW>
__device__ void tall_wgrad(float* partials, const float* x, const float* dy, int N, int F, int P, int rows_per_part) {
  __shared__ __align__(16) float tile_dy[DY_ROWS * PW];
  const int f0 = blockIdx.x * 2 * blockDim.x + threadIdx.x, f1 = f0 + blockDim.x;
  const int begin = blockIdx.y * rows_per_part, end = min(begin + rows_per_part, N);
  float sums[2][PW] = {};
  for (int row0 = begin; row0 < end; row0 += DY_ROWS) {
    const int rows = min(DY_ROWS, end - row0);
    __syncthreads();  // all threads have read the previous tile
    for (int element = threadIdx.x; element < DY_ROWS * PW; element += blockDim.x) {
      const int row = element / PW, p = element % PW;
      tile_dy[element] = row < rows && p < P ? dy[static_cast<long long>(row0 + row) * P + p] : 0.f;
    }
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < rows; first += IN_FLIGHT) {
      float left[2][IN_FLIGHT];
#pragma unroll
      for (int r = 0; r < IN_FLIGHT; ++r) {
        const float* from = x + static_cast<long long>(row0 + first + r) * F;
        left[0][r] = first + r < rows && f0 < F ? __ldcs(from + f0) : 0.f;
        left[1][r] = first + r < rows && f1 < F ? __ldcs(from + f1) : 0.f;
      }
#pragma unroll
      for (int r = 0; r < IN_FLIGHT; ++r) {
        add_outer<PW>(sums[0], left[0][r], tile_dy + (first + r) * PW);
        add_outer<PW>(sums[1], left[1][r], tile_dy + (first + r) * PW);
      }
    }
  }
  float* part = partials + static_cast<long long>(blockIdx.y) * F * P;
#pragma unroll
  for (int p = 0; p < PW; ++p) {
    if (p < P && f0 < F) part[f0 * P + p] = sums[0][p];
    if (p < P && f1 < F) part[f1 * P + p] = sums[1][p];
  }
}

}  // namespace

// ---- forward: y (N, P) = x (N, F) w (F, P) ----
// Launch: 128 threads, ceil(N / 128) blocks. 232,965 x 602 x 16: 1,821 blocks.
// Shared memory: two stages of 128 x 33 floats of X and 32 x PW of W: 38 KB for PW = 16, 42 KB for 32.
// Traffic: reads 4 N F bytes, and W for each block from L2; writes 4 N P.

extern "C" __global__ void __launch_bounds__(ROWS)
    matmul_tall_16_forward(float* y, const float* __restrict__ x, const float* __restrict__ w, int N, int F, int P) {
  tall_forward<16>(y, x, w, N, F, P);
}

extern "C" __global__ void __launch_bounds__(ROWS)
    matmul_tall_32_forward(float* y, const float* __restrict__ x, const float* __restrict__ w, int N, int F, int P) {
  tall_forward<32>(y, x, w, N, F, P);
}

// ---- wgrad: partials (parts, F, P), each xᵀ dy of a part of the rows, and their sum dw (F, P) ----
// Launch: a thread per 2 columns of X, at most 512; grid (blocks of columns, parts). 232,965 x 602 x 16: 320 threads,
//   grid (1, 264).
// Shared memory: 32 rows of dY, 2 KB for PW = 16. Traffic: reads 4 N (F + P) bytes; writes and reads 4 F P per part.

extern "C" __global__ void __launch_bounds__(WGRAD_THREADS)
    matmul_tall_16_wgrad(float* partials, const float* __restrict__ x, const float* __restrict__ dy, int N, int F,
                         int P, int rows_per_part) {
  tall_wgrad<16>(partials, x, dy, N, F, P, rows_per_part);
}

extern "C" __global__ void __launch_bounds__(WGRAD_THREADS)
    matmul_tall_32_wgrad(float* partials, const float* __restrict__ x, const float* __restrict__ dy, int N, int F,
                         int P, int rows_per_part) {
  tall_wgrad<32>(partials, x, dy, N, F, P, rows_per_part);
}

// dw[i] = sum of partials[part, i] over the parts, in order. Launch: a thread per element.
extern "C" __global__ void __launch_bounds__(REDUCTION_THREADS)
    matmul_tall_reduce(float* dw, const float* __restrict__ partials, int elements, int parts) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  float sum = 0.f;
#pragma unroll 8
  for (int part = 0; part < parts; ++part) sum += partials[static_cast<long long>(part) * elements + i];
  dw[i] = sum;
}
