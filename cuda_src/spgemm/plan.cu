// SpGEMM before and after the sums: bounds, groups and parts of rows, and the layout of the result (spgemm/hash.cu has
// the overview).
//
// Shapes as in spgemm/hash.cu: M rows of A, N columns of B; indptr (M + 1,) int32.
// Determinism: sums of integers. Lists of rows are in any order; no result depends on it.
#include "common/scan.cuh"
#include "spgemm/row.cuh"

constexpr int MANY_ENTRIES = 64;  // with more entries than this per lane, all threads of the block share a row of A
constexpr int PART_PRODUCTS = 1024;
constexpr int INDPTR_ROWS_PER_THREAD = 4;
constexpr int TILE_COLUMNS = 8192;  // columns of a merged row per block
constexpr int LONG = 13;            // the group of rows that are split; group g < LONG has bounds up to 2^g

// Results of `spgemm_bound` for the host, 64-bit words. SHORT_PRODUCTS and SQUARES leave out long rows.
enum Stat { SHORT_PRODUCTS, SQUARES, LARGEST, LONG_PRODUCTS, PARTS, ROWS_OF_GROUP };

// ---------------------------------------------------------------------------------------------------------- helpers

__device__ inline long long parts_of(long long bound) { return 2 * (bound / PART_PRODUCTS) + 1; }  // upper limit

// The group of a row: bounds of group g are in 2^(g-1)+1 … 2^g; -1 for an empty row.
__device__ inline int group_of(int bound, int long_limit) {
  if (bound > long_limit) return LONG;
  return bound == 0 ? -1 : 32 - __clz(bound - 1);
}

// ----------------------------------------------------------------------------------------------------- entry points

// bounds[i] = sum over entries (i, k) of the length of row k of B; starts[i] = sum of the bounds of all earlier rows
// that are not long.
//
// Shapes: bounds, counts (M,), starts (M,) int64, stats (ROWS_OF_GROUP + 14,), states one word per tile. counts becomes
//   0.
// Launch: a block of 256 threads per 256 rows, 2^lane_bits lanes per row. 148,147 rows of 3 entries: 579 blocks.
// Traffic: reads 4 (M + 1) + 12 nnz(A) bytes (indptr of B from L2), writes 16 M.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void spgemm_bound(
    int* __restrict__ bounds, int* __restrict__ counts, long long* __restrict__ starts,
    unsigned long long* __restrict__ stats, unsigned long long* __restrict__ states, unsigned* __restrict__ ticket,
    const int* __restrict__ a_indptr, const int* __restrict__ a_indices, const int* __restrict__ b_indptr, int n_rows,
    int lane_bits, int long_limit) {
  __shared__ long long products[SCAN_THREADS];
  __shared__ int rows_of_group[LONG + 1], many[SCAN_THREADS], n_many;
  const int tile = next_tile(ticket), lanes = 1 << lane_bits, lane = threadIdx.x & (lanes - 1);
  if (threadIdx.x <= LONG) rows_of_group[threadIdx.x] = 0;
  if (threadIdx.x == 0) n_many = 0;
  __syncthreads();
  const auto products_of = [&](int first, int end, int step) {
    long long sum = 0;
#pragma unroll 4
    for (int entry = first; entry < end; entry += step) {
      const int k = __ldg(a_indices + entry);
      sum += __ldg(b_indptr + k + 1) - __ldg(b_indptr + k);
    }
    return sum;
  };
  for (int r = threadIdx.x >> lane_bits; r < SCAN_THREADS; r += SCAN_THREADS >> lane_bits) {
    const int row = tile * SCAN_THREADS + r;
    const int first = row < n_rows ? __ldg(a_indptr + row) : 0, end = row < n_rows ? __ldg(a_indptr + row + 1) : 0;
    const bool is_many = end - first > MANY_ENTRIES << lane_bits;
    const long long sum = warp_sum(products_of(first + lane, is_many ? first : end, lanes), lanes);
    if (lane == 0) {
      products[r] = sum;
      if (is_many) many[atomicAdd(&n_many, 1)] = r;
    }
  }
  __syncthreads();
  for (int i = 0; i < n_many; ++i) {
    const int row = tile * SCAN_THREADS + many[i];
    const long long sum =
        block_sum(products_of(__ldg(a_indptr + row) + threadIdx.x, __ldg(a_indptr + row + 1), SCAN_THREADS));
    if (threadIdx.x == 0) products[many[i]] = sum;
  }
  __syncthreads();
  const int row = tile * SCAN_THREADS + threadIdx.x;
  const long long exact = products[threadIdx.x];
  const int bound = static_cast<int>(min(exact, static_cast<long long>(NO_COLUMN)));
  const int group = group_of(bound, long_limit);
  if (group >= 0) atomicAdd(rows_of_group + group, 1);
  if (group == LONG) {
    atomicAdd(stats + LONG_PRODUCTS, static_cast<unsigned long long>(exact));
    atomicAdd(stats + PARTS, static_cast<unsigned long long>(parts_of(exact)));
    atomicMax(stats + LARGEST, static_cast<unsigned long long>(exact));
  }
  const unsigned long long capped = min(bound, 0xffff);  // a matrix with larger bounds is never balanced
  const unsigned long long squares = block_sum(capped * capped);
  long long total;
  const long long within = block_prefix(group == LONG ? 0ll : exact, total);
  if (threadIdx.x == 0) {
    atomicAdd(stats + SHORT_PRODUCTS, static_cast<unsigned long long>(total));
    atomicAdd(stats + SQUARES, squares);
  }
  if (threadIdx.x <= LONG && rows_of_group[threadIdx.x])
    atomicAdd(stats + ROWS_OF_GROUP + threadIdx.x, static_cast<unsigned long long>(rows_of_group[threadIdx.x]));
  const long long before = tile_prefix(states, tile, total);
  if (row < n_rows) {
    bounds[row] = bound;
    counts[row] = 0;
    starts[row] = before + within;
  }
}

