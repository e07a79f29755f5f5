#include "fused_pass_sender.cuh"

namespace fused {

template <int S>
struct PassStep {
  static constexpr int P = S * HALF_PANEL, COLUMN_LANES = WORKERS / HALF_PANEL;

  PassShared& at;
  const int tile, slice;
  Owner own;
  Phases phases;
  float mean[2], inverse[2], gamma[2], beta[2], slope[2];  // of this thread's columns, in the layer at hand

  __device__ __forceinline__ PassStep(PassShared& shared, int own_tile, int own_slice)
      : at(shared), tile(own_tile), slice(own_slice) {}

  __device__ __forceinline__ int layers() const { return static_cast<int>(at.pass.n_layers); }
  __device__ __forceinline__ int column(int half) const { return slice * HALF_PANEL + own.column(half); }
  __device__ __forceinline__ bool exists(int i) const { return own.row(i) < at.step.rows; }
  __device__ __forceinline__ Half* panel(Half* panels) const {
    return panels + (static_cast<long long>(tile) * S + slice) * (TILE_ROWS * HALF_PANEL);
  }
  __device__ __forceinline__ ulonglong2* pairs(int slot, int of_tile) const {
    return Exchange(at.pass, P).pairs + (slot * at.pass.tiles + of_tile) * P + slice * HALF_PANEL;
  }
  __device__ __forceinline__ unsigned long long* highest_of(int l) const {
    return Exchange(at.pass, P).highest + l * at.pass.tiles * S;
  }
  __device__ __forceinline__ float2* norm_of(int l) const {
    return Exchange(at.pass, P).norms + ((l * at.pass.tiles + tile) * S + slice) * WORKERS + threadIdx.x;
  }
  // This thread's values of Y, four neighbours of them at vector i.
  __device__ __forceinline__ float4* y_of(int l) const {
    return reinterpret_cast<float4*>(at.layers[l].y +
                                     (static_cast<long long>(tile) * S + slice) * TILE_ROWS * HALF_PANEL) +
           threadIdx.x;
  }
  // ---- the exchange ----

  // Bring what the tiles found of this slice's columns to `parts`.
  __device__ __forceinline__ void collect(int slot) {
    constexpr int AT_ONCE = 3;
    const int c = threadIdx.x % HALF_PANEL;
#pragma unroll 1
    for (int first = threadIdx.x / HALF_PANEL; first < at.step.tiles; first += AT_ONCE * COLUMN_LANES) {
      const ulonglong2* from = pairs(slot, first) + c;
      float2 found[AT_ONCE];
      unsigned missing = 0;
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) missing |= (first + i * COLUMN_LANES < at.step.tiles) << i;
      const unsigned all = missing;
#pragma unroll 1
      while (missing) {
        bool is_there[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          is_there[i] = (missing >> i & 1) && try_read(found[i], from + i * COLUMN_LANES * P, at.step.tag);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) missing &= ~(static_cast<unsigned>(is_there[i]) << i);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        if (all >> i & 1) at.parts[first + i * COLUMN_LANES][c] = found[i];
    }
  }

  // ---- forward ----

