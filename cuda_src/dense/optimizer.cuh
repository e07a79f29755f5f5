// The update of one parameter by Adam or SGD, and the factor that clips gradients. No kernels.
//
// `optimizer.cu` has the formulas and their sources; every form of the fused step uses the same functions.
#pragma once

#include "common/common.cuh"

// What changes from step to step. The fused steps keep one per step of an epoch, (steps, 4).
struct __align__(16) Rate {
  float learning_rate, correction1, correction2;  // of Adam: 1 / (1 - beta^step)
  float label_weight;                             // of the step's batch; the loss divides by it
};

// The numbers of an optimiser; SGD needs beta1, its momentum, alone.
struct Rule {
  int sgd;
  float beta1, rest1, beta2, rest2, epsilon;  // rest = 1 - beta, which the host computes in float64

  // Return the new value of a parameter p; m and v become new, too. SGD leaves v alone. Fused multiply-adds are written out:
  // otherwise the compiler chooses which product of a sum it rounds, and kernels that inline this differ in the last bit.
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

// The factor that shortens gradients of Euclidean norm `norm` to `max_norm`.
__device__ __forceinline__ float clip_factor(double norm, float max_norm) {
  return norm > max_norm ? static_cast<float>(max_norm / norm) : 1.f;
}
