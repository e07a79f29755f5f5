// The gather of a batch from the data set on the device, and the row numbers of a CSR matrix's entries.
//
// A graph's nodes, entries and targets are contiguous in the set and in the batch: the gather of graph b of the batch,
// which is graph g = graphs[b] of the set, copies a few segments, with columns and pointers shifted. One launch does all:
// blockIdx.z = 0 the nodes and targets, 1 the adjacency, 2 its transpose.
//   set    node_ptr (G+1,); per matrix indptr (rows + 1,), indices (local to the graph), data
//   plan   what the host has computed for the batch, one behind the other: graphs (B,), then (B+1,) each, the first
//          node, entry of the adjacency, entry of the transpose and entry of sparse features of every graph in the batch
// Determinism: copies; repeats to the bit.

// ---------------------------------------------------------------------------------------------------------- helpers

// A graph of the batch: where its n_nodes nodes begin in the set and in the batch.
struct Segment {
  int graph, source, first, n_nodes;
};

// Where pointer `number` (0 nodes, 1 entries, 2 of the transpose, 3 of the features) of a plan of B graphs begins.
__device__ __forceinline__ const int* pointer_of_plan(const int* plan, int number) {
  const int B = gridDim.x;
  return plan + B + number * (B + 1);
}

__device__ __forceinline__ Segment segment_of_block(const int* set_node_ptr, const int* plan) {
  const int* node_ptr = pointer_of_plan(plan, 0);
  const int graph = plan[blockIdx.x], first = node_ptr[blockIdx.x];
  return {graph, set_node_ptr[graph], first, node_ptr[blockIdx.x + 1] - first};
}

// A CSR matrix of the batch and of the set.
struct BatchCsr {
  int *indptr, *indices;
  float* data;
};
struct SetCsr {
  const int *indptr, *indices;
  const float* data;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(unsigned char x) { return x; }
__device__ __forceinline__ float to_float(signed char x) { return x; }
__device__ __forceinline__ float to_float(unsigned short half_bits) {  // IEEE half, without its header
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half_bits));
  return x;
}

