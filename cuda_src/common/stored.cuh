// Stored node features as float.
#pragma once

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(unsigned char x) { return x; }
__device__ __forceinline__ float to_float(signed char x) { return x; }
__device__ __forceinline__ float to_float(unsigned short half_bits) {  // fp16, without cuda_fp16.h
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half_bits));
  return x;
}
