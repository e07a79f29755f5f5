// MatMul: Y = X W, and its gradients dX = dY Wᵀ ("dgrad") and dW = Xᵀ dY ("wgrad").
//
// Source: the classic tiled product (Volkov, Demmel: "Benchmarking GPUs to tune dense linear algebra", SC 2008) with
// the asynchronous copies of CUTLASS's multistage pipelines. One body serves all three products: it multiplies A (M, K)
// by B (K, N') and is told of each operand whether its rows in memory run along the tile's width or along its depth K:
//
//                 A        rows along     B        rows along     K
//     forward     X        depth          W        width          F
//     dgrad       dY       depth          Wᵀ       depth          P
//     wgrad       Xᵀ       width          dY       width          N, cut into gridDim.z parts
//
// Shapes: X (N, F), W (F, P), Y (N, P), float32, row-major, rows ldx, ldw, ldy (lddx, ...) floats apart, so that the
// same kernels multiply a part of a larger matrix. Rows and columns may have any number and alignment: tiles are filled
// up with zeros, and operands that are aligned to 16 bytes are copied 16 bytes at a time.
// Strategies: `<rows>x<columns>` of the tile of C = A B that a block computes, chosen by gcnbatch's dense geometry:
//   128x64   256 threads of 8 x 4 sums, depth 16: bound by arithmetic, for wide layers
//   64x64    128 threads of 8 x 4 sums, depth 16
//   32x32    128 threads of 4 x 2 sums, depth 32
//   16x32    128 threads of 2 x 2 sums, depth 32: bound by latency, spreads a narrow layer over many blocks
//   tf32_…   128x64 and 32x32 on the tensor cores (mma m16n8k8): inputs rounded to 11 bits, sums in float32; sm_80 on
// Launch: forward (ceil(N / rows), ceil(P / columns)), dgrad (ceil(N / rows), ceil(F / columns)), wgrad (ceil(F /
//   rows), ceil(P / columns), parts). Examples: 950 x 64 x 64 forward in 16x32: grid (60, 2), the whole depth is in
//   flight at once; 1850 x 512 x 512 forward in 128x64: grid (15, 8); its wgrad in 128x64: grid (4, 8, 4).
// Shared memory, static: three stages of both tiles; 128x64 takes 38 KB, 64x64 26, 32x32 27, 16x32 21; TF32 39 and 30.
// Bytes: reads 4 M K for each column of tiles and 4 K N' for each row of tiles (mostly from the second-level cache),
//   writes 4 M N'; wgrad in parts writes and reads 4 F P for each part besides.
// Bank conflicts: none. Tiles lie depth by depth with rows padded by 4 floats: a copy along the depth takes 8 depths of
//   4 rows per warp, 4 k + w being 32 different banks; the reads of a warp are neighbouring vectors. TF32 pads by 8 for
//   the reads of the fragments, its copies along the depth meet two by two.
// Determinism: bit-repeatable; sums run along the depth in order, parts are folded in order by the tile's last block.
// Requires: sizes below 2^31 each; an empty depth yields zeros. Below sm_80 copies are loads and tf32 does nothing.

#include "dense/matmul_tile.cuh"

