// The wide products of the fused backend: tiles of C = A B on the tensor cores (fused_wide.cu has the kernels).
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
// Warps. A block computes BM x BN = 128 x 64 values of C. Eight warps multiply, a ninth fetches: the depth comes in
// stages of 32 through a ring in shared memory, which the ninth fills with bulk copies; barriers in shared memory tell
// when a stage is full and when it is empty (sm_90 on; elsewhere the eight copy for themselves). How the eight multiply:
//
//   sm_90a, along the depth    four warps take 64 x 64 by wgmma; both operands from shared memory, or, in 3xTF32, A from
//                              registers
//   sm_90a, across (Uᵀ)        four warps take 128 x 32 by wgmma, A from registers: wgmma transposes no 32-bit numbers
//   elsewhere                  two teams of four; both hold the whole tile, a warp 64 x 32 of it, and take half of every
//                              stage's depth: large tiles read little, and one team hides the other's latency
//
// Then sums go through shared memory once more, so that a thread owns 32 rows of one column: what is done by columns,
// batch norm above all, happens in one thread, and rows are written in whole lines.
//
// Precision. Operands are rounded to TF32 (11 bits) by whoever writes the panels, or split in two such parts whose three
// larger products are summed ("3xTF32", 22 bits; Ootomo, Yokota: "Recovering single precision accuracy from tensor
// cores", IJHPCA 2022). Tensor cores cut sums off instead of rounding them; the second way therefore sums no more than a
// stage on them, and the stages in ordinary float32.

#pragma once

#include "fused.cuh"
#include "matmul_tile.cuh"

namespace fused {

constexpr int BM = 128, BN = 64, DEPTH = 32, MULTIPLYING = 256, GEMM_THREADS = 288;
constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32, TILES_M = WARP_ROWS / 16, TILES_N = WARP_COLUMNS / 8;
constexpr int A_FLOATS = BM * DEPTH, B_FLOATS = BN * DEPTH;
constexpr int MAX_STAGES = 8;
constexpr int OWN_ROWS = 32;     // of one column, in a thread
constexpr int TILE_LD = BN + 8;  // floats from row to row of a tile in shared memory

// Let the next kernel start beside this one (`wait_for_previous` in fused.cuh).
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Row k of W' (P floats): W is (F, C P), the bias (C P,). Null for the rows that only round up K.
__device__ __forceinline__ const float* weight_row(const float* weight, const float* bias, int k, int F, int C, int P) {
  if (k < F * C) return weight + static_cast<long long>(k % F) * C * P + k / F * P;
  return bias != nullptr && k < F * C + C ? bias + (k - F * C) * P : nullptr;
}

// max(x, 0) as NumPy takes it: NaN passes.
__device__ __forceinline__ float positive(float x) { return x <= 0.f ? 0.f : x; }

__device__ __forceinline__ float* ring() {
  extern __shared__ __align__(1024) float shared[];
  return shared;
}

__device__ __forceinline__ int stages_of_ring(int stage_floats) {
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return min(static_cast<int>(bytes / sizeof(float)) / stage_floats, MAX_STAGES);
}

__device__ __forceinline__ unsigned shared_address(const void* data) {
  return static_cast<unsigned>(__cvta_generic_to_shared(data));
}

// ---- bulk copies and their barriers ----

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool HAS_BULK = true;
#else
constexpr bool HAS_BULK = false;
#endif

struct Barriers {
  unsigned long long full[MAX_STAGES], empty[MAX_STAGES];
};

__device__ __forceinline__ void init_barrier(unsigned long long* barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

__device__ __forceinline__ void wait_barrier(unsigned long long* barrier, int phase) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p;\n"
      "again_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again_%=; }" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
#endif
}

__device__ __forceinline__ void expect_bytes(unsigned long long* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void arrive(unsigned long long* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

__device__ __forceinline__ void bulk_copy(float* to, const float* from, int bytes, unsigned long long* full) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(full))
               : "memory");
#endif
}

// ---- copies by threads ----

