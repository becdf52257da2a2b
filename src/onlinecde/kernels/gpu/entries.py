"""Columns of the entries of a value leg: tiles of one value, with its count, and some streams.

Two ways to lay the products out: units first, (unit, entry), from what the last layer takes in as it
was written in halves; or, for narrow fields, entries first, (entry, unit), from what the activation
takes in.
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import activate, add_product, power_of_two, slope_at
from onlinecde.kernels.gpu.columns import (
    bent_rows,
    column,
    columns_apart,
    moved_columns,
    pull_columns,
    weight_rows,
)


@triton.jit
def entries_of(
    item, last, tile_channel, tile_first, tile_last, entry_stream, entry_place,
    ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The value of a piece of work and, for its entries: whether they are there, their streams and places.

    A tile of `ENTRIES` makes one or more pieces of work of `BLOCK` entries.
    """
    SHARES: tl.constexpr = ENTRIES // BLOCK
    tile = item // SHARES
    there = item < last
    value = tl.load(tile_channel + tile, mask=there, other=0)
    first = tl.load(tile_first + tile, mask=there, other=0)
    entry = first + (item % SHARES) * BLOCK + tl.arange(0, BLOCK)
    used = entry < tl.load(tile_last + tile, mask=there, other=0)
    stream = tl.load(entry_stream + entry, mask=used, other=0)
    return value, used, stream, tl.load(entry_place + entry, mask=used, other=0)


@triton.jit
def add_slope(
    g_slopes, leg, rows, channel, mask, u, streams, g,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr,
):  # fmt: skip
    """Add a gradient (row,) of dX/du to those of its coefficients."""
    base = g_slopes + (leg * streams + rows) * (DEGREE * CHANNELS) + channel
    share = g
    for power in tl.static_range(DEGREE):
        old = tl.load(base + power * CHANNELS, mask=mask, other=0.0)
        tl.store(base + power * CHANNELS, old + share, mask=mask)
        share = share * u
    tl.debug_barrier()


