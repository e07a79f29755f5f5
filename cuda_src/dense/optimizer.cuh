// The update of one parameter by Adam or SGD, and the factor that clips gradients. No kernels.
//
// `optimizer.cu` has the formulas and their sources. Every form of the fused step uses these functions.
#pragma once

#include "common/common.cuh"

// Numbers that change from step to step. The fused steps have an array of them, (steps, 4), for an epoch.
struct __align__(16) Rate {
  float learning_rate, correction1, correction2;  // of Adam: 1 / (1 - beta^step)
  float label_weight;                             // of the step's batch; the loss divides by it
};

// Settings of an optimiser. SGD uses only beta1, its momentum.
struct Rule {
  int sgd;
  float beta1, rest1, beta2, rest2, epsilon;  // rest = 1 - beta, which the host computes in float64

  // Return the new value of parameter p and update m and v (SGD: only m). The fused multiply-adds are explicit:
  // otherwise the compiler would choose them per kernel that inlines this, and kernels would differ in the last bit.
  __device__ __forceinline__ float apply(float p, float gradient, float& m, float& v, float decay, float penalty,
                                         const Rate& rate) const {
    const float g = fmaf(penalty, p, gradient);
    m = fmaf(beta1, m, sgd ? g : rest1 * g);
    float update = m;
    if (!sgd) {
      v = fmaf(beta2, v, rest2 * (g * g));
      update = m * rate.correction1 / (sqrtf(v * rate.correction2) + epsilon);
    }
    return fmaf(-rate.learning_rate, fmaf(decay, p, update), p);
  }
};

// The factor that scales gradients of Euclidean norm `norm` down to `max_norm`.
__device__ __forceinline__ float clip_factor(double norm, float max_norm) {
  return norm > max_norm ? static_cast<float>(max_norm / norm) : 1.f;
}
