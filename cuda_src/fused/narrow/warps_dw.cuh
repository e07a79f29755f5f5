// The gradient of the weights, dW' = U^T dY, for layers of 64 columns and 1 channel in large cohorts. No kernels here.
//
// Parameters, results and their bits are those of `backward_dw`. There, a block has a sum of dW' and 288 of its threads multiply.
// Here, a block has GROUPS sums at once: a group of four warps owns a sum and waits for no other, so that groups multiply while
// others load. A thread owns four columns p of up to 4 OWN_QUADS + OWN_RESTS rows k.
// Launch: 512 threads, members in z; the groups of all blocks of a member share its sums. 64 members on 132 multiprocessors: eight
//   sums, 2 blocks a member. K is at most MOST_OF_WARPS.
// Shared memory: dynamic; see `narrow.geometry.backward_of_warps`. 16 neighbouring lanes read 256 bytes of a row of dY, and all of
//   them the same 16 bytes of a row of U.
// Traffic and determinism: as `backward_dw`.
#pragma once

#include "fused/narrow/warps.cuh"

namespace fused {

constexpr int GROUP_WARPS = 4, GROUP_THREADS = 32 * GROUP_WARPS;
constexpr int GROUPS = WARPS / GROUP_WARPS;                  // of a block, each with a sum
constexpr int BUFFERS = 2;                                   // tiles of a group: one barrier a tile
constexpr int K_OWNERS = GROUP_THREADS / 16;                 // threads with the same columns share K
constexpr int OWN_QUADS = GROUP / (4 * K_OWNERS);            // of rows k below GROUP
constexpr int OWN_RESTS = 2;                                 // single rows k from GROUP on
constexpr int MOST_OF_WARPS = GROUP + OWN_RESTS * K_OWNERS;  // the largest K
constexpr int DY_STRIDE = GROUP + 4;

// All threads of a group wait. Barrier 0 is that of the block.
__device__ __forceinline__ void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
}

// A thread's outputs: four columns of rows 4 owner + 32 q … + 3, q < OWN_QUADS, and of rows GROUP + owner + 8 j.
struct WeightGradients {
  float4 of[4 * OWN_QUADS + OWN_RESTS];

  __device__ __forceinline__ static int owner() { return threadIdx.x % GROUP_THREADS / 16; }
  __device__ __forceinline__ static int row(int k) {
    return k < 4 * OWN_QUADS ? k / 4 * 4 * K_OWNERS + 4 * owner() + k % 4
                             : GROUP + (k - 4 * OWN_QUADS) * K_OWNERS + owner();
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int k = 0; k < 4 * OWN_QUADS + OWN_RESTS; ++k) of[k] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  // Add the product of the tiles of U (TILE, u_stride) and dY (TILE, DY_STRIDE).
  __device__ __forceinline__ void add(const float* u, int u_stride, const float* dy, int K) {
#pragma unroll 2
    for (int r = 0; r < TILE; ++r) {
      const float4 b = reinterpret_cast<const float4*>(dy + r * DY_STRIDE)[threadIdx.x % 16];
#pragma unroll
      for (int q = 0; q < OWN_QUADS; ++q) {
        if (row(4 * q) >= K) continue;
        const float4 a = *reinterpret_cast<const float4*>(u + r * u_stride + row(4 * q));
        of[4 * q] = add_product(of[4 * q], a.x, b), of[4 * q + 1] = add_product(of[4 * q + 1], a.y, b);
        of[4 * q + 2] = add_product(of[4 * q + 2], a.z, b), of[4 * q + 3] = add_product(of[4 * q + 3], a.w, b);
      }
#pragma unroll
      for (int k = 4 * OWN_QUADS; k < 4 * OWN_QUADS + OWN_RESTS; ++k)
        if (row(k) < K) of[k] = add_product(of[k], u[r * u_stride + row(k)], b);
    }
  }
  __device__ __forceinline__ void join(const WeightGradients& other) {
#pragma unroll
    for (int k = 0; k < 4 * OWN_QUADS + OWN_RESTS; ++k) of[k] = combine(of[k], other.of[k]);
  }
  __device__ __forceinline__ void store(float* to, int K) const {
#pragma unroll
    for (int k = 0; k < 4 * OWN_QUADS + OWN_RESTS; ++k)
      if (row(k) < K) reinterpret_cast<float4*>(to + row(k) * GROUP)[threadIdx.x % 16] = of[k];
  }
};

