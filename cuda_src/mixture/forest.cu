// Regression trees with K outputs: the mean over T trees of the values of the leaves that a row reaches.
//
//   y[n, k] = sum over trees t of  values[leaf of row n in tree t, k] / T         in float64
//
// gcnbatch/mixture/forest.py says what nodes are. A row holds its float16 values as int16 that sort alike.
// Determinism: each row's sum has a fixed order, so results repeat to the bit and do not depend on the number of rows.

#include "common/common.cuh"

constexpr int COLUMN_BITS = 16, THRESHOLD_BITS = 16;  // of a node, from the lowest; above them its first child
constexpr int TREE_THREADS = 128;                     // of a block
constexpr int VALUES = 8;                             // columns of y that a block sums at once

struct ForestParams {
  double* y;       // (n, K)
  const short* x;  // (n, P)
  const long long* nodes;
  const int* leaves;    // of each node: its number, or -1
  const int* roots;     // (trees,)
  const float* values;  // (leaves, K)
  int P, trees, K;
};

// A block descends all trees with a row, a thread every TREE_THREADS-th tree.
__device__ __forceinline__ void forest_row(const ForestParams& params) {
  const auto [y, x, nodes, leaves, roots, values, P, trees, K] = params;
  const short* row = x + (long long)blockIdx.x * P;
  for (int first = 0; first < K; first += VALUES) {
    double sums[VALUES] = {};
    for (int tree = threadIdx.x; tree < trees; tree += TREE_THREADS) {
      int node = roots[tree], leaf;
      while ((leaf = leaves[node]) < 0) {
        const long long packed = nodes[node];
        const int column = int(packed) & ((1 << COLUMN_BITS) - 1);
        const short threshold = short(packed >> COLUMN_BITS);
        node = int(packed >> (COLUMN_BITS + THRESHOLD_BITS)) + (row[column] > threshold);
      }
      const float* of = values + (long long)leaf * K + first;
#pragma unroll
      for (int k = 0; k < VALUES; ++k)
        if (first + k < K) sums[k] += of[k];
    }
#pragma unroll
    for (int k = 0; k < VALUES; ++k) {
      if (first + k >= K) break;
      const double sum = block_sum(sums[k]);
      if (threadIdx.x == 0) y[(long long)blockIdx.x * K + first + k] = sum / trees;
    }
  }
}

// Source: own. Launch: a block a row. Traffic: a row visits some 20 nodes of each tree, which lie in L2; it lies in L1.
KERNEL(forest_mean, ForestParams, (TREE_THREADS), forest_row);
