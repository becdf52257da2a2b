// What the kernels of one stage share: rows of what the last layer takes in, columns of its weights.
//
// Numbers are halves, with SPLIT each as a head and a tail of 11 bits: x = head + tail / 2048. Of a product's
// result a thread has numbers i of rows g + 8 (i / 2) of its warp's 16 and columns 8 n + 2 t + i % 2.
// What the last layer takes in (stage, half, ROOM rows) and its weights (channel, HP rows) stand in global memory
// as products want them in shared memory: in blocks of 8 x 8 halves, so that any 8 rows and more are one line.
//
// Defined by the host: H, W (hidden, width), HP (hidden units of the packed weights), HS, WS (numbers in a row of
// states and of their sums), GS (of gradients), CHANNELS, NODES, TOTAL (stages of a piece), SPLIT, WARPS, UNITS
// (hidden units of a block), HELD (whether left sides are kept in registers).

constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = (W + 15) / 16;     // of 16 numbers along a row
constexpr int ACROSS = 2 * STEPS;        // blocks of 8 x 8 along a row
constexpr int LINE = 16 * STEPS;         // halves of a row
constexpr int HALVES = SPLIT ? 2 : 1;
constexpr int BLOCKS = (H + UNITS - 1) / UNITS;
constexpr float REST = 1.f / 2048.f;     // of a tail
static_assert(WARPS % 4 == 0, "products are a warpgroup's");
static_assert(UNITS % 16 == 0 && WS >= LINE, "rows are whole steps");
static_assert(HP % UNITS == 0, "blocks of units end where the weights do");

// tanh of what a product and its cross terms gave, and a bias.
INLINE float bend(float f, float cross, float bias) {
  if (!SPLIT) return fast_tanh(f + bias);
  return exact_tanh((f + cross * REST) * 64.f + bias);
}

// 64 rows of a warpgroup as the left side of products: in shared memory or, where they are HELD, in registers.
struct Left {
  u32 a[HELD ? HALVES : 1][HELD ? STEPS : 1][4];
  const half_t* at[HALVES];

  // From 16 rows a warp in shared memory, heads and tails `apart` halves from each other.
  INLINE void take(const half_t* rows, int apart, int warp, int lane) {
    #pragma unroll
    for (int half = 0; half < HALVES; half++) {
      at[half] = rows + half * apart + (warp / 4) * (64 * LINE);
      if (HELD)
        #pragma unroll
        for (int k = 0; k < STEPS; k++) {
          const int block = (2 * warp + (lane >> 3 & 1)) * ACROSS + 2 * k + (lane >> 4);
          load_matrices(a[HELD ? half : 0][HELD ? k : 0], rows + half * apart + block * 64 + (lane & 7) * 8);
        }
    }
  }

  INLINE void multiply(float* d, int half, int k, const half_t* b, int add) const {
    if (HELD) multiply_rows<FIRST>(d, a[HELD ? half : 0][HELD ? k : 0], b + 128 * k, ACROSS, add);
    else multiply_shared<FIRST>(d, at[half] + 128 * k, b + 128 * k, ACROSS, add);
  }
};

// f (64 x FIRST) and its cross terms: a warpgroup's rows by rows of a matrix in shared memory and its tails.
INLINE void products(float* f, float* cross, const Left& left, const half_t* head, const half_t* tail) {
  #pragma unroll
  for (int k = 0; k < STEPS; k++) {
    left.multiply(f, 0, k, head, k > 0);
    if (SPLIT) {
      left.multiply(cross, HALVES - 1, k, head, k > 0);
      left.multiply(cross, 0, k, tail, 1);
    }
  }
}

// Gradients of a product's result as the left side of the next: heads, tails, and heads for a factor's tail.
// They come 8192 times as large, so that all products go into one sum.
INLINE void in_halves(u32 (&upper)[4], u32 (&lower)[4], u32 (&small)[4], const float* f) {
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    upper[i] = pack(f[2 * i], f[2 * i + 1]);
    if (SPLIT) {
      lower[i] = pack(f[2 * i] - low_of(upper[i]), f[2 * i + 1] - high_of(upper[i]));
      small[i] = pack(f[2 * i] * REST, f[2 * i + 1] * REST);
    }
  }
}

// Add gradients f (64 x N), times as many rows of a matrix in shared memory and its tails, to `found` (64 x LINE).
template <int N>
INLINE void add_products(float* found, const float* f, const half_t* head, const half_t* tail) {
  u32 upper[N / 16][4], lower[N / 16][4], small[N / 16][4];
  #pragma unroll
  for (int k = 0; k < N / 16; k++) in_halves(upper[k], lower[k], small[k], f + 8 * k);
  products_begin();
  #pragma unroll
  for (int k = 0; k < N / 16; k++) {
    multiply_columns<LAST>(found, upper[k], head + 16 * LINE * k, ACROSS);
    if (SPLIT) {
      multiply_columns<LAST>(found, lower[k], head + 16 * LINE * k, ACROSS);
      multiply_columns<LAST>(found, small[k], tail + 16 * LINE * k, ACROSS);
    }
  }
  products_mark();
  products_end();
}
