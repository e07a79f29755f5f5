// MatMul: Y = X W, and its gradients dX = dY Wᵀ ("dgrad") and dW = Xᵀ dY ("wgrad").
//
// Source: the classic tiled product (Volkov, Demmel: "Benchmarking GPUs to tune dense linear algebra", SC 2008) with
// the asynchronous copies of CUTLASS's multistage pipelines. One body computes all three products. It multiplies
// A (M, K) by B (K, N'); template arguments say whether an operand's rows in memory run along the tile's width or its
// depth K:
//
//                 A        rows along     B        rows along     K
//     forward     X        depth          W        width          F
//     dgrad       dY       depth          Wᵀ       depth          P
//     wgrad       Xᵀ       width          dY       width          N, cut into gridDim.z parts
//
// Shapes: X (N, F), W (F, P), Y (N, P), float32, row-major, rows ldx, ldw, ldy (lddx, ...) floats apart, so the
// operands may be parts of larger matrices. Any number and alignment of rows and columns is allowed: tiles are padded
// with zeros; operands that are aligned to 16 bytes are copied 16 bytes at a time.
// Strategies: `<rows>x<columns>` of the tile of C = A B that a block computes; the host's `product_geometry` chooses one:
//   128x128  256 threads of 8 x 8 sums, depth 8: fewest loads, for very many rows
//   128x64   256 threads of 8 x 4 sums, depth 16: arithmetic-bound, for wide layers
//   64x64    128 threads of 8 x 4 sums, depth 16
//   32x32    128 threads of 4 x 2 sums, depth 32
//   16x32    128 threads of 2 x 2 sums, depth 32: latency-bound, spreads a narrow layer over many blocks
//   tf32_…   128x64 and 32x32 on the tensor cores (mma m16n8k8): inputs rounded to TF32, sums in float32; from sm_80 on
// Launch: forward (ceil(N / rows), ceil(P / columns)), dgrad (ceil(N / rows), ceil(F / columns)), wgrad (ceil(F /
//   rows), ceil(P / columns), parts). Examples: 950 x 64 x 64 forward in 16x32: grid (60, 2), the whole depth is in
//   flight at once; 1850 x 512 x 512 forward in 128x64: grid (15, 8); its wgrad in 128x64: grid (4, 8, 4).
// Shared memory, static: three stages of both tiles; 128x128 takes 25 KB, 128x64 38, 64x64 26, 32x32 27, 16x32 21; TF32
//   39 and 30.
// Bytes: reads 4 M K for each column of tiles and 4 K N' for each row of tiles (mostly from L2), writes 4 M N'; wgrad
//   with several parts also writes and reads 4 F P of partial sums per part.
// Bank conflicts: none in fp32. Tiles are stored depth by depth with rows padded by 4 floats: a warp's copy along the
//   depth covers 8 depths of 4 rows, and 4 k + w gives 32 different banks; a warp reads neighbouring vectors. TF32 pads
//   by 8 for conflict-free reads of fragments; its copies along the depth have 2-way conflicts.
// Determinism: repeats to the bit; sums run along the depth in order, and last blocks reduce partial sums in order.
// Requires: sizes below 2^31 each; an empty depth yields zeros. Below sm_80, copies are loads and tf32 does nothing.

#include "dense/matmul.cuh"
#include "dense/matmul_tile.cuh"

namespace {

constexpr int STAGES = 3;
// The tiles of A and B in shared memory. They are declared in one function, so a kernel with several products has them
// once.
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

// Add the product of rows m0 ... of A and columns n0 ... of B over the depths k_begin ... k_end - 1 to `tile`.
// *_DEEP: the operand's rows in memory run along the depth. ONES: A has an extra row of ones that is not in memory.
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
    commit_copies();  // also empty groups, so the number of pending groups is right in the last steps
  };

  for (int step = 0; step < STAGES - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // this step's tiles have arrived; the previous step's have been read and may be overwritten
    copy(step + STAGES - 1);
    tile.add_product(tiles_a[step % STAGES], tiles_b[step % STAGES]);
  }
}

