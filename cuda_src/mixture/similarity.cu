// The similarity of molecules to landmarks, which the mixture's kernel ridge regression reads, and its products with
// the regression's weights.
//
//   S[n, m] = (w exp(-|s_n - s_m|^2 / D) + sum over fingerprints f of T_f[n, m]) / (w + F)     scores s, (n, D)
//   T_f[n, m] = |a and b| / (|a| + |b| - |a and b|)                                             of the bits of n and m
//   y[n, k] = sum over m of  S[n, m] weights[m, k]                                              in float64
//
// gcnbatch/mixture/similarity.py says what the bits are. A column of a fingerprint has BITS of them, side by side, so a
// fingerprint of 2,048 columns is 256 words, and |a and b| is a sum of population counts.
//
// Determinism: a pair of molecules is computed alike in every place of every tile, and sums have a fixed order, so that
// results repeat to the bit and do not depend on the number of rows. Counts of bits are exact.

#include "common/common.cuh"

constexpr int BITS = 4;  // of a column
constexpr int WORD_COLUMNS = 32 / BITS;
constexpr int TILE = 64, SIDE = 16;  // molecules and landmarks of a block; its threads are SIDE x SIDE
constexpr int PAIR_THREADS = SIDE * SIDE;
constexpr int OWN = TILE / SIDE;  // of them a thread's
constexpr int VECTORS = 8;        // of four words, of each molecule, in shared memory at once
constexpr int DEPTH = 32;         // scores, likewise
constexpr int OUTPUTS = 8;        // columns of y that a block sums
constexpr int ROW_THREADS = 256;  // of a block that sums them

// ----------------------------------------------------------------------------------------------- bits of fingerprints

struct SimilarityBitsParams {
  unsigned* words;     // (n, fingerprints, words_each): 0 before the launch
  float* sizes;        // (n, fingerprints): the number of bits
  const int* indptr;   // (n + 1,) of this fingerprint's entries
  const int* columns;  // of each entry
  const unsigned char* bits;
  int n, fingerprint, fingerprints, words_each;
};

// A warp sets the bits of a molecule in one fingerprint.
__device__ __forceinline__ void similarity_set_bits(const SimilarityBitsParams& params) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= params.n) return;
  const long long place = (long long)row * params.fingerprints + params.fingerprint;
  unsigned* words = params.words + place * params.words_each;
  int size = 0;
  for (int entry = params.indptr[row] + lane; entry < params.indptr[row + 1]; entry += 32) {
    const int column = params.columns[entry];
    const unsigned bits = params.bits[entry];
    atomicOr(words + column / WORD_COLUMNS, bits << (BITS * (column % WORD_COLUMNS)));
    size += __popc(bits);
  }
  size = warp_sum(size);
  if (lane == 0) params.sizes[place] = float(size);
}

// --------------------------------------------------------------------------------------------------------- similarity

// Molecules in the device's memory.
struct SimilarityMolecules {
  const unsigned* words;  // (n, fingerprints, words_each), words_each = 4 vectors
  const float* sizes;     // (n, fingerprints)
  const float* scores;    // (n, D)
  const float* norms;     // (n,) |s|^2
  int n;
};

struct SimilarityParams {
  float* y;  // (n, M)
  SimilarityMolecules molecules, landmarks;
  int fingerprints, vectors, D;
  float weight;
};

// Vectors [first, first + VECTORS) of a fingerprint of TILE molecules to shared memory; 0 beyond the last.
__device__ __forceinline__ void similarity_stage(uint4 (&tile)[VECTORS][TILE + 1], const SimilarityMolecules& of,
                                                 int begin, long long stride, long long start, int first, int vectors) {
  for (int place = threadIdx.x; place < TILE * VECTORS; place += PAIR_THREADS) {
    const int row = place / VECTORS, vector = place % VECTORS;
    const bool exists = begin + row < of.n && first + vector < vectors;
    const uint4* words = reinterpret_cast<const uint4*>(of.words) + (begin + row) * stride + start + first + vector;
    tile[vector][row] = exists ? *words : make_uint4(0, 0, 0, 0);
  }
}

// Scores [first, first + DEPTH) of TILE molecules to shared memory; 0 beyond the last.
__device__ __forceinline__ void similarity_stage(float (&tile)[DEPTH][TILE + 1], const SimilarityMolecules& of,
                                                 int begin, int first, int D) {
  for (int place = threadIdx.x; place < TILE * DEPTH; place += PAIR_THREADS) {
    const int row = place / DEPTH, k = place % DEPTH;
    const bool exists = begin + row < of.n && first + k < D;
    tile[k][row] = exists ? of.scores[(long long)(begin + row) * D + first + k] : 0.f;
  }
}

