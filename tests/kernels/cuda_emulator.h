// The CUDA kernels' primitives on a CPU: one fibre a thread, eight thread blocks at a time.
//
// Messages between blocks arrive late and in random order, asynchronous copies only when they are
// waited for, and warps run in random order: what a kernel gets right here does not hang on luck.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define INLINE inline

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short half_t;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { u32 x, y, z, w; };
struct Index { u32 x; };
using std::max;

const int CLUSTER_BLOCKS = 8, MEMORY = 232448, MOST_WARPS = CLUSTER_BLOCKS * 32;
int block_threads;

struct Copy { void* to; const void* from; int bytes; };
struct Fibre {
  ucontext_t context;
  int block, thread;
  bool done = false;
  long arrived = -1;
  size_t marks[2] = {0, 0};
  std::vector<Copy> copies;
};
struct Meeting { int here = 0; long round = 0; };
struct Lanes { u64 address[32]; float number[32]; u32 words[32][8]; };
struct Message { unsigned char* to; uint4 words; u64* gate; };
struct Gate { int missing = 1; long bytes = 0; u32 phase = 0; };

Fibre* now;
ucontext_t scheduler;
int cluster_number;
long progress;
std::mt19937 chance(1);
std::vector<unsigned char*> memories;
std::vector<Message> messages;
std::map<u64*, Gate> gates_by_address;
Meeting warp_meetings[MOST_WARPS], block_meetings[8], group_meetings[8], cluster_meeting;
Lanes all_lanes[MOST_WARPS];

void fail(const char* what) { fprintf(stderr, "emulator: %s\n", what); abort(); }
int lane() { return now->thread & 31; }
int warp_number() { return now->block * (block_threads / 32) + (now->thread >> 5); }
Lanes& lanes() { return all_lanes[warp_number()]; }
void pause() { swapcontext(&now->context, &scheduler); }

void meet(Meeting& meeting, int many) {
  long round = meeting.round;
  if (++meeting.here == many) { meeting.here = 0; meeting.round++; progress++; return; }
  while (meeting.round == round) pause();
}

void warp_meet() { meet(warp_meetings[warp_number()], 32); }

int grid;
#define gridDim (Index{(u32)grid})
#define threadIdx (Index{(u32)now->thread})
#define blockIdx (Index{(u32)(cluster_number * CLUSTER_BLOCKS + now->block)})
uint4 make_uint4(u32 a, u32 b, u32 c, u32 d) { return {a, b, c, d}; }
float2 make_float2(float a, float b) { return {a, b}; }
float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
void atomicMax(int* to, int x) { *to = max(*to, x); }
void __syncthreads() { meet(block_meetings[now->block], block_threads); }
void __syncwarp() { warp_meet(); }
int __popc(u32 x) { return __builtin_popcount(x); }
u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
#define __expf std::exp
#define __logf std::log

float __shfl_xor_sync(u32, float x, int other) {
  lanes().number[lane()] = x;
  warp_meet();
  float found = lanes().number[lane() ^ other];
  warp_meet();
  return found;
}

int __shfl_up_sync(u32, int x, int other) {
  lanes().words[lane()][0] = x;
  warp_meet();
  int found = lanes().words[lane() >= other ? lane() - other : lane()][0];
  warp_meet();
  return found;
}

u32 __ballot_sync(u32, bool x) {
  lanes().words[lane()][0] = x;
  warp_meet();
  u32 found = 0;
  for (int i = 0; i < 32; i++) found |= lanes().words[i][0] << i;
  warp_meet();
  return found;
}

float number_of(half_t bits) { _Float16 x; memcpy(&x, &bits, 2); return (float)x; }
half_t bits_of(float x) { _Float16 y = (_Float16)x; half_t bits; memcpy(&bits, &y, 2); return bits; }

void check(const void* p, int bytes) {
  long at = (const unsigned char*)p - memories[now->block];
  if (at < 0 || at + bytes > MEMORY) fail("an address beyond shared memory");
  if (at % bytes) fail("an address that is not aligned");
}

