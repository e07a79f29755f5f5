// What the kernels of layers with several channels share: the pairs of a tile of rows. No kernels here.
//
// U = [A_1 Z | … | A_C Z] has C F columns, most of them 0: of nine bond channels an atom has three or four. A pair is a row i
// and a channel c in which it has an entry. Only the rows U[i, c] = row i of A_c Z of pairs are computed, and
//
//   Y[i] = sum over the channels of i's pairs of  U[i, c] W_c + a_c[i] b_c
//
// A block has 32 rows. It sorts the pairs by channel: a thread multiplies two pairs of a channel with four columns of its
// weights, or four pairs with eight. Few members split the columns of Y among four blocks, which are smaller and so are done
// earlier; many have a block for all columns, which finds and gathers the pairs once. Both add in the same order. The backward
// pass does the same with A_c^T and W_c^T.
//
// The adjacency of these kernels has a row for each node and channel, i C + c, as its transpose has; an index is a node.
#pragma once

#include "common/copies.cuh"
#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"

namespace fused {

constexpr int CHANNEL_COLUMNS = 64;  // of the input and of the output of such a layer
constexpr int CHANNEL_ROWS = 32;     // rows of a block's tile: a lane of a warp has one
constexpr int MOST_CHANNELS = 32;
constexpr int ROW_FLOATS = CHANNEL_COLUMNS + 4;  // a row in shared memory: neighbouring rows begin 4 banks apart
constexpr int ROW_QUADS = CHANNEL_COLUMNS / 4;
constexpr int MOST_ENTRIES = 512;  // of a tile's rows in shared memory; more are read where they lie
constexpr int TILE_FLOATS = CHANNEL_ROWS * ROW_FLOATS, ENTRY_FLOATS = 2 * MOST_ENTRIES;
constexpr int MOST_PAIRS = 144;     // in shared memory; a tile with more takes its channels in groups
constexpr int CHANNEL_SPLITS = 4;   // blocks that share the columns of a tile, where any do
constexpr int CHANNELS_BLOCKS = 2;  // on a multiprocessor at once
static_assert(MOST_ENTRIES == THREADS, "a thread copies an entry");

// A block's share of the columns of a tile, and a thread's part of a product: PAIRS_AT_ONCE pairs of one channel, and THREAD_QUADS
// times four columns. For 16 PAIRS_AT_ONCE THREAD_QUADS multiply-adds it reads PAIRS_AT_ONCE + 4 THREAD_QUADS times four floats
// of shared memory.
template <int SPLITS_, int PAIRS_AT_ONCE_, int THREAD_QUADS_>
struct Share {
  static constexpr int SPLITS = SPLITS_, PAIRS_AT_ONCE = PAIRS_AT_ONCE_;
  static constexpr int THREAD_QUADS = THREAD_QUADS_;
  static constexpr int COLUMNS = CHANNEL_COLUMNS / SPLITS, QUADS = COLUMNS / 4, THREADS_OF_GROUP = QUADS / THREAD_QUADS;
  static constexpr int ROUNDS = ceil_div(MOST_PAIRS / PAIRS_AT_ONCE * THREADS_OF_GROUP, THREADS);  // of products
  static constexpr int SUMMED_STRIDE = COLUMNS + 1;  // of rows whose columns warps sum
  // Products follow the rows of pairs or, where a block has all columns, replace them.
  static constexpr int PRODUCT_STRIDE = SPLITS == 1 ? ROW_FLOATS : COLUMNS;
  static constexpr int PRODUCTS = SPLITS == 1 ? 0 : MOST_PAIRS * ROW_FLOATS;
  static constexpr int PRODUCT_FLOATS = PRODUCTS + MOST_PAIRS * PRODUCT_STRIDE;
  static constexpr int UNROLLED =
      SPLITS == 1 ? 2 : 1;  // steps of a product whose loads are in flight, as registers allow
  // Whether the rows of the next tile are fetched to registers, and those of the first one while statistics are reduced.
  static constexpr bool PREFETCHES = SPLITS == 1, FETCHES_EARLY = PREFETCHES || !SHARES_LAUNCHES;
  static constexpr int PAIR_FLOATS =
      2 * MOST_PAIRS + (MOST_PAIRS + MOST_PAIRS / PAIRS_AT_ONCE + CHANNEL_ROWS * MOST_CHANNELS) / 4;
  static_assert(MOST_PAIRS % (4 * PAIRS_AT_ONCE) == 0 && SUMMED_STRIDE <= ROW_FLOATS,
                "pairs are aligned, and sums fit the rows of the tile");
  static_assert(MOST_PAIRS * ROW_FLOATS >= REDUCTION_FLOATS,
                "partial moments and sums are reduced where the pairs are");
};
using QuarterOfColumns = Share<CHANNEL_SPLITS, 2, 1>;
using AllColumns = Share<1, 4, 2>;
// Floats of Pairs, and of the rows of pairs and their products, for either.
constexpr int PLACE_FLOATS = CHANNEL_ROWS * MOST_CHANNELS / 4, SPLIT_COLUMNS = CHANNEL_COLUMNS / CHANNEL_SPLITS;
constexpr int SPLIT_FLOATS_OF_PAIRS = MOST_PAIRS * (2 + ROW_FLOATS + SPLIT_COLUMNS) + MOST_PAIRS * 3 / 8 + PLACE_FLOATS;
constexpr int WHOLE_FLOATS_OF_PAIRS = MOST_PAIRS * (2 + ROW_FLOATS) + MOST_PAIRS * 5 / 16 + PLACE_FLOATS;
static_assert(SPLIT_FLOATS_OF_PAIRS == QuarterOfColumns::PAIR_FLOATS + QuarterOfColumns::PRODUCT_FLOATS &&
                  WHOLE_FLOATS_OF_PAIRS == AllColumns::PAIR_FLOATS + AllColumns::PRODUCT_FLOATS,
              "the host reads the sizes of both");

// The entries of a tile's rows of A or A^T, in shared memory if they fit.
struct TileEntries {
  int* starts;        // (CHANNEL_ROWS C + 1,): the first entry of each node and channel, and the end
  int* held_indices;  // (MOST_ENTRIES,)
  float* held_values;
  const int *indptr, *indices;
  const float* values;
  bool are_held;

