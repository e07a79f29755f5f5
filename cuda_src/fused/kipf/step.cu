// A full-batch training step of Kipf's two-layer GCN on one graph in four kernels; fused/FUSED.md explains it.
//
//   Z = dropout(relu(U W1)),  U = A dropout(X)      logits = A (Z W2)      the loss covers labelled rows only
//
// Source: own. The first layer is (A X) W1 instead of A (X W1). U depends on no parameter, so this step's kernels compute
// the next step's U in idle blocks, and the step has two grid-wide waits fewer. Only the R rows of Z that the T labelled
// rows read are computed. U is a sparse matrix (R, F) of constant structure. Each entry sums the products A_ij X_jf whose
// X_jf dropout keeps; the host lists the products once. Everything else is a weighted sum of rows. Each sum has a fixed
// order and one writer, so results repeat to the bit.
//
// Shapes: F, P, K are the columns of X, Z and the logits. Matrices that only these kernels read have rows padded to 4
//   floats: t, dt (R, pad(K)), dlogits (T, pad(K)), dz (R, pad(P)). Parameters are not padded.
//   Double buffers, (2, …): step s reads buffer s % 2 while the data of step s + 1 is written to the other.
//   progress (READERS,): the number of the step, once for each kernel that reads it. A copy is written by a kernel that is
//   neither its reader nor the one before it, so it can be read before the wait (fused/shared/fused.cuh, order of kernels).
// Waits. Before `wait_for_previous`, each thread loads its first entries, and: in forward the dropout bits of its row, in
//   backward W2 and Z, in update its parameter, m and v. Then barriers of the block, at which all its threads arrive:
//
//   kernel    barrier                               before it                          after it
//   forward   one for each 4 * 2^lane_bits columns  partial sums of warps, W2          reduction; then a warp per row goes
//                                                                                      on alone
//             one between two of these              a reduction                        the next one
//   loss      none
//   backward  one                                   W2, dT                             dZ
//   update    two                                   partial sums of warps; gradients   reduction; Adam
//
// Requires: K at most COLUMNS * MAX_LANES = 128.
#include "fused/kipf/phases.cuh"

using namespace kipf;

enum Reader { FORWARD_STEP, LOSS_STEP, UPDATE_STEP, READERS };

// ---------------------------------------------------------------------------------------------------------- forward

struct KipfForwardParams {
  float *z, *t;           // z (R, P) or null: not stored
  unsigned char* kept;    // (2, n_drawn): dropout bits, eight to a byte
  int* progress;          // null: inference, always step 0
  const int* keys;        // (steps, 2): epoch and step, for the dropout bits
  const int* order;       // (R,): rows of Z
  Csr u;                  // (R, F); the values of the two buffers lie u_stride apart
  const int* kept_first;  // (R,): the number of a row's first bit; null: no dropout of Z
  const float *w1, *w2;
  Dropout dropout;
  int u_stride, n_long, n_rows, n_drawn, n_drawn_x;  // n_rows = R
  int P, K, lane_bits, out_bits;                     // bits: of rows of P and of K columns
};

// Draw byte d of the dropout bits of step `next`.
__device__ __forceinline__ void draw(const KipfForwardParams& params, int d, int next) {
  if (d >= params.n_drawn) return;
  const Dropout& dropout = params.dropout;
  const PhiloxKey key = {dropout.seed, d < params.n_drawn_x ? dropout.purpose_x : dropout.purpose_z,
                         static_cast<unsigned long long>(params.keys[2 * next]),
                         static_cast<unsigned long long>(params.keys[2 * next + 1])};
  const PhiloxBlock bits = philox(key, dropout.drawn[d]);
  unsigned byte = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) byte |= (bits.value[i] >= dropout.threshold) << i;
  params.kept[(next & 1) * params.n_drawn + d] = static_cast<unsigned char>(byte);
}

