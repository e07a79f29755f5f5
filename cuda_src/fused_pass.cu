#include "fused_pass_readout.cuh"

namespace fused {

template <int S>
struct PassStep {
  static constexpr int P = S * HALF_PANEL, COLUMN_LANES = WORKERS / HALF_PANEL;

  PassShared& at;
  Owner own;
  const Exchange exchange;
  const int tile, slice;
  int tiles, rows, N;  // of this step; of this tile; of all
  float share_of_node;  // 1 / N
  unsigned tag;
  Phases phases;
  // of this thread's two columns, in the layer at hand
  float mean[2], inverse[2], gamma[2], beta[2], slope[2];

  __device__ __forceinline__ int layers() const { return static_cast<int>(at.pass.n_layers); }
  __device__ __forceinline__ int column(int half) const { return slice * HALF_PANEL + own.column(half); }
  __device__ __forceinline__ bool exists(int i) const { return own.row(i) < rows; }
  __device__ __forceinline__ Half* panel(Half* panels) const {
    return panels + (static_cast<long long>(tile) * S + slice) * (TILE_ROWS * HALF_PANEL);
  }
  __device__ __forceinline__ ulonglong2* pairs(int slot, int of_tile) const {
    return exchange.pairs + (static_cast<long long>(slot) * at.pass.tiles + of_tile) * P + slice * HALF_PANEL;
  }
  __device__ __forceinline__ long long blocks() const { return at.pass.tiles * S; }
  __device__ __forceinline__ float4* norm_of(int l) const {
    return exchange.norms + (l * blocks() + tile * S + slice) * WORKERS + threadIdx.x;
  }
  // This thread's values of Y, four neighbours of them at vector i.
  __device__ __forceinline__ float4* y_of(int l) const {
    return reinterpret_cast<float4*>(at.layers[l].y +
                                     (static_cast<long long>(tile) * S + slice) * TILE_ROWS * HALF_PANEL) +
           threadIdx.x;
  }
  __device__ __forceinline__ const Half* weights(const Half* of_all, int panels) const {
    return of_all + static_cast<long long>(slice) * panels * (HALF_PANEL * HALF_PANEL);
  }

  // ---- the exchange ----

  // Bring what the tiles found of this slice's columns to `parts`.
  __device__ __forceinline__ void collect(int slot) {
    constexpr int AT_ONCE = 3;
    const int c = threadIdx.x % HALF_PANEL;
#pragma unroll 1
    for (int first = threadIdx.x / HALF_PANEL; first < tiles; first += AT_ONCE * COLUMN_LANES) {
      const ulonglong2* from = pairs(slot, first) + c;
      float2 found[AT_ONCE];
      unsigned missing = 0;
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) missing |= (first + i * COLUMN_LANES < tiles) << i;
      const unsigned all = missing;
#pragma unroll 1
      while (missing) {
        bool is_there[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          is_there[i] = (missing >> i & 1) && try_read(found[i], from + i * COLUMN_LANES * P, tag);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) missing &= ~(static_cast<unsigned>(is_there[i]) << i);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        if (all >> i & 1) at.parts[first + i * COLUMN_LANES][c] = found[i];
    }
  }

  // ---- forward ----

