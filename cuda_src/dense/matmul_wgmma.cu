// MatMul of very many rows on Hopper's tensor cores: Y = X W, and its gradients dX = dY Wᵀ and dW = Xᵀ dY, with at most 128
// columns of Y, dX or dW. As dense/matmul.cu, in 3xTF32, which keeps float32's accuracy (an infinity becomes NaN).
//
// Source: own; Ootomo, Yokota: "Recovering single precision accuracy from tensor cores", IJHPCA 2022. A number is split into
//   two of TF32, and three of the four products are summed. Tensor cores truncate sums, so they sum 32 of the depth, and
//   these sums are added in float32.
// Strategy: four warps compute 64 rows of the product by wgmma; a block has two such groups. The operand with many rows goes
//   from global memory to registers, where wgmma reads it, stages of 32 of the depth ahead. The other one lies in shared
//   memory, split:
//     forward, dgrad   all of W, once for a block, which computes many tiles of 64 rows, one after the other
//     wgrad            32 rows of dY at a time, transposed, in two buffers; a block computes a part of the rows
// Order of the depth: lane t of a row holds columns t and t + 4 of 8 for wgmma. Where rows run along the depth it reads 16
//   bytes, columns 4 t ... 4 t + 3 of 16, and `slot` gives the depth of W the same order.
// Shared memory, dynamic: panels of 32 of the depth, 128 bytes for each column, in the 128-byte swizzle of wgmma; as many again
//   for the small numbers. forward and dgrad: 256 bytes x columns rounded up to 64 or 128 x panels, 128 KB for 128 x 128;
//   wgrad: 64 KB for 128 columns, 32 for 64.
// Launch: 256 threads; forward and dgrad a block for each multiprocessor, wgrad (ceil(F / 128), 1, parts).
// Bytes: reads X and dY once, dY for wgrad once for each 128 columns of X, and W once a block, from L2; writes Y, dX, or, of
//   each part, dW.
// Bank conflicts: none for wgmma and for dY; up to 4-way where W is laid out, once a block.
// Determinism: repeats to the bit; the sums of a row do not depend on other rows. Partial sums of dW as in dense/matmul.cu.
// Requires: sm_90a; for other architectures the kernels are empty. W fits in shared memory:
//   with 128 columns a depth of 1 to 192.

#include "common/copies.cuh"
#include "common/tensor_cores.cuh"
#include "dense/matmul.cuh"

constexpr int WGMMA_THREADS = 256, WGMMA_DEPTH = 32;
constexpr int GRADIENT_ROWS = 128;  // columns of X that a block of wgrad reads

namespace {

constexpr int GROUP_ROWS = 64, GROUPS = 2;
constexpr int SLICES = WGMMA_DEPTH / 8;  // of a stage; one wgmma multiplies a slice

__device__ __forceinline__ float* panels() {
  extern __shared__ __align__(1024) float shared[];
  return shared;
}

__device__ __forceinline__ int group() { return __shfl_sync(FULL_WARP, static_cast<int>(threadIdx.x) / 128, 0); }
__device__ __forceinline__ int warp_of_group() { return threadIdx.x / 32 % 4; }
__device__ __forceinline__ int lane_row() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_column() { return threadIdx.x % 4; }

// Let wgmma see what threads have written to shared memory; a barrier follows.
__device__ __forceinline__ void publish_to_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// How many floats are aligned at every row: 4, 2 or 1.
__device__ __forceinline__ int vector_of(const float* data, int ld) {
  const unsigned long long bytes = reinterpret_cast<unsigned long long>(data) | 4ull * ld;
  return bytes % 16 == 0 ? 4 : bytes % 8 == 0 ? 2 : 1;
}

// N consecutive floats, of which `left` exist; the others are 0. `vector` is as from `vector_of`.
template <int N>
__device__ __forceinline__ void load(float (&to)[N], const float* from, int left, int vector) {
  if (N == 4 && vector == 4 && left >= 4) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(from));
    to[0] = v.x, to[1] = v.y, to[N - 2] = v.z, to[N - 1] = v.w;
  } else if (vector >= 2 && left >= N) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 v = __ldg(reinterpret_cast<const float2*>(from + i));
      to[i] = v.x, to[i + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = i < left ? __ldg(from + i) : 0.f;
  }
}

// A stage of the operand in registers, split.
struct Fragments {
  Fragment<3, 4> slice[SLICES];
};

// Sums of 64 rows and COLUMNS columns, of four warps.
template <int COLUMNS>
struct Sums {
  static constexpr int SUMS = COLUMNS / 2, VECTOR = 2;