// A block computes TILE x TILE similarities, a thread OWN x OWN, SIDE apart.
__device__ __forceinline__ void similarity_tile(const SimilarityParams& params) {
  __shared__ union {
    struct {
      uint4 left[VECTORS][TILE + 1], right[VECTORS][TILE + 1];
    } bits;
    struct {
      float left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
    } scores;
  } tile;
  const auto& [y, molecules, landmarks, fingerprints, vectors, D, weight] = params;
  const int begin = blockIdx.x * TILE, begin_landmark = blockIdx.y * TILE;
  const int x = threadIdx.x % SIDE, own = threadIdx.x / SIDE;
  const long long stride = (long long)fingerprints * vectors;
  float total[OWN][OWN] = {};
  for (int first = 0; first < D; first += DEPTH) {
    __syncthreads();
    similarity_stage(tile.scores.left, molecules, begin, first, D);
    similarity_stage(tile.scores.right, landmarks, begin_landmark, first, D);
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < DEPTH; ++k) {
      float left[OWN], right[OWN];
#pragma unroll
      for (int i = 0; i < OWN; ++i) left[i] = tile.scores.left[k][own + SIDE * i];
#pragma unroll
      for (int j = 0; j < OWN; ++j) right[j] = tile.scores.right[k][x + SIDE * j];
#pragma unroll
      for (int i = 0; i < OWN; ++i)
#pragma unroll
        for (int j = 0; j < OWN; ++j) total[i][j] = fmaf(left[i], right[j], total[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i)
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
      const int n = min(begin + own + SIDE * i, molecules.n - 1),
                m = min(begin_landmark + x + SIDE * j, landmarks.n - 1);
      const float distance = 2 * total[i][j] - molecules.norms[n] - landmarks.norms[m];
      total[i][j] = weight * expf(fminf(distance / max(D, 1), 0.f));
    }
  for (int fingerprint = 0; fingerprint < fingerprints; ++fingerprint) {
    int common[OWN][OWN] = {};
    const long long start = (long long)fingerprint * vectors;
    for (int first = 0; first < vectors; first += VECTORS) {
      __syncthreads();
      similarity_stage(tile.bits.left, molecules, begin, stride, start, first, vectors);
      similarity_stage(tile.bits.right, landmarks, begin_landmark, stride, start, first, vectors);
      __syncthreads();
#pragma unroll 2
      for (int vector = 0; vector < VECTORS; ++vector) {
        uint4 left[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) left[i] = tile.bits.left[vector][own + SIDE * i];
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
          const uint4 right = tile.bits.right[vector][x + SIDE * j];
#pragma unroll
          for (int i = 0; i < OWN; ++i)
            common[i][j] += __popc(left[i].x & right.x) + __popc(left[i].y & right.y) + __popc(left[i].z & right.z) +
                            __popc(left[i].w & right.w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i)
#pragma unroll
      for (int j = 0; j < OWN; ++j) {
        const int n = min(begin + own + SIDE * i, molecules.n - 1),
                  m = min(begin_landmark + x + SIDE * j, landmarks.n - 1);
        const float sizes = molecules.sizes[(long long)n * fingerprints + fingerprint] +
                            landmarks.sizes[(long long)m * fingerprints + fingerprint];
        total[i][j] += __fdiv_rn(float(common[i][j]), fmaxf(sizes - common[i][j], 1.f));
      }
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i)
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
      const int n = begin + own + SIDE * i, m = begin_landmark + x + SIDE * j;
      if (n < molecules.n && m < landmarks.n)
        y[(long long)n * landmarks.n + m] = __fdiv_rn(total[i][j], weight + fingerprints);
    }
}

// ----------------------------------------------------------------------------------------------------------- products

struct SimilarityProductsParams {
  double* y;                // (n, K)
  const float* similarity;  // (n, M)
  const double* weights;    // (M, K)
  int M, K;
};

// A block sums OUTPUTS columns of a row.
__device__ __forceinline__ void similarity_sum_row(const SimilarityProductsParams& params) {
  const auto [y, similarity, weights, M, K] = params;
  const int first = blockIdx.y * OUTPUTS, count = min(OUTPUTS, K - first);
  const float* row = similarity + (long long)blockIdx.x * M;
  double sums[OUTPUTS] = {};
  for (int m = threadIdx.x; m < M; m += ROW_THREADS) {
    const double own = row[m];
    const double* of = weights + (long long)m * K + first;
#pragma unroll
    for (int k = 0; k < OUTPUTS; ++k)
      if (k < count) sums[k] += own * of[k];
  }
#pragma unroll
  for (int k = 0; k < OUTPUTS; ++k) {
    if (k >= count) break;
    const double sum = block_sum(sums[k]);
    if (threadIdx.x == 0) y[(long long)blockIdx.x * K + first + k] = sum;
  }
}

// -------------------------------------------------------------------------------------------------------- entry points

// Source: own. Launch: a warp a molecule. Traffic: 5 bytes an entry, and the words in L2.
KERNEL(similarity_bits, SimilarityBitsParams, (BLOCK_THREADS), similarity_set_bits);

// Source: own; tiles as in dense/matmul.cu. Launch: 256 threads; 4,096 molecules and 11,800 landmarks: 64 x 185 blocks.
// Shared memory: 16.6 KB; rows are padded by one element, so that the lanes that store a molecule's use other banks.
// Bound by population counts, 16 a multiprocessor and cycle: n M words / 16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int PAIR_BLOCKS = 1;  // for two, registers would be spilled
#else
constexpr int PAIR_BLOCKS = 2;
#endif
KERNEL(similarity_of_pairs, SimilarityParams, (PAIR_THREADS, PAIR_BLOCKS), similarity_tile);

// Source: own. Launch: a block for each molecule and OUTPUTS columns. Traffic: reads 4 n M bytes for OUTPUTS columns.
KERNEL(similarity_products, SimilarityProductsParams, (ROW_THREADS), similarity_sum_row);
