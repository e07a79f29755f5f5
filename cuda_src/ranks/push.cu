// Rows that a rank pushes into the memory of the others before a product of their part of one large graph: an exchange
// without a library, without buffers of packed rows, and without the host.
//
// Source: own. A mailbox (gcnbatch/backends/cuda/ranks/landing.py) has two flags of 4 bytes for each rank, then two receive
//   buffers, or one. One holds the rows of a product's dense operand, own ones first, then those of the other ranks in order of the
//   nodes, `pitch` bytes each: compressed rows (spmm/compressed.cu), of which only the used sectors are written, or dense rows.
// Shapes: slots (ranks, n) int32: the row that own row i fills in the receive buffer of each rank, or -1 where that rank does
//   not need it.
// Flags: a flag's number is that of the last push that has ended. The last block of a push releases it, to all ranks. Those
//   from READ_FLAGS on say how often each rank has read the only buffer.
// Why a buffer may be overwritten: products alternate between the two. A rank pushes for product t + 2 after its wait for the
//   flags of product t + 1. Every rank pushed those, the last ones of the product, after its kernels that read the buffer of
//   product t. With one buffer, a rank pushes for product t + 1 after its wait for the flags that all have read it t times.
// Launch: blocks of 512 threads that stride over the rows; 16 lanes a row, 16 bytes each. On a stream of high priority, 32 or 64
//   blocks beside other kernels, else one a multiprocessor. Shared memory: none that matters.
// Traffic: reads a row once, writes it to each rank that needs it. On four H100 (NVLink, 18 links a GPU), rows of 160 bytes
//   leave a GPU at 340 GB/s at most, of 192 and 512 bytes at 350 GB/s; with 16,384 threads at 280 to 330 GB/s. Two blocks of 256
//   threads a multiprocessor slowed a sparse product beside them by a third.
// Determinism: copies.
#include "common/common.cuh"
#include "ranks/flags.cuh"
#include "spmm/compressed.cuh"

constexpr int PUSH_THREADS = 512, PUSH_LANES = 16;
constexpr int READ_FLAGS = 4 * MAX_RANKS;  // bytes before the second flag of the first rank

struct Push {
  unsigned char* mailboxes[MAX_RANKS];  // of each rank, as this one reaches it
  const int* slots;
  unsigned* counter;  // 0 before and after
  long long buffer;   // bytes before the receive buffer
  int rank, size, n, first, stop;
  unsigned number;  // of this push; 0: more rows follow before the flags

  __device__ __forceinline__ unsigned char* row(int rank, int slot, int pitch) const {
    return mailboxes[rank] + buffer + static_cast<long long>(slot) * pitch;
  }

  // Call `copy(i, lane, lanes, write)` with each of the rows, then set this rank's flag on every rank. All lanes of a row, whose
  // mask is `lanes`, call `write(pitch, at, v, is_part)`, which writes 16 bytes, `at` bytes into the row, to all ranks that
  // need it.
  template <class Copy>
  __device__ __forceinline__ void rows(Copy copy) const {
    const int lane = threadIdx.x % PUSH_LANES, of_block = PUSH_THREADS / PUSH_LANES;
    const unsigned lanes = 0xffffu << (threadIdx.x & PUSH_LANES);
    for (long long i = first + static_cast<long long>(blockIdx.x) * of_block + threadIdx.x / PUSH_LANES; i < stop;
         i += static_cast<long long>(gridDim.x) * of_block) {
      const int own_slot = lane < size && lane != rank ? __ldg(slots + static_cast<long long>(lane) * n + i) : -1;
      copy(static_cast<int>(i), lane, lanes, [&](int pitch, int at, uint4 v, bool is_part) {
#pragma unroll 1
        for (int step = 1; step < size; ++step) {  // from the next rank on, so that all links work
          const int to = rank + step < size ? rank + step : rank + step - size;
          const int slot = __shfl_sync(lanes, own_slot, to, PUSH_LANES);
          if (slot >= 0 && is_part) *reinterpret_cast<uint4*>(row(to, slot, pitch) + at) = v;
        }
      });
    }
    __threadfence_system();
    if (number == 0 || !is_last_block(counter, gridDim.x)) return;
    if (threadIdx.x < size) put_flag(mailboxes[threadIdx.x] + 4 * rank, number);
  }
};

