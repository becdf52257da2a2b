"""The inner layers for one tile of streams, there and back."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import (
    activate,
    drive_at,
    power_of_two,
    product,
    product_from,
    scaled_product,
    states_from,
    through_activation,
)


@triton.jit
def _layer(
    x, source, rows, live, before, head, tail, bias, drive, piece, u, streams,
    K: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
    BW: tl.constexpr, BEFORE: tl.constexpr, DRIVE: tl.constexpr, SPLIT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """One layer before its activation, (row, WP), also written to `before` (stream, W).

    It takes in x (row, KP), or, where that is wide (BK < KP), what stands at `source` (stream, K)
    under the activation `BEFORE`.
    """
    k = tl.arange(0, KP)
    wide = tl.arange(0, WP)
    mine = live[:, None] & (wide < W)[None, :]
    place = rows[:, None] * W + wide[None, :]
    if BK == KP and BW == WP:
        p = product(x, head, tail, wide[None, :] * KP + k[:, None], SPLIT)
        p += tl.load(bias + wide)[None, :]
        if DRIVE > 0:
            p += drive_at(drive, piece, rows, wide, mine, u, streams, W, DRIVE == 2)
        tl.store(before + place, p, mask=mine)
        return p
    for first in range(0, W, BW):
        n = first + tl.arange(0, BW)
        if BK == KP:
            q = product(x, head, tail, n[None, :] * KP + k[:, None], SPLIT)
        else:
            q = states_from(
                source, rows * K, live, head, tail, n * KP, K, BK, BW, BEFORE, SPLIT, FAST
            )
        q += tl.load(bias + n)[None, :]
        own = live[:, None] & (n < W)[None, :]
        if DRIVE > 0:
            q += drive_at(drive, piece, rows, n, own, u, streams, W, DRIVE == 2)
        tl.store(before + rows[:, None] * W + n[None, :], q, mask=own)
    tl.debug_barrier()
    return tl.load(before + place, mask=mine, other=0.0)


@triton.jit
def features(
    y, ys, rows, live, before, head, tail, bias, drive, piece, u, streams,
    H: tl.constexpr, HP: tl.constexpr, BKH: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, DEPTH: tl.constexpr,
    ACT: tl.constexpr, DRIVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The MLP before its last layer: y (row, HP), which also stands at `ys` (stream, H) -> (row, WP).

    What each layer's activation takes in is written to `before` (layer, stream, W).
    """
    p = _layer(
        y, ys, rows, live, before, head, tail, bias, drive, piece, u, streams,
        H, HP, BKH, W, WP, BW, "none", DRIVE, SPLIT, FAST,
    )  # fmt: skip
    x = activate(p, ACT, FAST)
    for layer in tl.static_range(1, DEPTH):
        start = WP * HP + (layer - 1) * WP * WP
        source = before + (layer - 1) * streams * W
        p = _layer(
            x, source, rows, live, source + streams * W, head + start, tail + start,
            bias + layer * WP, drive, piece, u, streams,
            W, WP, BK, W, WP, BW, ACT, 0, SPLIT, FAST,
        )  # fmt: skip
        x = activate(p, ACT, FAST)
    return x


@triton.jit
def _gradient(
    g, source, rows, live, to, head, tail,
    N: tl.constexpr, NP: tl.constexpr, BN: tl.constexpr, ROOM: tl.constexpr,
    W: tl.constexpr, WP: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """g @ w (row, NP) for gradients g (row, WP), which also stand at `source` (stream, W).

    A wide result is put together at `to` (stream, ROOM).
    """
    k = tl.arange(0, WP)
    n = tl.arange(0, NP)
    if BK == WP and BN == NP:
        return scaled_product(g, head, tail, k[:, None] * NP + n[None, :], SPLIT)
    tl.debug_barrier()
    power, inverse = power_of_two(tl.max(tl.abs(g), 1))
    for first in range(0, N, BN):
        m = first + tl.arange(0, BN)
        if BK == WP:
            part = scaled_product(g, head, tail, k[:, None] * NP + m[None, :], SPLIT)
        else:
            part = product_from(
                source, rows * W, live, inverse, head, tail, m, NP, W, BK, BN, "none", SPLIT, False
            )
            part = part * power[:, None]
        own = live[:, None] & (m < N)[None, :]
        tl.store(to + rows[:, None] * ROOM + m[None, :], part, mask=own)
    tl.debug_barrier()
    mine = live[:, None] & (n < N)[None, :]
    return tl.load(to + rows[:, None] * ROOM + n[None, :], mask=mine, other=0.0)


@triton.jit
def pull_features(
    g_h, rows, live, before, grads, spill, head, tail, g_drive, piece, u, streams,
    H: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr, DEPTH: tl.constexpr, ACT: tl.constexpr,
    DRIVE: tl.constexpr, WANT_DRIVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """From the gradient of `features`' result (row, WP), that of y (row, HP).

    Gradients before the activations are written to `grads` (layer, stream, W), and what the drive
    gets is added to `g_drive`. A wide gradient is put together in `spill` (stream, H or W).
    """
    # One stride for both widths: a tile's own rows must not reach into another tile's.
    ROOM: tl.constexpr = H if H > W else W
    k = tl.arange(0, WP)
    mine = live[:, None] & (k < W)[None, :]
    place = rows[:, None] * W + k[None, :]
    for back in tl.static_range(1, DEPTH):
        layer = DEPTH - back
        start = WP * HP + (layer - 1) * WP * WP
        p = tl.load(before + layer * streams * W + place, mask=mine, other=0.0)
        g = through_activation(g_h, p, ACT, FAST)
        tl.store(grads + layer * streams * W + place, g, mask=mine)
        g_h = _gradient(
            g, grads + layer * streams * W, rows, live, spill, head + start, tail + start,
            W, WP, BW, ROOM, W, WP, BK, SPLIT,
        )  # fmt: skip
    p = tl.load(before + place, mask=mine, other=0.0)
    g = through_activation(g_h, p, ACT, FAST)
    tl.store(grads + place, g, mask=mine)
    if WANT_DRIVE:
        if DRIVE == 2:
            base = g_drive + (piece * streams.to(tl.int64) + rows[:, None]) * (4 * W) + k[None, :]
            share = tl.full([rows.shape[0]], 1.0, tl.float32)
            for power in tl.static_range(4):
                old = tl.load(base + power * W, mask=mine, other=0.0)
                tl.store(base + power * W, old + share[:, None] * g, mask=mine)
                share = share * u
        else:
            base = g_drive + (piece * streams.to(tl.int64) + rows[:, None]) * W + k[None, :]
            old = tl.load(base, mask=mine, other=0.0)
            tl.store(base, old + (1.0 - u)[:, None] * g, mask=mine)
            base += streams * W
            old = tl.load(base, mask=mine, other=0.0)
            tl.store(base, old + u[:, None] * g, mask=mine)
    return _gradient(g, grads, rows, live, spill, head, tail, H, HP, BH, ROOM, W, WP, BK, SPLIT)
