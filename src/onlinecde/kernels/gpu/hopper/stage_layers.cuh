// The inner layers for 16 streams of a thread block, there and back, with all weights in shared memory. One number
// after the other is a warp's for each stream, products are shared out by columns.
//
// Numbers are halves, with SPLIT each as a head and a tail of 11 bits: x = head + tail / 2048. Matrices stand in
// blocks of 8 x 8 halves, in global memory too.
//
// Defined by the host: H, W (hidden, width), HS, WS, GS (numbers in a row of states, features, gradients), BIAS (in a
// row of biases), DEPTH, ACT, STAGES (of a step), TOTAL (of a piece), STEP (1 / steps of a piece), SPLIT, EVERY.

constexpr int ROWS = 16, THREADS = 32 * ROWS;   // a warp for each stream
constexpr int IN = (H + 15) / 16 * 16, LINE = (W + 15) / 16 * 16;
constexpr int HALVES = SPLIT ? 2 : 1;
constexpr int FIRST_LAYER = LINE * IN, LAYERS = FIRST_LAYER + (DEPTH - 1) * LINE * LINE;  // halves of weights
constexpr int WIDEST = IN > LINE ? IN : LINE;
constexpr int SUM_LINE = WIDEST + 4;     // floats of a row of results; four keep banks apart
constexpr float REST = 1.f / 2048.f;     // of a tail
static_assert(HS >= IN && WS >= LINE, "rows are whole tiles");

struct alignas(128) Shared {
  half_t weight[HALVES][LAYERS];
  union {                                // in turn
    half_t left[HALVES][ROWS * WIDEST];  // what a layer takes in, or gradients
    float result[ROWS * SUM_LINE];
  };
  float power[ROWS];                     // of two, near the largest of each row
  u64 gate;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the host gives");

INLINE float activate(float x) { return activate<SPLIT, false>(x); }
INLINE float through_activation(float g, float x) { return through_activation<SPLIT, false>(g, x); }

// Ask for all weights; thread 0 does, when all have met or none can have come.
INLINE void fetch_layers(Shared& shared, const half_t* head, const half_t* tail) {
  if (threadIdx.x) return;
  gate_make(&shared.gate);
  gates_made();
  gate_announce(&shared.gate, HALVES * LAYERS * 2);
  for (int half = 0; half < HALVES; half++) bring(shared.weight[half], half ? tail : head, LAYERS * 2, &shared.gate);
}

// Two neighbours in halves, tails `apart` from heads.
INLINE void put_halves(half_t* to, long long apart, float low, float high) {
  const u32 upper = pack(low, high);
  *(u32*)to = upper;
  if (SPLIT) *(u32*)(to + apart) = pack((low - low_of(upper)) * 2048.f, (high - high_of(upper)) * 2048.f);
}

// Four neighbours of a row, times `scale`, into the left side of a product of so many columns.
INLINE void put_left(Shared& shared, int row, int column, int columns, float4 x, float scale) {
  half_t* to = shared.left[0] + ((row >> 3) * (columns / 8) + (column >> 3)) * 64 + (row & 7) * 8 + (column & 7);
  put_halves(to, ROWS * WIDEST, x.x * scale, x.y * scale);
  put_halves(to + 2, ROWS * WIDEST, x.z * scale, x.w * scale);
}

// The number of a lane's fours in rows of so many numbers.
INLINE constexpr int fours(int numbers) { return (numbers + 127) / 128; }

// `give` (column, four neighbours) gets a warp's row of LINE results, when all threads have read theirs.
template <typename Give>
INLINE void pass_on(const Shared& shared, const Give& give) {
  const int lane = threadIdx.x & 31, r = threadIdx.x >> 5;
  float4 four[fours(LINE)];
  #pragma unroll
  for (int i = 0; i < fours(LINE); i++) {
    const int at = 4 * lane + 128 * i;
    four[i] = at < LINE ? *(const float4*)(shared.result + r * SUM_LINE + at) : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < fours(LINE); i++)
    if (4 * lane + 128 * i < LINE) give(4 * lane + 128 * i, four[i]);
}

// 16 rows of `left` (16 x 16 K) by weights: `tile` gets (row, column, two neighbours) of all results, when all threads
// have read what they multiply.
//
// Weights (units, columns) are taken by rows, to the units, or else by columns, back from them.
template <int K, int N, bool BY_ROWS, typename Tile>
INLINE void multiply_left(const Shared& shared, int weights, const Tile& tile) {
  constexpr int ACROSS = (BY_ROWS ? 16 * K : N) / 8;
  static_assert(N <= 16 * ROWS, "a warp has 16 columns");
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float f[2][4], cross[2][4];
  for (int i = 0; i < 8; i++) f[i >> 2][i & 3] = cross[i >> 2][i & 3] = 0.f;
  const bool works = 16 * warp < N;
  #pragma unroll 4
  for (int k = 0; k < K && works; k++) {
    u32 a[HALVES][4];
    const int from = ((lane >> 3 & 1) * (2 * K) + 2 * k + (lane >> 4)) * 64 + (lane & 7) * 8;
    #pragma unroll
    for (int half = 0; half < HALVES; half++) load_matrices(a[half], shared.left[half] + from);
    const int block = BY_ROWS ? (2 * warp + (lane >> 4)) * ACROSS + 2 * k + (lane >> 3 & 1)
                              : (2 * k + (lane >> 3 & 1)) * ACROSS + 2 * warp + (lane >> 4);
    const int at = weights + block * 64 + (lane & 7) * 8;
    u32 b[4];
    if (BY_ROWS) load_matrices(b, shared.weight[0] + at); else load_transposed(b, shared.weight[0] + at);
    multiply(f[0], a[0], b[0], b[1]);
    multiply(f[1], a[0], b[2], b[3]);
    if (SPLIT) {
      multiply(cross[0], a[HALVES - 1], b[0], b[1]);
      multiply(cross[1], a[HALVES - 1], b[2], b[3]);
      if (BY_ROWS) load_matrices(b, shared.weight[HALVES - 1] + at); else load_transposed(b, shared.weight[HALVES - 1] + at);
      multiply(cross[0], a[0], b[0], b[1]);
      multiply(cross[1], a[0], b[2], b[3]);
    }
  }
  __syncthreads();
  if (!works) return;
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    const float* x = f[i >> 1] + 2 * (i & 1);
    const float* y = cross[i >> 1] + 2 * (i & 1);
    tile((lane >> 2) + 8 * (i & 1), 16 * warp + 8 * (i >> 1) + 2 * (lane & 3),
         SPLIT ? x[0] + y[0] * REST : x[0], SPLIT ? x[1] + y[1] * REST : x[1]);
  }
}