namespace {

constexpr int STAGES = 3;

// The tiles of A and B that a block has in shared memory. One function holds them: a kernel of several products needs
// them once.
template <class Tile>
struct Stages {
  static constexpr int LDA = Tile::BM + Tile::PAD, LDB = Tile::BN + Tile::PAD;
  float a[STAGES][Tile::DEPTH * LDA], b[STAGES][Tile::DEPTH * LDB];
};

template <class Tile>
__device__ Stages<Tile>& stages() {
  __shared__ __align__(16) Stages<Tile> held;
  return held;
}

// Add to `tile` the product of its rows m0 ... of A and columns n0 ... of B over the depths k_begin ... k_end - 1.
// *_DEEP: the operand's rows in memory run along the depth. ONES: A has a row of ones more than its memory.
template <bool A_DEEP, bool B_DEEP, bool ONES, class Tile>
__device__ void multiply(Tile& tile, const Operand& a, const Operand& b, int m0, int n0, int k_begin, int k_end) {
  static_assert(!(A_DEEP && ONES), "ones run along the depth");
  constexpr int LDA = Stages<Tile>::LDA, LDB = Stages<Tile>::LDB, DEPTH = Tile::DEPTH, THREADS = Tile::THREADS;
  auto& tiles_a = stages<Tile>().a;
  auto& tiles_b = stages<Tile>().b;
  const bool a_aligned = is_aligned(a.data, a.ld), b_aligned = is_aligned(b.data, b.ld);
  const int steps = ceil_div(k_end - k_begin, DEPTH);

  const auto copy = [&](int step) {
    if (step < steps) {
      const int stage = step % STAGES, k0 = k_begin + step * DEPTH;
      if constexpr (A_DEEP) {
        copy_along_depth<Tile::BM, DEPTH, LDA, THREADS>(tiles_a[stage], a, m0, k0, k_end);
      } else {
        copy_along_width<Tile::BM, DEPTH, LDA, THREADS, ONES>(tiles_a[stage], a, a_aligned, m0, k0, k_end);
      }
      if constexpr (B_DEEP) {
        copy_along_depth<Tile::BN, DEPTH, LDB, THREADS>(tiles_b[stage], b, n0, k0, k_end);
      } else {
        copy_along_width<Tile::BN, DEPTH, LDB, THREADS, false>(tiles_b[stage], b, b_aligned, n0, k0, k_end);
      }
    }
    commit_copies();  // empty groups too, so that the count of pending groups holds at the end
  };

  for (int step = 0; step < STAGES - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // this step's tiles are there; those of the step before are read and may be overwritten
    copy(step + STAGES - 1);
    tile.add_product(tiles_a[step % STAGES], tiles_b[step % STAGES]);
  }
}

// C (M, N) = sums of the tile at (m0, n0), plus `bias` (N,) on every row unless that is null, added to what C holds if
// `accumulate`.
template <class Tile>
__device__ void store(const Tile& tile, float* c, int ldc, int m0, int n0, int M, int N, bool accumulate,
                      const float* bias = nullptr) {
  const bool aligned = is_aligned(c, ldc);
#pragma unroll
  for (int s = 0; s < Tile::SUMS; s += Tile::VECTOR) {
    const int m = m0 + Tile::row(s), n = n0 + Tile::column(s);
    if (m >= M || n >= N) continue;
    float* to = c + static_cast<long long>(m) * ldc + n;
    float value[Tile::VECTOR];
#pragma unroll
    for (int j = 0; j < Tile::VECTOR; ++j) {
      value[j] = tile.sum[s + j];
      if (bias && n + j < N) value[j] += bias[n + j];
      if (accumulate && n + j < N) value[j] += to[j];
    }
    if (aligned && n + Tile::VECTOR <= N) {
      if constexpr (Tile::VECTOR == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(value[0], value[1]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Tile::VECTOR; ++j)
        if (n + j < N) to[j] = value[j];
    }
  }
}

// db (N,) = row M of the product, that of the ones.
template <class Tile>
__device__ void store_ones(const Tile& tile, float* db, int m0, int n0, int M, int N) {
#pragma unroll
  for (int s = 0; s < Tile::SUMS; ++s) {
    const int n = n0 + Tile::column(s);
    if (m0 + Tile::row(s) == M && n < N) db[n] = tile.sum[s];
  }
}

// Replace a tile's sums by their total over the `parts` blocks that share the tile. True in the block that has it.
template <class Tile>
__device__ bool fold_parts(Tile& tile, float* partials, unsigned* counters, int tile_number, int part, int parts) {
  if (parts == 1) return true;
  constexpr int SIZE = Tile::SUMS * Tile::THREADS;
  float* of_tile = partials + static_cast<long long>(tile_number) * parts * SIZE;  // [part][sum][thread]
#pragma unroll
  for (int s = 0; s < Tile::SUMS; ++s) of_tile[part * SIZE + s * Tile::THREADS + threadIdx.x] = tile.sum[s];
  if (!is_last_block(counters + tile_number, parts)) return false;
#pragma unroll
  for (int s = 0; s < Tile::SUMS; ++s) tile.sum[s] = 0.f;
  for (int other = 0; other < parts; ++other) {
#pragma unroll
    for (int s = 0; s < Tile::SUMS; ++s)
      tile.sum[s] += __ldcg(of_tile + other * SIZE + s * Tile::THREADS + threadIdx.x);
  }
  return true;
}

template <class Tile>
__device__ void forward(float* y, const float* x, const float* w, const float* bias, int ldy, int ldx, int ldw, int N,
                        int F, int P) {
  const int m0 = blockIdx.x * Tile::BM, n0 = blockIdx.y * Tile::BN;
  Tile tile;
  multiply<true, false, false>(tile, {x, ldx, N, F}, {w, ldw, F, P}, m0, n0, 0, F);
  store(tile, y, ldy, m0, n0, N, P, false, bias);
}

template <class Tile>
__device__ void dgrad(float* dx, const float* dy, const float* w, int lddx, int lddy, int ldw, int N, int F, int P,
                      int m0, int n0) {
  Tile tile;
  multiply<true, true, false>(tile, {dy, lddy, N, P}, {w, ldw, F, P}, m0, n0, 0, P);
  store(tile, dx, lddx, m0, n0, N, F, false);
}

template <class Tile>
__device__ void dgrad(float* dx, const float* dy, const float* w, int lddx, int lddy, int ldw, int N, int F, int P) {
  dgrad<Tile>(dx, dy, w, lddx, lddy, ldw, N, F, P, blockIdx.x * Tile::BM, blockIdx.y * Tile::BN);
}

template <class Tile>
__device__ void wgrad(float* dw, float* partials, unsigned* counters, const float* x, const float* dy, int lddw,
                      int ldx, int lddy, int N, int F, int P, int rows_per_part, int accumulate) {
  const int m0 = blockIdx.x * Tile::BM, n0 = blockIdx.y * Tile::BN;
  const int begin = blockIdx.z * rows_per_part;
  Tile tile;
  multiply<false, false, false>(tile, {x, ldx, N, F}, {dy, lddy, N, P}, m0, n0, begin, min(begin + rows_per_part, N));
  const int number = blockIdx.y * gridDim.x + blockIdx.x;
  if (fold_parts(tile, partials, counters, number, blockIdx.z, gridDim.z))
    store(tile, dw, lddw, m0, n0, F, P, accumulate != 0);
}

// Both gradients side by side: the first `dw_blocks` blocks share dW, and with it db, the others dX.
template <class Tile>
__device__ void backward(float* dx, float* dw, float* db, float* partials, unsigned* counters, const float* dy,
                         const float* x, const float* w, int N, int F, int P, int rows_per_part, int dw_blocks) {
  int block = blockIdx.x;
  if (block >= dw_blocks) {
    block -= dw_blocks;
    const int rows = ceil_div(N, Tile::BM);
    dgrad<Tile>(dx, dy, w, F, P, P, N, F, P, block % rows * Tile::BM, block / rows * Tile::BN);
    return;
  }
  const int rows = ceil_div(F + 1, Tile::BM), tiles = rows * ceil_div(P, Tile::BN);
  const int number = block % tiles, m0 = number % rows * Tile::BM, n0 = number / rows * Tile::BN;
  const int begin = block / tiles * rows_per_part;
  Tile tile;
  multiply<false, false, true>(tile, {x, F, N, F}, {dy, P, N, P}, m0, n0, begin, min(begin + rows_per_part, N));
  if (!fold_parts(tile, partials, counters, number, block / tiles, dw_blocks / tiles)) return;
  store(tile, dw, P, m0, n0, F, P, false);
  if (db) store_ones(tile, db, m0, n0, F, P);
}

using Tile128x64 = Fp32<4, 2, 8, 8, 4, 16>;
using Tile64x64 = Fp32<2, 2, 8, 8, 4, 16>;
using Tile32x32 = Fp32<2, 2, 8, 4, 2, 32>;
using Tile16x32 = Fp32<2, 2, 8, 2, 2, 32>;
using TileTf32128x64 = Tf32<4, 2, 2, 4, 16>;
using TileTf3232x32 = Tf32<2, 2, 1, 2, 32>;

}  // namespace

// ---- forward: y (N, P) = x (N, F) w (F, P), plus bias (P,) on every row unless that is null ----

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_128x64_forward(float* y, const float* __restrict__ x, const float* __restrict__ w,
                          const float* __restrict__ bias, int ldy, int ldx, int ldw, int N, int F, int P) {
  forward<Tile128x64>(y, x, w, bias, ldy, ldx, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_64x64_forward(float* y, const float* __restrict__ x, const float* __restrict__ w,
                         const float* __restrict__ bias, int ldy, int ldx, int ldw, int N, int F, int P) {
  forward<Tile64x64>(y, x, w, bias, ldy, ldx, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_32x32_forward(float* y, const float* __restrict__ x, const float* __restrict__ w,
                         const float* __restrict__ bias, int ldy, int ldx, int ldw, int N, int F, int P) {
  forward<Tile32x32>(y, x, w, bias, ldy, ldx, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_16x32_forward(float* y, const float* __restrict__ x, const float* __restrict__ w,
                         const float* __restrict__ bias, int ldy, int ldx, int ldw, int N, int F, int P) {
  forward<Tile16x32>(y, x, w, bias, ldy, ldx, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_tf32_128x64_forward(float* y, const float* __restrict__ x, const float* __restrict__ w,
                               const float* __restrict__ bias, int ldy, int ldx, int ldw, int N, int F, int P) {
  forward<TileTf32128x64>(y, x, w, bias, ldy, ldx, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_tf32_32x32_forward(float* y, const float* __restrict__ x, const float* __restrict__ w,
                              const float* __restrict__ bias, int ldy, int ldx, int ldw, int N, int F, int P) {
  forward<TileTf3232x32>(y, x, w, bias, ldy, ldx, ldw, N, F, P);
}

// ---- dgrad: dx (N, F) = dy (N, P) wᵀ (P, F) ----

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_128x64_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int lddx, int lddy,
                        int ldw, int N, int F, int P) {
  dgrad<Tile128x64>(dx, dy, w, lddx, lddy, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_64x64_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int lddx, int lddy,
                       int ldw, int N, int F, int P) {
  dgrad<Tile64x64>(dx, dy, w, lddx, lddy, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_32x32_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int lddx, int lddy,
                       int ldw, int N, int F, int P) {
  dgrad<Tile32x32>(dx, dy, w, lddx, lddy, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_16x32_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int lddx, int lddy,
                       int ldw, int N, int F, int P) {
  dgrad<Tile16x32>(dx, dy, w, lddx, lddy, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_tf32_128x64_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int lddx, int lddy,
                             int ldw, int N, int F, int P) {
  dgrad<TileTf32128x64>(dx, dy, w, lddx, lddy, ldw, N, F, P);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_tf32_32x32_dgrad(float* dx, const float* __restrict__ dy, const float* __restrict__ w, int lddx, int lddy,
                            int ldw, int N, int F, int P) {
  dgrad<TileTf3232x32>(dx, dy, w, lddx, lddy, ldw, N, F, P);
}

// ---- wgrad: dw (F, P) = xᵀ (F, N) dy (N, P), or added to dw; room for all parts, and a counter for each tile ----

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_128x64_wgrad(float* dw, float* partials, unsigned* counters, const float* __restrict__ x,
                        const float* __restrict__ dy, int lddw, int ldx, int lddy, int N, int F, int P,
                        int rows_per_part, int accumulate) {
  wgrad<Tile128x64>(dw, partials, counters, x, dy, lddw, ldx, lddy, N, F, P, rows_per_part, accumulate);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_32x32_wgrad(float* dw, float* partials, unsigned* counters, const float* __restrict__ x,
                       const float* __restrict__ dy, int lddw, int ldx, int lddy, int N, int F, int P,
                       int rows_per_part, int accumulate) {
  wgrad<Tile32x32>(dw, partials, counters, x, dy, lddw, ldx, lddy, N, F, P, rows_per_part, accumulate);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    matmul_tf32_128x64_wgrad(float* dw, float* partials, unsigned* counters, const float* __restrict__ x,
                             const float* __restrict__ dy, int lddw, int ldx, int lddy, int N, int F, int P,
                             int rows_per_part, int accumulate) {
  wgrad<TileTf32128x64>(dw, partials, counters, x, dy, lddw, ldx, lddy, N, F, P, rows_per_part, accumulate);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_tf32_32x32_wgrad(float* dw, float* partials, unsigned* counters, const float* __restrict__ x,
                            const float* __restrict__ dy, int lddw, int ldx, int lddy, int N, int F, int P,
                            int rows_per_part, int accumulate) {
  wgrad<TileTf3232x32>(dw, partials, counters, x, dy, lddw, ldx, lddy, N, F, P, rows_per_part, accumulate);
}

// ---- all gradients of a small product at once: dx (N, F), dw (F, P) and, unless null, db (P,) = column sums of dy ----
//
// db is the row of dW that a column of ones behind X would give, in the same tiles. Matrices without gaps.
// Launch: `matmul_backward`, a grid of dw_blocks and, where dx is wanted, ceil(N / 32) ceil(F / 32) more. Example 950 x
//   64 x 64: 3 x 2 tiles of dW in 15 parts of 64 rows, 30 x 2 tiles of dX: 150 blocks, which run side by side.
extern "C" __global__ void __launch_bounds__(128, 4)
    matmul_32x32_backward(float* dx, float* dw, float* db, float* partials, unsigned* counters,
                          const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ w, int N,
                          int F, int P, int rows_per_part, int dw_blocks) {
  backward<Tile32x32>(dx, dw, db, partials, counters, dy, x, w, N, F, P, rows_per_part, dw_blocks);
}
