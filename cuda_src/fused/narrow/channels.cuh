// What the kernels of layers with several channels share: the pairs of a tile of rows. No kernels here.
//
// U = [A_1 Z | … | A_C Z] has C F columns, most of them 0: of nine bond channels an atom has three or four. A pair is a row i
// and a channel c in which it has an entry. Only the rows U[i, c] = row i of A_c Z of pairs are computed, and
//
//   Y[i] = sum over the channels of i's pairs of  U[i, c] W_c + a_c[i] b_c
//
// A block has 32 rows, and a quarter of the columns of Y, so that the weights of all channels fit beside the pairs. It sorts
// the pairs by channel: a thread multiplies two pairs of a channel with four columns of its weights. The backward pass does
// the same with A_c^T and W_c^T.
#pragma once

#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"

namespace fused {

constexpr int CHANNEL_COLUMNS = 64;                              // of the input and of the output of such a layer
constexpr int CHANNEL_ROWS = 32;                                 // rows of a block's tile: a lane of a warp has one
constexpr int CHANNEL_SPLITS = 4;                                // blocks that share the columns of a tile
constexpr int SPLIT_COLUMNS = CHANNEL_COLUMNS / CHANNEL_SPLITS;  // a block's share
constexpr int MOST_CHANNELS = 32;
constexpr int PAIRS_AT_ONCE = 2;                 // of a thread in a product; they belong to one channel
constexpr int MOST_PAIRS = 160;                  // in shared memory; a tile with more takes its channels in groups
constexpr int ROW_FLOATS = CHANNEL_COLUMNS + 4;  // a row in shared memory: neighbouring rows begin 4 banks apart
constexpr int SPLIT_QUADS = SPLIT_COLUMNS / 4, ROW_QUADS = CHANNEL_COLUMNS / 4;
constexpr int MOST_ENTRIES = 512;  // of a tile's rows of A^T in shared memory; more are read where they lie
constexpr int SUMMED_STRIDE = SPLIT_COLUMNS + 1;  // of rows whose columns warps sum
constexpr int SUMMED_FLOATS = CHANNEL_ROWS * SUMMED_STRIDE;
// Floats of Pairs, and of the rows of pairs and their products.
constexpr int PAIR_FLOATS = CHANNEL_ROWS + (MOST_PAIRS + MOST_PAIRS / PAIRS_AT_ONCE + CHANNEL_ROWS * MOST_CHANNELS) / 4;
constexpr int PRODUCT_FLOATS = MOST_PAIRS * (ROW_FLOATS + SPLIT_COLUMNS);
// Floats of the rows of a tile, and of its entries.
constexpr int TILE_FLOATS = CHANNEL_ROWS * ROW_FLOATS, ENTRY_FLOATS = 2 * MOST_ENTRIES;
static_assert(SPLIT_COLUMNS == WARPS, "a warp sums a column over the rows of a tile");
static_assert(MOST_PAIRS * ROW_FLOATS >= REDUCTION_FLOATS, "partial moments and sums are reduced where the pairs are");

// Pairs of a tile, channel by channel, each channel's in the order of the rows. A channel begins at a multiple of
// PAIRS_AT_ONCE; pairs without a row fill up to it.
struct Pairs {
  static constexpr unsigned char NONE = 255;
  unsigned* channels;            // (CHANNEL_ROWS,): a bit for each channel in which the row has an entry
  unsigned char *row, *channel;  // (MOST_PAIRS,), (MOST_PAIRS / PAIRS_AT_ONCE,); row NONE: no row
  unsigned char* place;          // (CHANNEL_ROWS, MOST_CHANNELS): the pair of a row and a channel, or NONE
  static_assert(MOST_PAIRS < NONE, "a pair has 8 bits");

  __device__ __forceinline__ explicit Pairs(float* shared)
      : channels(reinterpret_cast<unsigned*>(shared)),
        row(reinterpret_cast<unsigned char*>(channels + CHANNEL_ROWS)),
        channel(row + MOST_PAIRS),
        place(channel + MOST_PAIRS / PAIRS_AT_ONCE) {}

  // How many pairs there are, with those without a row, and the first channel that did not fit.
  struct Found {
    int pairs, next;
  };

  // Find the pairs of the channels from `first` on, as many as fit. All threads call, after `channels` is filled, and
  // wait before they read.
  __device__ __forceinline__ Found find(int first, int C) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned own = channels[lane];
    int pairs = 0, c = first;
#pragma unroll 1
    for (; c < C; ++c) {  // every warp counts, one writes
      const unsigned with = __ballot_sync(FULL_WARP, own >> c & 1);
      const int all = ceil_div(__popc(with), PAIRS_AT_ONCE) * PAIRS_AT_ONCE;
      if (pairs + all > MOST_PAIRS) break;
      if (c % WARPS == warp) fill(c, pairs, all, with);
      pairs += all;
    }
    return {pairs, c};
  }

