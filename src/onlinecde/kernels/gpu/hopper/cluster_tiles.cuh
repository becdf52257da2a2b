// What both sweeps share: sizes, activations, one layer for the streams of a block, the moves of a leg.
//
// A cluster of 8 thread blocks takes CLUSTER_STREAMS streams through the whole solve. Each block has
// BLOCK_STREAMS of them, which it takes through the inner layers, and EACH values, whose columns of
// the last layer stay on chip; on value legs it computes those for all streams of the cluster.
//
// Defined by the host: H, W (hidden, width), HP, WP (as the weights are padded), HR, WR (numbers in a
// row of the tape), DEPTH, ACT, TANH, DRIVE (whether the field sees the path), VALUES, PARTS, STEPS,
// STAGES, BLOCK_STREAMS, SAVE, and the tableau as TABLE_A, TABLE_B, TABLE_C.

constexpr int BLOCKS = 8, THREADS = 256, WARPS = 8;
constexpr int SIDE = 64;                       // hidden units and widths, padded
constexpr int LINE = 72;                       // halves a row: 64, and 16 bytes that keep banks apart
constexpr int SUM_LINE = 72, PART_LINE = 68;   // floats a row
constexpr int EACH = (VALUES + BLOCKS - 1) / BLOCKS, COLUMNS = EACH * PARTS;
constexpr int CLUSTER_STREAMS = BLOCKS * BLOCK_STREAMS;
constexpr int NOBODY = CLUSTER_STREAMS;        // a row of zeros behind all streams
constexpr int SLOTS = (CLUSTER_STREAMS + 15) / 16 * 16;
constexpr int WORDS = (CLUSTER_STREAMS + 31) / 32;
constexpr int TOTAL = STEPS * STAGES;
constexpr int MLP_TILES = BLOCK_STREAMS > 8 ? 2 : 1, MLP_THREADS = MLP_TILES * 128;
static_assert(BLOCK_STREAMS <= 16 && H <= SIDE && W <= SIDE && SLOTS <= 240, "does not fit");

// Coefficients are already multiplied by the size of a step.
__device__ constexpr float table_a[4][4] = TABLE_A;
__device__ constexpr float table_b[4] = TABLE_B;
__device__ constexpr float table_c[4] = TABLE_C;


INLINE float bend(float x) { return TANH ? fast_tanh(x) : x; }

// Which numbers a thread holds of a layer's result: units unit and unit + 8, streams stream and
// stream + 1 of its block; number i is unit + 8 (i / 2), stream + i % 2.
struct Own {
  int lane, warp, g, t, m, tile, unit, stream;
  bool works;        // not all warps are needed by a block of 8 streams or fewer
  bool live[2];
  int ends[2];       // pieces of the two streams
  u32 row;           // the first of them in global memory
};

INLINE Own own_part(const int* lengths, int last, int first) {
  Own own;
  own.lane = threadIdx.x & 31; own.warp = threadIdx.x >> 5;
  own.g = own.lane >> 2; own.t = own.lane & 3;
  own.m = own.warp & 3; own.tile = own.warp >> 2;
  own.unit = 16 * own.m + own.g; own.stream = 8 * own.tile + 2 * own.t;
  own.works = own.tile < MLP_TILES;
  own.row = first + own.stream;
  for (int i = 0; i < 2; i++) {
    int stream = own.stream + i;
    own.live[i] = own.works && stream < BLOCK_STREAMS && first + stream < last;
    own.ends[i] = own.live[i] ? lengths[first + stream] : 0;
  }
  return own;
}

INLINE void mlp_wait() { if (MLP_TILES == 2) __syncthreads(); else group_wait(MLP_THREADS); }

// Two neighbours of a matrix in global memory (rows, stride), zeros beyond it.
INLINE u32 two_of(const half_t* matrix, int row, int column, int rows, int stride) {
  return row < rows && column < stride ? *(const u32*)(matrix + row * stride + column) : 0u;
}

INLINE u32 two_transposed(const half_t* matrix, int row, int column, int rows, int stride) {
  u32 low = column < rows && row < stride ? matrix[column * stride + row] : 0;
  u32 high = column + 1 < rows && row < stride ? matrix[(column + 1) * stride + row] : 0;
  return low | high << 16;
}

// A warp's 16 rows of a matrix of weights, as the left side of a product.
template <bool TRANSPOSED>
INLINE void hold_rows(u32 (&a)[4][4], const half_t* matrix, const Own& own, int rows, int stride) {
  for (int k = 0; k < 4; k++) for (int i = 0; i < 4; i++) {
    int row = own.unit + (i & 1) * 8, column = 16 * k + 2 * own.t + (i >> 1) * 8;
    a[k][i] = TRANSPOSED ? two_transposed(matrix, row, column, rows, stride)
                         : two_of(matrix, row, column, rows, stride);
  }
}

