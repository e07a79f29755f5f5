// The last phase of a step with wide layers: as fused_update, by tiles of 32 x 32 of the matrices W', because there are
// many parameters, and the weights are to be written as panels both ways.
//
// Templates, for what a job is: fused/fp16/update.cuh has another one.
//
// A job is W' = [W_1; …; W_C; b_1; …; b_C] of one layer, (C F + C, P), whose rows are where the parameters' flat arrays
// have them; gamma and beta are jobs of biases alone (F = 0). Its gradient is the sum of `parts` matrices (what
// fused_product_dw_… leaves), or, for dense layers on graphs, [inputs | 1]ᵀ gradients over the graphs of the batch.
// `mode` as in fused_update. weight_decay and l2 are null where nothing decays.
// Shapes: as in fused_update; chunks (n_chunks, 4): job, first row, first column; norms (n_chunks,).
// Launch: 256 threads, four neighbours of a row in each; a block does a tile or stages graphs. 512 x 512: 17 x 16 tiles.
// Shared memory: 8 KB, static; rows of 33 or read as they lie: no bank conflicts but two-way ones of the transpose.
// Traffic: reads 4 n (parts + 5), writes 12 n and 8 n of panels.
// Determinism: one writer per output, fixed order: repeats to the bit.
#pragma once

#include "fused/shared/optimizer.cuh"
#include "fused/shared/stage.cuh"

namespace fused {

// Ask for a line of memory, which will be in the second-level cache then: no register waits for it.
__device__ __forceinline__ void prefetch_l2(const float* data) { asm volatile("prefetch.global.L2 [%0];" ::"l"(data)); }

// Copy 16 bytes to shared memory; they are there after `wait_for_copies`, for this thread.
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

// Four neighbours of a row of P, of which some may be beyond it.
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

// As the host fills it: four times 8 bytes, then 4 bytes a field.
struct WideJob {
  static constexpr bool BY_GRAPHS = true;  // there may be a `left`
  static constexpr bool PREFETCHES = false;
  static constexpr int HEIGHT = 1;         // tiles of a block
  static constexpr int PARTIALS_AT_ONCE = 4;  // that a thread has asked for before it adds the first
  const float *left, *right;               // parts of `right` (parts, rows, P); or left (graphs, F), right (graphs, P)
  float *forward, *backward;               // panels, or null
  int weight, bias;                        // where they start in the flat arrays
  int F, C, P;
  int partials, partial_stride;
  int round;  // panels are for TF32

  __device__ __forceinline__ int rows() const { return C * F + C; }
  __device__ __forceinline__ bool is_bias(int k) const { return k >= C * F; }
  // Where row k begins in the flat arrays.
  __device__ __forceinline__ int start(int k) const {
    if (is_bias(k)) return bias + (k - C * F) * P;
    const int c = k / F;
    return weight + (k - c * F) * C * P + c * P;
  }
  __device__ __forceinline__ static void stage(const long long* stage, int block, int blocks) {
    stage_batch(*reinterpret_cast<const Stage*>(stage), block, blocks, wait_for_previous);
  }

  // As the products take it.
  __device__ __forceinline__ float prepared(float value) const {
    return round ? __uint_as_float(to_tf32(value)) : value;
  }
  // Four neighbours of row k, from column p on, to the panels; and of column p, from row k on.
  __device__ __forceinline__ void write_row(int k, int p, Four value) const {
    if (k >= C * F) return;
    const int c = k / F, columns = ceil_div(P, PANEL) * PANEL;
    put(backward + in_panel(k - c * F, c * columns + p, F), value, static_cast<long long>(C) * columns * F);
  }
  __device__ __forceinline__ void write_column(int k, int p, Four value) const {
    if (p >= P) return;
    put(forward + in_panel(p, k, P), value, static_cast<long long>(ceil_div(rows(), PANEL)) * PANEL * P);
  }
  // And, but for TF32, their rests in the panels behind.
  __device__ __forceinline__ void put(float* to, Four value, long long residuals) const {
    value.store(to, 4);
    if (round) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) value.v[i] = rest_of_tf32(value.v[i]);
    value.store(to + residuals, 4);
  }
};

// What older values of a block's parameters a thread has asked for: their own, m and v. In shared memory, if the kernel has
// some to spare, for then they may come before the phase before has ended; else only near.
template <int HEIGHT, bool IN_SHARED>
struct Prefetched {
  float4 (*ahead)[HEIGHT][UPDATE_THREADS];

  __device__ __forceinline__ void prefetch_value(int which, int h, const float* from, int existing) const {
    if constexpr (IN_SHARED) {
      float4* to = &ahead[which][h][threadIdx.x];
      if (existing == 4 && is_aligned(from, 0)) {
        copy_async(to, from);
      } else {
        *to = load4(from, existing, false);
      }
    } else if (existing > 0 && threadIdx.x % 8 == 0) {  // a line of 128 bytes to eight threads
      prefetch_l2(from);
    }
  }
  __device__ __forceinline__ Four get(int which, int h, const float* from, int existing) const {
    if constexpr (!IN_SHARED) return Four::load(from, existing);
    const float4 found = ahead[which][h][threadIdx.x];
    return {{found.x, found.y, found.z, found.w}};
  }
};

// The phase with its arguments, in the order of fused_wide_update in fused/wide/step.cu.
template <class OneJob>
struct WideUpdate {
  static constexpr int LD = PANEL + 1, HEIGHT = OneJob::HEIGHT;
  using Prefetches = Prefetched<HEIGHT, OneJob::PREFETCHES>;

