// Losses of one entry or row and their gradients by the logits, before division by the batch's weight. No kernels.
//
// `loss.cu` has the formulas and the handling of missing labels. Every form of the fused step uses these functions.
#pragma once

#include "common/common.cuh"

// The loss of an entry and its derivative by the logit.
struct Cost {
  double value;
  float slope;
};

// Sigmoid cross-entropy of logit z and label y. It computes only exp(-|z|), which cannot overflow.
__device__ __forceinline__ Cost sigmoid_cost(float z, float y, float pos_weight) {
  const float decay = expf(-fabsf(z)), tail = log1pf(decay);
  const float larger = 1.f / (1.f + decay), smaller = decay * larger;  // sigmoid(|z|), sigmoid(-|z|)
  const float positives = pos_weight * y, negatives = 1.f - y;
  return {positives * (fmaxf(-z, 0.f) + tail) + negatives * (fmaxf(z, 0.f) + tail),
          negatives * (z >= 0.f ? larger : smaller) - positives * (z >= 0.f ? smaller : larger)};
}

// Squared error of a difference. The slope lacks the factor 2, which is in the scale of the gradient.
__device__ __forceinline__ Cost squared_cost(float difference) {
  return {static_cast<double>(difference) * difference, difference};
}

// Softmax of a row of logits.
struct Softmax {
  float peak, norm;  // the largest logit; the sum of all terms

  __device__ __forceinline__ float term(float z) const { return expf(z - peak); }
  // Cross-entropy of a row whose label has logit z.
  __device__ __forceinline__ float cost(float z) const { return logf(norm) - (z - peak); }
};

// Derivative of the cross-entropy by the logit of `term`; `inverse` is 1 / norm.
__device__ __forceinline__ float softmax_slope(float term, float inverse, bool is_label) {
  return term * inverse - (is_label ? 1.f : 0.f);
}
