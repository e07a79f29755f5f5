// The layers of the wide form: about 128 columns and more, where products take most of the time.
//
// fused/shared/fused.cuh has the formulas of a layer, fused/FUSED.md the step. A layer is two kernels forward and three
// backward:
//
//   fused_wide_propagate            U = [A_1 Z | … | A_C Z | a | 0], with Z recomputed from the Y of the layer before
//   fused_wide_product_…            Y = U W', and the moments of its columns: the layer's batch norm
//   fused_wide_propagate_backward   dY from G through batch norm, and V = A_cᵀ dY, channels side by side
//   fused_wide_product_dx_…         dZ = V Wᵀ, G = dZ through dropout and ReLU, and the sums for batch norm's gradient
//   fused_wide_product_dw_…         dW' = Uᵀ dY, in partial sums over rows
//
// G is the gradient by ReLU's input, i.e. by batch norm's output. Products have two precisions: `tf32`, and `3xtf32`, which
// keeps float32's accuracy (fused/wide/gemm.cuh).
//
// Shapes: y, g (N, P), weight (F, C P), bias (C P,), float32, row-major without gaps; u, v, dy_t and the packed weights
//   are panels (fused/wide/gemm.cuh). N = size[BatchSize::N] is known on the device only; grids cover a capacity, and blocks beyond N
//   leave. stats (2, P): mean and 1 / sqrt(var + epsilon); sums (2, P): dbeta = Σ g and dgamma = Σ g x̂. Both are null
//   without batch norm. gamma, beta (P,). In predictions stats and gamma are null, and beta is the shift (`Folding`). kept: a
//   bit per element, eight to a byte, or null without dropout; keep_scale = 1 / (1 - rate). round: whether panels are for
//   TF32; else the residuals follow those of operand B.
// Launch: the kernels of predictions (propagate, product, weights) have members in the grid's third dimension.
// Order: size, weights and adjacency are read before the previous kernel has ended: an earlier one wrote them.
// Determinism: bit-repeatable; every sum has a fixed order; the last block reduces the partial sums.
// Requires: sm_90a for the products (elsewhere they are empty). Any N, F, C, P; no work is wasted where N is a multiple of
//   128 and F and P are multiples of 64. NaN propagates; in 3xTF32 an infinity becomes NaN.

#include "fused/wide/layers.cuh"

using namespace fused;

namespace {

template <int PRODUCTS>
__device__ __forceinline__ void product_of_member(const ProductParams& params) {
  product<PRODUCTS>(params.of_member());
}

}  // namespace

// ---- entry points ----

// U[i, c F + f] = Σ values[k] Z[j, f] over the entries k of row i with indices[k] = j C + c;  U[i, C F + c] = Σ values[k];
// 0 beyond.  Z = kept ? keep_scale max((y - mean) slope + beta, 0) : 0. `identity`, for dense layers: U = [Z | 1 | 0], no
// adjacency. The U of the first layer is staged instead (fused/shared/stage.cuh).
//
// Source: own; blockDim.x lanes gather one sparse row and channel, four columns each (one where F is no multiple of 4).
// Shapes: see PropagateParams.
// Launch: blocks (x lanes, 256 / x rows and channels), grid (rows C / y, lanes / x). 1850 x 512: 128 x 2, grid (928, 1).
// Traffic: reads 4 F for each entry (from L1 where nearby rows share it), writes 4 N K.
// Order: the first entries of a row are read before the previous kernel has ended.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
    fused_wide_propagate(const __grid_constant__ PropagateParams params) {
  if (params.F % 4 == 0) {
    propagate<4>(params);
  } else {
    propagate<1>(params);
  }
}