// z = dropout(relu(U W1)), t = z W2; other blocks draw the next step's dropout bits.
//
// Launch: a block of 256 threads per long row or four short ones, then a thread per byte to draw. Cora: 644 rows, of 88
//   entries on average and 788 at most, in 217 blocks, and 22 blocks that draw; four lanes read a row of W1, so a block
//   reads 16 or 64 entries at a time.
// Shared memory: 4 (P pad(K) + 4 P) bytes dynamic for W2 and rows of Z, 4 KB static. Bank conflicts: negligible.
// Traffic: reads 8 nnz + 4 nnz P bytes (W1 from L2), writes 4 R (P + K).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    kipf_forward(const __grid_constant__ KipfForwardParams params) {
  extern __shared__ float shared[];
  const int P = params.P, K = params.K, lane_bits = params.lane_bits, out_bits = params.out_bits;
  const int step = params.progress ? params.progress[FORWARD_STEP] : 0, buffer = step & 1, block = blockIdx.x;
  const int n_blocks = blocks_for(params.n_long, params.n_rows);
  if (block >= n_blocks) {
    draw(params, (block - n_blocks) * THREADS + threadIdx.x, step + 1);
    fused::wait_for_previous();
    if (block == 0 && threadIdx.x == 0) params.progress[UPDATE_STEP] = step;
    return;
  }
  const Task task(params.order, block, params.n_long, params.n_rows);
  const int row = task.number, group = task.thread >> lane_bits, lane = lane_of(task.thread, lane_bits);
  float *const shared_w2 = shared, *const shared_z = shared + P * pad(K) + task.slot * P;
  const int begin = row < 0 ? 0 : params.u.indptr[row], end = row < 0 ? 0 : params.u.indptr[row + 1];
  Entries<Indices> entries = {params.u.values + buffer * params.u_stride,
                              {params.u.indices},
                              begin + group,
                              COLUMNS * lane < P ? end : 0,
                              task.threads >> lane_bits,
                              1};
  Prefetched next = prefetch(entries, entries.first);
  const KeptRow kept = {params.kept_first ? params.kept + buffer * params.n_drawn : nullptr,
                        params.kept_first && row >= 0 ? params.kept_first[row] : 0};
  unsigned kept4 = kept.bits(COLUMNS * lane, group == 0 ? P : 0);
  fused::wait_for_previous();
  if (params.progress && block == 0 && threadIdx.x == 0) params.progress[UPDATE_STEP] = step;

  const float *const w1 = params.w1, *const w2 = params.w2;
  const int padded = pad(K), n_w2 = P * padded;
  const auto w2_at = [=](int i) { return i < n_w2 && i % padded < K ? w2[i / padded * K + i % padded] : 0.f; };
  float own_w2 = w2_at(threadIdx.x);
#pragma unroll 1
  for (int first = 0; first < P; first += COLUMNS << lane_bits) {
    const int column = first + COLUMNS * lane;
    if (first > 0) {
      __syncthreads();  // between two calls of reduce_task
      entries.last = column < P ? end : 0;
      next = prefetch(entries, entries.first);
      kept4 = kept.bits(column, group == 0 ? P : 0);
    }
    float4 sum = P % 4 == 0 ? sum_rows(entries, next, Column{w1 + column, P})
                            : sum_rows(entries, next, RaggedColumn{w1 + column, P, P - column});
    if (first == 0) {
      for (int i = threadIdx.x; i < n_w2; i += THREADS, own_w2 = w2_at(i)) shared_w2[i] = own_w2;
    }
    sum = reduce_task(sum, lane_bits, task);
    if (group == 0 && row >= 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float y = component(sum, i);
        const float value = kept4 >> i & 1 ? positive(y) * params.dropout.keep_scale : 0.f;
        if (column + i < P) {
          shared_z[column + i] = value;
          if (params.z) params.z[row * P + column + i] = value;
        }
      }
    }
  }
  // The first warp of the task wrote the row of z; it alone multiplies it by W2.
  if (task.thread >= 32 || row < 0) return;
  __syncwarp();
  const int out_lane = lane_of(task.thread, out_bits), out_group = task.thread >> out_bits;
  const bool has_columns = COLUMNS * out_lane < K;
  const Entries<Identity> products = {shared_z, {}, out_group, has_columns ? P : 0, 32 >> out_bits, 1};
  const float4 sum = reduce_warp(
      sum_rows(products, prefetch(products, out_group), Column{shared_w2 + COLUMNS * out_lane, padded}), out_bits);
  if (out_group == 0 && has_columns) reinterpret_cast<float4*>(params.t + row * padded)[out_lane] = sum;
}

