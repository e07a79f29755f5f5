// Losses with missing labels: masked sigmoid cross-entropy, softmax cross-entropy, mean squared error.
//
// Outputs: total (1,), the sum of the costs; weight (1,), the number of labelled entries or the sum of the labelled
// rows' weights; dlogits (R, K), the gradient of total / weight by the logits. If the weight is 0, all three are 0.
// total and weight are also added to totals (2,) float64, unless that is null.
//   sigmoid   pos_weight y softplus(-z) + (1 - y) softplus(z), with softplus(z) = max(z, 0) + log(1 + exp(-|z|))
//   softmax   class_weight[y] (log(sum of exp(z - max)) - (z[y] - max))
//   squared   (z - y)²
// The weighted losses (dense/loss.cuh) multiply each cost and count by the label's own weight; a regression that its bound
// allows costs nothing.
//   absolute  |z - y|
//   huber     (z - y)² / 2 where |z - y| <= delta, else delta (|z - y| - delta / 2)
//
// Shapes: logits, dlogits (R, K) float32; y (R, K) float32 with NaN = missing, for softmax (R,) int32 with -1 =
//   missing; pos_weight, class_weight (K,) float32. Weighted targets: (R, 3 K), for softmax (R, 3), float32.
// Launches: the gradient needs the weight first. For up to 16,384 entries, one block computes both (one launch with
//   grid (1)). For more, `label_count`, `label_weight` or `weighted_label_weight` computes the weight in a
//   launch before.
//   Example: 50 x 12 entries: one block of 608 threads; 232,965 rows of 41 classes: groups of 8 lanes, 1,056 blocks of
//   256 threads that stride over the rows.
// In softmax, `lanes` neighbouring lanes, a power of two up to 32, share a row. On an H200, 2,449,029 rows of 47 classes
//   took 0.62 ms with 8 lanes, 1.23 with 32, 0.80 with 16, 1.17 with 4.
// Shared memory: 256 bytes, static. Bank conflicts: none.
// Bytes: reads labels and logits, writes dlogits, 4 R K each; softmax reads the logits two more times, from cache.
// Determinism: repeats to the bit; total and weight are float64 sums in fixed order (common/common.cuh), rounded once.
// Requires: labels in range (checked when a data set is read); blocks of whole warps; `partials` of a double per block.

#include "dense/loss.cuh"

namespace {

constexpr int LOSS_THREADS = 1024;  // at most, of a block that computes a loss alone

// Sum over all threads of the grid. Returns true in thread 0 of the block that finishes last, which has the sum.
__device__ inline bool grid_sum(double& value, double* partials, unsigned* counter) {
  value = block_sum(value);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) partials[blockIdx.x] = value;
    if (!is_last_block(counter, gridDim.x)) return false;
    value = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) value += __ldcg(partials + i);
    value = block_sum(value);
  }
  return threadIdx.x == 0;
}

__device__ inline long long first_element() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline long long stride() { return static_cast<long long>(gridDim.x) * blockDim.x; }

// This thread's share of the number of labelled entries.
__device__ inline double count_labels(const float* y, long long n) {
  int count = 0;
  for (long long i = first_element(); i < n; i += stride()) count += y[i] == y[i];
  return count;
}

// Labels of rows of classes, plain ones and weighted ones.
__device__ inline ClassLabel label_of(const int* y, long long r) { return ClassLabel(y[r]); }
__device__ inline ClassLabel label_of(const float* y, long long r) { return ClassLabel(Label(y + 3 * r, 0, 1)); }

// This thread's share of the labelled rows' weights.
template <class Y>
__device__ inline double weigh_labels(const Y* y, const float* class_weight, int R) {
  double weight = 0.0;
  for (long long r = first_element(); r < R; r += stride()) {
    const ClassLabel label = label_of(y, r);
    if (label.label >= 0) weight += label.weight_by(class_weight);
  }
  return weight;
}

// This thread's share of the weights of n labels in rows of K.
__device__ inline double weigh_labels(const float* y, long long n, int K) {
  double weight = 0.0;
  for (long long i = first_element(); i < n; i += stride()) {
    const Label label(y + i / K * 3 * K, i % K, K);
    if (label.is_known()) weight += label.weight;
  }
  return weight;
}

// The weight that divides the gradient. A grid of one block computes it here; otherwise, the launch before did.
__device__ inline float settle_weight(float* weight, double share) {
  if (gridDim.x > 1) return *weight;
  const float total = static_cast<float>(block_sum(share));
  if (threadIdx.x == 0) *weight = total;
  return total;
}

// Write the loss of this step and add it to the totals of the epoch, unless these are null. One thread calls.
__device__ inline void settle_total(float* total, double* totals, double sum, float weight) {
  *total = static_cast<float>(sum);
  if (totals == nullptr) return;
  totals[0] += *total;
  totals[1] += weight;
}

}  // namespace

// ---- weights, for grids of more than one block ----

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    label_count(float* weight, double* partials, unsigned* counter, const float* __restrict__ y, long long n) {
  double count = count_labels(y, n);
  if (grid_sum(count, partials, counter)) *weight = static_cast<float>(count);
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    label_weight(float* weight, double* partials, unsigned* counter, const int* __restrict__ y,
                 const float* __restrict__ class_weight, int R) {
  double sum = weigh_labels(y, class_weight, R);
  if (grid_sum(sum, partials, counter)) *weight = static_cast<float>(sum);
}

// Of weighted targets; class_weight is null unless they are classes, in n rows; else n = R K.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    weighted_label_weight(float* weight, double* partials, unsigned* counter, const float* __restrict__ y,
                          const float* __restrict__ class_weight, long long n, int K) {
  double sum = class_weight ? weigh_labels(y, class_weight, n) : weigh_labels(y, n, K);
  if (grid_sum(sum, partials, counter)) *weight = static_cast<float>(sum);
}