  // Y of layer l, its batch norm, Z in `rows`; y becomes the distances from the means.
  __device__ __forceinline__ void forward(float (&y)[OWN], int l) {
    const PassLayer& layer = at.layers[l];
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      bias[h] = layer.bias[column(h)], gamma[h] = layer.gamma[column(h)], beta[h] = layer.beta[column(h)];
    float product[OWN];
    multiply_panels(product, at, static_cast<int>(layer.K) / HALF_PANEL, phases, own.group, [&] {
      if (l > 0) keep(y, l - 1);
    });
    STAMP(l * 8 + 1);
    tell(MULTIPLIED);

    const float factor = 1.f / (WEIGHT_SCALE * layer.u_scale);
    float sum[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      y[i] = fmaf(product[i], factor, at.rowsum[own.row(i)] * bias[i % 4 / 2]);  // 0 in rows that do not exist
      sum[i % 4 / 2] += y[i];
    }
    const float share = 1.f / max(rows_of_group(own.group), 1);
    float middle[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) middle[h] = sum_of_four(sum[h]) * share;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      const float distance = exists(i) ? y[i] - middle[h] : 0.f;
      squares[h] = fmaf(distance, distance, squares[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      squares[h] = sum_of_four(squares[h]);
      if (own.t == 0) at.of_groups[own.group][own.column(h)] = make_float2(middle[h], squares[h]);
    }
    sync_workers();  // and the product's operands are read
    if (threadIdx.x < HALF_PANEL) publish_moments(l);
    STAMP(l * 8 + 2);
    const bool keeps_running = tile == 0 && own.group == 0 && own.t == 0;
    float old_mean[2], old_var[2];
#pragma unroll
    for (int h = 0; keeps_running && h < 2; ++h)
      old_mean[h] = layer.running_mean[column(h)], old_var[h] = layer.running_var[column(h)];
    collect(l);
    if (l == 0) {
      wait_for(TABLES);
    } else {
      sync_workers();
    }
    STAMP(l * 8 + 3);
    fold_moments(squares);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = rsqrtf(squares[h] * at.step.share_of_node + layer.epsilon), slope[h] = gamma[h] * inverse[h];
      if (!keeps_running || at.step.N == 0) continue;
      layer.running_mean[column(h)] = old_mean[h] + layer.momentum * (mean[h] - old_mean[h]);
      layer.running_var[column(h)] = old_var[h] + layer.momentum * (squares[h] / max(at.step.N - 1, 1) - old_var[h]);
    }
    sync_workers();  // the parts are read
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      y[i] -= mean[h];
      at.rows[own.row(i)][own.column(h)] = positive(fmaf(y[i], slope[h], beta[h]));
    }
    sync_workers();
    STAMP(l * 8 + 4);
  }

  // For the way back: Y - mean of layer l and its batch norm.
  __device__ __forceinline__ void keep(const float (&y)[OWN], int l) {
#pragma unroll
    for (int i = 0; i < OWN / 4; ++i)
      y_of(l)[i * WORKERS] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
    *norm_of(l) = make_float2(inverse[0], inverse[1]);
  }

  __device__ __forceinline__ int rows_of_group(int group) const {
    return min(max(at.step.rows - group * GROUP_ROWS, 0), GROUP_ROWS);
  }

  // The tile's moments of the 64 columns, of those of its groups.
  __device__ __forceinline__ void publish_moments(int l) {
    float sum = 0.f, squares = 0.f;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += rows_of_group(group) * at.of_groups[group][threadIdx.x].x;
    const float middle = sum / max(at.step.rows, 1);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const float2 found = at.of_groups[group][threadIdx.x];
      const float distance = found.x - middle;
      squares += found.y + rows_of_group(group) * (distance * distance);
    }
    publish(pairs(l, tile) + threadIdx.x, middle, squares, at.step.tag);
  }

  // Mean and sum of squared distances of this thread's columns, of the tiles' moments; four lanes share columns. Distances
  // are taken from the mean of the first tile, which is no outlier: it has its share of the rows.
  __device__ __forceinline__ void fold_moments(float (&squares)[2]) {
    float pivot[2], sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) pivot[h] = at.parts[0][own.column(h)].x, squares[h] = 0.f;
