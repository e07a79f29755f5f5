// Sparse times sparse (SpGEMM): C = A B by rows. A hash table in shared memory sums each row's products.
//
//   C[i, c] = sum over entries (i, k) of A, in stored order, of  A[i, k] * B[k, c]        A (M, K), B (K, N), all CSR
//
// Source: RBSparse (Tang, Zhao, Huang, Dai: "High performance row-based hashing GPU SpGEMM", 2019): the bound of a row
//   (its number of products), the test of balance by variance / mean of the bounds, tables sized by bound / pi, sorted
//   rows, and a fallback for rows that overflow their table.
// A product: `spgemm_bound` and `spgemm_group` (spgemm/plan.cu) sort rows into groups of bounds up to 2^g.
//   `spgemm_sample` measures how many products share a column. `spgemm_sort`, `spgemm_expand` (spgemm/sort.cu) and
//   `spgemm_hash` write each row's results to scratch memory at an offset given by the bounds. `spgemm_indptr` and
//   `spgemm_compact` move them together. `spgemm_split`, `spgemm_expand` and `spgemm_merge` compute long rows.
// Differences from the paper:
//   order     A warp takes the products of one row of B at a time, whose columns differ. If rows of B are short, it
//             takes products of several rows, and lanes with equal columns add in turn. So no two lanes add to the same
//             slot at once: there is no atomic addition of floats, and a sum has the order above. In the paper, each
//             thread takes an entry of A and adds atomically.
//   ratio     The paper's pi, products per distinct column, is measured on a sample of rows. If few products share a
//             column (random matrices), tables sized by bound / pi overflow, and tables sized by the bound leave few
//             warps per multiprocessor. Such rows, and all of up to 256 products, are sorted without a table.
//   hash      Multiplicative: a modulus would send the planes of a grid, which are powers of two apart, to the same
//             slots. Rows whose columns span less than the table (a narrow band) need no hash: slot = column - smallest
//             column, sorted and without collisions. A hash table is at most half full.
//   one pass  Results first go to scratch memory sized by the bounds. If memory is short, there are two passes; the
//             first only counts.
//   overflow  Rows that overflow a guessed table are listed on the device and computed again with a table for their
//             bound, without a round trip to the host. The paper uses another method for them.
//   long      Rows too long for every table are split into parts of about 1,024 products, which are computed like rows.
//             Parts are merged over blocks of columns. So no block runs long, and rows may have any length.
// Shapes: indptr int32, indices int32, data float32. Columns of a row of B are distinct and sorted; those of A may
//   repeat and be unsorted. C has sorted columns, and also has entries whose sum is 0.
// Determinism: everything repeats to the bit. A row of up to `long_limit` products has the bits of SciPy's sum; a
//   longer one is the sum of its parts.
#include "spgemm/row.cuh"

constexpr int HASH_THREADS = 256;           // at most, of a block of `spgemm_hash`: a warp per row
constexpr int HASH_BYTES_PER_2_SLOTS = 21;  // columns and sums, two lists of used slots, buckets: see `columns_at`
constexpr int ONE_ROW_FROM = 12;            // from this mean length on, rows of B are taken one at a time

// ---------------------------------------------------------------------------------------------------------- helpers

// Sums by column in shared memory.
struct Table {
  volatile int* columns;
  volatile float* sums;
  int bits, first_column;  // first_column >= 0: slot = column - first_column, without hash
  __device__ int slots() const { return 1 << bits; }
  __device__ int slot_of(int column) const {
    return first_column >= 0 ? column - first_column : static_cast<int>((column * 2654435761u) >> (32 - bits));
  }
  __device__ int next(int slot) const { return (slot + 1) & (slots() - 1); }
  __device__ int find(int column) const {  // the column must be in the table
    int slot = slot_of(column);
    while (columns[slot] != column) slot = next(slot);
    return slot;
  }
  // Add to a column's sum if `there`; no other lane has this column at the same time. Returns whether the column is
  // new. All lanes of the warp must call.
  __device__ bool add(int column, float product, bool there, int& slot) const {
    bool is_new = false, pending = there;
    slot = slot_of(column);
    while (__any_sync(FULL_WARP, pending)) {
      if (pending) {
        const int found = atomicCAS(const_cast<int*>(columns) + slot, EMPTY, column);
        is_new = found == EMPTY;
        pending = !is_new && found != column;
        if (pending) slot = next(slot);
      }
    }
    if (there) sums[slot] = __fadd_rn(is_new ? 0.0f : sums[slot], product);
    return is_new;
  }
};