struct KipfLogitsParams {
  float* logits;   // (N, K)
  const float* t;  // (N, pad(K))
  Csr a;           // (N, N)
  int n_rows, K, out_bits;
};

// logits = A t, for inference.
//
// Launch: a warp per row of logits. Cora: 339 blocks of 256. Traffic: reads 8 nnz + 4 nnz K bytes, writes 4 N K.
extern "C" __global__ void __launch_bounds__(THREADS) kipf_logits(const __grid_constant__ KipfLogitsParams params) {
  const int K = params.K, row = blockIdx.x * WARPS + threadIdx.x / 32, column = threadIdx.x % 32 * COLUMNS;
  const WarpRow of_a(params.a, row, params.n_rows, K, params.out_bits);
  fused::wait_for_previous();
  const float4 sum = of_a.times(params.t, K);
  if (row < params.n_rows && column < K)
    store4(params.logits + static_cast<long long>(row) * K + column, sum, K - column, false);
}

// ------------------------------------------------------------------------------------------------------------- loss

struct KipfLossParams {
  float* dlogits;
  double* losses;              // (T,)
  float *u_values, *t_values;  // (2, nnz): of U by rows and by columns
  int* progress;
  const float* t;
  Csr a;                      // (T, R): the labelled rows of A; columns are rows of t
  const int* labels;          // (T,)
  const float* class_weight;  // (K,)
  const unsigned char* kept;  // (2, n_drawn)
  const int* product_ptr;     // (nnz+1,)
  const Product* products;    // (product_ptr[nnz],)
  const int* long_entries;    // (n_long,): entries of U with more than THREAD_PRODUCTS products
  const int* place;           // (nnz,): an entry's position in U by columns
  float label_weight;         // sum of the labelled rows' class weights
  int n_labels, n_long, n_entries, n_drawn, K, out_bits;
};

// Softmax cross-entropy of the labelled rows and its gradient (dense/loss.cu); other blocks sum the next step's U.
//
// Launch: a warp per labelled row, a warp per long entry of U, a thread per entry of U. Cora: 18 + 37 + 223 blocks of 256.
// Traffic: reads 8 products + 8 nnz bytes, writes 8 nnz; the loss 8 nnz(A) + 4 nnz(A) K, writes 4 T K.
extern "C" __global__ void __launch_bounds__(THREADS, 4) kipf_loss(const __grid_constant__ KipfLossParams params) {
  const int K = params.K, out_bits = params.out_bits, n_blocks = ceil_div(params.n_labels, WARPS);
  const int step = params.progress[LOSS_STEP], buffer = (step + 1) & 1, block = blockIdx.x;
  if (block >= n_blocks) {
    const NextU u = {params.u_values + buffer * params.n_entries,
                     params.t_values + buffer * params.n_entries,
                     params.kept + buffer * params.n_drawn,
                     params.product_ptr,
                     params.products,
                     params.place};
    const int long_blocks = ceil_div(params.n_long, WARPS), warp = (block - n_blocks) * WARPS + threadIdx.x / 32;
    if (block < n_blocks + long_blocks) {
      u.sum_by_warp(warp < params.n_long ? params.long_entries[warp] : -1);
    } else {
      const int entry = (block - n_blocks - long_blocks) * THREADS + threadIdx.x;
      u.sum_by_thread(entry < params.n_entries ? entry : -1);
    }
    return;
  }
  const int row = block * WARPS + threadIdx.x / 32, lane = lane_of(threadIdx.x, out_bits);
  const WarpRow of_a(params.a, row, params.n_labels, K, out_bits);
  const int label = row < params.n_labels ? params.labels[row] : 0;
  const float own = params.class_weight[label], factor = params.label_weight > 0.f ? own / params.label_weight : 0.f;
  fused::wait_for_previous();
  if (block == 0 && threadIdx.x == 0) params.progress[FORWARD_STEP] = step + 1;

  const float4 z = of_a.times(params.t, K);
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
  if (row >= params.n_labels) return;
  const float inverse = 1.f / of_row.norm;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    e[i] = 4 * lane + i < K ? factor * softmax_slope(e[i], inverse, 4 * lane + i == label) : 0.f;
  if (threadIdx.x % 32 >> out_bits == 0 && 4 * lane < K)
    reinterpret_cast<float4*>(params.dlogits + row * pad(K))[lane] = make_float4(e[0], e[1], e[2], e[3]);
  if (threadIdx.x % 32 == 0) params.losses[row] = static_cast<double>(own) * of_row.cost(at_label);
}

