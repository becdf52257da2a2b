"""Gradients of the weights: one parallel pass after the sweep, in parts that are added up in a fixed order."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import activate, outer_product, power_of_two, slope_at, tanh


@triton.jit(do_not_specialize=["streams", "number", "x_first", "g_first"])
def outer_kernel(
    xs, gs, weight, offset, moving, streams, number, x_first, g_first,
    X: tl.constexpr, BX: tl.constexpr, XS: tl.constexpr,
    G: tl.constexpr, BG: tl.constexpr, GS: tl.constexpr,
    ACT: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sum over slots and streams of g^T x and of g: (share, G, X) and (share, G), a share a program.

    xs (slot, XS, stream, X) from its `x_first` on, gs likewise; of slot i, the first moving[i]
    streams count. `ACT` is applied to x.
    """
    long = streams.to(tl.int64)
    share = tl.program_id(0)
    shares = tl.num_programs(0)
    m = tl.program_id(1) * BG + tl.arange(0, BG)
    k = tl.program_id(2) * BX + tl.arange(0, BX)
    total = tl.zeros([BG, BX], tl.float32)
    sums = tl.zeros([BG], tl.float32)
    for slot in range(share, number, shares):
        many = tl.load(moving + slot)
        x_base = xs + (slot * XS + x_first) * long * X
        g_base = gs + (slot * GS + g_first) * long * G
        for start in range(0, many, ROWS):
            rows = start + tl.arange(0, ROWS)
            live = (rows < many)[:, None]
            x = tl.load(
                x_base + rows[:, None] * X + k[None, :], mask=live & (k < X)[None, :], other=0.0
            )
            g = tl.load(
                g_base + rows[:, None] * G + m[None, :], mask=live & (m < G)[None, :], other=0.0
            )
            if ACT != "none":
                x = activate(x, ACT, FAST)
            total += outer_product(g, x, SPLIT)
            sums += tl.sum(g, 0)
    to = weight + (share * G + m[:, None]) * X + k[None, :]
    tl.store(to, total, mask=(m < G)[:, None] & (k < X)[None, :])
    if tl.program_id(2) == 0:
        tl.store(offset + share * G + m, sums, mask=m < G)


@triton.jit(do_not_specialize=["streams", "legs"])
def columns_kernel(
    before, g_ks, most, weight, offset, slopes, moving, slots, head, tail, bias, table,
    entry_stream, value_first, streams, legs,
    H: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, TANH: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, RECTILINEAR: tl.constexpr, DEGREE: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, ALONE: tl.constexpr,
    SPLIT: tl.constexpr, FAST: tl.constexpr, ENTRIES: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """Gradients of the columns that move on value legs: (share, channel, H, W) and (share, channel, H).

    A program takes one channel, some hidden units and every so many legs. Columns are recomputed:
    to keep them would take more memory than all else together. `most` is a bound on the gradients.
    """
    long = streams.to(tl.int64)
    j = tl.program_id(0)
    m = tl.program_id(1) * BN + tl.arange(0, BN)
    share = tl.program_id(2)
    shares = tl.num_programs(2)
    OFFSET: tl.constexpr = 1 if RECTILINEAR else 0
    CHANNELS: tl.constexpr = VALUES * PARTS
    c = table + 20
    wide = tl.arange(0, WP)
    total = tl.zeros([BN, WP], tl.float32)
    cross = tl.zeros([BN, WP], tl.float32)
    sums = tl.zeros([BN], tl.float32)
    # Gradients of any size fit into halves once the largest is brought to the size of 1.
    power, inverse = power_of_two(tl.load(most))
    at = (j + OFFSET) * (HP * WP) + m[None, :] * WP + wide[:, None]
    # Wide columns are read anew for every product: to hold them would take all registers.
    if HELD:
        w = tl.load(head + at)
        rest = tl.load(tail + at)
    shift = tl.load(bias + (j + OFFSET) * HP + m)[None, :]
    for leg in range(share, legs, shares):
        piece = leg * 2 + 1 if RECTILINEAR else leg
        slot = tl.load(slots + piece).to(tl.int64)
        if ALONE:
            begin = 0
            end = tl.load(moving + piece)
        else:
            place = leg * VALUES + j % VALUES
            begin = tl.load(value_first + place)
            end = tl.load(value_first + place + 1)
        for start in range(begin, end, ENTRIES):
            entry = start + tl.arange(0, ENTRIES)
            used = entry < end
            stream = entry
            if not ALONE:
                stream = tl.load(entry_stream + entry, mask=used, other=0)
            mine = used[:, None] & (wide < W)[None, :]
            own = used[:, None] & (m < H)[None, :]
            for q in range(STEPS * STAGES):
                u = (q // STAGES + tl.load(c + q % STAGES)) * (1.0 / STEPS)
                here = before + (slot + q) * long * (DEPTH * W) + (DEPTH - 1) * streams * W
                p = tl.load(here + stream[:, None] * W + wide[None, :], mask=mine, other=0.0)
                x = activate(p, ACT, FAST)
                if SPLIT:
                    x = x * 0.015625
                upper = x.to(tl.float16)
                g = tl.load(
                    g_ks + (slot + q) * long * H + stream[:, None] * H + m[None, :],
                    mask=own,
                    other=0.0,
                )
                dx = slope_at(slopes, leg, stream, j, used, u, long, CHANNELS, DEGREE)
                g = g * (dx * inverse)[:, None]
                if SPLIT:
                    lower = ((x - upper.to(tl.float32)) * 2048.0).to(tl.float16)
                if TANH:
                    if not HELD:
                        w = tl.load(head + at)
                        rest = tl.load(tail + at)
                    f = tl.dot(upper, w)
                    if SPLIT:
                        f += tl.dot(upper, rest, tl.dot(lower, w)) * 0.00048828125
                        f = f * 64.0
                    f = tanh(f + shift, FAST)
                    g = g * (1.0 - f * f)
                sums += tl.sum(g, 0)
                g = tl.trans(g)
                g_upper = g.to(tl.float16)
                total = tl.dot(g_upper, upper, total)
                if SPLIT:
                    g_lower = ((g - g_upper.to(tl.float32)) * 2048.0).to(tl.float16)
                    cross = tl.dot(g_lower, upper, cross)
                    cross = tl.dot(g_upper, lower, cross)
    if SPLIT:
        total = (total + cross * 0.00048828125) * 64.0
    total = total * power
    sums = sums * power
    to = (share * (CHANNELS + OFFSET) + j + OFFSET) * H + m
    tl.store(
        weight + to[:, None] * W + wide[None, :], total, mask=(m < H)[:, None] & (wide < W)[None, :]
    )
    tl.store(offset + to, sums, mask=m < H)
