// SpGEMM by sorting: the products of a row are stored one by one and sorted, without a hash table. It serves short
// rows, and rows in which few products share a column (spgemm/hash.cu has the overview and the shapes).
#include "common/scan.cuh"
#include "spgemm/row.cuh"

constexpr int SORT_THREADS = 256;
constexpr int KEYS_PER_LANE = 8;                 // products of a short row per lane
constexpr int PLACE_BITS = 8;                    // bits of a product's place in a short row
constexpr int EXPAND_BYTES_PER_2_PRODUCTS = 25;  // shared memory of `spgemm_expand`
constexpr int NO_PLACE = 0xffff;                 // sorts after every place

// ---------------------------------------------------------------------------------------------------------- helpers

// Sort up to PER_LANE * lanes products by column and place, sum the products of each column in the order of their
// places, and write the sums if `writes`. `keys` has the columns, `products` the products, by place. Returns the number
// of columns.
template <int PER_LANE>
__device__ __forceinline__ int merge_products(int* out_indices, float* out_data, volatile unsigned* keys,
                                              const volatile float* products, const Lanes& lanes, int n, int most,
                                              bool writes) {
  unsigned key[PER_LANE];
#pragma unroll
  for (int r = 0; r < PER_LANE; ++r) {
    const int place = r * lanes.count() + lanes.lane;
    key[r] = 0xffffffffu;
    if (place < n) key[r] = keys[place] << PLACE_BITS | place;
  }
  sort_in_registers(key, lanes);
  __syncwarp();
#pragma unroll
  for (int r = 0; r < PER_LANE; ++r) {
    const int place = r * lanes.count() + lanes.lane;
    if (place < n) keys[place] = key[r];
  }
  __syncwarp();
  constexpr unsigned IN_ROW = (1u << PLACE_BITS) - 1;
  int done = 0;
#pragma unroll
  for (int r = 0; r < PER_LANE; ++r) {
    if (r * lanes.count() >= most) break;
    const int place = r * lanes.count() + lanes.lane;
    const unsigned column = key[r] >> PLACE_BITS;
    const bool is_first = place < n && (place == 0 || keys[place - 1] >> PLACE_BITS != column);
    const unsigned votes = lanes.vote(is_first);
    if (is_first && writes) {
      float sum = __fadd_rn(0.0f, products[key[r] & IN_ROW]);
      for (int next = place + 1; next < n && keys[next] >> PLACE_BITS == column; ++next)
        sum = __fadd_rn(sum, products[keys[next] & IN_ROW]);
      out_indices[done + lanes.before(votes)] = column;
      out_data[done + lanes.before(votes)] = sum;
    }
    done += __popc(votes);
  }
  return done;
}

// Whether a product comes after another in the order of columns and places.
__device__ inline bool is_after(const int* columns, int place, int other) {
  if (place == NO_PLACE || other == NO_PLACE) return place > other;
  return columns[place] > columns[other] || (columns[place] == columns[other] && place > other);
}

// Sort a block's products by column and place. Each bucket is one of n_buckets equal ranges of columns; a product finds
// its rank by comparison with all products of its bucket. `buckets` has their counts. Returns false, and does nothing,
// if one bucket has too many.
__device__ inline bool sort_by_buckets(unsigned short* sorted, unsigned short* scattered, int* buckets,
                                       const int* columns, int n, int n_buckets, int smallest, int shift) {
  bool is_crowded = false;
  for (int i = threadIdx.x; i < n_buckets; i += SCAN_THREADS) is_crowded |= buckets[i] > CROWDED;
  if (__syncthreads_or(is_crowded)) return false;
  int before = 0, total;
  for (int i = threadIdx.x; i < n_buckets + threadIdx.x; i += SCAN_THREADS) {  // counts become starts of buckets
    const int prefix = before + block_prefix(i < n_buckets ? buckets[i] : 0, total);
    if (i < n_buckets) buckets[i] = prefix;
    before += total;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += SCAN_THREADS)
    scattered[atomicAdd(buckets + ((columns[i] - smallest) >> shift), 1)] = i;  // starts become ends
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += SCAN_THREADS) {
    const int place = scattered[i], bucket = (columns[place] - smallest) >> shift;
    const int start = bucket ? buckets[bucket - 1] : 0, stop = buckets[bucket];
    int rank = start;
    for (int j = start; j < stop; ++j) rank += is_after(columns, place, scattered[j]);
    sorted[rank] = place;
  }
  __syncthreads();
  return true;
}

