// Gradients of the columns of a path on which all channels move, after the sweeps: (share, channel, H, W) and
// (share, channel, H). A warp takes 16 hidden units of a channel; of all stages every so many, and of
// their streams one of `cuts` lots. `most` is a bound on the stages' gradients times dX.
//
// Columns are computed transposed, (hidden unit, stream): what a thread then holds of the gradients is
// what the second product wants of it, and nothing goes through shared memory but what was read.

constexpr int TILES = HELD ? (H + 15) / 16 : HP / 16;  // of 16 hidden units
constexpr int LANES = (WARPS + TILES - 2) / TILES + 1;  // channels that a block's warps may meet
constexpr bool PART = TILES % WARPS == 0 && TILES > WARPS;  // whether a block has part of a channel alone
constexpr int G_LINE = PART ? 16 * WARPS + 4 : GS;  // floats of a row of gradients

struct alignas(128) Lot {
  half_t rows[HALVES][LOT * LINE];
  float g[LOT * G_LINE];
};
struct alignas(128) Shared {
  Lot lots[PLACES];
  float dx[PLACES][LANES][LOT];
  half_t weight[HELD ? 1 : HALVES][HELD ? 8 : WARPS * 16 * LINE];
  u64 gates[PLACES + 1];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the host gives");
static_assert(LANES * LOT <= THREADS, "a thread brings one increment");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) stage_weights(
    const half_t* bent, const float* g_ks, const float* most, float* weight, float* offset,
    const float* across, const int* moving, const half_t* head, const half_t* tail, const float* bias,
    int streams, int room, int stages, int shares, int cuts) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  constexpr int BUNDLES = (CHANNELS * TILES + WARPS - 1) / WARPS;
  const int bundle = blockIdx.x % BUNDLES, share = blockIdx.x / BUNDLES;
  const int tile = bundle * WARPS + warp, channel = tile / TILES, first_channel = bundle * WARPS / TILES;
  const bool counts = channel < CHANNELS;
  const int unit = tile % TILES * 16 + g, first_unit = PART ? bundle * WARPS % TILES * 16 : 0;
  const float power = power_of_two(*most), scale = inverse_of(power) * 8192.f;
  if (threadIdx.x == 0) {
    for (int i = 0; i <= PLACES; i++) gate_make(shared.gates + i);
    gates_made();
    if (!HELD) {
      constexpr int BYTES = WARPS * 16 * LINE * 2;
      gate_announce(shared.gates + PLACES, HALVES * BYTES);
      for (int half = 0; half < HALVES; half++)
        bring(shared.weight[HELD ? 0 : half], (half ? tail : head) + (long long)bundle * (WARPS * 16) * LINE, BYTES, shared.gates + PLACES);
    }
  }
  __syncthreads();
  Left left;
  float shift[2];
  #pragma unroll
  for (int i = 0; i < 2; i++) shift[i] = counts ? bias[channel * HP + unit + 8 * i] : 0.f;
  if (HELD) {
    #pragma unroll
    for (int half = 0; half < HALVES; half++)
      #pragma unroll
      for (int k = 0; k < STEPS; k++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          const half_t* from = (half ? tail : head) + ((long long)channel * HP + unit - g + (i & 1) * 8) * LINE;
          left.a[HELD ? half : 0][HELD ? k : 0][i] = counts ? *(const u32*)(from + (2 * k + (i >> 1)) * 64 + g * 8 + 2 * t) : 0u;
        }
  } else {
    gate_pass(shared.gates + PLACES, 0);
    left.take(shared.weight[0], WARPS * 16 * LINE, warp, lane);
  }
  float total[LINE / 2], sums[2] = {0.f, 0.f};
  for (int i = 0; i < LINE / 2; i++) total[i] = 0.f;

  // Lots of this block: of stage `share / cuts` and every so many more, those of its cut.
  struct Place { int number, start, last; };
  auto advance = [&](Place& at) {
    at.start += LOT;
    while (at.start >= at.last) {
      at.number += shares;
      if (at.number >= stages) return false;
      const int crowd = moving[at.number / TOTAL];
      const int size = ((crowd + LOT - 1) / LOT + cuts - 1) / cuts * LOT;
      at.start = share % cuts * size;
      at.last = at.start + size < crowd ? at.start + size : crowd;
    }
    return true;
  };
  auto fetch = [&](const Place& at, int place) {
    Lot& lot = shared.lots[place];
    if (threadIdx.x == 0) {
      constexpr int BYTES = LOT * LINE * 2;
      u64* gate = shared.gates + place;
      // Rows behind the last stream of all are not there.
      const int rows = streams - at.start < LOT ? streams - at.start : LOT;
      gate_announce(gate, HALVES * BYTES + (PART ? rows * 64 * WARPS : rows * GS * 4));
      for (int half = 0; half < HALVES; half++)
        bring(lot.rows[half], bent + (((long long)at.number * HALVES + half) * room + at.start) * LINE, BYTES, gate);
      const float* from = g_ks + ((long long)at.number * streams + at.start) * GS + first_unit;
      if (!PART) bring(lot.g, from, rows * GS * 4, gate);
      else for (int row = 0; row < rows; row++) bring(lot.g + row * G_LINE, from + row * GS, 64 * WARPS, gate);
    }
    if (threadIdx.x < LANES * LOT) {
      const int which = threadIdx.x / LOT, row = threadIdx.x % LOT;
      const bool there = row < at.last - at.start && first_channel + which < CHANNELS;
      const long long node = (long long)(at.number / TOTAL) * NODES + at.number % NODES;
      const long long from = (node * CHANNELS + first_channel + which) * streams + at.start + row;
      copy_word(shared.dx[place][which] + row, across + (there ? from : 0), there);
    }
    copies_mark();
  };
  Place now = {share / cuts - shares, 0, 0}, ahead = now;
  bool more = true;
  for (int i = 0; i < PLACES - 1 && more; i++)
    if ((more = advance(ahead))) fetch(ahead, i);
  int place = 0;
  u32 phase = 0;
  #pragma unroll 1
  while (advance(now)) {
    copies_end();
    __syncthreads();
    // The place that all have just left.
    if (more && (more = advance(ahead))) fetch(ahead, place == 0 ? PLACES - 1 : place - 1);
    gate_pass(shared.gates + place, phase);
    const Lot& lot = shared.lots[place];
    const float* increments = shared.dx[place][channel - first_channel];
    float f[LOT / 2], cross[LOT / 2];
    products_begin();
    products(f, cross, left, lot.rows[0], lot.rows[HALVES - 1]);
    products_mark();
    products_end();
    #pragma unroll
    for (int n = 0; n < LOT / 8; n++) {
      const int row = 8 * n + 2 * t;
      const float2 dx = *(const float2*)(increments + row);
      #pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i++) {
        const float y = bend(f[i], cross[i], shift[i >> 1 & 1]);
        const float g_k = lot.g[(row + (i & 1)) * G_LINE + unit - first_unit + (i >> 1 & 1) * 8];
        const float found = g_k * ((i & 1 ? dx.y : dx.x) * scale) * (1.f - y * y);
        f[i] = row + (i & 1) < now.last - now.start ? found : 0.f;
        sums[i >> 1 & 1] += f[i];
      }
    }
    add_products<LOT>(total, f, lot.rows[0], lot.rows[HALVES - 1]);
    place = place == PLACES - 1 ? 0 : place + 1;
    if (place == 0) phase ^= 1;
  }
  copies_end();
  for (int other = 1; other < 4; other *= 2)
    for (int i = 0; i < 2; i++) sums[i] += __shfl_xor_sync(0xFFFFFFFFu, sums[i], other);
  if (!counts) return;
  const float undo = power * (SPLIT ? 64.f / 8192.f : 1.f / 8192.f);
  const long long to = ((long long)share * CHANNELS + channel) * H;
  #pragma unroll
  for (int i = 0; i < 2; i++)
    if (t == 0 && unit + 8 * i < H) offset[to + unit + 8 * i] = sums[i] * (power / 8192.f);
  #pragma unroll
  for (int i = 0; i < LINE / 2; i++) {
    const int own = unit + (i >> 1 & 1) * 8, column = 8 * (i >> 2) + 2 * t + (i & 1);
    if (own < H && column < W) weight[(to + own) * W + column] = total[i] * undo;
  }
}