static_assert(MAX_RANKS <= PUSH_LANES, "a lane a rank");
static_assert(16 * PUSH_LANES <= ROW_BYTES && GROUPS % 4 == 0, "a lane's part begins with the last word of the head");

struct Release {
  unsigned char* mailboxes[MAX_RANKS];
  int rank, size;
  unsigned number;  // of products whose rows this rank has read
};

struct DensePush {
  Push push;
  const float *x, *scale;
  int x_stride, column, P, stride, place;
};

// Compressed rows of the own buffer. Lanes load the first parts of a row before they know how many it has: one latency a row.
extern "C" __global__ __launch_bounds__(PUSH_THREADS) void halo_push(const __grid_constant__ Push push) {
  push.rows([&](int i, int lane, unsigned lanes, auto write) {
    const uint4* from = reinterpret_cast<const uint4*>(push.row(push.rank, i, ROW_BYTES));
    uint4 v = __ldg(from + lane);
    const int parts = sectors_of(__shfl_sync(lanes, v.x, GROUPS / 4, PUSH_LANES)) * (SECTOR / 16);
    write(ROW_BYTES, 16 * lane, v, lane < parts);
    for (int before = PUSH_LANES; before < parts; before += PUSH_LANES) {
      const int k = before + lane;
      const bool is_part = k < parts;
      if (is_part) v = __ldg(from + k);
      write(ROW_BYTES, 16 * k, v, is_part);
    }
  });
}

// Columns `column` ... `column` + P - 1 of rows scale[i] * x[i, :], also to the own buffer, from column `place` of `stride` on; the
// columns up to the next multiple of 4 are 0. Without `scale`, 1. `stride` and `place` are multiples of 4.
extern "C" __global__ __launch_bounds__(PUSH_THREADS) void halo_push_dense(const __grid_constant__ DensePush dense) {
  const Push& push = dense.push;
  const bool aligned = is_aligned(dense.x + dense.column, dense.x_stride);
  push.rows([&](int i, int lane, unsigned, auto write) {
    const float by = dense.scale ? __ldg(dense.scale + i) : 1.0f;
    const float* from = dense.x + dense.column + static_cast<long long>(i) * dense.x_stride;
    for (int before = 0; before < dense.P; before += 4 * PUSH_LANES) {
      const int p = before + 4 * lane, at = 4 * (dense.place + p);
      const float4 v = load4(from + p, dense.P - p, aligned);
      const uint4 bits = make_uint4(__float_as_uint(by * v.x), __float_as_uint(by * v.y), __float_as_uint(by * v.z),
                                    __float_as_uint(by * v.w));
      if (p < dense.P) *reinterpret_cast<uint4*>(push.row(push.rank, i, 4 * dense.stride) + at) = bits;
      write(4 * dense.stride, at, bits, p < dense.P);
    }
  });
}

// Wait for the flags of all ranks. Launch: one warp.
extern "C" __global__ __launch_bounds__(32) void halo_wait(const unsigned char* flags, unsigned number, int size) {
  if (threadIdx.x < size) wait_until([&] { return static_cast<int>(get_flag(flags + 4 * threadIdx.x) - number) >= 0; });
}

// Tell all ranks that the kernels before have read the only receive buffer. Launch: one warp.
extern "C" __global__ __launch_bounds__(32) void halo_release(const __grid_constant__ Release release) {
  if (threadIdx.x < release.size)
    put_flag(release.mailboxes[threadIdx.x] + READ_FLAGS + 4 * release.rank, release.number);
}