// List the rows by group, in ascending order of groups, without rows that have no products.
//
// Shapes: order (rows with products,), filled (14,) 0 before the launch, stats from `spgemm_bound`.
// Launch: a thread per row, blocks of 256. A block's rows of a group stay together, because neighbours share rows of B.
// Traffic: reads and writes 4 M bytes.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void spgemm_group(int* __restrict__ order,
                                                                        unsigned* __restrict__ filled,
                                                                        const unsigned long long* __restrict__ stats,
                                                                        const int* __restrict__ bounds, int n_rows,
                                                                        int long_limit) {
  __shared__ int wanted[LONG + 1], base[LONG + 1];
  const int row = blockIdx.x * SCAN_THREADS + threadIdx.x;
  if (threadIdx.x <= LONG) wanted[threadIdx.x] = 0;
  __syncthreads();
  const int group = row < n_rows ? group_of(bounds[row], long_limit) : -1;
  const int place = group >= 0 ? atomicAdd(wanted + group, 1) : 0;
  __syncthreads();
  if (threadIdx.x <= LONG && wanted[threadIdx.x]) {
    int first = atomicAdd(filled + threadIdx.x, static_cast<unsigned>(wanted[threadIdx.x]));
    for (int g = 0; g < threadIdx.x; ++g) first += static_cast<int>(stats[ROWS_OF_GROUP + g]);
    base[threadIdx.x] = first;
  }
  __syncthreads();
  if (group >= 0) order[base[group] + place] = row;
}

