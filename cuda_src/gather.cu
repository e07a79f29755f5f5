// The gather of a batch from the data set on the device, and the row numbers of a CSR matrix's entries.
//
// A graph's nodes, entries and targets are contiguous in the set and in the batch: the gather of graph b of the batch,
// which is graph g = graphs[b] of the set, copies a few segments, with columns and pointers shifted.
//   set    node_ptr (G+1,); per matrix indptr (rows + 1,), indices (local to the graph), data
//   batch  node_ptr (B+1,) and, per matrix, entry_ptr (B+1,): computed on the host for a whole epoch
// Determinism: copies; repeats to the bit.

// ---------------------------------------------------------------------------------------------------------- helpers

// A graph of the batch: where its n_nodes nodes begin in the set and in the batch.
struct Segment {
  int graph, source, first, n_nodes;
};

__device__ __forceinline__ Segment segment_of_block(const int* set_node_ptr, const int* graphs, const int* node_ptr) {
  const int graph = graphs[blockIdx.x], first = node_ptr[blockIdx.x];
  return {graph, set_node_ptr[graph], first, node_ptr[blockIdx.x + 1] - first};
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(unsigned char x) { return x; }
__device__ __forceinline__ float to_float(signed char x) { return x; }
__device__ __forceinline__ float to_float(unsigned short half_bits) {  // IEEE half, without its header
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half_bits));
  return x;
}

// Copy `count` elements, converted by `convert`; the graph's gridDim.y blocks share them.
template <typename Target, typename Source, typename Convert>
__device__ __forceinline__ void copy_segment(Target* target, const Source* source, long long count, Convert convert) {
  const long long step = (long long)gridDim.y * blockDim.x;
  for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < count; i += step) {
    target[i] = convert(source[i]);
  }
}

// Targets are moved as bits: float32 values or int32 classes. One row per graph, or one per node.
__device__ __forceinline__ void gather_targets(int* targets, const int* set_targets, Segment segment, int n_outputs,
                                               int per_node) {
  const long long source = per_node ? segment.source : segment.graph, first = per_node ? segment.first : blockIdx.x;
  copy_segment(targets + first * n_outputs, set_targets + source * n_outputs,
               (long long)(per_node ? segment.n_nodes : 1) * n_outputs, [](int bits) { return bits; });
}

template <typename T>
__device__ __forceinline__ void gather_nodes(float* x, int* targets, const T* set_x, const int* set_targets,
                                             const int* set_node_ptr, const int* graphs, const int* node_ptr,
                                             int n_features, int n_outputs, int targets_per_node) {
  const Segment segment = segment_of_block(set_node_ptr, graphs, node_ptr);
  copy_segment(x + (long long)segment.first * n_features, set_x + (long long)segment.source * n_features,
               (long long)segment.n_nodes * n_features, [](T value) { return to_float(value); });
  gather_targets(targets, set_targets, segment, n_outputs, targets_per_node);
}

// One graph's rows of a CSR matrix: pointers moved to first_entry, columns by column_shift. The last graph of the batch
// also writes the pointer behind the last row.
__device__ __forceinline__ void gather_csr(int* indptr, int* indices, float* data, const int* set_indptr,
                                           const int* set_indices, const float* set_data, Segment segment,
                                           int first_entry, int rows_per_node, int column_shift) {
  const int source_row = segment.source * rows_per_node, n_rows = segment.n_nodes * rows_per_node;
  const int source_entry = set_indptr[source_row], n_entries = set_indptr[source_row + n_rows] - source_entry;
  const int entry_shift = first_entry - source_entry, last = blockIdx.x == gridDim.x - 1;
  copy_segment(indptr + segment.first * rows_per_node, set_indptr + source_row, n_rows + last,
               [=](int entry) { return entry + entry_shift; });
  copy_segment(indices + first_entry, set_indices + source_entry, n_entries,
               [=](int column) { return column + column_shift; });
  copy_segment(data + first_entry, set_data + source_entry, n_entries, [](float value) { return value; });
}

// ----------------------------------------------------------------------------------------------------- entry points

// Source: own. Dense features in the type that the set is stored in, to float32, and the targets.
// Shapes: x (N, F), targets (R, K); set_x and set_targets of the whole set.
// Launch: 256 threads, grid (B, pieces): a block per graph, more where graphs are large or few. Batch 50 of 18 nodes,
//   F = 75, on 132 multiprocessors: 50 x 2 blocks.
// Traffic: reads sizeof(T) N F + 4 R K, writes 4 N F + 4 R K bytes; both segments are read and written in order.
extern "C" __global__ __launch_bounds__(256) void gather_nodes_float32(
    float* __restrict__ x, int* __restrict__ targets, const float* __restrict__ set_x,
    const int* __restrict__ set_targets, const int* __restrict__ set_node_ptr, const int* __restrict__ graphs,
    const int* __restrict__ node_ptr, int n_features, int n_outputs, int targets_per_node) {
  gather_nodes(x, targets, set_x, set_targets, set_node_ptr, graphs, node_ptr, n_features, n_outputs, targets_per_node);
}

