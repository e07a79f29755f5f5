// The dropout of wide layers: the kernels of a model on one rank and on several share it.
#pragma once

#include "fused/shared/fused.cuh"

namespace fused {

// The dropout of one layer: where its bits go, the key of its masks, its columns.
struct DropoutLayer {
  unsigned char* kept;
  unsigned long long purpose;
  long long columns;
};

constexpr int DROPOUT_THREADS = 256;

}  // namespace fused