// dY = slope (G - dbeta / N - x̂ dgamma / N), written as the panels of its transpose;  V[i, c P + p] = Σ t_values[k]
// dY[t_indices[k], p] over the entries k of row i C + c of the transposed adjacency, or dY itself if `identity`. v null:
// only dY (first layer). sums (2, P) = dbeta, dgamma, reduced from partial sums: one for each 128 rows, or, if
// graphs_per_partial is not 0, one for so many graphs, at most max_partials. stats null: no batch norm, dY = G.
//
// Source: own; as fused_wide_propagate. dY of a neighbour is recomputed from its y and g, so V does not wait for dY.
// Shapes: see PropagateBackwardParams.
// Launch: 256 threads for 32 rows and columns, grid (rows / 32, P / 32). 1850 x 512: (58, 16).
// Shared memory: 7 KB, static; 4 KB of it to write whole lines of the transpose; no bank conflicts.
// Traffic: reads 8 P for each entry and row, writes 4 N P (C + 1), in 3xTF32 (C + 2).
// Waits: __syncthreads when the sums of groups are stored, when columns are set, and when the tile of dY is complete. Before
//   the previous kernel has ended, the first entries of rows are read.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
    fused_wide_propagate_backward(const __grid_constant__ PropagateBackwardParams params) {
  if (params.P % 4 == 0) {
    propagate_backward<4>(params);
  } else {
    propagate_backward<1>(params);
  }
}

// Y (N, P) = U (N, K) W' (K, P). If stats is not null, also the moments of its columns: stats = mean, 1 / sqrt(var +
// epsilon); running = (1 - momentum) running + momentum batch, with the unbiased variance (N = 1: the biased one).
// fresh: the previous kernel may have written the batch and the weights, so the kernel waits for it first.
//
// Source: own; moments are combined as in dense/batch_norm.cu.
// Launch: 288 threads, grid (P / 64, rows / 128). 1850 x 512: (8, 15).
// Shared memory: dynamic, at least 40 KB: as many stages as fit, of 24 KB, in 3xTF32 32 KB; no bank conflicts.
// Traffic: reads 4 N K for each 64 columns and 4 K P for each 128 rows (from L2), writes 4 N P.
// Waits: as fused/wide/gemm.cuh, and __syncthreads around the reductions. A counter for each 64 columns counts tiles; no
//   block waits for it: the last one reduces the moments of all tiles and resets it.
KERNEL(fused_wide_product_tf32, ProductParams, (GEMM_THREADS, 1), product_of_member<1>);
KERNEL(fused_wide_product_3xtf32, ProductParams, (GEMM_THREADS, 1), product_of_member<3>);

// G_prev (N, F) = kept and z > 0 ? keep_scale dZ : 0 with dZ = V (N, C P) Wᵀ and z = (y_prev - mean) slope + beta, all
// of the layer before. If sums_prev is not null: Σ G_prev and Σ G_prev x̂ of its columns for each 128 rows.
//
// Source: own.
// Launch, shared memory: as fused_wide_product with F for P. 1850 x 512 x 512: grid (8, 15).
// Traffic: reads 4 N C P for each 64 columns, 4 F C P for each 128 rows, 4 N F; writes 4 N F.
KERNEL(fused_wide_product_dx_tf32, ProductDxParams, (GEMM_THREADS, 2), product_dx<1>);
KERNEL(fused_wide_product_dx_3xtf32, ProductDxParams, (GEMM_THREADS, 1), product_dx<3>);

// partials[s] (K, P) = Uᵀ dY over the rows of split s < gridDim.z, or zeros if it has none. The update adds them.
//
// early: the previous kernel wrote neither U nor dY and runs beside this one, which waits for it at the end.
//
// Source: own. Rows are split because 512 x 512 sums are too few tiles for all multiprocessors.
// Launch: 288 threads, grid (P / 64, K / 128, splits). 1850 x 520 x 512: (8, 5, 3).
// Shared memory: as fused_wide_product.
// Traffic: reads 4 N K for each 64 columns and 4 N P for each 128 of K, writes 4 K P splits.
KERNEL(fused_wide_product_dw_tf32, ProductDwParams, (GEMM_THREADS, 1), product_dw<1>);
KERNEL(fused_wide_product_dw_3xtf32, ProductDwParams, (GEMM_THREADS, 1), product_dw<3>);

// Write the weights in the two forms that the products read: `forward`, panels of the transpose of W' (P rows, C F + C
// columns); `backward`, panels of W (F rows, the columns of each channel filled up to whole panels). In training the update
// writes both, too. `round`: to TF32. For inference gamma is not null, backward is null, and batch norm is folded into the
// weights and the shift (P,).
//
// Launch: 32 x 8 threads, grid ((C F + C) / 32, P / 32). Traffic: reads 4 K P, writes 8 K P.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    fused_wide_weights(const __grid_constant__ WeightPanelsParams params) {
  wait_for_previous();
  pack(params.of_member());
}
