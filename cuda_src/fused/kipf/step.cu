// A full-batch training step of Kipf's GCN with two layers on one graph, in four kernels; fused/FUSED.md follows it.
//
//   Z = dropout(relu(U W1)),  U = A dropout(X)      logits = A (Z W2)      loss over the labelled rows alone
//
// Source: own. The first layer is (A X) W1 instead of A (X W1): U depends on no parameter, so the next step's is made
// beside this step's kernels, and two waits of all nodes for each other are saved, one forward, one backward. Only rows
// of Z that a labelled row sees are computed: R rows, of T labelled rows' neighbours. U is a sparse matrix (R, F) whose
// structure never changes; an entry is the sum of the products A_ij X_jf, which are listed once, of elements of X that
// dropout kept. All the rest is sums of weighted rows, in a fixed order by one writer each: repeats to the bit.
//
// Shapes: F, P, K columns of X, of Z, of the logits. Matrices that only these kernels see have rows padded to 4 floats:
//   t, dt (R, pad(K)), dlogits (T, pad(K)), dz (R, pad(P)); parameters have not.
//   What a next step needs while this one's is in use comes twice: step s finds it in half s % 2.
//   progress (3,): the number of the step in the plan as kipf_forward, kipf_loss and kipf_update read it; each is
//   written by a kernel that is neither the reader nor the one before it (fused/shared/fused.cuh, order of kernels).
// Requires: K at most 128.
#include "fused/kipf/phases.cuh"

using namespace kipf;

// ---------------------------------------------------------------------------------------------------------- forward

// z = dropout(relu(U W1)), t = z W2; beside it the bits of the next step's dropout are drawn.
//
// Shapes: z (R, P) or null; U by u_ptr (R+1,), u_columns, u_values (nnz,), the latter u_stride apart from half to half;
//   kept_first (R,): the number of the first bit of a row of Z, null without dropout; keys (steps, 2): epoch and step.
// Launch: 256 threads a long row or four short ones, then a thread a byte to draw. Cora: 644 rows, of 88 entries and at
//   most 788, in 217 blocks, and 22; a row of W1 is four lanes' worth: 16 or 64 entries at a time.
// Shared memory: 4 (P pad(K) + 4 P) bytes dynamic for W2 and rows of Z, 4 KB static; no conflicts that count.
// Traffic: reads 8 nnz + 4 nnz P bytes (W1 from L2), writes 4 R (P + K).
extern "C" __global__ void __launch_bounds__(256, 2)
    kipf_forward(float* z, float* t, unsigned char* kept, int* progress, const int* keys, const int* order,
                 const int* u_ptr, const int* u_columns, const float* u_values, const int* kept_first, const float* w1,
                 const float* w2, const int* drawn, unsigned long long seed, unsigned long long purpose_x,
                 unsigned long long purpose_z, unsigned threshold, float keep_scale, int u_stride, int n_long,
                 int n_rows, int n_drawn, int n_drawn_x, int P, int K, int lane_bits, int out_bits) {
  extern __shared__ float shared[];
  const int step = progress ? progress[0] : 0, half = step & 1, block = blockIdx.x;
  const int n_blocks = blocks_for(n_long, n_rows);
  if (block >= n_blocks) {
    draw((block - n_blocks) * THREADS + threadIdx.x, kept, keys, drawn, seed, purpose_x, purpose_z, threshold, step + 1,
         n_drawn, n_drawn_x);
    fused::wait_for_previous();
    if (block == 0 && threadIdx.x == 0) progress[2] = step;
    return;
  }
  const Share share(order, block, n_long, n_rows);
  const int row = share.task, group = share.thread >> lane_bits, lane = lane_of(share.thread, lane_bits);
  float *const w2_here = shared, *const z_here = shared + P * pad(K) + share.part * P;
  const int begin = row < 0 ? 0 : u_ptr[row], end = row < 0 ? 0 : u_ptr[row + 1];
  Entries of = {u_values + half * u_stride, u_columns, begin + group, 4 * lane < P ? end : 0,
                share.threads >> lane_bits, 1};
  Some some = read_some(of, of.first);
  const Kept kept_of_row = {kept_first ? kept + half * n_drawn : nullptr, kept_first && row >= 0 ? kept_first[row] : 0};
  unsigned kept4 = kept_of_row.bits(4 * lane, group == 0 ? P : 0);
  fused::wait_for_previous();
  if (progress && block == 0 && threadIdx.x == 0) progress[2] = step;

  const int columns = pad(K), n_w2 = P * columns;
  const auto w2_at = [=](int i) { return i < n_w2 && i % columns < K ? w2[i / columns * K + i % columns] : 0.f; };
  float w2_own = w2_at(threadIdx.x);
#pragma unroll 1
  for (int first = 0; first < P; first += 4 << lane_bits) {
    const int column = first + 4 * lane;
    if (first > 0) {
      __syncthreads();  // what the fold before used is free again
      of.last = column < P ? end : 0;
      some = read_some(of, of.first);
      kept4 = kept_of_row.bits(column, group == 0 ? P : 0);
    }
    float4 sum = P % 4 == 0 ? sum_rows(of, some, Column{w1 + column, P})
                            : sum_rows(of, some, RaggedColumn{w1 + column, P, P - column});
    if (first == 0) {
      for (int i = threadIdx.x; i < n_w2; i += THREADS, w2_own = w2_at(i)) w2_here[i] = w2_own;
    }
    sum = fold(sum, lane_bits, share);
    if (group == 0 && row >= 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float y = component(sum, i);
        const float value = kept4 >> i & 1 ? positive(y) * keep_scale : 0.f;
        if (column + i < P) {
          z_here[column + i] = value;
          if (z) z[row * P + column + i] = value;
        }
      }
    }
  }
  // One warp goes on: it holds the row of z.
  if (share.thread >= 32 || row < 0) return;
  __syncwarp();
  const int out_lane = lane_of(share.thread, out_bits), out_group = share.thread >> out_bits;
  const bool has_columns = 4 * out_lane < K;
  const Entries inner = {z_here, nullptr, out_group, has_columns ? P : 0, 32 >> out_bits, 1};
  const float4 sum =
      fold_warp(sum_rows(inner, read_some(inner, out_group), Column{w2_here + 4 * out_lane, columns}), out_bits);
  if (out_group == 0 && has_columns) reinterpret_cast<float4*>(t + row * columns)[out_lane] = sum;
}

