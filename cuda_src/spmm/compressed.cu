// Adjacency (CSR) of one large graph times dense features with many zeros, as ReLU and dropout leave them: rows of the
// features are stored without their zeros, so an entry reads 192 bytes instead of 512, and the result stays exact.
//
//   out[r, p] = row_scale[r] * sum over entries k of row r of  scale[indices[k]] * x[indices[k], p]   r < n_rows, p < width
//
// Source: own; storage of sparse activations for SpMM as in Peng et al.: "MaxK-GNN: extremely fast GPU kernel design for
//   accelerating graph neural networks training", ASPLOS 2024, which keeps k elements per row. Here all elements that are
//   not zero are kept. Differs from spmm/large.cu in the operand alone: pieces and reduction are the same.
// Shapes: a compressed row has ROW_BYTES bytes. Its head has HEAD_WORDS words: for each group of 32 columns a mask of the
//   elements that are not zero; then, in bytes, the number of elements before groups 1, 2 and 3, and that of the row. Then
//   follow these elements in order of their columns. The other bytes are never used. pieces and results as in
//   spmm/pieces.cuh; width <= COMPRESSED_COLUMNS.
// Strategy: a warp sums a piece; a lane owns 4 columns. The warp copies the first bytes of the rows of 8 entries at a time
//   to a ring in shared memory, RING_GROUPS - 1 groups ahead. A lane finds its elements by the mask. Of rows that do not fit
//   a copy it loads the rest directly: correct for any number of zeros, and fast for few such rows. A copy has
//   NARROW_CHUNK bytes, or CHUNK bytes where a sample says that too many rows do not fit the first. Bound by instructions:
//   about 35 an entry and warp.
//   On an H200, 126 M entries and 128 columns took 7.3 ms with a quarter of the elements, against 14.7 for rows of all
//   elements. With heads of 32 bytes, chunks of 256 bytes took 7.5 ms, 7.6 with 35 % of the elements, and 28 with half;
//   chunks of 192 bytes 7.9 ms, 26 with 35 %, because 5 % of rows of a quarter did not fit; loads without a ring 14.4.
//   Marks of rows that L2 should keep made it 4 % slower.
// Determinism: a lane adds the entries of a piece in order, whatever fits: repeats to the bit.
#include "common/copies.cuh"
#include "common/philox.cuh"
#include "spmm/compressed.cuh"
#include "spmm/pieces.cuh"

// ------------------------------------------------------------------------------------------------------ parameters

struct CompressedProduct {
  Results results;
  Pieces pieces;
  const unsigned char* rows;
  const int* unfit;  // of the sampled rows, those that do not fit NARROW_CHUNK
  int n_operand_rows;
  const int* places;  // of packed rows: the first sector of each
};

// ---------------------------------------------------------------------------------------------------------- helpers

constexpr int COMPRESSED_THREADS = 128, WARPS = COMPRESSED_THREADS / 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int COMPRESSED_BLOCKS = 8;
#elif defined(__CUDACC_RTC__) || defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int COMPRESSED_BLOCKS = 10;  // these compilers take more registers than 12 leave
#else
constexpr int COMPRESSED_BLOCKS = 12;  // at least, of a multiprocessor: 42 registers, as many as 1536 threads can have
#endif
constexpr int CHUNK = 256, NARROW_CHUNK = 192;
constexpr int CAPACITY = CHUNK / 4 - HEAD_WORDS, NARROW_CAPACITY = NARROW_CHUNK / 4 - HEAD_WORDS;
constexpr int SAMPLED = 16, UNFIT_SHARE = 32;  // one of 16 rows is sampled; at most one of 32 may not fit
constexpr int RING_GROUPS = 2, GROUP = 8;      // groups in the ring; entries of a group
static_assert(ROW_BYTES >= 4 * (HEAD_WORDS + COMPRESSED_COLUMNS), "whole rows");
static_assert(GROUP * CHUNK / 16 % 32 == 0 && GROUP * NARROW_CHUNK / 16 % 32 == 0, "whole warps");

// A lane's place in the head of a row.
struct Place {
  int group, shift;     // of its mask, and of its 4 bits in that
  unsigned lower;       // the bits of lower lanes
  int count_shift;      // of the number of elements before its group,
  unsigned count_mask;  // which is 0 for the first

  __device__ Place() {
    const int lane = threadIdx.x % 32;
    group = lane / 8, shift = lane % 8 * 4, lower = (1u << shift) - 1;
    count_shift = group ? 8 * (group - 1) : 0, count_mask = group ? 255 : 0;
  }
};

