// The columns of one stage: sum_j dX_j f_j for some streams, hidden units and a group of channels, into
// `parts` (stream, group, HS).

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) stage_columns(
    const half_t* bent, float* parts, const float* across, const int* moving, const half_t* head,
    const half_t* tail, const float* bias, int streams, int room, int groups, int number) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  next_may_begin();
  const Work work = work_of(across, moving, groups, streams, number);
  if (work.first_stream >= work.crowd) {
    wait_for_previous();
    return;
  }
  Left left;
  begin(left, shared, work, bent + (SAVE ? number : 0) * ((long long)HALVES * room * LINE), head, tail, bias, room);
  float total[UNITS / 2], dx[2];
  for (int i = 0; i < UNITS / 2; i++) total[i] = 0.f;
  for (int i = 0; i < 2; i++) dx[i] = increment(work, work.first_channel, i, streams);
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
    for (int i = 0; i < 2; i++) next[i] = increment(work, channel + 1, i, streams);
    products_end();
    #pragma unroll
    for (int n = 0; n < UNITS / 8; n++) {
      const float2 bias = *(const float2*)(column.bias + 8 * n + 2 * work.t);
      #pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i++) total[i] += dx[i >> 1 & 1] * bend(f[i], cross[i], i & 1 ? bias.y : bias.x);
    }
    for (int i = 0; i < 2; i++) dx[i] = next[i];
    __syncthreads();
    // Of three places this is the one that all have just left.
    fetch(shared, work, head, tail, bias, channel + 3, place);
    place = place == 2 ? 0 : place + 1;
    if (place == 0) phase ^= 1;
  }
  #pragma unroll
  for (int n = 0; n < UNITS / 8; n++)
    for (int i = 0; i < 2; i++) {
      const int unit = work.first_unit + 8 * n + 2 * work.t;
      float2* to = (float2*)(parts + ((long long)work.row[i] * groups + work.group) * HS + unit);
      if (work.there[i] && unit < HS) *to = make_float2(total[4 * n + 2 * i], total[4 * n + 2 * i + 1]);
    }
}
