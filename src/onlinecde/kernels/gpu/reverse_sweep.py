"""The reverse sweep as one kernel: only what must be found in turn, the gradients of the states.

What the weights' gradients need of each stage is written down on the way: the gradient of its k (on
a time leg, that before the tanh) and those before the activations.
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import (
    activate,
    add_product,
    keep_halves,
    power_of_two,
    product_of_halves,
    slope_at,
    wait_for_all,
)
from onlinecde.kernels.gpu.columns import column_from, keep_bent
from onlinecde.kernels.gpu.dense import pull_dense_columns, pull_dense_units_first
from onlinecde.kernels.gpu.entries import (
    add_slope,
    entries_of,
    pull_entries_first,
    pull_units_first,
)
from onlinecde.kernels.gpu.layers import pull_features
from onlinecde.kernels.gpu.stages import add_up, pull_combine, put, through_memory


@triton.jit(do_not_specialize=["streams", "pieces", "groups"])
def backward_kernel(
    g_knots, g_z0, g_ks, g_sizes, g_most, grads, before, bent, halves, g_halves, parts, spill, counter,
    g_time, g_slopes,
    time, time_steps, slopes, across, steep, lengths, slots,
    inner_head, inner_tail, head, tail, bias, table,
    entry_stream, entry_place, tile_channel, tile_first, tile_last, leg_tiles, stream_first,
    leg_crowd, streams, pieces, groups,
    H: tl.constexpr, HS: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr, BKH: tl.constexpr,
    W: tl.constexpr, WA: tl.constexpr, WB: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, TANH: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, RECTILINEAR: tl.constexpr, DEGREE: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, OWN_STEPS: tl.constexpr,
    WANT_TIME: tl.constexpr, WANT_SLOPES: tl.constexpr,
    ALONE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr,
    AHEAD: tl.constexpr, DENSE: tl.constexpr, CROWD: tl.constexpr, DN: tl.constexpr,
    DENSE_AHEAD: tl.constexpr, NODES: tl.constexpr, EVERY: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """From gradients at every `EVERY`-th knot (knot, stream, H) to that of z at the start (stream, H).

    `g_ks` (slot, stream, HS) takes the gradients of the stages, `g_sizes` (stream,) the size of the
    one at hand and `g_most` (stream,) the largest on value legs, `grads` those before the
    activations. A tile of entries makes work for `SHARES` in hidden units, each for `BLOCK` entries;
    `DENSE` legs are cut as in the forward sweep.
    """
    long = streams.to(tl.int64)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    waits = 0
    n = tl.arange(0, HP)
    wide = tl.arange(0, WP)
    WS: tl.constexpr = WA + WB
    OFFSET: tl.constexpr = 1 if RECTILINEAR else 0
    CHANNELS: tl.constexpr = VALUES * PARTS
    TOTAL: tl.constexpr = STEPS * STAGES
    PIECES: tl.constexpr = SHARES * (ENTRIES // BLOCK)
    UNITS: tl.constexpr = HS // SHARES
    UNITS_FIRST: tl.constexpr = HP > 64 or BK < WP
    c = table + 20
    dense_parts = tl.cdiv(HS, DN) * groups
    rows = pid * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    mine = live[:, None] & (n < H)[None, :]
    place = rows[:, None] * H + n[None, :]
    inside = live[:, None] & (n < HS)[None, :]
    spot = rows[:, None] * HS + n[None, :]
    mine_wide = live[:, None] & (wide < WS)[None, :]
    place_wide = rows[:, None] * WS + wide[None, :]
    ends = tl.load(lengths + rows, mask=live, other=0)
    last_piece = tl.max(ends)
    longest = tl.load(lengths)
    g = tl.zeros([ROWS, HP], tl.float32)
    for knot in range(tl.cdiv(longest, EVERY), pieces // EVERY + 1):
        g += tl.load(g_knots + knot * long * H + place, mask=mine, other=0.0)
    y0 = tl.zeros([ROWS, HP], tl.float32)
    y1 = tl.zeros([ROWS, HP], tl.float32)
    y2 = tl.zeros([ROWS, HP], tl.float32)
    y3 = tl.zeros([ROWS, HP], tl.float32)
    largest = tl.zeros([ROWS], tl.float32)
    for back in range(longest):
        piece = longest - 1 - back
        slot = tl.load(slots + piece).to(tl.int64)
        time_leg = RECTILINEAR & (piece % 2 == 0)
        leg = piece // 2 if RECTILINEAR else piece
        moving = piece < ends
        if time_leg:
            if piece < last_piece:
                dt = tl.load(time + leg * streams + rows, mask=moving, other=0.0)
                own = tl.full([ROWS], STEPS, tl.int32)
                if OWN_STEPS:
                    own = tl.load(time_steps + leg * streams + rows, mask=moving, other=1)
                share = 1.0 / own.to(tl.float32)
                g_dt = tl.zeros([ROWS], tl.float32)
                stages = tl.load(slots + piece + 1) - tl.load(slots + piece)
                for less in range(stages):
                    q = stages - 1 - less
                    step = q // STAGES
                    s = q % STAGES
                    going = step < own
                    h = tl.where(going, share, 0.0)
                    g_k = pull_combine(g, y0, y1, y2, y3, table, s, h)
                    here = before + (slot + q) * long * (DEPTH * WS)
                    to = g_ks + (slot + q) * long * HS
                    x = tl.load(
                        here + (DEPTH - 1) * streams * WS + place_wide, mask=mine_wide, other=0.0
                    )
                    x = activate(x, ACT, FAST)
                    if BK < WP:
                        keep_bent(x, halves, rows, live, streams, WS, WP, SPLIT)
                    power, inverse = power_of_two(tl.max(tl.abs(g_k * dt[:, None]), 1))
                    total = tl.zeros([ROWS, WP], tl.float32)
                    cross = tl.zeros([ROWS, WP], tl.float32)
                    g_k = through_memory(g_k, to + spot, inside)
                    if WS > 128 and BH == HP:
                        f = column_from(
                            x, halves, rows, live, streams, 0, n, head, tail, bias,
                            HP, WS, WP, BK, HP, TANH, SPLIT, FAST,
                        )  # fmt: skip
                        if WANT_TIME:
                            g_dt += tl.sum(g_k * f, 1)
                        g_f = g_k * dt[:, None]
                        if TANH:
                            g_f = g_f * (1.0 - f * f)
                        tl.debug_barrier()
                        tl.store(to + spot, g_f, mask=inside)
                        g_f = g_f * inverse[:, None]
                        keep_halves(g_f, g_halves, rows, live, streams, HS, HP, SPLIT)
                        tl.debug_barrier()
                        total = product_of_halves(
                            g_halves, rows, live, streams, head, tail, wide, WP, HS, BKH, WP, SPLIT
                        )
                    else:
                        for first in range(0, HS, BN):
                            m = first + tl.arange(0, BN)
                            some = rows[:, None] * HS + m[None, :]
                            ours = live[:, None] & (m < HS)[None, :]
                            g_m = g_k
                            if BN < HP:
                                g_m = tl.load(to + some, mask=ours, other=0.0)
                            f = column_from(
                                x, halves, rows, live, streams, 0, m, head, tail, bias,
                                HP, WS, WP, BK, BN, TANH, SPLIT, FAST,
                            )  # fmt: skip
                            if WANT_TIME:
                                g_dt += tl.sum(g_m * f, 1)
                            g_f = g_m * dt[:, None]
                            if TANH:
                                g_f = g_f * (1.0 - f * f)
                            total, cross = add_product(
                                total, cross, g_f * inverse[:, None], head, tail,
                                m[:, None] * WP + wide[None, :], SPLIT,
                            )  # fmt: skip
                            tl.debug_barrier()
                            tl.store(to + some, g_f, mask=ours)
                        if SPLIT:
                            total += cross * 0.00048828125
                    g_y = pull_features(
                        total * power[:, None], rows, live, here,
                        grads + (slot + q) * long * (DEPTH * WS), halves, spill,
                        inner_head, inner_tail, streams, HS, HP, BH, WS, WP,
                        BW, BK, DEPTH, ACT, SPLIT, FAST,
                    )  # fmt: skip
                    y0, y1, y2, y3 = put(g_y, s, y0, y1, y2, y3)
                    if s == 0:
                        g += y0 + y1 + y2 + y3
                if WANT_TIME:
                    tl.store(g_time + leg * streams + rows, g_dt, mask=moving)
        else:
            low = tl.zeros([ROWS], tl.int32)
            high = tl.zeros([ROWS], tl.int32)
            item = pid
            last_item = 0
            crowd = 0
            if not ALONE and DENSE != "always":
                low = tl.load(stream_first + leg * (streams + 1) + rows, mask=live, other=0)
                high = tl.load(stream_first + leg * (streams + 1) + rows + 1, mask=live, other=0)
                low = low * SHARES
                high = high * SHARES
                item = tl.load(leg_tiles + leg) * PIECES + pid
                last_item = tl.load(leg_tiles + leg + 1) * PIECES
            if not ALONE and DENSE != "never":
                crowd = tl.load(leg_crowd + leg)
                low = tl.where(crowd > 0, rows * dense_parts, low)
                high = tl.where(crowd > 0, tl.where(moving, low + dense_parts, low), high)
                last_item = tl.where(crowd > 0, 0, last_item)
            h = tl.full([ROWS], 1.0 / STEPS, tl.float32)
            g_h = tl.zeros([ROWS, WP], tl.float32)
            for less in range(TOTAL + 1):
                if piece < last_piece:
                    if less > 0:
                        q = TOTAL - less
                        s = q % STAGES
                        if not ALONE:
                            g_h = add_up(parts, low, high - low, live, WS, WP)
                        g_y = pull_features(
                            g_h, rows, live, before + (slot + q) * long * (DEPTH * WS),
                            grads + (slot + q) * long * (DEPTH * WS), halves, spill,
                            inner_head, inner_tail, streams, HS, HP, BH, WS, WP,
                            BW, BK, DEPTH, ACT, SPLIT, FAST,
                        )  # fmt: skip
                        y0, y1, y2, y3 = put(g_y, s, y0, y1, y2, y3)
                        if s == 0:
                            g += y0 + y1 + y2 + y3
                    if less < TOTAL:
                        q = TOTAL - 1 - less
                        s = q % STAGES
                        g_k = pull_combine(g, y0, y1, y2, y3, table, s, h)
                        tl.store(g_ks + (slot + q) * long * HS + spot, g_k, mask=inside)
                        size_k = tl.max(tl.abs(g_k), 1)
                        tl.store(g_sizes + rows, size_k, mask=live)
                        largest = tl.maximum(largest, size_k)
                        if ALONE:
                            tl.debug_barrier()
                            taken = bent + (leg * TOTAL + q) * long * (2 * WS)
                            x = tl.zeros([ROWS, WP], tl.float32)
                            if BK == WP:
                                source = before + (slot + q) * long * (DEPTH * WS)
                                source += (DEPTH - 1) * streams * WS
                                x = tl.load(source + place_wide, mask=mine_wide, other=0.0)
                                x = activate(x, ACT, FAST)
                            u = (q // STAGES + tl.load(c + s)) * h
                            g_h = tl.zeros([ROWS, WP], tl.float32)
                            for first in range(0, HS, BN):
                                m = first + tl.arange(0, BN)
                                g_m = tl.load(
                                    g_ks + (slot + q) * long * HS + rows[:, None] * HS + m[None, :],
                                    mask=live[:, None] & (m < HS)[None, :],
                                    other=0.0,
                                )
                                for j in range(CHANNELS):
                                    dx = slope_at(
                                        slopes, leg, rows, j, moving, u, long, CHANNELS, DEGREE
                                    )
                                    if WANT_SLOPES or tl.max(tl.abs(dx)) > 0:
                                        f = column_from(
                                            x, taken, rows, live, streams, j + OFFSET, m, head,
                                            tail, bias, HP, WS, WP, BK, BN, TANH, SPLIT, FAST,
                                        )  # fmt: skip
                                        if WANT_SLOPES:
                                            add_slope(
                                                g_slopes, leg, rows, j, moving, u, long,
                                                tl.sum(g_m * f, 1), CHANNELS, DEGREE,
                                            )  # fmt: skip
                                        g_f = g_m * dx[:, None]
                                        if TANH:
                                            g_f = g_f * (1.0 - f * f)
                                        power, inverse = power_of_two(tl.max(tl.abs(g_f), 1))
                                        total = tl.zeros([ROWS, WP], tl.float32)
                                        cross = tl.zeros([ROWS, WP], tl.float32)
                                        at = (j + OFFSET) * (HP * WP) + m[:, None] * WP
                                        total, cross = add_product(
                                            total, cross, g_f * inverse[:, None], head, tail,
                                            at + wide[None, :], SPLIT,
                                        )  # fmt: skip
                                        if SPLIT:
                                            total += cross * 0.00048828125
                                        g_h += total * power[:, None]
                if not ALONE:  # noqa: SIM102, the first is known when compiling
                    if less < TOTAL:
                        q = TOTAL - 1 - less
                        now = item
                        if DENSE != "always":
                            value, used, stream, to = entries_of(
                                now // SHARES, last_item // SHARES, tile_channel, tile_first,
                                tile_last, entry_stream, entry_place, ENTRIES, BLOCK,
                            )  # fmt: skip
                        time_now = (q // STAGES + tl.load(c + q % STAGES)) * (1.0 / STEPS)
                        base = bent + (leg * TOTAL + q) * long * (2 * WS)
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
                        if DENSE != "never":
                            works = tl.cdiv(crowd, CROWD) * dense_parts
                            node = leg * NODES + q % NODES
                            g_here = g_ks + (slot + q) * long * HS
                            steepest = steep + leg * long
                            for work in range(pid, works, programs):
                                if WS > 128:
                                    pull_dense_units_first(
                                        base, g_here, g_sizes, parts, work, crowd, groups, streams,
                                        across, node, steepest, head, tail, bias, HS, HP, DN, WA, WB,
                                        WP, CHANNELS, OFFSET, CROWD, DENSE_AHEAD, TANH, SPLIT, FAST,
                                    )  # fmt: skip
                                else:
                                    pull_dense_columns(
                                        base, g_here, g_sizes, parts, work, crowd, groups, streams,
                                        across, node, steepest, head, tail, bias, HS, HP, DN, WA, WB,
                                        WP, CHANNELS, OFFSET, CROWD, DENSE_AHEAD, TANH, SPLIT, FAST,
                                    )  # fmt: skip
                        if DENSE != "always":
                            while now < last_item:
                                if UNITS_FIRST:
                                    pull_units_first(
                                        base, g_ks + (slot + q) * long * HS, g_sizes, parts, value,
                                        used, stream, to * SHARES + now % SHARES, now % SHARES * UNITS,
                                        streams, slopes, g_slopes, leg, time_now, head, tail, bias,
                                        HS, HP, BN, UNITS, WA, WB, WP, VALUES, PARTS, OFFSET, DEGREE,
                                        AHEAD, TANH, WANT_SLOPES, SPLIT, FAST,
                                    )  # fmt: skip
                                else:
                                    source = before + (slot + q) * long * (DEPTH * WS)
                                    source += (DEPTH - 1) * streams * WS
                                    pull_entries_first(
                                        source, g_ks + (slot + q) * long * HS, g_sizes, parts, value,
                                        used, stream, to, streams, slopes, g_slopes, leg, time_now,
                                        head, tail, bias, HS, HP, BN, WS, WP, VALUES, PARTS, OFFSET,
                                        DEGREE, ACT, TANH, WANT_SLOPES, SPLIT, FAST,
                                    )  # fmt: skip
                                now += programs
                                value, used, stream, to = entries_of(
                                    now // SHARES, last_item // SHARES, tile_channel, tile_first,
                                    tile_last, entry_stream, entry_place, ENTRIES, BLOCK,
                                )  # fmt: skip
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
        given = mine & (piece % EVERY == 0)
        g += tl.load(g_knots + piece // EVERY * long * H + place, mask=given, other=0.0)
    tl.store(g_z0 + place, g, mask=mine)
    tl.store(g_most + rows, largest, mask=live)