  float* parameters;
  float* m;
  float* v;
  float* gradients;
  double* norms;
  double* totals;
  const double* losses;
  const float* weight_decay;
  const float* l2;
  const float* rates;
  const int* progress;
  const long long* jobs;
  const int* chunks;
  const long long* stage;
  int n_chunks;
  int n_stages;
  int n_losses;
  int mode;
  Rule rule;
  float max_norm;

  // asked: shared memory, (3, HEIGHT, 256) of it, or null.
  __device__ __forceinline__ void run(float (&tile)[2 * PANEL][LD], Prefetches prefetched) const {
    const int block = blockIdx.x;
    if (block < n_stages) {
      OneJob::stage(stage, block, n_stages);
    } else {
      update_tile(block - n_stages, tile, prefetched);
    }
  }

  // The gradients of four neighbours in each of the block's tiles: sums of parts.
  __device__ __forceinline__ void sum_partials(Four (&sum)[HEIGHT], const OneJob& job, int k, int p,
                                            const int (&existing)[HEIGHT]) const {
    constexpr int AT_ONCE = OneJob::PARTIALS_AT_ONCE;
    const float* from = job.right + static_cast<long long>(k) * job.P + p;
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) sum[h] = {};
#pragma unroll 1
    for (int s = 0; s < job.partials; s += AT_ONCE) {
      Four found[AT_ONCE][HEIGHT];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const bool is_there = s + u < job.partials;
        const float* part = from + static_cast<long long>(is_there ? s + u : s) * job.partial_stride;
#pragma unroll
        for (int h = 0; h < HEIGHT; ++h) found[u][h] = Four::load(part + h * PANEL * job.P, is_there ? existing[h] : 0);
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

  // That of a dense layer on graphs: over the graphs, 32 at a time. All threads call.
  __device__ __forceinline__ Four sum_of_graphs(const OneJob& job, int k0, int p0, int B,
                                                float (&tile)[2 * PANEL][LD]) const {
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

  __device__ __forceinline__ void update_tile(int chunk, float (&tile)[2 * PANEL][LD], Prefetches prefetched) const {
    // All but the gradients is older than the phase before.
    const int4 place = reinterpret_cast<const int4*>(chunks)[chunk];
    const OneJob job = reinterpret_cast<const OneJob*>(jobs)[place.x];
    const int k = place.y + threadIdx.x / 8, p = place.z + threadIdx.x % 8 * 4;
    int existing[HEIGHT], at[HEIGHT];
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      existing[h] = k + h * PANEL < job.rows() ? min(max(job.P - p, 0), 4) : 0;
      at[h] = existing[h] > 0 ? job.start(k + h * PANEL) + p : 0;
    }
    const int4 now = *reinterpret_cast<const int4*>(progress);  // next step, N, B, step
    const Rate rate = reinterpret_cast<const Rate*>(rates)[now.w];
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      if (mode == 1) continue;
      prefetched.prefetch_value(0, h, parameters + at[h], existing[h]), prefetched.prefetch_value(1, h, m + at[h], existing[h]);
      if (!rule.sgd) prefetched.prefetch_value(2, h, v + at[h], existing[h]);
    }
    wait_for_previous();

    Four gradient[HEIGHT];
    if (mode == 2) {
      const float factor = clip_factor(norms, n_chunks, max_norm);
#pragma unroll
      for (int h = 0; h < HEIGHT; ++h) {
        gradient[h] = Four::load(gradients + at[h], existing[h]);
#pragma unroll
        for (int i = 0; i < 4; ++i) gradient[h].v[i] *= factor;
      }
    } else if (OneJob::BY_GRAPHS && job.left) {
      gradient[0] = sum_of_graphs(job, place.y, place.z, now.z, tile);
    } else {
      sum_partials(gradient, job, k, p, existing);
    }
    if (mode < 2 && totals && chunk == 0 && threadIdx.x < 32) add_totals(totals, losses, n_losses, rate.label_weight);
    if (mode == 1) {
      double squares = 0.0;
#pragma unroll
      for (int h = 0; h < HEIGHT; ++h) {
        gradient[h].store(gradients + at[h], existing[h]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          squares += i < existing[h] ? static_cast<double>(gradient[h].v[i]) * gradient[h].v[i] : 0.0;
      }
      squares = block_sum(squares);
      if (threadIdx.x == 0) norms[chunk] = squares;
      return;
    }
    if constexpr (OneJob::PREFETCHES) wait_for_async_copies();
    Four value[HEIGHT], of_m[HEIGHT], of_v[HEIGHT];
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      value[h] = prefetched.get(0, h, parameters + at[h], existing[h]);
      of_m[h] = prefetched.get(1, h, m + at[h], existing[h]);
      of_v[h] = rule.sgd ? Four{} : prefetched.get(2, h, v + at[h], existing[h]);
    }
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      Four decay = {}, penalty = {};
      if (weight_decay)
        decay = Four::load(weight_decay + at[h], existing[h]), penalty = Four::load(l2 + at[h], existing[h]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        value[h].v[i] =
            rule.apply(value[h].v[i], gradient[h].v[i], of_m[h].v[i], of_v[h].v[i], decay.v[i], penalty.v[i], rate);
      value[h].store(parameters + at[h], existing[h]), of_m[h].store(m + at[h], existing[h]);
      if (!rule.sgd) of_v[h].store(v + at[h], existing[h]);
    }
    if (job.forward) write_panels(job, place.y, place.z, value, existing, tile);
  }

  __device__ __forceinline__ void write_panels(const OneJob& job, int k0, int p0, Four (&value)[HEIGHT],
                                               const int (&existing)[HEIGHT], float (&tile)[2 * PANEL][LD]) const {
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
