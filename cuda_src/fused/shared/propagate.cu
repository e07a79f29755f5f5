// U of the first layer for all nodes of a data set, once per set: it depends on no parameter.
//
//   U[n] = [A_1 X | … | A_C X | row sums of A_1 … A_C | 0],  of which the columns `columns` are stored
//
// Source: own. The sums are those of SciPy's product on the host, to the bit: products and sums are rounded one by one,
// in the order of the entries; row sums are of doubles.
// Shapes: node_ptr (G+1,), A in CSR with N rows, an index is C node + channel within its graph; x (rows, F) in the type of
// the kernel's name; row_of (N,) the row of x of each node, null: each node has its own; u (N, K); columns (K,): column of
// U; C F + C: zeros.
// Launch: 256 threads; blocks stride over graphs, the warps of a block over the graph's nodes, lanes over the columns.
// Traffic: reads 4 E bytes for each of indices, values and row_of, and E F elements of x, mostly from L2; writes 4 N K bytes.
// Determinism: one writer per element, fixed order: repeats to the bit.
#include "common/common.cuh"
#include "common/stored.cuh"

constexpr int PROPAGATE_THREADS = 256;

struct PropagateParams {
  float* u;
  const int *node_ptr, *indptr, *indices, *columns;
  const float* values;
  const void* x;
  const int* row_of;
  int G, F, C, K;
  int is_tf32;  // round U to the 11 bits of TF32
};

// The nearest number of 11 bits, ties to even; NaN and infinities pass.
__device__ __forceinline__ float nearest_tf32(float x) {
  const unsigned bits = __float_as_uint(x);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  return is_finite ? __uint_as_float((bits + 0x0fffu + (bits >> 13 & 1u)) & 0xffffe000u) : x;
}

template <class T>
__device__ __forceinline__ void propagate(const PropagateParams& params) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32, F = params.F, C = params.C;
  const T* x = static_cast<const T*>(params.x);
  for (int graph = blockIdx.x; graph < params.G; graph += gridDim.x) {
    const int first = params.node_ptr[graph], stop = params.node_ptr[graph + 1];
    for (int node = first + threadIdx.x / 32; node < stop; node += warps) {
      const int begin = params.indptr[node], end = params.indptr[node + 1];
      float* out = params.u + static_cast<long long>(node) * params.K;
#pragma unroll 1
      for (int place = lane; place < params.K; place += 32) {
        const int column = params.columns[place];
        const bool is_sum = column >= C * F;
        const int channel = is_sum ? column - C * F : column / F;
        const T* of_column = x + column - channel * F;
        float value = 0.f;
        double total = 0.;
#pragma unroll 1
        for (int entry = begin; entry < end; ++entry) {
          const int index = params.indices[entry];
          if (index % C != channel) continue;
          const float weight = params.values[entry];
          if (is_sum) {
            total += weight;
            continue;
          }
          const int source = first + index / C;
          const long long row = params.row_of ? params.row_of[source] : source;
          value = __fadd_rn(value, __fmul_rn(weight, to_float(of_column[row * F])));
        }
        const float found = is_sum ? static_cast<float>(total) : value;
        out[place] = params.is_tf32 ? nearest_tf32(found) : found;
      }
    }
  }
}

KERNEL(fused_propagate_float32, PropagateParams, (PROPAGATE_THREADS, 1), propagate<float>);
KERNEL(fused_propagate_float16, PropagateParams, (PROPAGATE_THREADS, 1), propagate<unsigned short>);
KERNEL(fused_propagate_uint8, PropagateParams, (PROPAGATE_THREADS, 1), propagate<unsigned char>);
KERNEL(fused_propagate_int8, PropagateParams, (PROPAGATE_THREADS, 1), propagate<signed char>);
