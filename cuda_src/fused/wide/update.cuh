// The update of wide layers, a template over the job: fused/fp16/update.cuh has another one. Unlike narrow layers, there are
// many parameters, and the weights are also written as panels, forward and backward.
//
// A chunk is a tile of 32 x 32 (HEIGHT of them, one below the other) of a job's matrix W' = [W_1; …; W_C; b_1; …; b_C], (C F
// + C, P). Its rows are stored in the parameters' flat arrays. gamma and beta are jobs of biases alone (F = 0). The gradient
// is the sum of `n_partials` matrices (fused_wide_product_dw_… leaves them), or, for dense layers on graphs, [inputs | 1]ᵀ
// gradients over the graphs of the batch.
// Shapes: see UpdateParams; chunks (n_chunks, 4): job, first row, first column, unused.
// Launch: 256 threads, four neighbours of a row in each; a block does a chunk or stages graphs. 512 x 512: 17 x 16 chunks.
// Shared memory: 8 KB, static; rows of 33 floats, or read in order: no bank conflicts but two-way ones of the transpose.
// Traffic: reads 4 n (partials + 5), writes 12 n and 8 n of panels.
// Determinism: one writer per output, fixed order: bit-repeatable.
//
// Waits. `wait_for_previous` once; before it a block reads its job and prefetches parameters, m and v, and a staging block
// reads the plan and prefetches graphs into L2. __syncthreads: for each 32 graphs of a dense layer, before and after they are
// written to `tile`; and when the new weights are in `tile`, before its columns are read.
#pragma once

#include "fused/shared/optimizer.cuh"
#include "fused/shared/stage.cuh"

namespace fused {

// Prefetch a cache line into L2; no register waits for it.
__device__ __forceinline__ void prefetch_l2(const float* data) { asm volatile("prefetch.global.L2 [%0];" ::"l"(data)); }

// Copy 16 bytes to shared memory; this thread finds them there after `wait_for_async_copies`.
__device__ __forceinline__ void copy_async(float4* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  *to = *reinterpret_cast<const float4*>(from);
#endif
}

__device__ __forceinline__ void wait_for_async_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Four neighbours of a row of P, of which only some may exist.
struct Four {
  float v[4];

  __device__ __forceinline__ static Four load(const float* from, int existing) {
    const float4 found = load4(from, existing, is_aligned(from, 0));
    return {{found.x, found.y, found.z, found.w}};
  }
  __device__ __forceinline__ void store(float* to, int existing) const {
    store4(to, make_float4(v[0], v[1], v[2], v[3]), existing, is_aligned(to, 0));
  }
};

// The parameters of a layer, or a vector of them.
struct WideJob {
  static constexpr bool BY_GRAPHS = true;     // `left` may be given
  static constexpr bool PREFETCHES = false;   // to shared memory; else to L2
  static constexpr int HEIGHT = 1;            // tiles of a chunk
  static constexpr int PARTIALS_AT_ONCE = 4;  // that a thread loads before it adds the first
  const float *left, *right;  // partial sums in `right` (n_partials, rows, P); or (graphs, F), (graphs, P)
  float *forward, *backward;  // panels, or null
  int weight, bias;           // first element in the flat arrays
  int F, C, P;
  int n_partials, partial_stride;
  int round;  // panels are for TF32

  __device__ __forceinline__ int rows() const { return C * F + C; }
  __device__ __forceinline__ bool is_bias(int k) const { return k >= C * F; }
  // First element of row k in the flat arrays.
  __device__ __forceinline__ int start(int k) const {
    if (is_bias(k)) return bias + (k - C * F) * P;
    const int c = k / F;
    return weight + (k - c * F) * C * P + c * P;
  }

  // The value as the products read it.
  __device__ __forceinline__ float prepared(float value) const {
    return round ? __uint_as_float(to_tf32(value)) : value;
  }
  // Write four neighbours to the panels: of row k from column p on, of column p from row k on.
  __device__ __forceinline__ void write_row(int k, int p, Four value) const {
    if (k >= C * F) return;
    const int c = k / F, columns = ceil_div(P, PANEL) * PANEL;
    put(backward + in_panel(k - c * F, c * columns + p, F), value, static_cast<long long>(C) * columns * F);
  }
  __device__ __forceinline__ void write_column(int k, int p, Four value) const {
    if (p >= P) return;
    put(forward + in_panel(p, k, P), value, static_cast<long long>(ceil_div(rows(), PANEL)) * PANEL * P);
  }
  // For 3xTF32 the residuals follow in further panels.
  __device__ __forceinline__ void put(float* to, Four value, long long residuals) const {
    value.store(to, 4);
    if (round) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) value.v[i] = rest_of_tf32(value.v[i]);
    value.store(to + residuals, 4);
  }
};

