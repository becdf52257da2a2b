// The backward sweep for a cluster's streams: gradients of the states, and what the weights' gradients need.
//
// Gradients become halves in blocks of 16 units of one stream, each brought to the size of 1 by a power
// of two of its own, which stands behind the stream's row; products of blocks are scaled back one by one.

constexpr int EARLY = EACH < 2 ? EACH : 2;  // values dealt with before a stage begins
constexpr int ENTRY_LINE = PARTS * SIDE + 8;

constexpr int HELD = COLUMNS < 5 ? COLUMNS : 5;  // columns in registers, the others in shared memory

struct alignas(128) Shared {
  half_t features[2][(CLUSTER_STREAMS + 1) * LINE];  // of this stage and the one before it
  half_t stages[(CLUSTER_STREAMS + 1) * LINE];       // gradients of the stage, of the cluster's streams
  half_t own_stage[16 * LINE];
  half_t tiles[2][16 * LINE];
  half_t time_features[STAGES][16 * LINE];
  half_t time_column[SIDE * LINE];
  half_t columns[COLUMNS * SIDE * LINE];
  half_t entries[(EACH + 1) * 16 * ENTRY_LINE];
  float sums[(CLUSTER_STREAMS + 1) * SUM_LINE];
  float parts[CLUSTER_STREAMS * PART_LINE];
  float bias[COLUMNS][SIDE];
  Moves moves;
  alignas(8) u64 gates[2];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the host gives");

struct Back {
  u32 a[DEPTH][4][4];
  float before[DEPTH][4];  // of the stage that comes next
};

// Gradients d as halves with their powers of two.
INLINE void put_scaled(half_t* states, const float (&d)[4], const Own& own) {
  float most[2] = {fmaxf(fabsf(d[0]), fabsf(d[2])), fmaxf(fabsf(d[1]), fabsf(d[3]))}, inverse[2];
  for (int other = 4; other < 32; other *= 2)
    for (int i = 0; i < 2; i++) most[i] = fmaxf(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], other));
  for (int i = 0; i < 2; i++) {
    float power = power_of_two(most[i]);
    inverse[i] = inverse_of(power);
    if (own.g == 0) ((float*)(states + (own.stream + i) * LINE + SIDE))[own.m] = power;
  }
  store_transposed(own_rows(states, own), pack(d[0] * inverse[0], d[1] * inverse[1]),
                   pack(d[2] * inverse[0], d[3] * inverse[1]));
}

INLINE void scaled_layer(float (&d)[4], const u32 (&a)[4][4], const half_t* states, const Own& own) {
  u32 b[8];
  load_states(b, states, own);
  float found[4][4];
  for (int k = 0; k < 4; k++) {
    for (int i = 0; i < 4; i++) found[k][i] = 0.f;
    multiply(found[k], a[k], b[2 * k], b[2 * k + 1]);
  }
  for (int i = 0; i < 2; i++) {
    const float4 power = *(const float4*)(states + (own.stream + i) * LINE + SIDE);
    for (int j = i; j < 4; j += 2)
      d[j] = power.x * found[0][j] + power.y * found[1][j] + power.z * found[2][j] + power.w * found[3][j];
  }
}

INLINE void fetch_before(Back& back, const float* before, long long slot, long long streams, const Own& own) {
  if (slot >= 0)
    for (int l = 0; l < DEPTH; l++) read_own<WR>(back.before[l], before + (slot * DEPTH + l) * streams * WR, own);
}

// From the gradient d of what the last layer took in to that of the stage's input, also in d.
INLINE void pull_features(float (&d)[4], half_t (&tiles)[2][16 * LINE], Back& back, const float* before,
                          float* grads, long long slot, long long streams, const Own& own) {
  float now[DEPTH][4];
  for (int l = 0; l < DEPTH; l++) for (int i = 0; i < 4; i++) now[l][i] = back.before[l][i];
  fetch_before(back, before, slot - 1, streams, own);
  #pragma unroll
  for (int l = DEPTH - 1; l >= 0; l--) {
    for (int i = 0; i < 4; i++) d[i] = through_activation(d[i], now[l][i]);
    write_own<WR>(grads + (slot * DEPTH + l) * streams * WR, d, own);
    put_scaled(tiles[l & 1], d, own);
    mlp_wait();
    scaled_layer(d, back.a[l], tiles[l & 1], own);
  }
}

