// Definitions that all kernels of the fused backend share; no kernels here. fused/FUSED.md explains the step as a whole.
//
// A layer of the fused step is  Y = U W'  with U = [A_1 Z | … | A_C Z | a_1 … a_C | 0]  (N, K). Z is the activation of the
// previous layer, A_c the adjacency of channel c, a_c its row sums. The bias is C more rows of the weights:
// W' = [W_1; …; W_C; b_1; …; b_C].  The product with A comes before the product with W, with the same result:
// A (Z W + 1 b) = (A Z) W + (A 1) b. U of the first layer depends on no parameter.
// K is C F + C rounded up to 8; the columns beyond C F + C are 0. A dense layer is the same with A = I, C = 1.
//
// Z = dropout(relu((Y - mean) * slope + beta)) is never stored: kernels recompute it from Y.
// Without batch norm, mean = 0, slope = inverse = 1, beta = 0. In inference, batch norm is folded into W'; beta is then the
// part that cannot be folded (`Folding`).
#pragma once

#include "common/common.cuh"
#include "common/copies.cuh"
#include "common/philox.cuh"
#include "common/tensor_cores.cuh"

namespace fused {

// ---- order of kernels ----
// A kernel may start while the previous one still runs (programmatic dependent launch, from sm_90 on; elsewhere both
// lines do nothing). Each kernel waits once, and only then lets the next one start. So before its wait, a kernel may only
// read what kernels before the previous one wrote. Pointers to data that other kernels write are not __restrict__, so that
// the compiler moves no load above the wait.

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- the step ----
// Arrays of a few numbers, whose elements have names. They are aligned for int4.

// `size`, of the staged batch: nodes, graphs, its step in the epoch, the epoch.
struct BatchSize {
  enum Field { N, B, STEP, EPOCH, FIELDS };

  __device__ __forceinline__ static void write(int* size, int N, int B, int step, int epoch) {
    *reinterpret_cast<int4*>(size) = make_int4(N, B, step, epoch);
  }
};

// `progress`, of an epoch: the step to stage next; nodes, graphs and number of the last step, whose readout notes these four;
// the steps that run, FIRST … END - 1; the epoch; on ranks, the number of step 0 among the turns (fused/wide/ranks.cuh).
struct Progress {
  enum Field { NEXT, N, B, STEP, FIRST, END, EPOCH, TURN, FIELDS };

  int next, n_nodes, n_graphs, step;

  __device__ __forceinline__ static Progress read(const int* progress) {
    const int4 found = *reinterpret_cast<const int4*>(progress);
    return {found.x, found.y, found.z, found.w};
  }
  __device__ __forceinline__ static void note(int* progress, int N, int B, int step) {
    *reinterpret_cast<int4*>(progress) = make_int4(step + 1, N, B, step);
  }
};

// ---- members of a cohort ----
// A cohort trains several models of one architecture in the same launches. Arrays that each member has for itself lie in
// equal regions of memory, one region after the other. The host passes the arrays of the first region, and a kernel moves
// these pointers to its member's. All other arrays are shared. A single model is a cohort of one member.
//
// The host compiles these sources twice: IN_COHORT 1 for cohorts of several members, 0 for a model alone, which then pays
// nothing for them. A source that only one of them launches says so in a static_assert, and is compiled for it alone.
constexpr int MAX_MEMBERS = 64, REGION_UNIT = 256;  // REGION_UNIT: bytes; regions are a multiple of it
#ifndef IN_COHORT
#define IN_COHORT 0
#endif
constexpr bool SHARES_LAUNCHES = IN_COHORT != 0;

// The members of a launch: blocks with blockIdx.z = z work for the member in region places[z]. Members that stopped are not
// among them. Kernels move a pointer where they use it: moved all at once, they take many registers.
struct Members {
  unsigned model, work;  // size of a region in units of REGION_UNIT: of the model's arrays, and of the step's
  unsigned char places[MAX_MEMBERS];

