// Gradients of the columns that move on value legs, after the sweeps: (share, channel, H, W) and
// (share, channel, H). A block takes one value with its parts, and of all legs and lots of streams
// every so many; it lists the streams in which the value moved itself.
//
// Columns are computed transposed, (hidden unit, entry): what a thread then holds of the gradients is
// what the second product wants of it, and nothing goes through shared memory but what was read.

constexpr int ROWS = 64;    // entries times stages taken at once
constexpr int LOT = 1024;   // streams listed at once
constexpr int ROUNDS = LOT / THREADS;
constexpr int SPLITS = PARTS == 1 ? 2 : 1;  // with one part, half the warps take half the rows
static_assert(ROUNDS * WARPS == 32, "one warp adds up");
static_assert(PARTS <= 2, "warps are shared out among two parts at most");

struct alignas(128) Tile {
  half_t features[ROWS * LINE];
  float g[ROWS * PART_LINE];
  float dx[PARTS][ROWS];
};

struct alignas(128) Shared {
  Tile tiles[2];
  int before[ROUNDS * WARPS];  // how many entries stand before those of a warp in a round
  int many;
  half_t stream[LOT];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the host gives");

// List the streams from `first` on in which the value moved, in their order.
INLINE void list_entries(Shared& shared, const float* slopes, const int* lengths, int leg, int first,
                         int streams, int value, const Own& own) {
  u32 moved[ROUNDS];
  #pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    const int stream = first + round * THREADS + threadIdx.x;
    bool here = false;
    if (stream < streams && lengths[stream] > 2 * leg + 1) {
      const float* dx = slopes + ((long long)leg * streams + stream) * (VALUES * PARTS) + value;
      for (int part = 0; part < PARTS; part++) here = here || dx[part * VALUES] != 0.f;
    }
    moved[round] = __ballot_sync(0xFFFFFFFFu, here);
    if (own.lane == 0) shared.before[round * WARPS + own.warp] = __popc(moved[round]);
  }
  __syncthreads();
  if (own.warp == 0) {
    const int mine = shared.before[own.lane];
    int sum = mine;
    for (int other = 1; other < 32; other *= 2) {
      int more = __shfl_up_sync(0xFFFFFFFFu, sum, other);
      if (own.lane >= other) sum += more;
    }
    shared.before[own.lane] = sum - mine;
    if (own.lane == 31) shared.many = sum;
  }
  __syncthreads();
  #pragma unroll
  for (int round = 0; round < ROUNDS; round++)
    if (moved[round] >> own.lane & 1)
      shared.stream[shared.before[round * WARPS + own.warp] + __popc(moved[round] & ((1u << own.lane) - 1u))]
          = round * THREADS + threadIdx.x;
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256, 2) cluster_columns(
    const half_t* bent, const float* g_ks, const float* most, float* weight, float* offset,
    const float* slopes, const int* lengths, const half_t* head, const float* bias,
    int streams, int legs, int shares) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  const int value = blockIdx.x % VALUES, share = blockIdx.x / VALUES;
  const long long many = streams;
  Own own;
  own.lane = threadIdx.x & 31; own.warp = threadIdx.x >> 5;
  own.g = own.lane >> 2; own.t = own.lane & 3; own.m = own.warp & 3; own.unit = 16 * own.m + own.g;
  const int part = PARTS == 1 ? 0 : own.warp >> 2, split = PARTS == 1 ? own.warp >> 2 : 0;
  const int channel = 1 + value + part * VALUES;
  u32 a[4][4];
  hold_rows<false>(a, head + (long long)channel * (HP * WP), own, HP, WP);
  const float low = own.unit < HP ? bias[channel * HP + own.unit] : 0.f;
  const float high = own.unit + 8 < HP ? bias[channel * HP + own.unit + 8] : 0.f;
  const float power = power_of_two(*most), inverse = inverse_of(power);
  float total[8][4], sums[2] = {0.f, 0.f};
  for (int j = 0; j < 8; j++) for (int i = 0; i < 4; i++) total[j][i] = 0.f;

  const int lots = (streams + LOT - 1) / LOT, row = threadIdx.x >> 2, corner = threadIdx.x & 3;
  #pragma unroll 1
  for (int unit = share; unit < legs * lots; unit += shares) {
    const int leg = unit / lots, first_stream = unit % lots * LOT;
    list_entries(shared, slopes, lengths, leg, first_stream, streams, value, own);
    const int rows = shared.many * TOTAL;

    // Row r is stage r % TOTAL of entry r / TOTAL.
    auto fetch = [&](Tile& tile, int start) {
      const int r = start + row;
      const bool there = r < rows;
      const long long stream = first_stream + (there ? shared.stream[r / TOTAL] : 0);
      const long long place = ((2 * leg + 1) * TOTAL + r % TOTAL) * many + stream;
      for (int i = 0; i < 2; i++)
        copy_line(tile.features + row * LINE + (corner + 4 * i) * 8, bent + place * SIDE + (corner + 4 * i) * 8, there);
      if (HR % 4 == 0) {
        for (int i = 0; i < 4; i++) {
          const int at = (corner + 4 * i) * 4;
          copy_line(tile.g + row * PART_LINE + at, g_ks + (at < HR ? place * HR + at : 0), there && at < HR);
        }
      } else {
        for (int at = corner; at < SIDE; at += 4)
          copy_word(tile.g + row * PART_LINE + at, g_ks + (at < HR ? place * HR + at : 0), there && at < HR);
      }
      if (corner < PARTS)
        copy_word(&tile.dx[corner][row], slopes + (leg * many + stream) * (VALUES * PARTS) + corner * VALUES + value, there);
    };
    if (rows > 0) fetch(shared.tiles[0], 0);
    copies_mark();
    #pragma unroll 1
    for (int start = 0, at = 0; start < rows; start += ROWS, at ^= 1) {
      if (start + ROWS < rows) fetch(shared.tiles[at ^ 1], start + ROWS);
      copies_mark();
      copies_end_but_last();
      __syncthreads();
      const Tile& tile = shared.tiles[at];
      #pragma unroll
      for (int pair = 0; pair < ROWS / 16 / SPLITS; pair++) {
        const int first = 16 * (pair + split * (ROWS / 16 / SPLITS));
        u32 g_f[4];
        #pragma unroll
        for (int side = 0; side < 2; side++) {
          const int base = first + 8 * side, r = base + 2 * own.t;
          u32 b[8];
          const half_t* from = tile.features + (base + (own.lane & 7)) * LINE + (own.lane >> 3) * 8;
          load_matrices(b, from);
          load_matrices(b + 4, from + 32);
          float f[4] = {low, low, high, high};
          for (int k = 0; k < 4; k++) multiply(f, a[k], b[2 * k], b[2 * k + 1]);
          const float2 dx = *(const float2*)&tile.dx[part][r];
          for (int i = 0; i < 4; i++) {
            const float y = bend(f[i]);
            f[i] = tile.g[(r + (i & 1)) * PART_LINE + own.unit + (i >> 1) * 8] * ((i & 1 ? dx.y : dx.x) * inverse);
            if (TANH) f[i] *= 1.f - y * y;
          }
          sums[0] += f[0] + f[1];
          sums[1] += f[2] + f[3];
          g_f[2 * side] = pack(f[0], f[1]);
          g_f[2 * side + 1] = pack(f[2], f[3]);
        }
        #pragma unroll
        for (int j = 0; j < 4; j++) {
          u32 b[4];
          load_transposed(b, tile.features + (first + (own.lane & 15)) * LINE + 16 * j + (own.lane >> 4) * 8);
          multiply(total[2 * j], g_f, b[0], b[1]);
          multiply(total[2 * j + 1], g_f, b[2], b[3]);
        }
      }
      __syncthreads();
    }
  }
  copies_end();
  for (int other = 1; other < 4; other *= 2)
    for (int i = 0; i < 2; i++) sums[i] += __shfl_xor_sync(0xFFFFFFFFu, sums[i], other);
  const long long to = ((long long)(share * SPLITS + split) * (1 + VALUES * PARTS) + channel) * H;
  for (int i = 0; i < 2; i++)
    if (own.t == 0 && own.unit + 8 * i < H) offset[to + own.unit + 8 * i] = sums[i] * power;
  for (int j = 0; j < 8; j++) for (int i = 0; i < 4; i++) {
    const int unit = own.unit + (i >> 1) * 8, column = 8 * j + 2 * own.t + (i & 1);
    if (unit < H && column < W) weight[(to + unit) * W + column] = total[j][i] * power;
  }
}