// db (N,) = row M of the product, which is the row of ones times B.
template <class Tile>
__device__ void store_ones(const Tile& tile, float* db, int m0, int n0, int M, int N) {
#pragma unroll
  for (int s = 0; s < Tile::SUMS; ++s) {
    const int n = n0 + Tile::column(s);
    if (m0 + Tile::row(s) == M && n < N) db[n] = tile.sum[s];
  }
}

template <class Tile>
__device__ void forward(const Forward& product) {
  const auto& [y, x, w, bias, ldy, ldx, ldw, N, F, P] = product;
  const int m0 = blockIdx.x * Tile::BM, n0 = blockIdx.y * Tile::BN;
  Tile tile;
  multiply<true, false, false>(tile, {x, ldx, N, F}, {w, ldw, F, P}, m0, n0, 0, F);
  store(tile, y, ldy, m0, n0, N, P, false, bias);
}

template <class Tile>
__device__ void dgrad(const Dgrad& product, int m0, int n0) {
  const auto& [dx, dy, w, kept, lddx, lddy, ldw, N, F, P] = product;
  Tile tile;
  multiply<true, true, false>(tile, {dy, lddy, N, P}, {w, ldw, F, P}, m0, n0, 0, P);
  store(tile, dx, lddx, m0, n0, N, F, false, nullptr, kept);
}

template <class Tile>
__device__ void dgrad(const Dgrad& product) {
  dgrad<Tile>(product, blockIdx.x * Tile::BM, blockIdx.y * Tile::BN);
}

template <class Tile>
__device__ void wgrad(const Wgrad& product) {
  const auto& [dw, partials, counters, x, dy, lddw, ldx, lddy, N, F, P, rows_per_part, accumulate] = product;
  const int m0 = blockIdx.x * Tile::BM, n0 = blockIdx.y * Tile::BN;
  const int begin = blockIdx.z * rows_per_part;
  Tile tile;
  multiply<false, false, false>(tile, {x, ldx, N, F}, {dy, lddy, N, P}, m0, n0, begin,
                                begin + min(rows_per_part, N - begin));
  const int number = blockIdx.y * gridDim.x + blockIdx.x;
  if (reduce_parts(tile, partials, counters, number, gridDim.x * gridDim.y, blockIdx.z, gridDim.z))
    store(tile, dw, lddw, m0, n0, F, P, accumulate != 0);
}

// Both gradients in one launch: the first `dw_blocks` blocks compute dW and db, the others dX.
template <class Tile>
__device__ void backward(float* dx, float* dw, float* db, float* partials, unsigned* counters, const float* dy,
                         const float* x, const float* w, int N, int F, int P, int rows_per_part, int dw_blocks) {
  int block = blockIdx.x;
  if (block >= dw_blocks) {
    block -= dw_blocks;
    const int rows = ceil_div(N, Tile::BM);
    dgrad<Tile>({dx, dy, w, {}, F, P, P, N, F, P}, block % rows * Tile::BM, block / rows * Tile::BN);
    return;
  }
  const int rows = ceil_div(F + 1, Tile::BM), tiles = rows * ceil_div(P, Tile::BN);
  const int number = block % tiles, m0 = number % rows * Tile::BM, n0 = number / rows * Tile::BN;
  const int begin = block / tiles * rows_per_part;
  Tile tile;
  multiply<false, false, true>(tile, {x, F, N, F}, {dy, P, N, P}, m0, n0, begin, begin + min(rows_per_part, N - begin));
  if (!reduce_parts(tile, partials, counters, number, tiles, block / tiles, dw_blocks / tiles)) return;
  store(tile, dw, P, m0, n0, F, P, false);
  if (db) store_ones(tile, db, m0, n0, F, P);
}

using Tile128x128 = Fp32<4, 2, 8, 8, 8, 8>;
// Blocks of 128x128 on a multiprocessor. The compiler for GPUs after Hopper takes more registers than two leave.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int BLOCKS_OF_128X128 = 1;
#else
constexpr int BLOCKS_OF_128X128 = 2;
#endif
using Tile128x64 = Fp32<4, 2, 8, 8, 4, 16>;
using Tile64x64 = Fp32<2, 2, 8, 8, 4, 16>;
using Tile32x32 = Fp32<2, 2, 8, 4, 2, 32>;
using Tile16x32 = Fp32<2, 2, 8, 2, 2, 32>;
using TileTf32128x64 = Tf32<4, 2, 2, 4, 16>;
using TileTf3232x32 = Tf32<2, 2, 1, 2, 32>;

}  // namespace