// `chunks` of 16 bytes that follow each other.
__device__ __forceinline__ void copy_piece(float* to, const float* from, int chunks) {
  for (int chunk = threadIdx.x; chunk < chunks; chunk += MULTIPLYING)
    copy_async<4>(to + 4 * chunk, from + 4 * chunk, 4);
}

// ---- operands ----

// Rows of panels, the depth along the panels; `existing` of a piece are there.
struct PanelRows {
  const float* panels;
  int rows, existing;  // of a panel, of the piece

  __device__ __forceinline__ int bytes() const { return existing * PANEL * int(sizeof(float)); }
  // The piece that begins with row i of panel k.
  __device__ __forceinline__ const float* piece(int i, int k) const {
    return panels + (static_cast<long long>(k) * rows + i) * PANEL;
  }
  __device__ __forceinline__ void bulk(float* tile, const float* from, unsigned long long* full) const {
    if (threadIdx.x % 32 == 0 && existing > 0) bulk_copy(tile, from, bytes(), full);
  }
  __device__ __forceinline__ void copy(float* tile, const float* from) const {
    copy_piece(tile, from, existing * PANEL / 4);
  }
};

// WIDTH columns from w0 of panels, the depth along the rows: WIDTH / 32 pieces of 32 rows.
template <int WIDTH>
struct PanelColumns {
  static constexpr int PIECES = WIDTH / PANEL, FLOATS = DEPTH * PANEL;
  const float* panels;
  int rows, w0, columns;

  __device__ __forceinline__ const float* piece(int k0, int number) const {
    return panels + (static_cast<long long>(w0 / PANEL + number) * rows + k0) * PANEL;
  }
  __device__ __forceinline__ int pieces() const { return min(max(ceil_div(columns - w0, PANEL), 0), PIECES); }
  __device__ __forceinline__ int bytes() const { return pieces() * FLOATS * int(sizeof(float)); }
  __device__ __forceinline__ void bulk(float* tile, int k0, unsigned long long* full) const {
    const int number = threadIdx.x % 32;
    if (number < pieces()) bulk_copy(tile + number * FLOATS, piece(k0, number), FLOATS * int(sizeof(float)), full);
  }
  __device__ __forceinline__ void copy(float* tile, int k0) const {
    for (int number = 0; number < pieces(); ++number)
      copy_piece(tile + number * FLOATS, piece(k0, number), DEPTH * PANEL / 4);
  }
};

// ---- fragments ----

// Four 8 x 4 matrices; a lane brings the address of one row of them and gets an element of each.
__device__ __forceinline__ void load_matrices(float* to, const float* row) {
  unsigned bits[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(shared_address(row))
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(bits[i]);
}

// The number of the warp in the block; the compiler sees that it is the same in all lanes.
__device__ __forceinline__ int warp_number() { return __shfl_sync(FULL_WARP, static_cast<int>(threadIdx.x) / 32, 0); }

// Where a warp and a lane stand in the tile.
struct Place {
  int lane, g, t, team, wm, wn;
  __device__ Place() {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    team = warp / 4 % 2, wm = warp / 2 % 2, wn = warp % 2;
  }
};

// Lanes that read a piece of PanelColumns take its chunks in this order, so that eight that read together, of two
// chunks and four rows, meet different banks.
__device__ __forceinline__ int chunk_of(int g) { return g / 2 + g % 2 * 4; }

// The fragments of A and B for a depth of 8.
struct Fragments {
  float a[TILES_M][4], b[TILES_N][2];
};

// A from a piece of PanelRows.
__device__ __forceinline__ void load_a_rows(Fragments& to, const float* tile, const Place& at, int slice) {
  const float* row = tile + (at.wm * WARP_ROWS + at.lane % 16) * PANEL + (2 * slice + at.lane / 16 ^ at.lane % 8) * 4;
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) load_matrices(to.a[i], row + 16 * i * PANEL);
}

