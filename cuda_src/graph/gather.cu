// Gather of a batch from the data set on the device, and row numbers of the entries of a CSR matrix.
//
// The nodes, entries and targets of a graph are contiguous in the set and in the batch. So the gather of graph b of the
// batch, graph g = graphs[b] of the set, copies a few segments and shifts columns and pointers. One launch copies all:
// blockIdx.z = 0 nodes and targets, 1 the adjacency, 2 its transpose.
//   set    node_ptr (G+1,); per matrix indptr (rows + 1,), indices (local to the graph), data
//   plan   computed by the host for the batch, concatenated: graphs (B,); then (B+1,) each, the first node, entry of
//          the adjacency, entry of the transpose and entry of sparse features of every graph in the batch
// Determinism: copies only; repeats to the bit.

#include "common/common.cuh"
#include "common/stored.cuh"

// ------------------------------------------------------------------------------------------------------ parameters

// A CSR matrix of the batch and of the set.
struct BatchCsr {
  int *indptr, *indices;
  float* data;
};
struct SetCsr {
  const int *indptr, *indices;
  const float* data;
};

// Arguments of every gather, except the features. Shapes: targets (R, n_outputs) float32 or int32, forward (N rows),
// transpose (N n_channels rows), plan as above; set_… belong to the whole set.
struct Gather {
  int* targets;
  BatchCsr forward, transpose;
  const int* set_targets;
  SetCsr set_forward, set_transpose;
  const int *set_node_ptr, *plan;
  int n_outputs, targets_per_node, n_channels;
};

struct DenseGather {
  Gather batch;
  float* x;           // (N, n_features)
  const void* set_x;  // of the type in the kernel's name
  int n_features;
};

struct SparseGather {
  Gather batch;
  BatchCsr x;
  SetCsr set_x;
};

// ---------------------------------------------------------------------------------------------------------- helpers

constexpr int IN_FLIGHT = 4;  // elements that a thread loads before it stores the first

// A graph of the batch: its number in the set, its first node in the set (`source`) and in the batch (`first`).
struct Segment {
  int graph, source, first, n_nodes;
};

// Start of a pointer in a plan of B graphs: 0 nodes, 1 entries, 2 entries of the transpose, 3 entries of the features.
__device__ __forceinline__ const int* pointer_of_plan(const int* plan, int number) {
  const int B = gridDim.x;
  return plan + B + number * (B + 1);
}

__device__ __forceinline__ Segment segment_of_block(const int* set_node_ptr, const int* plan) {
  const int* node_ptr = pointer_of_plan(plan, 0);
  const int graph = plan[blockIdx.x], first = node_ptr[blockIdx.x];
  return {graph, set_node_ptr[graph], first, node_ptr[blockIdx.x + 1] - first};
}

// Copy `count` elements, converted by `convert`. The gridDim.y blocks of the graph share the work. Unrolled by the
// compiler, the loop would begin with a 64-bit division that counts its iterations.
template <typename To, typename From, typename Convert>
__device__ __forceinline__ void copy_segment(To* target, const From* source, long long count, Convert convert) {
  const long long step = (long long)gridDim.y * blockDim.x;
#pragma unroll 1
  for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < count; i += IN_FLIGHT * step) {
    From value[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      if (i + u * step < count) value[u] = source[i + u * step];
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      if (i + u * step < count) target[i + u * step] = convert(value[u]);
    }
  }
}

// Copy one graph's rows of a CSR matrix, with pointers shifted to first_entry and columns by column_shift. The last
// graph of the batch also writes the last pointer.
__device__ __forceinline__ void gather_rows(BatchCsr to, SetCsr from, Segment segment, int first_entry,
                                            int rows_per_node, int column_shift) {
  const int source_row = segment.source * rows_per_node, n_rows = segment.n_nodes * rows_per_node;
  const int source_entry = from.indptr[source_row], n_entries = from.indptr[source_row + n_rows] - source_entry;
  const int entry_shift = first_entry - source_entry, last = blockIdx.x == gridDim.x - 1;
  copy_segment(to.indptr + segment.first * rows_per_node, from.indptr + source_row, n_rows + last,
               [=](int entry) { return entry + entry_shift; });
  copy_segment(to.indices + first_entry, from.indices + source_entry, n_entries,
               [=](int column) { return column + column_shift; });
  copy_segment(to.data + first_entry, from.data + source_entry, n_entries, [](float value) { return value; });
}