#pragma unroll 4
    for (int of = own.t; of < at.step.tiles; of += 4) {
      const float n = at.tile_rows[of];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 found = at.parts[of][own.column(h)];
        const float distance = found.x - pivot[h], weighted = n * distance;
        sum[h] += weighted, squares[h] += found.y;
        squares[h] = fmaf(weighted, distance, squares[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = sum_of_four(sum[h]), squares[h] = sum_of_four(squares[h]);
      const float shift = sum[h] * at.step.share_of_node;
      mean[h] = pivot[h] + shift, squares[h] = positive(squares[h] - shift * sum[h]);
    }
  }

  // ---- backward ----

  // From G and Y - mean of layer l, which this thread holds, to dY, V = Aᵀ dY and the sums of the batch norm.
  __device__ __forceinline__ float backward(float (&y)[OWN], float (&g)[OWN], int l) {
    const PassLayer& layer = at.layers[l];
    float sum[2] = {}, product[2] = {}, largest[2] = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      sum[h] += g[i], product[h] = fmaf(g[i], y[i], product[h]), largest[h] = larger(largest[h], fabsf(g[i]));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = sum_of_four(sum[h]), product[h] = sum_of_four(product[h]) * inverse[h];
      if (own.t == 0) at.of_groups[own.group][own.column(h)] = make_float2(sum[h], product[h]);
    }
    unsigned highest = __float_as_uint(larger(fabsf(slope[0] * largest[0]), fabsf(slope[1] * largest[1])));
    highest = __reduce_max_sync(FULL_WARP, highest & 0x7fffffff);
    if (own.lane == 0) at.highest[own.warp] = highest;
    sync_workers();  // and the product's operands are read
    if (threadIdx.x < HALF_PANEL) {
      float2 total = make_float2(0.f, 0.f);
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) total = combine(total, at.of_groups[group][threadIdx.x]);
      publish(pairs(layers() + l, tile) + threadIdx.x, total.x, total.y, at.step.tag);
    } else if (own.warp == 2) {
      highest = __reduce_max_sync(FULL_WARP, own.lane < WORKERS / 32 ? at.highest[own.lane] : 0u);
      if (own.lane == 0) publish(highest_of(l) + tile * S + slice, highest, at.step.tag);
    }
    STAMP(64 + l * 8 + 1);
    collect(layers() + l);
    const unsigned found =
        static_cast<int>(threadIdx.x) < at.step.tiles * S ? read(highest_of(l) + threadIdx.x, at.step.tag) : 0u;
    const unsigned found_highest = __reduce_max_sync(FULL_WARP, found);
    if (own.lane == 0) at.found_highest[own.warp] = found_highest;
    sync_workers();
    STAMP(64 + l * 8 + 2);
    const float scale = scale_of_highest();
    float2 total[2] = {};
