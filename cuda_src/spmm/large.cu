// Adjacency (CSR) of one large graph times dense features. Rows of very different lengths are cut into pieces of equal
// work.
//
//   out[r, p] = row_scale[r] * sum over entries k of row r of  data[k] * dense[indices[k], p]     r < n_rows, p < width
//
// The unweighted form does not read `data`: every stored value is 1. A normalised adjacency D^-1/2 A D^-1/2 is then
// computed as a scaling of the rows of `dense` before the product (spmm_large_slices) and of the rows of `out` after
// it. An entry then takes 4 bytes instead of 8, in memory and traffic.
//
// Source: own. Differs from spmm/csr.cu: the unit of work is not a row but a piece of at most `PIECE` entries, from
//   gcnbatch's large-graph geometry; a second launch reduces the partial sums of a row's pieces; columns are processed
//   in slices, so that a slice of `dense` stays in L2; indices and weights are prefetched, 16 bytes at a time.
// Shapes: pieces and results as in spmm/pieces.cuh; a row without entries is an empty piece. `dense` is slices x (n_cols,
//   dense_stride), slice_step floats apart. float32.
// Determinism: one writer per output; the sizes fix the order in which entries of a piece, groups of a warp and pieces
//   of a row are summed: repeats to the bit.
#include "spmm/pieces.cuh"

// ------------------------------------------------------------------------------------------------------ parameters

// Of a product: 2^group_bits groups of 2^lane_bits lanes sum a piece. `data` has an element per entry; not read by
// unweighted forms.
struct LargeProduct {
  Results results;
  Pieces pieces;
  const float *dense, *data;
  long long slice_step;
  int dense_stride, slice_width, lane_bits, group_bits;
};

// Of the reduction of the partial sums of `n_split` rows: split_row (n_split,), split_first (n_split + 1,) the first slot of
// each. 32 / 2^lane_bits groups of lanes reduce a row.
struct PiecesReduction {
  Results results;
  const int *split_row, *split_first;
  int n_split, lane_bits;
};

// ---------------------------------------------------------------------------------------------------------- helpers

constexpr int STEP = 4;  // entries per 16-byte load of indices
constexpr int LARGE_THREADS = 128;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
constexpr int MARKED_BLOCKS = 16;  // at least, of a multiprocessor of 2048 threads: 32 registers
#else
constexpr int MARKED_BLOCKS = 8;
#endif

// How L2 treats the rows of marked and of other indices: it evicts the first last, and the others first. Below sm_80,
// nothing.
struct Retention {
  unsigned long long marked, other;

  __device__ Retention() {
    marked = other = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(marked));
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(other));
#endif
  }
  __device__ __forceinline__ unsigned long long of(int index) const { return index < 0 ? marked : other; }
};