  // Y of layer l, its batch norm, Z in `rows`; y becomes the distances from the means. meanwhile(): what there is to do
  // until the other tiles' moments are there.
  template <class Meanwhile>
  __device__ __forceinline__ void forward(float (&y)[OWN], int l, Meanwhile meanwhile) {
    const PassLayer& layer = at.layers[l];
    const bool is_last = l + 1 == layers();
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      bias[h] = layer.bias[column(h)], gamma[h] = layer.gamma[column(h)], beta[h] = layer.beta[column(h)];
    multiply_panels(y, at, static_cast<int>(layer.K) / HALF_PANEL, phases, own.group);
    STAMP(l * 8 + 1);
    tell_sender(MULTIPLIED);

    const float factor = 1.f / (WEIGHT_SCALE * layer.u_scale);
    float sum[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      y[i] = fmaf(y[i], factor, at.rowsum[own.row(i)] * bias[i % 4 / 2]);  // 0 in rows that do not exist
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
    if (!is_last) {
#pragma unroll
      for (int i = 0; i < OWN / 4; ++i)
        y_of(l)[i * WORKERS] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
    }
    const bool keeps_running = tile == 0 && own.group == 0 && own.t == 0;
    float old_mean[2], old_var[2];
#pragma unroll
    for (int h = 0; keeps_running && h < 2; ++h)
      old_mean[h] = layer.running_mean[column(h)], old_var[h] = layer.running_var[column(h)];
    meanwhile();
    collect(l);
    sync_workers();
    STAMP(l * 8 + 3);
    fold_moments(squares);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = rsqrtf(squares[h] * share_of_node + layer.epsilon), slope[h] = gamma[h] * inverse[h];
      if (!keeps_running || N == 0) continue;
      layer.running_mean[column(h)] = old_mean[h] + layer.momentum * (mean[h] - old_mean[h]);
      layer.running_var[column(h)] = old_var[h] + layer.momentum * (squares[h] / max(N - 1, 1) - old_var[h]);
    }
    if (!is_last) *norm_of(l) = make_float4(mean[0], inverse[0], mean[1], inverse[1]);
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

  __device__ __forceinline__ int rows_of_group(int group) const {
    return min(max(rows - group * GROUP_ROWS, 0), GROUP_ROWS);
  }

  // The tile's moments of the 64 columns, of those of its groups.
  __device__ __forceinline__ void publish_moments(int l) {
    float sum = 0.f, squares = 0.f;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += rows_of_group(group) * at.of_groups[group][threadIdx.x].x;
    const float middle = sum / max(rows, 1);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const float2 found = at.of_groups[group][threadIdx.x];
      const float distance = found.x - middle;
      squares += found.y + rows_of_group(group) * (distance * distance);
    }
    publish(pairs(l, tile) + threadIdx.x, middle, squares, tag);
  }