  float sum[SUMS] = {};

  __device__ static int row(int s) { return warp_of_group() * 16 + lane_row() + s % 4 / 2 * 8; }
  __device__ static int column(int s) { return s / 4 * 8 + lane_column() * 2 + s % 2; }

  // sum += a b of one stage, a in registers; `large` and `small` are wgmma's descriptors of b. `meanwhile` runs beside the
  // tensor cores.
  template <class Work>
  __device__ __forceinline__ void add_product(Fragments& a, unsigned long long large, unsigned long long small,
                                              Work meanwhile) {
    float part[SUMS];
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      if (slice == 0) {
        wgmma_tf32<false>(part, a.slice[slice].small, large);
      } else {
        wgmma_tf32<true>(part, a.slice[slice].small, large + 2 * slice);
      }
      wgmma_tf32<true>(part, a.slice[slice].large, small + 2 * slice);
      wgmma_tf32<true>(part, a.slice[slice].large, large + 2 * slice);
    }
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) a.slice[slice].hold();
#pragma unroll
    for (int s = 0; s < SUMS; ++s) asm volatile("" : "+f"(part[s])::"memory");  // read after the wait alone
#pragma unroll
    for (int s = 0; s < SUMS; ++s) sum[s] += part[s];
  }
};

// Place in a panel of element k of the depth, so that W's depth has the order of the other operand's in registers.
__device__ __forceinline__ int slot(int k) {
  const int of_lane = k % 4;
  return k % WGMMA_DEPTH / 16 * 16 + of_lane / 2 * 8 + k / 4 % 4 + of_lane % 2 * 4;
}

// ---- forward and dgrad: C (N, P) = A (N, K) B (K, P); B = W, or Wᵀ where DEEP ----

// An operand whose rows are loaded to registers.
struct Rows {
  const float* data;
  int ld, rows, depth;
};

// A stage of 64 rows: lane (g, t) has columns 16 c + 4 t … + 3 of rows g and g + 8 of its warp's 16.
struct RowStage {
  float value[2][2][4];  // [c][row][column]

  __device__ __forceinline__ void fetch(const Rows& from, int vector, int row0, int k0) {
    const int row = row0 + warp_of_group() * 16 + lane_row();
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int k = k0 + 16 * c + 4 * lane_column(), left = row + 8 * r < from.rows ? from.depth - k : 0;
        load(value[c][r], from.data + static_cast<long long>(row + 8 * r) * from.ld + k, left, vector);
      }
    }
  }

  __device__ __forceinline__ void split(Fragments& to) const {
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      const auto& [upper, lower] = value[slice / 2];
      const int first = slice % 2 * 2;
      const float values[4] = {upper[first], lower[first], upper[first + 1], lower[first + 1]};
      to.slice[slice].split(values);
    }
  }
};

// Lay out B in panels, `panel_floats` in all, filled up with zeros; as many behind them have what TF32 leaves.
template <bool DEEP>
__device__ void lay_out(float* to, int panel_floats, int columns, const float* w, int ldw, int K, int P) {
  const int deep = panel_floats / columns;
  for (int i = threadIdx.x; i < panel_floats; i += WGMMA_THREADS) {
    const int k = DEEP ? i % deep : i / columns, p = DEEP ? i / deep : i % columns;
    const float value = k < K && p < P ? w[DEEP ? p * ldw + k : k * ldw + p] : 0.f;
    const unsigned large = to_tf32(value);
    const int at = static_cast<int>(in_panel(p, k / WGMMA_DEPTH * WGMMA_DEPTH + slot(k), columns));
    to[at] = __uint_as_float(large);
    to[at + panel_floats] = __uint_as_float(to_tf32(value - __uint_as_float(large)));
  }
}

