// The last phase of a step: reduce the partial sums of the gradients, update the parameters, stage the next batch.
//
// A job is one parameter array. Element e of its gradient is the sum over s of  right[s],  the partial sums of a product (`left`
// null), or of  left[s] right[s],  a dense layer's inputs and gradients of graph s: those of a lane in order, then lanes in pairs
// and pairs of pairs.
// Updates are those of dense/optimizer.cu. UPDATE does all in one launch. Clipping needs two: ONLY_GRADIENTS writes
// gradients and partial sums of their squared norm, APPLY reads both and updates. ONLY_GRADIENTS alone computes gradients.
// Shapes: parameters, m, v, gradients, weight_decay, l2 flat (n,); jobs (n_jobs,) Job; chunks (n_chunks,)
//   UpdateChunk; norms (n_chunks,) double; totals (2,) double: the epoch's loss and weight; rates as in fused_readout.
// Launch: 256 threads, members in z; blocks that stage, then a block per chunk of parameters. Tox21's 10,060 parameters: 315
//   chunks of 32 elements with 8 lanes per element, and 50 graphs to stage. In large cohorts, and where there are many
//   parameters, a chunk has 128 elements; 1,024 where large cohorts have eight partial sums or fewer, which a thread adds alone, and
//   2,048, in two passes, in cohorts of models with many parameters.
//   In cohorts a warp stages a graph: 7 blocks a member; graphs with many numbers have a block each there, too.
// Shared memory: up to 4 KB, sums of lanes. Traffic: reads 4 n (parts + 5), writes 16 n bytes.
// Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused/narrow/tile.cuh"
#include "fused/shared/optimizer.cuh"
#include "fused/shared/stage.cuh"

namespace fused {

constexpr int PARTS_AT_ONCE = 8;  // loads in flight per thread

// One parameter array.
struct Job {
  const float *left, *right;
  float* packed;                  // the array in the layout that kernels read, or null
  const int* places;              // the place of row c F + f, or null: places are rows; -1: none, the gradient is 0
  long long step;                 // stride between columns of a part
  int start, count;               // in the flat arrays
  int left_stride, right_stride;  // strides between parts
  int parts, unit;                // one part per `unit` rows; 0: one per graph
  int F, C, P;                    // element (f, c P + p) is in row c F + f, column p of a part and of `packed`
  int columns, packed_columns;    // columns of such a row
};

// A chunk of a job's elements, for a block: from `first` on, `passes` times `width` elements per group of `lanes` threads. Lanes
// share the partial sums of their elements: 1 or LANES. Only in cohorts, and with one lane, there are several.
struct UpdateChunk {
  int job, first, width, lanes, passes;
};

// Where an element is in a part and in `packed`.
struct Place {
  int row, column;
};

// Neighbouring elements of one row.
template <int WIDTH>
struct Elements {
  float of[WIDTH];

  __device__ __forceinline__ static Elements load(const float* from) {
    Elements to;
    if constexpr (WIDTH == 4) {
      const float4 found = *reinterpret_cast<const float4*>(from);
      to.of[0] = found.x, to.of[1] = found.y, to.of[2] = found.z, to.of[3] = found.w;
    } else {
      to.of[0] = *from;
    }
    return to;
  }
  __device__ __forceinline__ void store(float* to) const {
    if constexpr (WIDTH == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(of[0], of[1], of[2], of[3]);
    } else {
      *to = of[0];
    }
  }
  __device__ __forceinline__ void add(const Elements& other, float factor = 1.f) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) of[w] += other.of[w] * factor;
  }
};

// What a thread reads of its elements beside their gradient.
template <int WIDTH>
struct Updated {
  Elements<WIDTH> p, m, v;