  template <class T>
  __device__ __forceinline__ static T* move(T* first, unsigned units) {
    const char* from = reinterpret_cast<const char*>(first);
    return reinterpret_cast<T*>(const_cast<char*>(from + static_cast<unsigned long long>(units) * REGION_UNIT));
  }
  // The distance of this block's member's arrays of the step from the first member's.
  __device__ __forceinline__ unsigned units_of_step() const { return SHARES_LAUNCHES ? places[blockIdx.z] * work : 0; }
  // This block's member's array of the model, or of the step.
  template <class T>
  __device__ __forceinline__ T* of_model(T* first) const {
    return SHARES_LAUNCHES ? move(first, places[blockIdx.z] * model) : first;
  }
  template <class T>
  __device__ __forceinline__ T* of_step(T* first) const {
    return SHARES_LAUNCHES ? move(first, places[blockIdx.z] * work) : first;
  }
  // The same for arrays that may be null.
  template <class T>
  __device__ __forceinline__ T* of_model_or_null(T* first) const {
    return first ? of_model(first) : nullptr;
  }
  template <class T>
  __device__ __forceinline__ T* of_step_or_null(T* first) const {
    return first ? of_step(first) : nullptr;
  }
};

// Numbers that members may differ in: key, threshold and scale of dropout; the norm that gradients are clipped to.
struct MemberValues {
  unsigned long long seed;
  unsigned threshold;
  float keep_scale, max_norm;
};

// Those of a member; null, in inference: nothing is dropped.
__device__ __forceinline__ MemberValues values_at(const MemberValues* values) {
  return values ? *values : MemberValues{0, 0, 1.f, 0.f};
}

// ---- ranks ----

// What a phase does for a model on one rank: nothing more. fused/wide/ranks.cuh has what several ranks do.
struct Alone {
  static constexpr bool IS_ALONE = true;

  // The number of a block along rows and along columns; whether the block with the rows from i0 on is the first of these.
  __device__ __forceinline__ static unsigned row_block() { return blockIdx.x; }
  __device__ __forceinline__ static unsigned column_block() { return blockIdx.y; }
  __device__ __forceinline__ static bool is_first(int) { return blockIdx.x == 0; }
};

// ---- weights ----

// A copy of the parameters in the layout of W' ("packed"): (K, columns_of(P)), padded with zeros. The update writes both.
__host__ __device__ constexpr int columns_of(int P) { return (P + 3) / 4 * 4; }

// Batch norm in inference:  Y slope(p) + shift(p)  with the running statistics. The slope is folded into column p of W'.
// The shift cannot be: it is the same for all rows, but W' adds its bias times the row sum of A.
struct Folding {
  const float *gamma, *beta, *running_mean, *running_var;  // null: nothing is folded
  float epsilon;

  __device__ __forceinline__ float slope(int p) const {
    return gamma ? gamma[p] / sqrtf(running_var[p] + epsilon) : 1.f;
  }
  __device__ __forceinline__ float shift(int p) const { return beta[p] - running_mean[p] * slope(p); }
};

// The residual that TF32 cuts off x, rounded to TF32.
__device__ __forceinline__ float rest_of_tf32(float x) {
  return __uint_as_float(to_tf32(x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)));
}

// ---- activations ----

// Whether dropout kept element e; `kept` has a bit per element, eight in a byte; null: no dropout.
__device__ __forceinline__ bool is_kept(const unsigned char* kept, long long e) {
  return kept == nullptr || (kept[e >> 3] >> (e & 7) & 1);
}

// Draw the dropout bits of `elements` elements; the threads of `blocks` blocks share them.
__device__ __noinline__ void draw_kept(int block, int blocks, unsigned char* kept, const int* size,
                                       unsigned long long seed, unsigned long long purpose, unsigned threshold,
                                       long long elements) {
  const PhiloxKey key = {seed, purpose, static_cast<unsigned long long>(size[BatchSize::EPOCH]),
                         static_cast<unsigned long long>(size[BatchSize::STEP])};
  for (long long b = static_cast<long long>(block) * blockDim.x + threadIdx.x; 8 * b < elements;
       b += static_cast<long long>(blocks) * blockDim.x) {
    const PhiloxBlock drawn = philox(key, b);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits |= (drawn.value[i] >= threshold) << i;
    kept[b] = static_cast<unsigned char>(bits);
  }
}

}  // namespace fused