// Split each long row into parts of less than 2 * PART_PRODUCTS products, or of one entry of A.
//
// Shapes: part_* (PARTS of stats,); unused parts become empty. of_row (n_long, 2): first part and number of parts of
//   each long row. cursors (2,) 0 before the launch; rows (n_long,).
// Launch: a block of 256 threads per row.
// Traffic: reads 12 bytes per entry of a long row (indptr of B twice, from L2), writes 20 bytes per part.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void spgemm_split(
    int* __restrict__ part_first, int* __restrict__ part_end, long long* __restrict__ part_start,
    int* __restrict__ part_count, int* __restrict__ of_row, unsigned long long* __restrict__ cursors,
    const int* __restrict__ rows, const int* __restrict__ bounds, const int* __restrict__ a_indptr,
    const int* __restrict__ a_indices, const int* __restrict__ b_indptr) {
  __shared__ long long shared_base[2];
  const int row = rows[blockIdx.x], first = a_indptr[row], end = a_indptr[row + 1];
  const int capacity = static_cast<int>(parts_of(bounds[row]));
  if (threadIdx.x == 0) {
    shared_base[0] = atomicAdd(cursors, static_cast<unsigned long long>(capacity));
    shared_base[1] = atomicAdd(cursors + 1, static_cast<unsigned long long>(bounds[row]));
  }
  __syncthreads();
  const int base = static_cast<int>(shared_base[0]);
  const long long first_product = shared_base[1];
  long long products = 0;
  int parts = 0;
  for (int chunk = first; chunk < end; chunk += SCAN_THREADS) {
    const int entry = chunk + threadIdx.x;
    int length = 0, previous = 0;
    if (entry < end) {
      const int k = a_indices[entry];
      length = b_indptr[k + 1] - b_indptr[k];
      if (entry > first) previous = b_indptr[a_indices[entry - 1] + 1] - b_indptr[a_indices[entry - 1]];
    }
    long long total;
    const long long before = products + block_prefix(static_cast<long long>(length), total);
    products += total;
    const bool starts = entry < end && (entry == first || length >= PART_PRODUCTS ||
                                        before / PART_PRODUCTS != (before - previous) / PART_PRODUCTS);
    int starting;
    const int part = base + parts + block_prefix(static_cast<int>(starts), starting);
    parts += starting;
    if (starts) {
      part_first[part] = entry;
      part_start[part] = first_product + before;
      if (entry > first) part_end[part - 1] = entry;
    }
  }
  if (threadIdx.x == 0) {
    part_end[base + parts - 1] = end;
    of_row[2 * blockIdx.x] = base;
    of_row[2 * blockIdx.x + 1] = parts;
  }
  for (int part = base + parts + threadIdx.x; part < base + capacity; part += SCAN_THREADS) {
    part_first[part] = part_end[part] = part_count[part] = 0;
    part_start[part] = first_product;
  }
}

// Sum the parts of one long row, in order, over a tile of TILE_COLUMNS columns.
//
// Shapes: tile_counts (n_long, n_tiles), indptr (M + 1,) of the result; part_* and of_row from `spgemm_split`.
// Launch: 256 threads per block, n_long * n_tiles blocks. The threads share the columns of a part, with a barrier
//   between parts. Mode COUNT writes sizes to tile_counts and adds them to counts; FILL writes the results.
// Shared memory: 32 KB of sums, 1 KB of bits, 3 KB of the parts' places; consecutive columns in consecutive banks.
// Traffic: reads 8 bytes per result of a part (4 in COUNT) and searches each part twice; writes 8 bytes per result.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void spgemm_merge(
    int* __restrict__ out_indices, float* __restrict__ out_data, int* __restrict__ counts,
    int* __restrict__ tile_counts, const int* __restrict__ indptr, const int* __restrict__ rows,
    const int* __restrict__ of_row, const long long* __restrict__ part_start, const int* __restrict__ part_count,
    const int* __restrict__ part_indices, const float* __restrict__ part_data, int n_tiles, int mode) {
  __shared__ float sums[TILE_COLUMNS];
  __shared__ unsigned bits[SCAN_THREADS];  // one word per 32 columns
  __shared__ long long place[SCAN_THREADS];
  __shared__ int length[SCAN_THREADS];
  const int nth = blockIdx.x / n_tiles, tile = blockIdx.x % n_tiles, row = rows[nth];
  const int first_part = of_row[2 * nth], parts = of_row[2 * nth + 1];
  const int first_column = tile * TILE_COLUMNS;
  if (mode == FILL)
    for (int i = threadIdx.x; i < TILE_COLUMNS; i += SCAN_THREADS) sums[i] = 0.0f;
  bits[threadIdx.x] = 0;
  for (int chunk = 0; chunk < parts; chunk += SCAN_THREADS) {
    __syncthreads();
    if (chunk + threadIdx.x < parts) {
      const int part = first_part + chunk + threadIdx.x, n = part_count[part];
      const int* columns = part_indices + part_start[part];
      int ends[2];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        int low = 0, high = n;  // binary search for the first column in this tile (side 0) or beyond it (side 1)
        while (low < high) {
          const int middle = (low + high) / 2;
          if (columns[middle] / TILE_COLUMNS < tile + side) {
            low = middle + 1;
          } else {
            high = middle;
          }
        }
        ends[side] = low;
      }
      place[threadIdx.x] = part_start[part] + ends[0];
      length[threadIdx.x] = ends[1] - ends[0];
    }
    __syncthreads();
    for (int p = 0; p < min(parts - chunk, SCAN_THREADS); ++p) {
      if (length[p] == 0) continue;
      for (int i = threadIdx.x; i < length[p]; i += SCAN_THREADS) {
        const int column = part_indices[place[p] + i] - first_column;
        atomicOr(bits + column / 32, 1u << column % 32);
        if (mode == FILL) sums[column] = __fadd_rn(sums[column], part_data[place[p] + i]);
      }
      __syncthreads();
    }
  }
  __syncthreads();
  int total;
  const int before = block_prefix(__popc(bits[threadIdx.x]), total);
  if (mode != FILL) {
    if (threadIdx.x == 0) {
      tile_counts[blockIdx.x] = total;
      atomicAdd(counts + row, total);
    }
    return;
  }
  length[threadIdx.x] = before;
  int of_tiles = 0;
  for (int other = threadIdx.x; other < tile; other += SCAN_THREADS) of_tiles += tile_counts[nth * n_tiles + other];
  const long long target = static_cast<long long>(indptr[row]) + block_sum(of_tiles);
  for (int word = threadIdx.x / 32; word < SCAN_THREADS; word += SCAN_THREADS / 32) {
    const int lane = threadIdx.x % 32;
    if (bits[word] >> lane & 1) {
      const long long to = target + length[word] + __popc(bits[word] & ((1u << lane) - 1));
      out_indices[to] = first_column + word * 32 + lane;
      out_data[to] = sums[word * 32 + lane];
    }
  }
}