  // Mean and sum of squared distances of this thread's columns, of the tiles' moments; four lanes share columns. Distances
  // are taken from the mean of the first tile, which is no outlier: it has its share of the rows.
  __device__ __forceinline__ void fold_moments(float (&squares)[2]) {
    float pivot[2], sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) pivot[h] = at.parts[0][own.column(h)].x, squares[h] = 0.f;
#pragma unroll 4
    for (int of = own.t; of < tiles; of += 4) {
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
      const float shift = sum[h] * share_of_node;
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
      publish(pairs(layers() + l, tile) + threadIdx.x, total.x, total.y, tag);
    } else if (own.warp == 2) {
      highest = __reduce_max_sync(FULL_WARP, own.lane < WORKERS / 32 ? at.highest[own.lane] : 0u);
      if (own.lane == 0) publish(exchange.highest + l * blocks() + tile * S + slice, highest, tag);
    }
    STAMP(64 + l * 8 + 1);
    collect(layers() + l);
    const unsigned found =
        static_cast<int>(threadIdx.x) < tiles * S ? read(exchange.highest + l * blocks() + threadIdx.x, tag) : 0u;
    const unsigned found_highest = __reduce_max_sync(FULL_WARP, found);
    if (own.lane == 0) at.found_highest[own.warp] = found_highest;
    sync_workers();
    STAMP(64 + l * 8 + 2);
    const float scale = scale_of_highest();
    float2 total[2] = {};
#pragma unroll 4
    for (int of = own.t; of < tiles; of += 4) {
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
    for (int h = 0; h < 2; ++h) total[h].x *= share_of_node, total[h].y *= share_of_node * inverse[h];
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
    if (threadIdx.x < HALF_PANEL) {
      float sum = 0.f;
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) sum += at.bias_of_groups[group][threadIdx.x];
      layer.dbias[static_cast<long long>(tile) * P + slice * HALF_PANEL + threadIdx.x] = sum;
    }
    if (l > 0) {
      take_below(y, l - 1);
      propagate(at, panel(layer.v), panel(layer.dy), scale, own, tile, true);
      STAMP(64 + l * 8 + 4);
      return scale;
    }
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const int r = part_row(own, group), lane = own.lane % PART_LANES;
      RowPart part;
      part.load(reinterpret_cast<const unsigned char*>(at.rows[r]), lane);
      part.store(panel(layer.dy), r, lane, scale);
    }
    return scale;
  }

  // The power of two that dY and V are kept times.
  __device__ __forceinline__ float scale_of_highest() const {
    unsigned bits = 0;
#pragma unroll
    for (int warp = 0; warp < WORKERS / 32; ++warp) bits = max(bits, at.found_highest[warp]);
    if (bits == 0) return 1.f;
    const float bound = at.pass.reach * (2.f + sqrtf(static_cast<float>(N))) * __uint_as_float(bits);
    const int exponent = static_cast<int>(__float_as_uint(49152.f / bound) >> 23 & 255) - 127;
    return __int_as_float((min(max(exponent, -100), 100) + 127) << 23);
  }

  // Ask for Y and the batch norm of layer l, on the way back.
  __device__ __forceinline__ void take_below(float (&y)[OWN], int l) {
#pragma unroll
    for (int i = 0; i < OWN / 4; ++i) {
      const float4 found = y_of(l)[i * WORKERS];
      y[4 * i] = found.x, y[4 * i + 1] = found.y, y[4 * i + 2] = found.z, y[4 * i + 3] = found.w;
    }
    const float4 norm = *norm_of(l);
    mean[0] = norm.x, inverse[0] = norm.y, mean[1] = norm.z, inverse[1] = norm.w;
#pragma unroll
    for (int h = 0; h < 2; ++h) gamma[h] = at.layers[l].gamma[column(h)], beta[h] = at.layers[l].beta[column(h)];
  }

  // G and Y - mean of the layer below, whose Y is on its way.
  __device__ __forceinline__ void backward_product(float (&y)[OWN], float (&g)[OWN], float scale, int l) {
    multiply_panels(g, at, S, phases, own.group);
    tell_sender(MULTIPLIED);
    STAMP(64 + l * 8 + 6);
    const float factor = 1.f / (WEIGHT_SCALE * scale);
#pragma unroll
    for (int h = 0; h < 2; ++h) slope[h] = gamma[h] * inverse[h];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int h = i % 4 / 2;
      y[i] -= mean[h];
      g[i] = is_positive(y, i) ? g[i] * factor : 0.f;  // 0 in rows that do not exist
    }
  }

  __device__ __forceinline__ bool is_positive(const float (&y)[OWN], int i) const {
    return fmaf(y[i], slope[i % 4 / 2], beta[i % 4 / 2]) > 0.f;
  }

  // ---- the sender ----

  // Say that the place of U is free here; it takes the rows that come then.
  __device__ __forceinline__ void free_place() {
    if (own.lane == 0) {
      for (int group = 0; group < GROUPS; ++group) expect_bytes(&at.full[group], S * CHUNK_BYTES);
    }
    __syncwarp();
    if (own.lane < S) arrive_at_block(&at.is_free, own.lane);
  }

  // Send this block's panel of U or V, group by group; then the rest of the weights takes the place of Z or dY.
  __device__ __forceinline__ void send(const Half* from, const Half* of_weights, int phase) {
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      wait_for_workers(ROWS_WRITTEN + group);
      if (own.lane > 0) continue;
      order_copies_after_writes();
      if (group == 0) wait_for_blocks(&at.is_free, phase);
      send_chunk<S>(at, from, slice, group);
      if (group + 1 == GROUPS) fetch_high(at, of_weights, S);
    }
  }

  // Of all products: L forward, L - 1 backward. Between them blocks of many graphs meet during the readout, as workers do.
  __device__ __forceinline__ void serve(int n_graphs) {
    const int L = layers();
#pragma unroll 1
    for (int done = 0; done < 2 * L - 1; ++done) {
      const bool is_forward = done + 1 < L, is_last = done + 2 == 2 * L;
      const PassLayer& next = at.layers[is_forward ? done + 1 : is_last ? 0 : 2 * L - 2 - done];
      const Half* next_weights = weights(is_forward ? next.w_forward : next.w_backward, S);
      wait_for_workers(MULTIPLIED);
      if (!is_last && own.lane == 0) fetch_low(at, next_weights, S);
      if (done + 1 == L) {
        for (int first = READ_GRAPHS; first < n_graphs; first += READ_GRAPHS) {
          arrive_at_cluster();
          wait_for_cluster();
        }
        wait_for_workers(READ_OUT);
        arrive_at_end();
      }
      if (is_last) break;
      free_place();
      send(panel(is_forward ? next.u : next.v), next_weights, done & 1);
    }
  }

  // ---- the whole ----

  __device__ __forceinline__ PassStep(const long long* pass, const long long* layer_table)
      : at(pass_shared()),
        exchange(reinterpret_cast<const Pass*>(pass)->exchange,
                 static_cast<int>(reinterpret_cast<const Pass*>(pass)->n_layers),
                 static_cast<int>(reinterpret_cast<const Pass*>(pass)->tiles), P),
        tile(blockIdx.y),
        slice(blockIdx.x) {
    constexpr int FIELDS = sizeof(Pass) / 8, LAYER_FIELDS = sizeof(PassLayer) / 8;
    if (threadIdx.x < FIELDS) reinterpret_cast<long long*>(&at.pass)[threadIdx.x] = pass[threadIdx.x];
    const int n = static_cast<int>(reinterpret_cast<const Pass*>(pass)->n_layers);
    for (int e = threadIdx.x; e < n * LAYER_FIELDS; e += PASS_THREADS)
      reinterpret_cast<long long*>(at.layers)[e] = layer_table[e];
    if (threadIdx.x < TILE_ROWS) at.graph_of_row[threadIdx.x] = NO_ROW;
    if (threadIdx.x == 0) {
      for (int group = 0; group < GROUPS; ++group) init_barrier(&at.full[group], 1);
      init_barrier(&at.low, 1);
      init_barrier(&at.high, 1);
      init_barrier(&at.is_free, S);
      init_barrier(&at.are_read, S);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    arrive_at_cluster();
    wait_for_cluster();  // whoever sends finds the barriers
  }

  // The first product's operands; whether this step has the tile is not yet known.
  __device__ __forceinline__ void fetch_first() {
    const PassLayer& layer = at.layers[0];
    const int panels = static_cast<int>(layer.K) / HALF_PANEL;
    for (int group = 0; group < GROUPS; ++group) expect_bytes(&at.full[group], panels * CHUNK_BYTES);
    fetch_low(at, weights(layer.w_forward, panels), panels);
    const Half* tile_of_u = layer.u + static_cast<long long>(tile) * panels * (TILE_ROWS * HALF_PANEL);
    for (int group = 0; group < GROUPS; ++group)
      for (int q = slice; q < panels; q += S) send_chunk<S>(at, tile_of_u + q * (TILE_ROWS * HALF_PANEL), q, group);
    fetch_high(at, weights(layer.w_forward, panels), panels);
  }

  // Wait for them and leave: a tile that the step does not have.
  __device__ __forceinline__ void leave() {
    const int panels = static_cast<int>(at.layers[0].K) / HALF_PANEL;
    for (int group = 0; group < GROUPS; ++group) wait_barrier(&at.full[group], 0);
    wait_barrier(&at.low, 0);
    if (panels > LOW_PANELS) wait_barrier(&at.high, 0);
    if (slice == 0 && threadIdx.x == 0) at.pass.losses[tile] = 0.0;
    arrive_at_cluster();
    wait_for_cluster();
  }

  __device__ __forceinline__ void run() {
    wait_for_previous();
    let_next_start();
    STAMP(0);
    if (threadIdx.x == WORKERS) fetch_first();
    const Pass& pass = at.pass;
    tiles = pass.shape[0], N = pass.size[0], tag = *exchange.tag + 1, rows = pass.tile_rows[tile];
    share_of_node = 1.f / N;
    if (tile >= tiles) return leave();
    const int step = pass.size[2], first_graph = pass.tile_ptr[tile], n_graphs = pass.tile_ptr[tile + 1] - first_graph;
    const float label_weight = pass.rates[4 * step + 3];
    if (tile == 0 && slice == 0 && threadIdx.x == 0)
      *reinterpret_cast<int4*>(pass.progress) = make_int4(step + 1, N, pass.size[1], step);
    if (threadIdx.x < TILE_ROWS)
      at.rowsum[threadIdx.x] = static_cast<int>(threadIdx.x) < rows ? pass.rowsum[tile * TILE_ROWS + threadIdx.x] : 0.f;
    if (static_cast<int>(threadIdx.x) < tiles) at.tile_rows[threadIdx.x] = pass.tile_rows[threadIdx.x];
    const HeldRows held(TileRows(pass, tile, false));
    int row_of_graph = 0, rows_of_graph = 0;
    if (static_cast<int>(threadIdx.x) < n_graphs) {
      row_of_graph = pass.node_ptr[first_graph + threadIdx.x] - tile * TILE_ROWS;
      rows_of_graph = pass.n_nodes[first_graph + threadIdx.x];
    }
    const auto put_tables = [&] {
      held.put(at, TileRows(pass, tile, false));
      if (static_cast<int>(threadIdx.x) >= n_graphs) return;
      at.first_row[threadIdx.x] = static_cast<unsigned char>(row_of_graph);
      at.graph_rows[threadIdx.x] = static_cast<unsigned char>(rows_of_graph);
      for (int i = 0; i < rows_of_graph; ++i)
        at.graph_of_row[row_of_graph + i] = static_cast<unsigned char>(threadIdx.x);
    };
    __syncthreads();
    if (own.warp == WORKERS / 32) {
      serve(n_graphs);
    } else {
      work({at, own, tile, slice, first_graph, n_graphs}, label_weight, put_tables);
    }
    wait_for_cluster();  // nobody leaves while others read what it has of the logits
    if (tile == 0 && slice == 0 && threadIdx.x == 0) *exchange.tag = tag;
  }

  template <class Tables>
  __device__ __forceinline__ void work(const PassReadout<S>& readout, float label_weight, Tables put_tables) {
    const int L = layers();
    float y[OWN], g[OWN];
#pragma unroll 1
    for (int l = 0; l < L; ++l) {
      const bool is_last = l + 1 == L;
      forward(y, l, [&] {
        if (l == 0) put_tables();
        if (!is_last) return;
        readout.ask();
        if (at.pass.t_indptr == nullptr) return;
        const TileRows transposed(at.pass, tile, true);
        HeldRows(transposed).put(at, transposed);
      });
      if (!is_last) propagate(at, panel(at.layers[l + 1].u), nullptr, INPUT_SCALE, own, tile, false);
      STAMP(l * 8 + 5);
    }
    readout.run(g, label_weight, [&](int i) { return is_positive(y, i); });
    tell_sender(READ_OUT);
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

template <int S>
__device__ __forceinline__ void pass_step(const long long* pass, const long long* layers) {
  if constexpr (HAS_WARPGROUPS) {
    PassStep<S> step(pass, layers);
    step.run();
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

extern "C" __global__ void __launch_bounds__(416, 1) CLUSTERS_OF_2
    fused_pass_128(const long long* pass, const long long* layers) {
  fused::pass_step<2>(pass, layers);
}

extern "C" __global__ void __launch_bounds__(416, 1) CLUSTERS_OF_4
    fused_pass_256(const long long* pass, const long long* layers) {
  fused::pass_step<4>(pass, layers);
}

extern "C" __global__ void __launch_bounds__(416, 1) CLUSTERS_OF_6
    fused_pass_384(const long long* pass, const long long* layers) {
  fused::pass_step<6>(pass, layers);
}

extern "C" __global__ void __launch_bounds__(416, 1) CLUSTERS_OF_8
    fused_pass_512(const long long* pass, const long long* layers) {
  fused::pass_step<8>(pass, layers);
}
