// The kernels of a narrow fused step in launch order: forward layer by layer, readout, backward layer by layer, update.
// Each phase is one template over a shape (fused/narrow/shape.cuh). It has a kernel for any layer and one for layers of
// 64 columns and 1 channel without dropout. FUSED.md follows a step; each phase's header explains the phase.
//
// Launch: see the headers; a CUDA graph captures several steps. From sm_90 on, a kernel starts while the previous one still
// runs, and prefetches older data (fused/shared/fused.cuh).
//
// Waits. `wait_for_previous` once a kernel; then barriers of the block, at which all its threads arrive.
//
//   kernel                read before `wait_for_previous`       barriers of the block, in order
//   forward, first layer  nothing: the update writes batch and  the tile is filled; partial products are stored; `partial`
//                         weights                               may be overwritten
//   forward, 64x1         weights, to registers; rows of A      warps have stored their sums of moments; columns and tile are
//                                                               filled; partial products are stored; `partial` may be
//                                                               overwritten
//   readout, 64x1         weights of the outputs, sizes, rows   warps have stored their sums of moments; R is stored;
//                         of its graph                          gradients of the outputs are stored
//   backward, G_prev      weights, rows of Aᵀ, Y of the first   warps have stored their sums; columns are filled; the tile is
//                         neighbours, Y_prev                    filled; partial products are stored; `partial` may be
//                                                               overwritten
//   backward, dW'         U and Y of its tile                   warps have stored their sums; columns are filled; dY is stored
//   update                parameters, m, v, rate, gradients of  lanes of an element have stored their sums
//                         dense layers on graphs that a thread
//                         adds alone; staging: the plan, and
//                         what backward does not read
#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"
#include "fused/narrow/readout.cuh"
#include "fused/narrow/residual.cuh"
#include "fused/narrow/update.cuh"

using namespace fused;

// ---- forward ----

KERNEL_WITH_SHARED(fused_narrow_forward, NarrowForwardParams, (THREADS, 1), forward_phase<AnyShape>);
KERNEL_WITH_SHARED(fused_narrow_forward_first_64x1, NarrowForwardParams, (THREADS, 1),
                   forward_phase<FixedShape<64, 1, FIRST>>);
KERNEL_WITH_SHARED(fused_narrow_forward_64x1, NarrowForwardParams, (THREADS, 1),
                   forward_phase<FixedShape<64, 1, CONVOLUTION>>);

// ---- residual connections: between the passes of two layers, where a layer has one ----

KERNEL_WITH_SHARED(fused_narrow_residual_forward, ResidualForwardParams, (THREADS, 1), residual_forward);
KERNEL_WITH_SHARED(fused_narrow_residual_backward, ResidualBackwardParams, (THREADS, 1), residual_backward);

// ---- readout; fused/shared/readout.cu has the one for any model ----

KERNEL(fused_narrow_readout_64x1, ReadoutParams, (THREADS, 1), readout_phase_of_warps<64>);

// ---- backward ----

KERNEL_WITH_SHARED(fused_narrow_backward, NarrowBackwardParams, (THREADS, 1), backward_phase<AnyShape>);
KERNEL_WITH_SHARED(fused_narrow_backward_64x1, NarrowBackwardParams, (THREADS, 1),
                   backward_phase<FixedShape<64, 1, CONVOLUTION>>);
KERNEL_WITH_SHARED(fused_narrow_backward_first_64x1, NarrowBackwardParams, (THREADS, 1),
                   backward_phase<FixedShape<64, 1, FIRST>>);

// ---- update ----

// Blocks on a multiprocessor, as registers allow: fewer for cohorts, and on GPUs after Hopper.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int UPDATE_BLOCKS = 2;
#else
constexpr int UPDATE_BLOCKS = SHARES_LAUNCHES ? 3 : 4;
#endif

KERNEL_WITH_SHARED(fused_narrow_update, NarrowUpdateParams, (UPDATE_THREADS, UPDATE_BLOCKS), update_phase<false>);
KERNEL_WITH_SHARED(fused_narrow_update_of_many, NarrowUpdateParams, (UPDATE_THREADS, UPDATE_BLOCKS),
                   update_phase<true>);

// Pack a layer's weights after something other than an update wrote its parameters. For inference (gamma not null), fold
// batch norm into them and write its shift (P,).
//
// columns (K,): the row of W' that each packed row is, C F + C: zeros; null: the packed rows are W', then zeros.
//
// Launch: a thread per element of (K, columns_of(P)), members in z.
struct NarrowPackParams {
  float *packed, *shift;
  const int* columns;
  const float *weight, *bias, *gamma, *beta, *running_mean, *running_var;
  Members members;
  float epsilon;
  int F, C, P, K;
};

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    fused_narrow_pack(const __grid_constant__ NarrowPackParams params) {
  wait_for_previous();
  const Members& of = params.members;
  const int F = params.F, C = params.C, P = params.P;
  const Folding folding = {of.of_model_or_null(params.gamma), of.of_model(params.beta),
                           of.of_model(params.running_mean), of.of_model(params.running_var), params.epsilon};
  const int e = blockIdx.x * blockDim.x + threadIdx.x, columns = columns_of(P);
  if (e >= params.K * columns) return;
  if (params.gamma && e < P) of.of_model(params.shift)[e] = folding.shift(e);
  const int place = e / columns, p = e % columns, k = params.columns ? params.columns[place] : place, c = k / F;
  float value = 0.f;
  if (p < P && k < C * F) value = of.of_model(params.weight)[static_cast<long long>(k % F) * C * P + c * P + p];
  if (p < P && k >= C * F && k < C * F + C) value = of.of_model(params.bias)[(k - C * F) * P + p];
  of.of_step(params.packed)[e] = p < P ? value * folding.slope(p) : 0.f;
}
