// The compute warps of the fp16 step: layers forward, readout, layers backward (fused/fp16/step.cu lists the phases).
//
// A thread owns 12 rows of two columns of the block's 144 x 64 values. Y and G stay in its registers after a product. So a
// sum over rows is reduced in the thread, then over four lanes, then over three groups of warps.
#pragma once

#include "fused/fp16/readout.cuh"

namespace fused {

template <int S>
struct StepWorker {
  static constexpr int P = S * FP16_PANEL, COLUMN_LANES = WORKERS / FP16_PANEL;

  StepShared& at;
  const int tile, slice;
  Owner own;
  Phases phases;
  float mean[2], inverse[2], gamma[2], beta[2], slope[2];  // of this thread's columns in the current layer

  __device__ __forceinline__ StepWorker(StepShared& shared, int own_tile, int own_slice)
      : at(shared), tile(own_tile), slice(own_slice) {}

  __device__ __forceinline__ int layers() const { return at.params.n_layers; }
  __device__ __forceinline__ int column(int half) const { return slice * FP16_PANEL + own.column(half); }
  __device__ __forceinline__ bool exists(int i) const { return own.row(i) < at.step.rows; }
  __device__ __forceinline__ Fp16* panel(Fp16* panels) const {
    return panels + (static_cast<long long>(tile) * S + slice) * (TILE_ROWS * FP16_PANEL);
  }
  __device__ __forceinline__ ulonglong2* pairs(int slot, int of_tile) const {
    return Exchange(at.params, P).pairs + (slot * at.params.tiles + of_tile) * P + slice * FP16_PANEL;
  }
  __device__ __forceinline__ unsigned long long* highest_of(int l) const {
    return Exchange(at.params, P).highest + l * at.params.tiles * S;
  }
  __device__ __forceinline__ float2* norm_of(int l) const {
    return Exchange(at.params, P).norms + ((l * at.params.tiles + tile) * S + slice) * WORKERS + threadIdx.x;
  }
  // This thread's values of Y, vectors of four, WORKERS vectors apart.
  __device__ __forceinline__ float4* y_of(int l) const {
    return reinterpret_cast<float4*>(at.params.layers[l].y +
                                     (static_cast<long long>(tile) * S + slice) * TILE_ROWS * FP16_PANEL) +
           threadIdx.x;
  }

  // ---- the exchange ----

  // Gather the partial sums of all tiles for this slice's columns.
  __device__ __forceinline__ void gather_partials(int slot) {
    constexpr int AT_ONCE = 3;
    const int c = threadIdx.x % FP16_PANEL;
#pragma unroll 1
    for (int first = threadIdx.x / FP16_PANEL; first < at.step.tiles; first += AT_ONCE * COLUMN_LANES) {
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
        if (all >> i & 1) at.partials[first + i * COLUMN_LANES][c] = found[i];
    }
  }

  // ---- forward ----