template <int COLUMNS, bool DEEP>
__device__ __forceinline__ void multiply_rows(const Rows& a, const float* w, int ldw, float* c, int ldc, int P,
                                              const float* bias, const Kept& kept) {
  if constexpr (!HAS_WARPGROUPS) return;
  constexpr int AHEAD = COLUMNS == 64 ? 4 : 2;
  const int tiles = ceil_div(a.rows, GROUP_ROWS), first = blockIdx.x * GROUPS + group(), step = gridDim.x * GROUPS;
  const int vector = vector_of(a.data, a.ld), stages = ceil_div(a.depth, WGMMA_DEPTH);
  const int panel_floats = stages * WGMMA_DEPTH * COLUMNS;
  RowStage ring[AHEAD];
  Fragments now, next;
  int ahead_tile = first, ahead_stage = 0;
  const auto fetch = [&](RowStage& to) {
    if (ahead_tile < tiles) to.fetch(a, vector, ahead_tile * GROUP_ROWS, ahead_stage * WGMMA_DEPTH);
    if (++ahead_stage == stages) ahead_stage = 0, ahead_tile += step;
  };
  fetch(ring[AHEAD - 1]);
  lay_out<DEEP>(panels(), panel_floats, COLUMNS, w, ldw, a.depth, P);
  publish_to_wgmma();
  __syncthreads();
  ring[AHEAD - 1].split(now);
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) fetch(ring[i]);
  const unsigned long long large = wgmma_descriptor(panels()), small = wgmma_descriptor(panels() + panel_floats);
  constexpr unsigned PANEL_STEP = COLUMNS * WGMMA_DEPTH * sizeof(float) / 16;  // in descriptors
  Sums<COLUMNS> tile;
  int stage = 0, number = first;
  const auto multiply = [&](RowStage& ahead, Fragments& these, Fragments& those) {
    if (number >= tiles) return;
    tile.add_product(these, large + stage * PANEL_STEP, small + stage * PANEL_STEP, [&] {
      ahead.split(those);
      fetch(ahead);
    });
    if (++stage < stages) return;
    store(tile, c, ldc, number * GROUP_ROWS, 0, a.rows, P, false, bias, kept);
    tile = {};
    stage = 0, number += step;
  };
  while (number < tiles) {
#pragma unroll
    for (int i = 0; i < AHEAD; i += 2) {
      multiply(ring[i], now, next);
      multiply(ring[i + 1], next, now);
    }
  }
}

template <int COLUMNS>
__device__ __forceinline__ void forward(const Forward& product) {
  const auto& [y, x, w, bias, ldy, ldx, ldw, N, F, P] = product;
  multiply_rows<COLUMNS, false>({x, ldx, N, F}, w, ldw, y, ldy, P, bias, {});
}

template <int COLUMNS>
__device__ __forceinline__ void dgrad(const Dgrad& product) {
  const auto& [dx, dy, w, kept, lddx, lddy, ldw, N, F, P] = product;
  multiply_rows<COLUMNS, true>({dy, lddy, N, P}, w, ldw, dx, lddx, F, nullptr, kept);
}

// ---- wgrad: a part of dW (F, P) = Xᵀ dY ----

// 32 rows of X: lane (g, t) has columns 2 g and 2 g + 1 of its warp's 16, of rows t and t + 4 of each slice.
struct ColumnStage {
  float value[SLICES][2][2];  // [slice][row][column]

  __device__ __forceinline__ void fetch(const float* x, int ldx, int vector, int n0, int end, int f, int F) {
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int n = n0 + 8 * slice + lane_column() + 4 * r;
        load(value[slice][r], x + static_cast<long long>(n) * ldx + f, n < end ? F - f : 0, vector);
      }
    }
  }

  __device__ __forceinline__ void split(Fragments& to) const {
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      const auto& [upper, lower] = value[slice];
      const float values[4] = {upper[0], upper[1], lower[0], lower[1]};
      to.slice[slice].split(values);
    }
  }
};

// 32 rows of dY: a thread has four rows of four columns, which it writes transposed.
struct TransposedStage {
  float value[4][4];  // [row][column]

  __device__ __forceinline__ void fetch(const float* dy, int lddy, int vector, int n0, int end, int P) {
    const int n = n0 + threadIdx.x / 32 * 4, p = threadIdx.x % 32 * 4;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      load(value[r], dy + static_cast<long long>(n + r) * lddy + p, n + r < end ? P - p : 0, vector);
  }

  // Eight lanes write to eight chunks of 16 bytes in different banks, because neighbouring pairs begin with other columns.
  template <int COLUMNS>
  __device__ __forceinline__ void write(float* to) {
    const int lane = threadIdx.x % 32, turn = lane / 2 % 4, chunk = threadIdx.x / 32;
    if (4 * lane >= COLUMNS) return;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float (&v)[4] = value[r];
      if (turn & 1) {
        const float first = v[0];
        v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = first;
      }
      if (turn & 2) {
        const float first = v[0], second = v[1];
        v[0] = v[2], v[1] = v[3], v[2] = first, v[3] = second;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = 4 * lane + (i + turn) % 4;
      const float values[4] = {value[0][i], value[1][i], value[2][i], value[3][i]};
      Fragment<3, 4> both;
      both.split(values);
      float* at = to + p * WGMMA_DEPTH + (chunk ^ p % 8) * 4;
      *reinterpret_cast<uint4*>(at) = make_uint4(both.large[0], both.large[1], both.large[2], both.large[3]);
      *reinterpret_cast<uint4*>(at + COLUMNS * WGMMA_DEPTH) =
          make_uint4(both.small[0], both.small[1], both.small[2], both.small[3]);
    }
  }
};