// The gradient of k_s: what it adds to the step's end and to later stages' inputs.
INLINE void pull_combine(float (&d)[4], const float (&g)[4], const float (&y)[STAGES][4], int s) {
  for (int i = 0; i < 4; i++) d[i] = table_b[s] * g[i];
  #pragma unroll
  for (int j = 0; j < STAGES; j++) for (int i = 0; i < 4; i++) d[i] += table_a[j][s] * y[j][i];
}

INLINE void fetch_features(half_t* to, const half_t* bent, int many, int last, int first) {
  #pragma unroll 1
  for (int i = threadIdx.x; i < many * 8; i += THREADS) {
    int stream = i >> 3, column = (i & 7) * 8;
    if (first + stream < last)
      copy_line(to + stream * LINE + column, bent + (first + stream) * (long long)SIDE + column, true);
  }
}

extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(256, 1) cluster_reverse(
    const float* g_knots, float* g_z0, float* g_ks, float* g_most, float* grads,
    const float* before, const half_t* bent,
    const float* time, const float* slopes, const int* lengths,
    const half_t* inner_head, const half_t* head, const float* bias,
    int streams, int pieces, int every) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  const int rank = rank_in_cluster(), cluster = blockIdx.x / BLOCKS;
  const int cluster_first = first_of(cluster, streams), cluster_last = first_of(cluster + 1, streams);
  const int first = cluster_first + rank * BLOCK_STREAMS;
  const long long many = streams;
  const Own own = own_part(lengths, cluster_last, first);
  const int last_piece = lengths[cluster_first];

  #pragma unroll 1
  for (int i = threadIdx.x; i < (int)(sizeof(Shared) / 4); i += THREADS) ((u32*)memory)[i] = 0;
  __syncthreads();
  bring_matrix(shared.time_column, head, true);
  #pragma unroll 1
  for (int c = 0; c < COLUMNS; c++) {
    int value = rank * EACH + c % EACH, channel = 1 + value + c / EACH * VALUES;
    bring_matrix(shared.columns + c * SIDE * LINE, head + (long long)channel * (HP * WP), value < VALUES);
    bring_bias(shared.bias[c], bias + channel * HP, value < VALUES);
  }
  begin_moves(shared.moves, lengths, cluster_last, cluster_first);
  if (threadIdx.x == 0) { gate_make(&shared.gates[0]); gate_make(&shared.gates[1]); gates_made(); }
  __syncthreads();
  Back back;
  #pragma unroll
  for (int l = 0; l < DEPTH; l++) {
    const half_t* matrix = inner_head + (l ? WP * HP + (l - 1) * WP * WP : 0);
    hold_rows<true>(back.a[l], matrix, own, WP, l ? WP : HP);
  }
  float time_bias[2];
  for (int i = 0; i < 2; i++) time_bias[i] = own.unit + 8 * i < HP ? bias[own.unit + 8 * i] : 0.f;

  float g[4] = {0, 0, 0, 0}, y[STAGES][4], largest[2] = {0, 0};
  #pragma unroll 1
  for (int knot = (last_piece + every - 1) / every; knot <= pieces / every; knot++) {
    float more[4];
    read_own<H>(more, g_knots + knot * many * H, own);
    for (int i = 0; i < 4; i++) g[i] += more[i];
  }
  for (int s = 0; s < STAGES; s++) for (int i = 0; i < 4; i++) y[s][i] = 0.f;
  fetch_before(back, before, (long long)last_piece * TOTAL - 1, many, own);

  // What a piece needs, asked for while the one after it is dealt with.
  auto fetch_piece = [&](int piece) {
    if (piece < 0) return;
    const long long slot = (long long)piece * TOTAL;
    if (piece % 2) {
      fetch_moves(shared.moves, slopes, piece / 2, streams, cluster_last, cluster_first, rank);
      fetch_features(shared.features[(TOTAL - 1) & 1], bent + (slot + TOTAL - 1) * many * SIDE, CLUSTER_STREAMS, cluster_last, cluster_first);
    } else {
      #pragma unroll 1
      for (int s = 0; s < STAGES; s++)
        fetch_features(shared.time_features[s], bent + (slot + TOTAL - STAGES + s) * many * SIDE, BLOCK_STREAMS, cluster_last, first);
    }
  };
  fetch_piece(last_piece - 1);
  cluster_arrive();

  u32 phase = 0;
  for (int piece = last_piece - 1; piece >= 0; piece--) {
    const int leg = piece / 2;
    const long long slot = (long long)piece * TOTAL;
    float g_knot[4] = {0, 0, 0, 0};
    if (piece % every == 0) read_own<H>(g_knot, g_knots + piece / every * many * H, own);
    if (piece % 2 == 0) {
      float dt[2];
      for (int i = 0; i < 2; i++) dt[i] = own.ends[i] > piece ? time[leg * many + own.row + i] : 0.f;
      copies_end();
      __syncthreads();
      fetch_piece(piece - 1);
      #pragma unroll 1
      for (int step = STEPS - 1; step >= 0; step--) {
        if (step < STEPS - 1) {
          __syncthreads();
          #pragma unroll 1
          for (int s = 0; s < STAGES; s++)
            fetch_features(shared.time_features[s], bent + (slot + step * STAGES + s) * many * SIDE, BLOCK_STREAMS, cluster_last, first);
          copies_end();
          __syncthreads();
        }
        if (own.works) {
          u32 a[4][4];
          float share[STAGES][4];
          load_rows(a, shared.time_column, own);
          #pragma unroll
          for (int s = 0; s < STAGES; s++) {
            float f[4];
            layer(f, a, shared.time_features[s], time_bias[0], time_bias[1], own);
            for (int i = 0; i < 4; i++) {
              f[i] = bend(f[i]);
              share[s][i] = dt[i & 1] * (TANH ? 1.f - f[i] * f[i] : 1.f);
            }
          }
          load_rows_back(a, shared.time_column, own);
          #pragma unroll
          for (int s = STAGES - 1; s >= 0; s--) {
            const long long here = slot + step * STAGES + s;
            float d[4];
            pull_combine(d, g, y, s);
            for (int i = 0; i < 4; i++) d[i] *= share[s][i];
            write_own<HR>(g_ks + here * many * HR, d, own);
            put_scaled(shared.own_stage, d, own);
            mlp_wait();
            scaled_layer(d, a, shared.own_stage, own);
            pull_features(d, shared.tiles, back, before, grads, here, many, own);
            for (int i = 0; i < 4; i++) y[s][i] = d[i];
          }
          #pragma unroll
          for (int s = 0; s < STAGES; s++) for (int i = 0; i < 4; i++) g[i] += y[s][i];
        }
      }
    } else {
      copies_end();
      __syncthreads();
      list_moves<true>(shared.moves, piece, own.warp, own.lane, rank);
      __syncthreads();
      // Loaded for each leg, so that time legs have these registers for themselves.
      u32 columns[HELD ? HELD : 1][8];
      #pragma unroll
      for (int c = 0; c < HELD; c++) load_column_back(columns[c], shared.columns + c * SIDE * LINE, own);
      int rows[EACH], most_entries = 0, extra = -1, over = 0;
      #pragma unroll
      for (int p = 0; p < EACH; p++) {
        rows[p] = shared.moves.stream[p][own.lane & 15] | shared.moves.stream[p][own.g] << 8
                  | shared.moves.stream[p][own.g + 8] << 16;
        const int count = shared.moves.count[p];
        most_entries = max(most_entries, count);
        if (count > 16) { if (extra < 0) extra = p; over++; }
      }
      // One value with up to 32 entries goes along with the others; more take rounds of their own.
      const bool rounds = over > 1 || most_entries > 32;
      const Traffic traffic = traffic_of<9>(shared.moves, own);
      fetch_piece(piece - 1);

      // dX (1 - f^2) of 16 entries: all that does not wait for the stage's gradients.
      auto shares_of = [&](u32 (&share)[PARTS][2], const half_t* features, int p, int start, int stream) {
        u32 a[4][4];
        load_entries(a, features, stream, own);
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
          const int c = part * EACH + p;
          const float2 shift = *(const float2*)&shared.bias[c][8 * own.warp + 2 * own.t];
          float f[4] = {shift.x, shift.y, shift.x, shift.y};
          u32 b[8];
          load_column(b, shared.columns + c * SIDE * LINE, own);
          for (int i = 0; i < 4; i++) multiply(f, a[i], b[2 * i], b[2 * i + 1]);
          for (int i = 0; i < 4; i++) { f[i] = bend(f[i]); f[i] = TANH ? 1.f - f[i] * f[i] : 1.f; }
          const float upper = shared.moves.dx[p][start + own.g][part];
          const float lower = shared.moves.dx[p][start + own.g + 8][part];
          share[part][0] = pack(upper * f[0], upper * f[1]);
          share[part][1] = pack(lower * f[2], lower * f[3]);
        }
      };
      auto put_entries = [&](const u32 (&share)[PARTS][2], int place, int upper, int lower) {
        const int column = 8 * own.warp + 2 * own.t;
        const u32 g_upper = *(const u32*)(shared.stages + upper * LINE + column);
        const u32 g_lower = *(const u32*)(shared.stages + lower * LINE + column);
        half_t* to = shared.entries + (place * 16 + own.g) * ENTRY_LINE + column;
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
          *(u32*)(to + part * SIDE) = times(share[part][0], g_upper);
          *(u32*)(to + 8 * ENTRY_LINE + part * SIDE) = times(share[part][1], g_lower);
        }
      };
      auto pull_entries = [&](int p, int place, int start, int upper, int lower, bool held) {
        float found[4][4];
        for (int k = 0; k < 4; k++) for (int i = 0; i < 4; i++) found[k][i] = 0.f;
        const half_t* row = shared.entries + (place * 16 + (own.lane & 15)) * ENTRY_LINE + (own.lane >> 4) * 8;
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
          const int c = part * EACH + p;
          u32 b[8];
          if (held && c < HELD) for (int i = 0; i < 8; i++) b[i] = columns[c][i];
          else load_column_back(b, shared.columns + c * SIDE * LINE, own);
          #pragma unroll
          for (int k = 0; k < 4; k++) {
            u32 a[4];
            load_matrices(a, row + part * SIDE + 16 * k);
            multiply(found[k], a, b[2 * k], b[2 * k + 1]);
          }
        }
        const float4 up = *(const float4*)(shared.stages + upper * LINE + SIDE);
        const float4 low = *(const float4*)(shared.stages + lower * LINE + SIDE);
        const float up_dx = shared.moves.power[p][start + own.g], low_dx = shared.moves.power[p][start + own.g + 8];
        float2* a = (float2*)(shared.sums + upper * SUM_LINE + 8 * own.warp + 2 * own.t);
        float2* b = (float2*)(shared.sums + lower * SUM_LINE + 8 * own.warp + 2 * own.t);
        float2 v = *a, w = *b;
        v.x += up_dx * (up.x * found[0][0] + up.y * found[1][0] + up.z * found[2][0] + up.w * found[3][0]);
        v.y += up_dx * (up.x * found[0][1] + up.y * found[1][1] + up.z * found[2][1] + up.w * found[3][1]);
        w.x += low_dx * (low.x * found[0][2] + low.y * found[1][2] + low.z * found[2][2] + low.w * found[3][2]);
        w.y += low_dx * (low.x * found[0][3] + low.y * found[1][3] + low.z * found[2][3] + low.w * found[3][3]);
        *a = v; *b = w;
        // Another lane may hold the same stream's entry of the next value.
        __syncwarp();
      };

      u32 share[EACH][PARTS][2];
      // No block is still at a later leg, with other traffic.
      cluster_wait();
      #pragma unroll 1
      for (int q = TOTAL - 1; q >= 0; q--) {
        const int s = q % STAGES;
        const long long here = slot + q;
        const half_t* features = shared.features[q & 1];
        if (own.works) {
          float d[4];
          pull_combine(d, g, y, s);
          write_own<HR>(g_ks + here * many * HR, d, own);
          for (int i = 0; i < 4; i++) largest[i & 1] = fmaxf(largest[i & 1], fabsf(d[i]));
          put_scaled(shared.own_stage, d, own);
        }
        __syncthreads();
        if (threadIdx.x == 0) gate_announce(&shared.gates[0], traffic.touched_many * LINE * 2);
        send_rows<9>(shared.own_stage, shared.stages, &shared.gates[0], traffic, own, rank);
        if (q > 0)
          fetch_features(shared.features[(q - 1) & 1], bent + (here - 1) * many * SIDE, CLUSTER_STREAMS, cluster_last, cluster_first);
        // Both waits have their share of the work that waits for nothing.
        if (q == TOTAL - 1) {
          #pragma unroll
          for (int p = 0; p < EARLY; p++) shares_of(share[p], features, p, 0, rows[p] & 255);
        }
        #pragma unroll
        for (int p = EARLY; p < EACH; p++) shares_of(share[p], features, p, 0, rows[p] & 255);
        const unsigned char* further = shared.moves.stream[extra < 0 ? 0 : extra] + 16;
        u32 extra_share[PARTS][2];
        if (extra >= 0) shares_of(extra_share, features, extra, 16, further[own.lane & 15]);
        gate_pass(&shared.gates[0], phase);
        #pragma unroll
        for (int p = 0; p < EACH; p++) put_entries(share[p], p, rows[p] >> 8 & 255, rows[p] >> 16);
        if (extra >= 0) put_entries(extra_share, EACH, further[own.g], further[own.g + 8]);
        copies_end();
        __syncthreads();
        #pragma unroll
        for (int p = 0; p < EACH; p++) pull_entries(p, p, 0, rows[p] >> 8 & 255, rows[p] >> 16, true);
        if (extra >= 0) pull_entries(extra, EACH, 16, further[own.g], further[own.g + 8], false);
        #pragma unroll 1
        for (int start = 16; rounds && start < most_entries; start += 16) {
          __syncthreads();
          #pragma unroll 1
          for (int p = 0; p < EACH; p++) if (start < shared.moves.count[p] && !(p == extra && start == 16)) {
            const unsigned char* stream = shared.moves.stream[p] + start;
            u32 more[PARTS][2];
            shares_of(more, features, p, start, stream[own.lane & 15]);
            put_entries(more, p, stream[own.g], stream[own.g + 8]);
          }
          __syncthreads();
          #pragma unroll 1
          for (int p = 0; p < EACH; p++) if (start < shared.moves.count[p] && !(p == extra && start == 16)) {
            const unsigned char* stream = shared.moves.stream[p] + start;
            pull_entries(p, p, start, stream[own.g], stream[own.g + 8], false);
          }
        }
        if (threadIdx.x == 0) gate_announce(&shared.gates[1], traffic.needed_many * SIDE * 4);
        send_sums(shared.sums, shared.parts, &shared.gates[1], traffic, own, rank);
        if (q > 0) {
          #pragma unroll
          for (int p = 0; p < EARLY; p++) shares_of(share[p], shared.features[(q - 1) & 1], p, 0, rows[p] & 255);
        }
        gate_pass(&shared.gates[1], phase);
        phase ^= 1;
        if (own.works) {
          float d[4];
          add_parts(d, shared.parts, traffic, own);
          pull_features(d, shared.tiles, back, before, grads, here, many, own);
          #pragma unroll
          for (int j = 0; j < STAGES; j++) if (s == j) for (int i = 0; i < 4; i++) y[j][i] = d[i];
          if (s == 0) {
            #pragma unroll
            for (int j = 0; j < STAGES; j++) for (int i = 0; i < 4; i++) g[i] += y[j][i];
          }
        }
      }
      cluster_arrive();
    }
    for (int i = 0; i < 4; i++) g[i] += g_knot[i];
  }
  write_own<H>(g_z0, g, own);

  // The largest gradient of a stage on value legs, of each stream.
  for (int other = 4; other < 32; other *= 2)
    for (int i = 0; i < 2; i++) largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xFFFFFFFFu, largest[i], other));
  __syncthreads();
  float* found = shared.parts;
  if (own.works && own.g == 0) for (int i = 0; i < 2; i++) found[(own.stream + i) * 4 + own.m] = largest[i];
  __syncthreads();
  if (threadIdx.x < BLOCK_STREAMS && first + threadIdx.x < cluster_last) {
    const float* four = found + threadIdx.x * 4;
    g_most[first + threadIdx.x] = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3]));
  }
  copies_end();
  // No block may leave while another writes to it.
  cluster_wait();
}
