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
// Shapes: piece_first (pieces + 1,) the first entry of each piece, piece_target (pieces,) its row or, where the row has
//   several pieces, -1 - slot in `partials` (slots, partial_stride); all int32. A row without entries is an empty
//   piece. `dense` is slices x (n_cols, dense_stride), slice_step floats apart. float32.
// Determinism: one writer per output; the sizes fix the order in which entries of a piece, groups of a warp and pieces
//   of a row are summed: repeats to the bit.
#include "spmm/pieces.cuh"

// ---------------------------------------------------------------------------------------------------------- helpers

constexpr int STEP = 4;  // entries per 16-byte load of indices
constexpr int LARGE_THREADS = 128;

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

// Load STEP entries from `k` on, all inside the piece; `k` is a multiple of STEP. They are read once, so these
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
// multiples of STEP; those that cross an end of the piece take their entries one by one.
template <bool WEIGHTED, bool MARKED>
__device__ __forceinline__ float4 piece_sum(const float* __restrict__ in, int stride_bytes,
                                            const int* __restrict__ indices, const float* __restrict__ data, int first,
                                            int end, int group, int groups) {
  const Retention retention;
  float4 sum = zero_vec<float4>(), weights = zero_vec<float4>();
  int4 columns = make_int4(0, 0, 0, 0);
  int k = (first & ~(STEP - 1)) + STEP * group;
  bool whole = k >= first && k + STEP <= end;
  if (whole) load_step<WEIGHTED>(columns, weights, indices, data, k);
#pragma unroll 1
  while (k < end) {
    const int next = k + STEP * groups;
    if (whole) {
      const float4 a = load_row<MARKED>(in, columns.x, stride_bytes, retention);
      const float4 b = load_row<MARKED>(in, columns.y, stride_bytes, retention);
      const float4 c = load_row<MARKED>(in, columns.z, stride_bytes, retention);
      const float4 d = load_row<MARKED>(in, columns.w, stride_bytes, retention);
      const float4 weight = weights;
      whole = next + STEP <= end;
      if (whole) load_step<WEIGHTED>(columns, weights, indices, data, next);
      sum = add_row<WEIGHTED>(sum, weight.x, a);
      sum = add_row<WEIGHTED>(sum, weight.y, b);
      sum = add_row<WEIGHTED>(sum, weight.z, c);
      sum = add_row<WEIGHTED>(sum, weight.w, d);
    } else {
      whole = next + STEP <= end;
      if (whole) load_step<WEIGHTED>(columns, weights, indices, data, next);
#pragma unroll 1
      for (int entry = max(k, first); entry < min(k + STEP, end); ++entry) {
        sum = add_row<WEIGHTED>(sum, WEIGHTED ? __ldg(data + entry) : 1.0f,
                                load_row<MARKED>(in, __ldg(indices + entry), stride_bytes, retention));
      }
    }
    k = next;
  }
  return sum;
}

