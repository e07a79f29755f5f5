// G = A^-1 of a positive definite matrix A (n, n) in float64, for the mixture's kernel ridge regression: products G z,
// and blocks of G of some rows.
//
//   A = L L'        Z = L^-1        G = Z' Z
//
// Tiles of TILE x TILE, row-major; A and Z have `stride` rows and columns, a multiple of TILE, and A is the identity
// beyond n. Of A, only what is on and below the diagonal is read and written; Z is 0 above it.
//
//   for k in tiles:  inverse_diagonal   A_kk = L_kk L_kk',  D_k = L_kk^-1
//                    inverse_panel      L_ik = A_ik D_k'                            for i > k
//                    inverse_trailing   A_ij -= L_ik L_jk'                          for i >= j > k
//   for i in tiles:  inverse_row        Z_ij = -D_i sum over k in [j, i) of L_ik Z_kj   for j < i;  Z_ii = D_i
//
// Determinism: each element has one writer and a fixed order of summation.

#include "common/common.cuh"

constexpr int TILE = 64, SIDE = 16;  // a block's threads are SIDE x SIDE
constexpr int OWN = TILE / SIDE;     // rows and columns of a thread, SIDE apart
constexpr int DEPTH = 16;            // of a product, in shared memory at once
constexpr int THREADS = SIDE * SIDE;

using Chunk = double[DEPTH][TILE + 1];

struct Chunks {
  Chunk left, right;
};

// --------------------------------------------------------------------------------------------------- products of tiles

// Element (row, k) of a left factor, or (k, column) of a right one; CONTIGUOUS_K says which index is next to the other
// in memory.
template <bool CONTIGUOUS_K, class Load>
__device__ __forceinline__ void inverse_stage(Chunk& chunk, int first, const Load& load) {
#pragma unroll
  for (int turn = 0; turn < DEPTH * TILE / THREADS; ++turn) {
    const int place = threadIdx.x + turn * THREADS;
    const int k = CONTIGUOUS_K ? place % DEPTH : place / TILE, other = CONTIGUOUS_K ? place / DEPTH : place % TILE;
    chunk[k][other] = load(first + k, other);
  }
}

// sums += left right over k in [begin, end), a multiple of DEPTH apart. All threads arrive before a factor is read, and
// have read all factors before one leaves.
template <bool LEFT_CONTIGUOUS_K, bool RIGHT_CONTIGUOUS_K, class Left, class Right>
__device__ __forceinline__ void inverse_product(double (&sums)[OWN][OWN], Chunks& chunks, int begin, int end,
                                                const Left& left, const Right& right) {
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  for (int first = begin; first < end; first += DEPTH) {
    __syncthreads();
    inverse_stage<LEFT_CONTIGUOUS_K>(chunks.left, first, left);
    inverse_stage<RIGHT_CONTIGUOUS_K>(chunks.right, first, right);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      double row[OWN], column[OWN];
#pragma unroll
      for (int i = 0; i < OWN; ++i) row[i] = chunks.left[k][y + SIDE * i];
#pragma unroll
      for (int j = 0; j < OWN; ++j) column[j] = chunks.right[k][x + SIDE * j];
#pragma unroll
      for (int i = 0; i < OWN; ++i)
#pragma unroll
        for (int j = 0; j < OWN; ++j) sums[i][j] = fma(row[i], column[j], sums[i][j]);
    }
  }
}

// Call `store(row, column, sum)` for each sum of a thread.
template <class Store>
__device__ __forceinline__ void inverse_store(const double (&sums)[OWN][OWN], const Store& store) {
#pragma unroll
  for (int i = 0; i < OWN; ++i)
#pragma unroll
    for (int j = 0; j < OWN; ++j) store(threadIdx.x / SIDE + SIDE * i, threadIdx.x % SIDE + SIDE * j, sums[i][j]);
}

// -------------------------------------------------------------------------------------------------------------- kernels

struct InverseRowsParams {
  double* a;               // (stride, stride)
  const float* rows;       // (blocks, n): those of A from `first` on, without what is added to its diagonal
  const double* diagonal;  // (n,) added to the diagonal
  int first, n, stride;
};

// A row of A, a block each; rows from n on are those of the identity.
__device__ __forceinline__ void inverse_fill_row(const InverseRowsParams& params) {
  const auto [a, rows, diagonal, first, n, stride] = params;
  const int row = first + blockIdx.x;
  for (int column = threadIdx.x; column <= row; column += THREADS) {
    double value = row == column;
    if (row < n) value = rows[(long long)blockIdx.x * n + column] + (row == column ? diagonal[row] : 0.0);
    a[(long long)row * stride + column] = value;
  }
}

struct InverseStepParams {
  double* a;         // (stride, stride)
  double* z;         // likewise; D is on its diagonal
  int step, stride;  // the tile k, or i
};

