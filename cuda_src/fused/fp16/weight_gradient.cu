// The gradients that the fp16 step leaves, in one launch:
//
//   dW_l = U_lᵀ dY_l / (u_scale_l scale_l),    db_l = sum of its tiles' partial sums,    dW = [R | 1]ᵀ dlogits   (head)
//
// wgmma reads fp16 operands along rows or columns, so dW_l needs no transpose: the columns of both panels become rows and
// columns of dW. A block computes 128 x 128 of dW, two panels of either matrix, over a share of the tiles of rows. The update
// adds the shares in order. Blocks on the remaining multiprocessors compute db and the head's gradient.
//
// Source: own.
// Shapes: see WeightGradientParams; u (tiles, K / 64, 144, 64) and dy (tiles, P / 64, 144, 64) are panels.
// Launch: 288 threads, grid (n_places splits + others), one block a multiprocessor. 3 layers of 512, 100 outputs: 36 x 3 +
//   21.
// Shared memory: dynamic, a ring of nine stages of 48 rows and four panels, 216 KB; no bank conflicts. The head uses its
//   place: 256 graphs of 64 columns of R and of the logits' gradients.
// Traffic: reads 512 bytes of each row for each 128 x 128 (from L2), writes 4 F P splits bytes.
// Determinism: one writer per output, fixed order: bit-repeatable.
// Requires: sm_90a, elsewhere it is empty; P of layers a multiple of 128, K of 64.
//
// Waits.
//   wait_for_previous   once; before it only the block's place is read and barriers are initialised
//   full[stage]         arrives: the copying lane of the ninth warp, and the bytes; waits: eight warps, which multiply it
//   empty[stage]        arrive: their 256 threads, when the next stage is in the tensor cores; waits: the copying lane, from
//                       the ring's second round on
//   __syncthreads       barriers are initialised; head: for each 256 graphs, the last ones are read, these are there
#include "fused/fp16/tiles.cuh"
#include "fused/shared/async_copy.cuh"

namespace fused {

// The product of a layer.
struct Fp16Product {
  const Fp16 *u, *dy;          // panels, scaled
  const float* scale;          // (1,), of dy
  float* partials;             // (splits, F, P)
  const float* bias_partials;  // (tiles, P)
  float* dbias;                // (P,)
  int F, P, K;                 // rows and columns of dW; columns of U
  float u_scale;
};

// A block's tile of dW.
struct GradientTile {
  int product, first_u, first_dy;  // the latter two count panels
};

struct WeightGradientParams {
  Fp16Product products[MAX_LAYERS];
  const GradientTile* places;     // (n_places,)
  float* head;                    // (F + 1, P), of the head
  const float *input, *gradient;  // (B, F), (B, P)
  const int* shape;               // (2,): tiles of the step
  const int* size;
  int n_products, n_places, splits;
  int F, P;  // of the head
};

constexpr int DW_GROUPS = 2, DW_PANELS = 2;  // warpgroups; panels of either matrix in a block
constexpr int DW_THREADS = DW_GROUPS * 128 + 32, DW_STAGES = 9, DW_ROWS = 48;
constexpr int PIECE = DW_ROWS * FP16_PANEL;  // elements of a panel in a stage
constexpr int DW_SHARED_BYTES = DW_STAGES * 2 * DW_PANELS * PIECE * 2;
static_assert(DW_SHARED_BYTES <= 227 * 1024, "more than a block may have");
constexpr int PIECES_OF_TILE = TILE_ROWS / DW_ROWS;

using GradientSums = float[64];  // of 64 x 128 values, in a thread

// wgmma descriptor of pieces with the depth along the rows, 128-byte swizzle: a piece's length from 64 columns to the next,
// 1024 bytes from 8 rows to the next.
__device__ __forceinline__ unsigned long long column_descriptor(const Fp16* piece) {
  return (shared_address(piece) & 0x3ffff) >> 4 | static_cast<unsigned long long>(2 * PIECE / 16) << 16 | 64ull << 32 |
         1ull << 62;
}

// d (64, 128) += aᵀ (64, 16) b (16, 128) in fp16, asynchronously.
__device__ __forceinline__ void wgmma_fp16_transposed(GradientSums& d, unsigned long long a, unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%"
      "58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b));
#endif
}

// A block's share of a product.
struct GradientShare {
  Fp16Product of;
  int first_u, first_dy, panels_of_u;
  int begin, steps;  // the first tile of rows; stages

  __device__ __forceinline__ GradientShare(const Fp16Product& product, const GradientTile& place, int tiles, int split,
                                           int splits)
      : of(product),
        first_u(place.first_u),
        first_dy(place.first_dy),
        panels_of_u(min(of.K / FP16_PANEL - first_u, DW_GROUPS)) {
    begin = tiles * split / splits;
    steps = (tiles * (split + 1) / splits - begin) * PIECES_OF_TILE;
  }

