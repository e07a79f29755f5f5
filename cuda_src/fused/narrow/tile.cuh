// The product of a tile of rows with weights in registers, by a block of 512 threads; narrow layers only. No kernels here.
//
// The 16 rows of K numbers are in shared memory; the weights never are. Warp w multiplies rows 8 (w / 8) … + 7 by its
// eighth of K. It loads these weights into registers before the rows are ready. A lane owns 4 rows x 4 columns; the
// eighths are added in shared memory in a fixed order. In the finished product, the rows of a column are in 16
// neighbouring lanes, so sums over rows are shuffles.
#pragma once

#include "fused/shared/columns.cuh"

namespace fused {

constexpr int BATCH = 4;                   // neighbours whose loads a warp has in flight
constexpr int LANES = 8;                   // threads of the update that sum one element's partial sums
constexpr int SLICES = 8;                  // slices of K; a warp multiplies one for half of the rows
constexpr int PRODUCT_STRIDE = GROUP + 4;  // 16 rows x 4 columns: no bank conflicts (reduce_slices)
constexpr int PARTIAL_FLOATS = SLICES * TILE * PRODUCT_STRIDE;

// The next tile of rows of a block: tiles are dealt to parts, and parts to blocks (RowsOfParts). N or more: none. A model
// alone has a block for each part.
__device__ __forceinline__ int next_tile(int& part, int first, int parts, int blocks, int N) {
  if constexpr (!SHARES_LAUNCHES) return first + parts * TILE;
  if (first + parts * TILE < N) return first + parts * TILE;
  part += blocks;
  return part < parts ? min(part * TILE, N) : N;
}

// Whether to prefetch a tile: blocks of a model alone rarely have a second one. The compiler knows nothing of the value, so it
// does not merge tests of it and duplicate the code between them.
__device__ __forceinline__ bool is_prefetched(int first, int N) {
  if constexpr (!SHARES_LAUNCHES) return false;
  asm volatile("" : "+r"(first));
  return first < N;
}

// Load two neighbouring floats of a row; the second may lie beyond the row's end.
__device__ __forceinline__ float2 load2(const float* from, bool first, bool second, bool aligned) {
  if (second && aligned) return *reinterpret_cast<const float2*>(from);
  return make_float2(first ? from[0] : 0.f, second ? from[1] : 0.f);
}

// Store two neighbouring floats of a row, of which `left` exist.
__device__ __forceinline__ void store_pair(float* to, float2 value, int left, bool aligned) {
  if (aligned && left > 1) {
    *reinterpret_cast<float2*>(to) = value;
    return;
  }
  if (left > 0) to[0] = value.x;
  if (left > 1) to[1] = value.y;
}

// A thread's weights: four columns, and QUADS times four rows of its slice. A block's registers hold CHUNK rows at a time.
template <int QUADS_>
struct Weights {
  static constexpr int QUADS = QUADS_, CHUNK = SLICES * QUADS * 4;
  float4 of[QUADS][4];  // quad of K, row in it

  // Load columns `column` … + 3 of rows `first` … of a packed W' (K, stride).
  __device__ __forceinline__ void load(const float* packed, int first, int K, int column, int stride) {
    const int k = first + 4 * (threadIdx.x / 32 % SLICES);
    const float* source = packed + k * stride + column;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      const bool exists = k + 4 * SLICES * q < K && column < stride;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        of[q][i] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (exists) of[q][i] = *reinterpret_cast<const float4*>(source + (4 * SLICES * q + i) * stride);
      }
    }
  }

  // Load the same of [W_1 | … | W_C]^T, (C stride, F), the factor of V. V's channels are columns_of(P) apart.
  __device__ __forceinline__ void load_transposed(const float* packed, int first, int width, int column, int stride,
                                                  int F) {
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      const int k = first + 4 * (threadIdx.x / 32 % SLICES + SLICES * q), channel = width > stride ? k / stride : 0;
      const float* source = packed + (channel * F + column) * stride + k - channel * stride;
      float4 row[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        row[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (k < width && column + j < F) row[j] = *reinterpret_cast<const float4*>(source + j * stride);
      }
      of[q][0] = make_float4(row[0].x, row[1].x, row[2].x, row[3].x);
      of[q][1] = make_float4(row[0].y, row[1].y, row[2].y, row[3].y);
      of[q][2] = make_float4(row[0].z, row[1].z, row[2].z, row[3].z);
      of[q][3] = make_float4(row[0].w, row[1].w, row[2].w, row[3].w);
    }
  }
};

// A thread's indices in the product of a tile. It multiplies rows first_row … + 3 by four columns. Of the finished product
// it owns row own_row of columns own_column and own_column + 1.
__device__ __forceinline__ int first_row() { return threadIdx.x / 32 / SLICES * 8 + threadIdx.x % 32 / 16 * 4; }
__device__ __forceinline__ int first_column() { return threadIdx.x % 16 * 4; }
__device__ __forceinline__ int own_row() { return threadIdx.x % TILE; }
__device__ __forceinline__ int own_column() { return threadIdx.x / TILE * 2; }

__device__ __forceinline__ float4 add_product(float4 sum, float x, float4 w) {
  return make_float4(fmaf(x, w.x, sum.x), fmaf(x, w.y, sum.y), fmaf(x, w.z, sum.z), fmaf(x, w.w, sum.w));
}

// sum[r] += this thread's partial sum of  tile (TILE, K) x weights,  for the chunk of K from `first` on.
template <int QUADS>
__device__ __forceinline__ void add_chunk(float4 (&sum)[4], const float* tile, int tile_stride, int first, int K,
                                          const Weights<QUADS>& weights) {
  const int k = first + 4 * (threadIdx.x / 32 % SLICES);
  const float* rows = tile + first_row() * tile_stride + k;
#pragma unroll
  for (int q = 0; q < QUADS; ++q) {
    if (k + 4 * SLICES * q < K) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(rows + r * tile_stride + 4 * SLICES * q);
        sum[r] = add_product(sum[r], x.x, weights.of[q][0]);
        sum[r] = add_product(sum[r], x.y, weights.of[q][1]);
        sum[r] = add_product(sum[r], x.z, weights.of[q][2]);
        sum[r] = add_product(sum[r], x.w, weights.of[q][3]);
      }
    }
  }
}

// Add the partial sums of all slices; return columns own_column and + 1 of row own_row. `partial` may be overwritten after
// the next barrier. Pairs of columns are swapped in the lower rows: rows i and i + 8 are in other banks.
__device__ __forceinline__ float2 reduce_slices(const float4 (&sum)[4], float* partial) {
  float* mine = partial + (threadIdx.x / 32 % SLICES * TILE + first_row()) * PRODUCT_STRIDE + first_column();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float4 swapped = make_float4(sum[r].z, sum[r].w, sum[r].x, sum[r].y);
    *reinterpret_cast<float4*>(mine + r * PRODUCT_STRIDE) = first_row() < TILE / 2 ? sum[r] : swapped;
  }
  __syncthreads();
  const float* own = partial + own_row() * PRODUCT_STRIDE + (own_column() ^ (own_row() < TILE / 2 ? 0 : 2));
  float2 total = make_float2(0.f, 0.f);
#pragma unroll
  for (int s = 0; s < SLICES; ++s)
    total = combine(total, *reinterpret_cast<const float2*>(own + s * TILE * PRODUCT_STRIDE));
  return total;
}

// Sum over the rows of a column; each of its lanes gets it.
__device__ __forceinline__ float sum_of_rows(float value) { return warp_sum(value, TILE); }

}  // namespace fused
