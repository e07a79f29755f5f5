// What the fp16 step reads, where it keeps it, and how its threads wait for each other (fused/fp16/step.cu has the kernel).
// No kernels here.
//
// Threads. A block has 12 compute warps (fused/fp16/worker.cuh) in three groups of four, and three copy warps
// (fused/fp16/sender.cuh), one for each group. Group g owns rows 48 g … 48 g + 47 of the tile.
//
// Waits between blocks. L layers, S = P / 64 blocks in a cluster, T tiles.
//
//   barrier or word       arrives                                   waits                      then
//   wait_for_previous     the previous kernel, by ending            all threads                batch and weights are read
//   cluster, start        all threads: barriers are initialised     all threads                remote copies and arrivals
//   cluster, readout      all threads, once per 16 graphs: partial  all threads                logits are summed; A's place
//                         logits are written, A is read                                        takes Aᵀ
//   cluster, readout      again, before each further 16 graphs:     all threads                partial logits are
//                         partial logits are read                                              overwritten
//   cluster, end          all threads, after the readout            all, before they leave     the block leaves
//   u_released, 2 L - 2   the first copy warp of S blocks: `u` is   a lane of each copy warp   rows go to all blocks
//                         read, `full` expects the next rows
//   exchange, L forward   64 threads of each block, one column      compute warps of all       `partials` are complete
//   and L backward        each, write a pair of words               tiles' blocks, same slice
//   exchange of max, L    one lane of each block writes a word      T S threads of each block  the scale of dY
//
// The exchange is in global memory (`Exchange`). It has a place for each layer and direction, so no word is written twice
// in a launch. Clusters of tiles that a step does not have wait for their first copies, arrive at the end, and leave.
//
// Waits inside a block. Named barriers count threads; barriers in shared memory count arrivals and bytes.
//
//   barrier                 arrives                                   waits                    then
//   __syncthreads, twice    all: parameters, barriers; step info      all                      roles split
//   full[g], 2 L - 1        first copy warp; bytes from S blocks      group g                  multiplies its rows
//   w_low_full, 2 L - 1     first copy warp; bytes                    compute warps            first 256 of the depth
//   w_high_full, 2 L - 1    last copy warp (layer 0 forward: the      compute warps            rest of the depth, if it is
//                           first one); bytes                                                  more than 256
//   MULTIPLIED, 2 L - 1     compute warps: u and w_low are read       first copy warp          next weights; u is released
//   COMPUTE                 compute warps, at each point below        compute warps
//     per layer forward     groups' moments are written; partials are complete (layer 0: TABLES); partials are read; Z is
//                           written
//     readout               losses and gradients are written; dR is written
//     per layer backward    groups' sums are written; partials are complete (last layer: TABLES); partials are read; dY
//                           is written
//   TABLES, twice           first copy warp: A is there; Aᵀ is there  compute warps
//   ROWS_WRITTEN + g        compute warps: rows of group g of U or V  copy warp g              sends them
//   rows_read, 2 L - 2      every compute thread: Z or dY is read     a lane of the last copy  w_high replaces it
//                                                                     warp
//   head_full, once         first copy warp; bytes                    compute warps            weights of the head are read
//   HEAD, per 16 graphs     first copy warp: targets (and bias, loss  compute warps            partial logits
//                           weights)
//   READOUT_DONE, once      compute warps: G is in registers          first copy warp          u is released for V
//
// A copy may read or overwrite memory that threads have written or read. The thread that starts such a copy runs
// `fence_async_proxy` first.
#pragma once

#include "fused/fp16/tiles.cuh"
#include "fused/shared/async_copy.cuh"

