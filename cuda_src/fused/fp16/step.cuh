// What a pass reads and where it keeps it (fused/fp16/step.cu has the kernel and tells its phases); no kernels here.
#pragma once

#include "fused/fp16/tiles.cuh"
#include "fused/shared/async_copy.cuh"

namespace fused {

// ---- what the host fills, 8 bytes a field, in this order, once ----

// A layer. Shapes: T tiles of TILE_ROWS rows, S slices of HALF_PANEL columns, P = 64 S; K columns of U, whole panels.
struct Fp16Layer {
  Fp16* u;                             // (T, K / 64, 144, 64) panels: U u_scale; read of the first layer, else written
  const Fp16 *w_forward, *w_backward;  // (S, K / 64, 64, 64) panels of Wᵀ, (S, S, 64, 64) of W; times WEIGHT_SCALE
  const float *bias, *gamma, *beta;    // (P,)
  float *running_mean, *running_var;   // (P,)
  float* y;                            // (T, S, 144 * 64) in the order of threads, from forward to backward
  Fp16 *dy, *v;                        // (T, S, 144, 64) panels: dY scale, Aᵀ dY scale; v null for the first layer
  float *scale, *dbias, *dgamma, *dbeta;  // (1,), (T, P) parts by tiles, (P,), (P,)
  long long K;
  float u_scale, epsilon, momentum, unused;
};

// The batch, the readout, the exchange. Row i of the batch is row i % 144 of tile i / 144; a tile holds whole graphs.
struct StepParams {
  const int *size, *shape;          // (4,): N, B, step, epoch; (2,): tiles of this step, unused
  const int *tile_ptr, *tile_rows;  // (T + 1,): first graph; (T,): rows
  const int *node_ptr, *n_nodes;    // (B,): first row of a graph, its number of rows
  const float* rowsum;              // (144 T,): sums of the rows of A
  const int *indptr, *indices;      // A in CSR, (144 T + 1,); columns are rows of the tile, 0 ... 143
  const float* values;
  const int *t_indptr, *t_indices;  // Aᵀ, or null: A is symmetric
  const float* t_values;
  const float* targets;  // (B, n_outputs), or (B, 1) int32 for classes
  int* progress;         // (4,), as fused/shared/readout.cuh has it, and these two:
  const float *rates, *loss_weight;
  const float *head_weight, *head_bias;  // (P, n_outputs), (n_outputs,)
  float *input, *gradient;               // (B, P), (B, n_outputs): of that layer, for its gradients
  double* losses;                        // (T,): sums over the tile's graphs
  unsigned char* exchange;               // see Exchange
  long long n_layers, n_outputs, readout, loss, tiles;
  float reach, unused;  // at least 1 and the largest sum of |Aᵀ| over a row
};

// ---- sizes ----

constexpr int WORKERS = 384,
              STEP_THREADS = WORKERS + 96;  // threads that compute; a warp for each group sends and fetches
constexpr int GROUPS = 3, GROUP_ROWS = TILE_ROWS / GROUPS;  // four warps take 48 rows
constexpr int OWN = 24;                                     // values of a matrix in a thread: 12 rows of 2 columns
constexpr int ROW_LD =
    FP16_PANEL + 4;  // floats from row to row of a slice in shared memory, and pairs from tile to tile
constexpr int MAX_PANELS = 8, LOW_PANELS = 4;
constexpr int MAX_LAYERS = 8, MAX_TILES = 72, MAX_ENTRIES = 896, MAX_OUTPUTS = 160;

// ---- shared memory ----

// Of this step, and of this block's tile.
struct StepInfo {
  int tiles, N, rows, first_graph, n_graphs, number;  // number of the step
  unsigned tag;                                       // see Exchange
  float share_of_node;                                // 1 / N
  float reach;                                        // what |dY| may be at most, in units of the largest |slope G|
};

struct StepShared {
  unsigned char u[MAX_PANELS][PANEL_BYTES];  // a tile of U or V, all columns; while it is free, the readout's
  unsigned char w_low[LOW_PANELS][WEIGHT_PANEL_BYTES];  // the weights of this slice, first half of the depth
  union {                                               // one after the other in a layer
    float2 partials[MAX_TILES][ROW_LD];                    // what tiles found of this slice's columns
    float rows[TILE_ROWS][ROW_LD];                      // Z or dY of this slice
    unsigned char w_high[MAX_PANELS - LOW_PANELS][WEIGHT_PANEL_BYTES];  // weights, second half of the depth
  };
  int2 entries[MAX_ENTRIES];  // of A, then of Aᵀ: where the row begins in `rows`, in bytes; the value's bits
  Fp16Layer layers[MAX_LAYERS];
  StepParams params;
  float2 group_sums[GROUPS][FP16_PANEL];
  float group_bias[GROUPS][FP16_PANEL], rowsum[TILE_ROWS], tile_rows[MAX_TILES];
  unsigned long long full[GROUPS], low, high;  // barriers: rows of a group of u are here, weights are here,
  unsigned long long u_released, rows_read;       // u's place is free in all blocks; Z or dY is read in this one
  unsigned long long head;                     // the head's weights are here
  unsigned highest[WORKERS / 32], found_highest[WORKERS / 32];
  StepInfo step;
  short indptr[TILE_ROWS + 2];
  unsigned char graph_of_row[TILE_ROWS], first_row[TILE_ROWS], graph_rows[TILE_ROWS];
};
constexpr int STEP_SHARED_BYTES = 232032;  // as in geometry_fused_pass.py
static_assert(sizeof(StepShared) == STEP_SHARED_BYTES && STEP_SHARED_BYTES <= 227 * 1024,
              "not what a block is launched with");

__device__ __forceinline__ StepShared& step_shared() {
  extern __shared__ __align__(1024) unsigned char step_memory[];
  return *reinterpret_cast<StepShared*>(step_memory);
}

// ---- what a thread owns ----

// Products leave (64 columns of the slice, 48 rows of a group) in four warps: value i of a thread is of row row(i), of
// column column(i % 4 / 2).
struct Owner {
  int lane, warp, group, g, t;
  __device__ Owner() {
    lane = threadIdx.x % 32, warp = __shfl_sync(FULL_WARP, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    g = lane / 4, t = lane % 4;
  }
  // The compiler takes it for unknown: it keeps no addresses from one layer to the next, for which registers are short.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp), "+r"(group), "+r"(g), "+r"(t)); }
  __device__ __forceinline__ int column(int half) const { return warp % 4 * 16 + g + 8 * half; }
  __device__ __forceinline__ int row(int i) const { return group * GROUP_ROWS + i / 4 * 8 + 2 * t + i % 2; }
};

// The larger one; NaN is above all.
__device__ __forceinline__ float larger(float a, float b) {
  float found = 0.f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
#endif
  return found;
}

// Sum over the four lanes that share columns.
__device__ __forceinline__ float sum_of_four(float value) {
  value += __shfl_xor_sync(FULL_WARP, value, 1);
  return value + __shfl_xor_sync(FULL_WARP, value, 2);
}

// ---- waits ----

// Numbers of the block's barriers.
constexpr int AMONG_WORKERS = 1, ROWS_WRITTEN = 2, MULTIPLIED = 5, READOUT_DONE = 6, TABLES = 7, HEAD = 8;

// Workers wait for each other.
__device__ __forceinline__ void sync_workers() {
  asm volatile("bar.sync %0, %1;" ::"n"(AMONG_WORKERS), "n"(WORKERS) : "memory");
}

// Workers tell a warp of senders, which waits for all of them; or it tells the workers, who also wait for each other.
__device__ __forceinline__ void arrive_named(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(WORKERS + 32) : "memory");
}

__device__ __forceinline__ void sync_named(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(WORKERS + 32) : "memory");
}

