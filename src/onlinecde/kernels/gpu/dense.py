"""Columns of a value leg on which most channels move: tiles of streams in their own order.

A piece of work is a tile of streams, a block of hidden units and a group of channels. It reads what the
last layer takes in once for all its channels and adds them up in registers: one part for each
stream and group in the forward sweep, and for each stream, block and group in the backward sweep. A channel
that stands still in a stream has dX = 0 and adds nothing. Products are laid out (stream, unit), on the way
back for wide rows (unit, stream).
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import power_of_two, tanh
from onlinecde.kernels.gpu.columns import (
    bent_rows,
    gradient_halves,
    moved_columns,
    pull_columns,
    weight_rows,
)


@triton.jit
def slope_across(slopes, place, stream, channel, mask, streams, CHANNELS: tl.constexpr):
    """dX/du of a channel in neighbouring streams, of `slopes` (leg and stage, channel, stream): (stream,)."""
    return tl.load(slopes + (place * CHANNELS + channel) * streams + stream, mask=mask, other=0.0)


@triton.jit
def _work_of(
    item, crowd, groups, CHANNELS: tl.constexpr, CROWD: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """Of a piece of work: its streams, which of them move, block of units, group, first and last channel.

    `crowd` streams move, the first of all. Full groups come first, for the last round is best a short one.
    """
    each = tl.cdiv(CHANNELS, groups)
    tiles = tl.cdiv(crowd, CROWD)
    stream = item // BLOCKS % tiles * CROWD + tl.arange(0, CROWD)
    group = item // (tiles * BLOCKS)
    first = group * each
    last = tl.minimum(first + each, CHANNELS)
    return stream, stream < crowd, item % BLOCKS, group, first, last


@triton.jit
def _columns(
    x, x_b, y, y_b, w, w_b, v, v_b, shift,
    WB: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """f_j (row, n), streams first: what is made of it can go into the next product from registers."""
    w = tl.trans(w)
    f = tl.dot(x, w)
    if WB:
        w_b = tl.trans(w_b)
        f = tl.dot(x_b, w_b, f)
    if SPLIT:
        cross = tl.dot(y, w)
        cross = tl.dot(x, tl.trans(v), cross)
        if WB:
            cross = tl.dot(y_b, w_b, cross)
            cross = tl.dot(x_b, tl.trans(v_b), cross)
        f = (f + cross * 0.00048828125) * 64.0
    f += shift[None, :]
    if TANH:
        f = tanh(f, FAST)
    return f


@triton.jit
def dense_columns(
    bent, parts, item, crowd, groups, streams, slopes, place, head, tail, bias,
    HS: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, WA: tl.constexpr, WB: tl.constexpr,
    WP: tl.constexpr, CHANNELS: tl.constexpr, OFFSET: tl.constexpr,
    CROWD: tl.constexpr, AHEAD: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """sum_j dX_j f_j of a piece of work into `parts` (stream, group, HS)."""
    BLOCKS: tl.constexpr = (HS + BN - 1) // BN
    long = streams.to(tl.int64)
    stream, used, block, group, begin, end = _work_of(item, crowd, groups, CHANNELS, CROWD, BLOCKS)
    m = block * BN + tl.arange(0, BN)
    x, x_b, y, y_b = bent_rows(bent, stream, used, streams, WA, WB, SPLIT)
    total = tl.zeros([CROWD, BN], tl.float32)
    for j in tl.range(begin, end, num_stages=AHEAD):
        dx = slope_across(slopes, place, stream, j, used, long, CHANNELS)
        w, w_b, v, v_b = weight_rows(head, tail, j + OFFSET, m, HP, WP, WA, WB, SPLIT)
        shift = tl.load(bias + (j + OFFSET) * HP + m)
        f = _columns(x, x_b, y, y_b, w, w_b, v, v_b, shift, WB, TANH, SPLIT, FAST)
        total += dx[:, None] * f
    to = stream * groups + group
    mine = used[:, None] & (m < HS)[None, :]
    tl.store(parts + to[:, None] * HS + m[None, :], total, mask=mine)


@triton.jit
def _pull(total, upper, lower, small, w, v, SPLIT: tl.constexpr):
    total = tl.dot(upper, w, total)
    if SPLIT:
        total = tl.dot(lower, w, total)
        total = tl.dot(small, v, total)
    return total


@triton.jit
def pull_dense_columns(
    bent, g_ks, g_sizes, parts, item, crowd, groups, streams, slopes, place, steep, head, tail,
    bias,
    HS: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, WA: tl.constexpr, WB: tl.constexpr,
    WP: tl.constexpr, CHANNELS: tl.constexpr, OFFSET: tl.constexpr,
    CROWD: tl.constexpr, AHEAD: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of h of a piece of work into `parts` (stream, group, block, WA + WB).

    They come from those of the stage in `g_ks` (stream, HS), of the sizes `g_sizes` (stream,).
    """
    BLOCKS: tl.constexpr = (HS + BN - 1) // BN
    long = streams.to(tl.int64)
    stream, used, block, group, begin, end = _work_of(item, crowd, groups, CHANNELS, CROWD, BLOCKS)
    m = block * BN + tl.arange(0, BN)
    x, x_b, y, y_b = bent_rows(bent, stream, used, streams, WA, WB, SPLIT)
    mine = used[:, None] & (m < HS)[None, :]
    g = tl.load(g_ks + stream[:, None] * HS + m[None, :], mask=mine, other=0.0)
    most = tl.load(steep + stream, mask=used, other=0.0)
    power, inverse = power_of_two(tl.load(g_sizes + stream, mask=used, other=0.0) * most)
    total = tl.zeros([CROWD, WA], tl.float32)
    found_b = tl.zeros([CROWD, WB if WB else 16], tl.float32)
    for j in tl.range(begin, end, num_stages=AHEAD):
        dx = slope_across(slopes, place, stream, j, used, long, CHANNELS)
        w, w_b, v, v_b = weight_rows(head, tail, j + OFFSET, m, HP, WP, WA, WB, SPLIT)
        g_f = g * (dx * inverse)[:, None]
        if TANH:
            shift = tl.load(bias + (j + OFFSET) * HP + m)
            f = _columns(x, x_b, y, y_b, w, w_b, v, v_b, shift, WB, TANH, SPLIT, FAST)
            g_f = g_f * (1.0 - f * f)
        upper, lower, small = gradient_halves(g_f)
        total = _pull(total, upper, lower, small, w, v, SPLIT)
        if WB:
            found_b = _pull(found_b, upper, lower, small, w_b, v_b, SPLIT)
    # Gradients went in 8192 times as large.
    power = (power * 0.0001220703125)[:, None]
    at = parts + ((stream * groups + group) * BLOCKS + block)[:, None] * (WA + WB)
    tl.store(at + tl.arange(0, WA)[None, :], total * power, mask=used[:, None])
    if WB:
        tl.store(at + (WA + tl.arange(0, WB))[None, :], found_b * power, mask=used[:, None])