// The smallest column of all entries if their columns span at most `slots`, else -1.
__device__ inline int window_of(const Entries& entries, const int* b_indices, const Lanes& lanes, int slots) {
  int smallest = NO_COLUMN, largest = -1;
  if (entries.length > 0) {
    smallest = __ldg(b_indices + entries.start);
    largest = __ldg(b_indices + entries.start + entries.length - 1);
  }
  smallest = min_of_lanes(smallest, lanes.count());
  largest = -min_of_lanes(-largest, lanes.count());
  return smallest <= largest && largest - smallest < slots ? smallest : -1;
}

// Used slots of a table, in order of first use, and scratch memory to sort them.
struct Columns {
  volatile unsigned short* used;    // slots / 2
  volatile unsigned short* sorted;  // slots / 2
  volatile int* buckets;            // slots / 8
};

// Sort up to PER_LANE * 32 columns of a table in registers and write them with their sums.
template <int PER_LANE>
__device__ __forceinline__ void write_sorted(int* out_indices, float* out_data, const Table& table,
                                             const Columns& columns, const Lanes& lanes, int n) {
  unsigned key[PER_LANE];
#pragma unroll
  for (int r = 0; r < PER_LANE; ++r) {
    const int place = r * 32 + lanes.lane;
    key[r] = NO_COLUMN;
    if (place < n) key[r] = table.columns[columns.used[place]];
  }
  sort_in_registers(key, lanes);
#pragma unroll
  for (int r = 0; r < PER_LANE; ++r) {
    const int place = r * 32 + lanes.lane;
    if (place < n) {
      out_indices[place] = key[r];
      out_data[place] = table.sums[table.find(key[r])];
    }
  }
}

// Write the columns of a table, sorted by buckets: slots / 8 equal ranges between the smallest and the largest column.
// A column finds its rank by comparison with all columns of its bucket. Returns false, and does nothing, if one bucket
// has too many.
__device__ inline bool write_by_buckets(int* out_indices, float* out_data, const Table& table, const Columns& columns,
                                        int lane, int n) {
  int smallest = NO_COLUMN, largest = -1;
  for (int i = lane; i < n; i += 32) {
    const int column = table.columns[columns.used[i]];
    smallest = min(smallest, column), largest = max(largest, column);
  }
  smallest = min_of_lanes(smallest, 32);
  largest = -min_of_lanes(-largest, 32);
  const int n_buckets = table.slots() / 8;
  const int shift = max(32 - __clz(largest - smallest) - (table.bits - 3), 0);
  for (int i = lane; i < n_buckets; i += 32) columns.buckets[i] = 0;
  __syncwarp();
  for (int i = lane; i < n; i += 32)
    atomicAdd(const_cast<int*>(columns.buckets) + ((table.columns[columns.used[i]] - smallest) >> shift), 1);
  __syncwarp();
  int before = 0, most = 0;
  for (int first = 0; first < n_buckets; first += 32) {  // counts become starts of buckets
    const int count = columns.buckets[first + lane];
    int inclusive = count;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(FULL_WARP, inclusive, offset);
      if (lane >= offset) inclusive += other;
    }
    columns.buckets[first + lane] = before + inclusive - count;
    before += __shfl_sync(FULL_WARP, inclusive, 31);
    most = max(most, count);
  }
  if (__any_sync(FULL_WARP, most > CROWDED)) return false;
  __syncwarp();
  for (int i = lane; i < n; i += 32) {
    const int slot = columns.used[i], bucket = (table.columns[slot] - smallest) >> shift;
    columns.sorted[atomicAdd(const_cast<int*>(columns.buckets) + bucket, 1)] = slot;  // starts become ends
  }
  __syncwarp();
  for (int i = lane; i < n; i += 32) {
    const int slot = columns.sorted[i], column = table.columns[slot], bucket = (column - smallest) >> shift;
    const int start = bucket ? columns.buckets[bucket - 1] : 0, stop = columns.buckets[bucket];
    int rank = start;
    for (int other = start; other < stop; ++other) rank += table.columns[columns.sorted[other]] < column;
    out_indices[rank] = column;
    out_data[rank] = table.sums[slot];
  }
  return true;
}

// Write the columns of a table after a bitonic sort of the list of slots, for any columns.
__device__ inline void write_sorted_in_memory(int* out_indices, float* out_data, const Table& table,
                                              const Columns& columns, int lane, int n) {
  const int padded = 1 << (32 - __clz(n - 1));
#pragma unroll 1  // unrolled, NVRTC 13.0 spills registers on sm_90
  for (int i = n + lane; i < padded; i += 32) columns.used[i] = 0xffff;
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncwarp();
      for (int pair = lane; pair < padded / 2; pair += 32) {
        const int a = 2 * pair - (pair & (stride - 1)), b = a + stride;
        const int slot_a = columns.used[a], slot_b = columns.used[b];
        const int key_a = slot_a == 0xffff ? NO_COLUMN : table.columns[slot_a];
        const int key_b = slot_b == 0xffff ? NO_COLUMN : table.columns[slot_b];
        if ((key_a > key_b) == ((a & size) == 0)) columns.used[a] = slot_b, columns.used[b] = slot_a;
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < n; i += 32) {
    const int slot = columns.used[i];
    out_indices[i] = table.columns[slot];
    out_data[i] = table.sums[slot];
  }
}