__device__ __forceinline__ float4 load_chunk(const float* piece, const Place& at, int k) {
  return *reinterpret_cast<const float4*>(piece + k * PANEL + (chunk_of(at.g) ^ k % 8) * 4);
}

// A from pieces of PanelColumns: 4 neighbours of the width for 2 tiles.
__device__ __forceinline__ void load_a_columns(Fragments& to, const float* tile, const Place& at, int slice) {
#pragma unroll
  for (int i = 0; i < TILES_M; i += 2) {
#pragma unroll
    for (int late = 0; late < 2; ++late) {
      const float4 v = load_chunk(tile + (2 * at.wm + i / 2) * DEPTH * PANEL, at, 8 * slice + at.t + 4 * late);
      to.a[i][2 * late] = v.x, to.a[i][2 * late + 1] = v.y, to.a[i + 1][2 * late] = v.z,
                  to.a[i + 1][2 * late + 1] = v.w;
    }
  }
}

// B from a piece of PanelRows. Lane group r of tile j stands for row 4 r + (j + r / 2) % 4 of the warp's 32: eight rows
// without a conflict, and a lane ends with four neighbours, turned by t.
__device__ __forceinline__ void load_b_rows(Fragments& to, const float* tile, const Place& at, int slice) {
  const int r = at.lane % 8, half = at.lane / 8 % 2;
#pragma unroll
  for (int j = 0; j < TILES_N; j += 2) {
    const int row = at.wn * WARP_COLUMNS + 4 * r + (j + at.lane / 16 + r / 2) % 4;
    load_matrices(to.b[j], tile + row * PANEL + (2 * slice + half ^ row % 8) * 4);
  }
}

// Of each product, how a stage is fetched, how fragments are read, and where the sums of a lane are: sum j of fragment
// row `row`, half `half`, is in column `column` of the warp's 32.

// A and B along the depth: Y = U W', from U and the transpose of W'; dZ = V Wᵀ, from V and W.
struct AlongDepth {
  static constexpr bool B_IS_OLDER = true, MAY_BE_EMPTY = false, DEEP = true;
  PanelRows a;
  PanelRows b;
  int m0, n0, end;

  __device__ __forceinline__ int depth() const { return end; }
  __device__ __forceinline__ int steps() const { return ceil_div(end, DEPTH); }
  __device__ __forceinline__ const float* of_a(int step) const { return a.piece(m0, step); }
  __device__ __forceinline__ const float* of_b(int step) const { return b.piece(n0, step); }
  __device__ __forceinline__ int tiles(const Place&) const { return TILES_M; }
  __device__ __forceinline__ void load(Fragments& to, const float* stage, const Place& at, int slice) const {
    load_b_rows(to, stage + A_FLOATS, at, slice);
    load_a_rows(to, stage, at, slice);
  }
  __device__ __forceinline__ static int row(const Place& at, int i, int late) { return 16 * i + 8 * late + at.g; }
  __device__ __forceinline__ static int column(const Place& at, int half, int j) {
    return 8 * at.t + 4 * half + (j + at.t) % 4;
  }
};

// A across the depth, B along it: dW' = Uᵀ dY, from U and the transpose of dY.
struct AcrossDepth {
  static constexpr bool B_IS_OLDER = false, MAY_BE_EMPTY = true, DEEP = false;
  PanelColumns<BM> a;
  PanelRows b;
  int n0, begin, end;

  __device__ __forceinline__ int depth() const { return end - begin; }
  __device__ __forceinline__ int steps() const { return (end - begin) / DEPTH; }
  __device__ __forceinline__ int of_a(int step) const { return begin + step * DEPTH; }
  __device__ __forceinline__ const float* of_b(int step) const { return b.piece(n0, begin / DEPTH + step); }
  __device__ __forceinline__ int tiles(const Place& at) const {
    return 2 * min(max(ceil_div(a.columns - a.w0 - at.wm * WARP_ROWS, 32), 0), 2);
  }
  __device__ __forceinline__ void load(Fragments& to, const float* stage, const Place& at, int slice) const {
    load_b_rows(to, stage + A_FLOATS, at, slice);
    load_a_columns(to, stage, at, slice);
  }
  __device__ __forceinline__ static int row(const Place& at, int i, int late) {
    return i / 2 * 32 + 4 * chunk_of(at.g) + i % 2 * 2 + late;
  }
  __device__ __forceinline__ static int column(const Place& at, int half, int j) {
    return AlongDepth::column(at, half, j);
  }
};