  // Panel `panel` of a matrix of so many panels, the rows of stage `step`.
  __device__ __forceinline__ const Fp16* piece(const Fp16* matrix, int step, int panels, int panel) const {
    const int tile = begin + step / PIECES_OF_TILE, third = step % PIECES_OF_TILE;
    return matrix + ((static_cast<long long>(tile) * panels + panel) * PIECES_OF_TILE + third) * PIECE;
  }
};

struct GradientBarriers {
  unsigned long long full[DW_STAGES], empty[DW_STAGES];
};

__device__ __forceinline__ Fp16* dw_stage(int stage) {
  extern __shared__ __align__(1024) Fp16 dw_ring[];
  return dw_ring + stage * 2 * DW_PANELS * PIECE;
}

// Fill the ring; one thread calls.
__device__ __forceinline__ void fill_ring(const GradientShare& share, GradientBarriers& barriers) {
  constexpr int BYTES = PIECE * int(sizeof(Fp16));
  const int panels_of_u = share.of.K / FP16_PANEL, panels_of_dy = share.of.P / FP16_PANEL;
  RingPosition turn;
#pragma unroll 1
  for (int step = 0; step < share.steps; ++step) {
    if (step >= DW_STAGES) wait_barrier(&barriers.empty[turn.stage], turn.phase ^ 1);
    unsigned long long* full = &barriers.full[turn.stage];
    Fp16* stage = dw_stage(turn.stage);
    expect_bytes(full, (share.panels_of_u + 2) * BYTES);
    for (int panel = 0; panel < share.panels_of_u; ++panel)
      tma_copy(stage + panel * PIECE, share.piece(share.of.u, step, panels_of_u, share.first_u + panel), BYTES, full);
    for (int panel = 0; panel < 2; ++panel)
      tma_copy(stage + (DW_GROUPS + panel) * PIECE,
               share.piece(share.of.dy, step, panels_of_dy, share.first_dy + panel), BYTES, full);
    turn.next(DW_STAGES);
  }
}

// Four warps multiply a panel of U. They release a stage once the next one is in the tensor cores.
__device__ __forceinline__ void multiply_stages(GradientSums& sum, int group, const GradientShare& share,
                                                GradientBarriers& barriers) {
  RingPosition turn;
  unsigned long long* read = nullptr;
#pragma unroll 1
  for (int step = 0; step < share.steps; ++step) {
    wait_barrier(&barriers.full[turn.stage], turn.phase);
    const Fp16* stage = dw_stage(turn.stage);
    const unsigned long long a = column_descriptor(stage + group * PIECE);
    const unsigned long long b = column_descriptor(stage + DW_GROUPS * PIECE);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < DW_ROWS / 16; ++slice) wgmma_fp16_transposed(sum, a + 128 * slice, b + 128 * slice);
    wgmma_commit();
    wgmma_wait<1>();
    if (read != nullptr) arrive(read);
    read = &barriers.empty[turn.stage];
    turn.next(DW_STAGES);
  }
  wgmma_wait<0>();
}

__device__ __forceinline__ void store_sums(const GradientSums& sum, int group, const GradientShare& share, int split) {
  const Fp16Product& of = share.of;
  const int lane = threadIdx.x % 32, row = (share.first_u + group) * FP16_PANEL + threadIdx.x / 32 % 4 * 16 + lane / 4;
  const float first = 1.f / of.u_scale, second = 1.f / *of.scale;  // powers of two, whose product may overflow
  float* to =
      of.partials + (static_cast<long long>(split) * of.F + row) * of.P + share.first_dy * FP16_PANEL + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= of.F) return;
#pragma unroll
    for (int v = 2 * half; v < 64; v += 4)
      *reinterpret_cast<float2*>(to + 8 * half * of.P + v / 4 * 8) =
          make_float2(sum[v] * first * second, sum[v + 1] * first * second);
  }
}

// ---- the head, and biases ----

constexpr int SMALL_THREADS = 256, HEAD_TILE = 64, GRAPHS_AT_ONCE = 256;

// The dense layer on graphs. A block computes 64 x 64 of its gradient, a thread 4 x 4, over all graphs in order.
struct HeadGradient {
  float* to;
  const float *input, *gradient;
  int F, P, B;

  __device__ __forceinline__ int tiles_of_columns() const { return ceil_div(P, HEAD_TILE); }
  __device__ __forceinline__ int tiles() const { return ceil_div(F + 1, HEAD_TILE) * tiles_of_columns(); }