template <bool MARKED>
__device__ __forceinline__ float4 load_row(const float* in, int index, int stride_bytes, const Retention& retention) {
  const int column = MARKED ? index & UNMARKED : index;
  const char* row = reinterpret_cast<const char*>(in) + static_cast<long long>(column) * stride_bytes;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (MARKED) {
    float4 v;
    asm("ld.global.nc.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(row), "l"(retention.of(index)));
    return v;
  }
#endif
  return __ldg(reinterpret_cast<const float4*>(row));
}

// Load STEP entries from `k` on, a multiple of STEP; at least one is inside the piece. They are read once, so these
// streaming loads leave the cache to `in`.
template <bool WEIGHTED>
__device__ __forceinline__ void load_step(int4& columns, float4& weights, const int* indices, const float* data,
                                          int k) {
  columns = __ldcs(reinterpret_cast<const int4*>(indices + k));
  if (WEIGHTED) weights = __ldcs(reinterpret_cast<const float4*>(data + k));
}

template <bool WEIGHTED>
__device__ __forceinline__ float4 add_row(float4 sum, float weight, float4 row) {
  return WEIGHTED ? add_scaled(sum, weight, row) : add_vec(sum, row);
}

// Sum over this group's share of the entries first ... end - 1: every groups-th step of STEP entries. Steps begin at
// multiples of STEP; of those that cross an end of the piece, entries outside are left out.
template <bool WEIGHTED, bool MARKED>
__device__ __forceinline__ float4 piece_sum(const float* __restrict__ in, int stride_bytes,
                                            const int* __restrict__ indices, const float* __restrict__ data, int first,
                                            int end, int group, int groups) {
  const Retention retention;
  float4 sum = zero_vec<float4>(), weights = zero_vec<float4>();
  int4 columns = make_int4(0, 0, 0, 0);
  int k = (first & ~(STEP - 1)) + STEP * group;
  if (k < end) load_step<WEIGHTED>(columns, weights, indices, data, k);
#pragma unroll 1
  while (k < end) {
    const int next = k + STEP * groups;
    const float4 weight = weights;
    if (k >= first && k + STEP <= end) {
      const float4 a = load_row<MARKED>(in, columns.x, stride_bytes, retention);
      const float4 b = load_row<MARKED>(in, columns.y, stride_bytes, retention);
      const float4 c = load_row<MARKED>(in, columns.z, stride_bytes, retention);
      const float4 d = load_row<MARKED>(in, columns.w, stride_bytes, retention);
      if (next < end) load_step<WEIGHTED>(columns, weights, indices, data, next);
      sum = add_row<WEIGHTED>(sum, weight.x, a);
      sum = add_row<WEIGHTED>(sum, weight.y, b);
      sum = add_row<WEIGHTED>(sum, weight.z, c);
      sum = add_row<WEIGHTED>(sum, weight.w, d);
    } else {  // two at once: rows of few entries are mostly ends
      const unsigned has = 15u << max(first - k, 0) & 15u >> max(k + STEP - end, 0);
      const auto add_two = [&](unsigned of_two, int left, int right, float left_weight, float right_weight) {
        float4 a = zero_vec<float4>(), b = a;
        if (of_two & 1) a = load_row<MARKED>(in, left, stride_bytes, retention);
        if (of_two & 2) b = load_row<MARKED>(in, right, stride_bytes, retention);
        if (of_two & 1) sum = add_row<WEIGHTED>(sum, left_weight, a);
        if (of_two & 2) sum = add_row<WEIGHTED>(sum, right_weight, b);
      };
      add_two(has, columns.x, columns.y, weight.x, weight.y);
      add_two(has >> 2, columns.z, columns.w, weight.z, weight.w);
      if (next < end) load_step<WEIGHTED>(columns, weights, indices, data, next);
    }
    k = next;
  }
  return sum;
}

// A piece by 2^group_bits groups of 2^lane_bits lanes; a lane owns 4 columns of slice blockIdx.y.
template <bool WEIGHTED, bool MARKED, bool ADDS = false>
__device__ __forceinline__ void pieces_product(const LargeProduct& product) {
  const Pieces& pieces = product.pieces;
  const int lane_bits = product.lane_bits, group_bits = product.group_bits, piece_bits = lane_bits + group_bits;
  const int lane = threadIdx.x & ((1 << lane_bits) - 1), group = (threadIdx.x >> lane_bits) & ((1 << group_bits) - 1);
  const int piece = blockIdx.x * (LARGE_THREADS >> piece_bits) + (threadIdx.x >> piece_bits);
  const int in_slice = 4 * lane;
  const bool live = piece < pieces.count && in_slice < product.slice_width &&
                    blockIdx.y * product.slice_width + in_slice < product.results.width;
  float4 sum = zero_vec<float4>();
  if (live) {
    sum = piece_sum<WEIGHTED, MARKED>(
        product.dense + blockIdx.y * product.slice_step + in_slice, 4 * product.dense_stride, pieces.indices,
        product.data, __ldg(pieces.first + piece), __ldg(pieces.first + piece + 1), group, 1 << group_bits);
  }
  sum = sum_over_bits(sum, lane_bits, piece_bits);
  if (live && group == 0)
    product.results.store_piece<ADDS>(__ldg(pieces.target + piece), sum, blockIdx.y * product.slice_width + in_slice);
}

template <bool ADDS = false>
__device__ __forceinline__ void reduce_pieces(const PiecesReduction& reduction) {
  const Results& results = reduction.results;
  const int lane_bits = reduction.lane_bits, groups = 32 >> lane_bits;
  const int lane = threadIdx.x & ((1 << lane_bits) - 1), group = (threadIdx.x & 31) >> lane_bits;
  const int split = blockIdx.x * (LARGE_THREADS / 32) + threadIdx.x / 32;
  const int column = 4 * ((blockIdx.y << lane_bits) + lane);
  const bool live = split < reduction.n_split && column < results.width;
  float4 sum = zero_vec<float4>();
  if (live) {
    const int end = __ldg(reduction.split_first + split + 1);
#pragma unroll 4
    for (int slot = __ldg(reduction.split_first + split) + group; slot < end; slot += groups)
      sum = add_vec(sum, load_vec<float4>(results.partials + row_offset(slot, results.partial_stride) + column));
  }
  sum = sum_over_bits(sum, lane_bits, 5);
  if (live && group == 0) results.store_row<ADDS>(__ldg(reduction.split_row + split), sum, column);
}

// ----------------------------------------------------------------------------------------------------- entry points

// slices[s, i, c] = scale[i] * x[i, s * slice_width + c], 0 beyond `width`: the dense operand in the layout of the
// product. Not needed if x has float4 rows and there are no scales.
// Launch: a thread per 4 floats of a row; 256 threads, grid.y over slices. Traffic: reads and writes `x` once.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_large_slices(float* __restrict__ slices,
                                                                              const float* __restrict__ x,
                                                                              const float* __restrict__ scale,
                                                                              long long x_first, int x_stride,
                                                                              int n_rows, int width, int slice_width) {
  const int vectors = slice_width / 4;
  const long long element = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const int row = (int)(element / vectors), in_slice = 4 * (int)(element % vectors);
  if (element >= (long long)n_rows * vectors) return;
  const int column = blockIdx.y * slice_width + in_slice;
  const float* from = x + x_first + row_offset(row, x_stride) + column;
  const float by = scale ? __ldg(scale + row) : 1.0f;
  const float4 scaled = make_float4(column < width ? by * from[0] : 0.0f, column + 1 < width ? by * from[1] : 0.0f,
                                    column + 2 < width ? by * from[2] : 0.0f, column + 3 < width ? by * from[3] : 0.0f);
  store_vec(slices + ((long long)blockIdx.y * n_rows + row) * slice_width + in_slice, scaled);
}

