// Losses of one entry or row and their gradients by the logits, before division by the batch's weight. No kernels.
//
// `loss.cu` has the formulas and the handling of missing labels. Every form of the fused step uses these functions.
#pragma once

#include "common/common.cuh"

enum Loss { SIGMOID, SOFTMAX, SQUARED, ABSOLUTE, HUBER };  // the host reads these values from here

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

// ---- labels with weights and bounds ----
//
// Weighted targets are (R, 3 T) float32: T values, their T weights, their T bounds. T is K, or 1 for classes. A bound is 1 if
// the true value is above the given one, -1 if it is below, 0 if it is equal. All three are NaN where a label is missing.

struct Label {
  float value, weight, bound;

  __device__ __forceinline__ Label(const float* row, int k, int T)
      : value(row[k]), weight(row[T + k]), bound(row[2 * T + k]) {}
  __device__ __forceinline__ bool is_known() const { return value == value; }
};

// Weighted loss of logit z, of any kind but SOFTMAX, and its whole derivative. A value that the bound allows costs nothing.
// `parameter`: the weight of positives (SIGMOID), or the difference from which on costs grow linearly (HUBER).
__device__ __forceinline__ Cost weighted_cost(int loss, float z, Label label, float parameter) {
  if (!label.is_known()) return {0.0, 0.f};
  const float difference = z - label.value, size = fabsf(difference);
  Cost cost = {0.0, 0.f};
  if (loss == SIGMOID) {
    cost = sigmoid_cost(z, label.value, parameter);
  } else if (label.bound * difference > 0.f) {
    return cost;
  } else if (loss == SQUARED) {
    cost = {static_cast<double>(difference) * difference, 2.f * difference};
  } else if (loss == HUBER && size <= parameter) {
    cost = {0.5 * difference * difference, difference};
  } else {
    const float slope = loss == HUBER ? parameter : difference == 0.f ? 0.f : 1.f;
    cost = {slope * (size - (loss == HUBER ? 0.5 * parameter : 0.0)), copysignf(slope, difference)};
  }
  return {label.weight * cost.value, label.weight * cost.slope};
}

// A class label, -1 where it is missing, and its weight beside that of the class.
struct ClassLabel {
  int label;
  float weight;

  __device__ __forceinline__ ClassLabel(int label) : label(label), weight(1.f) {}
  __device__ __forceinline__ ClassLabel(Label of)
      : label(of.is_known() ? static_cast<int>(of.value) : -1), weight(of.weight) {}
  __device__ __forceinline__ float weight_by(const float* class_weight) const {
    return label >= 0 ? class_weight[label] * weight : 0.f;
  }
};
