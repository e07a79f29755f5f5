// Device code that kernels share: vectors of four floats, maxima, deterministic reductions. No kernels.
//
// The reductions add no floats with atomics. A sum over rows has a fixed order: each thread sums its rows, `reduce_rows`
// reduces the threads of a block in a tree, each block writes a partial sum, and the block that finishes last reduces
// the partial sums in the order of the blocks. So every run gives the same bits, whichever block is last.

#pragma once

constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr int BLOCK_THREADS = 256;         // of every kernel in dense/, graph/ and spmm/ that names no other number
constexpr int MAX_REDUCING_THREADS = 256;  // of a block that calls `reduce_rows`

// A kernel that passes its parameters on: KERNEL(spmm_mean, MeanParams, (128, 4), mean<float, 2>); calls mean<float, 2>(params)
// with launch bounds 128, 4. KERNEL_WITH_SHARED passes the dynamic shared memory on, too. The host reads these lines. An
// attribute may stand before the name: KERNEL(CLUSTERS_OF(2) fused_fp16_step_128, …).
#define KERNEL(name, Params, bounds, ...)                                                           \
  extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Params params) { \
    __VA_ARGS__(params);                                                                            \
  }
#define KERNEL_WITH_SHARED(name, Params, bounds, ...)                                               \
  extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Params params) { \
    extern __shared__ float4 shared4[];                                                             \
    __VA_ARGS__(params, shared4);                                                                   \
  }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The smallest power of two >= n.
__device__ __forceinline__ int power_of_two(int n) { return n <= 1 ? 1 : 1 << (32 - __clz(n - 1)); }

// ---- vectors of four floats, with a scalar path for unaligned and incomplete vectors ----

// Whether rows that start at `data` and are `ld` floats apart can be read 16 bytes at a time.
__device__ inline bool is_aligned(const void* data, int ld) {
  return reinterpret_cast<unsigned long long>(data) % 16 == 0 && ld % 4 == 0;
}

// Load elements 0 ... 3 of `data`. Only the first `left` exist; the others become 0.
__device__ inline float4 load4(const float* data, long long left, bool aligned) {
  if (aligned && left >= 4) return *reinterpret_cast<const float4*>(data);
  return make_float4(left > 0 ? data[0] : 0.f, left > 1 ? data[1] : 0.f, left > 2 ? data[2] : 0.f,
                     left > 3 ? data[3] : 0.f);
}

__device__ inline void store4(float* data, float4 value, long long left, bool aligned) {
  if (aligned && left >= 4) {
    *reinterpret_cast<float4*>(data) = value;
    return;
  }
  if (left > 0) data[0] = value.x;
  if (left > 1) data[1] = value.y;
  if (left > 2) data[2] = value.z;
  if (left > 3) data[3] = value.w;
}

// ---- maxima as in NumPy: NaN is larger than every number ----

// max(x, 0)
__device__ __forceinline__ float positive(float x) { return x <= 0.f ? 0.f : x; }
__device__ __forceinline__ float4 positive(float4 x) {
  return make_float4(positive(x.x), positive(x.y), positive(x.z), positive(x.w));
}

// Whether value a of row `row_a` is the maximum rather than b of `row_b`; of equal values, the first row's is.
__device__ __forceinline__ bool is_higher(float a, int row_a, float b, int row_b) {
  if (a != a || b != b) return a != a && (b == b || row_a < row_b);
  return a > b || (a == b && row_a < row_b);
}

// ---- reductions ----

// Sum over `lanes` neighbouring lanes (a power of two), returned in each of them. All lanes of the warp must call.
template <class T>
__device__ T warp_sum(T value, int lanes = 32) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(FULL_WARP, value, offset);
  return value;
}

// Maximum over `lanes` neighbouring lanes (a power of two), returned in each; NaN is ignored. All lanes must call.
__device__ __forceinline__ float warp_max(float value, int lanes = 32) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, offset));
  return value;
}

// Sum over a one-dimensional block of whole warps, returned in every thread. All threads must call.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T of_warp[32];
  const int lane = threadIdx.x % 32;
  value = warp_sum(value);
  __syncthreads();  // an earlier call has read `of_warp`
  if (lane == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? of_warp[lane] : T(0));
}

// Whether this block is the last of `blocks` to arrive here. Earlier writes of the others to global memory are then
// visible to it, if it reads them past L1 (`load_l2`). `counter` must be 0 before the launch and is 0 again after it.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    is_last = atomicInc(counter, blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

// Read a struct of floats from L2, which holds the writes of other blocks.
template <class T>
__device__ T load_l2(const T* from) {
  T value;
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / sizeof(float)); ++i)
    reinterpret_cast<float*>(&value)[i] = __ldcg(reinterpret_cast<const float*>(from) + i);
  return value;
}

__device__ inline float combine(float a, float b) { return a + b; }
__device__ inline float2 combine(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ inline float4 combine(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Reduce over threadIdx.y for each threadIdx.x; row 0 has the result. Both dimensions are powers of two.
template <class T>
__device__ T reduce_rows(T value) {
  __shared__ T slot[MAX_REDUCING_THREADS];
  const int mine = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();  // an earlier call has read `slot`
  slot[mine] = value;
  for (int rows = blockDim.y / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (threadIdx.y < rows) slot[mine] = value = combine(value, slot[mine + rows * blockDim.x]);
  }
  return value;
}

// Reduce over the rows of a matrix of P columns. In block (x, y), `value` is the thread's partial sum of column
// y * blockDim.x + threadIdx.x over chunk x of the rows. Returns true in the threads that hold the column's total.
// `partials` has gridDim.x * P values, `counters` gridDim.y.
template <class T>
__device__ bool reduce_columns(T& value, T* partials, unsigned* counters, int P) {
  const int p = blockIdx.y * blockDim.x + threadIdx.x;
  value = reduce_rows(value);
  if (gridDim.x > 1) {
    if (threadIdx.y == 0 && p < P) partials[static_cast<long long>(blockIdx.x) * P + p] = value;
    if (!is_last_block(counters + blockIdx.y, gridDim.x)) return false;
    value = T{};
    if (p < P) {
      for (unsigned chunk = threadIdx.y; chunk < gridDim.x; chunk += blockDim.y)
        value = combine(value, load_l2(partials + static_cast<long long>(chunk) * P + p));
    }
    value = reduce_rows(value);
  }
  return threadIdx.y == 0 && p < P;
}