// ---- losses and their gradients ----

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    sigmoid_cross_entropy(float* total, float* weight, float* dlogits, double* totals, double* partials,
                          unsigned* counter, const float* __restrict__ logits, const float* __restrict__ y,
                          const float* __restrict__ pos_weight, long long n, int K) {
  const float scale = 1.f / fmaxf(settle_weight(weight, gridDim.x > 1 ? 0.0 : count_labels(y, n)), 1.f);
  double sum = 0.0;
  for (long long i = first_element(); i < n; i += stride()) {
    const bool labelled = y[i] == y[i];
    const Cost cost = sigmoid_cost(logits[i], labelled ? y[i] : 0.f, pos_weight[i % K]);
    if (labelled) sum += cost.value;
    dlogits[i] = labelled ? cost.slope * scale : 0.f;
  }
  if (grid_sum(sum, partials, counter)) settle_total(total, totals, sum, *weight);
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    mean_squared_error(float* total, float* weight, float* dlogits, double* totals, double* partials, unsigned* counter,
                       const float* __restrict__ logits, const float* __restrict__ y, long long n) {
  const float scale = 2.f / fmaxf(settle_weight(weight, gridDim.x > 1 ? 0.0 : count_labels(y, n)), 1.f);
  double sum = 0.0;
  for (long long i = first_element(); i < n; i += stride()) {
    const Cost cost = squared_cost(y[i] == y[i] ? logits[i] - y[i] : 0.f);
    sum += cost.value;
    dlogits[i] = cost.slope * scale;
  }
  if (grid_sum(sum, partials, counter)) settle_total(total, totals, sum, *weight);
}

namespace {

template <class Y>
__device__ inline void softmax_of_rows(float* total, float* weight, float* dlogits, double* totals, double* partials,
                                       unsigned* counter, const float* __restrict__ logits, const Y* __restrict__ y,
                                       const float* __restrict__ class_weight, int R, int K, int lanes) {
  const float all = settle_weight(weight, gridDim.x > 1 ? 0.0 : weigh_labels(y, class_weight, R));
  const float scale = all > 0.f ? 1.f / all : 0.f;
  const int lane = threadIdx.x % lanes;
  double sum = 0.0;
  // All lanes of a warp run the same iterations, because the shuffles need them; lanes beyond the last row add nothing.
  for (long long first = (first_element() - threadIdx.x % 32) / lanes; first < R; first += stride() / lanes) {
    const long long r = first + threadIdx.x % 32 / lanes;
    const ClassLabel target = r < R ? label_of(y, r) : ClassLabel(-1);
    const int label = target.label, width = label >= 0 ? K : 0;
    const float* z = logits + r * K;
    Softmax row = {-__int_as_float(0x7f800000), 0.f};
    for (int k = lane; k < width; k += lanes) row.peak = fmaxf(row.peak, z[k]);
    row.peak = warp_max(row.peak, lanes);
    for (int k = lane; k < width; k += lanes) row.norm += row.term(z[k]);
    row.norm = warp_sum(row.norm, lanes);
    const float own = target.weight_by(class_weight);
    if (lane == 0 && label >= 0) sum += static_cast<double>(own) * row.cost(z[label]);
    if (r < R) {
      const float inverse = 1.f / row.norm;
      for (int k = lane; k < K; k += lanes)
        dlogits[r * K + k] = label >= 0 ? own * scale * softmax_slope(row.term(z[k]), inverse, k == label) : 0.f;
    }
  }
  if (grid_sum(sum, partials, counter)) settle_total(total, totals, sum, *weight);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    softmax_cross_entropy(float* total, float* weight, float* dlogits, double* totals, double* partials,
                          unsigned* counter, const float* __restrict__ logits, const int* __restrict__ y,
                          const float* __restrict__ class_weight, int R, int K, int lanes) {
  softmax_of_rows(total, weight, dlogits, totals, partials, counter, logits, y, class_weight, R, K, lanes);
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    weighted_softmax(float* total, float* weight, float* dlogits, double* totals, double* partials, unsigned* counter,
                     const float* __restrict__ logits, const float* __restrict__ y,
                     const float* __restrict__ class_weight, int R, int K, int lanes) {
  softmax_of_rows(total, weight, dlogits, totals, partials, counter, logits, y, class_weight, R, K, lanes);
}

// Weighted loss of any other kind; parameters (K,): weights of positives, or the delta of huber.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 1)
    weighted_loss(float* total, float* weight, float* dlogits, double* totals, double* partials, unsigned* counter,
                  const float* __restrict__ logits, const float* __restrict__ y, const float* __restrict__ parameters,
                  long long n, int K, int loss) {
  const float all = settle_weight(weight, gridDim.x > 1 ? 0.0 : weigh_labels(y, n, K));
  const float scale = all > 0.f ? 1.f / all : 0.f;
  double sum = 0.0;
  for (long long i = first_element(); i < n; i += stride()) {
    const int k = i % K;
    const Cost cost = weighted_cost(loss, logits[i], Label(y + i / K * 3 * K, k, K), parameters[k]);
    sum += cost.value;
    dlogits[i] = cost.slope * scale;
  }
  if (grid_sum(sum, partials, counter)) settle_total(total, totals, sum, *weight);
}