  // Write the pairs of channel c, which rows `with` have; a warp calls.
  __device__ __forceinline__ void fill(int c, int pairs, int all, unsigned with) const {
    const int lane = threadIdx.x % 32, pair = pairs + __popc(with & ((1u << lane) - 1));
    const bool is_pair = with >> lane & 1;
    place[lane * MOST_CHANNELS + c] = is_pair ? pair : NONE;
    if (is_pair) row[pair] = lane;
    if (__popc(with) + lane < all) row[pairs + __popc(with) + lane] = NONE;
    if (lane < all / PAIRS_AT_ONCE) channel[pairs / PAIRS_AT_ONCE + lane] = c;
  }

  // Four columns of a row of Y or dZ: the sum of the products (MOST_PAIRS, SPLIT_COLUMNS) of its pairs with channels first …
  // end - 1.
  __device__ __forceinline__ float4 sum_of_row(float4 sum, const float* products, int of_row, int column, int first,
                                               int end) const {
#pragma unroll 1
    for (int c = first; c < end; ++c) {
      const int pair = place[of_row * MOST_CHANNELS + c];
      if (pair == NONE) continue;
      sum = combine(sum, *reinterpret_cast<const float4*>(products + pair * SPLIT_COLUMNS + column));
    }
    return sum;
  }
};

// A tile's entries of the transpose of A, in shared memory if they fit.
struct TileEntries {
  int* held_indices;  // (MOST_ENTRIES,)
  float* held_values;
  const int* indices;
  const float* values;
  int first;  // the first of the tile
  bool are_held;

  __device__ __forceinline__ TileEntries(float* shared, const int* indices, const float* values)
      : held_indices(reinterpret_cast<int*>(shared)),
        held_values(shared + MOST_ENTRIES),
        indices(indices),
        values(values),
        first(0),
        are_held(false) {}

  // Copy the entries first … end - 1. All threads call, and wait before they read.
  __device__ __forceinline__ void copy(int begin, int end) {
    first = begin, are_held = end - begin <= MOST_ENTRIES;
    if (are_held && begin + static_cast<int>(threadIdx.x) < end) {
      held_indices[threadIdx.x] = indices[begin + threadIdx.x];
      held_values[threadIdx.x] = values[begin + threadIdx.x];
    }
  }
  __device__ __forceinline__ int index(int entry) const {
    return are_held ? held_indices[entry - first] : indices[entry];
  }
  __device__ __forceinline__ float value(int entry) const {
    return are_held ? held_values[entry - first] : values[entry];
  }
};
static_assert(MOST_ENTRIES == THREADS, "a thread copies an entry");

// Z of a layer's Y.
struct Activations {
  const float* y;
  const unsigned char* kept;
  Columns columns;
  float keep_scale;

  // Four columns from p on of row i.
  __device__ __forceinline__ float4 at(int i, int p) const {
    const int place = i * CHANNEL_COLUMNS + p;
    const float4 y4 = *reinterpret_cast<const float4*>(y + place);
    const float4 mean = *reinterpret_cast<const float4*>(columns.mean + p);
    const float4 slope = *reinterpret_cast<const float4*>(columns.slope + p);
    const float4 beta = *reinterpret_cast<const float4*>(columns.beta + p);
    const unsigned bits = kept ? kept[place >> 3] >> (place & 7) : 15u;
    const auto z = [&](float value, float m, float s, float b, unsigned bit) {
      return bits & bit ? keep_scale * positive((value - m) * s + b) : 0.f;
    };
    return make_float4(z(y4.x, mean.x, slope.x, beta.x, 1), z(y4.y, mean.y, slope.y, beta.y, 2),
                       z(y4.z, mean.z, slope.z, beta.z, 4), z(y4.w, mean.w, slope.w, beta.w, 8));
  }
};

// dY of four columns from p on of row i; see OfY.
__device__ __forceinline__ float4 dy4(const OfY& of, int i, int p) {
  const float4 y = *reinterpret_cast<const float4*>(of.y + i * CHANNEL_COLUMNS + p);
  const float4 g = *reinterpret_cast<const float4*>(of.g + i * CHANNEL_COLUMNS + p);
  return make_float4(of.dy(y.x, g.x, p), of.dy(y.y, g.y, p + 1), of.dy(y.z, g.z, p + 2), of.dy(y.w, g.w, p + 3));
}

__device__ __forceinline__ float4 add_scaled4(float4 sum, float factor, float4 value) {
  return make_float4(fmaf(factor, value.x, sum.x), fmaf(factor, value.y, sum.y), fmaf(factor, value.z, sum.z),
                     fmaf(factor, value.w, sum.w));
}

__device__ __forceinline__ float4 zero4() { return make_float4(0.f, 0.f, 0.f, 0.f); }

// The blocks of a member: split `split` of the tiles of rows first, first + stride, …
struct SplitOfTiles {
  int split, first, stride;

  __device__ __forceinline__ SplitOfTiles()
      : split(blockIdx.x % CHANNEL_SPLITS),
        first(blockIdx.x / CHANNEL_SPLITS * CHANNEL_ROWS),
        stride(gridDim.x / CHANNEL_SPLITS * CHANNEL_ROWS) {}
};

}  // namespace fused