// ---- product ----

using Sums = float[TILES_M][TILES_N][4];

// A fragment as the tensor cores take it: rounded, or in two parts.
template <int PRODUCTS, int COUNT>
struct Parts {
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

// Add a depth of 8. Rows of tiles from `tiles` on are empty.
template <int PRODUCTS, bool MAY_BE_EMPTY>
__device__ __forceinline__ void add(Sums& sum, const Fragments& of, int tiles) {
  Parts<PRODUCTS, 2> b[TILES_N];
#pragma unroll
  for (int j = 0; j < TILES_N; ++j) b[j].split(of.b[j]);
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
    if (MAY_BE_EMPTY && i % 2 == 0 && i >= tiles) break;
    Parts<PRODUCTS, 4> a;
    a.split(of.a[i]);
    if constexpr (PRODUCTS == 1) {
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) multiply_fragments(sum[i][j], a.large, b[j].large);
    } else {
      float part[TILES_N][4] = {};  // the small ones first
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) multiply_fragments(part[j], a.small, b[j].large);
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) multiply_fragments(part[j], a.large, b[j].small);
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) multiply_fragments(part[j], a.large, b[j].large);
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sum[i][j][v] += part[j][v];
      }
    }
  }
}

// A place in the ring.
struct Turn {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// The ninth warp fills the ring; weights are older than the kernel before, and their first stages come early.
template <int STAGE, class Operands>
__device__ __forceinline__ void fetch(const Operands& from, Barriers& barriers, bool waits) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), early = Operands::B_IS_OLDER ? min(stages, steps) : 0;
  const auto expect = [&](int stage) {
    if (threadIdx.x % 32 == 0) expect_bytes(&barriers.full[stage], from.a.bytes() + from.b.bytes());
    __syncwarp();
  };
  for (int step = 0; step < early; ++step) {
    expect(step);
    from.b.bulk(ring() + step * STAGE + A_FLOATS, from.of_b(step), &barriers.full[step]);
  }
  if (waits) wait_for_previous();
  let_next_start();
  Turn turn;
  for (int step = 0; step < steps; ++step) {
    float* tile = ring() + turn.stage * STAGE;
    if (step >= stages) wait_barrier(&barriers.empty[turn.stage], turn.phase ^ 1);
    if (step >= early) expect(turn.stage);
    from.a.bulk(tile, from.of_a(step), &barriers.full[turn.stage]);
    if (step >= early) from.b.bulk(tile + A_FLOATS, from.of_b(step), &barriers.full[turn.stage]);
    turn.next(stages);
  }
}

// A team takes slices `team` and `team + 2` of the four of a stage; the other team's work hides its reading.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void multiply_fetched(Sums& sum, const Operands& from, Barriers& barriers, const Place& at) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), tiles = from.tiles(at);
  Turn turn;
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const int left = from.depth() - step * DEPTH;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slice = 2 * half + at.team;
      Fragments now;
      from.load(now, ring() + turn.stage * STAGE, at, slice);
      if (8 * slice < left) add<PRODUCTS, Operands::MAY_BE_EMPTY>(sum, now, tiles);
    }
    __syncwarp();
    if (at.lane == 0) arrive(&barriers.empty[turn.stage]);
    turn.next(stages);
  }
}