// The same by a bitonic sort, for any columns.
__device__ inline void sort_in_memory(unsigned short* sorted, const int* columns, int n) {
  const int padded = 1 << (32 - __clz(n - 1));
  for (int i = threadIdx.x; i < padded; i += SCAN_THREADS) sorted[i] = i < n ? i : NO_PLACE;
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < padded / 2; pair += SCAN_THREADS) {
        const int a = 2 * pair - (pair & (stride - 1)), b = a + stride;
        const int place_a = sorted[a], place_b = sorted[b];
        if (is_after(columns, place_a, place_b) == ((a & size) == 0)) sorted[a] = place_b, sorted[b] = place_a;
      }
    }
  }
  __syncthreads();
}

// ----------------------------------------------------------------------------------------------------- entry points

// Rows of at most 8 << lane_bits products, which fit in the registers of a group of lanes. The group sorts them by
// column and place, then sums them. Task t is row order[t], or row t if `order` is null; its results go to out from
// starts[row] on, their number to counts[row].
//
// Launch: 2^lane_bits lanes per row, 256 >> lane_bits rows per block. 500,000 rows of 64 products: 8 lanes per row,
//   15,625 blocks.
// Shared memory: 16 KB, a column and a product for each of 8 places per lane, in consecutive banks.
// Traffic: reads 8 nnz(A) + 8 bytes per product (rows of B, mostly from L1 and L2), writes 8 bytes per result.
// Determinism: sums in stored order; products are rounded before they are added.
// Requirements: N at most 2^24, 8 << lane_bits at most 256.
extern "C" __global__ __launch_bounds__(SORT_THREADS, 4) void spgemm_sort(
    int* __restrict__ out_indices, float* __restrict__ out_data, int* __restrict__ counts,
    const int* __restrict__ a_indptr, const long long* __restrict__ starts, const int* __restrict__ order,
    const int* __restrict__ a_indices, const float* __restrict__ a_data, const int* __restrict__ b_indptr,
    const int* __restrict__ b_indices, const float* __restrict__ b_data, int n_tasks, int lane_bits, int mode) {
  __shared__ unsigned all_columns[KEYS_PER_LANE * SORT_THREADS];
  __shared__ float all_products[KEYS_PER_LANE * SORT_THREADS];
  const Lanes lanes(lane_bits);
  const int group = threadIdx.x >> lane_bits, at = blockIdx.x * (SORT_THREADS >> lane_bits) + group;
  volatile unsigned* columns = all_columns + (group << lane_bits) * KEYS_PER_LANE;
  volatile float* products = all_products + (group << lane_bits) * KEYS_PER_LANE;
  const Operands operands{a_indices, a_data, b_indptr, b_indices, b_data};
  const bool live = at < n_tasks;
  const int row = !live ? 0 : order ? order[at] : at;
  const int first = live ? a_indptr[row] : 0, end = live ? a_indptr[row + 1] : 0;
  const auto step = [&](int column, float product, int place) {
    if (column != EMPTY) columns[place] = column, products[place] = product;
  };
  int n = 0;
  for (int next = first; __any_sync(FULL_WARP, next < end); next += lanes.count()) {
    const Entries mine(next + lanes.lane, next + lanes.lane < end, a_indices, a_data, b_indptr);
    n += walk_entries<false>(operands, lanes, mine, n, step, [] { return false; });
  }
  __syncwarp();
  const int most = -min_of_lanes(-n, 32);
  const bool writes = mode != COUNT;
  const long long target = live ? starts[row] : 0;
  int n_columns = 0;
  if (most <= 2 << lane_bits)
    n_columns = merge_products<2>(out_indices + target, out_data + target, columns, products, lanes, n, most, writes);
  else if (most <= 4 << lane_bits)
    n_columns = merge_products<4>(out_indices + target, out_data + target, columns, products, lanes, n, most, writes);
  else
    n_columns = merge_products<8>(out_indices + target, out_data + target, columns, products, lanes, n, most, writes);
  if (live && lanes.lane == 0) counts[row] = n_columns;
}

