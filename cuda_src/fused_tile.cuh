// What the narrow kernels of the fused backend are made of: a block of 512 threads works on tiles of 16 rows.
//
// Product of a tile: the 16 rows of K numbers lie in shared memory; the weights never do. Warp w multiplies rows
// 8 (w / 8) … + 7 with its own eighth of the weights, which it holds in registers: it asked for them before the data was
// there. A lane owns 4 rows x 4 columns; the eighths are added in shared memory, in order. The finished product lies so
// that the rows of a column are in 16 neighbouring lanes: sums over rows are shuffles.
#pragma once

#include "fused.cuh"

namespace fused {

constexpr int TILE = 16, THREADS = 32 * TILE;  // rows; a warp per row where rows are gathered
constexpr int WARPS = THREADS / 32;
constexpr int BATCH = 4;                   // neighbours that a warp has in flight
constexpr int GROUP = 64;                  // columns that a tile's product yields at a time
constexpr int USUAL = 64;                  // columns of the layers that have kernels of their own
constexpr int SLICES = 8;                  // of K, a warp each for half of the rows
constexpr int PRODUCT_STRIDE = GROUP + 4;  // 16 rows x 2 columns fall on 16 banks twice
constexpr int PARTIAL_FLOATS = SLICES * TILE * PRODUCT_STRIDE;

// Rows are dealt out by tiles: part b of `parts` has tiles b, b + parts, …; so many parts have any.
__device__ __forceinline__ int parts_in_use(int N, int parts) { return min(parts, (N + TILE - 1) / TILE); }

// How many rows each of `parts` parts has.
struct RowsOfParts {
  int tiles, further, last,
      missing;  // tiles of every part; parts with one more; the part with the last tile, cut short

  __device__ RowsOfParts(int N, int parts) {
    const int all = (N + TILE - 1) / TILE;
    tiles = all <= parts ? 1 : all / parts;
    further = max(all - tiles * parts, 0);
    last = further > 0 ? further - 1 : min(all, parts) - 1;
    missing = all * TILE - N;
  }

  __device__ int operator()(int part) const { return (tiles + (part < further)) * TILE - (part == last ? missing : 0); }
};

// Two neighbouring floats of a row, of which the second may be another row's, or nobody's.
__device__ __forceinline__ float2 load2(const float* from, bool first, bool second, bool aligned) {
  if (second && aligned) return *reinterpret_cast<const float2*>(from);
  return make_float2(first ? from[0] : 0.f, second ? from[1] : 0.f);
}

// ---------------------------------------------------------------------------------------------------------- columns

// Per column of a layer's Y, in shared memory: Z = relu((Y - mean) slope + beta), xhat = (Y - mean) inverse. Room for
// columns_of(P) each, so that vectors of columns can be read.
struct Columns {
  float *mean, *inverse, *slope, *beta;

