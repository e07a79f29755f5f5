// Tiles of the dense product (dense/matmul.cu): copies from global to shared memory, and products of two tiles.

#pragma once

#include "common/copies.cuh"
#include "common/tensor_cores.cuh"

// A matrix in memory: `rows` of `length` floats, `ld` apart.
struct Operand {
  const float* data;
  int ld;
  int rows, length;
};

// tile[k][w] = operand[k0 + k][w0 + w]: rows in memory run along the tile's width. ONES: every row of the operand is
// followed by a 1 that is not in memory.
template <int WIDTH, int DEPTH, int LD, int THREADS, bool ONES>
__device__ void copy_along_width(float* tile, const Operand& operand, bool aligned, int w0, int k0, int k_end) {
  constexpr int VECTORS = WIDTH / 4;
  static_assert(VECTORS * DEPTH % THREADS == 0, "every thread copies as many vectors");
#pragma unroll
  for (int i = 0; i < VECTORS * DEPTH / THREADS; ++i) {
    const int vector = threadIdx.x + i * THREADS;
    const int k = vector / VECTORS, w = vector % VECTORS * 4;
    const float* from = operand.data + static_cast<long long>(k0 + k) * operand.ld + w0 + w;
    float* to = tile + k * LD + w;
    const bool deep = k0 + k < k_end;
    const int left = operand.length - w0 - w;
    if (aligned && !(ONES && left == 0)) {
      copy_async<4>(to, from, deep ? min(max(left, 0), 4) : 0);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (ONES && j == left) {
          to[j] = deep ? 1.f : 0.f;
        } else {
          copy_async<1>(to + j, from + j, deep && j < left);
        }
      }
    }
  }
}

// tile[k][w] = operand[w0 + w][k0 + k]: rows in memory run along the tile's depth. 8 neighbouring threads copy a
// 32-byte sector.
template <int WIDTH, int DEPTH, int LD, int THREADS>
__device__ void copy_along_depth(float* tile, const Operand& operand, int w0, int k0, int k_end) {
  constexpr int ROWS = THREADS / 8;
  const int column = threadIdx.x % 8, row = threadIdx.x / 8;
#pragma unroll
  for (int i = 0; i < ceil_div(WIDTH, ROWS); ++i) {
    const int w = row + i * ROWS;
    if (WIDTH % ROWS != 0 && w >= WIDTH) continue;
    const float* from = operand.data + static_cast<long long>(w0 + w) * operand.ld + k0;
#pragma unroll
    for (int k = column; k < DEPTH + column; k += 8)
      copy_async<1>(tile + k * LD + w, from + k, w0 + w < operand.rows && k0 + k < k_end);
  }
}

// A tile of C = A B in fp32 arithmetic: WARPS_M x WARPS_N warps of 32 / LANES_N x LANES_N lanes; a lane holds TM x TN
// sums in vectors of neighbours.
template <int WARPS_M, int WARPS_N, int LANES_N, int TM, int TN, int DEPTH_>
struct Fp32 {
  static constexpr int LANES_M = 32 / LANES_N;
  static constexpr int BM = WARPS_M * LANES_M * TM, BN = WARPS_N * LANES_N * TN, DEPTH = DEPTH_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N, PAD = 4;
  static constexpr int SUMS = TM * TN, VECTOR = TN < 4 ? TN : 4;
  static constexpr int VM = TM < 4 ? TM : 4, VN = TN < 4 ? TN : 4;

  float sum[SUMS] = {};

  __device__ static int first_row() {
    return threadIdx.x / 32 / WARPS_N * LANES_M * TM + threadIdx.x % 32 / LANES_N * VM;
  }
  __device__ static int first_column() {
    return threadIdx.x / 32 % WARPS_N * LANES_N * TN + threadIdx.x % LANES_N * VN;
  }
  __device__ static int row(int s) { return first_row() + s / TN / VM * LANES_M * VM + s / TN % VM; }
  __device__ static int column(int s) { return first_column() + s % TN / VN * LANES_N * VN + s % VN; }

  __device__ void add_product(const float* a, const float* b) {
    a += first_row();
    b += first_column();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      float left[TM], right[TN];
#pragma unroll
      for (int i = 0; i < TM; i += VM) load_vector<VM>(left + i, a + k * (BM + PAD) + i * LANES_M);
#pragma unroll
      for (int j = 0; j < TN; j += VN) load_vector<VN>(right + j, b + k * (BN + PAD) + j * LANES_N);
#pragma unroll
      for (int s = 0; s < SUMS; ++s) sum[s] += left[s / TN] * right[s % TN];
    }
  }

  template <int N>
  __device__ static void load_vector(float* to, const float* from) {
    if (N == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      to[0] = v.x, to[1] = v.y, to[N - 2] = v.z, to[N - 1] = v.w;
    } else {
      const float2 v = *reinterpret_cast<const float2*>(from);
      to[0] = v.x, to[1] = v.y;
    }
  }
};

// A tile of C = A B on the tensor cores: WARPS_M x WARPS_N warps; a warp holds MM x MN products of 16 x 8.
template <int WARPS_M, int WARPS_N, int MM, int MN, int DEPTH_>
struct Tf32 {
  static constexpr int BM = WARPS_M * MM * 16, BN = WARPS_N * MN * 8, DEPTH = DEPTH_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N, PAD = 8;
  static constexpr int SUMS = 4 * MM * MN, VECTOR = 2;

  float sum[SUMS] = {};

  __device__ static int first_row() { return threadIdx.x / 32 / WARPS_N * MM * 16 + threadIdx.x % 32 / 4; }
  __device__ static int first_column() { return threadIdx.x / 32 % WARPS_N * MN * 8; }
  __device__ static int row(int s) { return first_row() + s / 4 / MN * 16 + s % 4 / 2 * 8; }
  __device__ static int column(int s) { return first_column() + s / 4 % MN * 8 + threadIdx.x % 4 * 2 + s % 2; }

  __device__ void add_product(const float* a, const float* b) {
    constexpr int LDA = BM + PAD, LDB = BN + PAD;
    a += threadIdx.x % 4 * LDA + first_row();
    b += threadIdx.x % 4 * LDB + first_column() + threadIdx.x % 32 / 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
      unsigned left[MM][4], right[MN][2];
#pragma unroll
      for (int i = 0; i < MM; ++i) {
#pragma unroll
        for (int v = 0; v < 4; ++v) left[i][v] = round_to_tf32(a[(k + v / 2 * 4) * LDA + i * 16 + v % 2 * 8]);
      }
#pragma unroll
      for (int j = 0; j < MN; ++j) {
#pragma unroll
        for (int v = 0; v < 2; ++v) right[j][v] = round_to_tf32(b[(k + v * 4) * LDB + j * 8]);
      }
#pragma unroll
      for (int i = 0; i < MM; ++i) {
#pragma unroll
        for (int j = 0; j < MN; ++j) multiply_fragments(sum + 4 * (i * MN + j), left[i], right[j]);
      }
    }
  }
};