// The same from shared memory.
INLINE void load_rows(u32 (&a)[4][4], const half_t* matrix, const Own& own) {
  for (int k = 0; k < 4; k++)
    load_matrices(a[k], matrix + (16 * own.m + (own.lane & 15)) * LINE + 16 * k + (own.lane >> 4) * 8);
}

INLINE void load_rows_back(u32 (&a)[4][4], const half_t* matrix, const Own& own) {
  for (int k = 0; k < 4; k++)
    load_transposed(a[k], matrix + (16 * k + (own.lane & 7) + (own.lane >> 4) * 8) * LINE
                              + 16 * own.m + (own.lane >> 3 & 1) * 8);
}

// What a layer takes in, (stream, unit) halves in shared memory, as the right side of a product.
INLINE void load_states(u32 (&b)[8], const half_t* states, const Own& own) {
  const half_t* row = states + (8 * own.tile + (own.lane & 7)) * LINE + (own.lane >> 3) * 8;
  load_matrices(b, row);
  load_matrices(b + 4, row + 32);
}

INLINE void layer(float (&d)[4], const u32 (&a)[4][4], const half_t* states, float low, float high, const Own& own) {
  u32 b[8];
  load_states(b, states, own);
  float rest[4] = {0, 0, 0, 0};
  d[0] = d[1] = low; d[2] = d[3] = high;
  multiply(d, a[0], b[0], b[1]); multiply(rest, a[2], b[4], b[5]);
  multiply(d, a[1], b[2], b[3]); multiply(rest, a[3], b[6], b[7]);
  for (int i = 0; i < 4; i++) d[i] += rest[i];
}

INLINE half_t* own_rows(half_t* states, const Own& own) {
  return states + (8 * own.tile + (own.lane & 7)) * LINE + 16 * own.m + ((own.lane >> 3) & 1) * 8;
}

INLINE void put_states(half_t* states, const float (&d)[4], const Own& own) {
  store_transposed(own_rows(states, own), pack(d[0], d[1]), pack(d[2], d[3]));
}

// The first stream of a cluster; streams are shared out evenly.
INLINE int first_of(int cluster, int streams) {
  return (int)((long long)cluster * streams / (gridDim.x / BLOCKS));
}

// A thread's numbers of (stream, SIZE) in global memory.
template <int SIZE>
INLINE void write_own(float* to, const float (&d)[4], const Own& own) {
  to += own.row * SIZE + own.unit;
  for (int i = 0; i < 4; i++)
    if (own.live[i & 1] && (SIZE == SIDE || own.unit + (i >> 1) * 8 < SIZE)) to[(i & 1) * SIZE + (i >> 1) * 8] = d[i];
}

template <int SIZE>
INLINE void read_own(float (&d)[4], const float* from, const Own& own) {
  from += own.row * SIZE + own.unit;
  for (int i = 0; i < 4; i++) {
    bool there = own.live[i & 1] && (SIZE == SIDE || own.unit + (i >> 1) * 8 < SIZE);
    d[i] = there ? from[(i & 1) * SIZE + (i >> 1) * 8] : 0.f;
  }
}

// z + sum_s weights[s] k_s
INLINE void combine(float (&y)[4], const float (&z)[4], const float (&k)[STAGES][4], const float* weights) {
  for (int i = 0; i < 4; i++) y[i] = z[i];
  #pragma unroll
  for (int s = 0; s < STAGES; s++) for (int i = 0; i < 4; i++) y[i] += weights[s] * k[s][i];
}

// The streams in which each of the block's values moved on a leg, and by how much, in their order.
struct Moves {
  alignas(16) float raw[COLUMNS][CLUSTER_STREAMS];
  float dx[EACH][SLOTS][PARTS];
  float power[EACH][SLOTS];   // in the backward sweep: dx is divided by this power of two
  alignas(16) float own[BLOCK_STREAMS][VALUES * PARTS];  // of the block's streams, all values
  int count[EACH];
  int ends[CLUSTER_STREAMS];
  u32 moved[EACH][WORDS];     // a bit for each stream
  unsigned char stream[EACH][SLOTS];
  unsigned char needs[16];    // of each own stream, a bit for each block whose values moved
};

