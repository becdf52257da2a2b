// A piece of work of one stage: some streams, hidden units and channels, whose weights come in turn.

struct alignas(128) Column {
  half_t weight[HALVES][UNITS * LINE];
  float bias[UNITS];
};

struct alignas(128) Shared {
  Column columns[3];
  half_t rows[HALVES][WARPS * 16 * LINE];
  u64 gates[4];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the host gives");

struct Work {
  int leg, crowd;                // streams that move on the leg
  int first_stream, first_unit, block, group, first_channel, last_channel;
  int lane, warp, t;
  int row[2];                    // the streams of a thread
  bool there[2];
  const float* slopes;           // dX of the stage, (channel, stream)
};

INLINE Work work_of(const float* across, const int* moving, int groups, int streams, int number) {
  const int tiles = (streams + 16 * WARPS - 1) / (16 * WARPS), each = (CHANNELS + groups - 1) / groups;
  Work work;
  work.leg = number / TOTAL;
  work.crowd = moving[work.leg];
  work.block = blockIdx.x % BLOCKS;
  work.first_unit = work.block * UNITS;
  work.first_stream = blockIdx.x / BLOCKS % tiles * (16 * WARPS);
  work.group = blockIdx.x / (BLOCKS * tiles);
  work.first_channel = work.group * each;
  work.last_channel = work.first_channel + each < CHANNELS ? work.first_channel + each : CHANNELS;
  work.lane = threadIdx.x & 31; work.warp = threadIdx.x >> 5; work.t = work.lane & 3;
  for (int i = 0; i < 2; i++) {
    work.row[i] = work.first_stream + 16 * work.warp + (work.lane >> 2) + 8 * i;
    work.there[i] = work.row[i] < work.crowd;
  }
  work.slopes = across + (long long)(work.leg * NODES + number % NODES) * CHANNELS * streams;
  return work;
}

INLINE float increment(const Work& work, int channel, int i, int streams) {
  return channel < work.last_channel && work.there[i] ? work.slopes[(long long)channel * streams + work.row[i]] : 0.f;
}

// Ask for a channel's weights; thread 0 does.
INLINE void fetch(Shared& shared, const Work& work, const half_t* head, const half_t* tail, const float* bias,
                  int channel, int place) {
  if (threadIdx.x || channel >= work.last_channel) return;
  constexpr int BYTES = UNITS * LINE * 2;
  Column& to = shared.columns[place];
  u64* gate = shared.gates + place;
  const long long at = (long long)channel * HP + work.first_unit;
  gate_announce(gate, HALVES * BYTES + UNITS * 4);
  bring(to.weight[0], head + at * LINE, BYTES, gate);
  if (SPLIT) bring(to.weight[HALVES - 1], tail + at * LINE, BYTES, gate);
  bring(to.bias, bias + at, UNITS * 4, gate);
}

// Ask for the first three columns and, once the kernel before has ended, for the rows of a block's streams; take these.
INLINE void begin(Left& left, Shared& shared, const Work& work, const half_t* bent, const half_t* head,
                  const half_t* tail, const float* bias, int room) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++) gate_make(shared.gates + i);
    gates_made();
  }
  for (int i = 0; i < 3; i++) fetch(shared, work, head, tail, bias, work.first_channel + i, i);
  wait_for_previous();
  if (threadIdx.x == 0) {
    constexpr int BYTES = WARPS * 16 * LINE * 2;
    gate_announce(shared.gates + 3, HALVES * BYTES);
    for (int half = 0; half < HALVES; half++)
      bring(shared.rows[half], bent + ((long long)half * room + work.first_stream) * LINE, BYTES, shared.gates + 3);
  }
  __syncthreads();
  gate_pass(shared.gates + 3, 0);
  left.take(shared.rows[0], WARPS * 16 * LINE, work.warp, work.lane);
}