// Blocks that compute dW'; `block` of `params.dw_blocks`.
template <class Shape>
__device__ __forceinline__ void backward_dw_of_warps(const NarrowBackwardParams& params, float4* shared4, int block) {
  const Shape shape(params);
  const int N = params.members.of_step(params.size)[BatchSize::N], K = shape.K, u_stride = K + 4, quads = K / 4;
  if (blockIdx.x > 0 && block * TILE >= N) return;  // makes room for the next kernel
  const OfY of = of_y_at(reinterpret_cast<float*>(shared4), params.members.of_step(params.y),
                         params.members.of_step(params.g), GROUP);
  float* scratch = of.dgamma + GROUP;  // then tiles of U and dY
  const int group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / 32 % GROUP_WARPS, lane = threadIdx.x % 32;
  const int floats = TILE * (u_stride + DY_STRIDE);  // of a buffer
  wait_for_previous();
  if (block * TILE >= N) return;
  set_backward(of, scratch, params.members.of_step(params.stats), params.members.of_model_or_null(params.gamma),
               params.members.of_step(params.sums), params.sums_in_use(N), N, GROUP);
  __syncthreads();  // columns are filled

  const float* from_u = params.members.of_step(params.u);
  int buffer = 0;
#pragma unroll 1
  for (int s = group * params.dw_blocks + block; s < params.dw_sums && s * TILE < N; s += GROUPS * params.dw_blocks) {
    WeightGradients total, sum;
    total.clear();
#pragma unroll 1
    for (int first = s * TILE; first < N; first += params.dw_sums * TILE) {
      float* u = scratch + (BUFFERS * group + buffer) * floats;
      float* dy = u + TILE * u_stride;
      const int row = warp * (TILE / GROUP_WARPS);  // the warp's first row
      {
        const Gradients source(of);
        float4 given[TILE / GROUP_WARPS];
        Gradients::Neighbour near[TILE / GROUP_WARPS / 2];
#pragma unroll
        for (int r = 0; r < TILE / GROUP_WARPS; ++r)
          given[r] = load_quad(from_u + (first + row + r) * K + 4 * lane, first + row + r < N && lane < quads);
#pragma unroll
        for (int t = 0; t < TILE / GROUP_WARPS / 2; ++t) {
          const int i = first + row + 2 * t + lane / 16;
          near[t] = source.load(i * GROUP + 4 * (lane % 16), i < N);
        }
#pragma unroll
        for (int r = 0; r < TILE / GROUP_WARPS; ++r)
          if (lane < quads) reinterpret_cast<float4*>(u + (row + r) * u_stride)[lane] = given[r];
#pragma unroll
        for (int t = 0; t < TILE / GROUP_WARPS / 2; ++t) {
          const int r = row + 2 * t + lane / 16;
          const float4 value = first + r < N ? source.term(near[t]) : make_float4(0.f, 0.f, 0.f, 0.f);
          reinterpret_cast<float4*>(dy + r * DY_STRIDE)[lane % 16] = value;
        }
      }
      group_barrier(group);  // the tile is filled; all threads have read the other buffer
      sum.clear();
      sum.add(u, u_stride, dy, K);
      total.join(sum);
      buffer ^= 1;
    }
    total.store(params.members.of_step(params.partials) + s * K * GROUP, K);
  }
}

template <class Shape>
__device__ __forceinline__ void backward_phase_of_warps(const NarrowBackwardParams& params, float4* shared4) {
  const int block = blockIdx.x;
  if (params.members.of_step(params.size)[BatchSize::N] > params.parts * TILE)  // several tiles a part
    return backward_phase<Shape>(params, shared4);
  if (!Shape::IS_FIRST && block < params.dx_blocks) return backward_dx_of_warps(params, shared4, block);
  backward_dw_of_warps<Shape>(params, shared4, Shape::IS_FIRST ? block : block - params.dx_blocks);
}

}  // namespace fused