namespace fused {

// ---- sizes ----

constexpr int WORKERS = 384, SENDERS = 96;  // threads that compute; threads of the copy warps
constexpr int STEP_THREADS = WORKERS + SENDERS;
constexpr int GROUPS = 3, GROUP_ROWS = TILE_ROWS / GROUPS;  // four warps own 48 rows
constexpr int OWN = 24;                                     // values of a matrix in a thread: 12 rows of 2 columns
constexpr int ROW_LD = FP16_PANEL + 4;  // floats between rows of a slice, and pairs between tiles, in shared memory
constexpr int MAX_PANELS = 8, LOW_PANELS = 4;
constexpr int MAX_TILES = 72, MAX_ENTRIES = 896, MAX_OUTPUTS = 160;
constexpr int READOUT_GRAPHS = 16;  // of a tile, that the readout takes at a time

// ---- parameters ----

// A node layer. Shapes: T tiles of TILE_ROWS rows, S slices of FP16_PANEL columns, P = 64 S; K columns of U, whole panels.
struct Fp16Layer {
  Fp16* u;                             // (T, K / 64, 144, 64) panels: U u_scale; input of layer 0, else output
  const Fp16 *w_forward, *w_backward;  // (S, K / 64, 64, 64) panels of Wᵀ, (S, S, 64, 64) of W; times WEIGHT_SCALE
  const float *bias, *gamma, *beta;    // (P,)
  float *running_mean, *running_var;   // (P,)
  float* y;                            // (T, S, 144 * 64) in the order of threads: saved for the backward pass
  Fp16 *dy, *v;                        // (T, S, 144, 64) panels: dY scale, Aᵀ dY scale; v is null for layer 0
  float *scale, *dbias;                // (1,); (T, P), partial sums of tiles
  float *dgamma, *dbeta;               // (P,)
  int K;
  float u_scale, epsilon, momentum;
};

// Row i of the batch is row i % 144 of tile i / 144; a tile holds whole graphs.
struct StepParams {
  const int* size;
  const int* shape;                 // (2,): tiles of this step, unused
  const int *tile_ptr, *tile_rows;  // (T + 1,): first graph; (T,): rows
  const int *node_ptr, *n_nodes;    // (B,): first row of a graph, its number of rows
  const float* rowsum;              // (144 T,): row sums of A
  const int *indptr, *indices;      // A in CSR, (144 T + 1,); columns are rows of the tile, 0 … 143
  const float* values;
  const int *t_indptr, *t_indices;  // Aᵀ; null where A is symmetric
  const float* t_values;
  const float* targets;  // (B, n_outputs), or (B, 1) int32 for classes
  int* progress;         // and these two: as fused/shared/readout.cuh has them
  const float *rates, *loss_weight;
  const float *head_weight, *head_bias;  // (P, n_outputs), (n_outputs,)
  float *input, *gradient;               // (B, P), (B, n_outputs): of the head, for its weight gradient
  double* losses;                        // (T,): sums over the tile's graphs
  unsigned char* exchange;               // see Exchange
  int n_layers, n_outputs, readout, loss, tiles;
  float reach;  // at least 1 and the largest row sum of |Aᵀ|
  Fp16Layer layers[MAX_LAYERS];
};
static_assert(sizeof(StepParams) <= 4096, "more than a kernel's parameters");

// ---- shared memory ----

// This step, and this block's tile.
struct StepInfo {
  int tiles, N, rows, first_graph, n_graphs, number;  // number of the step
  unsigned tag;                                       // see Exchange
  float share_of_node;                                // 1 / N
  float reach;                                        // bound of |dY|, in units of the largest |slope G|
};

struct StepShared {
  unsigned char u[MAX_PANELS][PANEL_BYTES];  // a tile of U or V, all columns; `ReadoutShared` takes its place
  unsigned char w_low[LOW_PANELS][WEIGHT_PANEL_BYTES];  // weights of this slice, first half of the depth
  union {                                               // one after the other in a layer
    float2 partials[MAX_TILES][ROW_LD];                 // partial sums of all tiles, columns of this slice
    float rows[TILE_ROWS][ROW_LD];                      // Z or dY of this slice
    unsigned char w_high[MAX_PANELS - LOW_PANELS][WEIGHT_PANEL_BYTES];  // weights, second half of the depth
  };
  int2 entries[MAX_ENTRIES];  // of A, then of Aᵀ: byte offset of the row in `rows`, bits of the value
  StepParams params;
  float2 group_sums[GROUPS][FP16_PANEL];
  float group_bias[GROUPS][FP16_PANEL], rowsum[TILE_ROWS], tile_rows[MAX_TILES];
  unsigned long long full[GROUPS], w_low_full, w_high_full;  // barriers, as the table above has them
  unsigned long long u_released, rows_read, head_full;
  unsigned highest[WORKERS / 32], found_highest[WORKERS / 32];
  StepInfo step;
  short indptr[TILE_ROWS + 2];
  unsigned char graph_of_row[TILE_ROWS], first_row[TILE_ROWS], graph_rows[TILE_ROWS];
};
constexpr int STEP_SHARED_BYTES = 231944;  // the host launches with so many
static_assert(sizeof(StepShared) == STEP_SHARED_BYTES && STEP_SHARED_BYTES <= 227 * 1024, "not the launch's bytes");

__device__ __forceinline__ StepShared& step_shared() {
  extern __shared__ __align__(1024) unsigned char step_memory[];
  return *reinterpret_cast<StepShared*>(step_memory);
}

// ---- what a thread owns ----

// A product leaves (64 columns of the slice, 48 rows of a group) in four warps: value i of a thread is in row row(i) and
// column column(i % 4 / 2).
struct Owner {
  int lane, warp, group, g, t;
  __device__ Owner() {
    lane = threadIdx.x % 32, warp = __shfl_sync(FULL_WARP, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    g = lane / 4, t = lane % 4;
  }
  // Hide the values from the compiler, so that it keeps no addresses from layer to layer: registers are short.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp), "+r"(group), "+r"(g), "+r"(t)); }
  __device__ __forceinline__ int column(int half) const { return warp % 4 * 16 + g + 8 * half; }
  __device__ __forceinline__ int row(int i) const { return group * GROUP_ROWS + i / 4 * 8 + 2 * t + i % 2; }
};

// The larger one; NaN wins.
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

// ---- barriers ----

// Named barriers; ROWS_WRITTEN has one for each group.
constexpr int COMPUTE = 1, ROWS_WRITTEN = 2, MULTIPLIED = 5, READOUT_DONE = 6, TABLES = 7, HEAD = 8;

// Synchronise the compute warps.
__device__ __forceinline__ void sync_workers() {
  asm volatile("bar.sync %0, %1;" ::"n"(COMPUTE), "n"(WORKERS) : "memory");
}

// Arrive at a named barrier of the compute warps and one copy warp, without waiting.
__device__ __forceinline__ void arrive_named(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(WORKERS + 32) : "memory");
}

// Arrive at such a barrier and wait.
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

// Arrive at the cluster's last barrier, which orders no memory.
__device__ __forceinline__ void arrive_at_end() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

// Wait for the arrivals of all blocks of the cluster; their earlier writes are visible then.
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

constexpr int TAG_BYTES = 128;  // of the exchange's first part
constexpr int PAIR_BYTES = 16, WORD_BYTES = 8, NORM_BYTES = 8;
static_assert(PAIR_BYTES == sizeof(ulonglong2) && WORD_BYTES == sizeof(unsigned long long) &&
              NORM_BYTES == sizeof(float2));

// Words of 8 bytes: a float and the launch's tag. A reader that finds the tag has the float, so neither a fence nor a
// counter is needed. A launch's tag is the previous one plus 1; the first block stores it at the end.
//   pairs    (2 layers, T, P) of two words: moments forward; sums of G and G x̂ backward
//   highest  (layers, T S) words: largest |slope G| of a block
//   norms    (layers, T S, WORKERS) float2: 1 / deviation of a thread's columns, saved for the backward pass
struct Exchange {
  unsigned* tag;
  ulonglong2* pairs;
  unsigned long long* highest;
  float2* norms;

  __device__ __forceinline__ explicit Exchange(const StepParams& of, int P) {
    const int layers = of.n_layers, tiles = of.tiles, blocks = tiles * (P / FP16_PANEL);
    tag = reinterpret_cast<unsigned*>(of.exchange);
    pairs = reinterpret_cast<ulonglong2*>(of.exchange + TAG_BYTES);
    norms = reinterpret_cast<float2*>(pairs + 2 * layers * tiles * P);
    highest = reinterpret_cast<unsigned long long*>(norms + layers * blocks * WORKERS);
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