// Who sends what to whom on a leg: only streams in which one of a block's values moved go to it and
// back. Held in registers.
struct Traffic {
  u32 touched[WORDS];    // streams in which one of this block's values moved
  int touched_many, needed_many;
  u32 rows;              // which of the rows a lane sends its block wants, a bit for each round
  u32 parts[2];          // of a thread's two streams, a bit for each block that sends a part
};

INLINE void begin_moves(Moves& moves, const int* lengths, int last, int first) {
  #pragma unroll 1
  for (int i = threadIdx.x; i < CLUSTER_STREAMS; i += THREADS)
    moves.ends[i] = first + i < last ? lengths[first + i] : 0;
}

// Ask for the increments of a leg: slopes (leg, stream, part, value).
INLINE void fetch_moves(Moves& moves, const float* slopes, int leg, int streams, int last, int first, int rank) {
  #pragma unroll 1
  for (int i = threadIdx.x; i < CLUSTER_STREAMS * COLUMNS; i += THREADS) {
    int stream = i / COLUMNS, column = i % COLUMNS, value = rank * EACH + column % EACH;
    bool there = first + stream < last && value < VALUES;
    const float* from = slopes + ((long long)leg * streams + first + stream) * (VALUES * PARTS)
                        + column / EACH * VALUES + value;
    copy_word(&moves.raw[column][stream], there ? from : slopes, there);
  }
  #pragma unroll 1
  for (int i = threadIdx.x; i < BLOCK_STREAMS * VALUES * PARTS; i += THREADS) {
    int stream = i / (VALUES * PARTS), row = first + rank * BLOCK_STREAMS + stream;
    const float* from = slopes + ((long long)leg * streams + row) * (VALUES * PARTS) + i % (VALUES * PARTS);
    copy_word(&moves.own[stream][i % (VALUES * PARTS)], row < last ? from : slopes, row < last);
  }
}

template <bool SCALED>
INLINE void list_moves(Moves& moves, int piece, int warp, int lane, int rank) {
  if (warp * 4 < BLOCK_STREAMS) {
    const int stream = warp * 4 + lane / BLOCKS, block = lane % BLOCKS;
    bool any = false;
    if (stream < BLOCK_STREAMS && moves.ends[rank * BLOCK_STREAMS + stream] > piece)
      for (int value = block * EACH; value < (block + 1) * EACH && value < VALUES; value++)
        for (int part = 0; part < PARTS; part++) any = any || moves.own[stream][part * VALUES + value] != 0.f;
    u32 needs = __ballot_sync(0xFFFFFFFFu, any);
    if (block == 0) moves.needs[stream] = needs >> (lane & 24);
  }
  // The first warps have the inner layers to do.
  #pragma unroll 1
  for (int p = WARPS - 1 - warp; p < EACH; p += WARPS) {
    int many = 0;
    for (int base = 0; base < CLUSTER_STREAMS; base += 32) {
      int stream = base + lane;
      bool going = stream < CLUSTER_STREAMS && moves.ends[stream < CLUSTER_STREAMS ? stream : 0] > piece;
      float dx[PARTS], most = 0.f;
      for (int part = 0; part < PARTS; part++) {
        dx[part] = going ? moves.raw[part * EACH + p][stream] : 0.f;
        most = fmaxf(most, fabsf(dx[part]));
      }
      u32 moved = __ballot_sync(0xFFFFFFFFu, most > 0.f);
      int at = many + __popc(moved & ((1u << lane) - 1u));
      if (most > 0.f) {
        float power = SCALED ? power_of_two(most) : 1.f, inverse = inverse_of(power);
        moves.stream[p][at] = stream;
        if (SCALED) moves.power[p][at] = power;
        for (int part = 0; part < PARTS; part++) moves.dx[p][at][part] = dx[part] * inverse;
      }
      if (lane == 0) moves.moved[p][base / 32] = moved;
      many += __popc(moved);
    }
    int last = many > 16 ? (many + 15) / 16 * 16 : 16;
    for (int at = many + lane; at < last; at += 32) {
      moves.stream[p][at] = NOBODY;
      if (SCALED) moves.power[p][at] = 0.f;
      for (int part = 0; part < PARTS; part++) moves.dx[p][at][part] = 0.f;
    }
    if (lane == 0) moves.count[p] = many;
  }
}

// A warp's 8 hidden units of the block's columns, as the right side of a product, from shared memory.
INLINE void load_column(u32 (&b)[8], const half_t* column, const Own& own) {
  const half_t* row = column + (8 * own.warp + (own.lane & 7)) * LINE + (own.lane >> 3) * 8;
  load_matrices(b, row);
  load_matrices(b + 4, row + 32);
}