INLINE float4 plus(float4 a, float w, float4 b) {
  return make_float4(a.x + w * b.x, a.y + w * b.y, a.z + w * b.z, a.w + w * b.w);
}

// The sum of a row's parts, (part, stride), from column `at` on, in their order; 8 loads are under way at once.
INLINE float4 add_up(const float* parts, long long first, int many, int stride, int at) {
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  const float* from = parts + first * stride + at;
  for (int i = 0; i < many; i += 8) {
    float4 some[8];
    #pragma unroll
    for (int n = 0; n < 8; n++)
      some[n] = i + n < many ? *(const float4*)(from + (long long)(i + n) * stride) : make_float4(0.f, 0.f, 0.f, 0.f);
    #pragma unroll
    for (int n = 0; n < 8; n++) total = plus(total, 1.f, some[n]);
  }
  return total;
}

INLINE float4 only_if(bool there, float4 a) {
  return make_float4(there ? a.x : 0.f, there ? a.y : 0.f, there ? a.z : 0.f, there ? a.w : 0.f);
}

// The largest of a warp's numbers.
INLINE float largest(float most) {
  for (int other = 16; other; other /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, other));
  return most;
}

INLINE float size_of(float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); }

// z + STEP sum_i table[i stride] k_i
INLINE float4 combine(float4 z, const float4 (&k)[4], const float* table, int stride) {
  #pragma unroll
  for (int i = 0; i < 4; i++) z = plus(z, table[i * stride] * STEP, k[i]);
  return z;
}