// Without bulk copies: every thread but the ninth warp's copies; all take part in the barriers.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void multiply_copied(Sums& sum, const Operands& from, const Place& at) {
  constexpr int STAGES = 3;
  const int steps = from.steps(), tiles = from.tiles(at);
  const bool copies = threadIdx.x < MULTIPLYING;
  const auto copy = [&](int step) {
    float* tile = ring() + step % STAGES * STAGE;
    if (copies && step < steps) {
      from.a.copy(tile, from.of_a(step));
      from.b.copy(tile + A_FLOATS, from.of_b(step));
    }
    commit_copies();  // empty groups too, so that the count of pending groups holds at the end
  };
  for (int step = 0; step < STAGES - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // this step's tiles are there; those of the step before are read and may be overwritten
    copy(step + STAGES - 1);
#pragma unroll 1
    for (int slice = at.team; slice < DEPTH / 8; slice += 2) {
      if (!copies || step * DEPTH + 8 * slice >= from.depth()) break;
      Fragments now;
      from.load(now, ring() + step % STAGES * STAGE, at, slice);
      add<PRODUCTS, Operands::MAY_BE_EMPTY>(sum, now, tiles);
    }
  }
  wait_for_copies<0>();
}

// ---- product of a warpgroup (sm_90a) ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool HAS_WARPGROUPS = true;
#else
constexpr bool HAS_WARPGROUPS = false;
#endif

using GroupSums = float[32];  // of 64 x 64 values, in a thread

// What the tensor cores are told of a piece of PanelRows: its address, 1024 bytes from 8 rows to the next 8, and that its
// chunks are permuted as they are.
__device__ __forceinline__ unsigned long long description(const float* piece) {
  return (shared_address(piece) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// sum (64, 64) += a (64, 8) bᵀ (8, 64), asynchronously.
__device__ __forceinline__ void multiply_group(GroupSums& d, unsigned long long a, unsigned long long b) {
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

// The same with a in registers, laid out as for `multiply_fragments`.
__device__ __forceinline__ void multiply_group(GroupSums& d, const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

// The same for 32 columns.
__device__ __forceinline__ void multiply_group(float (&d)[16], const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

__device__ __forceinline__ void begin_group() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void commit_group() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int PENDING>
__device__ __forceinline__ void wait_for_groups() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

// Four warps take 64 rows; a stage is given back when the next one is under way.
template <int STAGE, class Operands>
__device__ __forceinline__ void multiply_by_groups(GroupSums& sum, const Operands& from, Barriers& barriers) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), lane = threadIdx.x % 32, group = warp_number() / 4;
  Turn turn;
  unsigned long long* read = nullptr;
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const float* stage = ring() + turn.stage * STAGE;
    const unsigned long long a = description(stage + group * 64 * PANEL), b = description(stage + A_FLOATS);
    begin_group();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) multiply_group(sum, a + 2 * slice, b + 2 * slice);
    commit_group();
    wait_for_groups<1>();
    __syncwarp();
    if (read != nullptr && lane == 0) arrive(read);
    read = &barriers.empty[turn.stage];
    turn.next(stages);
  }
  wait_for_groups<0>();
}

// Behind a piece of B write what the tensor cores cut off of it, rounded; every thread that multiplies takes a share.
__device__ __forceinline__ void split_b(float* tile) {
  const float4* from = reinterpret_cast<const float4*>(tile) + threadIdx.x;
  float4* to = reinterpret_cast<float4*>(tile + B_FLOATS) + threadIdx.x;
  const auto rest = [](float x) {
    return __uint_as_float(to_tf32(x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)));
  };
#pragma unroll
  for (int i = 0; i < B_FLOATS / 4 / MULTIPLYING; ++i) {
    const float4 v = from[i * MULTIPLYING];
    to[i * MULTIPLYING] = make_float4(rest(v.x), rest(v.y), rest(v.z), rest(v.w));
  }
}

// What threads wrote to shared memory is there for the tensor cores.
__device__ __forceinline__ void publish() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  asm volatile("bar.sync 2, %0;" ::"n"(MULTIPLYING) : "memory");
}

