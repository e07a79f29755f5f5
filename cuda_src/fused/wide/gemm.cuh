// The wide products of the fused backend: tiles of C = A B on the tensor cores (fused/wide/layers.cu has the kernels).
//
// Panels. What the products read lies in memory as panels of 32 columns: element (i, k) of a matrix is in panel k / 32,
// which holds the matrix's rows, 128 bytes each, chunk (k % 32) / 4 of row i at chunk ^ (i % 8). So what a stage takes
// of a matrix is one piece of memory, or a few, that is copied as it is; it conflicts in shared memory neither when read
// along rows nor across them, and tensor cores read it there themselves. These panels are
//
//   U (N, K)             rows N ... N rounded up to 32 and columns up to whole panels are 0; of `capacity` rows
//   V (N, C P)           every channel begins with a panel and is filled up with 0; of `capacity` rows
//   dYᵀ (P, N)           columns N ... N rounded up to 32 are 0
//   W'ᵀ (P, C F + C)     the weights forward, filled up with 0
//   W (F, C P)           the weights backward, as V
//
// `capacity`, the most rows that a batch may have, rounded up to 128, is the same for all.
//
// Of what the tensor cores read as B (W', W and dYᵀ) there are, for 3xTF32, as many panels once more behind: the rests
// that TF32 cuts off.
//
// Warps. A block computes BM x BN = 128 x 64 values of C. Eight warps multiply, a ninth fetches: the depth comes in
// stages of 32 through a ring in shared memory, which the ninth fills with bulk copies; barriers in shared memory tell
// when a stage is full and when it is empty. Along the depth four warps take 64 x 64 by wgmma; both operands from shared
// memory, or, in 3xTF32, A from registers. Across it (Uᵀ) four warps take 128 x 32, A from registers: wgmma transposes
// no 32-bit numbers.
//
// Then sums go through shared memory once more, so that a thread owns 32 rows of one column: what is done by columns,
// batch norm above all, happens in one thread, and rows are written in whole lines.
//
// Precision. Operands are rounded to TF32 (11 bits) by whoever writes the panels, or split in two such parts whose three
// larger products are summed ("3xTF32", 22 bits; Ootomo, Yokota: "Recovering single precision accuracy from tensor
// cores", IJHPCA 2022). Tensor cores cut sums off instead of rounding them; the second way therefore sums no more than a
// stage on them, and the stages in ordinary float32.
//
// Requires: sm_90a; for other architectures the products are empty.

#pragma once

#include "fused/shared/async_copy.cuh"

namespace fused {

constexpr int BM = 128, BN = 64, DEPTH = 32, COMPUTE_THREADS = 256, GEMM_THREADS = 288;
constexpr int A_FLOATS = BM * DEPTH, B_FLOATS = BN * DEPTH;
constexpr int MAX_STAGES = 8;
constexpr int OWN_ROWS = 32;     // of one column, in a thread
constexpr int TILE_LD = BN + 8;  // floats from row to row of a tile in shared memory

// Row k of W' (P floats): W is (F, C P), the bias (C P,). Null for the rows that only round up K.
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

// Of a ring of stages.
struct Barriers {
  unsigned long long full[MAX_STAGES], empty[MAX_STAGES];
};

// ---- operands ----

// Rows of panels, the depth along the panels; `existing` of a piece are there. A piece of A is BM rows, of B BN.
struct PanelRows {
  const float* panels;
  int rows, existing;  // of a panel, of the piece

  __device__ __forceinline__ int bytes() const { return existing * PANEL * int(sizeof(float)); }
  // The piece that begins with row i of panel k.
  __device__ __forceinline__ const float* piece(int i, int k) const {
    return panels + (static_cast<long long>(k) * rows + i) * PANEL;
  }
};

// BM columns from w0 of panels, the depth along the rows: pieces of 32 columns.
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

// Four 8 x 4 matrices; a lane brings the address of one row of them and gets an element of each.
__device__ __forceinline__ void ldmatrix_x4(float* to, const float* row) {
  unsigned bits[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(shared_address(row))
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(bits[i]);
}

// Where a lane stands in a fragment.
struct Place {
  int lane, g, t;
  __device__ Place() { lane = threadIdx.x % 32, g = lane / 4, t = lane % 4; }
};

// Lanes that read a piece of PanelColumns take its chunks in this order, so that eight that read together, of two
// chunks and four rows, meet different banks.
__device__ __forceinline__ int chunk_of(int g) { return g / 2 + g % 2 * 4; }

__device__ __forceinline__ float4 load_chunk(const float* piece, const Place& at, int k) {
  return *reinterpret_cast<const float4*>(piece + k * PANEL + (chunk_of(at.g) ^ k % 8) * 4);
}

// Of each product, how a stage is fetched.

// A and B along the depth: Y = U W', from U and the transpose of W'; dZ = V Wᵀ, from V and W.
struct AlongDepth {
  static constexpr bool PREFETCHES_B = true, ALONG_DEPTH = true;
  PanelRows a, b;
  int m0, n0, depth;

  __device__ __forceinline__ int steps() const { return ceil_div(depth, DEPTH); }
  __device__ __forceinline__ const float* of_b(int step) const { return b.piece(n0, step); }
  __device__ __forceinline__ long long residuals_of_b() const { return static_cast<long long>(steps()) * b.rows * PANEL; }
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

// A fragment as the tensor cores take it: rounded, or in two parts.
template <int PRODUCTS, int COUNT>
struct Fragment {
  unsigned large[COUNT], small[PRODUCTS == 3 ? COUNT : 1];

  __device__ __forceinline__ void split(const float* values) {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) {
      large[v] = __float_as_uint(values[v]);  // for one product it was rounded by who wrote it
      if constexpr (PRODUCTS == 3) {
        large[v] = to_tf32(values[v]);
        small[v] = to_tf32(values[v] - __uint_as_float(large[v]));
      }
    }
  }

  // Called when the tensor cores are done: no register is given to anything else before.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) {
      asm volatile("" : "+r"(large[v])::"memory");
      if constexpr (PRODUCTS == 3) asm volatile("" : "+r"(small[v])::"memory");
    }
  }
};

