// Rows that ranks exchange after the product with the transpose of their part of one large graph's adjacency: `halo_add`
// adds what a rank sent for some rows.
//
// Source: own. Shapes: x (n, P), share (n_rows, P) float32; rows int32 (n_rows,), none twice in one launch.
// Launch: `row_tiles` over the n_rows: four columns a thread. Shared memory: none. Bank conflicts: none.
// Bytes: reads 8 n_rows P + 4 n_rows, writes 4 n_rows P.
// Determinism: repeats to the bit; the host launches `halo_add` rank by rank, in order.

#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    halo_add(float* x, const float* __restrict__ share, const int* __restrict__ rows, int n_rows, int P) {
  const int i = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= n_rows || p >= P) return;
  const long long from = static_cast<long long>(i) * P + p, to = static_cast<long long>(rows[i]) * P + p;
  const float4 a = load4(x + to, P - p, is_aligned(x, P)), b = load4(share + from, P - p, is_aligned(share, P));
  store4(x + to, make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w), P - p, is_aligned(x, P));
}
