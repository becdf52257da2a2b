// Products of a warpgroup: four warps with 16 rows each by a matrix in shared memory, while they go on.
//
// A matrix (row, column) stands in shared memory as blocks of 8 x 8 halves, each 128 bytes on end: ACROSS blocks
// of columns beside each other, then the next 8 rows. It can be the right side of a product either way round.
//
// Defined by the host for results of FIRST and LAST columns: how the instruction names its operands.

INLINE u64 matrix_at(const half_t* start, int next_of_16, int next_of_n) {
  return (u64)((shared_address(start) & 0x3FFFF) >> 4) | (u64)(next_of_16 >> 4) << 16 | (u64)(next_of_n >> 4) << 32;
}

#define TEXT_OF(N) #N
#define WIDE(N, NUMBERS, A, B, ADD, WAY) \
  "{ .reg .pred add; setp.ne.b32 add, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" TEXT_OF(N) "k16.f32.f16.f16 {" \
  NUMBERS "}, " A ", " B ", add, 1, 1, " WAY "; }"

// d (64 x N) = or += a (64 x 16) b^T, with 16 columns of N rows from `b` on
template <int N>
INLINE void multiply_rows(float* d, const u32* a, const half_t* b, int across, int add) {
  static_assert(N == FIRST, "named for another size");
  asm volatile(WIDE(FIRST, FIRST_NUMBERS, "{" FIRST_A "}", FIRST_B, FIRST_ADD, "0") : FIRST_OUTPUTS
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix_at(b, 128, 128 * across)), "r"(add));
}

// ... with the left side in shared memory too: 16 columns of the warpgroup's 64 rows from `a` on
template <int N>
INLINE void multiply_shared(float* d, const half_t* a, const half_t* b, int across, int add) {
  static_assert(N == FIRST, "named for another size");
  asm volatile(WIDE(FIRST, FIRST_NUMBERS, FIRST_A_AT, FIRST_B_AT, FIRST_ADD_AT, "0, 0") : FIRST_OUTPUTS
               : "l"(matrix_at(a, 128, 128 * across)), "l"(matrix_at(b, 128, 128 * across)), "r"(add));
}

// d (64 x N) += a (64 x 16) b, with 16 rows of N columns from `b` on
template <int N>
INLINE void multiply_columns(float* d, const u32* a, const half_t* b, int across) {
  static_assert(N == LAST, "named for another size");
  asm volatile(WIDE(LAST, LAST_NUMBERS, "{" LAST_A "}", LAST_B, LAST_ADD, "1") : LAST_OUTPUTS
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix_at(b, 128 * across, 128)), "r"(1));
}
// Registers and shared memory that were written before can be read by the products that follow.
INLINE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

INLINE void products_mark() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

INLINE void products_end() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// A copy of whole lines from global memory that goes on by itself; the gate counts its bytes.
INLINE void bring(void* to, const void* from, int bytes, u64* gate) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(gate)) : "memory");
}

// The next kernel may begin when all blocks have said so; what this one writes it waits for.
INLINE void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// What the kernel before wrote can be read. Every block waits before it ends: what comes later counts on it.
INLINE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