// One block: L_kk and D_k.
__device__ __forceinline__ void inverse_factor_tile(const InverseStepParams& params) {
  double *const a = params.a, *const z = params.z;
  const int step = params.step, stride = params.stride;
  __shared__ double l[TILE][TILE + 1];
  const long long corner = (long long)step * TILE * stride + step * TILE;
  for (int place = threadIdx.x; place < TILE * TILE; place += THREADS) {
    const int i = place / TILE, j = place % TILE;
    l[i][j] = j <= i ? a[corner + (long long)i * stride + j] : 0.0;
  }
  for (int k = 0; k < TILE; ++k) {
    __syncthreads();
    const double root = sqrt(l[k][k]);
    __syncthreads();
    for (int i = k + threadIdx.x; i < TILE; i += THREADS) l[i][k] = i == k ? root : l[i][k] / root;
    __syncthreads();
    for (int place = threadIdx.x; place < TILE * TILE; place += THREADS) {
      const int i = place / TILE, j = place % TILE;
      if (k < j && j <= i) l[i][j] = fma(-l[i][k], l[j][k], l[i][j]);
    }
  }
  __syncthreads();
  for (int place = threadIdx.x; place < TILE * TILE; place += THREADS) {
    const int i = place / TILE, j = place % TILE;
    if (j <= i) a[corner + (long long)i * stride + j] = l[i][j];
  }
  // A column of D a thread: row i follows from those above it.
  if (threadIdx.x < TILE) {
    const int j = threadIdx.x;
    double* column = z + corner + j;
    for (int i = j; i < TILE; ++i) {
      double sum = i == j;
      for (int k = j; k < i; ++k) sum = fma(-l[i][k], column[(long long)k * stride], sum);
      column[(long long)i * stride] = sum / l[i][i];
    }
  }
}

// A block a tile below the diagonal: L_ik = A_ik D_k'.
__device__ __forceinline__ void inverse_solve_tile(const InverseStepParams& params) {
  double *const a = params.a, *const z = params.z;
  const int step = params.step, stride = params.stride;
  double* own = a + (long long)(step + 1 + blockIdx.x) * TILE * stride + step * TILE;
  const double* d = z + (long long)step * TILE * stride + step * TILE;
  __shared__ Chunks chunks;
  double sums[OWN][OWN] = {};
  inverse_product<true, true>(
      sums, chunks, 0, TILE, [&](int k, int row) { return own[(long long)row * stride + k]; },
      [&](int k, int column) { return d[(long long)column * stride + k]; });
  inverse_store(sums, [&](int row, int column, double sum) { own[(long long)row * stride + column] = sum; });
}

// A block a tile on or below the diagonal, right of the step: A_ij -= L_ik L_jk'.
__device__ __forceinline__ void inverse_subtract_tile(const InverseStepParams& params) {
  double* const a = params.a;
  const int step = params.step, stride = params.stride;
  const int i = step + 1 + blockIdx.y, j = step + 1 + blockIdx.x;
  if (j > i) return;
  const double *left = a + (long long)i * TILE * stride + step * TILE,
               *right = a + (long long)j * TILE * stride + step * TILE;
  double* own = a + (long long)i * TILE * stride + j * TILE;
  __shared__ Chunks chunks;
  double sums[OWN][OWN] = {};
  inverse_product<true, true>(
      sums, chunks, 0, TILE, [&](int k, int row) { return left[(long long)row * stride + k]; },
      [&](int k, int column) { return right[(long long)column * stride + k]; });
  inverse_store(sums, [&](int row, int column, double sum) {
    if (j < i || column <= row) own[(long long)row * stride + column] -= sum;
  });
}

// A block a tile of row i of Z, left of the diagonal.
__device__ __forceinline__ void inverse_row_tile(const InverseStepParams& params) {
  double *const a = params.a, *const z = params.z;
  const int step = params.step, stride = params.stride;
  const double *l = a + (long long)step * TILE * stride, *d = z + (long long)step * TILE * stride + step * TILE;
  double *above = z + blockIdx.x * TILE, *own = above + (long long)step * TILE * stride;
  __shared__ Chunks chunks;
  double sums[OWN][OWN] = {};
  inverse_product<true, false>(
      sums, chunks, blockIdx.x * TILE, step * TILE, [&](int k, int row) { return l[(long long)row * stride + k]; },
      [&](int k, int column) { return above[(long long)k * stride + column]; });
  inverse_store(sums, [&](int row, int column, double sum) { own[(long long)row * stride + column] = sum; });
  double product[OWN][OWN] = {};
  inverse_product<true, false>(
      product, chunks, 0, TILE, [&](int k, int row) { return d[(long long)row * stride + k]; },
      [&](int k, int column) { return own[(long long)k * stride + column]; });
  inverse_store(product, [&](int row, int column, double sum) { own[(long long)row * stride + column] = -sum; });
}

