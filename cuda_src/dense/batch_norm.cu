// Batch norm by columns over the N nodes of a batch: y = gamma x̂ + beta with x̂ = (x - mean) / sqrt(var + epsilon).
//
// Source: Ioffe, Szegedy: "Batch normalization", ICML 2015. The variance is combined from the moments of chunks by
// Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", COMPSTAT 1982.
// Differences: all sums use the distance from row 0, x - x[0], which is exact if the values of a column are close
// together, so a mean far from 0 costs no digits. `statistics` (2, P) holds mean - x[0] and 1 / sqrt(var + epsilon). x̂
// is not stored; the backward kernels recompute it from x. With `relu`, the kernel writes y = max(y, 0), and the
// backward kernels read y (else null) and use dy only where y > 0.
//
// Shapes: x, y, dx, dy (N, P), everything else (P,), float32, row-major without gaps.
// Launches: training forward 2 (statistics, normalise), evaluation 1, backward 2 (sums, dx); `column_reduction` for
//   statistics and sums, `row_tiles` for the others. Example 950 x 64: 32 x 8 threads, grid (30, 2); 16 x 16, (60).
// Shared memory: 3 KB, static, for the moments of a block, 2 KB for the sums. Bank conflicts: none. Moments are 3 words
//   apart; sums are 8-byte vectors, which are served per half-warp.
// Bytes: statistics read 4 N P; normalise reads and writes 4 N P; sums read 8 N P; dx reads 8 N P and writes 4 N P;
//   with ReLU, both also read y, 4 N P.
// Determinism: repeats to the bit (common/common.cuh).
// Requires: N > 0 in training; `partials` of 3 (statistics) or 2 (sums) floats for each chunk and column, `counters` 0.

#include "common/common.cuh"

namespace {

constexpr int STRIP = 4;  // values per thread in registers, whose moments are computed in two passes

// Number, mean, and sum of squared distances from the mean, of a set of values.
struct Moments {
  float number, mean, squares;
};

__device__ inline Moments combine(const Moments& a, const Moments& b) {
  if (b.number == 0.f) return a;
  if (a.number == 0.f) return b;
  const float number = a.number + b.number, share = b.number / number, delta = b.mean - a.mean;
  return {number, a.mean + delta * share, a.squares + b.squares + delta * delta * a.number * share};
}

__device__ inline Moments moments_of_strip(const float* value, int count) {
  if (count <= 0) return {};
  float sum = 0.f, squares = 0.f;
#pragma unroll
  for (int i = 0; i < STRIP; ++i) sum += i < count ? value[i] : 0.f;
  const float mean = sum / count;
#pragma unroll
  for (int i = 0; i < STRIP; ++i) squares += i < count ? (value[i] - mean) * (value[i] - mean) : 0.f;
  return {float(count), mean, squares};
}

// y = (x - origin - offset) * slope + beta for four columns
__device__ inline float4 scale_and_shift(float4 x, float4 origin, float4 offset, float4 slope, float4 beta) {
  return make_float4((x.x - origin.x - offset.x) * slope.x + beta.x, (x.y - origin.y - offset.y) * slope.y + beta.y,
                     (x.z - origin.z - offset.z) * slope.z + beta.z, (x.w - origin.w - offset.w) * slope.w + beta.w);
}

// dy where y > 0, else 0: the gradient of ReLU
__device__ inline float let_through(float dy, float y) { return y > 0.f ? dy : 0.f; }

__device__ inline float4 product(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

__device__ inline float dx_of(float dy, float x, float origin, float offset, float inverse, float gamma, float dgamma,
                              float dbeta, float share) {
  const float x_hat = (x - origin - offset) * inverse;
  return gamma * inverse * (dy - dbeta * share - x_hat * (dgamma * share));
}

}  // namespace

// ---- forward ----

// statistics; running = (1 - momentum) running + momentum batch, with the unbiased variance (N = 1: the biased one)
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_norm_statistics(float* statistics, float* running_mean, float* running_var, float* partials,
                          unsigned* counters, const float* __restrict__ x, float epsilon, float momentum, int N, int P,
                          int rows_per_chunk) {
  const int p = blockIdx.y * blockDim.x + threadIdx.x;
  const int begin = blockIdx.x * rows_per_chunk, end = min(begin + rows_per_chunk, N);
  Moments moments = {};
  const float origin = p < P ? x[p] : 0.f;
  if (p < P) {
    for (int first = begin + threadIdx.y; first < end; first += STRIP * blockDim.y) {
      float value[STRIP];
      int count = 0;
#pragma unroll
      for (int i = 0; i < STRIP; ++i) {
        const int n = first + i * blockDim.y;
        value[i] = n < end ? x[static_cast<long long>(n) * P + p] - origin : 0.f;
        count += n < end;
      }
      moments = combine(moments, moments_of_strip(value, count));
    }
  }
  if (!reduce_columns(moments, reinterpret_cast<Moments*>(partials), counters, P)) return;
  const float variance = moments.squares / N;
  statistics[p] = moments.mean;
  statistics[P + p] = 1.f / sqrtf(variance + epsilon);
  running_mean[p] += momentum * (origin - running_mean[p] + moments.mean);
  running_var[p] += momentum * (moments.squares / max(N - 1, 1) - running_var[p]);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_norm_normalise(float* y, const float* __restrict__ x, const float* __restrict__ statistics,
                         const float* __restrict__ gamma, const float* __restrict__ beta, int N, int P, int relu) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (n >= N || p >= P) return;
  const auto of_columns = [p, P](const float* values) { return load4(values + p, P - p, is_aligned(values, P)); };
  const long long i = static_cast<long long>(n) * P + p;
  const float4 slope = product(of_columns(gamma), of_columns(statistics + P));
  const float4 value = load4(x + i, P - p, is_aligned(x, P));
  const float4 normal = scale_and_shift(value, of_columns(x), of_columns(statistics), slope, of_columns(beta));
  store4(y + i, relu ? positive(normal) : normal, P - p, is_aligned(y, P));
}

// evaluation, with the running statistics instead of the batch's
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_norm_evaluate(float* y, const float* __restrict__ x, const float* __restrict__ gamma,
                        const float* __restrict__ beta, const float* __restrict__ running_mean,
                        const float* __restrict__ running_var, float epsilon, int N, int P, int relu) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (n >= N || p >= P) return;
  const auto of_columns = [p, P](const float* values) { return load4(values + p, P - p, is_aligned(values, P)); };
  const long long i = static_cast<long long>(n) * P + p;
  const float4 var = of_columns(running_var);
  const float4 inverse = make_float4(1.f / sqrtf(var.x + epsilon), 1.f / sqrtf(var.y + epsilon),
                                     1.f / sqrtf(var.z + epsilon), 1.f / sqrtf(var.w + epsilon));
  const float4 value = load4(x + i, P - p, is_aligned(x, P));
  const float4 normal = scale_and_shift(value, of_columns(running_mean), make_float4(0.f, 0.f, 0.f, 0.f),
                                        product(of_columns(gamma), inverse), of_columns(beta));
  store4(y + i, relu ? positive(normal) : normal, P - p, is_aligned(y, P));
}

