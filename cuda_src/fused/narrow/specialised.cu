// The kernels of fused/narrow/step.cu once more for the usual layers: one channel, USUAL columns, no dropout. The compiler knows the
// sizes and leaves out what they do not need; what a phase does is in its header, arguments are those of fused/narrow/step.cu. The
// readout is another one (fused/narrow/specialised_readout.cuh).
#include "fused/narrow/backward.cuh"
#include "fused/narrow/forward.cuh"
#include "fused/narrow/specialised_readout.cuh"

using namespace fused;

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_forward_first(float* y, float* u, float* moments, unsigned char* kept, const int* size, const float* x,
                        const float* y_prev, const float* moments_prev, float* stats_prev, float* running_mean_prev,
                        float* running_var_prev, const float* gamma_prev, const float* beta_prev,
                        const unsigned char* kept_prev, const int* indptr, const int* indices, const float* values,
                        const float* packed, unsigned long long seed, unsigned long long purpose, unsigned threshold,
                        float keep_scale, float epsilon_prev, float momentum_prev, int parts_prev, int x_stride, int F,
                        int C, int P, int K, int kind) {
  extern __shared__ float4 shared4[];
  Forward phase = {y,
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
  phase.C = 1, phase.P = USUAL, phase.kept = nullptr, phase.kept_prev = nullptr, phase.keep_scale = 1.f;
  phase.kind = 0;
  __builtin_assume(phase.K <= Weights<3>::CHUNK);
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_forward_usual(float* y, float* u, float* moments, unsigned char* kept, const int* size, const float* x,
                        const float* y_prev, const float* moments_prev, float* stats_prev, float* running_mean_prev,
                        float* running_var_prev, const float* gamma_prev, const float* beta_prev,
                        const unsigned char* kept_prev, const int* indptr, const int* indices, const float* values,
                        const float* packed, unsigned long long seed, unsigned long long purpose, unsigned threshold,
                        float keep_scale, float epsilon_prev, float momentum_prev, int parts_prev, int x_stride, int F,
                        int C, int P, int K, int kind) {
  extern __shared__ float4 shared4[];
  Forward phase = {y,
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
  phase.C = 1, phase.P = USUAL, phase.kept = nullptr, phase.kept_prev = nullptr, phase.keep_scale = 1.f;
  phase.kind = 1, phase.F = USUAL, phase.K = USUAL + 8;
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_readout_usual(float* g, float* sums, double* losses, int* progress, const int* size, const float* rates,
                        const int* node_ptr, const float* y, const float* moments, float* stats, float* running_mean,
                        float* running_var, const float* gamma, const float* beta, const float* targets,
                        const float* loss_weight, const long long* heads, float epsilon, float momentum, int parts,
                        int K, int kind, int loss) {
  const UsualReadout phase = {g,       sums,    losses,       progress,    size,  rates, node_ptr, y,
                              moments, stats,   running_mean, running_var, gamma, beta,  targets,  loss_weight,
                              heads,   epsilon, momentum,     parts,       K,     kind,  loss};
  phase.run(blockIdx.x, gridDim.x, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_backward_usual(float* g_prev, float* sums_prev, float* partials, const int* size, const float* y,
                         const float* g, const float* stats, const float* gamma, const float* sums, const float* u,
                         const float* y_prev, const float* stats_prev, const float* gamma_prev, const float* beta_prev,
                         const unsigned char* kept_prev, const int* t_indptr, const int* t_indices,
                         const float* t_values, const float* packed, float keep_scale, int parts, int parts_are_graphs,
                         int dx_blocks, int dw_blocks, int F, int C, int P, int K, int kind) {
  extern __shared__ float4 shared4[];
  Backward phase = {
      g_prev, sums_prev,        partials,   size,      y,         g,        stats,     gamma,    sums,   u,
      y_prev, stats_prev,       gamma_prev, beta_prev, kept_prev, t_indptr, t_indices, t_values, packed, keep_scale,
      parts,  parts_are_graphs, dx_blocks,  dw_blocks, F,         C,        P,         K,        kind};
  phase.C = 1, phase.P = USUAL, phase.kept_prev = nullptr, phase.keep_scale = 1.f;
  phase.kind = 1, phase.F = USUAL, phase.K = USUAL + 8;
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    fused_backward_first(float* g_prev, float* sums_prev, float* partials, const int* size, const float* y,
                         const float* g, const float* stats, const float* gamma, const float* sums, const float* u,
                         const float* y_prev, const float* stats_prev, const float* gamma_prev, const float* beta_prev,
                         const unsigned char* kept_prev, const int* t_indptr, const int* t_indices,
                         const float* t_values, const float* packed, float keep_scale, int parts, int parts_are_graphs,
                         int dx_blocks, int dw_blocks, int F, int C, int P, int K, int kind) {
  extern __shared__ float4 shared4[];
  Backward phase = {
      g_prev, sums_prev,        partials,   size,      y,         g,        stats,     gamma,    sums,   u,
      y_prev, stats_prev,       gamma_prev, beta_prev, kept_prev, t_indptr, t_indices, t_values, packed, keep_scale,
      parts,  parts_are_graphs, dx_blocks,  dw_blocks, F,         C,        P,         K,        kind};
  phase.C = 1, phase.P = USUAL, phase.kept_prev = nullptr, phase.keep_scale = 1.f;
  phase.kind = 0, phase.dx_blocks = 0, phase.F = 0;
  phase.run(blockIdx.x, gridDim.x, shared4, wait_for_previous);
}
