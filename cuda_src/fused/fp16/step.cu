// The fp16 step: forward, readout and backward pass of a training step of wide layers in one persistent kernel.
//
//   U_0 given,  Y_l = U_l W_l + rowsum ⊗ bias_l,  Z_l = relu((Y_l - mean) slope + beta),  U_{l+1} = A Z_l
//   readout and loss of Z_{L-1} (fused/fp16/readout.cuh):  G_{L-1}
//   dY_l = slope (G_l - Σ G / N - x̂ Σ G x̂ / N),  V_l = Aᵀ dY_l,  G_{l-1} = V_l W_lᵀ where Z_{l-1} > 0
//
// The weight gradients, Uᵀ dY, are left to fused_fp16_weight_gradient, which reads the panels of U and dY.
//
// Source: own. Rows of a batch lie in tiles of 144 that hold whole graphs (fused/fp16/tiles.cuh), so A never leaves a tile.
// A cluster of S = P / 64 blocks owns a tile, and each block 64 columns of it, the "slice", in all layers. Only the sums of
// batch norm cross tiles. Unlike the kernels of fused/wide/layers.cu, this one does not end where blocks wait for others.
//
// A layer forward, in a block:
//   1 product     (Y slice)ᵀ = (W slice)ᵀ Uᵀ on the tensor cores: M is the 64 columns, N the rows; three groups of four
//                 warps own 48 rows each. Both operands lie in shared memory. The next weights are fetched once these are
//                 read.
//   2 moments     of the 64 columns over the tile's rows, then over all tiles: blocks of a slice exchange them (Exchange).
//   3 Z           to shared memory, in float32.
//   4 propagate   U = A Z, eight lanes a row, in fp16 to global memory, group by group.
//   5 send        A TMA multicast copies the block's 48 x 64 values of a group from L2 to all blocks of the cluster. A
//                 group's product starts when all S slices of its rows are there; the next group still gathers.
// Backward the same with G, sums of G and G x̂, dY and Aᵀ. The scale of dY, which keeps it within the range of fp16, follows
// from the largest |slope G| of all blocks, which is exchanged with the sums.
//
// Shapes: StepParams and Fp16Layer (fused/fp16/step.cuh). P is 128, 256, 384 or 512, the same for all layers; U_0 has K = 64
//   … 512 columns.
// Launch: 480 threads: 12 compute warps (fused/fp16/worker.cuh), three copy warps (fused/fp16/sender.cuh); grid (P / 64,
//   most tiles), clusters (P / 64, 1). 1,860 nodes x 512: (8, 15). One block a multiprocessor. Blocks wait for each other,
//   so the host checks that all clusters fit at once (cuOccupancyMaxActiveClusters: 15 of eight blocks on an H200).
//   Clusters of tiles that the step does not have leave.
// Shared memory: StepShared, 227 KB: U or V of the tile 144 KB, whose place the readout takes; half of the weights 32 KB; in
//   38 KB partial sums, then Z or dY, then the other half of the weights; entries of A. Bank conflicts: none in products
//   (128-byte swizzle), fragments to rows (68 floats a row), rows to sums (8 lanes a row).
// Traffic: reads 2 P (K + 2 P (L - 1)) of weights for each tile; writes 8 N P for each layer and reads 2 N P S into shared
//   memory for each product, all in L2; the exchange writes 16 P and reads 16 P T bytes for each tile and sum.
// Determinism: every sum has a fixed order, every output one writer: bit-repeatable. No atomics add.
// Order: only parameters are read before the previous kernel has ended.
// Requires: sm_90a; elsewhere it is empty. The exchange is zero before the first launch. NaN reaches losses and gradients.
#include "fused/fp16/sender.cuh"
#include "fused/fp16/worker.cuh"