void load(u32* r, const half_t* row, bool transposed) {
  check(row, 16);
  lanes().address[lane()] = (u64)row;
  warp_meet();
  u32 found[4];
  int g = lane() >> 2, t = lane() & 3;
  for (int i = 0; i < 4; i++) {
    u64* rows = lanes().address + 8 * i;
    found[i] = transposed ? ((half_t*)rows[2 * t])[g] | (u32)((half_t*)rows[2 * t + 1])[g] << 16
                          : *(u32*)((half_t*)rows[g] + 2 * t);
  }
  warp_meet();
  memcpy(r, found, 16);
}

void load_matrices(u32* r, const half_t* row) { load(r, row, false); }
void load_transposed(u32* r, const half_t* row) { load(r, row, true); }

void store_transposed(half_t* row, u32 first, u32 second) {
  check(row, 16);
  lanes().address[lane()] = (u64)row;
  lanes().words[lane()][0] = first;
  lanes().words[lane()][1] = second;
  warp_meet();
  if (lane() < 16) {
    int matrix = lane() >> 3, column = lane() & 7;
    for (int g = 0; g < 8; g++) row[g] = lanes().words[4 * g + (column >> 1)][matrix] >> 16 * (column & 1);
  }
  warp_meet();
}

float half_at(u32 word, int which) { return number_of(which & 1 ? word >> 16 : word); }

void multiply(float* d, const u32* a, u32 b0, u32 b1) {
  u32* mine = lanes().words[lane()];
  memcpy(mine, a, 16);
  mine[4] = b0; mine[5] = b1;
  warp_meet();
  for (int i = 0; i < 4; i++) {
    int row = (lane() >> 2) + (i >> 1) * 8, column = 2 * (lane() & 3) + (i & 1);
    float sum = 0.f;
    for (int k = 0; k < 16; k++) {
      int at = k & 7, far = k >> 3;
      u32 left = lanes().words[(row & 7) * 4 + (at >> 1)][(row >> 3) + 2 * far];
      u32 right = lanes().words[column * 4 + (at >> 1)][4 + far];
      sum += half_at(left, at) * half_at(right, at);
    }
    d[i] += sum;
  }
  warp_meet();
}

u32 pack(float low, float high) { return bits_of(low) | (u32)bits_of(high) << 16; }
u32 times(u32 a, u32 b) { return pack(half_at(a, 0) * half_at(b, 0), half_at(a, 1) * half_at(b, 1)); }
float low_of(u32 both) { return half_at(both, 0); }
float high_of(u32 both) { return half_at(both, 1); }
float fast_tanh(float x) { return std::tanh(x); }

const float zeros[4] = {0, 0, 0, 0};

void copy(void* to, const void* from, int bytes, bool there) {
  check(to, bytes);
  if ((u64)from % bytes) fail("a copy from an address that is not aligned");
  now->copies.push_back({to, there ? from : zeros, bytes});
}

void copy_word(float* to, const float* from, bool there) { copy(to, from, 4, there); }
void copy_line(void* to, const void* from, bool there) { copy(to, from, 16, there); }

void finish_copies(size_t many) {
  for (size_t i = 0; i < many; i++) memcpy(now->copies[i].to, now->copies[i].from, now->copies[i].bytes);
  now->copies.erase(now->copies.begin(), now->copies.begin() + many);
}

void copies_end() { finish_copies(now->copies.size()); now->marks[0] = now->marks[1] = 0; }
void copies_mark() { now->marks[0] = now->marks[1]; now->marks[1] = now->copies.size(); }
void copies_end_but_last() {
  size_t many = now->marks[0];
  finish_copies(many);
  now->marks[0] = 0; now->marks[1] -= many;
}

u32 rank_in_cluster() { return now->block; }
void cluster_arrive() {
  if (now->arrived >= 0) fail("a thread arrived twice");
  now->arrived = cluster_meeting.round;
  if (++cluster_meeting.here == CLUSTER_BLOCKS * block_threads) { cluster_meeting.here = 0; cluster_meeting.round++; progress++; }
}
void cluster_wait() {
  if (now->arrived < 0) fail("a thread waits without having arrived");
  while (cluster_meeting.round == now->arrived) pause();
  now->arrived = -1;
}
void group_wait(int threads) { meet(group_meetings[now->block], threads); }