// Copy the targets as bits: float32 values or int32 classes; one row per graph, or one per node.
__device__ __forceinline__ void gather_targets(const Gather& batch, Segment segment) {
  const bool per_node = batch.targets_per_node;
  const long long source = per_node ? segment.source : segment.graph, first = per_node ? segment.first : blockIdx.x;
  copy_segment(batch.targets + first * batch.n_outputs, batch.set_targets + source * batch.n_outputs,
               static_cast<long long>(per_node ? segment.n_nodes : 1) * batch.n_outputs, [](int bits) { return bits; });
}

// Copy the adjacency (blockIdx.z = 1; N rows, N*C columns) or its transpose (2; N*C rows, N columns).
__device__ __forceinline__ void gather_adjacency(const Gather& batch, Segment segment) {
  const int first_entry = pointer_of_plan(batch.plan, blockIdx.z)[blockIdx.x];
  if (blockIdx.z == 1) {
    gather_rows(batch.forward, batch.set_forward, segment, first_entry, 1, segment.first * batch.n_channels);
  } else {
    gather_rows(batch.transpose, batch.set_transpose, segment, first_entry, batch.n_channels, segment.first);
  }
}

template <typename T>
__device__ __forceinline__ void gather_dense(const DenseGather& gather) {
  const Gather& batch = gather.batch;
  const Segment segment = segment_of_block(batch.set_node_ptr, batch.plan);
  if (blockIdx.z > 0) {
    gather_adjacency(batch, segment);
    return;
  }
  const long long width = gather.n_features;
  copy_segment(gather.x + segment.first * width, static_cast<const T*>(gather.set_x) + segment.source * width,
               segment.n_nodes * width, [](T value) { return to_float(value); });
  gather_targets(batch, segment);
}

// ----------------------------------------------------------------------------------------------------- entry points

// Source: own. Gathers dense features, converted from their stored type to float32, targets, the adjacency and its
//   transpose. gridDim.z = 3: all. gridDim.z = 2: a symmetric adjacency of one channel is its own transpose.
//   gridDim.z = 1: neither.
// Launch: 256 threads, grid (B, pieces, 1 to 3): a block per graph, or several if graphs are large or few. Batch 50 of
//   18 nodes, F = 75, on 132 multiprocessors: 50 x 2 x 2 blocks.
// Traffic: reads sizeof(T) N F + 4 R K, writes 4 N F + 4 R K bytes; reads and writes 4 N (1 + C) + 16 E bytes of the
//   adjacency, or half of that if it is symmetric. All segments are read and written in order.
KERNEL(gather_float32, DenseGather, (BLOCK_THREADS), gather_dense<float>);
KERNEL(gather_uint8, DenseGather, (BLOCK_THREADS), gather_dense<unsigned char>);
KERNEL(gather_int8, DenseGather, (BLOCK_THREADS), gather_dense<signed char>);
KERNEL(gather_float16, DenseGather, (BLOCK_THREADS), gather_dense<unsigned short>);

// The same with sparse features (CSR; columns are features and not shifted).
// Traffic: reads and writes 4 N + 8 nnz + 4 R K bytes each, and the adjacency as above.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void gather_csr(const __grid_constant__ SparseGather gather) {
  const Gather& batch = gather.batch;
  const Segment segment = segment_of_block(batch.set_node_ptr, batch.plan);
  if (blockIdx.z > 0) {
    gather_adjacency(batch, segment);
    return;
  }
  gather_rows(gather.x, gather.set_x, segment, pointer_of_plan(batch.plan, 3)[blockIdx.x], 1, 0);
  gather_targets(batch, segment);
}

// rows[k] = row of entry k of a CSR matrix, for COO kernels.
// Launch: 8 threads per row, 256 per block. Traffic: reads 4 (n_rows + 1), writes 4 nnz bytes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void csr_entry_rows(int* __restrict__ rows,
                                                                           const int* __restrict__ indptr, int n_rows) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 3;
  if (row >= n_rows) return;
  for (int k = indptr[row] + (threadIdx.x & 7); k < indptr[row + 1]; k += 8) rows[k] = static_cast<int>(row);
}