// Copy `count` elements, converted by `convert`; the graph's gridDim.y blocks share them.
template <typename To, typename From, typename Convert>
__device__ __forceinline__ void copy_segment(To* target, const From* source, long long count, Convert convert) {
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

// One graph's rows of a CSR matrix: pointers moved to first_entry, columns by column_shift. The last graph of the batch
// also writes the pointer behind the last row.
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

// The adjacency (blockIdx.z = 1; N rows, N*C columns) or its transpose (2; N*C rows, N columns).
__device__ __forceinline__ void gather_adjacency(BatchCsr forward, BatchCsr transpose, SetCsr set_forward,
                                                 SetCsr set_transpose, Segment segment, const int* plan,
                                                 int n_channels) {
  const int first_entry = pointer_of_plan(plan, blockIdx.z)[blockIdx.x];
  if (blockIdx.z == 1) {
    gather_rows(forward, set_forward, segment, first_entry, 1, segment.first * n_channels);
  } else {
    gather_rows(transpose, set_transpose, segment, first_entry, n_channels, segment.first);
  }
}

template <typename T>
__device__ __forceinline__ void gather_dense(float* x, int* targets, BatchCsr forward, BatchCsr transpose,
                                             const T* set_x, const int* set_targets, SetCsr set_forward,
                                             SetCsr set_transpose, const int* set_node_ptr, const int* plan,
                                             int n_features, int n_outputs, int targets_per_node, int n_channels) {
  const Segment segment = segment_of_block(set_node_ptr, plan);
  if (blockIdx.z > 0) {
    gather_adjacency(forward, transpose, set_forward, set_transpose, segment, plan, n_channels);
    return;
  }
  copy_segment(x + (long long)segment.first * n_features, set_x + (long long)segment.source * n_features,
               (long long)segment.n_nodes * n_features, [](T value) { return to_float(value); });
  gather_targets(targets, set_targets, segment, n_outputs, targets_per_node);
}

// ----------------------------------------------------------------------------------------------------- entry points

// Source: own. Dense features in the type that the set is stored in, to float32; targets; the adjacency and its
//   transpose. A symmetric adjacency of one channel is its own transpose: gridDim.z = 2; gridDim.z = 1 leaves both out.
// Shapes: x (N, F), targets (R, K), indptr (N+1,), indices, data (E,), t_indptr (N C + 1,); set_… of the whole set.
// Launch: 256 threads, grid (B, pieces, 1 to 3): a block per graph, more where graphs are large or few. Batch 50 of 18
//   nodes, F = 75, on 132 multiprocessors: 50 x 2 x 2 blocks.
// Traffic: reads sizeof(T) N F + 4 R K, writes 4 N F + 4 R K bytes; reads and writes 4 N (1 + C) + 16 E bytes of the
//   adjacency, half of it where it is symmetric. All segments are read and written in order.
extern "C" __global__ __launch_bounds__(256) void gather_float32(
    float* __restrict__ x, int* __restrict__ targets, int* __restrict__ indptr, int* __restrict__ indices,
    float* __restrict__ data, int* __restrict__ t_indptr, int* __restrict__ t_indices, float* __restrict__ t_data,
    const float* __restrict__ set_x, const int* __restrict__ set_targets, const int* __restrict__ set_indptr,
    const int* __restrict__ set_indices, const float* __restrict__ set_data, const int* __restrict__ set_t_indptr,
    const int* __restrict__ set_t_indices, const float* __restrict__ set_t_data, const int* __restrict__ set_node_ptr,
    const int* __restrict__ plan, int n_features, int n_outputs, int targets_per_node, int n_channels) {
  gather_dense(x, targets, {indptr, indices, data}, {t_indptr, t_indices, t_data}, set_x, set_targets,
               {set_indptr, set_indices, set_data}, {set_t_indptr, set_t_indices, set_t_data}, set_node_ptr, plan,
               n_features, n_outputs, targets_per_node, n_channels);
}

extern "C" __global__ __launch_bounds__(256) void gather_uint8(
    float* __restrict__ x, int* __restrict__ targets, int* __restrict__ indptr, int* __restrict__ indices,
    float* __restrict__ data, int* __restrict__ t_indptr, int* __restrict__ t_indices, float* __restrict__ t_data,
    const unsigned char* __restrict__ set_x, const int* __restrict__ set_targets, const int* __restrict__ set_indptr,
    const int* __restrict__ set_indices, const float* __restrict__ set_data, const int* __restrict__ set_t_indptr,
    const int* __restrict__ set_t_indices, const float* __restrict__ set_t_data, const int* __restrict__ set_node_ptr,
    const int* __restrict__ plan, int n_features, int n_outputs, int targets_per_node, int n_channels) {
  gather_dense(x, targets, {indptr, indices, data}, {t_indptr, t_indices, t_data}, set_x, set_targets,
               {set_indptr, set_indices, set_data}, {set_t_indptr, set_t_indices, set_t_data}, set_node_ptr, plan,
               n_features, n_outputs, targets_per_node, n_channels);
}

extern "C" __global__ __launch_bounds__(256) void gather_int8(
    float* __restrict__ x, int* __restrict__ targets, int* __restrict__ indptr, int* __restrict__ indices,
    float* __restrict__ data, int* __restrict__ t_indptr, int* __restrict__ t_indices, float* __restrict__ t_data,
    const signed char* __restrict__ set_x, const int* __restrict__ set_targets, const int* __restrict__ set_indptr,
    const int* __restrict__ set_indices, const float* __restrict__ set_data, const int* __restrict__ set_t_indptr,
    const int* __restrict__ set_t_indices, const float* __restrict__ set_t_data, const int* __restrict__ set_node_ptr,
    const int* __restrict__ plan, int n_features, int n_outputs, int targets_per_node, int n_channels) {
  gather_dense(x, targets, {indptr, indices, data}, {t_indptr, t_indices, t_data}, set_x, set_targets,
               {set_indptr, set_indices, set_data}, {set_t_indptr, set_t_indices, set_t_data}, set_node_ptr, plan,
               n_features, n_outputs, targets_per_node, n_channels);
}

extern "C" __global__ __launch_bounds__(256) void gather_float16(
    float* __restrict__ x, int* __restrict__ targets, int* __restrict__ indptr, int* __restrict__ indices,
    float* __restrict__ data, int* __restrict__ t_indptr, int* __restrict__ t_indices, float* __restrict__ t_data,
    const unsigned short* __restrict__ set_x, const int* __restrict__ set_targets, const int* __restrict__ set_indptr,
    const int* __restrict__ set_indices, const float* __restrict__ set_data, const int* __restrict__ set_t_indptr,
    const int* __restrict__ set_t_indices, const float* __restrict__ set_t_data, const int* __restrict__ set_node_ptr,
    const int* __restrict__ plan, int n_features, int n_outputs, int targets_per_node, int n_channels) {
  gather_dense(x, targets, {indptr, indices, data}, {t_indptr, t_indices, t_data}, set_x, set_targets,
               {set_indptr, set_indices, set_data}, {set_t_indptr, set_t_indices, set_t_data}, set_node_ptr, plan,
               n_features, n_outputs, targets_per_node, n_channels);
}

// The same with sparse features (CSR, columns are features: not shifted).
// Traffic: reads and writes 4 N + 8 nnz + 4 R K bytes each, and the adjacency as above.
extern "C" __global__ __launch_bounds__(256) void gather_csr(
    int* __restrict__ x_indptr, int* __restrict__ x_indices, float* __restrict__ x_data, int* __restrict__ targets,
    int* __restrict__ indptr, int* __restrict__ indices, float* __restrict__ data, int* __restrict__ t_indptr,
    int* __restrict__ t_indices, float* __restrict__ t_data, const int* __restrict__ set_x_indptr,
    const int* __restrict__ set_x_indices, const float* __restrict__ set_x_data, const int* __restrict__ set_targets,
    const int* __restrict__ set_indptr, const int* __restrict__ set_indices, const float* __restrict__ set_data,
    const int* __restrict__ set_t_indptr, const int* __restrict__ set_t_indices, const float* __restrict__ set_t_data,
    const int* __restrict__ set_node_ptr, const int* __restrict__ plan, int n_outputs, int targets_per_node,
    int n_channels) {
  const Segment segment = segment_of_block(set_node_ptr, plan);
  if (blockIdx.z > 0) {
    gather_adjacency({indptr, indices, data}, {t_indptr, t_indices, t_data}, {set_indptr, set_indices, set_data},
                     {set_t_indptr, set_t_indices, set_t_data}, segment, plan, n_channels);
    return;
  }
  gather_rows({x_indptr, x_indices, x_data}, {set_x_indptr, set_x_indices, set_x_data}, segment,
              pointer_of_plan(plan, 3)[blockIdx.x], 1, 0);
  gather_targets(targets, set_targets, segment, n_outputs, targets_per_node);
}

// rows[k] = the row of entry k of a CSR matrix: what turns it into COO.
// Launch: 8 threads a row, 256 a block. Traffic: reads 4 (n_rows + 1), writes 4 nnz bytes.
extern "C" __global__ __launch_bounds__(256) void csr_entry_rows(int* __restrict__ rows, const int* __restrict__ indptr,
                                                                 int n_rows) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 3;
  if (row >= n_rows) return;
  for (int k = indptr[row] + (threadIdx.x & 7); k < indptr[row + 1]; k += 8) rows[k] = static_cast<int>(row);
}
