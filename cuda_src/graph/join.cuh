// The value of a scaled feature of whole graphs; `join_forward` and the staging of fused steps use it. No kernels here.
#pragma once

// (x - mean) scale, cut to -limit ... limit. A missing x (NaN) gives 0, the mean of the others; a NaN from elsewhere
// propagates.
__device__ __forceinline__ float scaled_feature(float x, float mean, float scale, float limit) {
  const float z = (x - mean) * scale;
  return isnan(x) ? 0.f : z < -limit ? -limit : z > limit ? limit : z;
}