  __device__ float normal(float y, int p) const { return (y - mean[p]) * slope[p] + beta[p]; }
  __device__ float x_hat(float y, int p) const { return (y - mean[p]) * inverse[p]; }
};

__device__ __forceinline__ Columns columns_at(float* shared, int P) {
  const int n = columns_of(P);
  return {shared, shared + n, shared + 2 * n, shared + 3 * n};
}

// What training learnt of a batch's columns and where it goes. `gamma` null: no batch norm, or inference, where `beta` is
// what remains of it (`Folding`).
struct Statistics {
  const float* moments;  // (parts, columns_of(P), 2): mean and sum of squared distances of each part's rows
  float* stats;          // (2, P): mean, inverse; read when parts = 0, else written by who is to `keep` them
  float *running_mean, *running_var;
  const float *gamma, *beta;
  int parts;
  float epsilon, momentum;
};

constexpr int COLUMN_LANES = THREADS / GROUP;  // threads of a column, side by side in a warp: its sums are shuffles
constexpr int PARTS_IN_FLIGHT = 4;             // that a thread has asked for before it adds the first
constexpr int FOLD_STRIDE = GROUP + 4;         // pairs: 8 warps' sums of 4 columns fall on 32 banks twice
constexpr int FOLD_FLOATS = 2 * WARPS * FOLD_STRIDE;

// Sums over the lanes of a column, in each of them.
__device__ __forceinline__ float2 sum_of_lanes(float2 sum) {
  return make_float2(warp_sum(sum.x, COLUMN_LANES), warp_sum(sum.y, COLUMN_LANES));
}

// Add the pairs that the parts have for columns first … first + GROUP - 1, in order: a warp every WARPS-th part, a lane two
// columns; then the lanes of a column the warps' sums. The total of column first + threadIdx.x / COLUMN_LANES is returned to
// all of its lanes. All threads call. `pairs` (parts, columns_of(P), 2); `add(sum, part, value)` adds two columns' pairs of
// a part; `scratch` holds FOLD_FLOATS.
template <class Add>
__device__ __forceinline__ float2 fold_parts(float* scratch, const float* pairs, int parts, int first, int P, Add add) {
  const int warp = threadIdx.x / 32, p = first + 2 * (threadIdx.x % 32), n = columns_of(P);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int base = warp; base < parts; base += PARTS_IN_FLIGHT * WARPS) {
    float4 value[PARTS_IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < PARTS_IN_FLIGHT; ++u) {
      const int part = base + u * WARPS;
      if (part < parts && p < P) value[u] = *reinterpret_cast<const float4*>(pairs + (part * n + p) * 2);
    }
#pragma unroll
    for (int u = 0; u < PARTS_IN_FLIGHT; ++u) {
      if (base + u * WARPS < parts && p < P) add(sum, base + u * WARPS, value[u]);
    }
  }
  float2* of_warps = reinterpret_cast<float2*>(scratch);
  if (first > 0) __syncthreads();  // the readers of the columns before are done
  *reinterpret_cast<float4*>(of_warps + warp * FOLD_STRIDE + p - first) = sum;
  __syncthreads();
  const float2* column = of_warps + threadIdx.x % COLUMN_LANES * FOLD_STRIDE + threadIdx.x / COLUMN_LANES;
  return sum_of_lanes(combine(column[0], column[COLUMN_LANES * FOLD_STRIDE]));
}

// A column as batch norm sees it.
struct Column {
  float mean, inverse, slope, beta;
};

// Column first + threadIdx.x / COLUMN_LANES, in each of its lanes; all threads call. Distances are taken from the first
// part's mean, which costs no digits: it is within a few deviations of the batch's. One lane keeps what training learnt,
// where `keep` says so.
__device__ __forceinline__ Column column_of(float* scratch, const Statistics& from, int N, int first, int P,
                                            bool keep) {
  const int p = first + threadIdx.x / COLUMN_LANES;
  Column column = {0.f, 1.f, 1.f, 0.f};
  if (from.gamma && p < P) column.slope = from.gamma[p];
  if (from.beta && p < P) column.beta = from.beta[p];
  if (from.parts > 0) {
    const RowsOfParts rows_of(N, from.parts);
    const int pair = 2 * (first + 2 * (threadIdx.x % 32));
    const float origin = p < P ? from.moments[2 * p] : 0.f;
    float4 origins = make_float4(0.f, 0.f, 0.f, 0.f);
    if (pair < 2 * P) origins = *reinterpret_cast<const float4*>(from.moments + pair);
    const auto add = [&](float4& to, int part, float4 value) {
      const float rows = rows_of(part), a = value.x - origins.x, b = value.z - origins.z;
      to.x += rows * a, to.y += value.y + rows * a * a;
      to.z += rows * b, to.w += value.w + rows * b * b;
    };
    const float2 sum = fold_parts(scratch, from.moments, parts_in_use(N, from.parts), first, P, add);
    const float share = 1.f / N, shift = sum.x * share, squares = sum.y - sum.x * shift;
    const float variance = squares < 0.f ? 0.f : squares * share;  // NaN stays
    column.mean = origin + shift;
    column.inverse = 1.f / sqrtf(variance + from.epsilon);
    if (keep && p < P && threadIdx.x % COLUMN_LANES == 0) {
      from.stats[p] = column.mean, from.stats[P + p] = column.inverse;
      from.running_mean[p] += from.momentum * (column.mean - from.running_mean[p]);
      from.running_var[p] += from.momentum * (variance * N / max(N - 1, 1) - from.running_var[p]);
    }
  } else if (from.gamma && p < P) {
    column.mean = from.stats[p], column.inverse = from.stats[P + p];
  }
  column.slope *= column.inverse;
  return column;
}