// Arrive at the same barrier in shared memory of block `rank` of the cluster.
__device__ __forceinline__ void arrive_at_block(unsigned long long* barrier, int rank) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(barrier)), "r"(rank));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
#endif
}

// Arrive at the cluster's barrier, at which nothing is handed over.
__device__ __forceinline__ void arrive_at_end() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

// Wait for what blocks of the cluster have arrived at; what they did before is visible then.
__device__ __forceinline__ void wait_for_blocks(unsigned long long* barrier, int phase) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p;\n"
      "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again_%=; }" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
#endif
}

// ---- the exchange between blocks ----

// Words of 8 bytes, a float and the launch's tag: who finds the tag has the float, no fence and no counter between them.
// A launch's tag is one more than the last launch's; its first block writes it down at the end.
//   pairs    (2 layers, T, P) of two words: moments forward, sums of G and G x̂ backward
//   highest  (layers, T S) words: largest |slope G| of a block
//   norms    (layers, T S, WORKERS) float2: 1 / deviations of a thread's columns, for its way back
struct Exchange {
  unsigned* tag;
  ulonglong2* pairs;
  unsigned long long* highest;
  float2* norms;

  __device__ __forceinline__ explicit Exchange(const StepParams& of, int P) {
    const long long blocks = of.tiles * (P / FP16_PANEL);
    tag = reinterpret_cast<unsigned*>(of.exchange);
    pairs = reinterpret_cast<ulonglong2*>(of.exchange + 128);
    norms = reinterpret_cast<float2*>(pairs + 2 * of.n_layers * of.tiles * P);
    highest = reinterpret_cast<unsigned long long*>(norms + of.n_layers * blocks * WORKERS);
  }
};

__device__ __forceinline__ unsigned long long tagged(unsigned bits, unsigned tag) {
  return static_cast<unsigned long long>(tag) << 32 | bits;
}

__device__ __forceinline__ void publish(ulonglong2* to, float a, float b, unsigned tag) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(tagged(__float_as_uint(a), tag)),
               "l"(tagged(__float_as_uint(b), tag))
               : "memory");
#endif
}

__device__ __forceinline__ void publish(unsigned long long* to, unsigned bits, unsigned tag) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(tagged(bits, tag)) : "memory");
#endif
}

__device__ __forceinline__ bool try_read(float2& found, const ulonglong2* from, unsigned tag) {
  unsigned long long a = 0, b = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
#endif
  found = make_float2(__uint_as_float(static_cast<unsigned>(a)), __uint_as_float(static_cast<unsigned>(b)));
  return a >> 32 == tag && b >> 32 == tag;
}

__device__ __forceinline__ unsigned read(const unsigned long long* from, unsigned tag) {
  unsigned long long word = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  do {
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  } while (word >> 32 != tag);
#endif
  return static_cast<unsigned>(word);
}

}  // namespace fused
