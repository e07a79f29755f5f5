// Parts that the updates of all forms share: clipping, and the loss of the epoch.
#pragma once

#include "dense/optimizer.cuh"
#include "fused/shared/fused.cuh"

namespace fused {

constexpr int UPDATE_THREADS = 256;

// `mode` of an update: gradients and update in one launch; only gradients and partial sums of their squared norm; only the
// update, from these.
enum UpdateMode { UPDATE, ONLY_GRADIENTS, APPLY };

// Arguments that the updates of all forms share; each form adds its jobs and the staging of the next batch.
struct UpdateParams {
  float *parameters, *m, *v, *gradients;  // flat, (n,)
  double *norms, *totals;          // (n_chunks,), squared norms; (2,), the epoch's loss and label weight, or null
  const double* losses;            // (n_losses,)
  const float *weight_decay, *l2;  // (n,); null where nothing decays, if the form allows it
  const Rate* rates;               // (steps,)
  const int* progress;
  const void* chunks;  // (n_chunks,): the part of a job that a block updates, as each form has it
  const MemberValues* values;
  Members members;
  int n_chunks, n_stages, n_losses, mode, sgd;
  float beta1, rest1, beta2, rest2, epsilon;

  __device__ __forceinline__ Rule rule() const { return {sgd, beta1, rest1, beta2, rest2, epsilon}; }
};

// The factor that clips gradients whose squared norm is the sum of `norms` (n,); all UPDATE_THREADS threads call.
__device__ __forceinline__ float clip_factor(const double* norms, int n, float max_norm) {
  double squares = 0.0;
  for (int b = threadIdx.x; b < n; b += UPDATE_THREADS) squares += norms[b];
  return ::clip_factor(sqrt(block_sum(squares)), max_norm);
}

// Add a step's losses (n_losses,) and the weight of its labels to the epoch's totals (2,); one warp calls.
__device__ __forceinline__ void add_totals(double* totals, const double* losses, int n_losses, float weight) {
  double sum = 0.0;
  for (int b = threadIdx.x; b < n_losses; b += 32) sum += losses[b];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) totals[0] += static_cast<float>(sum), totals[1] += weight;
}

}  // namespace fused
