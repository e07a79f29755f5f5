// The wide form on several ranks besides its layers (fused/wide/ranks_layers.cu): dropout, the readout of models with
// dropout after it, and the update. fused/wide/ranks.cuh has the exchange.
//
// Parameters, shapes and launches are those of the kernels without `ranks_` in their names, unless stated otherwise.
// Dropout is drawn for an element's place in the batch of all ranks.
#include "fused/shared/readout.cuh"
#include "fused/wide/dropout.cuh"
#include "fused/wide/ranks.cuh"
#include "fused/wide/update.cuh"

namespace fused {

// As draw_kept, of the elements from `first` on.
__device__ __forceinline__ void draw_kept_from(long long first, unsigned char* kept, const PhiloxKey& key,
                                               unsigned threshold, long long elements) {
  const unsigned shift = first % 8;
  for (long long b = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; 8 * b < elements;
       b += static_cast<long long>(gridDim.x) * blockDim.x) {
    unsigned bits = kept_of_block(key, first / 8 + b, threshold);
    if (shift != 0) bits |= kept_of_block(key, first / 8 + b + 1, threshold) << 8;
    kept[b] = static_cast<unsigned char>(bits >> shift);
  }
}

struct RanksReadoutParams {
  ReadoutParams readout;
  Ranks ranks;
};

struct RanksUpdateParams {
  WideUpdateParams update;
  Ranks ranks;
};

// The gradients of all ranks. Those of the first `chunks` chunks are exchanged; the others are sums over all ranks already.
struct GradientsOfRanks {
  static constexpr bool IS_ALONE = false;
  const Ranks& ranks;

  // Add the gradients of the other ranks to those of this one; all threads call.
  __device__ __forceinline__ void sum(Four& gradient, int number, int step) const {
    if (number >= ranks.chunks) return;
    const float4 own = make_float4(gradient.v[0], gradient.v[1], gradient.v[2], gradient.v[3]);
    const float4 all = ranks.sum_chunk(number, own, ranks.turn(step));
    gradient = {{all.x, all.y, all.z, all.w}};
  }
};

static_assert(UPDATE_THREADS == CHUNK_THREADS, "a block has a chunk");

}  // namespace fused

using namespace fused;

// Draw the dropout bits of all layers of a step.
extern "C" __global__ void __launch_bounds__(DROPOUT_THREADS)
    fused_wide_ranks_dropout(const DropoutLayer* layers, const int* size, const MemberValues* of_dropout,
                             const int* parts, int part_length) {
  const DropoutLayer layer = layers[blockIdx.y];
  const MemberValues values = *of_dropout;
  const long long elements = layer.columns * size[BatchSize::N];
  const long long first = layer.columns * parts[size[BatchSize::STEP] * part_length + Part::FIRST_NODE];
  const PhiloxKey key = {values.seed, layer.purpose, static_cast<unsigned long long>(size[BatchSize::EPOCH]),
                         static_cast<unsigned long long>(size[BatchSize::STEP])};
  wait_for_previous();
  draw_kept_from(first, layer.kept, key, values.threshold, elements);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_ranks_readout(const __grid_constant__ RanksReadoutParams params) {
  extern __shared__ float4 shared4[];
  readout_phase<false>(params.readout, shared4, [&](int step) { return params.ranks.part(step)[Part::FIRST_GRAPH]; });
}

// The same for weighted targets and any loss.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_ranks_weighted_readout(const __grid_constant__ RanksReadoutParams params) {
  extern __shared__ float4 shared4[];
  readout_phase<true>(params.readout, shared4, [&](int step) { return params.ranks.part(step)[Part::FIRST_GRAPH]; });
}

// The update of a step, or only its gradients; mode APPLY needs no other rank. Blocks of exchanged chunks come first.
//
// Traffic: further, writes 4 n to each rank, over the links between the devices, and reads as much.
// Waits: further, `sum_chunk`, once in each block of an exchanged chunk.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, 4)
    fused_wide_ranks_update(const __grid_constant__ RanksUpdateParams params) {
  __shared__ WideUpdate<WideJob>::Tile tile;
  const UpdateParams& common = params.update.common;
  const int block = blockIdx.x, exchanged = params.ranks.chunks, n_stages = common.n_stages;
  if (block >= exchanged && block < exchanged + n_stages) {
    stage_batch<StagersOfBlock>(*params.update.stage, params.update.stage->progress, block - exchanged, n_stages,
                                wait_for_previous);
  } else {
    const int number = block < exchanged ? block : block - n_stages;
    const WideUpdate<WideJob> update = {common};
    const WideChunk chunk = update.chunk(number);
    const WideJob job = params.update.jobs[chunk.job];
    update.run(number, chunk, job, tile, {nullptr}, GradientsOfRanks{params.ranks});
  }
}
