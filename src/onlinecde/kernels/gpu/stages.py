"""Runge-Kutta stages of one tile of streams, held in registers: up to four."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl


@triton.jit
def combine(z, k0, k1, k2, k3, weights, h):
    """`z + h sum_s weights[s] k_s`; h (row,)."""
    z += (tl.load(weights) * h)[:, None] * k0
    z += (tl.load(weights + 1) * h)[:, None] * k1
    z += (tl.load(weights + 2) * h)[:, None] * k2
    return z + (tl.load(weights + 3) * h)[:, None] * k3


@triton.jit
def put(k, s, k0, k1, k2, k3):
    """The four stages with stage s replaced by k."""
    k0 = tl.where(s == 0, k, k0)
    k1 = tl.where(s == 1, k, k1)
    k2 = tl.where(s == 2, k, k2)
    return k0, k1, k2, tl.where(s == 3, k, k3)


@triton.jit
def pull_combine(g, y0, y1, y2, y3, table, s, h):
    """The gradient of k_s: what it adds to the step's end and to later stages' inputs.

    g is the gradient of the step's end, y0 to y3 those of the stages' inputs found so far.
    """
    total = (tl.load(table + 16 + s) * h)[:, None] * g
    total += (tl.load(table + s) * h)[:, None] * y0
    total += (tl.load(table + 4 + s) * h)[:, None] * y1
    total += (tl.load(table + 8 + s) * h)[:, None] * y2
    return total + (tl.load(table + 12 + s) * h)[:, None] * y3


@triton.jit
def add_up(parts, first, count, live, WS: tl.constexpr, WP: tl.constexpr):
    """Sum of each row's parts (part, WS), in their order: (row, WP)."""
    n = tl.arange(0, WP)
    total = tl.zeros([first.shape[0], WP], tl.float32)
    # So many loads are under way at once.
    AHEAD: tl.constexpr = 8 if WP <= 64 else 4
    for start in range(0, tl.max(count), AHEAD):
        for ahead in tl.static_range(AHEAD):
            mine = (live & (start + ahead < count))[:, None] & (n < WS)[None, :]
            at = (first + start + ahead)[:, None] * WS + n[None, :]
            total += tl.load(parts + at, mask=mine, other=0.0)
    return total


@triton.jit
def through_memory(x, at, mask):
    """Write x and read it again.

    What a product takes in is copied to every warp; without this the compiler would keep all that
    x is made from in as many copies, and run out of registers.
    """
    tl.store(at, x, mask=mask)
    tl.debug_barrier()
    return tl.load(at, mask=mask, other=0.0)