// Add a lane's elements of a row to its sums. `head` is the row's; `element` returns the row's element by number.
template <class Element>
__device__ __forceinline__ void add_elements(float4& sum, const Place& place, const unsigned* head, Element element) {
  const unsigned of_group = head[place.group], mask = of_group >> place.shift;
  int at = (head[GROUPS] >> place.count_shift & place.count_mask) + __popc(of_group & place.lower);
  if (mask & 1) sum.x += element(at++);
  if (mask & 2) sum.y += element(at++);
  if (mask & 4) sum.z += element(at++);
  if (mask & 8) sum.w += element(at);
}

// Write head and elements of a row to shared memory, of which a lane holds 4 columns; return the number of elements. Words
// up to the next multiple of 8 are 0.
__device__ __forceinline__ int stage_row(unsigned* row, float4 v) {
  const int lane = threadIdx.x % 32;
  const unsigned mask = (v.x != 0.f) | (v.y != 0.f) << 1 | (v.z != 0.f) << 2 | (v.w != 0.f) << 3;
  const unsigned upto = FULL_WARP >> (31 - lane);  // this lane and those before
  const unsigned of_lanes[4] = {__ballot_sync(FULL_WARP, mask & 1), __ballot_sync(FULL_WARP, mask & 2),
                                __ballot_sync(FULL_WARP, mask & 4), __ballot_sync(FULL_WARP, mask & 8)};
  int end = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) end += __popc(of_lanes[i] & upto);
  const Place place;
  unsigned of_group = mask << place.shift;
#pragma unroll
  for (int offset = 1; offset < 8; offset <<= 1) of_group |= __shfl_xor_sync(FULL_WARP, of_group, offset);
  if (lane % 8 == 0) row[place.group] = of_group;
  if (lane % 8 == 7) reinterpret_cast<unsigned char*>(row + GROUPS)[place.group] = end;
  const int total = __shfl_sync(FULL_WARP, end, 31);
  unsigned* at = row + HEAD_WORDS + end - __popc(mask);
  if (mask & 1) *at++ = __float_as_uint(v.x);
  if (mask & 2) *at++ = __float_as_uint(v.y);
  if (mask & 4) *at++ = __float_as_uint(v.z);
  if (mask & 8) *at = __float_as_uint(v.w);
  if (lane < 8) row[HEAD_WORDS + total + lane] = 0;
  __syncwarp();
  return total;
}

// Copy a staged row of `total` elements to memory, in whole sectors.
__device__ __forceinline__ void store_row(unsigned char* to, const unsigned* row, int total) {
  for (int i = threadIdx.x % 32; i < 2 * ceil_div(HEAD_WORDS + total, 8); i += 32)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(row)[i];
}

// The place of the row of an entry, which `row_at` finds: its number or, PACKED, its first sector.
template <bool PACKED>
__device__ __forceinline__ int place_of_row(const CompressedProduct& product, int index) {
  return PACKED ? __ldg(product.places + (index & UNMARKED)) : index;
}

template <bool PACKED>
__device__ __forceinline__ const unsigned char* row_at(const CompressedProduct& product, int place) {
  return product.rows +
         (PACKED ? static_cast<long long>(place) * SECTOR : static_cast<long long>(place & UNMARKED) * ROW_BYTES);
}

