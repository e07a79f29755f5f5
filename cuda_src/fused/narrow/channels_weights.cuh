// Gradients of the weights of all layers of a model with several channels, in slabs of 64 rows; fused/narrow/channels.cuh.
//
//   dW_c = sum over the pairs (i, c) of  U[i, c]^T dY[i],   db_c = sum of a_c[i] dY[i]      a slab for each channel of a layer
//   dW'  = U^T dY  for 64 columns of the first layer's U                                   a slab for each 64 of them
//
// The forward pass left U, and the backward pass dY of all layers but the first, where it is recomputed from Y and G. Nodes are
// dealt in LANES equal ranges to as many sums. They are added in pairs, then in pairs of pairs (sum_of_all in
// fused/narrow/update.cuh): some by the block that computed them, in large cohorts, and all others by the update.
// Source: own. Shapes: partials (LANES, K, 64), of which the sum of `of_block` neighbouring ranges is at the first of them; left
//   (N C, 64): U of a layer, of which only rows of pairs are read, or (nodes, left_stride): that of the data set, whose rows
//   `source` (N,) has, as those of row_sums; sums as in NarrowBackwardParams; slabs (n_slabs,) WeightSlab.
// Launch: 512 threads, LANES / of_block blocks a slab, members in z. Two layers, nine channels, 224 columns, a model alone: 104
//   blocks.
// Shared memory: dynamic, `narrow.geometry.channels_weights`: SLAB_ROWS rows of both factors. A warp multiplies two groups of
//   four rows of the slab with all columns: 16 lanes read the same four numbers, and 64 consecutive ones.
// Traffic: reads 12 rows P a slab of the first layer, 8 of others, writes 4 LANES K P; everything in L2.
// Determinism: one writer per output, fixed order: repeats to the bit, whatever the members.
#pragma once

#include "fused/narrow/channels.cuh"

namespace fused {

constexpr int SLAB_ROWS = 160;                              // rows of both factors in shared memory
constexpr int SLAB_TEAMS = 2, TEAM = THREADS / SLAB_TEAMS;  // teams of threads; each multiplies every second row
constexpr int SLAB_FLOATS = 2 * SLAB_ROWS * ROW_FLOATS + REDUCTION_FLOATS + 6 * CHANNEL_COLUMNS + THREADS + WARPS;
static_assert(TEAM * 4 * 4 == CHANNEL_COLUMNS * CHANNEL_COLUMNS, "a thread has 4 x 4 outputs");
static_assert(SLAB_ROWS * ROW_FLOATS >= 4 * 4 * TEAM, "sums of a team fit");

// 64 rows of dW' of a layer: of a channel, or of the first layer, where channel is -1.
struct WeightSlab {
  float* partials;
  const float *left, *y, *g, *stats, *gamma, *sums;  // y to sums: of the first layer
  const float *dy, *row_sums;                        // of a channel; row_sums: a_c of the data set
  const int *source, *indptr;
  int parts_of_sums, left_stride, sums_stride, first, K, channel, C;  // first: row of W', or column of U
};

struct WeightSlabParams {
  const WeightSlab* slabs;
  const int* size;
  Members members;
  int of_block;  // ranges of nodes of a block: 1, 2, 4 or 8
};

// The nodes of a block that have a row in the slab, THREADS candidates at a time.
struct RowsOfSlab {
  int* nodes;     // (THREADS,)
  int* of_warps;  // (WARPS,)

