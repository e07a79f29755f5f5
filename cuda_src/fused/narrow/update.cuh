// The last phase of a step: reduce the partial sums of the gradients, update the parameters, stage the next batch.
//
// A job is one parameter array. Element e of its gradient is the sum over s, in order, of  right[s],  the partial sums of a
// product (`left` null), or of  left[s] right[s],  a dense layer's inputs and gradients of graph s.
// Updates are those of dense/optimizer.cu. UPDATE does all in one launch. Clipping needs two: ONLY_GRADIENTS writes
// gradients and partial sums of their squared norm, APPLY reads both and updates. ONLY_GRADIENTS alone computes gradients.
// Shapes: parameters, m, v, gradients, weight_decay, l2 flat (n,); jobs (n_jobs,) Job; chunks (n_chunks,) of (job, first
//   element); norms (n_chunks,) double; totals (2,) double: the epoch's loss and weight; rates as in fused_readout.
// Launch: 256 threads, members in z; blocks stride over the graphs to stage and the chunks of parameters. Tox21's 9,900
//   parameters: 310 chunks of 32 elements with 8 lanes per element, and 50 graphs to stage.
// Shared memory: 1 KB, sums of lanes. Traffic: reads 4 n (parts + 5), writes 16 n bytes.
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
  long long step;                 // stride between columns of a part
  int start, count;               // in the flat arrays
  int left_stride, right_stride;  // strides between parts
  int parts, unit;                // one part per `unit` rows; 0: one per graph
  int F, C, P;                    // element (f, c P + p) is in row c F + f, column p of a part and of `packed`
  int columns, packed_columns;    // columns of such a row
};

// Row and column of element e; see Job.
__device__ __forceinline__ int2 place_of(const Job& job, int e) {
  const int f = e / (job.C * job.P), rest = e - f * job.C * job.P, c = rest / job.P;
  return make_int2(c * job.F + f, rest - c * job.P);
}

// This thread's partial sum of an element's gradient; HAS_LEFT: `left` is not null.
template <bool HAS_LEFT>
__device__ __forceinline__ float gradient_of(const Job& job, int2 place, int lane, int N, int B) {
  const int parts = min(job.parts, job.unit > 0 ? ceil_div(N, job.unit) : B);
  const float* right = job.right + (HAS_LEFT ? 0 : place.x * job.columns) + place.y * static_cast<int>(job.step);
  float sum = 0.f;
#pragma unroll 1
  for (int first = lane; first < parts; first += PARTS_AT_ONCE * LANES) {
    float value[PARTS_AT_ONCE];
#pragma unroll
    for (int u = 0; u < PARTS_AT_ONCE; ++u) {
      const int s = first + u * LANES;
      value[u] = s < parts ? right[static_cast<long long>(s) * job.right_stride] : 0.f;
      if (HAS_LEFT && s < parts) value[u] *= job.left[s * job.left_stride + place.x];
    }
#pragma unroll
    for (int u = 0; u < PARTS_AT_ONCE; ++u) sum += value[u];
  }
  return sum;
}

struct NarrowUpdateParams {
  UpdateParams common;
  const Job* jobs;
  const Stage* stage;

  __device__ __forceinline__ NarrowUpdateParams of_member() const {
    NarrowUpdateParams own = *this;
    own.common = common.of_member();
    Member(common.members).of_step(own.jobs, own.stage);
    return own;
  }
};

// UPDATE_THREADS / LANES elements of one job; `wait` may be called more than once.
template <class Wait>
__device__ __forceinline__ void update_chunk(const NarrowUpdateParams& params, int chunk, float* of_thread, Wait wait) {
  const UpdateParams& of = params.common;
  constexpr int elements = UPDATE_THREADS / LANES;
  // Before the wait: kernels before the previous one wrote everything but the gradients.
  const Job job = params.jobs[of.chunks[2 * chunk]];
  const int lane = threadIdx.x / elements, e = of.chunks[2 * chunk + 1] + threadIdx.x % elements, i = job.start + e;
  const bool exists = e < job.count, owns = exists && lane == 0;
  const int4 at = *reinterpret_cast<const int4*>(of.progress);  // next step, N, B, step
  if (at.z == 0) return;                                        // the member rests
  const int2 place = place_of(job, e);
  const float p = owns ? of.parameters[i] : 0.f;
  float of_m = owns ? of.m[i] : 0.f, of_v = owns && !of.sgd ? of.v[i] : 0.f;
  const float decay = owns ? of.weight_decay[i] : 0.f, penalty = owns ? of.l2[i] : 0.f;
  const Rate rate = of.rates[at.w];
  wait();

  float gradient = 0.f;
  if (of.mode == APPLY) {
    gradient = (owns ? of.gradients[i] : 0.f) * clip_factor(of.norms, of.n_chunks, of.values->max_norm);
  } else {
    if (exists)
      gradient =
          job.left ? gradient_of<true>(job, place, lane, at.y, at.z) : gradient_of<false>(job, place, lane, at.y, at.z);
    of_thread[threadIdx.x] = gradient;
    __syncthreads();
    if (lane == 0) {
#pragma unroll
      for (int s = 1; s < LANES; ++s) gradient += of_thread[threadIdx.x + s * elements];
    }
  }
  if (of.mode == ONLY_GRADIENTS) {
    if (owns) of.gradients[i] = gradient;
    const double squares = block_sum(owns ? static_cast<double>(gradient) * gradient : 0.0);
    if (threadIdx.x == 0) of.norms[chunk] = squares;
  } else if (owns) {
    const float value = of.rule().apply(p, gradient, of_m, of_v, decay, penalty, rate);
    of.m[i] = of_m;
    if (!of.sgd) of.v[i] = of_v;
    of.parameters[i] = value;
    if (job.packed) job.packed[place.x * job.packed_columns + place.y] = value;
  }
  if (of.mode != APPLY && of.totals && chunk == 0 && threadIdx.x < 32)
    add_totals(of.totals, of.losses, of.n_losses, rate.label_weight);
}

__device__ __forceinline__ void update_phase(const NarrowUpdateParams& params, float4* shared4) {
  bool is_waiting = true;
  const auto wait_once = [&] {
    if (is_waiting) wait_for_previous();
    is_waiting = false;
  };
#pragma unroll 1
  for (int unit = blockIdx.x; unit < params.common.n_chunks + params.common.n_stages; unit += gridDim.x) {
    if (unit != blockIdx.x) __syncthreads();  // shared memory may be overwritten
    if (unit < params.common.n_stages) {      // first: they follow the longest chain of pointers before their wait
      stage_batch(*params.stage, unit, params.common.n_stages, wait_once);
    } else {
      update_chunk(params, unit - params.common.n_stages, reinterpret_cast<float*>(shared4), wait_once);
    }
  }
  wait_once();
}

}  // namespace fused
