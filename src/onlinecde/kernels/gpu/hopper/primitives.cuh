// One instruction each: tensor cores, asynchronous copies, and words between the blocks of a cluster.
// Nothing is included, so that NVRTC needs no headers.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short half_t;  // bits of a half-precision number

#define INLINE __device__ __forceinline__

INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8.
INLINE void load_matrices(u32* r, const half_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}

INLINE void load_transposed(u32* r, const half_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}

INLINE void store_transposed(half_t* row, u32 first, u32 second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};"
               :: "r"(shared_address(row)), "r"(first), "r"(second) : "memory");
}

// d (16 x 8) += a (16 x 16) b (16 x 8)
INLINE void multiply(float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

INLINE u32 pack(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

INLINE u32 times(u32 a, u32 b) {
  u32 both;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
}

INLINE float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

INLINE float low_of(u32 both) {
  float x;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(x) : "r"(both));
  return x;
}

INLINE float high_of(u32 both) {
  float x;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(x) : "r"(both));
  return x;
}

// Copies from global memory that go on by themselves.
INLINE void copy_word(float* to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0) : "memory");
}

INLINE void copy_line(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}

INLINE void copies_end() { asm volatile("cp.async.wait_all;" ::: "memory"); }

INLINE void copies_mark() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All copies but those since the last mark.
INLINE void copies_end_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

INLINE u32 rank_in_cluster() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

INLINE void group_wait(int threads) { asm volatile("bar.sync 1, %0;" :: "r"(threads) : "memory"); }

// A gate opens when as many bytes have come as were announced.
INLINE void gate_make(u64* gate) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(gate)) : "memory");
}

INLINE void gates_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

INLINE void gate_announce(u64* gate, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(shared_address(gate)), "r"(bytes) : "memory");
}

INLINE void gate_pass(u64* gate, u32 phase) {
  u32 open;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(open) : "r"(shared_address(gate)), "r"(phase) : "memory");
  } while (!open);
}

// Where something of this block's shared memory stands in that of another.
INLINE u32 place_in(const void* p, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  return there;
}

INLINE void send(u32 to, uint4 words, u32 gate) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"
               :: "r"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(gate) : "memory");
}