// The ninth warp fills the ring; weights are older than the kernel before, and their first stages come early.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void fetch(const Operands& from, Barriers& barriers, bool waits) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), early = Operands::PREFETCHES_B ? min(stages, steps) : 0;
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
    __syncwarp();  // the barrier expects what comes
    from.fetch_a(ring() + turn.stage * STAGE, step, &barriers.full[turn.stage]);
    turn.next(stages);
  }
}

using Accumulators = float[32];  // of 64 x 64 values, in a thread

// What the tensor cores are told of a piece of PanelRows: its address, 1024 bytes from 8 rows to the next 8, and that its
// chunks are permuted as they are.
__device__ __forceinline__ unsigned long long descriptor(const float* piece) {
  return (shared_address(piece) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// sum (64, 64) += a (64, 8) bᵀ (8, 64), asynchronously.
__device__ __forceinline__ void wgmma_tf32(Accumulators& d, unsigned long long a, unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31}, %32, %33, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
#endif
}

// The same with a in registers, laid out as for `multiply_fragments`; without ADD sum = a bᵀ.
template <bool ADD>
__device__ __forceinline__ void wgmma_tf32(Accumulators& d, const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31}, {%32,%33,%34,%35}, %36, %37, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
#endif
}

// The same for 32 columns.
template <bool ADD>
__device__ __forceinline__ void wgmma_tf32(float (&d)[16], const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, %21, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
#endif
}

// Four warps take 64 rows; a stage is given back when the next one is under way.
template <int STAGE, class Operands>
__device__ __forceinline__ void multiply_warpgroups(Accumulators& sum, const Operands& from, Barriers& barriers) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), group = warp_number() / 4;
  RingPosition turn;
  unsigned long long* read = nullptr;
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const float* stage = ring() + turn.stage * STAGE;
    const unsigned long long a = descriptor(stage + group * 64 * PANEL), b = descriptor(stage + A_FLOATS);
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

// The same with three products. A is split in registers, that of the next stage while this one is multiplied. Of B the
// tensor cores take the upper 11 bits as it is; the rests lie behind it.
template <int STAGE, class Operands>
__device__ __forceinline__ void multiply_warpgroups_3xtf32(Accumulators& sum, const Operands& from, Barriers& barriers) {
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
    const unsigned long long large = descriptor(stage + A_FLOATS), small = descriptor(stage + A_FLOATS + B_FLOATS);
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

// A across the depth: a warp takes all of 32 rows, four neighbours of the width in two tiles, four warps 128 rows of 32
// columns.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void multiply_warpgroups_transposed(Accumulators& sum, const Operands& from, Barriers& barriers,
                                                          const Place& at) {
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
    const unsigned long long large = descriptor(b), small = descriptor(b + B_FLOATS);
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

// What a thread owns of the product: 32 rows from first_row() on, of one column; `value` of the threads below
// MULTIPLYING. Sums come here through shared memory.
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

  // Rows m0 ... of C (rows, columns) from column n0 on.
  __device__ __forceinline__ void store(float* c, int m0, int n0, int rows, int columns) const {
    const int m = m0 + first_row(), n = n0 + column();
    if (n >= columns) return;
    float* to = c + static_cast<long long>(m) * columns + n;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r, to += columns)
      if (m + r < rows) *to = value[r];
  }
};

// The floats of shared memory behind that tile.
__device__ __forceinline__ float* epilogue_scratch() { return ring() + BM * TILE_LD; }

// The product; every thread must call. Lets the next kernel start, and waits for the one before if `waits`: else all
// that is read must be older, and the caller waits before it ends.
//   read_ahead()   what the epilogue wants, asked for when the sums are put down
template <int PRODUCTS, class Operands, class ReadAhead>
__device__ __forceinline__ void multiply(OwnValues& own, const Operands& from, bool waits, ReadAhead prefetch_epilogue) {
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
    asm volatile("" ::: "memory");  // not earlier: the sums still take their registers
    prefetch_epilogue();
  }
  __syncthreads();
  if (multiplies) own.take();
}

}  // namespace fused
