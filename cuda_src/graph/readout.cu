// Readout: sum, mean or maximum of the rows of each graph's nodes, column by column.
//
// Shapes: h, dh (N, P), r, dr (B, P) float32; node_ptr (B+1,), argmax (B, P) int32. Graph b owns the rows node_ptr[b]
//   ... node_ptr[b+1] - 1; a graph with 0 nodes yields a zero row (and argmax -1).
// Launch: block (b, y) computes column block y of graph b; min(P, 32) x (256 / min(P, 32)) threads. Example: 50 graphs
//   of 19 nodes, P = 64: 32 x 8 threads, grid (50, 2).
// Shared memory: 1 KB (sum), 2 KB (maximum), static. Bank conflicts: none.
// Bytes: forward reads 4 N P and writes 4 B P (maximum 8 B P); backward reads 4 B P (maximum 8 B P) and writes 4 N P.
// Determinism: repeats to the bit; each block reduces in a fixed order. Requires: B below 2^31.

#include "common/common.cuh"

namespace {

// A maximum as in NumPy (NaN is larger than every number) and its row, the first one of equals.
struct Peak {
  float value;
  int row;  // -1: no value yet
};

__device__ inline Peak combine(const Peak& a, const Peak& b) {
  if (b.row < 0) return a;
  if (a.row < 0) return b;
  return is_higher(b.value, b.row, a.value, a.row) ? b : a;
}

}  // namespace

// ---- forward ----

// r = sum of the graph's rows; divided by their number if `mean`
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    readout_sum_forward(float* r, const float* __restrict__ h, const int* __restrict__ node_ptr, int P, int mean) {
  const int b = blockIdx.x, p = blockIdx.y * blockDim.x + threadIdx.x;
  const int begin = node_ptr[b], end = node_ptr[b + 1];
  float sum = 0.f;
  if (p < P) {
#pragma unroll 4
    for (int n = begin + threadIdx.y; n < end; n += blockDim.y) sum += h[static_cast<long long>(n) * P + p];
  }
  sum = reduce_rows(sum);
  if (threadIdx.y == 0 && p < P) r[static_cast<long long>(b) * P + p] = mean ? sum / max(end - begin, 1) : sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    readout_max_forward(float* r, int* argmax, const float* __restrict__ h, const int* __restrict__ node_ptr, int P) {
  const int b = blockIdx.x, p = blockIdx.y * blockDim.x + threadIdx.x;
  const int begin = node_ptr[b], end = node_ptr[b + 1];
  Peak peak = {0.f, -1};
  if (p < P) {
#pragma unroll 4
    for (int n = begin + threadIdx.y; n < end; n += blockDim.y)
      peak = combine(peak, {h[static_cast<long long>(n) * P + p], n});
  }
  peak = reduce_rows(peak);
  if (threadIdx.y == 0 && p < P) {
    r[static_cast<long long>(b) * P + p] = peak.value;
    argmax[static_cast<long long>(b) * P + p] = peak.row;
  }
}

// ---- backward ----

// dh = dr of the graph, in each of its rows; divided by their number if `mean`
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    readout_sum_backward(float* dh, const float* __restrict__ dr, const int* __restrict__ node_ptr, int P, int mean) {
  const int b = blockIdx.x, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (p >= P) return;
  const int begin = node_ptr[b], end = node_ptr[b + 1];
  const float whole = dr[static_cast<long long>(b) * P + p];
  const float value = mean ? whole / max(end - begin, 1) : whole;
  for (int n = begin + threadIdx.y; n < end; n += blockDim.y) dh[static_cast<long long>(n) * P + p] = value;
}

// dh = dr in the row of the maximum, 0 in the other rows
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    readout_max_backward(float* dh, const float* __restrict__ dr, const int* __restrict__ argmax,
                         const int* __restrict__ node_ptr, int P) {
  const int b = blockIdx.x, p = blockIdx.y * blockDim.x + threadIdx.x;
  if (p >= P) return;
  const int begin = node_ptr[b], end = node_ptr[b + 1];
  const float value = dr[static_cast<long long>(b) * P + p];
  const int winner = argmax[static_cast<long long>(b) * P + p];
  for (int n = begin + threadIdx.y; n < end; n += blockDim.y)
    dh[static_cast<long long>(n) * P + p] = n == winner ? value : 0.f;
}