#pragma unroll 4
    for (int of = own.t; of < at.step.tiles; of += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) total[h] = combine(total[h], at.parts[of][own.column(h)]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] = make_float2(sum_of_four(total[h].x), sum_of_four(total[h].y));
      if (tile != 0 || own.group != 0 || own.t != 0) continue;
      layer.dbeta[column(h)] = total[h].x, layer.dgamma[column(h)] = total[h].y;
    }
    if (tile == 0 && slice == 0 && threadIdx.x == 0) *layer.scale = scale;
    sync_workers();  // the parts are read
    float dbias[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h].x *= at.step.share_of_node, total[h].y *= at.step.share_of_node * inverse[h];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      const float dy = exists(i) ? slope[h] * fmaf(-y[i], total[h].y, g[i] - total[h].x) : 0.f;
      dbias[h] = fmaf(at.rowsum[own.row(i)], dy, dbias[h]);
      at.rows[own.row(i)][own.column(h)] = dy;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      dbias[h] = sum_of_four(dbias[h]);
      if (own.t == 0) at.bias_of_groups[own.group][own.column(h)] = dbias[h];
    }
    sync_workers();
    STAMP(64 + l * 8 + 3);
    if (l > 0) {
      propagate(at, panel(layer.v), panel(layer.dy), scale, own, tile, true);
    } else {
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        const int r = part_row(own, group), lane = own.lane % PART_LANES;
        RowPart part = {};
        part.load(shared_address(at.rows[r]), lane);
        part.store(panel(layer.dy), r, lane, scale);
      }
    }
    STAMP(64 + l * 8 + 4);
    if (threadIdx.x < HALF_PANEL) {
      float sum = 0.f;
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) sum += at.bias_of_groups[group][threadIdx.x];
      layer.dbias[static_cast<long long>(tile) * P + slice * HALF_PANEL + threadIdx.x] = sum;
    }
    return scale;
  }

  // The power of two that dY and V are kept times.
  __device__ __forceinline__ float scale_of_highest() const {
    unsigned bits = 0;
#pragma unroll
    for (int warp = 0; warp < WORKERS / 32; ++warp) bits = max(bits, at.found_highest[warp]);
    if (bits == 0) return 1.f;
    const unsigned bound = __float_as_uint(at.step.reach * __uint_as_float(bits));  // (1 + m) 2^e
    const int exponent = 15 - (static_cast<int>(bound >> 23) - 127) - ((bound & 0x7fffff) > 0x400000);  // 49152 = 1.5 2^15
    return __int_as_float((min(max(exponent, -100), 100) + 127) << 23);
  }

  // Ask for what was kept of layer l, on the way back.
  __device__ __forceinline__ void take_below(float (&y)[OWN], int l) {
#pragma unroll
    for (int i = 0; i < OWN / 4; ++i) {
      const float4 found = y_of(l)[i * WORKERS];
      y[4 * i] = found.x, y[4 * i + 1] = found.y, y[4 * i + 2] = found.z, y[4 * i + 3] = found.w;
    }
    const float2 norm = *norm_of(l);
    inverse[0] = norm.x, inverse[1] = norm.y;
#pragma unroll
    for (int h = 0; h < 2; ++h) gamma[h] = at.layers[l].gamma[column(h)], beta[h] = at.layers[l].beta[column(h)];
  }

  // G and Y - mean of the layer below, which are on their way.
  __device__ __forceinline__ void backward_product(float (&y)[OWN], float (&g)[OWN], float scale, int l) {
    take_below(y, l - 1);
    multiply_panels(g, at, S, phases, own.group, [] {});
    tell(MULTIPLIED);
    STAMP(64 + l * 8 + 6);
    const float factor = 1.f / (WEIGHT_SCALE * scale);
#pragma unroll
    for (int h = 0; h < 2; ++h) slope[h] = gamma[h] * inverse[h];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      g[i] = is_positive(y, i) ? g[i] * factor : 0.f;  // 0 in rows that do not exist
    }
  }

  __device__ __forceinline__ bool is_positive(const float (&y)[OWN], int i) const {
    return fmaf(y[i], slope[i % 4 / 2], beta[i % 4 / 2]) > 0.f;
  }

  // ---- the whole ----

  __device__ __forceinline__ void run() {
    const int L = layers();
    const PassReadout<S> readout = {at, own, tile, slice};
    float y[OWN], g[OWN];
#pragma unroll 1
    for (int l = 0; l < L; ++l) {
      own.forget();
      forward(y, l);
      if (l + 1 < L) propagate(at, panel(at.layers[l + 1].u), nullptr, INPUT_SCALE, own, tile, false);
      STAMP(l * 8 + 5);
    }
    readout.run(g, [&](int i) { return is_positive(y, i); });
    tell(READ_OUT);
    arrive_at_end();
    STAMP(63);
#pragma unroll 1
    for (int l = L - 1;; --l) {
      own.forget();
      const float scale = backward(y, g, l);
      if (l == 0) break;
      backward_product(y, g, scale, l);
    }
    STAMP(62);
  }
};

// Tables and barriers to shared memory, before the kernel before has ended.
__device__ __forceinline__ void set_up(PassShared& at, const long long* pass, const long long* layers, int slices) {
  constexpr int FIELDS = sizeof(Pass) / 8, LAYER_FIELDS = sizeof(PassLayer) / 8;
  if (threadIdx.x < FIELDS) reinterpret_cast<long long*>(&at.pass)[threadIdx.x] = pass[threadIdx.x];
  const int n = static_cast<int>(reinterpret_cast<const Pass*>(pass)->n_layers) * LAYER_FIELDS;
#pragma unroll 1
  for (int e = threadIdx.x; e < n; e += PASS_THREADS) reinterpret_cast<long long*>(at.layers)[e] = layers[e];
  if (threadIdx.x < TILE_ROWS) at.graph_of_row[threadIdx.x] = NO_ROW;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) init_barrier(&at.full[group], 1);
    init_barrier(&at.low, 1), init_barrier(&at.high, 1), init_barrier(&at.head, 1);
    init_barrier(&at.is_free, slices), init_barrier(&at.are_read, slices), init_barrier(&at.are_back, slices);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  arrive_at_cluster();
  wait_for_cluster();  // whoever sends finds the barriers
}

