// Adam and SGD over all parameters of a model in one launch, and gradient clipping in two.
//
// Sources: Kingma, Ba: "Adam", ICLR 2015, algorithm 1; Loshchilov, Hutter: "Decoupled weight decay regularization",
// ICLR 2019; Pascanu, Mikolov, Bengio: "On the difficulty of training recurrent neural networks", ICML 2013 (clipping).
//
// Shapes: everything (n,), float32. Launch: `elementwise`, one element per thread; a Tox21 model of 10,000 parameters
//   takes 40 blocks of 256 threads.
// Shared memory: none; 256 bytes for the norm. Bytes: Adam reads 24 n, writes 12 n; SGD reads 20 n, writes 8 n;
//   clipping reads 4 n and, only if it scales, reads and writes 4 n again. Bank conflicts: none.
// Determinism: repeats to the bit; the norm is a float64 sum in a fixed order. Requires: nothing.

#include "dense/optimizer.cuh"

// g = gradient + l2 p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²;
// p = p - learning_rate (m correction1 / (sqrt(v correction2) + epsilon) + weight_decay p), correction = 1 / (1 -
// beta^step). The host computes 1 - beta ("rest") and the corrections in float64.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    adam_step(float* parameters, float* m, float* v, const float* __restrict__ gradients,
              const float* __restrict__ weight_decay, const float* __restrict__ l2, long long n, float learning_rate,
              float beta1, float rest1, float beta2, float rest2, float correction1, float correction2, float epsilon) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Rule adam = {0, beta1, rest1, beta2, rest2, epsilon};
  const Rate rate = {learning_rate, correction1, correction2, 0.f};
  float new_m = m[i], new_v = v[i];
  const float value = adam.apply(parameters[i], gradients[i], new_m, new_v, weight_decay[i], l2[i], rate);
  m[i] = new_m;
  v[i] = new_v;
  parameters[i] = value;
}

// g = gradient + l2 p; velocity = momentum velocity + g; p = p - learning_rate (velocity + weight_decay p)
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    sgd_step(float* parameters, float* velocity, const float* __restrict__ gradients,
             const float* __restrict__ weight_decay, const float* __restrict__ l2, long long n, float learning_rate,
             float momentum) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Rule sgd = {1, momentum};
  const Rate rate = {learning_rate};
  float new_velocity = velocity[i], none = 0.f;
  const float value = sgd.apply(parameters[i], gradients[i], new_velocity, none, weight_decay[i], l2[i], rate);
  velocity[i] = new_velocity;
  parameters[i] = value;
}

// factor = max_norm / norm if the Euclidean norm of the gradients exceeds max_norm, else 1
//
// Launch: at most 256 blocks of 256 threads that stride over the gradients. `partials`: a double per block.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    clip_norm_factor(float* factor, double* partials, unsigned* counter, const float* __restrict__ gradients,
                     long long n, float max_norm) {
  double squares = 0.0;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<long long>(gridDim.x) * blockDim.x)
    squares += static_cast<double>(gradients[i]) * gradients[i];
  squares = block_sum(squares);
  if (threadIdx.x == 0) partials[blockIdx.x] = squares;
  if (!is_last_block(counter, gridDim.x)) return;
  const double norm = sqrt(block_sum(threadIdx.x < gridDim.x ? __ldcg(partials + threadIdx.x) : 0.0));
  if (threadIdx.x == 0) *factor = clip_factor(norm, max_norm);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    clip_norm_scale(float* gradients, const float* __restrict__ factor, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n && *factor != 1.f) gradients[i] *= *factor;
}