// --------------------------------------------------------------------------------------------------------- backward

struct KipfBackwardParams {
  float *dt, *dz;
  const float *z, *dlogits;
  Csr b;  // (R, T): A^T; columns are labelled rows
  const float* w2;
  float keep_scale;  // of dropout: 1 / (1 - rate)
  int n_rows, P, K, out_bits;
};

// dt = A^T dlogits, dz = dt W2^T where z > 0: elsewhere ReLU or dropout set z to 0.
//
// Launch: a warp per row. Cora: 81 blocks of 256; a row of A^T has 1.2 entries on average, 10 at most.
// Shared memory: 4 (P K + 8 pad(K)) bytes for W2 and the warps' rows of dt. Traffic: reads 4 R P, writes 4 R (P + K).
extern "C" __global__ void __launch_bounds__(THREADS) kipf_backward(const __grid_constant__ KipfBackwardParams params) {
  extern __shared__ float shared[];
  const int P = params.P, K = params.K;
  float *const shared_w2 = shared, *const shared_dt = shared + P * K + threadIdx.x / 32 * pad(K);
  const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const WarpRow of_b(params.b, row, params.n_rows, K, params.out_bits);
  float own_z = row < params.n_rows && lane < P ? params.z[row * P + lane] : 0.f;
  for (int i = threadIdx.x; i < P * K; i += THREADS) shared_w2[i] = params.w2[i];
  fused::wait_for_previous();
  const float4 sum = of_b.times(params.dlogits, K);
  if (row < params.n_rows && 4 * lane < K) {
    reinterpret_cast<float4*>(params.dt + row * pad(K))[lane] = sum;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (4 * lane + i < K) shared_dt[4 * lane + i] = component(sum, i);
  }
  __syncthreads();
  if (row >= params.n_rows) return;
#pragma unroll 1
  for (int p = lane; p < pad(P); p += 32) {
    if (p > lane) own_z = p < P ? params.z[row * P + p] : 0.f;
    float value = 0.f;
    if (own_z > 0.f)
      for (int k = 0; k < K; ++k) value += shared_dt[k] * shared_w2[p * K + k];
    params.dz[row * pad(P) + p] = own_z > 0.f ? value * params.keep_scale : 0.f;
  }
}

// ----------------------------------------------------------------------------------------------------------- update

struct KipfUpdateParams {
  float *parameters, *m, *v, *gradients;  // of the model, flat; W1 begins at start1, W2 at start2; SGD has no v
  double* totals;                         // (2,): sums of losses and of label weights
  int* progress;
  const double* losses;            // (T,)
  const float *weight_decay, *l2;  // as parameters
  const Rate* rates;               // (steps,)
  const int* order;                // (F + P,): tasks; those below F are rows of W1, the others rows of W2
  Csr u_by_columns;                // (F, R); the values of the two buffers lie t_stride apart
  const float *dz, *z, *dt;
  float label_weight;
  int start1, start2, t_stride, n_long, n_rows, n_labels, F, P, K, lane_bits, out_bits;
  fused::UpdateMode mode;  // UPDATE or ONLY_GRADIENTS
  Rule rule;
};