@triton.jit
def pull_dense_units_first(
    bent, g_ks, g_sizes, parts, item, crowd, groups, streams, slopes, place, steep, head, tail,
    bias,
    HS: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, WA: tl.constexpr, WB: tl.constexpr,
    WP: tl.constexpr, CHANNELS: tl.constexpr, OFFSET: tl.constexpr,
    CROWD: tl.constexpr, AHEAD: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """`pull_dense_columns` for rows above 128: (unit, stream) takes fewer registers for each of them."""
    BLOCKS: tl.constexpr = (HS + BN - 1) // BN
    long = streams.to(tl.int64)
    stream, used, block, group, begin, end = _work_of(item, crowd, groups, CHANNELS, CROWD, BLOCKS)
    m = block * BN + tl.arange(0, BN)
    x, x_b, y, y_b = bent_rows(bent, stream, used, streams, WA, WB, SPLIT)
    mine = used[None, :] & (m < HS)[:, None]
    g = tl.load(g_ks + stream[None, :] * HS + m[:, None], mask=mine, other=0.0)
    most = tl.load(steep + stream, mask=used, other=0.0)
    power, inverse = power_of_two(tl.load(g_sizes + stream, mask=used, other=0.0) * most)
    total = tl.zeros([WA, CROWD], tl.float32)
    found_b = tl.zeros([WB if WB else 16, CROWD], tl.float32)
    for j in tl.range(begin, end, num_stages=AHEAD):
        dx = slope_across(slopes, place, stream, j, used, long, CHANNELS)
        w, w_b, v, v_b = weight_rows(head, tail, j + OFFSET, m, HP, WP, WA, WB, SPLIT)
        g_f = g * (dx * inverse)[None, :]
        if TANH:
            shift = tl.load(bias + (j + OFFSET) * HP + m)
            f = moved_columns(w, w_b, v, v_b, x, x_b, y, y_b, shift, WB, TANH, SPLIT, FAST)
            g_f = g_f * (1.0 - f * f)
        total, found_b = pull_columns(total, found_b, g_f, w, w_b, v, v_b, WB, SPLIT)
    # `pull_columns` finds 8192 times as much, or half of it.
    half = (power * 0.000244140625)[None, :]
    power = half * 0.5 if WA >= 128 else half
    at = parts + ((stream * groups + group) * BLOCKS + block)[None, :] * (WA + WB)
    tl.store(at + tl.arange(0, WA)[:, None], total * power, mask=used[None, :])
    if WB:
        tl.store(at + (WA + tl.arange(0, WB))[:, None], found_b * half, mask=used[None, :])
