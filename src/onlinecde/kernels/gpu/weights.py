"""Gradients of the weights: one parallel pass after the sweep, in parts that are added up in a fixed order."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import activate, outer_product, power_of_two, slope_at
from onlinecde.kernels.gpu.columns import bent_rows, gradient_halves, moved_columns, weight_rows
from onlinecde.kernels.gpu.dense import slope_across


@triton.jit(do_not_specialize=["streams", "number", "x_first", "g_first"])
def outer_kernel(
    xs, gs, weight, offset, moving, streams, number, x_first, g_first,
    X: tl.constexpr, XR: tl.constexpr, BX: tl.constexpr, XS: tl.constexpr,
    G: tl.constexpr, GR: tl.constexpr, BG: tl.constexpr, GS: tl.constexpr,
    ACT: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sum over slots and streams of g^T x and of g: (share, G, X) and (share, G), a share a program.

    xs (slot, XS, stream, XR) from its `x_first` on, gs likewise, rows padded to XR and GR; of slot i,
    the first moving[i] streams count. `ACT` is applied to x.
    """
    long = streams.to(tl.int64)
    share = tl.program_id(0)
    shares = tl.num_programs(0)
    m = tl.program_id(1) * BG + tl.arange(0, BG)
    k = tl.program_id(2) * BX + tl.arange(0, BX)
    total = tl.zeros([BG, BX], tl.float32)
    sums = tl.zeros([BG], tl.float32)
    for slot in range(share, number, shares):
        count = tl.load(moving + slot)
        x_base = xs + (slot * XS + x_first) * long * XR
        g_base = gs + (slot * GS + g_first) * long * GR
        for start in range(0, count, ROWS):
            rows = start + tl.arange(0, ROWS)
            live = (rows < count)[:, None]
            x_at = x_base + rows[:, None] * XR + k[None, :]
            x = tl.load(x_at, mask=live & (k < XR)[None, :], other=0.0)
            g_at = g_base + rows[:, None] * GR + m[None, :]
            g = tl.load(g_at, mask=live & (m < GR)[None, :], other=0.0)
            if ACT != "none":
                x = activate(x, ACT, FAST)
            total += outer_product(g, x, SPLIT)
            sums += tl.sum(g, 0)
    to = weight + (share * G + m[:, None]) * X + k[None, :]
    tl.store(to, total, mask=(m < G)[:, None] & (k < X)[None, :])
    if tl.program_id(2) == 0:
        tl.store(offset + share * G + m, sums, mask=m < G)