  __device__ __forceinline__ void load(const UpdateParams& of, int i) {
    p = p.load(of.members.of_model(of.parameters) + i), m = m.load(of.members.of_model(of.m) + i);
    if (!of.sgd) v = v.load(of.members.of_model(of.v) + i);
  }
  __device__ __forceinline__ static void prefetch(const UpdateParams& of, int i) {
    prefetch_to_l2(of.members.of_model(of.parameters) + i), prefetch_to_l2(of.members.of_model(of.m) + i);
    if (!of.sgd) prefetch_to_l2(of.members.of_model(of.v) + i);
  }
  __device__ __forceinline__ void store(const UpdateParams& of, int i) const {
    m.store(of.members.of_model(of.m) + i);
    if (!of.sgd) v.store(of.members.of_model(of.v) + i);
    p.store(of.members.of_model(of.parameters) + i);
  }
};

// Row and column of element e, which exists; see Job.
__device__ __forceinline__ Place place_of(const Job& job, int e) {
  const int f = e / (job.C * job.P), rest = e - f * job.C * job.P, c = rest / job.P, row = c * job.F + f;
  return {job.places ? job.places[row] : row, rest - c * job.P};
}

// This thread's partial sums of the gradients of neighbouring elements; HAS_LEFT: `left` is not null.
template <int WIDTH, bool HAS_LEFT>
__device__ __forceinline__ Elements<WIDTH> gradient_of(const Job& job, Place place, int lane, int N, int B) {
  const int parts = min(job.parts, job.unit > 0 ? ceil_div(N, job.unit) : B);
  const float* right = job.right + (HAS_LEFT ? 0 : place.row * job.columns) + place.column * static_cast<int>(job.step);
  constexpr int AT_ONCE = WIDTH == 1 ? PARTS_AT_ONCE : PARTS_AT_ONCE / 2;
  Elements<WIDTH> sum = {};
#pragma unroll 1
  for (int first = lane; first < parts; first += AT_ONCE * LANES) {
    Elements<WIDTH> value[AT_ONCE] = {};
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u) {
      const int s = first + u * LANES;
      if (s >= parts) continue;
      value[u] = Elements<WIDTH>::load(right + static_cast<long long>(s) * job.right_stride);
      const float factor = HAS_LEFT ? job.left[s * job.left_stride + place.row] : 1.f;
#pragma unroll
      for (int w = 0; HAS_LEFT && w < WIDTH; ++w) value[u].of[w] *= factor;
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u) sum.add(value[u]);
  }
  return sum;
}

// The sum of what COUNT neighbouring lanes have of an element: of pairs, of pairs of these, and so on, so that neighbours may be
// added before.
template <int WIDTH, int COUNT>
__device__ __forceinline__ Elements<WIDTH> sum_of_all(Elements<WIDTH> (&of_lanes)[COUNT]) {
#pragma unroll
  for (int pairs = 1; pairs < COUNT; pairs *= 2)
#pragma unroll
    for (int s = 0; s < COUNT; s += 2 * pairs) of_lanes[s].add(of_lanes[s + pairs]);
  return of_lanes[0];
}

// The same for all of at most LANES partial sums of a product, added as those of the lanes.
template <int WIDTH>
__device__ __forceinline__ Elements<WIDTH> whole_gradient_of(const Job& job, Place place, int N) {
  const int parts = min(job.parts, ceil_div(N, job.unit));
  const float* right = job.right + place.row * job.columns + place.column;
  Elements<WIDTH> value[LANES] = {};
#pragma unroll
  for (int s = 0; s < LANES; ++s)
    if (s < parts) value[s] = Elements<WIDTH>::load(right + static_cast<long long>(s) * job.right_stride);
  return sum_of_all(value);
}

