// The products of the wide form: tiles of C = A B on the tensor cores. fused/wide/layers.cu has the kernels.
//
// Panels. Operands are stored as panels of 32 columns. Element (i, k) of a matrix is in panel k / 32. A panel holds the
// matrix's rows, 128 bytes each, chunk (k % 32) / 4 of row i at chunk ^ (i % 8): the 128-byte swizzle of wgmma. So TMA copies
// a stage of a matrix as one piece of memory, or a few. Reads of it in shared memory have no bank conflicts, along rows or
// across them, and wgmma reads it directly. The panels are
//
//   U (N, K)             zeros in rows N … N rounded up to 32 and in columns up to whole panels; of `capacity` rows
//   V (N, C P)           every channel begins with a panel and is filled up with zeros; of `capacity` rows
//   dYᵀ (P, N)           zeros in columns N … N rounded up to 32
//   W'ᵀ (P, C F + C)     the weights forward, filled up with zeros
//   W (F, C P)           the weights backward, as V
//
// `capacity` is the most rows that a batch may have, rounded up to 128; all panels have the same. In 3xTF32, the residuals
// that TF32 cuts off from W', W and dYᵀ (operand B) follow in as many panels again.
//
// Warps. A block computes BM x BN = 128 x 64 values of C. Eight warps multiply; a ninth copies stages of 32 of the depth to a
// ring in shared memory by TMA. Along the depth, four warps compute 64 x 64 by wgmma, with both operands in shared memory,
// or, in 3xTF32, A in registers. Across the depth (Uᵀ), four warps compute 128 x 32 with A in registers, because wgmma does
// not transpose 32-bit numbers. Then the sums go through shared memory, so that a thread owns 32 rows of one column: batch
// norm and other sums over rows stay in a thread, and rows are stored in whole lines.
//
// Waits.
//   full[stage]     arrives: a lane of the ninth warp, and the bytes that it expects; waits: the eight warps, which multiply
//   empty[stage]    arrive: all 256 computing threads, when the tensor cores have read it; waits: the ninth warp, from the
//                   ring's second round on, before it overwrites the stage
//   __syncthreads   barriers are initialised; the ring is read, and sums replace it; the sums are stored
//
// Precision. The writer of a panel rounds to TF32 (11 bits), or operands are split into two TF32 numbers, and three of the
// four products are summed ("3xTF32", 22 bits; Ootomo, Yokota: "Recovering single precision accuracy from tensor cores",
// IJHPCA 2022). Tensor cores truncate sums. 3xTF32 therefore sums one stage on them, and stages in float32.
//
// Requires: sm_90a; for other architectures the products are empty.

#pragma once

#include "fused/shared/async_copy.cuh"

namespace fused {

constexpr int BM = 128, BN = 64, DEPTH = PANEL, COMPUTE_THREADS = 256, GEMM_THREADS = COMPUTE_THREADS + 32;
constexpr int A_FLOATS = BM * DEPTH, B_FLOATS = BN * DEPTH;
constexpr int MAX_STAGES = 8;
constexpr int OWN_ROWS = 32;     // of one column, owned by a thread
constexpr int TILE_LD = BN + 8;  // floats between rows of a tile in shared memory

// Bytes of a stage, and of what replaces the ring after the product: a tile of sums, and 12 bytes for each thread.
constexpr int STAGE_BYTES_TF32 = 4 * (A_FLOATS + B_FLOATS), STAGE_BYTES_3XTF32 = 4 * (A_FLOATS + 2 * B_FLOATS);
constexpr int EPILOGUE_BYTES = 4 * BM * TILE_LD + 12 * COMPUTE_THREADS;

// Row k of W' (P floats) in W (F, C P) or the bias (C P,); null for the rows that round up K.
__device__ __forceinline__ const float* weight_row(const float* weight, const float* bias, int k, int F, int C, int P) {
  if (k < F * C) return weight + static_cast<long long>(k % F) * C * P + k / F * P;
  return bias != nullptr && k < F * C + C ? bias + (k - F * C) * P : nullptr;
}

__device__ __forceinline__ float* ring() {
  extern __shared__ __align__(1024) float shared[];
  return shared;
}

__device__ __forceinline__ int stages_of_ring(int stage_floats) {
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return min(static_cast<int>(bytes / sizeof(float)) / stage_floats, MAX_STAGES);
}

// The barriers of a ring of stages.
struct Barriers {
  unsigned long long full[MAX_STAGES], empty[MAX_STAGES];
};

// ---- operands ----

// Rows of panels, with the depth along the panels. A piece is BM rows of A or BN rows of B, of which `existing` exist.
struct PanelRows {
  const float* panels;
  int rows, existing;  // of a panel, of the piece

