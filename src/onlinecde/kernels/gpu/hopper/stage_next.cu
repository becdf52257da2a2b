// Take in what the columns of stage `number` - 1 of all `stages` gave, and begin stage `number`: for 16 streams.
//
// Of the stage that ended, `parts` (stream, group, HS) are added up to its k in `ks` (4, stream, HS); with a
// step's last, z moves on in `z_now` (stream, HS) and, at its piece's end, into `knots`. The next stage's input is kept in
// `ys`, what activations take in in `before`, and what the last layer takes in in `bent` (half, room, LINE).

// Room for numbers up to 4 million; what is small keeps 1e-9 through its tail.
constexpr float SCALE = SPLIT ? 0.015625f : 1.f;

extern "C" __global__ void __launch_bounds__(THREADS, 1) stage_next(
    float* knots, float* z_now, float* ks, float* ys, float* before, half_t* bent, const float* parts,
    const int* lengths, const half_t* head, const half_t* tail, const float* bias, const float* table,
    int streams, int room, int stages, int groups, int number) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  next_may_begin();
  const int first = blockIdx.x * ROWS, last_piece = lengths[first];  // the longest come first
  const int piece = number / TOTAL, ended = number - 1;
  const bool begins = number < stages && piece < last_piece, takes = number > 0 && ended / TOTAL < last_piece;
  if (begins) fetch_layers(shared, head, tail);
  wait_for_previous();
  const long long many = streams, slot = SAVE ? number : 0;
  const int lane = threadIdx.x & 31, r = threadIdx.x >> 5, row = first + r;
  const bool live = row < streams;
  const bool moved = takes && live && ended / TOTAL < lengths[live ? row : first];
  #pragma unroll
  for (int i = 0; i < fours(HS); i++) {
    const int at = 4 * lane + 128 * i;
    if (at >= HS) continue;
    const long long spot = (long long)(live ? row : first) * HS + at;
    float4 z = *(const float4*)(z_now + spot), k[4];
    #pragma unroll
    for (int n = 0; n < 4; n++) k[n] = *(const float4*)(ks + n * many * HS + spot);
    if (takes) {
      const int s = ended % STAGES;
      const float4 found = only_if(moved, add_up(parts, (long long)(live ? row : first) * groups, groups, HS, at));
      #pragma unroll
      for (int n = 0; n < 4; n++) if (n == s) k[n] = found;
      if (live) *(float4*)(ks + s * many * HS + spot) = found;
      if (s == STAGES - 1) {
        z = combine(z, k, table + 16, 1);
        if (live) *(float4*)(z_now + spot) = z;
      }
    }
    if (number % TOTAL == 0 && piece % EVERY == 0 && live) {
      const float four[4] = {z.x, z.y, z.z, z.w};
      for (int n = 0; n < 4; n++)
        if (at + n < H) knots[((long long)(piece / EVERY) * many + row) * H + at + n] = four[n];
    }
    if (begins) {
      const float4 y = combine(z, k, table + number % STAGES * 4, 1);
      if (live) *(float4*)(ys + slot * many * HS + spot) = y;
      if (at < IN) put_left(shared, r, at, IN, y, SCALE);
    }
  }
  if (!begins) return;
  __syncthreads();
  gate_pass(&shared.gate, 0);
  auto layer = [&](int depth, int r, int unit, float low, float high) {
    const int row = first + r;
    low = (SPLIT ? low * 64.f : low) + bias[depth * BIAS + unit];
    high = (SPLIT ? high * 64.f : high) + bias[depth * BIAS + unit + 1];
    if (row < streams) {
      float* to = before + ((slot * DEPTH + depth) * many + row) * WS + unit;
      *(float2*)to = make_float2(low, high);
    }
    *(float2*)(shared.result + r * SUM_LINE + unit) = make_float2(activate(low), activate(high));
  };
  #pragma unroll
  for (int depth = 0; depth < DEPTH; depth++) {
    auto tile = [&](int r, int unit, float low, float high) { layer(depth, r, unit, low, high); };
    if (depth == 0) multiply_left<IN / 16, LINE, true>(shared, 0, tile);
    else multiply_left<LINE / 16, LINE, true>(shared, FIRST_LAYER + (depth - 1) * LINE * LINE, tile);
    __syncthreads();
    pass_on(shared, [&](int at, float4 x) {
      if (depth < DEPTH - 1) put_left(shared, r, at, LINE, x, SCALE);
      else if (live) {
        half_t* to = bent + slot * HALVES * ((long long)room * LINE)
                     + ((long long)(row >> 3) * (LINE / 8) + (at >> 3)) * 64 + (row & 7) * 8 + (at & 7);
        put_halves(to, (long long)room * LINE, x.x * SCALE, x.y * SCALE);
        put_halves(to + 2, (long long)room * LINE, x.z * SCALE, x.w * SCALE);
      }
    });
    for (int at = LINE + lane; at < WS; at += 32)
      if (live) before[((slot * DEPTH + depth) * many + row) * WS + at] = 0.f;
    __syncthreads();
  }
}