  // List those of the nodes first … end - 1 that have an entry in row (node, channel) of A; return how many. All threads call.
  template <bool IS_FIRST_LAYER>
  __device__ __forceinline__ int list(const WeightSlab& slab, int first, int end) const {
    const int node = first + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool has_row = node < end;
    if (!IS_FIRST_LAYER && has_row) {
      const int row = node * slab.C + slab.channel;
      has_row = slab.indptr[row + 1] > slab.indptr[row];
    }
    const unsigned found = __ballot_sync(FULL_WARP, has_row);
    if (lane == 0) of_warps[warp] = __popc(found);
    __syncthreads();
    const int count = of_warps[lane % WARPS];
    const int before = warp_sum(lane < warp ? count : 0), all = warp_sum(lane < WARPS ? count : 0);
    if (has_row) nodes[before + __popc(found & ((1u << lane) - 1))] = node;
    __syncthreads();
    return all;
  }
};

// Call `each(r, p)` for the rows r of a factor that this thread fills, and its four columns from p on; AT_ONCE rows side by side.
template <int AT_ONCE, class Each>
__device__ __forceinline__ void for_rows(int rows, Each each) {
#pragma unroll(AT_ONCE)
  for (int r = threadIdx.x / ROW_QUADS; r < rows; r += THREADS / ROW_QUADS) each(r, threadIdx.x % ROW_QUADS * 4);
}

// Store four columns of a row of sum `part`, the block's sum i. If it completes a pair, or a pair of pairs, add the sums of the
// others, which the same thread stored; the total is stored where the first of them was.
__device__ __forceinline__ void store_sum(const WeightSlab& slab, int part, int i, int row, int p, float4 sum) {
  const int size = slab.K * CHANNEL_COLUMNS;
  float* to = slab.partials + part * size + row * CHANNEL_COLUMNS + p;
#pragma unroll 1
  for (int pairs = 1; i & pairs; pairs *= 2) {
    to -= pairs * size;
    sum = combine(*reinterpret_cast<const float4*>(to), sum);
  }
  *reinterpret_cast<float4*>(to) = sum;
}

template <bool IS_FIRST_LAYER>
__device__ __forceinline__ void slab_gradient(const WeightSlabParams& params, const WeightSlab& slab, int N,
                                              float4* shared4) {
  const int blocks = LANES / params.of_block, first_part = blockIdx.x % blocks * params.of_block;
  const int of_part = ceil_div(ceil_div(N, LANES), TILE) * TILE;
  float *left = reinterpret_cast<float*>(shared4), *right = left + SLAB_ROWS * ROW_FLOATS;
  float* scratch = right + SLAB_ROWS * ROW_FLOATS;
  const OfY of = of_y_at(scratch + REDUCTION_FLOATS, slab.y, slab.g, CHANNEL_COLUMNS);
  int* listed = reinterpret_cast<int*>(of.dgamma + CHANNEL_COLUMNS);
  const RowsOfSlab rows = {listed, listed + THREADS};
  // Rows are copied all at once. A row of U is followed by its row sum; of Y, the thread that copied a part makes dY.
  const auto copy_left = [&](int r0, int count) {
    for_rows<1>(count, [&](int r, int p) {
      const int node = rows.nodes[r0 + r], source = slab.source[node];
      float* to = left + r * ROW_FLOATS;
      if constexpr (IS_FIRST_LAYER) {
        const bool exists = slab.first + p < slab.K;
        const float* from = slab.left + static_cast<long long>(source) * slab.left_stride;
        copy_async<4>(to + p, from + (exists ? slab.first + p : 0), exists ? 4 : 0);
      } else {
        copy_async<4>(to + p, slab.left + (node * slab.C + slab.channel) * CHANNEL_COLUMNS + p, 4);
        if (p == 0)
          copy_async<1>(to + CHANNEL_COLUMNS, slab.row_sums + static_cast<long long>(source) * slab.sums_stride, 1);
      }
    });
  };
  const auto copy_right = [&](int r0, int count) {
    const float* from = IS_FIRST_LAYER ? slab.y : slab.dy;
    for_rows<1>(count, [&](int r, int p) {
      copy_async<4>(right + r * ROW_FLOATS + p, from + rows.nodes[r0 + r] * CHANNEL_COLUMNS + p, 4);
    });
    commit_copies();
  };
  const auto finish = [&](int r0, int count) {
    wait_for_copies<0>();
    if constexpr (!IS_FIRST_LAYER) return;
    for_rows<3>(count, [&](int r, int p) {
      float4& at = *reinterpret_cast<float4*>(right + r * ROW_FLOATS + p);
      const float* g = slab.g + rows.nodes[r0 + r] * CHANNEL_COLUMNS + p;
      at = dy4(of, {at, *reinterpret_cast<const float4*>(g)}, p);
    });
  };
  // Before the wait: the batch, U, and Y of the first layer.
  int n = rows.list<IS_FIRST_LAYER>(slab, first_part * of_part, min((first_part + 1) * of_part, N));
  copy_left(0, min(n, SLAB_ROWS));
  if constexpr (IS_FIRST_LAYER) copy_right(0, min(n, SLAB_ROWS));
  wait_for_previous();
  if constexpr (IS_FIRST_LAYER) {
    const int parts = slab.sums == nullptr ? 0 : parts_in_use(N, slab.parts_of_sums);
    set_backward(of, scratch, slab.stats, slab.gamma, slab.sums, parts, N, CHANNEL_COLUMNS);
    __syncthreads();  // columns are filled
  } else {
    copy_right(0, min(n, SLAB_ROWS));
  }

  // Of the team's rows, a thread multiplies four columns from k on of the left one with four from p on of the right one.
  const int team = threadIdx.x / TEAM, k = threadIdx.x % TEAM / ROW_QUADS * 4, p = threadIdx.x % ROW_QUADS * 4;
  float4 sum[4] = {};
  float bias = 0.f;  // of column threadIdx.x % CHANNEL_COLUMNS, over every eighth row
  int i = 0, first = first_part * of_part;
#pragma unroll 1
  while (true) {
#pragma unroll 1
    for (int r0 = 0; r0 < n; r0 += SLAB_ROWS) {
      const int r_end = min(n - r0, SLAB_ROWS);
      if (r0 > 0) copy_left(r0, r_end), copy_right(r0, r_end);
      finish(r0, r_end);
      __syncthreads();  // both factors are filled
      if constexpr (!IS_FIRST_LAYER) {
#pragma unroll 1
        for (int r = threadIdx.x / CHANNEL_COLUMNS; r < r_end; r += THREADS / CHANNEL_COLUMNS)
          bias =
              fmaf(left[r * ROW_FLOATS + CHANNEL_COLUMNS], right[r * ROW_FLOATS + threadIdx.x % CHANNEL_COLUMNS], bias);
      }
#pragma unroll 2
      for (int r = team; r < r_end; r += SLAB_TEAMS) {
        const float4 a = *reinterpret_cast<const float4*>(left + r * ROW_FLOATS + k);
        const float4 right4 = *reinterpret_cast<const float4*>(right + r * ROW_FLOATS + p);
        sum[0] = add_product(sum[0], a.x, right4), sum[1] = add_product(sum[1], a.y, right4);
        sum[2] = add_product(sum[2], a.z, right4), sum[3] = add_product(sum[3], a.w, right4);
      }
      __syncthreads();  // both factors and the list may be overwritten
    }
    first += THREADS;
    if (first >= min((first_part + i + 1) * of_part, N)) {  // the range is complete
      // Add the sums of team 1 to those of team 0, and those of the bias, in shared memory.
      float4* slot = reinterpret_cast<float4*>(shared4) + threadIdx.x % TEAM;
      if (team == 1) {
#pragma unroll
        for (int r = 0; r < 4; ++r) slot[r * TEAM] = sum[r];
      }
      right[threadIdx.x] = bias;
      __syncthreads();
      if (team == 0) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if (slab.first + k + r < slab.K)
            store_sum(slab, first_part + i, i, slab.first + k + r, p, combine(sum[r], slot[r * TEAM]));
        }
      }
      if (!IS_FIRST_LAYER && threadIdx.x < ROW_QUADS) {
        float4 total = zero4();
#pragma unroll 1
        for (int t = 4 * threadIdx.x; t < THREADS; t += CHANNEL_COLUMNS)
          total = combine(total, *reinterpret_cast<const float4*>(right + t));
        store_sum(slab, first_part + i, i, slab.C * CHANNEL_COLUMNS + slab.channel, 4 * threadIdx.x, total);
      }
      if (++i == params.of_block) break;
      __syncthreads();  // sums are read
      first = (first_part + i) * of_part, bias = 0.f;
#pragma unroll
      for (int r = 0; r < 4; ++r) sum[r] = zero4();
    }
    n = rows.list<IS_FIRST_LAYER>(slab, first, min((first_part + i + 1) * of_part, N));
    copy_left(0, min(n, SLAB_ROWS)), copy_right(0, min(n, SLAB_ROWS));
  }
}

__device__ __forceinline__ void channels_weights(const WeightSlabParams& params, float4* shared4) {
  const int N = params.members.of_step(params.size)[BatchSize::N];
  if (N == 0) return wait_for_previous();
  const WeightSlab& slab = params.members.of_step(params.slabs)[blockIdx.x / (LANES / params.of_block)];
  if (slab.channel < 0) {
    slab_gradient<true>(params, slab, N, shared4);
  } else {
    slab_gradient<false>(params, slab, N, shared4);
  }
}

}  // namespace fused