  __device__ __forceinline__ TileEntries(float* shared, const int* indptr, const int* indices, const float* values)
      : starts(reinterpret_cast<int*>(shared + ENTRY_FLOATS)),
        held_indices(reinterpret_cast<int*>(shared)),
        held_values(shared + MOST_ENTRIES),
        indptr(indptr),
        indices(indices),
        values(values),
        are_held(false) {}

  // Copy the starts of the rows from `first` on, then the entries. All threads call both, and wait in between.
  __device__ __forceinline__ void copy_starts(int first, int N, int C) const {
#pragma unroll 1
    for (int e = threadIdx.x; e <= CHANNEL_ROWS * C; e += THREADS) starts[e] = indptr[min(first * C + e, N * C)];
  }
  __device__ __forceinline__ void copy(int C) {
    const int begin = starts[0], n = starts[CHANNEL_ROWS * C] - begin, own = threadIdx.x;
    are_held = n <= MOST_ENTRIES;
    if (are_held && own < n) held_indices[own] = indices[begin + own], held_values[own] = values[begin + own];
  }
  __device__ __forceinline__ int index(int entry) const {
    return are_held ? held_indices[entry - starts[0]] : indices[entry];
  }
  __device__ __forceinline__ float value(int entry) const {
    return are_held ? held_values[entry - starts[0]] : values[entry];
  }
};

// Pairs of a tile, channel by channel, each channel's in the order of the rows. A channel begins at a multiple of
// Share::PAIRS_AT_ONCE; pairs without a row fill up to it.
template <class Share>
struct Pairs {
  static constexpr int NONE = 255, MOST = MOST_PAIRS;
  int2* span;                    // (MOST,): the entries of each pair, and their end
  unsigned char *row, *channel;  // (MOST,), (MOST / Share::PAIRS_AT_ONCE,); row NONE: no row
  unsigned char* place;          // (CHANNEL_ROWS, MOST_CHANNELS): the pair of a row and a channel, or NONE
  static_assert(MOST < NONE && MOST_CHANNELS % 4 == 0, "a pair has 8 bits; four are read at once");

  __device__ __forceinline__ explicit Pairs(float* shared)
      : span(reinterpret_cast<int2*>(shared)),
        row(reinterpret_cast<unsigned char*>(span + MOST)),
        channel(row + MOST),
        place(channel + MOST / Share::PAIRS_AT_ONCE) {}

  // How many pairs there are, with those without a row, and the first channel that did not fit.
  struct Found {
    int pairs, next;
  };

  // Find the pairs of the channels from `first` on, as many as fit. All threads call, and wait before they read.
  __device__ __forceinline__ Found find(const TileEntries& entries, int first, int C) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int* starts = entries.starts + lane * C;
    int pairs = 0, c = first, start = starts[first];
#pragma unroll 1
    for (; c < C; ++c) {  // every warp counts, one writes
      const int end = starts[c + 1];
      const unsigned with = __ballot_sync(FULL_WARP, end > start);
      const int all = ceil_div(__popc(with), Share::PAIRS_AT_ONCE) * Share::PAIRS_AT_ONCE;
      if (pairs + all > MOST) break;
      if (c % WARPS == warp) fill(c, pairs, all, with, make_int2(start, end));
      pairs += all, start = end;
    }
    return {pairs, c};
  }

