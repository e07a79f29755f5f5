// Adjacency (CSR) of one large graph times dense features with many zeros, as ReLU and dropout leave them: rows of the
// features are stored without their zeros, so an entry reads 256 bytes instead of 512, and the result stays exact.
//
//   out[r, p] = row_scale[r] * sum over entries k of row r of  scale[indices[k]] * x[indices[k], p]   r < n_rows, p < width
//
// Source: own; storage of sparse activations for SpMM as in Peng et al.: "MaxK-GNN: extremely fast GPU kernel design for
//   accelerating graph neural networks training", ASPLOS 2024, which keeps k elements per row. Here all elements that are
//   not zero are kept. Differs from spmm/large.cu in the operand alone: pieces and reduction are the same.
// Shapes: a compressed row has ROW_BYTES bytes. Its head has HEAD_GROUPS pairs of 32 bits, one per 32 columns: a mask of
//   the elements that are not zero; the number of such elements before the group, and 256 times that of the row. Then
//   follow these elements in order of their columns. The other bytes are never read. pieces and results as in
//   spmm/pieces.cuh; width <= COMPRESSED_COLUMNS.
// Strategy: a warp sums a piece; a lane owns 4 columns. The warp copies the first CHUNK bytes of the rows of 8 entries at
//   a time to a ring in shared memory, RING_GROUPS - 1 groups ahead. A lane finds its elements by the mask. Of rows that do
//   not fit CHUNK bytes it loads the rest directly: correct for any number of zeros, and fast for few such rows.
//   On an H200, 126 M entries and 128 columns took 7.4 ms with a quarter of the elements, 7.6 with 35 %, and 28 with
//   half, against 14.7 for rows of all elements. Chunks of 192 bytes took 7.9 ms, 26 with 35 %, because 5 % of rows of a
//   quarter do not fit; loads without a ring 14.4. Marks of rows that L2 should keep made it 4 % slower.
// Determinism: a lane adds the entries of a piece in order: repeats to the bit.
#include "common/copies.cuh"
#include "spmm/pieces.cuh"

// ------------------------------------------------------------------------------------------------------ parameters

struct CompressedProduct {
  Results results;
  Pieces pieces;
  const unsigned char* rows;
};

// ---------------------------------------------------------------------------------------------------------- helpers

constexpr int COMPRESSED_COLUMNS = 128, HEAD_GROUPS = COMPRESSED_COLUMNS / 32, HEAD_BYTES = 8 * HEAD_GROUPS;
constexpr int ROW_BYTES = 576;  // HEAD_BYTES and 128 floats, in whole units of 64 bytes, which memory reads at once
constexpr int COMPRESSED_THREADS = 128, WARPS = COMPRESSED_THREADS / 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int COMPRESSED_BLOCKS = 8;
#else
constexpr int COMPRESSED_BLOCKS = 12;  // at least, of a multiprocessor: 42 registers, as many as 1536 threads can have
#endif
constexpr int CHUNK = 256, CHUNK_PARTS = CHUNK / 16, CAPACITY = (CHUNK - HEAD_BYTES) / 4;
constexpr int RING_GROUPS = 2, GROUP = 8;  // groups in the ring; entries of a group
static_assert(ROW_BYTES >= HEAD_BYTES + 4 * COMPRESSED_COLUMNS && GROUP * CHUNK_PARTS % 32 == 0,
              "whole rows, whole warps");

// A lane's place in the head of a row.
struct Place {
  int shift;       // of its 4 bits in the mask of its group
  unsigned lower;  // the bits of lower lanes

  __device__ Place() { shift = threadIdx.x % 8 * 4, lower = (1u << shift) - 1; }
};

// Add a lane's elements of a row to its sums. `mask` has them in its lowest 4 bits, `at` is the number of elements before.
template <class Element>
__device__ __forceinline__ void add_elements(float4& sum, unsigned mask, int at, Element element) {
  if (mask & 1) sum.x += element(at++);
  if (mask & 2) sum.y += element(at++);
  if (mask & 4) sum.z += element(at++);
  if (mask & 8) sum.w += element(at);
}

// ----------------------------------------------------------------------------------------------------- entry points