// The same for products of inputs and gradients of graphs, added in their order; whole warps call. A warp with elements of one
// row skips graphs whose input is 0: counts of fingerprints mostly are.
template <int WIDTH>
__device__ __forceinline__ Elements<WIDTH> gradient_of_graphs(const Job& job, Place place, int B) {
  constexpr int AT_ONCE = 4;  // graphs whose gradients are loaded at once
  const int graphs = min(job.parts, B), lane = threadIdx.x % 32, row = __shfl_sync(FULL_WARP, place.row, 0);
  const float* right = job.right + place.column;
  Elements<WIDTH> sum = {};
  if (!__all_sync(FULL_WARP, place.row == row)) {
#pragma unroll 8
    for (int b = 0; place.row >= 0 && b < graphs; ++b)
      sum.add(Elements<WIDTH>::load(right + b * job.right_stride), job.left[b * job.left_stride + place.row]);
    return sum;
  }
#pragma unroll 1
  for (int first = 0; row >= 0 && first < graphs; first += 32) {
    const float input = first + lane < graphs ? job.left[(first + lane) * job.left_stride + row] : 0.f;
#pragma unroll 1
    for (unsigned left = __ballot_sync(FULL_WARP, input != 0.f); left;) {
      Elements<WIDTH> value[AT_ONCE];
      float factor[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const int b = left ? __ffs(left) - 1 : 0;
        factor[u] = __shfl_sync(FULL_WARP, input, b);
        if (!left) factor[u] = 0.f;
        value[u] = left ? Elements<WIDTH>::load(right + (first + b) * job.right_stride) : Elements<WIDTH>{};
        left &= left - 1;
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) sum.add(value[u], factor[u]);
    }
  }
  return sum;
}

struct NarrowUpdateParams {
  UpdateParams common;
  const Job* jobs;
  const Stage* stage;
  int stages_by_blocks;  // in cohorts: whether a graph has a block, not a warp
};

// The elements of a chunk. A sum over lanes is in shared memory, lane by lane. Elements of all passes are on their way to L2 before
// the first pass.
template <int WIDTH, int OWN_LANES = LANES>
__device__ __forceinline__ void update_chunk(const NarrowUpdateParams& params, const UpdateChunk& chunk, int number,
                                             const Job& job, const Progress& at, float* of_thread) {
  const UpdateParams& of = params.common;
  // Before the wait: kernels before the previous one wrote everything but the gradients.
  constexpr int UPDATE_GROUPS = UPDATE_THREADS / OWN_LANES;  // of threads, each with neighbouring elements
  const int group = threadIdx.x % UPDATE_GROUPS, lane = threadIdx.x / UPDATE_GROUPS;
  constexpr bool HAS_PASSES = SHARES_LAUNCHES && OWN_LANES == 1;
  const auto owns = [&](int e) { return e < job.count && lane == 0; };
  const auto place_at = [&](int e) { return e < job.count ? place_of(job, e) : Place{-1, 0}; };
  int e = chunk.first + WIDTH * group;
  Place place = place_at(e);
  Updated<WIDTH> own = {};
  float decay = 0.f, penalty = 0.f;  // one number each for all elements of a job
  if (owns(e)) {
    own.load(of, job.start + e);
    if (!SHARES_LAUNCHES || of.weight_decay) {
      decay = of.members.of_model(of.weight_decay)[job.start];
      penalty = of.members.of_model(of.l2)[job.start];
    }
  }
  const Rate rate = of.members.of_step(of.rates)[at.step];
  const int passes = HAS_PASSES ? chunk.passes : 1;
#pragma unroll 1
  for (int pass = 1; pass < passes; ++pass) {
    const int later = e + pass * WIDTH * UPDATE_GROUPS;
    if (owns(later)) Updated<WIDTH>::prefetch(of, job.start + later);
  }
  // The readout left inputs and gradients of dense layers, and no kernel after it reads their weights.
  const bool waits_last = OWN_LANES == 1 && job.left && of.mode != APPLY;
  if (!waits_last) wait_for_previous();

#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    const int i = job.start + e;
    const bool is_own = owns(e);
    if (pass > 0) place = place_at(e);
    if (pass > 0 && is_own) own.load(of, i);
    Elements<WIDTH> gradient = {};
    if (of.mode == APPLY) {
      const float factor =
          clip_factor(of.members.of_step(of.norms), of.n_chunks, of.members.of_model(of.values)->max_norm);
      if (is_own) gradient = gradient.load(of.members.of_model(of.gradients) + i);
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) gradient.of[w] *= factor;
    } else if constexpr (OWN_LANES == 1) {
      if (job.left) {
        gradient = gradient_of_graphs<WIDTH>(job, place, at.n_graphs);
      } else if (place.row >= 0) {
        gradient = whole_gradient_of<WIDTH>(job, place, at.n_nodes);
      }
    } else {
      if (place.row >= 0)
        gradient = job.left ? gradient_of<WIDTH, true>(job, place, lane, at.n_nodes, at.n_graphs)
                            : gradient_of<WIDTH, false>(job, place, lane, at.n_nodes, at.n_graphs);
      gradient.store(of_thread + WIDTH * threadIdx.x);
      __syncthreads();
      gradient = {};
#pragma unroll 1
      for (int half = 0; lane == 0 && half < LANES; half += LANES / 2) {
        Elements<WIDTH> of_lanes[LANES / 2];
#pragma unroll
        for (int s = 0; s < LANES / 2; ++s)
          of_lanes[s] = gradient.load(of_thread + WIDTH * (group + (half + s) * UPDATE_GROUPS));
        gradient.add(sum_of_all(of_lanes));
      }
    }
    if (of.mode == ONLY_GRADIENTS) {
      if (is_own) gradient.store(of.members.of_model(of.gradients) + i);
      const double squares = block_sum(is_own ? static_cast<double>(gradient.of[0]) * gradient.of[0] : 0.0);
      if (threadIdx.x == 0) of.members.of_step(of.norms)[number] = squares;
    } else if (is_own) {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w)
        own.p.of[w] = of.rule().apply(own.p.of[w], gradient.of[w], own.m.of[w], own.v.of[w], decay, penalty, rate);
      own.store(of, i);
      if (job.packed && place.row >= 0) own.p.store(job.packed + place.row * job.packed_columns + place.column);
    }
    e += WIDTH * UPDATE_GROUPS;
  }
  if (waits_last) wait_for_previous();
  if (of.mode != APPLY && of.totals && number == 0 && threadIdx.x < 32)
    add_totals(of.members.of_model(of.totals), of.members.of_step(of.losses), of.n_losses, rate.label_weight);
}