  __device__ __forceinline__ int bytes() const { return existing * PANEL * int(sizeof(float)); }
  // The piece that begins with row i of panel k.
  __device__ __forceinline__ const float* piece(int i, int k) const {
    return panels + (static_cast<long long>(k) * rows + i) * PANEL;
  }
};

// BM columns from w0 on, in pieces of 32 columns, with the depth along the rows.
struct PanelColumns {
  static constexpr int FLOATS = DEPTH * PANEL;
  const float* panels;
  int rows, w0, columns;

  __device__ __forceinline__ const float* piece(int k0, int number) const {
    return panels + (static_cast<long long>(w0 / PANEL + number) * rows + k0) * PANEL;
  }
  __device__ __forceinline__ int pieces() const { return min(max(ceil_div(columns - w0, PANEL), 0), BM / PANEL); }
  __device__ __forceinline__ int bytes() const { return pieces() * FLOATS * int(sizeof(float)); }
};

// ---- fragments ----

// Load four 8 x 4 matrices; a lane gives the address of one row and receives an element of each.
__device__ __forceinline__ void ldmatrix_x4(float* to, const float* row) {
  unsigned bits[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(shared_address(row))
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(bits[i]);
}

// A lane's position in a fragment.
struct Place {
  int lane, g, t;
  __device__ Place() { lane = threadIdx.x % 32, g = lane / 4, t = lane % 4; }
};

// The chunk that a lane reads of a piece of PanelColumns: the order avoids bank conflicts among eight lanes that read two
// chunks of four rows together.
__device__ __forceinline__ int chunk_of(int g) { return g / 2 + g % 2 * 4; }

__device__ __forceinline__ float4 load_chunk(const float* piece, const Place& at, int k) {
  return *reinterpret_cast<const float4*>(piece + k * PANEL + (chunk_of(at.g) ^ k % 8) * 4);
}

// How each product fetches a stage.

// Both operands along the depth: Y = U W' from U and the transpose of W'; dZ = V Wᵀ from V and W.
struct AlongDepth {
  static constexpr bool PREFETCHES_B = true, ALONG_DEPTH = true;
  PanelRows a, b;
  int m0, n0, depth;

  __device__ __forceinline__ int steps() const { return ceil_div(depth, DEPTH); }
  __device__ __forceinline__ const float* of_b(int step) const { return b.piece(n0, step); }
  __device__ __forceinline__ long long residuals_of_b() const {
    return static_cast<long long>(steps()) * b.rows * PANEL;
  }
  __device__ __forceinline__ void fetch_a(float* tile, int step, unsigned long long* full) const {
    if (threadIdx.x % 32 == 0) tma_copy(tile, a.piece(m0, step), a.bytes(), full);
  }
};

// A across the depth, B along it: dW' = Uᵀ dY, from U and the transpose of dY.
struct AcrossDepth {
  static constexpr bool PREFETCHES_B = false, ALONG_DEPTH = false;
  PanelColumns a;
  PanelRows b;
  int n0, begin, end, capacity;

  __device__ __forceinline__ int steps() const { return (end - begin) / DEPTH; }
  __device__ __forceinline__ const float* of_b(int step) const { return b.piece(n0, begin / DEPTH + step); }
  __device__ __forceinline__ long long residuals_of_b() const { return static_cast<long long>(capacity) * b.rows; }
  __device__ __forceinline__ void fetch_a(float* tile, int step, unsigned long long* full) const {
    const int number = threadIdx.x % 32;
    if (number >= a.pieces()) return;
    tma_copy(tile + number * a.FLOATS, a.piece(begin + step * DEPTH, number), a.FLOATS * int(sizeof(float)), full);
  }
};

// ---- product ----

// Fill the ring; the ninth warp calls. The first stages of weights are fetched before the previous kernel has ended.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void fetch(const Operands& from, Barriers& barriers, bool waits) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(),
            early = Operands::PREFETCHES_B ? min(stages, steps) : 0;
  const bool is_one = threadIdx.x % 32 == 0;
  const auto fetch_b = [&](int stage, int step) {
    unsigned long long* full = &barriers.full[stage];
    expect_bytes(full, from.a.bytes() + (PRODUCTS == 3 ? 2 : 1) * from.b.bytes());
    if (from.b.existing == 0) return;
    float* tile = ring() + stage * STAGE + A_FLOATS;
    tma_copy(tile, from.of_b(step), from.b.bytes(), full);
    if (PRODUCTS == 3) tma_copy(tile + B_FLOATS, from.of_b(step) + from.residuals_of_b(), from.b.bytes(), full);
  };
  for (int step = 0; is_one && step < early; ++step) fetch_b(step, step);
  if (waits) wait_for_previous();
  let_next_start();
  RingPosition turn;
  for (int step = 0; step < steps; ++step) {
    if (step >= stages) wait_barrier(&barriers.empty[turn.stage], turn.phase ^ 1);
    if (is_one && step >= early) fetch_b(turn.stage, step);
    __syncwarp();  // the barrier expects the bytes before they arrive
    from.fetch_a(ring() + turn.stage * STAGE, step, &barriers.full[turn.stage]);
    turn.next(stages);
  }
}

// Four warps multiply 64 rows. They release a stage once the next one is in the tensor cores.
template <int STAGE, class Operands>
__device__ __forceinline__ void multiply_warpgroups(Accumulators& sum, const Operands& from, Barriers& barriers) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), group = warp_number() / 4;
  RingPosition turn;
  unsigned long long* read = nullptr;
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const float* stage = ring() + turn.stage * STAGE;
    const unsigned long long a = wgmma_descriptor(stage + group * 64 * PANEL), b = wgmma_descriptor(stage + A_FLOATS);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) wgmma_tf32(sum, a + 2 * slice, b + 2 * slice);
    wgmma_commit();
    wgmma_wait<1>();
    if (read != nullptr) arrive(read);
    read = &barriers.empty[turn.stage];
    turn.next(stages);
  }
  wgmma_wait<0>();
}

