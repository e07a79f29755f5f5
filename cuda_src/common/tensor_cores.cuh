// Instructions of the tensor cores: numbers of TF32, mma of a warp (from sm_80 on), and wgmma of four (sm_90a; elsewhere the
// functions do nothing). No kernels.

#pragma once

#include "common/common.cuh"

// x rounded to 11 significant bits, ties away from zero: what sm_80 has. The products of dense/matmul.cu keep it.
__device__ inline unsigned round_to_tf32(float value) {
  unsigned bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
  return bits;
}

// c += a b by one warp: a (16, 8), b (8, 8), c (16, 8). With g = lane / 4 and t = lane % 4, a lane holds
// a[g][t], a[g+8][t], a[g][t+4], a[g+8][t+4]; b[t][g], b[t+4][g]; c[g][2t], c[g][2t+1], c[g+8][2t], c[g+8][2t+1].
__device__ inline void multiply_fragments(float* c, const unsigned* a, const unsigned* b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// x rounded to 11 significant bits, from sm_90 on ties to even; NaN and infinities stay.
__device__ __forceinline__ unsigned to_tf32(float value) {
  unsigned bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  bits = round_to_tf32(value);
#endif
  return bits;
}

__device__ __forceinline__ unsigned shared_address(const void* data) {
  return static_cast<unsigned>(__cvta_generic_to_shared(data));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool HAS_WARPGROUPS = true;
#else
constexpr bool HAS_WARPGROUPS = false;
#endif

// ---- wgmma: groups of products that four warps issue together ----

__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

using Accumulators = float[32];  // of 64 x 64 values, in a thread

// Offset of element (i, k) of a matrix of `rows` rows in panels of 32 columns, whose rows have wgmma's 128-byte swizzle. If 4
// divides k, elements k … k + 3 are adjacent.
constexpr int PANEL = 32;

__device__ __forceinline__ long long in_panel(int i, int k, int rows) {
  return (static_cast<long long>(k / PANEL) * rows + i) * PANEL + ((k % PANEL / 4 ^ i % 8) * 4 + k % 4);
}

// wgmma descriptor of rows of 128 bytes in shared memory: 1024 bytes from 8 rows to the next 8, 128-byte swizzle.
__device__ __forceinline__ unsigned long long wgmma_descriptor(const float* piece) {
  return (shared_address(piece) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// d (64, 64) += a (64, 8) bᵀ (8, 64), asynchronously.
__device__ __forceinline__ void wgmma_tf32(Accumulators& d, unsigned long long a, unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31}, %32, %33, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
#endif
}

// The same with a in registers, in the layout of `multiply_fragments`; without ADD d = a bᵀ.
template <bool ADD>
__device__ __forceinline__ void wgmma_tf32(Accumulators& d, const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31}, {%32,%33,%34,%35}, %36, %37, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
#endif
}

// The same for 128 columns.
template <bool ADD>
__device__ __forceinline__ void wgmma_tf32(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%"
      "58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, %69, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
#endif
}

// The same for 32 columns.
template <bool ADD>
__device__ __forceinline__ void wgmma_tf32(float (&d)[16], const unsigned (&a)[4], unsigned long long b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, %21, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
#endif
}

// A fragment as wgmma reads it: rounded to TF32, or split into two TF32 numbers.
template <int PRODUCTS, int COUNT>
struct Fragment {
  unsigned large[COUNT], small[PRODUCTS == 3 ? COUNT : 1];

  __device__ __forceinline__ void split(const float* values) {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) {
      large[v] = __float_as_uint(values[v]);  // for one product its writer rounded it
      if constexpr (PRODUCTS == 3) {
        large[v] = to_tf32(values[v]);
        small[v] = to_tf32(values[v] - __uint_as_float(large[v]));
      }
    }
  }

  // Called when the tensor cores are done: keeps the compiler from reusing the registers before.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) {
      asm volatile("" : "+r"(large[v])::"memory");
      if constexpr (PRODUCTS == 3) asm volatile("" : "+r"(small[v])::"memory");
    }
  }
};
