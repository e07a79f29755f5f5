// Exchanges between ranks that train one model with the wide form, each on a GPU of its own. fused/wide/ranks_layers.cu
// and ranks_step.cu have the kernels.
//
// Mailboxes. Each rank owns a mailbox in its device's memory, into which all ranks write, over NVLink or PCIe. It has a box
// for each parity of the turn and each sender:
//
//   box = lines (lines,), 16 bytes each | chunks (chunks, 256) float4 | flags (chunks,)
//
// A turn is a step that all ranks run together. Turns are numbered from 1 and never repeat, so the number of a turn marks
// what was written in it; nothing is ever cleared.
//
//   line    two floats, each beside the turn in 8 bytes that are written and read as one. The reader polls the line itself:
//           no flag, no fence. For the columns' moments and sums of batch norm, two lines a column and layer.
//   chunk   32 x 32 gradients, written in 16-byte stores; then the flag gets the turn, released for the whole system. For
//           the chunks of the update (fused/wide/update.cuh).
//
// Why a box may be overwritten. A rank writes to the boxes of turn t + 2 only after its turn t + 1, in which its update waited
// for gradients of all ranks. Each rank sent the last of these after its kernels of turn t had ended (`wait_for_previous`),
// so they have read the boxes of turn t, which have the same parity.
//
// Why no rank waits for ever. What a block waits for is sent by blocks of other ranks in the same launch of the step, or
// earlier. A block sends before it waits, or sends what blocks of its number on all ranks have sent before they wait. Blocks
// that send start before those of the same launch that only wait, because blocks start in the order of their numbers. A rank
// without graphs sends zeros. All hosts queue a step in the same call. If a rank is gone nevertheless, the kernel fails after
// MOST_SECONDS; the host notices earlier (gcnbatch/ranks/watch.py).
//
// Determinism: what ranks sent is combined in the order of the ranks, so all have equal bits.
#pragma once

#include "fused/shared/fused.cuh"
#include "ranks/flags.cuh"

namespace fused {

static_assert(!SHARES_LAUNCHES, "a model on several ranks trains alone");

constexpr int LINE_BYTES = 16, CHUNK_BYTES = 4 * PANEL * PANEL, FLAG_BYTES = 4;
constexpr int CHUNK_THREADS = CHUNK_BYTES / 16;  // a thread writes 16 bytes

// A rank's part of a step's batch: its first node and graph in the global batch; then the nodes of every rank.
struct Part {
  enum Field { FIRST_NODE, FIRST_GRAPH, NODES };
};

// ---- access to memory that several devices write ----

__device__ __forceinline__ void put_line(unsigned char* line, float2 values, unsigned turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  const unsigned long long marked = static_cast<unsigned long long>(turn) << 32;
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(line), "l"(marked | __float_as_uint(values.x)),
               "l"(marked | __float_as_uint(values.y))
               : "memory");
#endif
}

// Read a line; return whether it is of this turn.
__device__ __forceinline__ bool get_line(float2& values, const unsigned char* line, unsigned turn) {
  unsigned long long x = 0, y = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(line) : "memory");
#endif
  values = make_float2(__uint_as_float(static_cast<unsigned>(x)), __uint_as_float(static_cast<unsigned>(y)));
  return x >> 32 == turn && y >> 32 == turn;
}

// ---- the ranks, seen from one of them ----

struct Ranks {
  unsigned char* mailboxes[MAX_RANKS];  // of each rank, as this one reaches it
  const int* progress;
  const int* parts;  // (steps, NODES + size): this rank's Part of each step's batch
  long long box_bytes;
  int rank, size, lines, chunks;
  int sync;  // whether batch norm uses the rows of all ranks

  // The number of step `step` among the turns of all ranks.
  __device__ __forceinline__ unsigned turn(int step) const { return progress[Progress::TURN] + step; }
  __device__ __forceinline__ const int* part(int step) const { return parts + step * (Part::NODES + size); }
  __device__ __forceinline__ int rows_of_all(int step) const {
    const int* nodes = part(step) + Part::NODES;
    int sum = 0;
    for (int r = 0; r < size; ++r) sum += nodes[r];
    return sum;
  }