// Compute indptr (M + 1,) of the result from the sizes of rows, and write their 64-bit sum to nnz. Unless null, starts
// (M,) int64 receives the same values as indptr.
//
// Launch: a block of 256 threads per 1,024 rows. Traffic: reads 4 M bytes, writes 4 M or 12 M.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void spgemm_indptr(int* __restrict__ indptr,
                                                                         long long* __restrict__ starts,
                                                                         unsigned long long* __restrict__ nnz,
                                                                         unsigned long long* __restrict__ states,
                                                                         unsigned* __restrict__ ticket,
                                                                         const int* __restrict__ counts, int n_rows) {
  const int tile = next_tile(ticket), first = (tile * SCAN_THREADS + threadIdx.x) * INDPTR_ROWS_PER_THREAD;
  int count[INDPTR_ROWS_PER_THREAD];
  long long sum = 0;
#pragma unroll
  for (int i = 0; i < INDPTR_ROWS_PER_THREAD; ++i) sum += count[i] = first + i < n_rows ? counts[first + i] : 0;
  long long total;
  const long long within = block_prefix(sum, total);
  long long at = tile_prefix(states, tile, total) + within;
  if (first == 0) indptr[0] = 0;
#pragma unroll
  for (int i = 0; i < INDPTR_ROWS_PER_THREAD; ++i) {
    if (first + i >= n_rows) break;
    if (starts) starts[first + i] = at;
    at += count[i];
    indptr[first + i + 1] = static_cast<int>(at);
    if (first + i == n_rows - 1) *nnz = at;
  }
}

// Move the results of rows that are not long from scratch memory to the result.
//
// Launch: 2^lane_bits lanes per row, blocks of 256 threads. Traffic: reads 20 M + 8 nnz bytes, writes 8 nnz.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void spgemm_compact(
    int* __restrict__ out_indices, float* __restrict__ out_data, const int* __restrict__ indptr,
    const int* __restrict__ bounds, const long long* __restrict__ starts, const int* __restrict__ indices,
    const float* __restrict__ data, int n_rows, int lane_bits, int long_limit) {
  const int row = static_cast<int>((static_cast<long long>(blockIdx.x) * SCAN_THREADS + threadIdx.x) >> lane_bits);
  if (row >= n_rows || bounds[row] > long_limit) return;
  const int target = indptr[row], n = indptr[row + 1] - target, lanes = 1 << lane_bits;
  const long long source = starts[row];
  for (int i = threadIdx.x & (lanes - 1); i < n; i += lanes) {
    out_indices[target + i] = indices[source + i];
    out_data[target + i] = data[source + i];
  }
}