// A chunk of a job, for a block: its first row and column.
struct __align__(16) WideChunk {
  int job, row, column;
};

struct WideUpdateParams {
  UpdateParams common;
  const WideJob* jobs;
  const Stage* stage;
};

// The old values of a thread's parameters, m and v. If shared memory is spare, they are copied there before the previous
// kernel has ended; else they are prefetched into L2.
template <int HEIGHT, bool IN_SHARED>
struct Prefetched {
  float4 (*ahead)[HEIGHT][UPDATE_THREADS];

  __device__ __forceinline__ void start(int which, int h, const float* from, int existing) const {
    if constexpr (IN_SHARED) {
      float4* to = &ahead[which][h][threadIdx.x];
      if (existing == 4 && is_aligned(from, 0)) {
        copy_async(to, from);
      } else {
        *to = load4(from, existing, false);
      }
    } else if (existing > 0 && threadIdx.x % 8 == 0) {  // eight threads share a line of 128 bytes
      prefetch_l2(from);
    }
  }
  __device__ __forceinline__ Four get(int which, int h, const float* from, int existing) const {
    if constexpr (!IN_SHARED) return Four::load(from, existing);
    const float4 found = ahead[which][h][threadIdx.x];
    return {{found.x, found.y, found.z, found.w}};
  }
};

// The update of a chunk.
template <class Job>
struct WideUpdate {
  static constexpr int LD = PANEL + 1, HEIGHT = Job::HEIGHT;
  using OldValues = Prefetched<HEIGHT, Job::PREFETCHES>;
  using Tile = float[2 * PANEL][LD];

  const UpdateParams& of;

  __device__ __forceinline__ WideChunk chunk(int number) const {
    return static_cast<const WideChunk*>(of.chunks)[number];
  }