// logits (N, K) = A t, for inference.
//
// Launch: a warp a row of logits. Cora: 339 blocks of 256. Traffic: reads 8 nnz + 4 nnz K bytes, writes 4 N K.
extern "C" __global__ void __launch_bounds__(256)
    kipf_logits(float* logits, const float* t, const int* a_ptr, const int* a_rows, const float* a_values, int n_rows,
                int K, int out_bits) {
  const int row = blockIdx.x * WARPS + threadIdx.x / 32, column = threadIdx.x % 32 * 4;
  const WarpRow of_a(a_values, a_rows, a_ptr, row, n_rows, K, out_bits);
  fused::wait_for_previous();
  const float4 sum = of_a.times(t, K);
  if (row < n_rows && column < K) store4(logits + static_cast<long long>(row) * K + column, sum, K - column, false);
}

// Softmax cross-entropy of the labelled rows and its gradient (dense/loss.cu); beside it U of the next step is summed up.
//
// Shapes: dlogits (T, pad(K)); losses (T,); a_ptr (T+1,), a_rows, a_values: the labelled rows of A, whose columns are
//   numbers of rows of t; labels (T,); path_ptr (nnz+1,), paths (.., 2): the products of an entry of U, each the number
//   of its bit and, as the same 32 bits, its value; long_entries (n_long,): those with more than SHORT_PATH products;
//   t_place (nnz,): where an entry stands in U by columns.
// Launch: a warp a labelled row, a warp a long entry of U, a thread each other. Cora: 18 + 37 + 223 blocks of 256.
// Traffic: reads 8 paths + 8 nnz bytes, writes 8 nnz; the loss 8 nnz(A) + 4 nnz(A) K, writes 4 T K.
extern "C" __global__ void __launch_bounds__(256, 4)
    kipf_loss(float* dlogits, double* losses, float* u_values, float* t_values, int* progress, const float* t,
              const int* a_ptr, const int* a_rows, const float* a_values, const int* labels, const float* class_weight,
              const unsigned char* kept, const int* path_ptr, const int* paths, const int* long_entries,
              const int* t_place, float weight, int n_labels, int n_long, int n_entries, int n_drawn, int K,
              int out_bits) {
  const int n_blocks = ceil_div(n_labels, WARPS);
  const int step = progress[1], next = (step + 1) & 1, block = blockIdx.x;
  if (block >= n_blocks) {
    const StagedU staged = {u_values + next * n_entries,
                            t_values + next * n_entries,
                            kept + next * n_drawn,
                            path_ptr,
                            reinterpret_cast<const int2*>(paths),
                            t_place};
    const int long_blocks = ceil_div(n_long, WARPS), of_warp = (block - n_blocks) * WARPS + threadIdx.x / 32;
    if (block < n_blocks + long_blocks) {
      staged.sum_by_warp(of_warp < n_long ? long_entries[of_warp] : -1);
    } else {
      const int u = (block - n_blocks - long_blocks) * THREADS + threadIdx.x;
      staged.sum_by_thread(u < n_entries ? u : -1);
    }
    return;
  }
  const int row = block * WARPS + threadIdx.x / 32, lane = lane_of(threadIdx.x, out_bits);
  const WarpRow of_a(a_values, a_rows, a_ptr, row, n_labels, K, out_bits);
  const int label = row < n_labels ? labels[row] : 0;
  const float own = class_weight[label], factor = weight > 0.f ? own / weight : 0.f;
  fused::wait_for_previous();
  if (block == 0 && threadIdx.x == 0) progress[0] = step + 1;

  const float4 z = of_a.times(t, K);
  Softmax of_row = {-__int_as_float(0x7f800000), 0.f};
  float at_label = 0.f;
  float e[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (4 * lane + i < K) of_row.peak = fmaxf(of_row.peak, component(z, i));
  of_row.peak = warp_max(of_row.peak, 1 << out_bits);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    e[i] = 4 * lane + i < K ? of_row.term(component(z, i)) : 0.f;
    of_row.norm += e[i];
    if (4 * lane + i == label) at_label = component(z, i);
  }
  of_row.norm = warp_sum(of_row.norm, 1 << out_bits);
  at_label = warp_sum(at_label, 1 << out_bits);
  if (row >= n_labels) return;
  const float inverse = 1.f / of_row.norm;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    e[i] = 4 * lane + i < K ? factor * softmax_slope(e[i], inverse, 4 * lane + i == label) : 0.f;
  if (threadIdx.x % 32 >> out_bits == 0 && 4 * lane < K)
    reinterpret_cast<float4*>(dlogits + row * pad(K))[lane] = make_float4(e[0], e[1], e[2], e[3]);
  if (threadIdx.x % 32 == 0) losses[row] = static_cast<double>(own) * of_row.cost(at_label);
}

