// Inference behind the last node layer: readout and dense layers, a warp per graph.
//
//   logits[b] = dense layers of  sum | mean | max over the nodes of graph b of relu(Y + shift)
//
// Source: own. Training's readout (fused/shared/readout.cuh) gives a graph a block, for it goes all the way back; here only
// throughput counts. Shapes and `kind` as there; `shift` (P,): what is left of batch norm (`Folding`); null: nothing.
// Launch: 256 threads, 8 graphs a block at a time, at most 8 blocks a multiprocessor that stride over the graphs.
// Shared memory: columns_of(P) + 8 head_floats floats, dynamic; a warp reads consecutive words.
// Traffic: reads 4 N P, writes 4 B K bytes.
// Determinism: one writer per output, fixed order: repeats to the bit.
#include "fused/shared/readout.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(256)
    fused_logits(float* logits, const int* size, const int* node_ptr, const float* y, const float* shift,
                 const long long* heads, int P, int n_heads, int head_floats, int kind) {
  extern __shared__ float4 shared4[];
  float* shift_of = reinterpret_cast<float*>(shared4);
  float* of_graph = shift_of + columns_of(P) + threadIdx.x / 32 * head_floats;
  for (int p = threadIdx.x; p < P; p += blockDim.x) shift_of[p] = shift ? shift[p] : 0.f;
  __syncthreads();
  const int lane = threadIdx.x % 32, B = size[1];
  for (int b = blockIdx.x * 8 + threadIdx.x / 32; b < B; b += gridDim.x * 8) {
    const int begin = node_ptr[b], end = node_ptr[b + 1];
    for (int p = lane; p < P; p += 32) {
      float value = 0.f;
#pragma unroll 4
      for (int i = begin; i < end; ++i) {
        const float z = positive(y[static_cast<long long>(i) * P + p] + shift_of[p]);
        value = kind != 2 ? value + z : z != z || z > value ? z : value;  // relu leaves nothing below 0
      }
      of_graph[p] = kind == 1 && end > begin ? value / (end - begin) : value;
    }
    __syncwarp();
    float* in = of_graph;
    for (int m = 0; m < n_heads; ++m) {
      const Head head = head_of(heads, m);
      float* out = in + head.F;
      for (int k = lane; k < head.P; k += 32) {
        float sum = head.bias[k];
#pragma unroll 4
        for (int f = 0; f < head.F; ++f) sum += in[f] * head.weight[f * head.P + k];
        out[k] = m + 1 < n_heads ? positive(sum) : sum;
        if (m + 1 == n_heads) logits[static_cast<long long>(b) * head.P + k] = sum;
      }
      __syncwarp();
      in = out;
    }
  }
}