  // The gradients of four neighbours in each of the chunk's tiles.
  __device__ __forceinline__ void sum_partials(Four (&sum)[HEIGHT], const Job& job, int k, int p,
                                               const int (&existing)[HEIGHT]) const {
    constexpr int AT_ONCE = Job::PARTIALS_AT_ONCE;
    const float* from = job.right + static_cast<long long>(k) * job.P + p;
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) sum[h] = {};
#pragma unroll 1
    for (int s = 0; s < job.n_partials; s += AT_ONCE) {
      Four found[AT_ONCE][HEIGHT];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const bool is_there = s + u < job.n_partials;
        const float* partial = from + static_cast<long long>(is_there ? s + u : s) * job.partial_stride;
#pragma unroll
        for (int h = 0; h < HEIGHT; ++h)
          found[u][h] = Four::load(partial + h * PANEL * job.P, is_there ? existing[h] : 0);
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
#pragma unroll
        for (int h = 0; h < HEIGHT; ++h) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[h].v[i] += found[u][h].v[i];
        }
      }
    }
  }

  // The gradient of a dense layer on graphs: a sum over graphs, 32 at a time. All threads call.
  __device__ __forceinline__ Four sum_graphs(const Job& job, int k0, int p0, int B, Tile& tile) const {
    const int row = threadIdx.x / 8, first = threadIdx.x % 8 * 4;
    Four sum = {}, left, right;
    const auto read = [&](int b) {
      left = Four::load(job.left + b * job.F + k0 + first, b < B ? min(max(job.F - k0 - first, 0), 4) : 0);
      right = Four::load(job.right + b * job.P + p0 + first, b < B ? min(max(job.P - p0 - first, 0), 4) : 0);
    };
    read(row);
#pragma unroll 1
    for (int b0 = 0; b0 < B; b0 += PANEL) {
      const bool is_there = b0 + row < B;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        tile[row][first + i] = is_there && k0 + first + i == job.F ? 1.f : left.v[i];
        tile[PANEL + row][first + i] = right.v[i];
      }
      __syncthreads();
      read(b0 + PANEL + row);
#pragma unroll 8
      for (int g = 0; g < PANEL; ++g) {
        const float left = tile[g][row];
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.v[i] = fmaf(left, tile[PANEL + g][first + i], sum.v[i]);
      }
    }
    __syncthreads();
    return sum;
  }

  // old: shared memory (3, HEIGHT, UPDATE_THREADS), or null. ranks: adds the gradients of all ranks
  // (fused/wide/ranks_step.cu).
  template <class OfRanks = Alone>
  __device__ __forceinline__ void run(int number, const WideChunk& chunk, const Job& job, Tile& tile, OldValues old,
                                      const OfRanks& ranks = {}) const {
    // Only gradients, progress and losses come from the previous kernel.
    const int k = chunk.row + threadIdx.x / 8, p = chunk.column + threadIdx.x % 8 * 4;
    int existing[HEIGHT], at[HEIGHT];
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      existing[h] = k + h * PANEL < job.rows() ? min(max(job.P - p, 0), 4) : 0;
      at[h] = existing[h] > 0 ? job.start(k + h * PANEL) + p : 0;
    }
    const Progress now = Progress::read(of.progress);
    const Rate rate = of.rates[now.step];
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      if (of.mode == ONLY_GRADIENTS) continue;
      old.start(0, h, of.parameters + at[h], existing[h]), old.start(1, h, of.m + at[h], existing[h]);
      if (!of.sgd) old.start(2, h, of.v + at[h], existing[h]);
    }
    wait_for_previous();

    Four gradient[HEIGHT];
    if (of.mode == APPLY) {
      const float factor = clip_factor(of.norms, of.n_chunks, of.values->max_norm);
#pragma unroll
      for (int h = 0; h < HEIGHT; ++h) {
        gradient[h] = Four::load(of.gradients + at[h], existing[h]);
#pragma unroll
        for (int i = 0; i < 4; ++i) gradient[h].v[i] *= factor;
      }
    } else if (Job::BY_GRAPHS && job.left) {
      gradient[0] = sum_graphs(job, chunk.row, chunk.column, now.n_graphs, tile);
    } else {
      sum_partials(gradient, job, k, p, existing);
    }
    if constexpr (!OfRanks::IS_ALONE) ranks.sum(gradient[0], number, now.step);
    if (of.mode != APPLY && of.totals && number == 0 && threadIdx.x < 32)
      add_totals(of.totals, of.losses, of.n_losses, rate.label_weight);
    if (of.mode == ONLY_GRADIENTS) return store_gradients(number, gradient, existing, at);
    if constexpr (Job::PREFETCHES) wait_for_async_copies();
    Four value[HEIGHT], of_m[HEIGHT], of_v[HEIGHT];
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      value[h] = old.get(0, h, of.parameters + at[h], existing[h]);
      of_m[h] = old.get(1, h, of.m + at[h], existing[h]);
      of_v[h] = of.sgd ? Four{} : old.get(2, h, of.v + at[h], existing[h]);
    }
    const Rule rule = of.rule();
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      Four decay = {}, penalty = {};
      if (of.weight_decay)
        decay = Four::load(of.weight_decay + at[h], existing[h]), penalty = Four::load(of.l2 + at[h], existing[h]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        value[h].v[i] =
            rule.apply(value[h].v[i], gradient[h].v[i], of_m[h].v[i], of_v[h].v[i], decay.v[i], penalty.v[i], rate);
      value[h].store(of.parameters + at[h], existing[h]), of_m[h].store(of.m + at[h], existing[h]);
      if (!of.sgd) of_v[h].store(of.v + at[h], existing[h]);
    }
    if (job.forward) write_panels(job, chunk.row, chunk.column, value, existing, tile);
  }

  // Store the gradients and the chunk's part of their squared norm.
  __device__ __forceinline__ void store_gradients(int number, const Four (&gradient)[HEIGHT],
                                                  const int (&existing)[HEIGHT], const int (&at)[HEIGHT]) const {
    double squares = 0.0;
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      gradient[h].store(of.gradients + at[h], existing[h]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        squares += i < existing[h] ? static_cast<double>(gradient[h].v[i]) * gradient[h].v[i] : 0.0;
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0) of.norms[number] = squares;
  }

  __device__ __forceinline__ void write_panels(const Job& job, int k0, int p0, Four (&value)[HEIGHT],
                                               const int (&existing)[HEIGHT], Tile& tile) const {
    const int row = threadIdx.x / 8, first = threadIdx.x % 8 * 4;
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[h].v[i] = i < existing[h] ? job.prepared(value[h].v[i]) : 0.f;
        tile[h * PANEL + row][first + i] = value[h].v[i];
      }
      job.write_row(k0 + h * PANEL + row, p0 + first, value[h]);
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      Four across;
#pragma unroll
      for (int i = 0; i < 4; ++i) across.v[i] = tile[h * PANEL + first + i][row];
      job.write_column(k0 + h * PANEL + first, p0 + row, across);
    }
  }
};

}  // namespace fused