// --------------------------------------------------------------------------------------------------------- backward

// dt = A^T dlogits, dz = (dt W2^T) where z > 0, which is where ReLU and dropout let it pass.
//
// Shapes: b_ptr (R+1,), b_rows, b_values: A^T, whose columns are numbers of labelled rows.
// Launch: a warp a row. Cora: 81 blocks of 256; a row has 1.2 entries, at most 10.
// Shared memory: 4 (P K + 8 pad(K)) bytes for W2 and the warps' rows of dt. Traffic: reads 4 R P, writes 4 R (P + K).
extern "C" __global__ void __launch_bounds__(256)
    kipf_backward(float* dt, float* dz, const float* z, const float* dlogits, const int* b_ptr, const int* b_rows,
                  const float* b_values, const float* w2, float keep_scale, int n_rows, int P, int K, int out_bits) {
  extern __shared__ float shared[];
  float *const w2_here = shared, *const dt_here = shared + P * K + threadIdx.x / 32 * pad(K);
  const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const WarpRow of_b(b_values, b_rows, b_ptr, row, n_rows, K, out_bits);
  for (int i = threadIdx.x; i < P * K; i += THREADS) w2_here[i] = w2[i];
  float own_z = row < n_rows && lane < P ? z[row * P + lane] : 0.f;
  fused::wait_for_previous();
  const float4 sum = of_b.times(dlogits, K);
  if (row < n_rows && 4 * lane < K) {
    reinterpret_cast<float4*>(dt + row * pad(K))[lane] = sum;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (4 * lane + i < K) dt_here[4 * lane + i] = component(sum, i);
  }
  __syncthreads();
  if (row >= n_rows) return;
#pragma unroll 1
  for (int p = lane; p < pad(P); p += 32) {
    if (p > lane) own_z = p < P ? z[row * P + p] : 0.f;
    float value = 0.f;
    if (own_z > 0.f)
      for (int k = 0; k < K; ++k) value += dt_here[k] * w2_here[p * K + k];
    dz[row * pad(P) + p] = own_z > 0.f ? value * keep_scale : 0.f;
  }
}

