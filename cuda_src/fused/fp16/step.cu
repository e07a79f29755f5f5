// Forward, readout and backward of a training step of wide layers, in halves, in one kernel ("pass").
//
//   U_0 given,  Y_l = U_l W_l + rowsum ⊗ bias_l,  Z_l = relu((Y_l - mean) slope + beta),  U_{l+1} = A Z_l
//   readout and loss of Z_{L-1} (fused/fp16/readout.cuh):  G_{L-1}
//   dY_l = slope (G_l - Σ G / N - x̂ Σ G x̂ / N),  V_l = Aᵀ dY_l,  G_{l-1} = V_l W_lᵀ where Z_{l-1} > 0
//
// The gradients by the weights, Uᵀ dY, are left to fused_half_dw, which reads the panels of U and dY.
//
// Source: own. Rows of a batch lie in tiles of 144 that hold whole graphs (fused/fp16/tiles.cuh), so that A stays inside a tile. A
// cluster of S = P / 64 blocks has a tile, a block 64 columns of it, the "slice", in all layers; what crosses tiles are the
// sums of batch norm. How it differs from the kernels of fused/wide/layers.cu: no kernel ends where a block can wait for others.
//
// A layer forward, in a block:
//   1 product     (Y slice)ᵀ = (W slice)ᵀ Uᵀ on the tensor cores: 64 columns are M, rows are N, three groups of four warps
//                 have 48 rows each. Both operands lie in shared memory; the next weights come as soon as these are read.
//   2 moments     of the 64 columns over the tile's rows, then over all tiles: blocks of a slice exchange them (Exchange).
//   3 Z           to shared memory, as float32.
//   4 propagate   U = A Z, eight lanes a row, halves to global memory; group by group.
//   5 send        The block's 48 x 64 halves of a group go to all blocks of the cluster by multicast, from the second-level
//                 cache; a group's product begins when all eight parts of its rows are there, while the next group sums up.
// Backward the same with G, sums of G and G x̂, dY and Aᵀ; the scale of dY (fused/fp16/tiles.cuh: it must not overflow as halves)
// follows from the largest |slope G| of all blocks, which is exchanged with the sums.
//
// Shapes: structs Pass and PassLayer (fused/fp16/step.cuh), filled by geometry_fused_pass.py. P 128, 256, 384 or 512, the same for
//   all layers; K = 64 ... 512 columns of U_0.
// Launch: 480 threads: 12 warps work (fused/fp16/worker.cuh), three send and fetch (fused/fp16/sender.cuh); grid (P / 64, most
//   tiles), clusters (P / 64, 1). 1,860 nodes x 512: (8, 15). One block a multiprocessor; blocks wait for each other, so
//   the host must see to it that all clusters fit at once (cuOccupancyMaxActiveClusters: 15 of eight blocks on an H200).
//   Clusters of tiles that the step does not have leave.
// Shared memory: PassShared, 227 KB: U or V of the tile 144 KB, in whose place the readout works; half of the weights 32 KB;
//   in 38 KB parts of sums, then Z or dY, then the other half of the weights; entries of A. Bank conflicts: none in products
//   (128-byte swizzle), fragments to rows (68 floats a row), rows to sums (8 lanes a row).
// Traffic: reads 2 P (K + 2 P (L - 1)) of weights for each tile, writes 8 N P for each layer and reads 2 N P S into shared
//   memory for each product, all in the second-level cache; the exchange writes 16 P and reads 16 P T bytes a tile and sum.
// Determinism: every sum has a fixed order, every output one writer: repeats to the bit. Nothing is added with atomics.
// Order: the tables are read before the kernel before has ended; they are older.
// Requires: sm_90a; elsewhere it is empty. The exchange zero before the first launch. NaN passes to losses and gradients.
#include "fused/fp16/sender.cuh"
#include "fused/fp16/worker.cuh"

namespace fused {

// Tables and barriers to shared memory, before the kernel before has ended.
__device__ __forceinline__ void set_up(StepShared& at, const long long* params, const long long* layers, int slices) {
  constexpr int FIELDS = sizeof(StepParams) / 8, LAYER_FIELDS = sizeof(Fp16Layer) / 8;
  if (threadIdx.x < FIELDS) reinterpret_cast<long long*>(&at.params)[threadIdx.x] = params[threadIdx.x];
  const int n = static_cast<int>(reinterpret_cast<const StepParams*>(params)->n_layers) * LAYER_FIELDS;
#pragma unroll 1
  for (int e = threadIdx.x; e < n; e += STEP_THREADS) reinterpret_cast<long long*>(at.layers)[e] = layers[e];
  if (threadIdx.x < TILE_ROWS) at.graph_of_row[threadIdx.x] = NO_ROW;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) init_barrier(&at.full[group], 1);
    init_barrier(&at.low, 1), init_barrier(&at.high, 1), init_barrier(&at.head, 1);
    init_barrier(&at.u_released, slices), init_barrier(&at.rows_read, WORKERS);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  sync_cluster();  // whoever sends finds the barriers
}