  // Compute Y of layer l, its batch norm, and Z in `rows`; y is left as Y - mean.
  __device__ __forceinline__ void forward(float (&y)[OWN], int l) {
    const Fp16Layer& layer = at.params.layers[l];
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      bias[h] = layer.bias[column(h)], gamma[h] = layer.gamma[column(h)], beta[h] = layer.beta[column(h)];
    float product[OWN];
    multiply_panels(product, at, layer.K / FP16_PANEL, phases, own.group, [&] {
      if (l > 0) save(y, l - 1);
    });
    arrive_named(MULTIPLIED);

    const float factor = 1.f / (WEIGHT_SCALE * layer.u_scale);
    float sum[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      y[i] = fmaf(product[i], factor, at.rowsum[own.row(i)] * bias[i % 4 / 2]);  // 0 in unused rows
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
      if (own.t == 0) at.group_sums[own.group][own.column(h)] = make_float2(middle[h], squares[h]);
    }
    sync_workers();  // also: the product's operands are read
    if (threadIdx.x < FP16_PANEL) publish_moments(l);
    const bool keeps_running = tile == 0 && own.group == 0 && own.t == 0;
    float old_mean[2], old_var[2];
#pragma unroll
    for (int h = 0; keeps_running && h < 2; ++h)
      old_mean[h] = layer.running_mean[column(h)], old_var[h] = layer.running_var[column(h)];
    gather_partials(l);
    if (l == 0) {
      sync_named(TABLES);
    } else {
      sync_workers();
    }
    reduce_moments(squares);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = rsqrtf(squares[h] * at.step.share_of_node + layer.epsilon), slope[h] = gamma[h] * inverse[h];
      if (!keeps_running || at.step.N == 0) continue;
      layer.running_mean[column(h)] = old_mean[h] + layer.momentum * (mean[h] - old_mean[h]);
      layer.running_var[column(h)] = old_var[h] + layer.momentum * (squares[h] / max(at.step.N - 1, 1) - old_var[h]);
    }
    sync_workers();  // the partial sums are read
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      y[i] -= mean[h];
      at.rows[own.row(i)][own.column(h)] = positive(fmaf(y[i], slope[h], beta[h]));
    }
    sync_workers();
  }

  // Save Y - mean and 1 / deviation of layer l for the backward pass.
  __device__ __forceinline__ void save(const float (&y)[OWN], int l) {
#pragma unroll
    for (int i = 0; i < OWN / 4; ++i)
      y_of(l)[i * WORKERS] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
    *norm_of(l) = make_float2(inverse[0], inverse[1]);
  }

  __device__ __forceinline__ int rows_of_group(int group) const {
    return min(max(at.step.rows - group * GROUP_ROWS, 0), GROUP_ROWS);
  }

  // Publish the tile's moments of the 64 columns, from those of its groups.
  __device__ __forceinline__ void publish_moments(int l) {
    float sum = 0.f, squares = 0.f;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += rows_of_group(group) * at.group_sums[group][threadIdx.x].x;
    const float middle = sum / max(at.step.rows, 1);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const float2 found = at.group_sums[group][threadIdx.x];
      const float distance = found.x - middle;
      squares += found.y + rows_of_group(group) * (distance * distance);
    }
    publish(pairs(l, tile) + threadIdx.x, middle, squares, at.step.tag);
  }

  // Mean and sum of squared distances of this thread's columns, from the moments of all tiles; four lanes share columns.
  // Distances are from the mean of the first tile, which holds its share of the rows and so is no outlier.
  __device__ __forceinline__ void reduce_moments(float (&squares)[2]) {
    float pivot[2], sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) pivot[h] = at.partials[0][own.column(h)].x, squares[h] = 0.f;
#pragma unroll 4
    for (int of = own.t; of < at.step.tiles; of += 4) {
      const float n = at.tile_rows[of];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 found = at.partials[of][own.column(h)];
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

  // From G and Y - mean of layer l to dY, V = Aᵀ dY and the sums of batch norm; return the scale of dY.
  __device__ __forceinline__ float backward(float (&y)[OWN], float (&g)[OWN], int l) {
    const Fp16Layer& layer = at.params.layers[l];
    float sum[2] = {}, product[2] = {}, largest[2] = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      sum[h] += g[i], product[h] = fmaf(g[i], y[i], product[h]), largest[h] = larger(largest[h], fabsf(g[i]));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = sum_of_four(sum[h]), product[h] = sum_of_four(product[h]) * inverse[h];
      if (own.t == 0) at.group_sums[own.group][own.column(h)] = make_float2(sum[h], product[h]);
    }
    unsigned highest = __float_as_uint(larger(fabsf(slope[0] * largest[0]), fabsf(slope[1] * largest[1])));
    highest = __reduce_max_sync(FULL_WARP, highest & 0x7fffffff);
    if (own.lane == 0) at.highest[own.warp] = highest;
    sync_workers();  // also: the product's operands are read
    if (threadIdx.x < FP16_PANEL) {
      float2 total = make_float2(0.f, 0.f);
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) total = combine(total, at.group_sums[group][threadIdx.x]);
      publish(pairs(layers() + l, tile) + threadIdx.x, total.x, total.y, at.step.tag);
    } else if (own.warp == 2) {
      highest = __reduce_max_sync(FULL_WARP, own.lane < WORKERS / 32 ? at.highest[own.lane] : 0u);
      if (own.lane == 0) publish(highest_of(l) + tile * S + slice, highest, at.step.tag);
    }
    gather_partials(layers() + l);
    const unsigned found =
        static_cast<int>(threadIdx.x) < at.step.tiles * S ? read(highest_of(l) + threadIdx.x, at.step.tag) : 0u;
    const unsigned found_highest = __reduce_max_sync(FULL_WARP, found);
    if (own.lane == 0) at.found_highest[own.warp] = found_highest;
    if (l + 1 == layers()) {
      sync_named(TABLES);
    } else {
      sync_workers();
    }
    const float scale = scale_of_highest();
    float2 total[2] = {};
