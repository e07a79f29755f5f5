// What a step with wide layers has beside their products (fused/wide/layers.cu): dropout's bits, readout, update. fused/FUSED.md
// follows the step.
#include "fused/wide/readout.cuh"
#include "fused/wide/update.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTERS_OF_8 __cluster_dims__(8, 1, 1)
#else
#define CLUSTERS_OF_8
#endif

using namespace fused;

// The dropout bits of all layers of a step. layers (gridDim.y, 3): bits, key of the masks, columns.
//
// Launch: 256 threads, grid (blocks, layers); a thread draws eight elements at a time. Traffic: writes N P / 8 a layer.
extern "C" __global__ void __launch_bounds__(256)
    fused_wide_draw(const long long* layers, const int* size, unsigned long long seed, unsigned threshold) {
  const long long* layer = layers + 3 * blockIdx.y;
  const long long elements = layer[2] * size[0];
  wait_for_previous();
  draw_kept(blockIdx.x, gridDim.x, reinterpret_cast<unsigned char*>(layer[0]), size, seed, layer[1], threshold,
            elements);
}

extern "C" __global__ void __launch_bounds__(512, 1) CLUSTERS_OF_8
    fused_wide_readout(float* logits, float* g, float* sums, double* losses, float* input, float* gradient,
                       int* progress, const int* size, const float* rates, const int* node_ptr, const float* y,
                       const float* stats, const float* gamma, const float* beta, const unsigned char* kept,
                       const float* targets, const float* loss_weight, const float* weight, const float* bias,
                       float keep_scale, int P, int K, int kind, int loss, int training) {
  extern __shared__ float4 shared4[];
  const WideReadout phase = {logits,   g,           reinterpret_cast<float2*>(sums),
                             losses,   input,       gradient,
                             progress, size,        rates,
                             node_ptr, y,           stats,
                             gamma,    beta,        kept,
                             targets,  loss_weight, weight,
                             bias,     keep_scale,  P,
                             K,        kind,        loss,
                             training};
  if constexpr (HAS_CLUSTERS) phase.run(reinterpret_cast<float*>(shared4));
}

extern "C" __global__ void __launch_bounds__(256, 4)
    fused_wide_update(float* parameters, float* m, float* v, float* gradients, double* norms, double* totals,
                      const double* losses, const float* weight_decay, const float* l2, const float* rates,
                      const int* progress, const long long* jobs, const int* chunks, const Stage* stage, int n_chunks,
                      int n_stages, int n_losses, int mode, int sgd, float beta1, float rest1, float beta2, float rest2,
                      float epsilon, float max_norm) {
  __shared__ float tile[2 * PANEL][WideUpdate<WideJob>::LD];
  const Rule rule = {sgd, beta1, rest1, beta2, rest2, epsilon};
  const WideUpdate<WideJob> phase = {
      parameters,   m,        v,        gradients, norms, totals,  losses,
      weight_decay, l2,       rates,    progress,  jobs,  chunks,  reinterpret_cast<const long long*>(stage),
      n_chunks,     n_stages, n_losses, mode,      rule,  max_norm};
  phase.run(tile, {nullptr});
}