// What there is to know of the step and the tile: a thread asks for its share, whether the step has the tile or not, and
// returns how many tiles it has.
__device__ __forceinline__ int fetch_facts(PassShared& at, int tile) {
  const Pass& pass = at.pass;
  const int t = threadIdx.x, tiles = pass.shape[0], rows = pass.tile_rows[tile];
  const float sum = t < TILE_ROWS ? pass.rowsum[tile * TILE_ROWS + t] : 0.f;
  const int of_tile = pass.tile_rows[min(t, static_cast<int>(pass.tiles) - 1)];
  const int4 size = *reinterpret_cast<const int4*>(pass.size);  // N, B, step, epoch
  const unsigned tag = *reinterpret_cast<const unsigned*>(pass.exchange) + 1;
  const int first = pass.tile_ptr[tile], end = pass.tile_ptr[tile + 1];
  if (t < TILE_ROWS) at.rowsum[t] = t < rows ? sum : 0.f;
  if (t < MAX_TILES) at.tile_rows[t] = of_tile;
  if (t == 0) {
    const float nodes = max(size.x, 1), reach = pass.reach * (2.f + nodes * rsqrtf(nodes));
    at.step = {tiles, size.x, rows, first, end - first, size.z, tag, __fdividef(1.f, nodes), reach};
    if (tile == 0 && blockIdx.x == 0)
      *reinterpret_cast<int4*>(pass.progress) = make_int4(size.z + 1, size.x, size.y, size.z);
  }
  return tiles;
}

// What the tile's first product reads is here; wait for it and leave: this step does not have the tile.
__device__ __forceinline__ void leave(PassShared& at, int tile, int slice) {
#pragma unroll 1
  for (int group = 0; group < GROUPS; ++group) wait_barrier(&at.full[group], 0);
  wait_barrier(&at.low, 0);
  if (at.layers[0].K > LOW_PANELS * HALF_PANEL) wait_barrier(&at.high, 0);
  if (slice == 0 && threadIdx.x == 0) at.pass.losses[tile] = 0.0;
  arrive_at_end();
}

template <int S>
__device__ __forceinline__ void pass_step(const long long* pass, const long long* layers) {
  if constexpr (HAS_WARPGROUPS) {
    PassShared& at = pass_shared();
    const int tile = blockIdx.y, slice = blockIdx.x;
    set_up(at, pass, layers, S);
    wait_for_previous();
    let_next_start();
    STAMP(0);
    const int lane = threadIdx.x % 32, sender_group = static_cast<int>(threadIdx.x) / 32 - WORKERS / 32;
    const PassSender<S> sender = {at, lane, sender_group, tile, slice};
    if (sender_group == 0) sender.fetch_first();
    const int tiles = fetch_facts(at, tile);
    __syncthreads();
    if (tile >= tiles) {
      leave(at, tile, slice);
    } else if (sender_group >= 0) {
      sender.run();
    } else {
      PassStep<S> step(at, tile, slice);
      step.run();
    }
    wait_for_cluster();  // nobody leaves while others read what it has of the logits
    if (tile == 0 && slice == 0 && threadIdx.x == 0 && at.step.tiles > 0) *Exchange(at.pass, 64 * S).tag = at.step.tag;
  }
}

}  // namespace fused

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTERS_OF_2 __cluster_dims__(2, 1, 1)
#define CLUSTERS_OF_4 __cluster_dims__(4, 1, 1)
#define CLUSTERS_OF_6 __cluster_dims__(6, 1, 1)
#define CLUSTERS_OF_8 __cluster_dims__(8, 1, 1)
#else
#define CLUSTERS_OF_2
#define CLUSTERS_OF_4
#define CLUSTERS_OF_6
#define CLUSTERS_OF_8
#endif

// ---- entry points: layers of 128, 256, 384 and 512 columns ----

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_2
    fused_pass_128(const long long* pass, const long long* layers) {
  fused::pass_step<2>(pass, layers);
}

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_4
    fused_pass_256(const long long* pass, const long long* layers) {
  fused::pass_step<4>(pass, layers);
}

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_6
    fused_pass_384(const long long* pass, const long long* layers) {
  fused::pass_step<6>(pass, layers);
}

extern "C" __global__ void __launch_bounds__(480, 1) CLUSTERS_OF_8
    fused_pass_512(const long long* pass, const long long* layers) {
  fused::pass_step<8>(pass, layers);
}