void settle(Gate& gate) {
  if (gate.missing == 0 && gate.bytes == 0) { gate.missing = 1; gate.phase ^= 1; progress++; }
}

void gate_make(u64* gate) { gates_by_address[gate] = Gate(); }
void gates_made() {}
void gate_announce(u64* address, int bytes) {
  Gate& gate = gates_by_address[address];
  gate.bytes += bytes;
  if (--gate.missing < 0) fail("a gate was announced twice");
  settle(gate);
}
void gate_pass(u64* gate, u32 phase) { while (gates_by_address[gate].phase == phase) pause(); }
u32 place_in(const void* p, u32 rank) { return rank << 24 | (u32)((unsigned char*)p - memories[now->block]); }
void send(u32 to, uint4 words, u32 gate) {
  if (to % 16) fail("a message to an address that is not aligned");
  messages.push_back({memories[to >> 24] + (to & 0xFFFFFF), words, (u64*)(memories[gate >> 24] + (gate & 0xFFFFFF))});
  progress++;
}

void deliver_some() {
  for (size_t left = messages.empty() ? 0 : messages.size() / 3 + 1; left; left--) {
    std::swap(messages[chance() % messages.size()], messages.back());
    Message message = messages.back();
    messages.pop_back();
    memcpy(message.to, &message.words, 16);
    Gate& gate = gates_by_address[message.gate];
    gate.bytes -= 16;
    settle(gate);
    progress++;
  }
}

void (*kernel_body)();
void enter() { kernel_body(); now->done = true; pause(); }

const size_t STACK = 1 << 16;

void run(int threads, int blocks, void (*body)()) {
  block_threads = threads;
  kernel_body = body;
  grid = blocks;
  const int most = std::min(CLUSTER_BLOCKS, blocks);
  for (int b = 0; b < most; b++) memories.push_back((unsigned char*)aligned_alloc(128, MEMORY));
  char* stacks = (char*)malloc(STACK * most * block_threads);
  for (cluster_number = 0; cluster_number * CLUSTER_BLOCKS < blocks; cluster_number++) {
    const int here = std::min(CLUSTER_BLOCKS, blocks - cluster_number * CLUSTER_BLOCKS);
    // What no kernel wrote is not zero.
    for (unsigned char* memory : memories) memset(memory, 0xC7, MEMORY);
    std::vector<Fibre> fibres(here * block_threads);
    for (size_t i = 0; i < fibres.size(); i++) {
      Fibre& fibre = fibres[i];
      fibre.block = i / block_threads; fibre.thread = i % block_threads;
      getcontext(&fibre.context);
      fibre.context.uc_stack.ss_sp = stacks + STACK * i;
      fibre.context.uc_stack.ss_size = STACK;
      makecontext(&fibre.context, enter, 0);
    }
    size_t left = fibres.size();
    int idle = 0;
    std::vector<int> warps(here * block_threads / 32);
    for (size_t i = 0; i < warps.size(); i++) warps[i] = i;
    while (left) {
      long before = progress;
      std::shuffle(warps.begin(), warps.end(), chance);
      for (int w : warps) for (int again = 0; again < 4; again++) for (int i = 0; i < 32; i++) {
        Fibre& fibre = fibres[w * 32 + i];
        if (fibre.done) continue;
        now = &fibre;
        swapcontext(&scheduler, &fibre.context);
        if (!fibre.done) continue;
        left--; progress++;
        if (!fibre.copies.empty()) fail("a thread left copies behind");
      }
      deliver_some();
      idle = progress == before ? idle + 1 : 0;
      if (idle > 200) fail("all threads wait for each other");
    }
    if (!messages.empty()) fail("a message to a block that has left");
    gates_by_address.clear();
  }
  for (unsigned char* memory : memories) free(memory);
  memories.clear();
  free(stacks);
}
