// Asynchronous operations of Hopper: TMA copies and their barriers in shared memory, clusters of blocks, and the start of the
// next kernel. No kernels here.
//
// Requires: sm_90a; clusters sm_90. Elsewhere the functions do nothing.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

// Let the next kernel start beside this one (`wait_for_previous` in fused/shared/fused.cuh).
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- TMA copies and their barriers ----

__device__ __forceinline__ void init_barrier(unsigned long long* barrier, int arrivals) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

__device__ __forceinline__ void wait_barrier(unsigned long long* barrier, int phase) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p;\n"
      "again_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again_%=; }" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
#endif
}

__device__ __forceinline__ void expect_bytes(unsigned long long* barrier, int bytes) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void arrive(unsigned long long* barrier) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

__device__ __forceinline__ void tma_copy(void* to, const void* from, int bytes, unsigned long long* full) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(full))
               : "memory");
#endif
}

// ---- rings of stages ----

// The number of the warp in the block, uniform for the compiler, too.
__device__ __forceinline__ int warp_number() { return __shfl_sync(FULL_WARP, static_cast<int>(threadIdx.x) / 32, 0); }

// A position in the ring. Every lane that has read a stage arrives at its `empty`: an arrival per warp takes no less time,
// and compute-sanitizer's racecheck does not know that __syncwarp orders the other lanes' reads before it.
struct RingPosition {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// ---- clusters ----

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool HAS_CLUSTERS = true;
#define CLUSTERS_OF(blocks) __cluster_dims__(blocks, 1, 1)  // attribute of a kernel
#else
constexpr bool HAS_CLUSTERS = false;
#define CLUSTERS_OF(blocks)
#endif

__device__ __forceinline__ void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

// Load from the shared memory of block `rank` of the cluster, at the address of `own`.
__device__ __forceinline__ float load_remote(const float* own, int rank) {
  float value = 0.f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}

}  // namespace fused