#pragma unroll 4
    for (int of = own.t; of < at.step.tiles; of += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) total[h] = combine(total[h], at.partials[of][own.column(h)]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] = make_float2(sum_of_four(total[h].x), sum_of_four(total[h].y));
      if (tile != 0 || own.group != 0 || own.t != 0) continue;
      layer.dbeta[column(h)] = total[h].x, layer.dgamma[column(h)] = total[h].y;
    }
    if (tile == 0 && slice == 0 && threadIdx.x == 0) *layer.scale = scale;
    sync_workers();  // the partial sums are read
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
      if (own.t == 0) at.group_bias[own.group][own.column(h)] = dbias[h];
    }
    sync_workers();
    if (l > 0) {
      propagate(at, panel(layer.v), panel(layer.dy), scale, own, tile, true);
    } else {
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        const int r = slice_row(own, group), lane = own.lane % SLICE_LANES;
        RowSlice part = {};
        part.load(shared_address(at.rows[r]), lane);
        part.store(panel(layer.dy), r, lane, scale);
      }
    }
    if (threadIdx.x < FP16_PANEL) {
      float sum = 0.f;
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) sum += at.group_bias[group][threadIdx.x];
      layer.dbias[static_cast<long long>(tile) * P + slice * FP16_PANEL + threadIdx.x] = sum;
    }
    return scale;
  }

  // The power of two that scales dY and V in fp16.
  __device__ __forceinline__ float scale_of_highest() const {
    unsigned bits = 0;
#pragma unroll
    for (int warp = 0; warp < WORKERS / 32; ++warp) bits = max(bits, at.found_highest[warp]);
    if (bits == 0) return 1.f;
    const unsigned bound = __float_as_uint(at.step.reach * __uint_as_float(bits));  // (1 + m) 2^e
    const int exponent =
        15 - (static_cast<int>(bound >> 23) - 127) - ((bound & 0x7fffff) > 0x400000);  // 49152 = 1.5 2^15
    return __int_as_float((min(max(exponent, -100), 100) + 127) << 23);
  }

  // Load what `save` stored of layer l.
  __device__ __forceinline__ void load_saved(float (&y)[OWN], int l) {
#pragma unroll
    for (int i = 0; i < OWN / 4; ++i) {
      const float4 found = y_of(l)[i * WORKERS];
      y[4 * i] = found.x, y[4 * i + 1] = found.y, y[4 * i + 2] = found.z, y[4 * i + 3] = found.w;
    }
    const float2 norm = *norm_of(l);
    inverse[0] = norm.x, inverse[1] = norm.y;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      gamma[h] = at.params.layers[l].gamma[column(h)], beta[h] = at.params.layers[l].beta[column(h)];
  }

  // G of the layer below; its Y - mean is loaded beside the product.
  __device__ __forceinline__ void backward_product(float (&y)[OWN], float (&g)[OWN], float scale, int l) {
    load_saved(y, l - 1);
    multiply_panels(g, at, S, phases, own.group, [] {});
    arrive_named(MULTIPLIED);
    const float factor = 1.f / (WEIGHT_SCALE * scale);
#pragma unroll
    for (int h = 0; h < 2; ++h) slope[h] = gamma[h] * inverse[h];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      g[i] = is_positive(y, i) ? g[i] * factor : 0.f;  // 0 in unused rows
    }
  }

  __device__ __forceinline__ bool is_positive(const float (&y)[OWN], int i) const {
    return fmaf(y[i], slope[i % 4 / 2], beta[i % 4 / 2]) > 0.f;
  }

  // ---- the whole step ----

  __device__ __forceinline__ void run() {
    const int L = layers();
    const StepReadout<S> readout = {at, own, tile, slice};
    float y[OWN], g[OWN];
#pragma unroll 1
    for (int l = 0; l < L; ++l) {
      own.forget();
      forward(y, l);
      if (l + 1 < L)
        propagate(at, panel(at.params.layers[l + 1].u), nullptr, at.params.layers[l + 1].u_scale, own, tile, false);
    }
    readout.run(g, [&](int i) { return is_positive(y, i); });
    arrive_named(READOUT_DONE);
    arrive_at_end();
#pragma unroll 1
    for (int l = L - 1;; --l) {
      own.forget();
      const float scale = backward(y, g, l);
      if (l == 0) break;
      backward_product(y, g, scale, l);
    }
  }
};

}  // namespace fused