// dW1 = U^T dz, dW2 = z^T dt: a task is a row, and at once the step of the optimiser (dense/optimizer.cu) in it; with `mode` 1
// the gradient is written instead. One more block adds the losses up.
//
// Shapes: tasks up to F are rows of W1, beyond of W2; U by columns, t_ptr (F+1,), t_rows, t_values; parameters, m, v,
//   gradients, weight_decay, l2 flat; totals (2,): loss and weight; rates (steps, 4): learning rate, Adam's corrections.
// Launch: 256 threads, a long task or four short ones; grid y: blocks of 128 columns of W1. Cora: 445 blocks; a column
//   of U has 40 entries, at most 561, a column of z 644.
// Shared memory: 6 KB static. Traffic: reads 8 nnz + 4 nnz P bytes (dz from L2), reads and writes 16 (F P + P K).
extern "C" __global__ void __launch_bounds__(256, 4)
    kipf_update(float* parameters, float* m, float* v, float* gradients, double* totals, int* progress,
                const double* losses, const float* weight_decay, const float* l2, const float* rates, const int* order,
                const int* t_ptr, const int* t_rows, const float* t_values, const float* dz, const float* z,
                const float* dt, float weight, int start1, int start2, int t_stride, int n_long, int n_rows,
                int n_labels, int F, int P, int K, int lane_bits, int out_bits, int mode, int sgd, float beta1,
                float rest1, float beta2, float rest2, float epsilon) {
  __shared__ float4 gradients4[PARTS * 32];
  const int step = progress[2], block = blockIdx.x;
  if (block == blocks_for(n_long, F + P)) {
    fused::wait_for_previous();
    if (blockIdx.y > 0 || threadIdx.x >= 32) return;
    fused::add_totals(totals, losses, n_labels, weight);
    if (threadIdx.x == 0) progress[1] = step + 1;
    return;
  }
  const Share share(order, block, n_long, F + P);
  const int task = share.task;
  const bool is_first = task < F;
  const int width = is_first ? P : K, bits = is_first ? lane_bits : out_bits, stride = pad(width);
  const int begin = (4 << bits) * blockIdx.y, left = task < 0 ? 0 : min(width - begin, 4 << bits);
  const int lane = lane_of(share.thread, bits), group = share.thread >> bits, column = begin + 4 * lane;
  Entries of = {z + task - F, nullptr, group, n_rows, share.threads >> bits, P};
  if (is_first) of = {t_values + (step & 1) * t_stride, t_rows, 0, 0, share.threads >> bits, 1};
  if (is_first && task >= 0) of.first = t_ptr[task] + group, of.last = t_ptr[task + 1];
  if (left <= 0 || column >= stride) of.last = 0;
  const Some some = read_some(of, of.first);
  const bool owns = share.thread < left;
  const int i = (is_first ? start1 + task * P : start2 + (task - F) * K) + begin + share.thread;
  const float p = owns ? parameters[i] : 0.f;
  float of_m = owns ? m[i] : 0.f, of_v = owns && !sgd ? v[i] : 0.f;
  const float decay = owns ? weight_decay[i] : 0.f, penalty = owns ? l2[i] : 0.f;
  const Rate rate = reinterpret_cast<const Rate*>(rates)[step];
  fused::wait_for_previous();

  const Column matrix = {(is_first ? dz : dt) + column, stride};
  const float4 sum = fold(sum_rows(of, some, matrix), bits, share);
  if (group == 0) gradients4[share.part * 32 + lane] = sum;
  __syncthreads();
  if (!owns) return;
  const float gradient = reinterpret_cast<const float*>(gradients4)[share.part * 128 + share.thread];
  if (mode == 1) {
    gradients[i] = gradient;
    return;
  }
  const Rule rule = {sgd, beta1, rest1, beta2, rest2, epsilon};
  parameters[i] = rule.apply(p, gradient, of_m, of_v, decay, penalty, rate);
  m[i] = of_m;
  if (!sgd) v[i] = of_v;
}
