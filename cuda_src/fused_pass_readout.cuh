// The middle of a pass: from Z of the last layer to the loss and back to G of every row.
//
//   R[b] = sum | mean | max over the rows of graph b of Z,    logits = R W + b
//
// A block has 64 columns of R and the rows of W that belong to them. The slices' parts of the logits are read by every
// block from the shared memory of all, added in order, and each finds the losses of all graphs and their gradients by
// itself: one wait for the cluster instead of two. Then dR of its columns, and G = dR where Z > 0.
// Graphs are taken READ_GRAPHS at a time, of which a thread sums up eight at once.
//
// Shared memory: ReadShared, in the place of the tile of U, which is free here; Z stays where it is. W is read along rows
// and, at an odd stride, across them: no bank conflicts.
#pragma once

#include "fused_pass_product.cuh"
#include "fused_readout.cuh"

namespace fused {

constexpr int READ_GRAPHS = 16, READ_LD = READ_GRAPHS + 4, OCTET = 8, NO_ROW = 255;
constexpr int READ_SPLITS = PASS_THREADS / HALF_PANEL;  // of the sums over outputs

struct ReadShared {
  float scratch[PASS_THREADS * READ_GRAPHS];
  float pooled[HALF_PANEL][READ_LD], back[READ_GRAPHS][HALF_PANEL];
  double losses[READ_GRAPHS];
  unsigned char peaks[READ_GRAPHS][HALF_PANEL];
  // and by the number of outputs:
  float dlogits[MAX_OUTPUTS][READ_LD];
  float parts[READ_GRAPHS * MAX_OUTPUTS], logits[READ_GRAPHS * MAX_OUTPUTS], gradient[READ_GRAPHS * MAX_OUTPUTS];
  float targets[READ_GRAPHS * MAX_OUTPUTS], loss_weight[MAX_OUTPUTS], weights[HALF_PANEL * (MAX_OUTPUTS | 1)];
};
static_assert(sizeof(ReadShared) <= sizeof(PassShared::u), "the readout does not fit in the place of U");

// 4 bytes to shared memory, without a register.
__device__ __forceinline__ void copy_later(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// What lies at `own` in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ float4 load4_of_block(const float* own, int rank) {
  float4 value = make_float4(0.f, 0.f, 0.f, 0.f);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
#endif
  return value;
}

// S slices; `tile` and `slice` are this block's, graphs first_graph ... + n_graphs those of the tile.
template <int S>
struct PassReadout {
  static constexpr int P = S * HALF_PANEL;
  PassShared& at;
  const Owner& own;
  int tile, slice, first_graph, n_graphs;

  __device__ __forceinline__ ReadShared& read() const { return *reinterpret_cast<ReadShared*>(at.u); }
  __device__ __forceinline__ int outputs() const { return static_cast<int>(at.pass.n_outputs); }
  __device__ __forceinline__ int n_targets() const { return at.pass.loss == 1 ? 1 : outputs(); }
  __device__ __forceinline__ int stride() const { return outputs() | 1; }

  // Ask for the targets of the graphs from `first` of the tile on; and for the weights. All threads call.
  __device__ __forceinline__ void ask_targets(int first) const {
    const int n = min(n_graphs - first, READ_GRAPHS) * n_targets();
    const float* from = at.pass.targets + static_cast<long long>(first_graph + first) * n_targets();
#pragma unroll 1
    for (int e = threadIdx.x; e < n; e += PASS_THREADS) copy_later(read().targets + e, from + e);
  }
  __device__ __forceinline__ void ask() const {
    const int K = outputs();
    const float* weight = at.pass.head_weight + static_cast<long long>(slice) * HALF_PANEL * K;
#pragma unroll 1
    for (int f = own.warp; f < HALF_PANEL; f += PASS_THREADS / 32) {
#pragma unroll 4
      for (int k = own.lane; k < K; k += 32) copy_later(read().weights + f * stride() + k, weight + f * K + k);
    }
    for (int k = threadIdx.x; k < K; k += PASS_THREADS) copy_later(read().loss_weight + k, at.pass.loss_weight + k);
    ask_targets(0);
  }