// dW1 = U^T dz, dW2 = z^T dt. The task that sums a row of a gradient also updates the parameters (dense/optimizer.cu); with
// `mode` ONLY_GRADIENTS it writes the gradient instead. One more block adds the losses.
//
// Launch: a block of 256 threads per long task or four short ones; grid y: blocks of 128 columns of W1. Cora: 445 blocks;
//   a column of U has 40 entries on average and 561 at most, a column of z 644.
// Shared memory: 6 KB static. Traffic: reads 8 nnz + 4 nnz P bytes (dz from L2), reads and writes 16 (F P + P K).
extern "C" __global__ void __launch_bounds__(THREADS, 4) kipf_update(const __grid_constant__ KipfUpdateParams params) {
  __shared__ float4 gradients4[SHORT_TASKS * MAX_LANES];
  const int F = params.F, P = params.P, K = params.K, n_rows = params.n_rows;
  const int step = params.progress[UPDATE_STEP], block = blockIdx.x;
  if (block == blocks_for(params.n_long, F + P)) {
    fused::wait_for_previous();
    if (blockIdx.y > 0 || threadIdx.x >= 32) return;
    fused::add_totals(params.totals, params.losses, params.n_labels, params.label_weight);
    if (threadIdx.x == 0) params.progress[LOSS_STEP] = step + 1;
    return;
  }
  const Task task(params.order, block, params.n_long, F + P);
  const int number = task.number;
  const bool is_first = number < F;
  const int width = is_first ? P : K, bits = is_first ? params.lane_bits : params.out_bits, stride = pad(width);
  const int begin = (COLUMNS << bits) * blockIdx.y, left = number < 0 ? 0 : min(width - begin, COLUMNS << bits);
  const int lane = lane_of(task.thread, bits), group = task.thread >> bits, column = begin + COLUMNS * lane;
  const Csr& u = params.u_by_columns;
  Entries<IndicesIfAny> entries = {params.z + number - F, {nullptr}, group, n_rows, task.threads >> bits, P};
  if (is_first) entries = {u.values + (step & 1) * params.t_stride, {u.indices}, 0, 0, task.threads >> bits, 1};
  if (is_first && number >= 0) entries.first = u.indptr[number] + group, entries.last = u.indptr[number + 1];
  if (left <= 0 || column >= stride) entries.last = 0;
  const Prefetched next = prefetch(entries, entries.first);
  const bool owns = task.thread < left;
  const int i = (is_first ? params.start1 + number * P : params.start2 + (number - F) * K) + begin + task.thread;
  const float p = owns ? params.parameters[i] : 0.f;
  float m = owns ? params.m[i] : 0.f, v = owns && !params.rule.sgd ? params.v[i] : 0.f;
  const float decay = owns ? params.weight_decay[i] : 0.f, penalty = owns ? params.l2[i] : 0.f;
  const Rate rate = params.rates[step];
  fused::wait_for_previous();

  const Column matrix = {(is_first ? params.dz : params.dt) + column, stride};
  const float4 sum = reduce_task(sum_rows(entries, next, matrix), bits, task);
  if (group == 0) gradients4[task.slot * MAX_LANES + lane] = sum;
  __syncthreads();
  if (!owns) return;
  const float gradient = reinterpret_cast<const float*>(gradients4)[task.slot * COLUMNS * MAX_LANES + task.thread];
  if (params.mode == fused::ONLY_GRADIENTS) {
    params.gradients[i] = gradient;
    return;
  }
  params.parameters[i] = params.rule.apply(p, gradient, m, v, decay, penalty, rate);
  params.m[i] = m;
  if (!params.rule.sgd) params.v[i] = v;
}
