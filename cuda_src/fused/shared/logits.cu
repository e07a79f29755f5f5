// Inference after the last node layer: readout and dense layers, one warp per graph.
//
//   logits[b] = dense layers of  [readouts over the nodes of graph b of relu(Y + shift), features of the graph]
//
// Source: own. The readout of training (fused/shared/readout.cuh) uses a block per graph, because it also computes the
// backward pass; here only throughput counts. Shapes and readouts as there; `shift` (P,): see `Folding`; null: none.
// Launch: 256 threads, members in z, 8 graphs per block at a time; blocks stride over the graphs.
// Shared memory: columns_of(P) + 8 head_floats floats, dynamic; a warp reads consecutive words.
// Traffic: reads 4 N P, writes 4 B K bytes.
// Determinism: one writer per output, fixed order: repeats to the bit.
#include "fused/shared/heads.cuh"
#include "fused/shared/pooling.cuh"

using namespace fused;

constexpr int LOGITS_THREADS = 256, LOGITS_GRAPHS = LOGITS_THREADS / 32;  // of a block; graphs that it has at a time

struct LogitsParams {
  float* logits;
  const int* size;
  const int* node_ptr;
  const float *y, *shift, *features, *joined;  // joined: as fused/shared/join.cuh leaves it, in one split; null: none
  const Head* heads;
  Members members;
  Readouts readouts;
  int P, D, n_heads, head_floats;
};

extern "C" __global__ void __launch_bounds__(LOGITS_THREADS) fused_logits(const __grid_constant__ LogitsParams params) {
  extern __shared__ float4 shared4[];
  const int P = params.P, R = params.readouts.n * P;
  float* shift_of = reinterpret_cast<float*>(shared4);
  float* of_graph = shift_of + columns_of(P) + threadIdx.x / 32 * params.head_floats;
  for (int p = threadIdx.x; p < P; p += blockDim.x)
    shift_of[p] = params.shift ? params.members.of_model(params.shift)[p] : 0.f;
  __syncthreads();
  const int lane = threadIdx.x % 32, B = params.members.of_step(params.size)[BatchSize::B];
  for (int b = blockIdx.x * LOGITS_GRAPHS + threadIdx.x / 32; b < B; b += gridDim.x * LOGITS_GRAPHS) {
    const int begin = params.members.of_step(params.node_ptr)[b], end = params.members.of_step(params.node_ptr)[b + 1];
    for (int column = lane; column < R; column += 32) {
      const int kind = params.readouts.kinds[column / P], p = column % P;
      const float shift = shift_of[p];
      const auto z_of = [&](int i) {
        return positive(params.members.of_step(params.y)[static_cast<long long>(i) * P + p] + shift);
      };
      float value = 0.f;
      if (kind == MAX) {
#pragma unroll 4
        for (int i = begin; i < end; ++i) {
          const float z = z_of(i);
          value = z != z || z > value ? z : value;  // after relu nothing is below 0
        }
      } else {
#pragma unroll 4
        for (int i = begin; i < end; ++i) value += z_of(i);
      }
      of_graph[column] = kind == MEAN && end > begin ? value / (end - begin) : value;
    }
#pragma unroll 1
    for (int d = params.joined ? params.D : lane; d < params.D; d += 32)
      of_graph[R + d] = params.members.of_step(params.features)[static_cast<long long>(b) * params.D + d];
    __syncwarp();
    float* in = of_graph;
    for (int m = 0; m < params.n_heads; ++m) {
      const Head head = params.members.of_step(params.heads)[m];
      float* out = in + head.F;
#pragma unroll 1  // the compiler would otherwise add eight copies of the loop for F = 0
      for (int k = lane; k < head.P; k += 32) {
        const bool is_joined = m == 0 && params.joined;
        float sum = head.bias[k];
        if (is_joined) sum += params.members.of_step(params.joined)[static_cast<long long>(b) * head.P + k];
        const int F = is_joined ? R : head.F;
#pragma unroll 4
        for (int f = 0; f < F; ++f) sum += in[f] * head.weight[f * head.P + k];
        out[k] = m + 1 < params.n_heads ? positive(sum) : sum;
        if (m + 1 == params.n_heads)
          params.members.of_step(params.logits)[static_cast<long long>(b) * head.P + k] = sum;
      }
      __syncwarp();
      in = out;
    }
  }
}
