// The layers of the wide form for a model on several ranks: fused/wide/layers.cu with sums over all ranks.
//
// Parameters, shapes, launches and waits are those of the kernels without `ranks_` in their names, unless stated otherwise.
// fused/wide/ranks.cuh has the exchange. The moments and sums of a column are in lines `line` + column.
//
// Source: own; moments are combined as in dense/batch_norm.cu, in the order of the ranks.
// Determinism: repeats to the bit, and all ranks have equal bits.
#include "fused/wide/layers.cuh"
#include "fused/wide/ranks.cuh"

namespace fused {

// ---- forward ----

struct RanksProductParams {
  ProductParams product;
  Ranks ranks;
  int line;
};

// Batch norm of a global batch, or, without `sync`, of each rank's rows; then the running statistics are those of all
// ranks, weighted by their rows.
struct StatisticsOfRanks {
  static constexpr bool IS_ALONE = false;
  const Ranks& ranks;
  int line;

  // The thread that holds the moments of this rank's rows of column p calls.
  __device__ __forceinline__ void set_statistics(const ProductParams& params, const Moments& own, int p, float old_mean,
                                                 float old_var) const {
    const int step = params.size[BatchSize::STEP], *nodes = ranks.part(step) + Part::NODES;
    const unsigned turn = ranks.turn(step);
    ranks.send_line(line + p, make_float2(own.mean, own.squares), turn, false);
    if (!ranks.sync) store(params, own, p);
    Moments all = {};
    float variance = 0.f;  // of the running statistics, times the rows that it is from
#pragma unroll 1
    for (int r = 0; r < ranks.size; ++r) {
      const float2 found = r == ranks.rank ? make_float2(own.mean, own.squares) : ranks.take_line(line + p, r, turn);
      const Moments of_rank = {static_cast<float>(nodes[r]), found.x, found.y};
      all = combine(all, of_rank);
      variance += of_rank.number * (of_rank.squares / fmaxf(of_rank.number - 1.f, 1.f));
    }
    if (ranks.sync) {
      store(params, all, p);
      variance = all.number * (all.squares / fmaxf(all.number - 1.f, 1.f));
    }
    if (all.number == 0.f) return;
    params.running_mean[p] = old_mean + params.momentum * (all.mean - old_mean);
    params.running_var[p] = old_var + params.momentum * (variance / all.number - old_var);
  }

  __device__ __forceinline__ static void store(const ProductParams& params, const Moments& from, int p) {
    if (from.number == 0.f) return;
    params.stats[p] = from.mean;
    params.stats[params.P + p] = 1.f / sqrtf(from.squares / from.number + params.epsilon);
  }
};

// ---- backward ----

struct RanksPropagateBackwardParams {
  PropagateBackwardParams propagate;
  Ranks ranks;
  int line;
};

struct SumsOfRanks {
  static constexpr bool IS_ALONE = false;
  const Ranks& ranks;
  int line;
  unsigned column_blocks;

  // The blocks that send sums come first.
  __device__ __forceinline__ unsigned row_block() const { return blockIdx.x / column_blocks; }
  __device__ __forceinline__ static bool is_first(int i0) { return i0 == 0; }
  __device__ __forceinline__ unsigned column_block() const { return blockIdx.x % column_blocks; }

  // The sums of column p in the first PANEL threads, and the rows that they are from; all threads call. The first block of
  // each column reduces this rank's partial sums with `reduce` and sends them to all ranks, this one included.
  template <class Reduce>
  __device__ __forceinline__ float2 sum(const PropagateBackwardParams& params, int p, bool is_first, Reduce reduce,
                                        int& rows) const {
    if (!ranks.sync) return reduce();
    const int step = params.size[BatchSize::STEP];
    const unsigned turn = ranks.turn(step);
    const bool takes = threadIdx.x < PANEL && p < params.P;
    rows = ranks.rows_of_all(step);
    if (is_first) {
      const float2 own = reduce();
      if (takes) ranks.send_line(line + p, own, turn, true);
    }
    float2 total = make_float2(0.f, 0.f);
#pragma unroll 1
    for (int r = 0; takes && r < ranks.size; ++r) total = combine(total, ranks.take_line(line + p, r, turn));
    return total;
  }
};

}  // namespace fused

using namespace fused;

// ---- entry points ----

// Y = U W' and its moments. The last block of each 64 columns sends the moments of this rank's rows, and waits for those of
// the others.
//
// Waits: further, `take_line` of each other rank, in 64 threads.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_ranks_product_tf32(const __grid_constant__ RanksProductParams params) {
  product<1>(params.product, StatisticsOfRanks{params.ranks, params.line});
}

extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)
    fused_wide_ranks_product_3xtf32(const __grid_constant__ RanksProductParams params) {
  product<3>(params.product, StatisticsOfRanks{params.ranks, params.line});
}

// dY, V and the sums, which are those of all ranks with `sync`.
//
// Launch: 256 threads for 32 rows and columns, one after the other for each 32 rows. 1850 x 512: 928 blocks.
// Waits: further, `take_line` of each rank, in 32 threads of a block.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
    fused_wide_ranks_propagate_backward(const __grid_constant__ RanksPropagateBackwardParams params) {
  const SumsOfRanks sums = {params.ranks, params.line, static_cast<unsigned>(ceil_div(params.propagate.P, PANEL))};
  if (params.propagate.P % 4 == 0) {
    propagate_backward<4>(params.propagate, sums);
  } else {
    propagate_backward<1>(params.propagate, sums);
  }
}