// ... transposed: the warp's 8 numbers of the width.
INLINE void load_column_back(u32 (&b)[8], const half_t* column, const Own& own) {
  const half_t* row = column + own.lane * LINE + 8 * own.warp;
  load_transposed(b, row);
  load_transposed(b + 4, row + 32 * LINE);
}

// Bring a (HP, WP) matrix into shared memory, padded with zeros.
INLINE void bring_matrix(half_t* to, const half_t* from, bool there) {
  #pragma unroll 1
  for (int i = threadIdx.x; i < SIDE * SIDE / 2; i += THREADS) {
    int row = i / (SIDE / 2), column = i % (SIDE / 2) * 2;
    *(u32*)(to + row * LINE + column) = there ? two_of(from, row, column, HP, WP) : 0u;
  }
}

INLINE void bring_bias(float* to, const float* from, bool there) {
  for (int i = threadIdx.x; i < SIDE; i += THREADS) to[i] = there && i < HP ? from[i] : 0.f;
}

// Rows of 16 entries, gathered, as the left side of a product.
INLINE void load_entries(u32 (&a)[4][4], const half_t* states, int stream, const Own& own) {
  const half_t* row = states + stream * LINE + (own.lane >> 4) * 8;
  for (int k = 0; k < 4; k++) load_matrices(a[k], row + 16 * k);
}

template <int LINES>
INLINE Traffic traffic_of(const Moves& moves, const Own& own) {
  Traffic traffic;
  traffic.touched_many = traffic.needed_many = 0;
  #pragma unroll
  for (int word = 0; word < WORDS; word++) {
    traffic.touched[word] = 0;
    for (int p = 0; p < EACH; p++) traffic.touched[word] |= moves.moved[p][word];
    traffic.touched_many += __popc(traffic.touched[word]);
  }
  for (int stream = 0; stream < BLOCK_STREAMS; stream++) traffic.needed_many += __popc(moves.needs[stream]);
  traffic.rows = 0;
  for (int round = 0; round * 32 < BLOCK_STREAMS * LINES; round++) {
    int row = (own.lane + 32 * round) / LINES;
    if (row < BLOCK_STREAMS) traffic.rows |= (moves.needs[row] >> own.warp & 1u) << round;
  }
  for (int i = 0; i < 2; i++) traffic.parts[i] = own.live[i] ? moves.needs[own.stream + i] : 0;
  return traffic;
}

// Send a warp's 8 columns of all sums to the blocks whose streams they are of, and clear them.
INLINE void send_sums(float* sums, float* parts, u64* gate, const Traffic& traffic, const Own& own, int rank) {
  #pragma unroll
  for (int round = 0; round * 16 < CLUSTER_STREAMS; round++) {
    int stream = 16 * round + (own.lane >> 1), column = 8 * own.warp + (own.lane & 1) * 4;
    if (!(traffic.touched[round / 2] >> (stream & 31) & 1)) continue;
    int owner = stream / BLOCK_STREAMS;
    uint4* from = (uint4*)(sums + stream * SUM_LINE + column);
    uint4 words = *from;
    *from = make_uint4(0, 0, 0, 0);
    float* to = parts + (rank * BLOCK_STREAMS + stream - owner * BLOCK_STREAMS) * PART_LINE + column;
    send(place_in(to, owner), words, place_in(gate, owner));
  }
}

// The sum of what all blocks found for a thread's streams, in the order of the blocks.
INLINE void add_parts(float (&d)[4], const float* parts, const Traffic& traffic, const Own& own) {
  for (int i = 0; i < 4; i++) d[i] = 0.f;
  #pragma unroll
  for (int block = 0; block < BLOCKS; block++)
    for (int i = 0; i < 4; i++)
      if (traffic.parts[i & 1] >> block & 1)
        d[i] += parts[(block * BLOCK_STREAMS + own.stream + (i & 1)) * PART_LINE + own.unit + (i >> 1) * 8];
}

// Send a block's own rows to the blocks that need them, `LINES` times 16 bytes of each; warp w serves block w.
template <int LINES>
INLINE void send_rows(const half_t* from, half_t* to, u64* gate, const Traffic& traffic, const Own& own, int rank) {
  u32 base = place_in(to + rank * BLOCK_STREAMS * LINE, own.warp), there = place_in(gate, own.warp);
  #pragma unroll
  for (int round = 0; round * 32 < BLOCK_STREAMS * LINES; round++) {
    int i = own.lane + 32 * round, at = (i / LINES) * LINE + (i % LINES) * 8;
    if (traffic.rows >> round & 1) send(base + at * 2, *(const uint4*)(from + at), there);
  }
}