// Sum this warp's piece; rows of its entries pass through `ring` in chunks of BYTES, which hold MOST elements.
template <int BYTES, int MOST, bool PACKED>
__device__ __forceinline__ float4 compressed_sum(float4* ring, const CompressedProduct& product, int first,
                                                 int n_entries) {
  constexpr int PARTS = BYTES / 16, WORDS = BYTES / 4;
  const int lane = threadIdx.x % 32, n_groups = ceil_div(n_entries, GROUP);
  const int* indices = product.pieces.indices + first;
  const Place place;
  // A lane holds the place of the row of one of 32 entries, and of one of the 32 after them.
  int index = 0, next = lane < n_entries ? place_of_row<PACKED>(product, __ldcs(indices + lane)) : 0;
  float4 sum = zero_vec<float4>();
  int to = 0, from = 0;  // groups of the ring
#pragma unroll 1
  for (int group = 0; group < n_groups + RING_GROUPS - 1; ++group) {
    if (group < n_groups) {
      if (group % (32 / GROUP) == 0) {
        const int ahead = group * GROUP + 32 + lane;
        index = next;
        next = ahead < n_entries ? place_of_row<PACKED>(product, __ldcs(indices + ahead)) : 0;
      }
#pragma unroll
      for (int i = lane; i < GROUP * PARTS; i += 32) {
        const int entry = i / PARTS, part = i % PARTS;
        const int row = __shfl_sync(FULL_WARP, index, group % (32 / GROUP) * GROUP + entry);
        const unsigned char* chunk = row_at<PACKED>(product, row);
        copy_async<4>(&ring[to * GROUP * PARTS + i].x, reinterpret_cast<const float*>(chunk) + 4 * part,
                      group * GROUP + entry < n_entries ? 4 : 0);  // a row of zeros has no elements
      }
      to = to + 1 < RING_GROUPS ? to + 1 : 0;
    }
    commit_copies();  // also empty groups, so the number of pending groups is right at the end
    if (group < RING_GROUPS - 1) continue;
    wait_for_copies<RING_GROUPS - 1>();
    __syncwarp();
    const unsigned* chunks = reinterpret_cast<const unsigned*>(ring + from * GROUP * PARTS);
    // One vote for all entries of the group: branches between them would keep their loads apart.
    if (!__any_sync(FULL_WARP, chunks[lane % GROUP * WORDS + GROUPS] >> 24 > MOST)) {
      const auto add_half = [&](int first_of_half) {
#pragma unroll
        for (int entry = 0; entry < GROUP / 2; ++entry) {
          const unsigned* chunk = chunks + (first_of_half + entry) * WORDS;
          const float* near = reinterpret_cast<const float*>(chunk + HEAD_WORDS);
          add_elements(sum, place, chunk, [&](int i) { return near[i]; });
        }
      };
      add_half(0);
      if (n_entries - (group - RING_GROUPS + 1) * GROUP > GROUP / 2) add_half(GROUP / 2);
    } else {
#pragma unroll 1
      for (int entry = 0; entry < GROUP; ++entry) {
        const unsigned* chunk = chunks + entry * WORDS;
        if (chunk[GROUPS] == 0) continue;  // no elements, as after the piece
        const int row = place_of_row<PACKED>(product, __ldg(indices + (group - RING_GROUPS + 1) * GROUP + entry));
        const float* near = reinterpret_cast<const float*>(chunk + HEAD_WORDS);
        const float* far = reinterpret_cast<const float*>(row_at<PACKED>(product, row)) + HEAD_WORDS;
        add_elements(sum, place, chunk, [&](int i) { return i < MOST ? near[i] : __ldg(far + i); });
      }
    }
    from = from + 1 < RING_GROUPS ? from + 1 : 0;
    __syncwarp();  // all lanes have read the group before it is overwritten
  }
  return sum;
}

// A warp sums a piece and stores it.
template <bool ADDS, bool PACKED = false>
__device__ __forceinline__ void compressed_product(const CompressedProduct& product) {
  __shared__ __align__(16) float4 rings[WARPS][RING_GROUPS * GROUP * CHUNK / 16];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = blockIdx.x * WARPS + warp;
  const Pieces& pieces = product.pieces;
  if (piece >= pieces.count) return;
  const int first = __ldg(pieces.first + piece), n_entries = __ldg(pieces.first + piece + 1) - first;
  const bool narrow = __ldg(product.unfit) <= product.n_operand_rows / (SAMPLED * UNFIT_SHARE);
  const float4 sum = narrow
                         ? compressed_sum<NARROW_CHUNK, NARROW_CAPACITY, PACKED>(rings[warp], product, first, n_entries)
                         : compressed_sum<CHUNK, CAPACITY, PACKED>(rings[warp], product, first, n_entries);
  if (4 * lane < product.results.width) product.results.store_piece<ADDS>(__ldg(pieces.target + piece), sum, 4 * lane);
}

// ----------------------------------------------------------------------------------------------------- entry points