// Write a table without hash, whose columns are in order.
__device__ inline void write_in_order(int* out_indices, float* out_data, const Table& table, const Lanes& lanes,
                                      int n) {
  int done = 0;
  for (int first = 0; __any_sync(FULL_WARP, done < n); first += lanes.count()) {
    const int slot = first + lanes.lane;
    const int column = done < n ? table.columns[slot] : EMPTY;
    const unsigned votes = lanes.vote(column != EMPTY);
    if (column != EMPTY) {
      const int place = done + lanes.before(votes);
      out_indices[place] = column;
      out_data[place] = table.sums[slot];
    }
    done += __popc(votes);
  }
}

// Write the n results of a row from its table, in order of columns.
__device__ inline void write_row(int* out_indices, float* out_data, const Table& table, const Columns& columns,
                                 const Lanes& lanes, int n) {
  if (table.first_column >= 0)
    write_in_order(out_indices, out_data, table, lanes, n);
  else if (n <= 32)
    write_sorted<1>(out_indices, out_data, table, columns, lanes, n);
  else if (n <= 64)
    write_sorted<2>(out_indices, out_data, table, columns, lanes, n);
  else if (n <= 128)
    write_sorted<4>(out_indices, out_data, table, columns, lanes, n);
  else if (n <= 256)
    write_sorted<8>(out_indices, out_data, table, columns, lanes, n);
  else if (!write_by_buckets(out_indices, out_data, table, columns, lanes.lane, n))
    write_sorted_in_memory(out_indices, out_data, table, columns, lanes.lane, n);
}

// Sum the products of a row by one warp. Returns the number of distinct columns, or -1 if the table overflows.
__device__ inline int sum_products(const Operands& m, Table& table, const Columns& columns, const Lanes& lanes,
                                   int first, int end) {
  int n_columns = 0, capacity = table.slots() / 2, slot;
  const auto full = [&] { return n_columns > capacity; };
  const auto list = [&](bool is_new) {
    const unsigned votes = lanes.vote(is_new);
    const int rank = n_columns + lanes.before(votes);
    if (is_new && rank < table.slots() / 2) columns.used[rank] = slot;
    n_columns += __popc(votes);
    __syncwarp();
  };
  const auto step_of_one = [&](int column, float product, int) {
    list(table.add(column, product, column != EMPTY && !full(), slot));
  };
  const auto step_of_many = [&](int column, float product, int) {
    const bool there = column != EMPTY && !full();
    // Number of earlier lanes with the same column, which add first.
    const int earlier = __popc(__match_any_sync(FULL_WARP, column) & ((1u << lanes.lane) - 1));
    list(table.add(column, product, there && earlier == 0, slot));
    for (int turn = 1; __any_sync(FULL_WARP, there && earlier >= turn); ++turn) {
      table.add(column, product, there && earlier == turn, slot);
      __syncwarp();
    }
  };
  for (int next = first; next < end && !full(); next += 32) {
    const Entries mine(next + lanes.lane, next + lanes.lane < end, m.a_indices, m.a_data, m.b_indptr);
    if (next == first) {
      const int window = window_of(mine, m.b_indices, lanes, table.slots());
      table.first_column = end - first <= 32 ? window : -1;
      if (table.first_column >= 0) capacity = table.slots();
    }
    if (warp_sum(mine.length) >= ONE_ROW_FROM * min(end - next, 32))
      walk_entries<true>(m, lanes, mine, 0, step_of_one, full);
    else
      walk_entries<false>(m, lanes, mine, 0, step_of_many, full);
  }
  return n_columns <= capacity ? n_columns : -1;
}

// The lists of a table of `slots` slots in a warp's shared memory. Table and lists take
// HASH_BYTES_PER_2_SLOTS / 2 bytes per slot.
__device__ inline Columns columns_at(int4* memory, int slots) {
  int* after_table = reinterpret_cast<int*>(memory) + 2 * slots;
  unsigned short* lists = reinterpret_cast<unsigned short*>(after_table + slots / 8);
  return {lists, lists + slots / 2, after_table};
}

__device__ inline void clear_columns(int4* memory, int slots, const Lanes& lanes) {
  for (int i = lanes.lane; i < slots / 4; i += lanes.count()) memory[i] = make_int4(EMPTY, EMPTY, EMPTY, EMPTY);
  __syncwarp();
}

