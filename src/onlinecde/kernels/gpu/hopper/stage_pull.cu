// Gradients of what the last layer takes in at one stage, for some streams, through some hidden units of a
// group of channels: into `parts` (stream, group, block of units, WS), from those of the stage's k in
// `g_ks` (stage, stream, GS), of the sizes `g_sizes` (stream,). No dX is larger than `steep` (leg, stream).

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) stage_pull(
    const half_t* bent, const float* g_ks, const float* g_sizes, float* parts, const float* across,
    const float* steep, const int* moving, const half_t* head, const half_t* tail, const float* bias,
    int streams, int room, int groups, int number) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  next_may_begin();
  const Work work = work_of(across, moving, groups, streams, number);
  if (work.first_stream >= work.crowd) {
    wait_for_previous();
    return;
  }
  Left left;
  begin(left, shared, work, bent + number * ((long long)HALVES * room * LINE), head, tail, bias, room);
  // Gradients of any size fit into halves once a stream's largest is brought to the size of 1, and times 8192
  // nothing of them is lost to small halves.
  float power[2], scale[2], dx[2], g_k[UNITS / 2], found[LINE / 2];
  const float* g_here = g_ks + (long long)number * streams * GS;
  #pragma unroll
  for (int i = 0; i < 2; i++) {
    power[i] = power_of_two(work.there[i] ? g_sizes[work.row[i]] * steep[(long long)work.leg * streams + work.row[i]] : 0.f);
    scale[i] = inverse_of(power[i]) * 8192.f;
    dx[i] = increment(work, work.first_channel, i, streams) * scale[i];
    #pragma unroll
    for (int n = 0; n < UNITS / 8; n++) {
      const int unit = work.first_unit + 8 * n + 2 * work.t;
      const float2* from = (const float2*)(g_here + (long long)work.row[i] * GS + unit);
      const float2 two = work.there[i] && unit < HS ? *from : make_float2(0.f, 0.f);
      g_k[4 * n + 2 * i] = two.x; g_k[4 * n + 2 * i + 1] = two.y;
    }
  }
  for (int i = 0; i < LINE / 2; i++) found[i] = 0.f;
  int place = 0;
  u32 phase = 0;
  #pragma unroll 1
  for (int channel = work.first_channel; channel < work.last_channel; channel++) {
    gate_pass(shared.gates + place, phase);
    const Column& column = shared.columns[place];
    float f[UNITS / 2], cross[UNITS / 2], next[2];
    products_begin();
    products(f, cross, left, column.weight[0], column.weight[HALVES - 1]);
    products_mark();
    for (int i = 0; i < 2; i++) next[i] = increment(work, channel + 1, i, streams) * scale[i];
    products_end();
    #pragma unroll
    for (int n = 0; n < UNITS / 8; n++) {
      const float2 bias = *(const float2*)(column.bias + 8 * n + 2 * work.t);
      #pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i++) {
        const float y = bend(f[i], cross[i], i & 1 ? bias.y : bias.x);
        f[i] = g_k[i] * dx[i >> 1 & 1] * (1.f - y * y);
      }
    }
    // What a thread holds of a product's result is what the next one wants of its left side.
    add_products<UNITS>(found, f, column.weight[0], column.weight[HALVES - 1]);
    for (int i = 0; i < 2; i++) dx[i] = next[i];
    __syncthreads();
    fetch(shared, work, head, tail, bias, channel + 3, place);
    place = place == 2 ? 0 : place + 1;
    if (place == 0) phase ^= 1;
  }
  #pragma unroll
  for (int n = 0; n < WS / 8; n++)
    for (int i = 0; i < 2; i++) {
      if (!work.there[i]) continue;
      const float undo = power[i] * (1.f / 8192.f);
      float2* to = (float2*)(parts + (((long long)work.row[i] * groups + work.group) * BLOCKS + work.block) * WS + 8 * n + 2 * work.t);
      const int at = n < ACROSS ? 4 * n + 2 * i : 0;
      *to = n < ACROSS ? make_float2(found[at] * undo, found[at + 1] * undo) : make_float2(0.f, 0.f);
    }
}