@triton.jit(do_not_specialize=["streams", "legs", "cuts"])
def columns_kernel(
    bent, g_ks, most, weight, offset, slopes, moving, slots, head, tail, bias, table,
    entry_stream, value_first, streams, legs, cuts,
    H: tl.constexpr, HP: tl.constexpr, HS: tl.constexpr, BN: tl.constexpr,
    W: tl.constexpr, WP: tl.constexpr, WA: tl.constexpr, WB: tl.constexpr, TANH: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, RECTILINEAR: tl.constexpr, DEGREE: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, ALL: tl.constexpr, FLAT: tl.constexpr,
    SPLIT: tl.constexpr, FAST: tl.constexpr, ENTRIES: tl.constexpr, AHEAD: tl.constexpr,
    NODES: tl.constexpr,
):  # fmt: skip
    """Gradients of the columns that move on value legs: (share, channel, H, W) and (share, channel, H).

    A program takes one channel, some hidden units and, of every so many legs, one of `cuts` lots of
    entries: those of move lists or, of `ALL` channels alike, all streams that move. Then rows may be `FLAT`: BN in
    turn, of one channel and the next. Columns are recomputed: to keep them would take more memory than
    all else together. `most` is a bound on the gradients.
    """
    long = streams.to(tl.int64)
    share = tl.program_id(2)
    shares = tl.num_programs(2) // cuts
    OFFSET: tl.constexpr = 1 if RECTILINEAR else 0
    CHANNELS: tl.constexpr = VALUES * PARTS
    TOTAL: tl.constexpr = STEPS * STAGES
    WS: tl.constexpr = WA + WB
    c = table + 20
    j = tl.program_id(0)
    m = tl.program_id(1) * BN + tl.arange(0, BN)
    ours = m < H
    channel = tl.full([BN], 0, tl.int32) + j
    if FLAT:
        number = j * BN + tl.arange(0, BN)
        channel = number // HS
        m = number % HS
        ours = (m < H) & (channel < CHANNELS)
        j = j * BN // HS
    at = tl.where(ours, (channel + OFFSET) * HP + m, 0) if FLAT else (channel + OFFSET) * HP + m
    total = tl.zeros([BN, WA], tl.float32)
    total_b = tl.zeros([BN, WB if WB else 16], tl.float32)
    sums = tl.zeros([BN], tl.float32)
    # Gradients of any size fit into halves once the largest is brought to the size of 1.
    power, inverse = power_of_two(tl.load(most))
    w, w_b, v, v_b = weight_rows(head, tail, 0, at, HP, WP, WA, WB, SPLIT)
    shift = tl.load(bias + at)
    for leg in range(share // cuts, legs, shares):
        piece = leg * 2 + 1 if RECTILINEAR else leg
        slot = tl.load(slots + piece).to(tl.int64)
        if ALL:
            begin = 0
            end = tl.load(moving + piece)
        else:
            place = leg * VALUES + j % VALUES
            begin = tl.load(value_first + place)
            end = tl.load(value_first + place + 1)
        size = tl.cdiv(tl.cdiv(end - begin, ENTRIES), cuts)
        begin += share % cuts * size * ENTRIES
        end = tl.minimum(end, begin + size * ENTRIES)
        turns = tl.cdiv(tl.maximum(end - begin, 0), ENTRIES) * TOTAL
        # One loop over entries and stages, so that loads run ahead all the way.
        for turn in tl.range(0, turns, num_stages=AHEAD):
            q = turn % TOTAL
            entry = begin + (turn // TOTAL) * ENTRIES + tl.arange(0, ENTRIES)
            used = entry < end
            stream = entry
            if not ALL:
                stream = tl.load(entry_stream + entry, mask=used, other=0)
            here = bent + (leg * TOTAL + q) * long * (2 * WS)
            x, x_b, y, y_b = bent_rows(here, stream, used, streams, WA, WB, SPLIT)
            u = (q // STAGES + tl.load(c + q % STAGES)) * (1.0 / STEPS)
            node = leg * NODES + q % NODES
            if ALL:
                dx = slope_across(slopes, node, stream, j, used, long, CHANNELS)
            else:
                dx = slope_at(slopes, leg, stream, j, used, u, long, CHANNELS, DEGREE)
            dx = dx * inverse
            g = tl.load(
                g_ks + (slot + q) * long * HS + stream[None, :] * HS + m[:, None],
                mask=used[None, :] & ours[:, None],
                other=0.0,
            )
            if FLAT:
                after = tl.minimum(j + 1, CHANNELS - 1)
                dx_b = slope_across(slopes, node, stream, after, used, long, CHANNELS)
                g = g * tl.where((channel == j)[:, None], dx[None, :], (dx_b * inverse)[None, :])
            else:
                g = g * dx[None, :]
            if TANH:
                f = moved_columns(w, w_b, v, v_b, x, x_b, y, y_b, shift, WB, TANH, SPLIT, FAST)
                g = g * (1.0 - f * f)
            sums += tl.sum(g, 1)
            upper, lower, small = gradient_halves(g)
            total = tl.dot(upper, x, total)
            if WB:
                total_b = tl.dot(upper, x_b, total_b)
            if SPLIT:
                total = tl.dot(lower, x, total)
                total = tl.dot(small, y, total)
                if WB:
                    total_b = tl.dot(lower, x_b, total_b)
                    total_b = tl.dot(small, y_b, total_b)
    undo = power * (64.0 / 8192.0 if SPLIT else 1.0 / 8192.0)
    to = (share * (CHANNELS + OFFSET) + channel + OFFSET) * H + m
    wide = tl.arange(0, WA)[None, :]
    tl.store(weight + to[:, None] * W + wide, total * undo, mask=ours[:, None] & (wide < W))
    if WB:
        wide = WA + tl.arange(0, WB)[None, :]
        tl.store(weight + to[:, None] * W + wide, total_b * undo, mask=ours[:, None] & (wide < W))
    tl.store(offset + to, sums * power, mask=ours)