// The same in 3xTF32. A of the next stage is split in registers while this one is multiplied. wgmma reads the upper 11 bits
// of B as stored; the residuals follow it.
template <int STAGE, class Operands>
__device__ __forceinline__ void multiply_warpgroups_3xtf32(Accumulators& sum, const Operands& from,
                                                           Barriers& barriers) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), lane = threadIdx.x % 32, warp = warp_number();
  using Stage = Fragment<3, 4>[DEPTH / 8];
  Stage even, odd;
  Accumulators part = {};
  RingPosition turn;
  const auto split = [&](Stage& a) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const float* row = ring() + turn.stage * STAGE + (warp * 16 + lane % 16) * PANEL;
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
      float values[4];
      ldmatrix_x4(values, row + (2 * slice + lane / 16 ^ lane % 8) * 4);
      a[slice].split(values);
    }
  };
  const auto multiply = [&](int step, Stage& now, Stage& next) {
    const float* stage = ring() + turn.stage * STAGE;
    const unsigned long long large = wgmma_descriptor(stage + A_FLOATS),
                             small = wgmma_descriptor(stage + A_FLOATS + B_FLOATS);
    unsigned long long* empty = &barriers.empty[turn.stage];
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
      if (slice == 0) {
        wgmma_tf32<false>(part, now[slice].small, large);
      } else {
        wgmma_tf32<true>(part, now[slice].small, large + 2 * slice);
      }
      wgmma_tf32<true>(part, now[slice].large, small + 2 * slice);
      wgmma_tf32<true>(part, now[slice].large, large + 2 * slice);
    }
    wgmma_commit();
    turn.next(stages);
    if (step + 1 < steps) split(next);
    wgmma_wait<0>();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) now[slice].hold();
    arrive(empty);
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] += part[i];
  };
  if (steps > 0) split(even);
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {
    multiply(step, even, odd);
    if (step + 1 < steps) multiply(step + 1, odd, even);
  }
}

// A across the depth: four warps compute 128 rows of 32 columns; a lane loads four neighbouring rows of C, for two tiles.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void multiply_warpgroups_transposed(Accumulators& sum, const Operands& from,
                                                               Barriers& barriers, const Place& at) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), warp = warp_number() % 4, group = warp_number() / 4;
  RingPosition turn;
  float part[2][16] = {};
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const float* stage = ring() + turn.stage * STAGE;
    Fragment<PRODUCTS, 4> a[DEPTH / 8][2];
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
      float values[2][4];
#pragma unroll
      for (int late = 0; late < 2; ++late) {
        const float4 v = load_chunk(stage + warp * DEPTH * PANEL, at, 8 * slice + at.t + 4 * late);
        values[0][2 * late] = v.x, values[0][2 * late + 1] = v.y;
        values[1][2 * late] = v.z, values[1][2 * late + 1] = v.w;
      }
      a[slice][0].split(values[0]);
      a[slice][1].split(values[1]);
    }
    const float* b = stage + A_FLOATS + group * 32 * PANEL;
    const unsigned long long large = wgmma_descriptor(b), small = wgmma_descriptor(b + B_FLOATS);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if constexpr (PRODUCTS == 3) {
          if (slice == 0) {
            wgmma_tf32<false>(part[u], a[slice][u].small, large);
          } else {
            wgmma_tf32<true>(part[u], a[slice][u].small, large + 2 * slice);
          }
          wgmma_tf32<true>(part[u], a[slice][u].large, small + 2 * slice);
        }
        wgmma_tf32<true>(part[u], a[slice][u].large, large + 2 * slice);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) a[slice][0].hold(), a[slice][1].hold();
    arrive(&barriers.empty[turn.stage]);
    if constexpr (PRODUCTS == 3) {
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[i] += part[i / 16][i % 16];
    }
    turn.next(stages);
  }
  if constexpr (PRODUCTS == 1) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] = part[i / 16][i % 16];
  }
}