// Compressed rows of scale[i] * x[i, :]. Launch: a warp per row, 128 threads. 2,449,029 rows: 612,258 blocks.
// Shared memory: 2 KB, to write whole lines. Traffic: reads x once, writes the heads and the elements that are not zero,
//   rounded up to whole sectors of 32 bytes.
extern "C" __global__ __launch_bounds__(COMPRESSED_THREADS) void spmm_compress(unsigned char* __restrict__ rows,
                                                                               const float* __restrict__ x,
                                                                               const float* __restrict__ scale,
                                                                               long long x_first, int x_stride,
                                                                               int n_rows, int width) {
  __shared__ float staged[WARPS][COMPRESSED_COLUMNS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp;
  if (row >= n_rows) return;
  const float by = scale ? __ldg(scale + row) : 1.0f;
  const float* from = x + x_first + row_offset(row, x_stride) + 4 * lane;
  float4 v = load4(from, width - 4 * lane, is_aligned(x + x_first, x_stride));
  v = make_float4(by * v.x, by * v.y, by * v.z, by * v.w);
  const unsigned mask = (v.x != 0.f) | (v.y != 0.f) << 1 | (v.z != 0.f) << 2 | (v.w != 0.f) << 3;
  int end = __popc(mask);
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int before = __shfl_up_sync(FULL_WARP, end, offset);
    if (lane >= offset) end += before;
  }
  const int start = end - __popc(mask), total = __shfl_sync(FULL_WARP, end, 31);
  unsigned of_group = mask << Place().shift;
#pragma unroll
  for (int offset = 1; offset < 8; offset <<= 1) of_group |= __shfl_xor_sync(FULL_WARP, of_group, offset);
  unsigned char* to = rows + static_cast<long long>(row) * ROW_BYTES;
  if (lane % 8 == 0) reinterpret_cast<uint2*>(to)[lane / 8] = make_uint2(of_group, start | total << 8);

  float* at = staged[warp] + start;
  if (mask & 1) *at++ = v.x;
  if (mask & 2) *at++ = v.y;
  if (mask & 4) *at++ = v.z;
  if (mask & 8) *at = v.w;
  const int stored = (total + 7) / 8 * 8;
  if (total + lane < stored) staged[warp][total + lane] = 0.f;
  __syncwarp();
  float* elements = reinterpret_cast<float*>(to + HEAD_BYTES);
  for (int i = lane; i < stored; i += 32) elements[i] = staged[warp][i];
}

// Launch: 128 threads, a warp per piece. 2,522,104 pieces: 630,526 blocks.
// Shared memory: 16 KB. Bank conflicts: lanes read neighbouring elements; two of them share a bank only in rows of more
//   than 32 elements.
// Traffic: reads 4 nnz bytes of indices and CHUNK nnz of rows, writes 4 n_rows width, and 4 slots width of partial sums.
// Requirements: `rows` aligned to 64 bytes, `partials` to 16; partial_stride divisible by 4.
extern "C" __global__ __launch_bounds__(COMPRESSED_THREADS, COMPRESSED_BLOCKS) void spmm_compressed(
    const __grid_constant__ CompressedProduct product) {
  __shared__ __align__(16) float4 rings[WARPS][RING_GROUPS][GROUP][CHUNK_PARTS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = blockIdx.x * WARPS + warp;
  const Pieces& pieces = product.pieces;
  if (piece >= pieces.count) return;
  const int first = __ldg(pieces.first + piece), n_entries = __ldg(pieces.first + piece + 1) - first;
  const int n_groups = ceil_div(n_entries, GROUP);
  const int* indices = pieces.indices + first;
  const unsigned char* rows = product.rows;
  const Place place;
  // A lane holds one of the indices of 32 entries, and one of the 32 after them.
  int index = 0, next = lane < n_entries ? __ldcs(indices + lane) : 0;
  float4 sum = zero_vec<float4>();
  int to = 0, from = 0;  // groups of the ring
#pragma unroll 1
  for (int group = 0; group < n_groups + RING_GROUPS - 1; ++group) {
    if (group < n_groups) {
      if (group % (32 / GROUP) == 0) {
        const int ahead = group * GROUP + 32 + lane;
        index = next;
        next = ahead < n_entries ? __ldcs(indices + ahead) : 0;
      }
#pragma unroll
      for (int i = lane; i < GROUP * CHUNK_PARTS; i += 32) {
        const int entry = i / CHUNK_PARTS, part = i % CHUNK_PARTS;
        const int row = __shfl_sync(FULL_WARP, index, group % (32 / GROUP) * GROUP + entry);
        const unsigned char* chunk = rows + static_cast<long long>(row & UNMARKED) * ROW_BYTES;
        copy_async<4>(&rings[warp][to][entry][part].x, reinterpret_cast<const float*>(chunk) + 4 * part,
                      group * GROUP + entry < n_entries ? 4 : 0);  // a row of zeros has no elements
      }
      to = to + 1 < RING_GROUPS ? to + 1 : 0;
    }
    commit_copies();  // also empty groups, so the number of pending groups is right at the end
    if (group < RING_GROUPS - 1) continue;
    wait_for_copies<RING_GROUPS - 1>();
    __syncwarp();
#pragma unroll
    for (int entry = 0; entry < GROUP; ++entry) {
      const unsigned char* chunk = reinterpret_cast<const unsigned char*>(rings[warp][from][entry]);
      const uint2 head = reinterpret_cast<const uint2*>(chunk)[lane / 8];
      const float* near = reinterpret_cast<const float*>(chunk + HEAD_BYTES);
      const unsigned mask = head.x >> place.shift;
      const int at = (head.y & 255) + __popc(head.x & place.lower);
      if (head.y >> 8 <= CAPACITY) {
        add_elements(sum, mask, at, [&](int i) { return near[i]; });
      } else {
        const int row = __ldg(indices + (group - RING_GROUPS + 1) * GROUP + entry) & UNMARKED;
        const float* far = reinterpret_cast<const float*>(rows + static_cast<long long>(row) * ROW_BYTES + HEAD_BYTES);
        add_elements(sum, mask, at, [&](int i) { return i < CAPACITY ? near[i] : __ldg(far + i); });
      }
    }
    from = from + 1 < RING_GROUPS ? from + 1 : 0;
    __syncwarp();  // all lanes have read the group before it is overwritten
  }
  if (4 * lane < product.results.width) product.results.store_piece(__ldg(pieces.target + piece), sum, 4 * lane);
}