struct InverseProductsParams {
  double* y;            // (stride, C)
  const double *z, *x;  // x (stride, C)
  int C, stride;
};

// A block a tile of y = Z x, or of y = Z' x.
template <bool TRANSPOSED>
__device__ __forceinline__ void inverse_multiply(const InverseProductsParams& params) {
  double* const y = params.y;
  const double *const z = params.z, *const x = params.x;
  const int C = params.C, stride = params.stride;
  const int first = blockIdx.x * TILE, first_column = blockIdx.y * TILE;
  const auto right = [&](int k, int column) {
    return first_column + column < C ? x[(long long)k * C + first_column + column] : 0.0;
  };
  __shared__ Chunks chunks;
  double sums[OWN][OWN] = {};
  if constexpr (TRANSPOSED)
    inverse_product<false, false>(
        sums, chunks, first, stride, [&](int k, int row) { return z[(long long)k * stride + first + row]; }, right);
  else
    inverse_product<true, false>(
        sums, chunks, 0, first + TILE, [&](int k, int row) { return z[(long long)(first + row) * stride + k]; }, right);
  inverse_store(sums, [&](int row, int column, double sum) {
    if (first_column + column < C) y[(long long)(first + row) * C + first_column + column] = sum;
  });
}

struct InverseBlockParams {
  double* y;  // (count, count)
  const double* z;
  const int* rows;  // (count,) ascending
  int count, stride;
};

// A block a tile of G of some rows; the tiles above the diagonal are those below it.
__device__ __forceinline__ void inverse_block_tile(const InverseBlockParams& params) {
  double* const y = params.y;
  const double* const z = params.z;
  const int count = params.count, stride = params.stride;
  if (blockIdx.x > blockIdx.y) return;
  __shared__ int places[2][TILE];
  if (threadIdx.x < 2 * TILE) {
    const int side = threadIdx.x / TILE, place = (side ? blockIdx.x : blockIdx.y) * TILE + threadIdx.x % TILE;
    places[side][threadIdx.x % TILE] = place < count ? params.rows[place] : -1;
  }
  __syncthreads();
  const auto element = [&](int k, int place) { return place < 0 ? 0.0 : z[(long long)k * stride + place]; };
  __shared__ Chunks chunks;
  double sums[OWN][OWN] = {};
  inverse_product<false, false>(
      sums, chunks, places[0][0] / DEPTH * DEPTH, stride, [&](int k, int row) { return element(k, places[0][row]); },
      [&](int k, int column) { return element(k, places[1][column]); });
  inverse_store(sums, [&](int row, int column, double sum) {
    const int i = blockIdx.y * TILE + row, j = blockIdx.x * TILE + column;
    if (i < count && j <= i) y[(long long)i * count + j] = y[(long long)j * count + i] = sum;
  });
}

// --------------------------------------------------------------------------------------------------------- entry points

// Source: own, after the blocked algorithms of LAPACK (potrf, trtri). Launch: a block a row, or a block a tile, 256
// threads. 11,817 rows: 185 tiles, and so 185 times the three launches of the factor, then 185 rows of Z.
// Shared memory: 16.6 KB, `inverse_diagonal` 33 KB; rows are padded by one number, so that lanes use other banks.

// Traffic: reads 4 n² / 2 bytes, writes 8 n² / 2.
KERNEL(inverse_rows, InverseRowsParams, (THREADS), inverse_fill_row);
// One block: 64 columns one after the other, each by all threads.
KERNEL(inverse_diagonal, InverseStepParams, (THREADS), inverse_factor_tile);
// Traffic: reads and writes 8 TILE numbers of each row below.
KERNEL(inverse_panel, InverseStepParams, (THREADS), inverse_solve_tile);
// Traffic of all steps: n² / 6 numbers for each tile of n, read and written; n³ / 6 multiply-adds.
KERNEL(inverse_trailing, InverseStepParams, (THREADS), inverse_subtract_tile);
// Launch: `step` blocks, of which the first multiplies `step` tiles; n³ / 6 multiply-adds in all.
KERNEL(inverse_row, InverseStepParams, (THREADS), inverse_row_tile);
// Traffic: reads 8 n² / 2 bytes for TILE columns of y.
KERNEL(inverse_multiply_lower, InverseProductsParams, (THREADS), inverse_multiply<false>);
KERNEL(inverse_multiply_upper, InverseProductsParams, (THREADS), inverse_multiply<true>);
// n count² / 2 multiply-adds at most; columns of Z are gathered, 8 bytes of a sector each.
KERNEL(inverse_block, InverseBlockParams, (THREADS), inverse_block_tile);