namespace fused {

// Copy the parameters to shared memory and initialise the barriers, before the previous kernel has ended.
__device__ __forceinline__ void set_up(StepShared& at, const StepParams& params, int slices) {
  constexpr int WORDS = sizeof(StepParams) / 8;
  static_assert(WORDS <= STEP_THREADS && sizeof(StepParams) % 8 == 0, "a word for each thread");
  if (threadIdx.x < WORDS)
    reinterpret_cast<long long*>(&at.params)[threadIdx.x] = reinterpret_cast<const long long*>(&params)[threadIdx.x];
  if (threadIdx.x < TILE_ROWS) at.graph_of_row[threadIdx.x] = NO_ROW;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) init_barrier(&at.full[group], 1);
    init_barrier(&at.w_low_full, 1), init_barrier(&at.w_high_full, 1), init_barrier(&at.head_full, 1);
    init_barrier(&at.u_released, slices), init_barrier(&at.rows_read, WORKERS);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  sync_cluster();  // other blocks' copies find the barriers
}

// Load what describes the step and the tile, whether the step has this tile or not; return its number of tiles.
__device__ __forceinline__ int load_step_info(StepShared& at, int tile) {
  const StepParams& params = at.params;
  const int t = threadIdx.x, tiles = params.shape[0], rows = params.tile_rows[tile];
  const float sum = t < TILE_ROWS ? params.rowsum[tile * TILE_ROWS + t] : 0.f;
  const int of_tile = params.tile_rows[min(t, params.tiles - 1)];
  const int4 size = *reinterpret_cast<const int4*>(params.size);  // N, B, step, epoch
  const unsigned tag = *reinterpret_cast<const unsigned*>(params.exchange) + 1;
  const int first = params.tile_ptr[tile], end = params.tile_ptr[tile + 1];
  if (t < TILE_ROWS) at.rowsum[t] = t < rows ? sum : 0.f;
  if (t < MAX_TILES) at.tile_rows[t] = of_tile;
  if (t == 0) {
    const float nodes = max(size.x, 1), reach = params.reach * (2.f + nodes * rsqrtf(nodes));
    at.step = {tiles, size.x, rows, first, end - first, size.z, tag, __fdividef(1.f, nodes), reach};
    if (tile == 0 && blockIdx.x == 0) Progress::note(params.progress, size.x, size.y, size.z);
  }
  return tiles;
}

// Wait for the copies of the first product's operands and leave: this step does not have the tile.
__device__ __forceinline__ void leave(StepShared& at, int tile, int slice) {
#pragma unroll 1
  for (int group = 0; group < GROUPS; ++group) wait_barrier(&at.full[group], 0);
  wait_barrier(&at.w_low_full, 0);
  if (at.params.layers[0].K > LOW_PANELS * FP16_PANEL) wait_barrier(&at.w_high_full, 0);
  if (slice == 0 && threadIdx.x == 0) at.params.losses[tile] = 0.0;
  arrive_at_end();
}

template <int S>
__device__ __forceinline__ void run_step(const StepParams& params) {
  if constexpr (HAS_WARPGROUPS) {
    StepShared& at = step_shared();
    const int tile = blockIdx.y, slice = blockIdx.x;
    set_up(at, params, S);
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
    wait_for_cluster();  // other blocks read this one's partial logits until then
    if (tile == 0 && slice == 0 && threadIdx.x == 0 && at.step.tiles > 0)
      *Exchange(at.params, FP16_PANEL * S).tag = at.step.tag;
  }
}

}  // namespace fused

using namespace fused;

// ---- entry points: layers of 128, 256, 384 and 512 columns ----

KERNEL(CLUSTERS_OF(2) fused_fp16_step_128, StepParams, (STEP_THREADS, 1), run_step<2>);
KERNEL(CLUSTERS_OF(4) fused_fp16_step_256, StepParams, (STEP_THREADS, 1), run_step<4>);
KERNEL(CLUSTERS_OF(6) fused_fp16_step_384, StepParams, (STEP_THREADS, 1), run_step<6>);
KERNEL(CLUSTERS_OF(8) fused_fp16_step_512, StepParams, (STEP_THREADS, 1), run_step<8>);