// Set the columns; all threads call.
__device__ __forceinline__ void set_columns(Columns columns, float* scratch, const Statistics& from, int N, int P,
                                            bool keep) {
#pragma unroll 1
  for (int first = 0; first < P; first += GROUP) {
    const int p = first + threadIdx.x / COLUMN_LANES;
    const Column column = column_of(scratch, from, N, first, P, keep);
    if (p < P && threadIdx.x % COLUMN_LANES == 0) {
      columns.mean[p] = column.mean, columns.inverse[p] = column.inverse;
      columns.slope[p] = column.slope, columns.beta[p] = column.beta;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- products

// The weights of a thread: four columns of the rows of its slice, QUADS times four of them. CHUNK rows of the weights are
// in the registers of a block at a time.
template <int QUADS_>
struct Weights {
  static constexpr int QUADS = QUADS_, CHUNK = SLICES * QUADS * 4;
  float4 of[QUADS][4];  // quad of K, row in it

  // Columns `column` … + 3 of rows `first` … of a packed W' (K, stride).
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

  // The same of [W_1 | … | W_C]^T, (C stride, F): what V is multiplied with. V's channels are columns_of(P) apart.
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

// A thread's place in the product of a tile: it multiplies rows first_row … + 3 with four columns; of the finished product
// it owns row own_row of columns own_column and own_column + 32.
__device__ __forceinline__ int first_row() { return threadIdx.x / 32 / SLICES * 8 + threadIdx.x % 32 / 16 * 4; }
__device__ __forceinline__ int first_column() { return threadIdx.x % 16 * 4; }
__device__ __forceinline__ int own_row() { return threadIdx.x % TILE; }
__device__ __forceinline__ int own_column() { return threadIdx.x / TILE; }
constexpr int COLUMN_STEP = GROUP / 2;

__device__ __forceinline__ float4 add_product(float4 sum, float x, float4 w) {
  return make_float4(fmaf(x, w.x, sum.x), fmaf(x, w.y, sum.y), fmaf(x, w.z, sum.z), fmaf(x, w.w, sum.w));
}

// sum[r] += this thread's share of  tile (TILE, K) x weights,  the chunk of K from `first` on.
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

// Add the shares of all slices; returns columns own_column and + 32 of row own_row. `partial` is free after the next
// barrier.
__device__ __forceinline__ float2 fold_slices(const float4 (&sum)[4], float* partial) {
  float* mine = partial + (threadIdx.x / 32 % SLICES * TILE + first_row()) * PRODUCT_STRIDE + first_column();
#pragma unroll
  for (int r = 0; r < 4; ++r) *reinterpret_cast<float4*>(mine + r * PRODUCT_STRIDE) = sum[r];
  __syncthreads();
  const float* own = partial + own_row() * PRODUCT_STRIDE + own_column();
  float2 total = make_float2(0.f, 0.f);
#pragma unroll
  for (int s = 0; s < SLICES; ++s) {
    total.x += own[s * TILE * PRODUCT_STRIDE];
    total.y += own[s * TILE * PRODUCT_STRIDE + COLUMN_STEP];
  }
  return total;
}

// Sum over the rows of a column, in each of its lanes.
__device__ __forceinline__ float sum_of_rows(float value) { return warp_sum(value, TILE); }

}  // namespace fused