extern "C" __global__ __launch_bounds__(256) void gather_nodes_uint8(
    float* __restrict__ x, int* __restrict__ targets, const unsigned char* __restrict__ set_x,
    const int* __restrict__ set_targets, const int* __restrict__ set_node_ptr, const int* __restrict__ graphs,
    const int* __restrict__ node_ptr, int n_features, int n_outputs, int targets_per_node) {
  gather_nodes(x, targets, set_x, set_targets, set_node_ptr, graphs, node_ptr, n_features, n_outputs, targets_per_node);
}

extern "C" __global__ __launch_bounds__(256) void gather_nodes_int8(
    float* __restrict__ x, int* __restrict__ targets, const signed char* __restrict__ set_x,
    const int* __restrict__ set_targets, const int* __restrict__ set_node_ptr, const int* __restrict__ graphs,
    const int* __restrict__ node_ptr, int n_features, int n_outputs, int targets_per_node) {
  gather_nodes(x, targets, set_x, set_targets, set_node_ptr, graphs, node_ptr, n_features, n_outputs, targets_per_node);
}

extern "C" __global__ __launch_bounds__(256) void gather_nodes_float16(
    float* __restrict__ x, int* __restrict__ targets, const unsigned short* __restrict__ set_x,
    const int* __restrict__ set_targets, const int* __restrict__ set_node_ptr, const int* __restrict__ graphs,
    const int* __restrict__ node_ptr, int n_features, int n_outputs, int targets_per_node) {
  gather_nodes(x, targets, set_x, set_targets, set_node_ptr, graphs, node_ptr, n_features, n_outputs, targets_per_node);
}

// Sparse features (CSR, columns are features: not shifted) and the targets. Launch as above.
// Traffic: reads and writes 4 N + 8 nnz + 4 R K bytes each.
extern "C" __global__ __launch_bounds__(256) void gather_nodes_csr(
    int* __restrict__ indptr, int* __restrict__ indices, float* __restrict__ data, int* __restrict__ targets,
    const int* __restrict__ set_indptr, const int* __restrict__ set_indices, const float* __restrict__ set_data,
    const int* __restrict__ set_targets, const int* __restrict__ set_node_ptr, const int* __restrict__ graphs,
    const int* __restrict__ node_ptr, const int* __restrict__ entry_ptr, int n_outputs, int targets_per_node) {
  const Segment segment = segment_of_block(set_node_ptr, graphs, node_ptr);
  gather_csr(indptr, indices, data, set_indptr, set_indices, set_data, segment, entry_ptr[blockIdx.x], 1, 0);
  gather_targets(targets, set_targets, segment, n_outputs, targets_per_node);
}

// The adjacency (blockIdx.z = 0; N rows, N*C columns) and its transpose (1; N*C rows, N columns). A symmetric adjacency
// of one channel is its own transpose: gridDim.z = 1. Launch: 256 threads, grid (B, pieces, 1 or 2). Traffic: reads and
// writes 4 N (1 + C) + 16 E bytes each; half of it for a symmetric adjacency.
extern "C" __global__ __launch_bounds__(256) void gather_adjacency(
    int* __restrict__ indptr, int* __restrict__ indices, float* __restrict__ data, int* __restrict__ t_indptr,
    int* __restrict__ t_indices, float* __restrict__ t_data, const int* __restrict__ set_indptr,
    const int* __restrict__ set_indices, const float* __restrict__ set_data, const int* __restrict__ set_t_indptr,
    const int* __restrict__ set_t_indices, const float* __restrict__ set_t_data, const int* __restrict__ set_node_ptr,
    const int* __restrict__ graphs, const int* __restrict__ node_ptr, const int* __restrict__ entry_ptr,
    const int* __restrict__ t_entry_ptr, int n_channels) {
  const Segment segment = segment_of_block(set_node_ptr, graphs, node_ptr);
  if (blockIdx.z == 0) {
    gather_csr(indptr, indices, data, set_indptr, set_indices, set_data, segment, entry_ptr[blockIdx.x], 1,
               segment.first * n_channels);
  } else {
    gather_csr(t_indptr, t_indices, t_data, set_t_indptr, set_t_indices, set_t_data, segment, t_entry_ptr[blockIdx.x],
               n_channels, segment.first);
  }
}

// rows[k] = the row of entry k of a CSR matrix: what turns it into COO.
// Launch: 8 threads a row, 256 a block. Traffic: reads 4 (n_rows + 1), writes 4 nnz bytes.
extern "C" __global__ __launch_bounds__(256) void csr_entry_rows(int* __restrict__ rows, const int* __restrict__ indptr,
                                                                 int n_rows) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 3;
  if (row >= n_rows) return;
  for (int k = indptr[row] + (threadIdx.x & 7); k < indptr[row + 1]; k += 8) rows[k] = static_cast<int>(row);
}
