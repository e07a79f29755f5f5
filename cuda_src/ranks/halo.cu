// Rows that ranks exchange before a product of their part of one large graph: dense ones, scaled by the sender, and
// compressed ones (spmm/compressed.cu), without the unused end of their memory: about 160 bytes of 576 for a quarter of 128
// elements, where dense rows have 512.
//
// Source: own. Shapes: x (n, P) float32 and compressed rows (n, ROW_BYTES) bytes of own nodes; sent (n_sent,) int32, the rows
//   to send, rank by rank. Packed rows lie one after the other, each in whole sectors of 32 bytes; places (n_sent + 1,)
//   int32 are the first sector of each, and their number. A rank learns how much it receives from the `ends` of all ranks,
//   (ranks + 1,): the places of the first row for each rank. Received places count the sender's sectors; `halo_shift` makes
//   them count the receiver's.
// Determinism: copies, and sums of integers.
#include "common/scan.cuh"
#include "spmm/compressed.cuh"

constexpr int PACKED_ROWS = 128;    // of a block
constexpr int LANES_OF_A_ROW = 16;  // copy it, 16 bytes each

// y[i, :] = scale[sent[i]] * x[sent[i], :]; rows of x and y begin `x_stride` and `stride` floats apart. Without `scale`, 1;
// without `sent`, all rows.
// Launch: `row_tiles` over the n_sent rows: four columns a thread. Shared memory: none. Bank conflicts: none.
// Traffic: reads 4 n_sent (P + 2) bytes, writes 4 n_sent P.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void halo_take(float* __restrict__ y,
                                                                      const float* __restrict__ x,
                                                                      const float* __restrict__ scale,
                                                                      const int* __restrict__ sent, int n_sent, int P,
                                                                      int x_stride, int stride) {
  const int i = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= n_sent || p >= P) return;
  const int row = sent ? __ldg(sent + i) : i;
  const float by = scale ? __ldg(scale + row) : 1.0f;
  const float4 v = load4(x + static_cast<long long>(row) * x_stride + p, P - p, is_aligned(x, x_stride));
  store4(y + static_cast<long long>(i) * stride + p, make_float4(by * v.x, by * v.y, by * v.z, by * v.w), stride - p,
         is_aligned(y, stride));
}

// Pack rows, and find their places. Of rows that reach beyond `capacity` sectors, only the places are written. `states` and
// `ticket` are 0 before.
// Launch: a block of 256 threads per 128 rows, at least one. 1,193,287 rows: 9,323 blocks.
// Shared memory: 1.5 KB. Bank conflicts: none that matter. Traffic: reads 4 n_sent bytes and the sectors, writes the same.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void halo_pack(
    unsigned char* __restrict__ packed, int* __restrict__ places, unsigned long long* __restrict__ states,
    unsigned* __restrict__ ticket, const unsigned char* __restrict__ rows, const int* __restrict__ sent, int n_sent,
    int capacity) {
  __shared__ int row_of[PACKED_ROWS], place_of[PACKED_ROWS], sectors_in[PACKED_ROWS];
  const int tile = next_tile(ticket), i = tile * PACKED_ROWS + threadIdx.x;
  const bool is_row = threadIdx.x < PACKED_ROWS && i < n_sent;
  const int row = is_row ? __ldg(sent + i) : 0;
  const int sectors = is_row ? sectors_of(rows + static_cast<long long>(row) * ROW_BYTES) : 0;
  int total;
  const int before = block_prefix(sectors, total);
  const int place = static_cast<int>(tile_prefix(states, tile, total)) + before;
  if (threadIdx.x < PACKED_ROWS)
    row_of[threadIdx.x] = row, place_of[threadIdx.x] = place, sectors_in[threadIdx.x] = sectors;
  if (threadIdx.x < PACKED_ROWS && i <= n_sent) places[i] = place;  // after the last row, `sectors` is 0
  __syncthreads();
  for (int r = threadIdx.x / LANES_OF_A_ROW; r < PACKED_ROWS; r += SCAN_THREADS / LANES_OF_A_ROW) {
    if (place_of[r] + sectors_in[r] > capacity) continue;
    const uint4* from = reinterpret_cast<const uint4*>(rows + static_cast<long long>(row_of[r]) * ROW_BYTES);
    uint4* to = reinterpret_cast<uint4*>(packed + static_cast<long long>(place_of[r]) * SECTOR);
    for (int k = threadIdx.x % LANES_OF_A_ROW; k < sectors_in[r] * (SECTOR / 16); k += LANES_OF_A_ROW)
      to[k] = __ldg(from + k);
  }
}

// ends[r] = places[firsts[r]]. Launch: `elementwise`.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void halo_ends(int* __restrict__ ends,
                                                                      const int* __restrict__ places,
                                                                      const int* __restrict__ firsts, int n) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < n) ends[r] = places[firsts[r]];
}

// places[i] += by. Launch: `elementwise`. Traffic: reads and writes 4 n bytes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void halo_shift(int* __restrict__ places, int by, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) places[i] += by;
}