// ----------------------------------------------------------------------------------------------------- entry points

// Add the products and the distinct columns of a sample of rows to sampled (2,).
//
// Launch: a warp per row; gridDim.x of the n_rows rows of `order`, at even distances. Shared memory: as `spgemm_hash`,
//   with a table for the largest bound.
extern "C" __global__ __launch_bounds__(32) void spgemm_sample(
    unsigned long long* __restrict__ sampled, const int* __restrict__ order, const int* __restrict__ bounds,
    const int* __restrict__ a_indptr, const int* __restrict__ a_indices, const float* __restrict__ a_data,
    const int* __restrict__ b_indptr, const int* __restrict__ b_indices, const float* __restrict__ b_data, int n_rows,
    int table_bits) {
  extern __shared__ int4 shared[];
  const Lanes lanes(5);
  const int slots = 1 << table_bits;
  const int row = order[static_cast<long long>(blockIdx.x) * n_rows / gridDim.x];
  Table table{reinterpret_cast<int*>(shared), reinterpret_cast<float*>(shared) + slots, table_bits, -1};
  clear_columns(shared, slots, lanes);
  const Operands operands{a_indices, a_data, b_indptr, b_indices, b_data};
  const int n = sum_products(operands, table, columns_at(shared, slots), lanes, a_indptr[row], a_indptr[row + 1]);
  if (lanes.lane == 0) {
    atomicAdd(sampled, static_cast<unsigned long long>(bounds[row]));
    atomicAdd(sampled + 1, static_cast<unsigned long long>(n));
  }
}

// Rows of any number of products, a warp per row. Task t has the entries first[t] … end[t]-1 of A; its results go to
// out from starts[t] on, their number to counts[t].
//
// Shapes: order (n_tasks,): the tasks; null means all. listed: null, or a pointer to the number of tasks, at most
//   n_tasks. overflow (n_overflow[0],): tasks that overflowed their table, listed in modes SINGLE and COUNT.
// Launch: `blockDim.x / 32` tasks per block. 262,144 rows of a 27-point stencil: tables of 512 slots, 8 rows per block
//   of 256 threads, 32,768 blocks.
// Shared memory: HASH_BYTES_PER_2_SLOTS / 2 * 2^table_bits bytes per row; columns and sums in random banks, lists in
//   consecutive ones.
// Traffic: reads 8 nnz(A) + 8 bytes per product (rows of B, mostly from L1 and L2), writes 8 bytes per result.
// Determinism: one writer per slot and step; sums in stored order; products are rounded before they are added.
extern "C" __global__ __launch_bounds__(HASH_THREADS, 4) void spgemm_hash(
    int* __restrict__ out_indices, float* __restrict__ out_data, int* __restrict__ counts, int* __restrict__ overflow,
    unsigned* __restrict__ n_overflow, const int* __restrict__ first, const int* __restrict__ end,
    const long long* __restrict__ starts, const int* __restrict__ order, const unsigned* __restrict__ listed,
    const int* __restrict__ a_indices, const float* __restrict__ a_data, const int* __restrict__ b_indptr,
    const int* __restrict__ b_indices, const float* __restrict__ b_data, int n_tasks, int table_bits, int mode) {
  extern __shared__ int4 shared[];
  const Lanes lanes(5);
  const int slots = 1 << table_bits, warp = threadIdx.x / 32, per_block = blockDim.x / 32;
  int4* mine = shared + warp * (HASH_BYTES_PER_2_SLOTS * slots / 32);
  Table table{reinterpret_cast<int*>(mine), reinterpret_cast<float*>(mine) + slots, table_bits, -1};
  const Columns columns = columns_at(mine, slots);
  const Operands operands{a_indices, a_data, b_indptr, b_indices, b_data};
  // Unsigned, because the last increment may exceed 2^31.
  const unsigned tasks = listed ? *listed : n_tasks, stride = gridDim.x * per_block;
  for (unsigned at = blockIdx.x * per_block + warp; at < tasks; at += stride) {
    const int task = order ? order[at] : at, entry = first[task], stop = end[task];
    const long long target = starts[task];
    int n;
    if (stop - entry == 1) {
      n = write_single(out_indices + target, out_data + target, operands, entry, lanes.lane, 32, mode != COUNT);
    } else {
      table.first_column = -1;
      clear_columns(mine, slots, lanes);
      n = sum_products(operands, table, columns, lanes, entry, stop);
      if (n > 0 && mode != COUNT) write_row(out_indices + target, out_data + target, table, columns, lanes, n);
      __syncwarp();
    }
    if (lanes.lane == 0) {
      if (n >= 0)
        counts[task] = n;
      else if (mode != FILL)
        overflow[atomicAdd(n_overflow, 1u)] = task;
    }
  }
}