// What there is to know of the step and the tile: a thread asks for its share, whether the step has the tile or not, and
// returns how many tiles it has.
__device__ __forceinline__ int load_step_info(StepShared& at, int tile) {
  const StepParams& params = at.params;
  const int t = threadIdx.x, tiles = params.shape[0], rows = params.tile_rows[tile];
  const float sum = t < TILE_ROWS ? params.rowsum[tile * TILE_ROWS + t] : 0.f;
  const int of_tile = params.tile_rows[min(t, static_cast<int>(params.tiles) - 1)];
  const int4 size = *reinterpret_cast<const int4*>(params.size);  // N, B, step, epoch
  const unsigned tag = *reinterpret_cast<const unsigned*>(params.exchange) + 1;
  const int first = params.tile_ptr[tile], end = params.tile_ptr[tile + 1];
  if (t < TILE_ROWS) at.rowsum[t] = t < rows ? sum : 0.f;
  if (t < MAX_TILES) at.tile_rows[t] = of_tile;
  if (t == 0) {
    const float nodes = max(size.x, 1), reach = params.reach * (2.f + nodes * rsqrtf(nodes));
    at.step = {tiles, size.x, rows, first, end - first, size.z, tag, __fdividef(1.f, nodes), reach};
    if (tile == 0 && blockIdx.x == 0)
      *reinterpret_cast<int4*>(params.progress) = make_int4(size.z + 1, size.x, size.y, size.z);
  }
  return tiles;
}

// What the tile's first product reads is here; wait for it and leave: this step does not have the tile.
__device__ __forceinline__ void leave(StepShared& at, int tile, int slice) {
#pragma unroll 1
  for (int group = 0; group < GROUPS; ++group) wait_barrier(&at.full[group], 0);
  wait_barrier(&at.low, 0);
  if (at.layers[0].K > LOW_PANELS * FP16_PANEL) wait_barrier(&at.high, 0);
  if (slice == 0 && threadIdx.x == 0) at.params.losses[tile] = 0.0;
  arrive_at_end();
}

template <int S>
__device__ __forceinline__ void run_step(const long long* params, const long long* layers) {
  if constexpr (HAS_WARPGROUPS) {
    StepShared& at = step_shared();
    const int tile = blockIdx.y, slice = blockIdx.x;
    set_up(at, params, layers, S);
    wait_for_previous();
    const int lane = threadIdx.x % 32, sender_group = static_cast<int>(threadIdx.x) / 32 - WORKERS / 32;
    const StepSender<S> sender = {at, lane, sender_group, tile, slice};
    if (sender_group == 0) sender.fetch_first();
    const int tiles = load_step_info(at, tile);
    __syncthreads();
    if (tile >= tiles) {
      leave(at, tile, slice);
    } else if (sender_group >= 0) {
      sender.run();
    } else {
      StepWorker<S>(at, tile, slice).run();
    }
    wait_for_cluster();  // nobody leaves while others read what it has of the logits
    if (tile == 0 && slice == 0 && threadIdx.x == 0 && at.step.tiles > 0) *Exchange(at.params, 64 * S).tag = at.step.tag;
  }
}

}  // namespace fused

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTERS_OF_2 __cluster_dims__(2, 1, 1)
#define CLUSTERS_OF_4 __cluster_dims__(4, 1, 1)
#define CLUSTERS_OF_6 __cluster_dims__(6, 1, 1)
#define CLUSTERS_OF_8 __cluster_dims__(8, 1, 1)
#else
#define CLUSTERS_OF_2
#define CLUSTERS_OF_4
#define CLUSTERS_OF_6
#define CLUSTERS_OF_8
#endif

// ---- entry points: layers of 128, 256, 384 and 512 columns ----

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_2
    fused_fp16_step_128(const long long* params, const long long* layers) {
  fused::run_step<2>(params, layers);
}

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_4
    fused_fp16_step_256(const long long* params, const long long* layers) {
  fused::run_step<4>(params, layers);
}

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_6
    fused_fp16_step_384(const long long* params, const long long* layers) {
  fused::run_step<6>(params, layers);
}

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_8
    fused_fp16_step_512(const long long* params, const long long* layers) {
  fused::run_step<8>(params, layers);
}