// Launch: 128 threads, grid.x over pieces, grid.y over slices, which run one after the other. 233,000 rows with 112.7 M
//   entries, 16 columns: 8 groups of 4 lanes, 4 pieces per block.
// Traffic: reads 8 nnz bytes per slice (4 unweighted) and 4 nnz width bytes of rows of `dense`, from L2 if a slice
//   fits; writes 4 n_rows width, and 4 slots width of partial sums, which the next launch reads.
// Requirements: indices, data, dense and partials aligned to 16 bytes; strides and slice_width divisible by 4; indices and
//   data readable up to a multiple of 16 bytes, as whatever CUDA allocates.
KERNEL(spmm_large_weighted, LargeProduct, (LARGE_THREADS), pieces_product<true, false>);

// The same where every stored value is 1.
KERNEL(spmm_large_unweighted, LargeProduct, (LARGE_THREADS), pieces_product<false, false>);

// The same where indices are marked.
KERNEL(spmm_large_marked, LargeProduct, (LARGE_THREADS, MARKED_BLOCKS), pieces_product<false, true>);

// Mark the indices k with much_read[indices[k]] != 0, in place. Launch: a thread per index.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_mark(int* __restrict__ indices,
                                                                      const unsigned char* __restrict__ much_read,
                                                                      long long n_entries) {
  const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k < n_entries && much_read[indices[k]]) indices[k] |= ~UNMARKED;
}

// Row split_row[i] of the results is the sum over slots split_first[i] ... split_first[i + 1] - 1 of their partial sums.
// Launch: a warp per split row, grid.y over blocks of 2^lane_bits vectors of columns; 128 threads.
KERNEL(spmm_reduce_pieces, PiecesReduction, (LARGE_THREADS), reduce_pieces);

// Those of the kernels above that add to `out`: out += ...
KERNEL(spmm_large_weighted_add, LargeProduct, (LARGE_THREADS), pieces_product<true, false, true>);
KERNEL(spmm_large_unweighted_add, LargeProduct, (LARGE_THREADS), pieces_product<false, false, true>);
KERNEL(spmm_large_marked_add, LargeProduct, (LARGE_THREADS, MARKED_BLOCKS), pieces_product<false, true, true>);
KERNEL(spmm_reduce_pieces_add, PiecesReduction, (LARGE_THREADS), reduce_pieces<true>);