  // Write the pairs of channel c, which rows `with` have; `own`: the entries of a lane's row. A warp calls.
  __device__ __forceinline__ void fill(int c, int pairs, int all, unsigned with, int2 own) const {
    const int lane = threadIdx.x % 32, pair = pairs + __popc(with & ((1u << lane) - 1));
    const bool is_pair = with >> lane & 1;
    place[lane * MOST_CHANNELS + c] = is_pair ? pair : NONE;
    if (is_pair) row[pair] = lane, span[pair] = own;
    if (__popc(with) + lane < all) row[pairs + __popc(with) + lane] = NONE, span[pairs + __popc(with) + lane] = {0, 0};
    if (lane < all / Share::PAIRS_AT_ONCE) channel[pairs / Share::PAIRS_AT_ONCE + lane] = c;
  }

  // Fill the rows of pairs: the sums over their entries of factors times rows of nodes. 16 lanes have a pair, each four columns
  // from p on. Most nodes are in the tile, whose rows are at `tile`; `elsewhere(node, p)` gives the others. `use(pair, p, sum)`
  // gets each sum.
  template <class Elsewhere, class Use>
  __device__ __forceinline__ void gather(float* to, const float* tile, const TileEntries& entries, int pairs, int first,
                                         Elsewhere elsewhere, Use use) const {
    const int p = threadIdx.x % ROW_QUADS * 4;
#pragma unroll 1
    for (int pair = threadIdx.x / ROW_QUADS; pair < pairs; pair += THREADS / ROW_QUADS) {
      const int2 own = span[pair];
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
      for (int entry = own.x; entry < own.y; ++entry) {
        const int node = entries.index(entry), r = node - first;
        const float factor = entries.value(entry);
        const float4 z = 0 <= r && r < CHANNEL_ROWS ? *reinterpret_cast<const float4*>(tile + r * ROW_FLOATS + p)
                                                    : elsewhere(node, p);
        sum = make_float4(fmaf(factor, z.x, sum.x), fmaf(factor, z.y, sum.y), fmaf(factor, z.z, sum.z),
                          fmaf(factor, z.w, sum.w));
      }
      *reinterpret_cast<float4*>(to + pair * ROW_FLOATS + p) = sum;
      use(pair, p, sum);
    }
  }

  // Multiply: `product(first pair, channel, columns, sum)` fills the products of PAIRS_AT_ONCE pairs and the thread's columns:
  // `columns` + 4 THREADS_OF_GROUP t. `rows` has the rows of pairs, and gets the products. All threads call, and wait before
  // they read.
  template <class Product>
  __device__ __forceinline__ void multiply(float* rows, int pairs, Product product) const {
    float4 sum[Share::ROUNDS][Share::PAIRS_AT_ONCE][Share::THREAD_QUADS];
    const int own = threadIdx.x / Share::THREADS_OF_GROUP, column = threadIdx.x % Share::THREADS_OF_GROUP * 4;
    constexpr int AT_ONCE = THREADS / Share::THREADS_OF_GROUP;  // groups of pairs
    const auto each = [&](auto work) {
#pragma unroll
      for (int round = 0; round < Share::ROUNDS; ++round) {
        const int group = own + round * AT_ONCE;
        if (group * Share::PAIRS_AT_ONCE < pairs) work(group, sum[round]);
      }
    };
    const auto store = [&](int group, const float4(&of)[Share::PAIRS_AT_ONCE][Share::THREAD_QUADS]) {
      float* to = rows + Share::PRODUCTS + group * Share::PAIRS_AT_ONCE * Share::PRODUCT_STRIDE + column;
#pragma unroll
      for (int r = 0; r < Share::PAIRS_AT_ONCE; ++r)
#pragma unroll
        for (int t = 0; t < Share::THREAD_QUADS; ++t)
          *reinterpret_cast<float4*>(to + r * Share::PRODUCT_STRIDE + 4 * Share::THREADS_OF_GROUP * t) = of[r][t];
    };
    if constexpr (Share::PRODUCTS > 0) {
      each([&](int group, auto& of) {
        product(group * Share::PAIRS_AT_ONCE, channel[group], column, of), store(group, of);
      });
    } else {
      each([&](int group, auto& of) { product(group * Share::PAIRS_AT_ONCE, channel[group], column, of); });
      __syncthreads();  // rows of pairs are read
      each(store);
    }
  }