  // Load columns c0 … of rows of `matrix`, four for each of sixteen threads. Column F is 1 if `has_ones`: the bias.
  __device__ __forceinline__ void load_tile(float* tile, const float* matrix, int first, int n, int c0, int columns,
                                            bool has_ones) const {
    constexpr int AT_ONCE = 8, LANES = HEAD_TILE / 4, ROWS = SMALL_THREADS / LANES;
    const int c = c0 + threadIdx.x % LANES * 4;
#pragma unroll 1
    for (int b0 = threadIdx.x / LANES; b0 < n; b0 += AT_ONCE * ROWS) {
      float4 found[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const int b = b0 + u * ROWS;
        found[u] =
            load4(matrix + static_cast<long long>(first + b) * columns + c, b < n ? columns - c : 0, columns % 4 == 0);
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        if (b0 + u * ROWS >= n) continue;
        float4 of = found[u];
        if (has_ones) {
          of = make_float4(c == F ? 1.f : of.x, c + 1 == F ? 1.f : of.y, c + 2 == F ? 1.f : of.z,
                           c + 3 == F ? 1.f : of.w);
        }
        *reinterpret_cast<float4*>(tile + (b0 + u * ROWS) * HEAD_TILE + c - c0) = of;
      }
    }
  }

  __device__ __forceinline__ void run(int tile) const {
    const int k0 = tile / tiles_of_columns() * HEAD_TILE, p0 = tile % tiles_of_columns() * HEAD_TILE;
    const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    float* left = reinterpret_cast<float*>(dw_stage(0));
    float* right = left + GRAPHS_AT_ONCE * HEAD_TILE;
    float sum[4][4] = {};
#pragma unroll 1
    for (int first = 0; first < B; first += GRAPHS_AT_ONCE) {
      const int n = min(B - first, GRAPHS_AT_ONCE);
      __syncthreads();
      if (threadIdx.x < SMALL_THREADS) {
        load_tile(left, input, first, n, k0, F, true);
        load_tile(right, gradient, first, n, p0, P, false);
      }
      __syncthreads();
      if (threadIdx.x >= SMALL_THREADS) continue;
#pragma unroll 8
      for (int b = 0; b < n; ++b) {
        const float4 l = *reinterpret_cast<const float4*>(left + b * HEAD_TILE + row);
        const float4 r = *reinterpret_cast<const float4*>(right + b * HEAD_TILE + column);
        const float of_l[4] = {l.x, l.y, l.z, l.w}, of_r[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(of_l[i], of_r[j], sum[i][j]);
        }
      }
    }
    if (threadIdx.x >= SMALL_THREADS) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = k0 + row + i;
      if (k > F) return;
      store4(to + static_cast<long long>(k) * P + p0 + column, make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]),
             P - p0 - column, P % 4 == 0);
    }
  }
};

__device__ __forceinline__ void reduce_bias(const Fp16Product& of, int tiles) {
  for (int p = threadIdx.x; p < of.P; p += blockDim.x) {
    float sum = 0.f;
#pragma unroll 8
    for (int tile = 0; tile < tiles; ++tile) sum += of.bias_partials[static_cast<long long>(tile) * of.P + p];
    of.dbias[p] = sum;
  }
}

}  // namespace fused

using namespace fused;

extern "C" __global__ void __launch_bounds__(DW_THREADS, 1)
    fused_fp16_weight_gradient(const __grid_constant__ WeightGradientParams params) {
  if constexpr (!HAS_WARPGROUPS) return;
  __shared__ GradientBarriers barriers;
  const int block = blockIdx.x, of_products = params.n_places * params.splits, tiles = params.shape[0];
  if (block >= of_products) {
    const HeadGradient head = {params.head, params.input, params.gradient,
                               params.F,    params.P,     params.size[BatchSize::B]};
    wait_for_previous();
#pragma unroll 1
    for (int unit = block - of_products; unit < head.tiles() + params.n_products; unit += gridDim.x - of_products) {
      if (unit < head.tiles()) {
        head.run(unit);
      } else {
        reduce_bias(params.products[unit - head.tiles()], tiles);
      }
    }
    return;
  }
  const int split = block / params.n_places;
  const GradientTile place = params.places[block % params.n_places];
  const GradientShare share(params.products[place.product], place, tiles, split, params.splits);
  const int group = warp_number() / 4;
  if (threadIdx.x < DW_STAGES) {
    init_barrier(&barriers.full[threadIdx.x], 1);
    init_barrier(&barriers.empty[threadIdx.x], 128 * DW_GROUPS);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  wait_for_previous();
  if (group == DW_GROUPS) {
    if (threadIdx.x % 32 == 0) fill_ring(share, barriers);
  } else {  // also without a panel of u: ptxas needs uniform control flow around wgmma
    GradientSums sum = {};
    multiply_stages(sum, group, share, barriers);
    if (group < share.panels_of_u) store_sums(sum, group, share, split);
  }
}