// ---- the tile ----

// A thread's share of the product: 32 rows from first_row() on, of one column. Threads below COMPUTE_THREADS have one.
struct OwnValues {
  float value[OWN_ROWS];

  __device__ __forceinline__ static int first_row() { return threadIdx.x / BN * OWN_ROWS; }
  __device__ __forceinline__ static int column() { return threadIdx.x % BN; }

  __device__ __forceinline__ static void put(const Accumulators& sum, const Place& at) {
    float* tile = ring() + (threadIdx.x / 32 * 16 + at.g) * TILE_LD + 2 * at.t;
#pragma unroll
    for (int v = 0; v < 32; v += 2)
      *reinterpret_cast<float2*>(tile + v % 4 / 2 * 8 * TILE_LD + v / 4 * 8) = make_float2(sum[v], sum[v + 1]);
  }

  __device__ __forceinline__ static void put_transposed(const Accumulators& sum, const Place& at) {
    const int warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
    float* tile = ring() + (warp * 32 + 4 * chunk_of(at.g)) * TILE_LD + group * 32 + 2 * at.t;
#pragma unroll
    for (int v = 0; v < 32; v += 2)
      *reinterpret_cast<float2*>(tile + (v / 16 * 2 + v % 4 / 2) * TILE_LD + v % 16 / 4 * 8) =
          make_float2(sum[v], sum[v + 1]);
  }

  __device__ __forceinline__ void take() {
    const float* tile = ring() + first_row() * TILE_LD + column();
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) value[r] = tile[r * TILE_LD];
  }

  // Store to rows m0 … of C (rows, columns), columns from n0 on.
  __device__ __forceinline__ void store(float* c, int m0, int n0, int rows, int columns) const {
    const int m = m0 + first_row(), n = n0 + column();
    if (n >= columns) return;
    float* to = c + static_cast<long long>(m) * columns + n;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r, to += columns)
      if (m + r < rows) *to = value[r];
  }
};

// Shared memory after that tile.
__device__ __forceinline__ float* epilogue_scratch() { return ring() + BM * TILE_LD; }

// The product; every thread must call. It lets the next kernel start. If `waits`, it waits for the previous one; else it must
// read nothing of that kernel, and the caller waits before it ends.
//   prefetch_epilogue()   loads for the epilogue, issued when the sums are stored
template <int PRODUCTS, class Operands, class ReadAhead>
__device__ __forceinline__ void multiply(OwnValues& own, const Operands& from, bool waits,
                                         ReadAhead prefetch_epilogue) {
  constexpr int STAGE = A_FLOATS + (PRODUCTS == 3 ? 2 : 1) * B_FLOATS;
  const Place at;
  const bool multiplies = warp_number() < COMPUTE_THREADS / 32;
  Accumulators sum = {};
  __shared__ Barriers barriers;
  if (threadIdx.x < MAX_STAGES) {
    init_barrier(&barriers.full[threadIdx.x], 1);
    init_barrier(&barriers.empty[threadIdx.x], COMPUTE_THREADS);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  if (!multiplies) {
    fetch<PRODUCTS, STAGE>(from, barriers, waits);
  } else {
    if (waits) wait_for_previous();
    let_next_start();
    if constexpr (!Operands::ALONG_DEPTH) {
      multiply_warpgroups_transposed<PRODUCTS, STAGE>(sum, from, barriers, at);
    } else if constexpr (PRODUCTS == 1) {
      multiply_warpgroups<STAGE>(sum, from, barriers);
    } else {
      multiply_warpgroups_3xtf32<STAGE>(sum, from, barriers);
    }
  }
  __syncthreads();  // the ring is read
  if (multiplies) {
    if constexpr (Operands::ALONG_DEPTH) {
      own.put(sum, at);
    } else {
      own.put_transposed(sum, at);
    }
    asm volatile("" ::: "memory");  // not earlier: the sums still need the registers
    prefetch_epilogue();
  }
  __syncthreads();
  if (multiplies) own.take();
}

}  // namespace fused