@triton.jit
def units_first(
    bent, parts, value, used, stream, to, begin, streams, slopes, leg, u, head, tail, bias,
    HS: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, UNITS: tl.constexpr, WA: tl.constexpr,
    WB: tl.constexpr, WP: tl.constexpr, VALUES: tl.constexpr, PARTS: tl.constexpr,
    OFFSET: tl.constexpr, DEGREE: tl.constexpr, AHEAD: tl.constexpr, TANH: tl.constexpr,
    SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """sum_j dX_j f_j of entries into `parts` (place, HS): `UNITS` hidden units from `begin` on."""
    long = streams.to(tl.int64)
    x, x_b, y, y_b = bent_rows(bent, stream, used, streams, WA, WB, SPLIT)
    for first in tl.range(begin, begin + UNITS, BN, num_stages=AHEAD):
        m = first + tl.arange(0, BN)
        total = tl.zeros([BN, used.shape[0]], tl.float32)
        for part in tl.static_range(PARTS):
            j = value + part * VALUES
            dx = slope_at(slopes, leg, stream, j, used, u, long, VALUES * PARTS, DEGREE)
            w, w_b, v, v_b = weight_rows(head, tail, j + OFFSET, m, HP, WP, WA, WB, SPLIT)
            shift = tl.load(bias + (j + OFFSET) * HP + m)
            f = columns_apart(w, w_b, v, v_b, x, x_b, y, y_b, shift, WB, TANH, SPLIT, FAST)
            total += dx[None, :] * f
        mine = used[None, :] & (m < HS)[:, None]
        tl.store(parts + to[None, :] * HS + m[:, None], total, mask=mine)


@triton.jit
def entries_first(
    before, parts, value, used, stream, to, streams, slopes, leg, u, head, tail, bias,
    HS: tl.constexpr, HP: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, OFFSET: tl.constexpr, DEGREE: tl.constexpr,
    ACT: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """`units_first` for few units, all at once; `before` (stream, WS) is what the activation takes in."""
    long = streams.to(tl.int64)
    wide = tl.arange(0, WP)
    m = tl.arange(0, HP)
    x = tl.load(before + stream[:, None] * WS + wide[None, :], mask=used[:, None], other=0.0)
    x = activate(x, ACT, FAST)
    total = tl.zeros([used.shape[0], HP], tl.float32)
    for part in tl.static_range(PARTS):
        j = value + part * VALUES
        dx = slope_at(slopes, leg, stream, j, used, u, long, VALUES * PARTS, DEGREE)
        f = column(x, j + OFFSET, m, head, tail, bias, HP, WP, TANH, SPLIT, FAST)
        total += dx[:, None] * f
    tl.store(parts + to[:, None] * HS + m[None, :], total, mask=used[:, None])


@triton.jit
def _sizes(
    g_sizes, value, used, stream, streams, slopes, leg, u,
    VALUES: tl.constexpr, PARTS: tl.constexpr, DEGREE: tl.constexpr,
):  # fmt: skip
    """A power of two for each entry near the most its gradients can be, and its inverse."""
    long = streams.to(tl.int64)
    size = tl.load(g_sizes + stream, mask=used, other=0.0)
    most = tl.zeros([used.shape[0]], tl.float32)
    for part in tl.static_range(PARTS):
        j = value + part * VALUES
        dx = slope_at(slopes, leg, stream, j, used, u, long, VALUES * PARTS, DEGREE)
        most = tl.maximum(most, tl.abs(dx))
    return power_of_two(size * most)


@triton.jit
def pull_units_first(
    bent, g_ks, g_sizes, parts, value, used, stream, to, begin, streams,
    slopes, g_slopes, leg, u, head, tail, bias,
    HS: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, UNITS: tl.constexpr, WA: tl.constexpr,
    WB: tl.constexpr, WP: tl.constexpr, VALUES: tl.constexpr, PARTS: tl.constexpr,
    OFFSET: tl.constexpr, DEGREE: tl.constexpr, AHEAD: tl.constexpr, TANH: tl.constexpr,
    WANT_SLOPES: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of h at entries into `parts` (place, WA + WB), through `UNITS` hidden units from `begin` on.

    They come from those of the stage in `g_ks` (stream, HS), of the sizes `g_sizes` (stream,).
    """
    CHANNELS: tl.constexpr = VALUES * PARTS
    long = streams.to(tl.int64)
    x, x_b, y, y_b = bent_rows(bent, stream, used, streams, WA, WB, SPLIT)
    power, inverse = _sizes(
        g_sizes, value, used, stream, streams, slopes, leg, u, VALUES, PARTS, DEGREE
    )
    total = tl.zeros([WA, used.shape[0]], tl.float32)
    found_b = tl.zeros([WB if WB else 16, used.shape[0]], tl.float32)
    for turn in tl.range(0, tl.cdiv(UNITS, BN) * PARTS, num_stages=AHEAD):
        m = begin + turn // PARTS * BN + tl.arange(0, BN)
        j = value + turn % PARTS * VALUES
        mine = used[None, :] & (m < HS)[:, None]
        g = tl.load(g_ks + stream[None, :] * HS + m[:, None], mask=mine, other=0.0)
        dx = slope_at(slopes, leg, stream, j, used, u, long, CHANNELS, DEGREE)
        w, w_b, v, v_b = weight_rows(head, tail, j + OFFSET, m, HP, WP, WA, WB, SPLIT)
        g_f = g * (dx * inverse)[None, :]
        if TANH or WANT_SLOPES:
            shift = tl.load(bias + (j + OFFSET) * HP + m)
            f = moved_columns(w, w_b, v, v_b, x, x_b, y, y_b, shift, WB, TANH, SPLIT, FAST)
            if WANT_SLOPES:
                got = tl.sum(g * f, 0)
                add_slope(g_slopes, leg, stream, j, used, u, long, got, CHANNELS, DEGREE)
            if TANH:
                g_f = g_f * (1.0 - f * f)
        total, found_b = pull_columns(total, found_b, g_f, w, w_b, v, v_b, WB, SPLIT)
    # `pull_columns` finds 8192 times as much, or half of it.
    half = (power * 0.000244140625)[None, :]
    power = half * 0.5 if WA >= 128 else half
    at = parts + to[None, :] * (WA + WB)
    tl.store(at + tl.arange(0, WA)[:, None], total * power, mask=used[None, :])
    if WB:
        tl.store(at + (WA + tl.arange(0, WB))[:, None], found_b * half, mask=used[None, :])


@triton.jit
def pull_entries_first(
    before, g_ks, g_sizes, parts, value, used, stream, to, streams,
    slopes, g_slopes, leg, u, head, tail, bias,
    HS: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, OFFSET: tl.constexpr, DEGREE: tl.constexpr,
    ACT: tl.constexpr, TANH: tl.constexpr, WANT_SLOPES: tl.constexpr, SPLIT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """`pull_units_first` for few units; `before` (stream, WS) is what the activation takes in."""
    CHANNELS: tl.constexpr = VALUES * PARTS
    long = streams.to(tl.int64)
    wide = tl.arange(0, WP)
    x = tl.load(before + stream[:, None] * WS + wide[None, :], mask=used[:, None], other=0.0)
    x = activate(x, ACT, FAST)
    power, inverse = _sizes(
        g_sizes, value, used, stream, streams, slopes, leg, u, VALUES, PARTS, DEGREE
    )
    total = tl.zeros([used.shape[0], WP], tl.float32)
    cross = tl.zeros([used.shape[0], WP], tl.float32)
    for first in range(0, HS, BN):
        m = first + tl.arange(0, BN)
        g = tl.load(g_ks + stream[:, None] * HS + m[None, :], mask=used[:, None], other=0.0)
        for part in tl.static_range(PARTS):
            j = value + part * VALUES
            dx = slope_at(slopes, leg, stream, j, used, u, long, CHANNELS, DEGREE)
            f = column(x, j + OFFSET, m, head, tail, bias, HP, WP, TANH, SPLIT, FAST)
            if WANT_SLOPES:
                got = tl.sum(g * f, 1)
                add_slope(g_slopes, leg, stream, j, used, u, long, got, CHANNELS, DEGREE)
            g_f = g * (dx * inverse)[:, None]
            if TANH:
                g_f = g_f * (1.0 - f * f)
            at = (j + OFFSET) * (HP * WP) + m[:, None] * WP
            total, cross = add_product(total, cross, g_f, head, tail, at + wide[None, :], SPLIT)
    if SPLIT:
        total += cross * 0.00048828125
    total = total * power[:, None]
    tl.store(parts + to[:, None] * WS + wide[None, :], total, mask=used[:, None])