// Rows in which few products share a column, and parts of long rows. A block stores a row's products, sorts them by
// column and place with buckets, and sums those of each column. Tasks as in `spgemm_hash`.
//
// Launch: a block of 256 threads per task; a task has at most `capacity` products. 3,000 rows: 3,000 blocks.
// Shared memory: EXPAND_BYTES_PER_2_PRODUCTS / 2 * capacity bytes: columns, products, buckets, places by bucket and by
//   column.
// Traffic: as `spgemm_hash`.
// Determinism: sums in stored order; products are rounded before they are added.
extern "C" __global__ __launch_bounds__(SCAN_THREADS, 4) void spgemm_expand(
    int* __restrict__ out_indices, float* __restrict__ out_data, int* __restrict__ counts,
    const int* __restrict__ first, const int* __restrict__ end, const long long* __restrict__ starts,
    const int* __restrict__ order, const int* __restrict__ a_indices, const float* __restrict__ a_data,
    const int* __restrict__ b_indptr, const int* __restrict__ b_indices, const float* __restrict__ b_data, int capacity,
    int mode) {
  extern __shared__ int4 shared[];
  __shared__ int range[2];
  int* columns = reinterpret_cast<int*>(shared);
  float* products = reinterpret_cast<float*>(columns + capacity);
  int* buckets = columns + 2 * capacity;
  const int n_buckets = capacity / 8;
  unsigned short* scattered = reinterpret_cast<unsigned short*>(buckets + n_buckets);  // places by bucket
  unsigned short* sorted = scattered + capacity;                                       // places by column
  static_assert(EXPAND_BYTES_PER_2_PRODUCTS == 2 * (4 + 4 + 2 + 2) + 2 * 4 / 8, "the arrays above");
  const int task = order ? order[blockIdx.x] : blockIdx.x, entry = first[task], stop = end[task];
  const long long target = starts[task];
  const bool writes = mode != COUNT;
  const Lanes lanes(5);
  const Operands operands{a_indices, a_data, b_indptr, b_indices, b_data};
  if (stop == entry) {  // an unused part
    if (threadIdx.x == 0) counts[task] = 0;
    return;
  }
  if (stop - entry == 1) {
    const int n =
        write_single(out_indices + target, out_data + target, operands, entry, threadIdx.x, SCAN_THREADS, writes);
    if (threadIdx.x == 0) counts[task] = n;
    return;
  }
  if (threadIdx.x == 0) range[0] = NO_COLUMN, range[1] = -1;
  for (int i = threadIdx.x; i < n_buckets; i += SCAN_THREADS) buckets[i] = 0;
  int n = 0, smallest = NO_COLUMN, largest = -1;
  for (int next = entry; next < stop; next += SCAN_THREADS) {
    const int at = next + threadIdx.x;
    const Entries mine(at, at < stop, a_indices, a_data, b_indptr);
    int total;
    const int before = n + __shfl_sync(FULL_WARP, block_prefix(mine.length, total), 0);
    const auto step = [&](int column, float product, int place) {
      if (column == EMPTY) return;
      columns[place] = column, products[place] = product;
      smallest = min(smallest, column), largest = max(largest, column);
    };
    walk_entries<false>(operands, lanes, mine, before, step, [] { return false; });
    n += total;
  }
  smallest = min_of_lanes(smallest, 32), largest = -min_of_lanes(-largest, 32);
  __syncthreads();
  if (lanes.lane == 0) atomicMin(range, smallest), atomicMax(range + 1, largest);
  __syncthreads();
  smallest = range[0];
  const int shift = max(32 - __clz(range[1] - smallest) - (31 - __clz(n_buckets)), 0);
  for (int i = threadIdx.x; i < n; i += SCAN_THREADS) atomicAdd(buckets + ((columns[i] - smallest) >> shift), 1);
  __syncthreads();
  if (!sort_by_buckets(sorted, scattered, buckets, columns, n, n_buckets, smallest, shift))
    sort_in_memory(sorted, columns, n);
  int done = 0, total;
  for (int i = threadIdx.x; i < n + threadIdx.x; i += SCAN_THREADS) {
    const int column = i < n ? columns[sorted[i]] : EMPTY;
    const bool is_first = i < n && (i == 0 || columns[sorted[i - 1]] != column);
    const int rank = done + block_prefix(static_cast<int>(is_first), total);
    if (is_first && writes) {
      float sum = __fadd_rn(0.0f, products[sorted[i]]);
      for (int next = i + 1; next < n && columns[sorted[next]] == column; ++next)
        sum = __fadd_rn(sum, products[sorted[next]]);
      out_indices[target + rank] = column;
      out_data[target + rank] = sum;
    }
    done += total;
  }
  if (threadIdx.x == 0) counts[task] = done;
}