// A block has one unit: a share of the graphs to stage, or a chunk. Chunks of four elements a thread take registers, which
// small models alone do without.
template <bool HAS_WIDE_CHUNKS>
__device__ __forceinline__ void update_phase(const NarrowUpdateParams& params, float4* shared4) {
  const UpdateParams& of = params.common;
  const int n_stages = of.n_stages, number = blockIdx.x - n_stages;
  if (number < 0) {  // first: they follow the longest chain of pointers before their wait
    bool is_waiting = true;
    const auto wait = [&] {
      if (is_waiting) wait_for_previous();
      is_waiting = false;
    };
    const Stage& stage = *of.members.of_step(params.stage);
    const int* progress = of.members.of_step(of.progress);
    if (SHARES_LAUNCHES && !params.stages_by_blocks) {
      stage_batch_early<Stagers<SHARES_LAUNCHES>>(stage, progress, blockIdx.x, n_stages, wait);
    } else {
      stage_batch_early<StagersOfBlock>(stage, progress, blockIdx.x, n_stages, wait);
    }
    return;
  }
  const Progress at = Progress::read(of.members.of_step(of.progress));
  if (SHARES_LAUNCHES && at.n_graphs == 0) return wait_for_previous();  // the member is idle
  const UpdateChunk chunk = static_cast<const UpdateChunk*>(of.chunks)[number];
  const Job job = of.members.of_step(params.jobs)[chunk.job];
  float* of_thread = reinterpret_cast<float*>(shared4);
  if (HAS_WIDE_CHUNKS && chunk.lanes == 1) {
    update_chunk<4, 1>(params, chunk, number, job, at, of_thread);
  } else if (HAS_WIDE_CHUNKS && chunk.width == 4) {
    update_chunk<4>(params, chunk, number, job, at, of_thread);
  } else {
    update_chunk<1>(params, chunk, number, job, at, of_thread);
  }
}

}  // namespace fused