// Compressed rows of column_scale[i] * x[i, :]; `unfit` is 0 before.
// Launch: a warp per row, 128 threads. 2,449,029 rows: 612,258 blocks.
// Shared memory: 2.3 KB, to write whole lines. Traffic: reads x once, writes the heads and the elements that are not zero,
//   rounded up to whole sectors of 32 bytes.
extern "C" __global__ __launch_bounds__(COMPRESSED_THREADS) void spmm_compress(
    unsigned char* __restrict__ rows, int* __restrict__ unfit, const float* __restrict__ x,
    const float* __restrict__ column_scale, long long x_first, int x_stride, int n_rows, int width) {
  __shared__ __align__(16) unsigned staged[WARPS][ROW_BYTES / 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp;
  if (row >= n_rows) return;
  const float by = column_scale ? __ldg(column_scale + row) : 1.0f;
  const float* from = x + x_first + row_offset(row, x_stride) + 4 * lane;
  float4 v = load4(from, width - 4 * lane, is_aligned(x + x_first, x_stride));
  v = make_float4(by * v.x, by * v.y, by * v.z, by * v.w);
  const int total = stage_row(staged[warp], v);
  if (lane == 0 && row % SAMPLED == 0 && total > NARROW_CAPACITY) atomicAdd(unfit, 1);
  store_row(rows + static_cast<long long>(row) * ROW_BYTES, staged[warp], total);
}

// Compressed rows of column_scale[i] * dropout(relu(x[i, :])); `unfit` is 0 before. `kept` and the numbers of the mask as in
//   dense/relu_dropout.cu.
// Launch: a warp per 2 rows, 128 threads: its lanes draw the 32 Philox blocks of 2 rows of 128 columns. 2,449,029 rows:
//   306,129 blocks.
// Shared memory: 2.3 KB. Traffic: reads x once, writes as spmm_compress and a bit per element.
// Requirements: width and `first` divisible by 8.
extern "C" __global__ __launch_bounds__(COMPRESSED_THREADS, 8) void spmm_compress_relu_dropout(
    unsigned char* __restrict__ rows, int* __restrict__ unfit, unsigned char* __restrict__ kept,
    const float* __restrict__ x, const float* __restrict__ column_scale, int n_rows, int width,
    unsigned long long first, unsigned long long seed, unsigned long long purpose, unsigned long long epoch,
    unsigned long long step, unsigned threshold, float scale) {
  __shared__ __align__(16) unsigned staged[WARPS][ROW_BYTES / 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks_of_row = width / 8;
  const int first_row = 2 * (blockIdx.x * WARPS + warp);
  float4 x_of[2];  // loaded first, so that memory works while the lanes draw
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int left = first_row + i < n_rows ? width - 4 * lane : 0;
    x_of[i] = load4(x + row_offset(first_row + i, width) + 4 * lane, left, is_aligned(x, 0));
  }
  unsigned drawn = 0;
  if (first_row + lane / 16 < n_rows && lane % 16 < blocks_of_row) {
    const long long block = static_cast<long long>(first_row + lane / 16) * blocks_of_row + lane % 16;
    drawn = kept_of_block({seed, purpose, epoch, step}, first / 8 + block, threshold);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned keep = __shfl_sync(FULL_WARP, drawn, 16 * i + lane / 2) >> (lane % 2 * 4) & 15;
    const int row = first_row + i;
    if (row >= n_rows) return;
    float4 v = positive(x_of[i]);
    const unsigned passes = keep & ((v.x > 0.f) | (v.y > 0.f) << 1 | (v.z > 0.f) << 2 | (v.w > 0.f) << 3);
    const unsigned odd = __shfl_down_sync(FULL_WARP, passes, 1);
    if (lane % 2 == 0 && 4 * lane < width)
      kept[static_cast<long long>(row) * blocks_of_row + lane / 2] = passes | odd << 4;
    const float by = column_scale ? __ldg(column_scale + row) : 1.0f;
    v = make_float4(keep & 1 ? by * (v.x * scale) : 0.f, keep & 2 ? by * (v.y * scale) : 0.f,
                    keep & 4 ? by * (v.z * scale) : 0.f, keep & 8 ? by * (v.w * scale) : 0.f);
    const int total = stage_row(staged[warp], v);
    if (lane == 0 && row % SAMPLED == 0 && total > NARROW_CAPACITY) atomicAdd(unfit, 1);
    store_row(rows + static_cast<long long>(row) * ROW_BYTES, staged[warp], total);
    __syncwarp();  // the staged row has been read
  }
}

// Launch: 128 threads, a warp per piece. 2,522,104 pieces: 630,526 blocks.
// Shared memory: 16 KB. Bank conflicts: lanes read neighbouring elements; two of them share a bank only in rows of more
//   than 32 elements.
// Traffic: reads 4 nnz bytes of indices and NARROW_CHUNK nnz of rows (CHUNK where these do not fit), writes
//   4 n_rows width, and 4 slots width of partial sums.
// Requirements: `rows` aligned to 64 bytes, `partials` to 16; partial_stride divisible by 4.
KERNEL(spmm_compressed, CompressedProduct, (COMPRESSED_THREADS, COMPRESSED_BLOCKS), compressed_product<false>);

// The same, added to `out`: out += ...
KERNEL(spmm_compressed_add, CompressedProduct, (COMPRESSED_THREADS, COMPRESSED_BLOCKS), compressed_product<true>);

// Both with packed rows, which begin at any sector and are followed by CHUNK readable bytes.
KERNEL(spmm_compressed_packed, CompressedProduct, (COMPRESSED_THREADS, COMPRESSED_BLOCKS),
       compressed_product<false, true>);
KERNEL(spmm_compressed_packed_add, CompressedProduct, (COMPRESSED_THREADS, COMPRESSED_BLOCKS),
       compressed_product<true, true>);
