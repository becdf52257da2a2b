// Take in the gradients through the columns of stage `number`, and begin with those of the stage before it: for
// 16 streams. `number` is `stages` where there is none to take in.
//
// `parts` (stream, many, WS) are added up to the gradient of what the last layer takes in and go back to that of the
// stage's input in `g_ys` (4, stream, HS); with a step's first stage they join that of z in `g_now` (stream, HS). Then
// `g_ks` (stage, stream, GS), `g_sizes` and `g_most` (stream,) take that of the k before. Gradients before the activations
// go to `grads` (stage, layer, stream, WS).

extern "C" __global__ void __launch_bounds__(THREADS, 1) stage_back(
    const float* g_knots, float* g_z0, float* g_now, float* g_ys, float* g_ks, float* g_sizes, float* g_most,
    float* grads, const float* before, const float* parts, const int* lengths, const half_t* head,
    const half_t* tail, const float* table, int streams, int stages, int many_parts, int number) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  next_may_begin();
  const int first = blockIdx.x * ROWS, last_piece = lengths[first];  // the longest come first
  const int piece = number / TOTAL;
  const bool takes = number < stages && piece < last_piece;
  const long long many = streams;
  if (takes) fetch_layers(shared, head, tail);
  wait_for_previous();
  const int lane = threadIdx.x & 31, r = threadIdx.x >> 5, row = first + r;
  const bool live = row < streams;
  if (takes) {
    const bool moved = live && piece < lengths[live ? row : first];
    for (int depth = DEPTH - 1; depth >= 0; depth--) {
      const long long spot = (((long long)number * DEPTH + depth) * many + (live ? row : first)) * WS;
      float4 g[fours(LINE)];
      float most = 0.f;
      #pragma unroll
      for (int i = 0; i < fours(LINE); i++) {
        const int at = 4 * lane + 128 * i;
        g[i] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (at >= LINE) continue;
        const float4 x = *(const float4*)(before + spot + at);
        if (depth == DEPTH - 1)
          g[i] = only_if(moved, add_up(parts, (long long)(live ? row : first) * many_parts, many_parts, WS, at));
        else g[i] = only_if(live, *(const float4*)(shared.result + r * SUM_LINE + at));
        g[i] = make_float4(through_activation(g[i].x, x.x), through_activation(g[i].y, x.y),
                           through_activation(g[i].z, x.z), through_activation(g[i].w, x.w));
        if (live) *(float4*)(grads + spot + at) = g[i];
        most = fmaxf(most, size_of(g[i]));
      }
      for (int at = LINE + lane; at < WS; at += 32) if (live) grads[spot + at] = 0.f;
      const float power = power_of_two(largest(most)), inverse = inverse_of(power);
      if (lane == 0) shared.power[r] = power;
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < fours(LINE); i++) {
        const int at = 4 * lane + 128 * i;
        if (at < LINE) put_left(shared, r, at, LINE, g[i], inverse);
      }
      __syncthreads();
      if (depth == DEPTH - 1) gate_pass(&shared.gate, 0);
      auto tile = [&](int r, int unit, float low, float high) {
        *(float2*)(shared.result + r * SUM_LINE + unit) = make_float2(low * shared.power[r], high * shared.power[r]);
      };
      if (depth) multiply_left<LINE / 16, LINE, false>(shared, FIRST_LAYER + (depth - 1) * LINE * LINE, tile);
      else multiply_left<LINE / 16, IN, false>(shared, 0, tile);
      __syncthreads();
    }
  }
  const bool begins = number > 0 && (number - 1) / TOTAL < last_piece;
  float most = 0.f;
  #pragma unroll
  for (int i = 0; i < fours(HS); i++) {
    const int at = 4 * lane + 128 * i;
    if (at >= HS || !live) continue;
    const long long spot = (long long)row * HS + at;
    float4 g = *(const float4*)(g_now + spot), y[4];
    #pragma unroll
    for (int n = 0; n < 4; n++) y[n] = *(const float4*)(g_ys + n * many * HS + spot);
    if (takes) {
      const int s = number % STAGES;
      float4 found = make_float4(0.f, 0.f, 0.f, 0.f);
      if (at < IN) found = *(const float4*)(shared.result + r * SUM_LINE + at);
      *(float4*)(g_ys + s * many * HS + spot) = found;
      #pragma unroll
      for (int n = 0; n < 4; n++) if (n == s) y[n] = found;
      if (s == 0) for (int n = 0; n < 4; n++) g = plus(g, 1.f, y[n]);
    }
    if (number % TOTAL == 0 && piece % EVERY == 0) {
      float four[4];
      for (int n = 0; n < 4; n++)
        four[n] = at + n < H ? g_knots[((long long)(piece / EVERY) * many + row) * H + at + n] : 0.f;
      g = plus(g, 1.f, make_float4(four[0], four[1], four[2], four[3]));
    }
    if (number % STAGES == 0) *(float4*)(g_now + spot) = g;
    if (number == 0) {
      const float four[4] = {g.x, g.y, g.z, g.w};
      for (int n = 0; n < 4; n++) if (at + n < H) g_z0[(long long)row * H + at + n] = four[n];
    }
    if (begins) {
      const int s = (number - 1) % STAGES;
      const float weight = table[16 + s] * STEP;
      const float4 own = make_float4(g.x * weight, g.y * weight, g.z * weight, g.w * weight);
      const float4 found = combine(own, y, table + s, 4);
      *(float4*)(g_ks + ((long long)(number - 1) * many + row) * GS + at) = found;
      most = fmaxf(most, size_of(found));
    }
  }
  most = largest(most);
  if (begins && live && lane == 0) {
    g_sizes[row] = most;
    g_most[row] = fmaxf(g_most[row], most);
  }
}