// A piece by 2^group_bits groups of 2^lane_bits lanes; a lane owns 4 columns of slice blockIdx.y.
template <bool WEIGHTED, bool MARKED>
__device__ __forceinline__ void pieces_product(float* __restrict__ out, float* __restrict__ partials,
                                               const float* __restrict__ in, const int* __restrict__ piece_first,
                                               const int* __restrict__ piece_target, const int* __restrict__ indices,
                                               const float* __restrict__ data, const float* __restrict__ row_scale,
                                               long long out_first, long long slice_step, int out_stride,
                                               int partial_stride, int in_stride, int slice_width, int n_pieces,
                                               int width, int out_aligned, int lane_bits, int group_bits) {
  const int piece_bits = lane_bits + group_bits;
  const int lane = threadIdx.x & ((1 << lane_bits) - 1), group = (threadIdx.x >> lane_bits) & ((1 << group_bits) - 1);
  const int piece = blockIdx.x * (LARGE_THREADS >> piece_bits) + (threadIdx.x >> piece_bits);
  const int in_slice = 4 * lane, column = blockIdx.y * slice_width + in_slice;
  const bool live = piece < n_pieces && in_slice < slice_width && column < width;
  float4 sum = zero_vec<float4>();
  if (live) {
    sum =
        piece_sum<WEIGHTED, MARKED>(in + blockIdx.y * slice_step + in_slice, 4 * in_stride, indices, data,
                                    __ldg(piece_first + piece), __ldg(piece_first + piece + 1), group, 1 << group_bits);
  }
  sum = sum_over_bits(sum, lane_bits, piece_bits);
  if (!live || group != 0) return;
  store_piece(out + out_first, partials, __ldg(piece_target + piece), sum, row_scale, out_stride, partial_stride,
              column, width, out_aligned);
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
// Requirements: indices, data, dense and partials aligned to 16 bytes; strides and slice_width divisible by 4.
extern "C" __global__ __launch_bounds__(LARGE_THREADS) void spmm_large_weighted(
    float* __restrict__ out, float* __restrict__ partials, const float* __restrict__ dense,
    const int* __restrict__ piece_first, const int* __restrict__ piece_target, const int* __restrict__ indices,
    const float* __restrict__ data, const float* __restrict__ row_scale, long long out_first, long long slice_step,
    int out_stride, int partial_stride, int dense_stride, int slice_width, int n_pieces, int width, int out_aligned,
    int lane_bits, int group_bits) {
  pieces_product<true, false>(out, partials, dense, piece_first, piece_target, indices, data, row_scale, out_first,
                              slice_step, out_stride, partial_stride, dense_stride, slice_width, n_pieces, width,
                              out_aligned, lane_bits, group_bits);
}

// The same where every stored value is 1.
extern "C" __global__ __launch_bounds__(LARGE_THREADS) void spmm_large_unweighted(
    float* __restrict__ out, float* __restrict__ partials, const float* __restrict__ dense,
    const int* __restrict__ piece_first, const int* __restrict__ piece_target, const int* __restrict__ indices,
    const float* __restrict__ data, const float* __restrict__ row_scale, long long out_first, long long slice_step,
    int out_stride, int partial_stride, int dense_stride, int slice_width, int n_pieces, int width, int out_aligned,
    int lane_bits, int group_bits) {
  pieces_product<false, false>(out, partials, dense, piece_first, piece_target, indices, data, row_scale, out_first,
                               slice_step, out_stride, partial_stride, dense_stride, slice_width, n_pieces, width,
                               out_aligned, lane_bits, group_bits);
}

// The same where indices are marked.
extern "C" __global__ __launch_bounds__(LARGE_THREADS) void spmm_large_marked(
    float* __restrict__ out, float* __restrict__ partials, const float* __restrict__ dense,
    const int* __restrict__ piece_first, const int* __restrict__ piece_target, const int* __restrict__ indices,
    const float* __restrict__ data, const float* __restrict__ row_scale, long long out_first, long long slice_step,
    int out_stride, int partial_stride, int dense_stride, int slice_width, int n_pieces, int width, int out_aligned,
    int lane_bits, int group_bits) {
  pieces_product<false, true>(out, partials, dense, piece_first, piece_target, indices, data, row_scale, out_first,
                              slice_step, out_stride, partial_stride, dense_stride, slice_width, n_pieces, width,
                              out_aligned, lane_bits, group_bits);
}

// Mark the indices k with much_read[indices[k]] != 0, in place. Launch: a thread per index.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void spmm_mark(int* __restrict__ indices,
                                                                      const unsigned char* __restrict__ much_read,
                                                                      long long n_entries) {
  const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k < n_entries && much_read[indices[k]]) indices[k] |= ~UNMARKED;
}

// out[split_row[i], :] = row_scale * sum over slots split_first[i] ... split_first[i + 1] - 1 of partials[slot, :].
// Launch: a warp per split row, grid.y over blocks of 2^lane_bits vectors of columns; 128 threads.
extern "C" __global__ __launch_bounds__(LARGE_THREADS) void spmm_large_fold(
    float* __restrict__ out, const float* __restrict__ partials, const int* __restrict__ split_row,
    const int* __restrict__ split_first, const float* __restrict__ row_scale, long long out_first, int out_stride,
    int partial_stride, int n_split, int width, int out_aligned, int lane_bits) {
  const int lane = threadIdx.x & ((1 << lane_bits) - 1), group = (threadIdx.x & 31) >> lane_bits;
  const int groups = 32 >> lane_bits;
  const int split = blockIdx.x * (LARGE_THREADS / 32) + threadIdx.x / 32;
  const int column = 4 * ((blockIdx.y << lane_bits) + lane);
  const bool live = split < n_split && column < width;
  float4 sum = zero_vec<float4>();
  if (live) {
    const int end = __ldg(split_first + split + 1);
#pragma unroll 4
    for (int slot = __ldg(split_first + split) + group; slot < end; slot += groups)
      sum = add_vec(sum, load_vec<float4>(partials + row_offset(slot, partial_stride) + column));
  }
  sum = sum_over_bits(sum, lane_bits, 5);
  if (!live || group != 0) return;
  const int row = __ldg(split_row + split);
  store_row(out + out_first + row_offset(row, out_stride), sum, row_scale ? __ldg(row_scale + row) : 1.0f, column,
            width, out_aligned);
}