  // What rank `from` writes to the mailbox of rank `to`.
  __device__ __forceinline__ unsigned char* box(int to, int from, unsigned turn) const {
    return mailboxes[to] + ((turn & 1) * size + from) * box_bytes;
  }
  __device__ __forceinline__ unsigned char* line(int to, int from, unsigned turn, int number) const {
    return box(to, from, turn) + static_cast<long long>(number) * LINE_BYTES;
  }
  __device__ __forceinline__ float4* chunk(int to, int from, unsigned turn, int number) const {
    unsigned char* first = box(to, from, turn) + static_cast<long long>(lines) * LINE_BYTES;
    return reinterpret_cast<float4*>(first + static_cast<long long>(number) * CHUNK_BYTES);
  }
  __device__ __forceinline__ unsigned char* flag(int to, int from, unsigned turn, int number) const {
    return reinterpret_cast<unsigned char*>(chunk(to, from, turn, chunks)) + number * FLAG_BYTES;
  }

  // ---- lines ----

  // Send a line to all ranks, to this one only if `to_self`.
  __device__ __forceinline__ void send_line(int number, float2 values, unsigned turn, bool to_self) const {
#pragma unroll 1
    for (int to = 0; to < size; ++to)
      if (to_self || to != rank) put_line(line(to, rank, turn, number), values, turn);
  }
  // Return the line of rank `from`, once it is there.
  __device__ __forceinline__ float2 take_line(int number, int from, unsigned turn) const {
    const unsigned char* at = line(rank, from, turn, number);
    float2 values;
    wait_until([&] { return get_line(values, at, turn); });
    return values;
  }

  // ---- chunks ----

  // Return the sum of a chunk over all ranks; `own` is the thread's share of this rank's. All CHUNK_THREADS threads call.
  //
  // Two ranks send each other their chunks. Of more ranks, each adds a share of the chunks, and sends the sums: a rank then
  // sends 2 (size - 1) / size of its gradients instead of size - 1 times all, in one exchange more.
  __device__ __forceinline__ float4 sum_chunk(int number, float4 own, unsigned turn) const {
    const int adding = number % size;
    if (size > 2 && rank != adding) {
      chunk(adding, rank, turn, number)[threadIdx.x] = own;
      __syncthreads();
      if (threadIdx.x == 0) {
        put_flag(flag(adding, rank, turn, number), turn);
        wait_for_chunk(adding, turn, number);
      }
      __syncthreads();
      return __ldcg(chunk(rank, adding, turn, number) + threadIdx.x);
    }
    if (size == 2) send_chunk(number, own, turn);
    if (threadIdx.x < size && threadIdx.x != rank) wait_for_chunk(threadIdx.x, turn, number);
    __syncthreads();
    float4 sum = {};
#pragma unroll 4
    for (int from = 0; from < size; ++from) {
      const float4 value = from == rank ? own : __ldcg(chunk(rank, from, turn, number) + threadIdx.x);
      sum = from == 0 ? value : combine(sum, value);
    }
    if (size > 2) send_chunk(number, sum, turn);
    return sum;
  }

  // Send a chunk to all other ranks. All CHUNK_THREADS threads call.
  __device__ __forceinline__ void send_chunk(int number, float4 share, unsigned turn) const {
#pragma unroll 1
    for (int to = 0; to < size; ++to)
      if (to != rank) chunk(to, rank, turn, number)[threadIdx.x] = share;
    __syncthreads();
    if (threadIdx.x < size && threadIdx.x != rank) put_flag(flag(threadIdx.x, rank, turn, number), turn);
  }

  __device__ __forceinline__ void wait_for_chunk(int from, unsigned turn, int number) const {
    const unsigned char* at = flag(rank, from, turn, number);
    wait_until([&] { return get_flag(at) == turn; });
  }
};

}  // namespace fused
