// The loss of one graph, computed by one warp; all readouts of training use it.
#pragma once

#include "dense/loss.cuh"
#include "fused/shared/fused.cuh"

namespace fused {

// Factor of the gradient of a squared or sigmoid loss; `label_weight` is the number of labels in the batch.
__device__ __forceinline__ float gradient_scale(int loss, float label_weight) {
  return (loss == SIGMOID ? 1.f : 2.f) / fmaxf(label_weight, 1.f);
}

// As `loss_of_graph` for a row of classes.
__device__ __forceinline__ double softmax_loss_of_graph(float* gradient, const float* logits, ClassLabel target,
                                                        const float* loss_weight, int K, float label_weight) {
  const int lane = threadIdx.x % 32, label = target.label;
  Softmax row = {-__int_as_float(0x7f800000), 0.f};
#pragma unroll 1
  for (int k = lane; k < K; k += 32) row.peak = fmaxf(row.peak, logits[k]);
  row.peak = warp_max(row.peak);
#pragma unroll 1
  for (int k = lane; k < K; k += 32) row.norm += row.term(logits[k]);
  row.norm = warp_sum(row.norm);
  const float own = target.weight_by(loss_weight), scale = label_weight > 0.f ? own / label_weight : 0.f;
  const float inverse = 1.f / row.norm;
#pragma unroll 1
  for (int k = lane; k < K; k += 32) {
    const float slope = softmax_slope(row.term(logits[k]), inverse, k == label);
    gradient[k] = label >= 0 ? scale * slope : 0.f;
  }
  return label >= 0 ? static_cast<double>(own) * row.cost(logits[label]) : 0.0;
}

// Replace logits (K,) by their gradient and return the graph's loss in all lanes; one warp calls.
//
// targets (K,), NaN where a label is missing, or for SOFTMAX (1,) int, -1 where it is missing; loss_weight (K,).
__device__ __forceinline__ double loss_of_graph(float* gradient, const float* logits, const float* targets,
                                                const float* loss_weight, int K, int loss, float label_weight) {
  const int lane = threadIdx.x % 32;
  double sum = 0.0;
  if (loss == SOFTMAX) {
    const ClassLabel target(reinterpret_cast<const int*>(targets)[0]);
    return softmax_loss_of_graph(gradient, logits, target, loss_weight, K, label_weight);
  }
  const float scale = gradient_scale(loss, label_weight);
#pragma unroll 1
  for (int k = lane; k < K; k += 32) {
    const float y = targets[k], z = logits[k];
    const bool labelled = y == y;
    Cost cost = squared_cost(labelled ? z - y : 0.f);
    if (loss == SIGMOID) cost = sigmoid_cost(z, labelled ? y : 0.f, loss_weight[k]);
    gradient[k] = labelled ? cost.slope * scale : 0.f;
    sum += labelled ? cost.value : 0.0;
  }
  return warp_sum(sum);
}

// As `loss_of_graph` of a row of weighted targets (dense/loss.cuh).
__device__ __forceinline__ double weighted_loss_of_graph(float* gradient, const float* logits, const float* targets,
                                                         const float* loss_weight, int K, int loss,
                                                         float label_weight) {
  if (loss == SOFTMAX)
    return softmax_loss_of_graph(gradient, logits, ClassLabel(Label(targets, 0, 1)), loss_weight, K, label_weight);
  const float scale = label_weight > 0.f ? 1.f / label_weight : 0.f;
  double sum = 0.0;
#pragma unroll 1
  for (int k = threadIdx.x % 32; k < K; k += 32) {
    const Cost cost = weighted_cost(loss, logits[k], Label(targets, k, K), loss_weight[k]);
    gradient[k] = cost.slope * scale;
    sum += cost.value;
  }
  return warp_sum(sum);
}

}  // namespace fused