  // Four columns of a row of Y or dZ: the sum of the products of its pairs with channels first … end - 1.
  __device__ __forceinline__ float4 sum_of_row(float4 sum, const float* rows, int of_row, int column, int first,
                                               int end) const {
    const float* products = rows + Share::PRODUCTS + column;
#pragma unroll 1
    for (int c = first / 4 * 4; c < end; c += 4) {
      const uchar4 found = *reinterpret_cast<const uchar4*>(place + of_row * MOST_CHANNELS + c);
      const int pair[4] = {found.x, found.y, found.z, found.w};
      float4 value[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        value[u] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (first <= c + u && c + u < end && pair[u] != NONE)
          value[u] = *reinterpret_cast<const float4*>(products + pair[u] * Share::PRODUCT_STRIDE);
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) sum = combine(sum, value[u]);
    }
    return sum;
  }
};

// Four columns of a row of a layer's Y, and the bits of dropout of its activation Z.
struct RawActivation {
  float4 y;
  unsigned kept;
};

// Z of a layer's Y.
struct Activations {
  const float* y;
  const unsigned char* kept;
  Columns columns;
  float keep_scale;

  // The bits of dropout of four columns from p on of row i.
  __device__ __forceinline__ unsigned kept_bits(int i, int p) const {
    const int place = i * CHANNEL_COLUMNS + p;
    return kept ? kept[place >> 3] >> (place & 7) : 15u;
  }
  __device__ __forceinline__ RawActivation fetch(int i, int p) const {
    return {*reinterpret_cast<const float4*>(y + i * CHANNEL_COLUMNS + p), kept_bits(i, p)};
  }
  __device__ __forceinline__ float4 of(const RawActivation& raw, int p) const {
    const float4 mean = *reinterpret_cast<const float4*>(columns.mean + p);
    const float4 slope = *reinterpret_cast<const float4*>(columns.slope + p);
    const float4 beta = *reinterpret_cast<const float4*>(columns.beta + p);
    const auto z = [&](float value, float m, float s, float b, unsigned bit) {
      return raw.kept & bit ? keep_scale * positive((value - m) * s + b) : 0.f;
    };
    return make_float4(z(raw.y.x, mean.x, slope.x, beta.x, 1), z(raw.y.y, mean.y, slope.y, beta.y, 2),
                       z(raw.y.z, mean.z, slope.z, beta.z, 4), z(raw.y.w, mean.w, slope.w, beta.w, 8));
  }
  // Four columns from p on of row i.
  __device__ __forceinline__ float4 at(int i, int p) const { return of(fetch(i, p), p); }
};

// Four columns of a row of Y and G, and dY of them; see OfY.
struct RawGradient {
  float4 y, g;
};
__device__ __forceinline__ RawGradient fetch_gradient(const OfY& of, int i, int p) {
  return {*reinterpret_cast<const float4*>(of.y + i * CHANNEL_COLUMNS + p),
          *reinterpret_cast<const float4*>(of.g + i * CHANNEL_COLUMNS + p)};
}
__device__ __forceinline__ float4 dy4(const OfY& of, const RawGradient& raw, int p) {
  return make_float4(of.dy(raw.y.x, raw.g.x, p), of.dy(raw.y.y, raw.g.y, p + 1), of.dy(raw.y.z, raw.g.z, p + 2),
                     of.dy(raw.y.w, raw.g.w, p + 3));
}
__device__ __forceinline__ float4 dy4(const OfY& of, int i, int p) { return dy4(of, fetch_gradient(of, i, p), p); }

__device__ __forceinline__ float4 add_scaled4(float4 sum, float factor, float4 value) {
  return make_float4(fmaf(factor, value.x, sum.x), fmaf(factor, value.y, sum.y), fmaf(factor, value.z, sum.z),
                     fmaf(factor, value.w, sum.w));
}

__device__ __forceinline__ float4 zero4() { return make_float4(0.f, 0.f, 0.f, 0.f); }

// The blocks of a member: split `split` of the tiles of rows first, first + stride, …
template <class Share>
struct SplitOfTiles {
  int split, first, stride;

  __device__ __forceinline__ SplitOfTiles()
      : split(blockIdx.x % Share::SPLITS),
        first(blockIdx.x / Share::SPLITS * CHANNEL_ROWS),
        stride(gridDim.x / Share::SPLITS * CHANNEL_ROWS) {}
};

// This thread's row of a tile, and its four columns, as all threads share (CHANNEL_ROWS, CHANNEL_COLUMNS).
__device__ __forceinline__ int tile_row() { return threadIdx.x / ROW_QUADS; }
__device__ __forceinline__ int tile_column() { return threadIdx.x % ROW_QUADS * 4; }
static_assert(THREADS == CHANNEL_ROWS * ROW_QUADS, "a thread has four columns of a tile");

}  // namespace fused
