"""The inner layers for one tile of streams, there and back."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import (
    activate,
    drive_at,
    keep_halves,
    power_of_two,
    product,
    product_of_halves,
    scaled_product,
    through_activation,
)
from onlinecde.kernels.gpu.columns import keep_bent


@triton.jit
def _layer(
    x, halves, rows, live, before, head, tail, bias, drive, piece, u, streams,
    KS: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr,
    W: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr,
    DRIVE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One layer before its activation, (row, WP), also written to `before` (stream, WS).

    It takes in x (row, KP); where that is wide (BK < KP) it goes through `halves` (2, stream, KS).
    """
    wide = tl.arange(0, WP)
    mine = live[:, None] & (wide < WS)[None, :]
    place = rows[:, None] * WS + wide[None, :]
    if BK < KP:
        keep_bent(x, halves, rows, live, streams, KS, KP, SPLIT)
        tl.debug_barrier()
    if BW == WP:
        p = _units(
            x, halves, rows, live, wide, head, tail, bias, drive, piece, u, streams,
            KS, KP, BK, W, BW, DRIVE, SPLIT,
        )  # fmt: skip
        tl.store(before + place, p, mask=mine)
        if BK < KP:
            tl.debug_barrier()
        return p
    for first in range(0, WS, BW):
        n = first + tl.arange(0, BW)
        p = _units(
            x, halves, rows, live, n, head, tail, bias, drive, piece, u, streams,
            KS, KP, BK, W, BW, DRIVE, SPLIT,
        )  # fmt: skip
        tl.store(before + rows[:, None] * WS + n[None, :], p, mask=live[:, None])
    tl.debug_barrier()
    return tl.load(before + place, mask=mine, other=0.0)


@triton.jit
def _units(
    x, halves, rows, live, n, head, tail, bias, drive, piece, u, streams,
    KS: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    DRIVE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Units n of `_layer`: (row, BW)."""
    if BK == KP:
        k = tl.arange(0, KP)
        p = product(x, head, tail, n[None, :] * KP + k[:, None], SPLIT)
    else:
        p = product_of_halves(halves, rows, live, streams, head, tail, n * KP, 1, KS, BK, BW, SPLIT)
        if SPLIT:
            p = p * 64.0
    p += tl.load(bias + n)[None, :]
    if DRIVE > 0:
        seen = live[:, None] & (n < W)[None, :]
        p += drive_at(drive, piece, rows, n, seen, u, streams, W, DRIVE == 2)
    return p


@triton.jit
def features(
    y, y_halves, x_halves, rows, live, before, head, tail, bias, drive, piece, u, streams,
    HS: tl.constexpr, HP: tl.constexpr, BKH: tl.constexpr,
    W: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, DEPTH: tl.constexpr,
    ACT: tl.constexpr, DRIVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The MLP before its last layer: y (row, HP) -> (row, WP).

    What each layer's activation takes in is written to `before` (layer, stream, WS). What wide layers
    take in goes through `y_halves` (2, stream, HS) and `x_halves` (2, stream, WS).
    """
    p = _layer(
        y, y_halves, rows, live, before, head, tail, bias, drive, piece, u, streams,
        HS, HP, BKH, W, WS, WP, BW, DRIVE, SPLIT,
    )  # fmt: skip
    x = activate(p, ACT, FAST)
    for layer in tl.static_range(1, DEPTH):
        start = WP * HP + (layer - 1) * WP * WP
        p = _layer(
            x, x_halves, rows, live, before + layer * streams * WS, head + start, tail + start,
            bias + layer * WP, drive, piece, u, streams,
            WS, WP, BK, W, WS, WP, BW, 0, SPLIT,
        )  # fmt: skip
        x = activate(p, ACT, FAST)
    return x


@triton.jit
def _gradient(
    g, halves, rows, live, streams, to, head, tail,
    NS: tl.constexpr, NP: tl.constexpr, BN: tl.constexpr, ROOM: tl.constexpr,
    WS: tl.constexpr, WP: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """g @ w (row, NP) for gradients g (row, WP).

    Wide ones go through `halves` (2, stream, WS); a wide result is put together at `to` (stream, ROOM).
    """
    k = tl.arange(0, WP)
    n = tl.arange(0, NP)
    if BK == WP and BN == NP:
        return scaled_product(g, head, tail, k[:, None] * NP + n[None, :], SPLIT)
    power, inverse = power_of_two(tl.max(tl.abs(g), 1))
    if BK < WP:
        keep_halves(g * inverse[:, None], halves, rows, live, streams, WS, WP, SPLIT)
    tl.debug_barrier()
    if BN == NP:
        total = product_of_halves(halves, rows, live, streams, head, tail, n, NP, WS, BK, BN, SPLIT)
        tl.debug_barrier()
        return total * power[:, None]
    for first in range(0, NS, BN):
        m = first + tl.arange(0, BN)
        if BK == WP:
            part = scaled_product(g, head, tail, k[:, None] * NP + m[None, :], SPLIT)
        else:
            part = product_of_halves(
                halves, rows, live, streams, head, tail, m, NP, WS, BK, BN, SPLIT
            )
            part = part * power[:, None]
        tl.store(to + rows[:, None] * ROOM + m[None, :], part, mask=live[:, None])
    tl.debug_barrier()
    mine = live[:, None] & (n < NS)[None, :]
    return tl.load(to + rows[:, None] * ROOM + n[None, :], mask=mine, other=0.0)


@triton.jit
def pull_features(
    g_h, rows, live, before, grads, halves, spill, head, tail, streams,
    HS: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr,
    WS: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """From the gradient of `features`' result (row, WP), that of y (row, HP).

    Gradients before the activations are written to `grads` (layer, stream, WS). Wide gradients go
    through `halves` (2, stream, WS) and are put together in `spill` (stream, HS or WS).
    """
    # One stride for both widths: a tile's own rows must not reach into another tile's.
    ROOM: tl.constexpr = HS if HS > WS else WS
    k = tl.arange(0, WP)
    mine = live[:, None] & (k < WS)[None, :]
    place = rows[:, None] * WS + k[None, :]
    for back in tl.static_range(1, DEPTH):
        layer = DEPTH - back
        start = WP * HP + (layer - 1) * WP * WP
        p = tl.load(before + layer * streams * WS + place, mask=mine, other=0.0)
        g = through_activation(g_h, p, ACT, FAST)
        tl.store(grads + layer * streams * WS + place, g, mask=mine)
        g_h = _gradient(
            g, halves, rows, live, streams, spill, head + start, tail + start,
            WS, WP, BW, ROOM, WS, WP, BK, SPLIT,
        )  # fmt: skip
    p = tl.load(before + place, mask=mine, other=0.0)
    g = through_activation(g_h, p, ACT, FAST)
    tl.store(grads + place, g, mask=mine)
    return _gradient(
        g, halves, rows, live, streams, spill, head, tail, HS, HP, BH, ROOM, WS, WP, BK, SPLIT
    )