// Sums of 128 rows of dW, of a block; a lane has two neighbouring rows.
template <int COLUMNS>
struct GradientSums : Sums<COLUMNS> {
  static constexpr int THREADS = WGMMA_THREADS;

  __device__ static int row(int s) { return group() * GROUP_ROWS + warp_of_group() * 16 + 2 * lane_row() + s % 4 / 2; }
};

template <int COLUMNS>
__device__ __forceinline__ void wgrad(const Wgrad& product) {
  if constexpr (!HAS_WARPGROUPS) return;
  constexpr int BUFFER = 2 * COLUMNS * WGMMA_DEPTH, PREFETCHED = 6;
  const int N = product.N, F = product.F, ldx = product.ldx, lddy = product.lddy, P = product.P;
  const float *x = product.x, *dy = product.dy;
  const int f0 = blockIdx.x * GRADIENT_ROWS, begin = blockIdx.z * product.rows_per_part;
  const int end = begin + min(product.rows_per_part, N - begin);
  const int f = f0 + group() * GROUP_ROWS + warp_of_group() * 16 + 2 * lane_row();
  const int x_vector = vector_of(x, ldx), dy_vector = vector_of(dy, lddy);
  ColumnStage of_x;
  TransposedStage of_dy;
  Fragments now, next;
  const auto fetch = [&](int n0) {
    of_x.fetch(x, ldx, x_vector, n0, end, f, F);
    of_dy.fetch(dy, lddy, dy_vector, n0, end, P);
  };
  // A thread asks L2 for 128 bytes of a row of X or dY.
  const auto prefetch = [&](int n0) {
    const int n = n0 + threadIdx.x % 128 / 4, column = threadIdx.x % 4 * 32;
    if (n >= end) return;
    if (threadIdx.x < 128) {
      if (f0 + column < F) prefetch_to_l2(x + static_cast<long long>(n) * ldx + f0 + column);
    } else if (column < P) {
      prefetch_to_l2(dy + static_cast<long long>(n) * lddy + column);
    }
  };
#pragma unroll
  for (int i = 1; i < PREFETCHED; ++i) prefetch(begin + i * WGMMA_DEPTH);
  fetch(begin);
  of_x.split(now);
  of_dy.template write<COLUMNS>(panels());
  fetch(begin + WGMMA_DEPTH);
  GradientSums<COLUMNS> tile;
  const auto multiply = [&](int n0, const float* dy_now, float* dy_next, Fragments& these, Fragments& those) {
    if (n0 >= end) return;
    publish_to_wgmma();
    __syncthreads();  // this stage's dY is in shared memory; the stage before has been read and may be overwritten
    tile.add_product(these, wgmma_descriptor(dy_now), wgmma_descriptor(dy_now + COLUMNS * WGMMA_DEPTH), [&] {
      of_x.split(those);
      of_dy.template write<COLUMNS>(dy_next);
      fetch(n0 + 2 * WGMMA_DEPTH);
      prefetch(n0 + PREFETCHED * WGMMA_DEPTH);
    });
  };
  for (int n0 = begin; n0 < end; n0 += 2 * WGMMA_DEPTH) {
    multiply(n0, panels(), panels() + BUFFER, now, next);
    multiply(n0 + WGMMA_DEPTH, panels() + BUFFER, panels(), next, now);
  }
  if (reduce_parts(tile, product.partials, product.counters, blockIdx.x, gridDim.x, blockIdx.z, gridDim.z))
    store(tile, product.dw, product.lddw, f0, 0, F, P, product.accumulate != 0);
}

}  // namespace

KERNEL(matmul_wgmma_64_forward, Forward, (WGMMA_THREADS, 1), forward<64>);
KERNEL(matmul_wgmma_128_forward, Forward, (WGMMA_THREADS, 1), forward<128>);
KERNEL(matmul_wgmma_64_dgrad, Dgrad, (WGMMA_THREADS, 1), dgrad<64>);
KERNEL(matmul_wgmma_128_dgrad, Dgrad, (WGMMA_THREADS, 1), dgrad<128>);
KERNEL(matmul_wgmma_64_wgrad, Wgrad, (WGMMA_THREADS, 1), wgrad<64>);
KERNEL(matmul_wgmma_128_wgrad, Wgrad, (WGMMA_THREADS, 1), wgrad<128>);
