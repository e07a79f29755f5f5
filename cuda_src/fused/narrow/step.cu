// The kernels of a fused step, a phase each, in the order in which they run: forward by layers, readout with loss, backward
// by layers, update with the staging of the next batch. fused/FUSED.md follows a step; what a phase does is in its header.
//
// Launch: as the headers say, one behind the other, captured into a CUDA graph of several steps. From sm_90 on a kernel
// starts while the one before still runs, and reads what is older (fused/shared/fused.cuh).
#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"
#include "fused/shared/readout.cuh"
#include "fused/shared/update.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_forward(float* y, float* u, float* moments, unsigned char* kept, const int* size, const float* x,
                  const float* y_prev, const float* moments_prev, float* stats_prev, float* running_mean_prev,
                  float* running_var_prev, const float* gamma_prev, const float* beta_prev,
                  const unsigned char* kept_prev, const int* indptr, const int* indices, const float* values,
                  const float* packed, unsigned long long seed, unsigned long long purpose, unsigned threshold,
                  float keep_scale, float epsilon_prev, float momentum_prev, int parts_prev, int x_stride, int F, int C,
                  int P, int K, int kind) {
  extern __shared__ float4 shared4[];
  const Forward phase = {y,
                         u,
                         moments,
                         kept,
                         size,
                         x,
                         y_prev,
                         moments_prev,
                         stats_prev,
                         running_mean_prev,
                         running_var_prev,
                         gamma_prev,
                         beta_prev,
                         kept_prev,
                         indptr,
                         indices,
                         values,
                         packed,
                         seed,
                         purpose,
                         threshold,
                         keep_scale,
                         epsilon_prev,
                         momentum_prev,
                         parts_prev,
                         x_stride,
                         F,
                         C,
                         P,
                         K,
                         kind};
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_readout(float* g, float* sums, double* losses, int* progress, const int* size, const float* rates,
                  const int* node_ptr, const float* y, const float* moments, float* stats, float* running_mean,
                  float* running_var, const float* gamma, const float* beta, const unsigned char* kept,
                  const float* targets, const float* loss_weight, const long long* heads, unsigned long long seed,
                  unsigned threshold, float keep_scale, float epsilon, float momentum, int parts, int graph_blocks,
                  int P, int K, int n_heads, int head_floats, int weight_floats, int kind, int loss) {
  extern __shared__ float4 shared4[];
  const Readout phase = {g,           sums,          losses,      progress,     size,        rates,     node_ptr,
                         y,           moments,       stats,       running_mean, running_var, gamma,     beta,
                         kept,        targets,       loss_weight, heads,        seed,        threshold, keep_scale,
                         epsilon,     momentum,      parts,       graph_blocks, P,           K,         n_heads,
                         head_floats, weight_floats, kind,        loss};
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_backward(float* g_prev, float* sums_prev, float* partials, const int* size, const float* y, const float* g,
                   const float* stats, const float* gamma, const float* sums, const float* u, const float* y_prev,
                   const float* stats_prev, const float* gamma_prev, const float* beta_prev,
                   const unsigned char* kept_prev, const int* t_indptr, const int* t_indices, const float* t_values,
                   const float* packed, float keep_scale, int parts, int parts_are_graphs, int dx_blocks, int dw_blocks,
                   int F, int C, int P, int K, int kind) {
  extern __shared__ float4 shared4[];
  const Backward phase = {
      g_prev, sums_prev,        partials,   size,      y,         g,        stats,     gamma,    sums,   u,
      y_prev, stats_prev,       gamma_prev, beta_prev, kept_prev, t_indptr, t_indices, t_values, packed, keep_scale,
      parts,  parts_are_graphs, dx_blocks,  dw_blocks, F,         C,        P,         K,        kind};
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    fused_update(float* parameters, float* m, float* v, float* gradients, double* norms, double* totals,
                 const double* losses, const float* weight_decay, const float* l2, const float* rates,
                 const int* progress, const long long* jobs, const int* chunks, const long long* stage, int n_chunks,
                 int n_stages, int n_losses, int mode, int sgd, float beta1, float rest1, float beta2, float rest2,
                 float epsilon, float max_norm) {
  extern __shared__ float4 shared4[];
  const Update phase = {parameters, m,        v,     gradients, norms, totals,   losses,   weight_decay, l2,
                        rates,      progress, jobs,  chunks,    stage, n_chunks, n_stages, n_losses,     mode,
                        sgd,        beta1,    rest1, beta2,     rest2, epsilon,  max_norm};
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

// The packed weights of a layer from its parameters, where these came from elsewhere than from an update; for inference
// (gamma not null) with batch norm folded into them, and its shift (P,).
// Launch: a thread per element of (K, columns_of(P)).
extern "C" __global__ void __launch_bounds__(256)
    fused_pack(float* packed, float* shift, const float* weight, const float* bias, const float* gamma,
               const float* beta, const float* running_mean, const float* running_var, float epsilon, int F, int C,
               int P, int K) {
  wait_for_previous();
  const Folding folding = {gamma, beta, running_mean, running_var, epsilon};
  const int e = blockIdx.x * blockDim.x + threadIdx.x, columns = columns_of(P);
  if (e >= K * columns) return;
  if (gamma && e < P) shift[e] = folding.shift(e);
  const int k = e / columns, p = e % columns, c = k / F;
  float value = 0.f;
  if (p < P && k < C * F) value = weight[static_cast<long long>(k % F) * C * P + c * P + p];
  if (p < P && k >= C * F && k < C * F + C) value = bias[(k - C * F) * P + p];
  packed[e] = p < P ? value * folding.slope(p) : 0.f;
}

// Staging alone: the first step of an epoch, and batches outside of one. Launch: a block per graph, as far as they go.
extern "C" __global__ void __launch_bounds__(256, 1) fused_stage(const long long* stage) {
  stage_batch(*reinterpret_cast<const Stage*>(stage), blockIdx.x, gridDim.x, wait_for_previous);
}