// The same with three products. A is split in registers. Of B the tensor cores take the upper 11 bits as it is; what
// they cut off is written behind it, by all eight warps. The next stage is split while this one is multiplied.
template <int STAGE, class Operands>
__device__ __forceinline__ void multiply_split_by_groups(GroupSums& sum, const Operands& from, Barriers& barriers) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), lane = threadIdx.x % 32, warp = warp_number();
  Parts<3, 4> now[DEPTH / 8], next[DEPTH / 8];
  Turn turn;
  const auto split = [&](Parts<3, 4>(&a)[DEPTH / 8]) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    float* stage = ring() + turn.stage * STAGE;
    split_b(stage + A_FLOATS);
    const float* row = stage + (warp * 16 + lane % 16) * PANEL;
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
      float values[4];
      load_matrices(values, row + (2 * slice + lane / 16 ^ lane % 8) * 4);
      a[slice].split(values);
    }
    publish();
  };
  if (steps > 0) split(now);
  for (int step = 0; step < steps; ++step) {
    const float* stage = ring() + turn.stage * STAGE;
    const unsigned long long large = description(stage + A_FLOATS), small = description(stage + A_FLOATS + B_FLOATS);
    unsigned long long* empty = &barriers.empty[turn.stage];
    GroupSums part;
#pragma unroll
    for (int i = 0; i < 32; ++i) part[i] = 0.f;
    begin_group();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
      multiply_group(part, now[slice].small, large + 2 * slice);
      multiply_group(part, now[slice].large, small + 2 * slice);
      multiply_group(part, now[slice].large, large + 2 * slice);
    }
    commit_group();
    turn.next(stages);
    if (step + 1 < steps) split(next);
    wait_for_groups<0>();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) now[slice].hold();
    __syncwarp();
    if (lane == 0) arrive(empty);
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] += part[i];
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) now[slice] = next[slice];
  }
}

// A across the depth: a warp takes all of 32 rows, four neighbours of the width in two tiles, four warps 128 rows of 32
// columns.
template <int PRODUCTS, int STAGE, class Operands>
__device__ __forceinline__ void multiply_across_by_groups(GroupSums& sum, const Operands& from, Barriers& barriers,
                                                          const Place& at) {
  const int stages = stages_of_ring(STAGE), steps = from.steps(), warp = warp_number() % 4, group = warp_number() / 4;
  Turn turn;
  float part[2][16] = {};
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    float* stage = ring() + turn.stage * STAGE;
    if (PRODUCTS == 3) split_b(stage + A_FLOATS);
    Parts<PRODUCTS, 4> a[DEPTH / 8][2];
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
    if (PRODUCTS == 3) publish();
    const float* b = stage + A_FLOATS + group * 32 * PANEL;
    const unsigned long long large = description(b), small = description(b + B_FLOATS);
    begin_group();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if constexpr (PRODUCTS == 3) {
          multiply_group(part[u], a[slice][u].small, large + 2 * slice);
          multiply_group(part[u], a[slice][u].large, small + 2 * slice);
        }
        multiply_group(part[u], a[slice][u].large, large + 2 * slice);
      }
    }
    commit_group();
    wait_for_groups<0>();