  // R of the graphs from `first` on: a warp has a graph, a lane columns lane and lane + 32.
  __device__ __forceinline__ void pool(int first, int n) const {
    const int kind = static_cast<int>(at.pass.readout);
#pragma unroll 1
    for (int graph = own.warp; graph < n; graph += PASS_THREADS / 32) {
      const int begin = at.first_row[first + graph], rows = at.graph_rows[first + graph];
      float sum[2] = {};
      int peak[2] = {NO_ROW, NO_ROW};
      if (kind == 2) {
#pragma unroll 2
        for (int i = begin; i < begin + rows; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float z = at.rows[i][own.lane + 32 * half];
            if (peak[half] == NO_ROW || is_higher(z, i, sum[half], peak[half])) sum[half] = z, peak[half] = i;
          }
        }
      } else {
#pragma unroll 8
        for (int i = begin; i < begin + rows; ++i) sum[0] += at.rows[i][own.lane], sum[1] += at.rows[i][own.lane + 32];
      }
      float* input = at.pass.input + static_cast<long long>(first_graph + first + graph) * P + slice * HALF_PANEL;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = own.lane + 32 * half;
        const float pooled = kind == 1 && rows > 0 ? sum[half] / rows : sum[half];
        read().pooled[c][graph] = pooled;
        if (kind == 2) read().peaks[graph][c] = static_cast<unsigned char>(peak[half]);
        input[c] = pooled;
      }
    }
  }

  // sum[g] += factor times an octet's numbers.
  __device__ __forceinline__ static void add_octet(float (&sum)[OCTET], float factor, const float* of_graphs) {
    const float4 low = *reinterpret_cast<const float4*>(of_graphs);
    const float4 high = *reinterpret_cast<const float4*>(of_graphs + 4);
    sum[0] = fmaf(factor, low.x, sum[0]), sum[1] = fmaf(factor, low.y, sum[1]);
    sum[2] = fmaf(factor, low.z, sum[2]), sum[3] = fmaf(factor, low.w, sum[3]);
    sum[4] = fmaf(factor, high.x, sum[4]), sum[5] = fmaf(factor, high.y, sum[5]);
    sum[6] = fmaf(factor, high.z, sum[6]), sum[7] = fmaf(factor, high.w, sum[7]);
  }

  // This slice's part of the logits of n graphs, (n, K) in `parts`. A thread has an output and every splits-th column.
  __device__ __forceinline__ void multiply(int n) const {
    const int K = outputs(), columns = ceil_div(K, 32) * 32, splits = PASS_THREADS / columns;
    const int k = threadIdx.x % columns, split = threadIdx.x / columns;
    ReadShared& r = read();
#pragma unroll 1
    for (int g0 = 0; g0 < n && split < splits && k < K; g0 += OCTET) {
      float sum[OCTET] = {};
#pragma unroll 4
      for (int f = split; f < HALF_PANEL; f += splits) add_octet(sum, r.weights[f * stride() + k], r.pooled[f] + g0);
#pragma unroll
      for (int g = 0; g < OCTET; ++g) r.scratch[(split * READ_GRAPHS + g0 + g) * columns + k] = sum[g];
    }
    __syncthreads();
#pragma unroll 1
    for (int g = split; g < n && k < K && split < splits; g += splits) {
      float total = 0.f;
#pragma unroll 4
      for (int s = 0; s < splits; ++s) total += r.scratch[(s * READ_GRAPHS + g) * columns + k];
      r.parts[g * K + k] = total;
    }
  }

  // Add up the parts of all slices.
  __device__ __forceinline__ void gather(int n) const {
    const int K = outputs();
    ReadShared& r = read();
#pragma unroll 1
    for (int e = 4 * threadIdx.x; e < n * K; e += 4 * PASS_THREADS) {
      float4 found[S];
#pragma unroll
      for (int s = 0; s < S; ++s) found[s] = load4_of_block(r.parts + e, s);
      float4 sum;
      sum.x = at.pass.head_bias[e % K], sum.y = at.pass.head_bias[(e + 1) % K];
      sum.z = at.pass.head_bias[(e + 2) % K], sum.w = at.pass.head_bias[(e + 3) % K];
#pragma unroll
      for (int s = 0; s < S; ++s) sum.x += found[s].x, sum.y += found[s].y, sum.z += found[s].z, sum.w += found[s].w;
      *reinterpret_cast<float4*>(r.logits + e) = sum;
    }
  }

  // The losses of n graphs, a warp each, and their gradients; one block of the cluster writes a graph's.
  __device__ __forceinline__ void find_losses(int first, int n, float label_weight) const {
    const int K = outputs();
    ReadShared& r = read();
#pragma unroll 1
    for (int graph = own.warp; graph < n; graph += PASS_THREADS / 32) {
      float* gradient = r.gradient + graph * K;
      const double loss = loss_of_graph(gradient, r.logits + graph * K, r.targets + graph * n_targets(), r.loss_weight,
                                        K, static_cast<int>(at.pass.loss), label_weight);
      if (own.lane == 0) r.losses[graph] = loss;
      float* result = at.pass.gradient + static_cast<long long>(first_graph + first + graph) * K;
#pragma unroll 4
      for (int k = own.lane; k < K; k += 32) {  // what this lane wrote
        r.dlogits[k][graph] = gradient[k];
        if (graph % S == slice) result[k] = gradient[k];
      }
    }
  }

  // dR of n graphs in `back`, divided by the rows of a graph for means.
  __device__ __forceinline__ void multiply_back(int first, int n) const {
    const int K = outputs(), f = threadIdx.x % HALF_PANEL, split = threadIdx.x / HALF_PANEL;
    ReadShared& r = read();
#pragma unroll 1
    for (int g0 = 0; g0 < n; g0 += OCTET) {
      float sum[OCTET] = {};
#pragma unroll 4
      for (int k = split; k < K; k += READ_SPLITS) add_octet(sum, r.weights[f * stride() + k], r.dlogits[k] + g0);
#pragma unroll
      for (int g = 0; g < OCTET; ++g) r.scratch[(split * READ_GRAPHS + g0 + g) * HALF_PANEL + f] = sum[g];
    }
    __syncthreads();
#pragma unroll 1
    for (int g = split; g < n; g += READ_SPLITS) {
      float total = 0.f;
#pragma unroll
      for (int s = 0; s < READ_SPLITS; ++s) total += r.scratch[(s * READ_GRAPHS + g) * HALF_PANEL + f];
      r.back[g][f] = at.pass.readout == 1 ? total / max(static_cast<int>(at.graph_rows[first + g]), 1) : total;
    }
  }

  // From Z in `rows` to G of this thread's values; `is_open(i)`: whether Z > 0. Leaves with this thread's arrival at the
  // cluster: nobody of this block needs the place of U any more, nor the parts of others; to be waited for.
  template <class IsOpen>
  __device__ __forceinline__ void run(float (&g)[OWN], float label_weight, IsOpen is_open) const {
    ReadShared& r = read();
    double total = 0.0;
#pragma unroll
    for (int i = 0; i < OWN; ++i) g[i] = 0.f;
#pragma unroll 1
    for (int first = 0; first < max(n_graphs, 1); first += READ_GRAPHS) {
      const int n = min(n_graphs - first, READ_GRAPHS);
      if (first > 0) {
        ask_targets(first);
        wait_for_cluster();
      }
      pool(first, n);
      wait_for_copies();
      __syncthreads();
      multiply(n);
      arrive_at_cluster();
      wait_for_cluster();
      gather(n);
      __syncthreads();
      find_losses(first, n, label_weight);
      __syncthreads();
      multiply_back(first, n);
      for (int graph = 0; threadIdx.x == 0 && graph < n; ++graph) total += r.losses[graph];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < OWN; ++i) {
        const int row = own.row(i), c = own.column(i % 4 / 2), graph = at.graph_of_row[row] - first;
        if (graph >= 0 && graph < n && is_open(i) && (at.pass.readout != 2 || r.peaks[graph][c] == row))
          g[i] = r.back[graph][c];
      }
      arrive_at_cluster();
    }
    if (slice == 0 && threadIdx.x == 0) at.pass.losses[tile] = total;
  }
};

}  // namespace fused
