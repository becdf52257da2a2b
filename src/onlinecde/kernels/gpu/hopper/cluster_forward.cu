// The whole solve for a cluster's streams: z at the knots, and what the backward sweep needs.

constexpr int HELD = COLUMNS < 10 ? COLUMNS : 10;  // columns in registers, the others in shared memory

struct alignas(128) Shared {
  half_t features[(CLUSTER_STREAMS + 1) * LINE];  // of all streams of the cluster
  half_t tiles[DEPTH + 1][16 * LINE];             // what each layer takes in, of the block's streams
  float sums[(CLUSTER_STREAMS + 1) * SUM_LINE];
  float parts[CLUSTER_STREAMS * PART_LINE];
  float bias[COLUMNS][SIDE];
  half_t time_column[SIDE * LINE];
  half_t columns[COLUMNS * SIDE * LINE];
  Moves moves;
  alignas(8) u64 gates[2];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the host gives");

struct Inner { u32 a[DEPTH][4][4]; float bias[DEPTH][2]; };

// The inner layers of the block's streams, up to what the last layer takes in. `drive` is what the field
// sees at the knot where a piece begins, with that of the knot where it ends behind it; u is the share gone.
INLINE void features_of(half_t (&tiles)[DEPTH + 1][16 * LINE], const float (&y)[4], const Inner& inner,
                        const float* drive, float u, float* ys, float* before, long long streams, const Own& own) {
  float here[4], there[4];
  // Asked for early: they come while the first product waits for the others' states.
  if (DRIVE) { read_own<W>(here, drive, own); read_own<W>(there, drive + streams * W, own); }
  put_states(tiles[0], y, own);
  if (SAVE) write_own<HR>(ys, y, own);
  mlp_wait();
  #pragma unroll
  for (int l = 0; l < DEPTH; l++) {
    float d[4];
    layer(d, inner.a[l], tiles[l], inner.bias[l][0], inner.bias[l][1], own);
    if (DRIVE && l == 0) for (int i = 0; i < 4; i++) d[i] += here[i] + u * (there[i] - here[i]);
    if (SAVE) write_own<WR>(before + l * streams * WR, d, own);
    for (int i = 0; i < 4; i++) d[i] = activate(d[i]);
    put_states(tiles[l + 1], d, own);
    if (l + 1 < DEPTH) mlp_wait();
  }
}

INLINE void keep_features(half_t* bent, const half_t* tile, int first, int last) {
  int stream = threadIdx.x >> 3, column = (threadIdx.x & 7) * 8;
  if (SAVE && stream < BLOCK_STREAMS && first + stream < last)
    *(uint4*)(bent + (long long)(first + stream) * SIDE + column) = *(const uint4*)(tile + stream * LINE + column);
}

extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(256, 1) cluster_forward(
    float* knots, const float* z0, float* ys, float* before, half_t* bent,
    const float* time, const float* slopes, const int* lengths, const float* drive,
    const half_t* inner_head, const float* inner_bias, const half_t* head, const float* bias,
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
  for (int c = 0; c < COLUMNS; c++) {
    int value = rank * EACH + c % EACH, channel = 1 + value + c / EACH * VALUES;
    bring_matrix(shared.columns + c * SIDE * LINE, head + (long long)channel * (HP * WP), value < VALUES);
    bring_bias(shared.bias[c], bias + channel * HP, value < VALUES);
  }
  Inner inner;
  #pragma unroll
  for (int l = 0; l < DEPTH; l++) {
    const half_t* matrix = inner_head + (l ? WP * HP + (l - 1) * WP * WP : 0);
    hold_rows<false>(inner.a[l], matrix, own, WP, l ? WP : HP);
    for (int i = 0; i < 2; i++)
      inner.bias[l][i] = own.unit + 8 * i < WP ? inner_bias[l * WP + own.unit + 8 * i] : 0.f;
  }
  bring_matrix(shared.time_column, head, true);
  float time_bias[2];
  for (int i = 0; i < 2; i++) time_bias[i] = own.unit + 8 * i < HP ? bias[own.unit + 8 * i] : 0.f;

  for (int i = threadIdx.x; i < (CLUSTER_STREAMS + 1) * LINE; i += THREADS) shared.features[i] = 0;
  for (int i = threadIdx.x; i < (DEPTH + 1) * 16 * LINE; i += THREADS) shared.tiles[0][i] = 0;
  for (int i = threadIdx.x; i < (CLUSTER_STREAMS + 1) * SUM_LINE; i += THREADS) shared.sums[i] = 0.f;
  begin_moves(shared.moves, lengths, cluster_last, cluster_first);
  if (threadIdx.x == 0) { gate_make(&shared.gates[0]); gate_make(&shared.gates[1]); gates_made(); }
  if (last_piece > 1) fetch_moves(shared.moves, slopes, 0, streams, cluster_last, cluster_first, rank);

  float z[4], k[STAGES][4], next_dt[2];
  read_own<H>(z, z0, own);
  write_own<H>(knots, z, own);
  #pragma unroll
  for (int s = 0; s < STAGES; s++) for (int i = 0; i < 4; i++) k[s][i] = 0.f;
  for (int i = 0; i < 2; i++) next_dt[i] = own.ends[i] > 0 ? time[own.row + i] : 0.f;
  __syncthreads();
  u32 columns[HELD ? HELD : 1][8];
  #pragma unroll
  for (int c = 0; c < HELD; c++) load_column(columns[c], shared.columns + c * SIDE * LINE, own);
  cluster_arrive();

  u32 phase = 0;
  for (int piece = 0; piece < last_piece; piece++) {
    const int leg = piece / 2;
    const long long slot = SAVE ? (long long)piece * TOTAL : 0;
    const float* seen = drive + piece * many * W;
    if (piece % 2 == 0) {
      copies_end();
      __syncthreads();
      list_moves<false>(shared.moves, piece + 1, own.warp, own.lane, rank);
      const float dt[2] = {next_dt[0], next_dt[1]};
      for (int i = 0; i < 2; i++)
        next_dt[i] = own.ends[i] > piece + 2 ? time[(leg + 1) * many + own.row + i] : 0.f;
      if (own.works) {
        u32 time_column[4][4];
        load_rows(time_column, shared.time_column, own);
        #pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
          #pragma unroll
          for (int s = 0; s < STAGES; s++) {
            const long long here = SAVE ? slot + step * STAGES + s : 0;
            float y[4], d[4];
            combine(y, z, k, table_a[s]);
            features_of(shared.tiles, y, inner, seen, step * (1.f / STEPS) + table_c[s], ys + here * many * HR,
                        before + here * many * (DEPTH * WR), many, own);
            mlp_wait();
            keep_features(bent + here * many * SIDE, shared.tiles[DEPTH], first, cluster_last);
            layer(d, time_column, shared.tiles[DEPTH], time_bias[0], time_bias[1], own);
            for (int i = 0; i < 4; i++) k[s][i] = dt[i & 1] * bend(d[i]);
          }
          combine(z, z, k, table_b);
        }
      }
    } else {
      Traffic traffic;
      int rows[EACH];  // a lane's three rows of the first 16 entries of each value, a byte each
      #pragma unroll 1
      for (int q = 0; q < TOTAL; q++) {
        const int s = q % STAGES;
        const long long here = SAVE ? slot + q : 0;
        if (own.works) {
          float y[4];
          combine(y, z, k, table_a[s]);
          features_of(shared.tiles, y, inner, seen, q / STAGES * (1.f / STEPS) + table_c[s], ys + here * many * HR,
                      before + here * many * (DEPTH * WR), many, own);
        }
        __syncthreads();
        if (q == 0) {
          traffic = traffic_of<8>(shared.moves, own);
          // No block is still at an earlier leg, with other traffic.
          cluster_wait();
        }
        if (threadIdx.x == 0) gate_announce(&shared.gates[0], traffic.touched_many * SIDE * 2);
        send_rows<8>(shared.tiles[DEPTH], shared.features, &shared.gates[0], traffic, own, rank);
        if (q == 0) {
          #pragma unroll
          for (int p = 0; p < EACH; p++)
            rows[p] = shared.moves.stream[p][own.lane & 15] | shared.moves.stream[p][own.g] << 8
                      | shared.moves.stream[p][own.g + 8] << 16;
          if (piece + 2 < last_piece) fetch_moves(shared.moves, slopes, leg + 1, streams, cluster_last, cluster_first, rank);
        }
        keep_features(bent + here * many * SIDE, shared.tiles[DEPTH], first, cluster_last);
        gate_pass(&shared.gates[0], phase);

        auto entries = [&](float (&found)[4], int p, int start, int stream) {
          u32 a[4][4];
          load_entries(a, shared.features, stream, own);
          for (int i = 0; i < 4; i++) found[i] = 0.f;
          #pragma unroll
          for (int part = 0; part < PARTS; part++) {
            const int c = part * EACH + p;
            const float2 shift = *(const float2*)&shared.bias[c][8 * own.warp + 2 * own.t];
            float f[4] = {shift.x, shift.y, shift.x, shift.y};
            u32 b[8];
            if (c < HELD) for (int i = 0; i < 8; i++) b[i] = columns[c][i];
            else load_column(b, shared.columns + c * SIDE * LINE, own);
            for (int i = 0; i < 4; i++) multiply(f, a[i], b[2 * i], b[2 * i + 1]);
            const float upper = shared.moves.dx[p][start + own.g][part];
            const float lower = shared.moves.dx[p][start + own.g + 8][part];
            found[0] += upper * bend(f[0]); found[1] += upper * bend(f[1]);
            found[2] += lower * bend(f[2]); found[3] += lower * bend(f[3]);
          }
        };
        auto add = [&](const float (&found)[4], int upper, int lower) {
          float2* a = (float2*)(shared.sums + upper * SUM_LINE + 8 * own.warp + 2 * own.t);
          float2* b = (float2*)(shared.sums + lower * SUM_LINE + 8 * own.warp + 2 * own.t);
          float2 x = *a, y = *b;
          x.x += found[0]; x.y += found[1]; y.x += found[2]; y.y += found[3];
          *a = x; *b = y;
          // Another lane may hold the same stream's entry of the next value.
          __syncwarp();
        };
        float found[EACH][4];
        #pragma unroll
        for (int p = 0; p < EACH; p++) entries(found[p], p, 0, rows[p] & 255);
        #pragma unroll
        for (int p = 0; p < EACH; p++) {
          add(found[p], rows[p] >> 8 & 255, rows[p] >> 16);
          for (int start = 16; start < shared.moves.count[p]; start += 16) {
            const unsigned char* stream = shared.moves.stream[p] + start;
            float more[4];
            entries(more, p, start, stream[own.lane & 15]);
            add(more, stream[own.g], stream[own.g + 8]);
          }
        }
        if (threadIdx.x == 0) gate_announce(&shared.gates[1], traffic.needed_many * SIDE * 4);
        send_sums(shared.sums, shared.parts, &shared.gates[1], traffic, own, rank);
        gate_pass(&shared.gates[1], phase);
        phase ^= 1;
        if (own.works) {
          float d[4];
          add_parts(d, shared.parts, traffic, own);
          #pragma unroll
          for (int j = 0; j < STAGES; j++) if (s == j) for (int i = 0; i < 4; i++) k[j][i] = d[i];
          if (s == STAGES - 1) combine(z, z, k, table_b);
        }
      }
      cluster_arrive();
    }
    if ((piece + 1) % every == 0) write_own<H>(knots + (piece + 1) / every * many * H, z, own);
  }
  // From its last piece on a stream stands still.
  for (int knot = last_piece / every + 1; knot <= pieces / every; knot++) write_own<H>(knots + knot * many * H, z, own);
  copies_end();
  // No block may leave while another writes to it.
  cluster_wait();
}