// ---- backward (training) ----

// dbeta = sum of dy, dgamma = sum of dy x̂
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_norm_backward_sums(float* dgamma, float* dbeta, float* partials, unsigned* counters,
                             const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ y,
                             const float* __restrict__ statistics, int N, int P, int rows_per_chunk) {
  const int p = blockIdx.y * blockDim.x + threadIdx.x;
  const int begin = blockIdx.x * rows_per_chunk, end = min(begin + rows_per_chunk, N);
  float2 sums = make_float2(0.f, 0.f);
  if (p < P && begin < end) {
    const float origin = x[p], offset = statistics[p];
#pragma unroll 4
    for (int n = begin + threadIdx.y; n < end; n += blockDim.y) {
      const long long i = static_cast<long long>(n) * P + p;
      const float g = y ? let_through(dy[i], y[i]) : dy[i];
      sums.x += g * (x[i] - origin - offset);
      sums.y += g;
    }
  }
  if (!reduce_columns(sums, reinterpret_cast<float2*>(partials), counters, P)) return;
  dgamma[p] = N > 0 ? sums.x * statistics[P + p] : 0.f;
  dbeta[p] = sums.y;
}

// dx = gamma / sqrt(var + epsilon) (dy - dbeta / N - x̂ dgamma / N)
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_norm_backward_dx(float* dx, const float* __restrict__ dy, const float* __restrict__ x,
                           const float* __restrict__ y, const float* __restrict__ statistics,
                           const float* __restrict__ gamma, const float* __restrict__ dgamma,
                           const float* __restrict__ dbeta, int N, int P) {
  const int n = blockIdx.x * blockDim.y + threadIdx.y;
  const int p = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (n >= N || p >= P) return;
  const auto of_columns = [p, P](const float* values) { return load4(values + p, P - p, is_aligned(values, P)); };
  const long long i = static_cast<long long>(n) * P + p;
  float4 g = load4(dy + i, P - p, is_aligned(dy, P));
  if (y) {
    const float4 out = load4(y + i, P - p, is_aligned(y, P));
    g = make_float4(let_through(g.x, out.x), let_through(g.y, out.y), let_through(g.z, out.z), let_through(g.w, out.w));
  }
  const float4 v = load4(x + i, P - p, is_aligned(x, P));
  const float4 o = of_columns(x), m = of_columns(statistics), s = of_columns(statistics + P), w = of_columns(gamma);
  const float4 dw = of_columns(dgamma), db = of_columns(dbeta);
  const float share = 1.f / N;
  store4(dx + i,
         make_float4(dx_of(g.x, v.x, o.x, m.x, s.x, w.x, dw.x, db.x, share),
                     dx_of(g.y, v.y, o.y, m.y, s.y, w.y, dw.y, db.y, share),
                     dx_of(g.z, v.z, o.z, m.z, s.z, w.z, dw.z, db.z, share),
                     dx_of(g.w, v.w, o.w, m.w, s.w, w.w, dw.w, db.w, share)),
         P - p, is_aligned(dx, P));
}