// ---- forward: y (N, P) = x (N, F) w (F, P), plus bias (P,) on every row unless that is null ----

KERNEL(matmul_128x128_forward, Forward, (Tile128x128::THREADS, BLOCKS_OF_128X128), forward<Tile128x128>);
KERNEL(matmul_128x64_forward, Forward, (Tile128x64::THREADS, 2), forward<Tile128x64>);
KERNEL(matmul_64x64_forward, Forward, (Tile64x64::THREADS, 4), forward<Tile64x64>);
KERNEL(matmul_32x32_forward, Forward, (Tile32x32::THREADS, 4), forward<Tile32x32>);
KERNEL(matmul_16x32_forward, Forward, (Tile16x32::THREADS, 4), forward<Tile16x32>);
KERNEL(matmul_tf32_128x64_forward, Forward, (TileTf32128x64::THREADS, 2), forward<TileTf32128x64>);
KERNEL(matmul_tf32_32x32_forward, Forward, (TileTf3232x32::THREADS, 4), forward<TileTf3232x32>);

// ---- dgrad: dx (N, F) = dy (N, P) wᵀ (P, F), of which `kept` may leave what passes ReLU and dropout before x ----

KERNEL(matmul_128x128_dgrad, Dgrad, (Tile128x128::THREADS, BLOCKS_OF_128X128), dgrad<Tile128x128>);
KERNEL(matmul_128x64_dgrad, Dgrad, (Tile128x64::THREADS, 2), dgrad<Tile128x64>);
KERNEL(matmul_64x64_dgrad, Dgrad, (Tile64x64::THREADS, 4), dgrad<Tile64x64>);
KERNEL(matmul_32x32_dgrad, Dgrad, (Tile32x32::THREADS, 4), dgrad<Tile32x32>);
KERNEL(matmul_16x32_dgrad, Dgrad, (Tile16x32::THREADS, 4), dgrad<Tile16x32>);
KERNEL(matmul_tf32_128x64_dgrad, Dgrad, (TileTf32128x64::THREADS, 2), dgrad<TileTf32128x64>);
KERNEL(matmul_tf32_32x32_dgrad, Dgrad, (TileTf3232x32::THREADS, 4), dgrad<TileTf3232x32>);

// ---- wgrad: dw (F, P) = xᵀ (F, N) dy (N, P), added to dw if `accumulate`; `counters` has one 0 per tile ----

KERNEL(matmul_128x128_wgrad, Wgrad, (Tile128x128::THREADS, BLOCKS_OF_128X128), wgrad<Tile128x128>);
KERNEL(matmul_128x64_wgrad, Wgrad, (Tile128x64::THREADS, 2), wgrad<Tile128x64>);
KERNEL(matmul_32x32_wgrad, Wgrad, (Tile32x32::THREADS, 4), wgrad<Tile32x32>);
KERNEL(matmul_tf32_128x64_wgrad, Wgrad, (TileTf32128x64::THREADS, 2), wgrad<TileTf32128x64>);
KERNEL(matmul_tf32_32x32_wgrad, Wgrad, (TileTf3232x32::THREADS, 4), wgrad<TileTf3232x32>);

// ---- all gradients of a small product: dx (N, F), dw (F, P) and, unless null, db (P,) = column sums of dy ----
//
// db is computed as an extra row of dW, as if X had an extra column of ones. The matrices have no gaps.
// Launch: `matmul_backward`, a grid of dw_blocks and, if dx is wanted, ceil(N / 32) ceil(F / 32) more. Example 950 x 64
//   x 64: 3 x 2 tiles of dW in 15 parts of 64 rows, 30 x 2 tiles of dX: 150 blocks, which run concurrently.
extern "C" __global__ void __launch_bounds__(Tile32x32::THREADS, 4)
    matmul_32x32_backward(float* dx, float* dw, float* db, float* partials, unsigned* counters,
                          const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ w, int N,
                          int F, int P, int rows_per_part, int dw_blocks) {
  backward<Tile32x32>(dx, dw, db, partials, counters, dy, x, w, N, F, P, rows_per_part, dw_blocks);
}
