"""What one thread block computes: activations, products in half-precision parts, waiting for all others.

A product of float32 numbers is made from half-precision ones: `x = head + tail / 2048`, and likewise
the weights, which are split once beforehand. Three products of halves keep 22 bits (`SPLIT`), as
three of tf32 would, at twice their rate; one keeps 11.
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """Tanh; `FAST` is the hardware's, right to 11 bits."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    square = x * x
    # The quotient cancels near 0, where the series is exact to rounding.
    series = x * (1.0 + square * (-0.33333334 + square * (0.13333334 - square * 0.053968254)))
    return tl.where(square < 0.0121, series, 1.0 - 2.0 * _inverse(tl.exp2(2.8853901 * x) + 1.0))


@triton.jit
def _inverse(x):
    """1 / x for x of 1 or more, to the last bit but one."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _check(ACT: tl.constexpr):
    """Refuse an activation that is not below. What follows a `return` is compiled too, so this comes first."""
    tl.static_assert(
        ((ACT == "relu") or (ACT == "tanh")) or ((ACT == "silu") or (ACT == "softplus")),
        "an activation that these kernels do not know",
    )


@triton.jit
def activate(x, ACT: tl.constexpr, FAST: tl.constexpr):
    """The activation of the inner layers; NaN stays NaN."""
    _check(ACT)
    if ACT == "relu":
        return tl.where(x < 0.0, 0.0, x)
    if ACT == "tanh":
        return tanh(x, FAST)
    if ACT == "silu":
        return x / (1.0 + tl.exp(-x))
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit
def through_activation(g, x, ACT: tl.constexpr, FAST: tl.constexpr):
    """The gradient before an activation, from that after it and what it took in."""
    _check(ACT)
    if ACT == "relu":
        return tl.where(x > 0.0, g, 0.0)
    if ACT == "tanh":
        bent = tanh(x, FAST)
        return g * (1.0 - bent * bent)
    if ACT == "silu":
        share = 1.0 / (1.0 + tl.exp(-x))
        return g * share * (1.0 + x * (1.0 - share))
    return g / (1.0 + tl.exp(-x))


@triton.jit
def power_of_two(most):
    """The largest power of two up to `most` > 0, and its inverse; 1 where `most` is 0 or not finite."""
    bits = most.to(tl.int32, bitcast=True) & 0x7F800000
    plain = (bits > 0x10000000) & (bits < 0x6F000000)
    bits = tl.where(plain, bits, 0x3F800000)
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def product(x, head, tail, at, SPLIT: tl.constexpr):
    """x (row, k) @ w (k, n), w in halves at `head + at` and `tail + at`."""
    w = tl.load(head + at)
    if SPLIT:
        rest = tl.load(tail + at)
        # Room for numbers up to 4 million; what is small keeps 1e-9 through its tail.
        x = x * 0.015625
        upper = x.to(tl.float16)
        lower = ((x - upper.to(tl.float32)) * 2048.0).to(tl.float16)
        cross = tl.dot(lower, w)
        cross = tl.dot(upper, rest, cross)
        return (tl.dot(upper, w) + cross * 0.00048828125) * 64.0
    return tl.dot(x.to(tl.float16), w)


@triton.jit
def scaled_product(g, head, tail, at, SPLIT: tl.constexpr):
    """`product` for gradients: each row is brought to the size of 1 first, whatever its own."""
    power, inverse = power_of_two(tl.max(tl.abs(g), 1))
    g = g * inverse[:, None]
    w = tl.load(head + at)
    upper = g.to(tl.float16)
    total = tl.dot(upper, w)
    if SPLIT:
        lower = ((g - upper.to(tl.float32)) * 2048.0).to(tl.float16)
        cross = tl.dot(lower, w)
        cross = tl.dot(upper, tl.load(tail + at), cross)
        total += cross * 0.00048828125
    return total * power[:, None]


@triton.jit
def add_product(total, cross, g, head, tail, at, SPLIT: tl.constexpr):
    """Add g (row, k) @ w (k, n) to `found + cross / 2048`, for gradients g of size 1 or less."""
    w = tl.load(head + at)
    upper = g.to(tl.float16)
    total = tl.dot(upper, w, total)
    if SPLIT:
        lower = ((g - upper.to(tl.float32)) * 2048.0).to(tl.float16)
        cross = tl.dot(lower, w, cross)
        cross = tl.dot(upper, tl.load(tail + at), cross)
    return total, cross


@triton.jit
def outer_product(g, x, SPLIT: tl.constexpr):
    """g^T x (n, k) summed over rows: g (row, n) gradients of any size, x (row, k)."""
    power, inverse = power_of_two(tl.max(tl.max(tl.abs(g), 1), 0))
    g = tl.trans(g * inverse)
    upper = g.to(tl.float16)
    if SPLIT:
        lower = ((g - upper.to(tl.float32)) * 2048.0).to(tl.float16)
        x = x * 0.015625
        x_upper = x.to(tl.float16)
        x_lower = ((x - x_upper.to(tl.float32)) * 2048.0).to(tl.float16)
        cross = tl.dot(lower, x_upper)
        cross = tl.dot(upper, x_lower, cross)
        return (tl.dot(upper, x_upper) + cross * 0.00048828125) * (64.0 * power)
    return tl.dot(upper, x.to(tl.float16)) * power


@triton.jit
def keep_halves(x, to, rows, live, streams, S: tl.constexpr, P: tl.constexpr, SPLIT: tl.constexpr):
    """Write x (row, P) in halves to `to` (2, stream, S), as products of wide rows take it in."""
    k = tl.arange(0, P)
    mine = live[:, None] & (k < S)[None, :]
    at = to + rows[:, None] * S + k[None, :]
    upper = x.to(tl.float16)
    tl.store(at, upper, mask=mine)
    if SPLIT:
        lower = ((x - upper.to(tl.float32)) * 2048.0).to(tl.float16)
        tl.store(at + streams * S, lower, mask=mine)


@triton.jit
def product_of_halves(
    halves, rows, live, streams, head, tail, at, stride,
    S: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """x @ w (row, n) for rows x that `keep_halves` wrote, read block by block.

    Row k of w, halves, is at `head + at + k * stride`.
    """
    total = tl.zeros([rows.shape[0], BN], tl.float32)
    cross = tl.zeros([rows.shape[0], BN], tl.float32)
    for first in tl.range(0, S, BK, num_stages=3):
        k = first + tl.arange(0, BK)
        here = halves + rows[:, None] * S + k[None, :]
        mine = live[:, None]
        if S % BK:
            # The last block reaches into the next row: weights are 0 there, but what it holds need be no number.
            mine = mine & (k < S)[None, :]
        upper = tl.load(here, mask=mine, other=0.0)
        w = tl.load(head + at[None, :] + k[:, None] * stride)
        total = tl.dot(upper, w, total)
        if SPLIT:
            lower = tl.load(here + streams * S, mask=mine, other=0.0)
            rest = tl.load(tail + at[None, :] + k[:, None] * stride)
            cross = tl.dot(lower, w, cross)
            cross = tl.dot(upper, rest, cross)
    if SPLIT:
        total += cross * 0.00048828125
    return total


@triton.jit
def wait_for_all(counter, target, TOGETHER: tl.constexpr):
    """Go on when all thread blocks of the grid have come here; what they wrote can then be read."""
    if TOGETHER:
        tl.debug_barrier()
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        _look(counter, target)
        tl.debug_barrier()


@triton.jit
def _look(counter, target):
    """The first thread looks until `target` have come; the others wait for it at the barrier that follows.

    A load, for atomics that only look would queue up before those that count.
    """
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred other, more;
        .reg .b32 own, come;
        mov.u32 own, %tid.x;
        setp.ne.u32 other, own, 0;
        mov.b32 $0, 0;
        @other bra done;
        again:
        ld.acquire.gpu.global.b32 come, [$1];
        setp.lt.s32 more, come, $2;
        @more bra again;
        done:
        }
        """,
        "=r,l,r", [counter, target], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def drive_at(drive, piece, rows, columns, mask, u, streams, W: tl.constexpr, CUBIC: tl.constexpr):
    """What the field sees of the path at u (row,) of a piece: on a line between knots, or of a cubic."""
    if CUBIC:
        base = drive + (piece * streams.to(tl.int64) + rows[:, None]) * (4 * W) + columns[None, :]
        total = tl.load(base + 3 * W, mask=mask, other=0.0)
        total = tl.load(base + 2 * W, mask=mask, other=0.0) + u[:, None] * total
        total = tl.load(base + W, mask=mask, other=0.0) + u[:, None] * total
        return tl.load(base, mask=mask, other=0.0) + u[:, None] * total
    base = drive + (piece * streams.to(tl.int64) + rows[:, None]) * W + columns[None, :]
    here = tl.load(base, mask=mask, other=0.0)
    there = tl.load(base + streams * W, mask=mask, other=0.0)
    return here + u[:, None] * (there - here)


@triton.jit
def slope_at(
    slopes, leg, rows, channel, mask, u, streams, CHANNELS: tl.constexpr, DEGREE: tl.constexpr
):
    """dX/du of a channel at u of a piece: (row,). slopes (leg, stream, degree, channel)."""
    base = slopes + (leg * streams + rows) * (DEGREE * CHANNELS) + channel
    total = tl.load(base + (DEGREE - 1) * CHANNELS, mask=mask, other=0.0)
    for back in tl.static_range(1, DEGREE):
        total = total * u + tl.load(base + (DEGREE - 1 - back) * CHANNELS, mask=mask, other=0.0)
    return total