#pragma unroll
    for (int slice = 0; slice < DEPTH / 8; ++slice) a[slice][0].hold(), a[slice][1].hold();
    __syncwarp();
    if (at.lane == 0) arrive(&barriers.empty[turn.stage]);
    if constexpr (PRODUCTS == 3) {
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[i] += part[i / 16][i % 16], part[i / 16][i % 16] = 0.f;
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
// MULTIPLYING. Sums come here through shared memory, where every team has its tile.
struct OwnValues {
  float value[OWN_ROWS];

  __device__ __forceinline__ static int first_row() { return threadIdx.x / BN * OWN_ROWS; }
  __device__ __forceinline__ static int column() { return threadIdx.x % BN; }

  template <class Operands>
  __device__ __forceinline__ static void put(const Sums& sum, const Place& at) {
    float* tile = ring() + at.team * BM * TILE_LD + at.wm * WARP_ROWS * TILE_LD + at.wn * WARP_COLUMNS;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
          tile[Operands::row(at, i, v / 2) * TILE_LD + Operands::column(at, v % 2, j)] = sum[i][j][v];
      }
    }
  }

  __device__ __forceinline__ static void put(const GroupSums& sum, const Place& at) {
    float* tile = ring() + (threadIdx.x / 32 * 16 + at.g) * TILE_LD + 2 * at.t;
#pragma unroll
    for (int v = 0; v < 32; v += 2)
      *reinterpret_cast<float2*>(tile + v % 4 / 2 * 8 * TILE_LD + v / 4 * 8) = make_float2(sum[v], sum[v + 1]);
  }

  __device__ __forceinline__ static void put_across(const GroupSums& sum, const Place& at) {
    const int warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
    float* tile = ring() + (warp * 32 + 4 * chunk_of(at.g)) * TILE_LD + group * 32 + 2 * at.t;
#pragma unroll
    for (int v = 0; v < 32; v += 2)
      *reinterpret_cast<float2*>(tile + (v / 16 * 2 + v % 4 / 2) * TILE_LD + v % 16 / 4 * 8) =
          make_float2(sum[v], sum[v + 1]);
  }

  __device__ __forceinline__ void take(int teams) {
    const float* tile = ring() + first_row() * TILE_LD + column();
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) value[r] = tile[r * TILE_LD];
    if (teams == 1) return;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) value[r] += tile[(BM + r) * TILE_LD];
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

// The floats of shared memory behind those tiles.
__device__ __forceinline__ float* behind_tiles() { return ring() + 2 * BM * TILE_LD; }

// The product; every thread must call. Lets the next kernel start, and waits for the one before if `waits`: else all
// that is read must be older, and the caller waits before it ends.
//   read_ahead()   what the epilogue wants, asked for when the sums are put down
template <int PRODUCTS, class Operands, class ReadAhead>
__device__ __forceinline__ void multiply(OwnValues& own, const Operands& from, bool waits, ReadAhead read_ahead) {
  constexpr bool BY_GROUPS = HAS_WARPGROUPS;
  constexpr int STAGE = A_FLOATS + (BY_GROUPS && PRODUCTS == 3 ? 2 : 1) * B_FLOATS;
  const Place at;
  const bool multiplies = warp_number() < MULTIPLYING / 32;
  Sums sum = {};
  GroupSums group_sum = {};
  if constexpr (HAS_BULK) {
    __shared__ Barriers barriers;
    if (threadIdx.x < MAX_STAGES) {
      init_barrier(&barriers.full[threadIdx.x], 1);
      init_barrier(&barriers.empty[threadIdx.x], MULTIPLYING / 32);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    if (!multiplies) {
      fetch<STAGE>(from, barriers, waits);
    } else {
      if (waits) wait_for_previous();
      let_next_start();
      if constexpr (BY_GROUPS && !Operands::DEEP) {
        multiply_across_by_groups<PRODUCTS, STAGE>(group_sum, from, barriers, at);
      } else if constexpr (BY_GROUPS && PRODUCTS == 1) {
        multiply_by_groups<STAGE>(group_sum, from, barriers);
      } else if constexpr (BY_GROUPS) {
        multiply_split_by_groups<STAGE>(group_sum, from, barriers);
      } else {
        multiply_fetched<PRODUCTS, STAGE>(sum, from, barriers, at);
      }
    }
    __syncwarp();
  } else {
    wait_for_previous();
    let_next_start();
    multiply_copied<PRODUCTS, STAGE>(sum, from, at);
  }
  __syncthreads();  // the ring is read
  if (multiplies) {
    if constexpr (BY_GROUPS && !Operands::DEEP) {
      own.put_across(group_sum, at);
    } else if constexpr (BY_GROUPS) {
      own.put(group_sum, at);
    } else {
      own.template put<Operands>(sum, at);
    }
    asm volatile("" ::: "memory");  // not earlier: the sums still take their registers
    read_ahead();
  }
  __syncthreads();
  if (multiplies) own.take(BY_GROUPS ? 1 : 2);
}

}  // namespace fused
