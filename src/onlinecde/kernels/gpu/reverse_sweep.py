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
    power_of_two,
    slope_at,
    wait_for_all,
)
from onlinecde.kernels.gpu.columns import column_from, entries_of
from onlinecde.kernels.gpu.layers import pull_features
from onlinecde.kernels.gpu.stages import add_up, pull_combine, put, through_memory


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


@triton.jit(do_not_specialize=["streams", "pieces"])
def backward_kernel(
    g_knots, g_z0, g_ks, g_sizes, g_most, grads, before, parts, spill, counter,
    g_time, g_slopes, g_drive,
    time, time_steps, slopes, lengths, slots,
    inner_head, inner_tail, head, tail, bias, table,
    entry_stream, entry_place, tile_channel, tile_first, tile_last, leg_tiles, stream_first,
    streams, pieces,
    H: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr,
    W: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BKH: tl.constexpr,
    BN: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, TANH: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, RECTILINEAR: tl.constexpr, DEGREE: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, OWN_STEPS: tl.constexpr, DRIVE: tl.constexpr,
    WANT_TIME: tl.constexpr, WANT_SLOPES: tl.constexpr, WANT_DRIVE: tl.constexpr,
    ALONE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """From gradients at the knots (knot, stream, H) to that of z at the start (stream, H).

    `g_ks` (slot, stream, H) takes the gradients of the stages, `g_sizes` (stream,) the size of the
    one at hand and `g_most` (stream,) the largest on value legs, `grads` those before the
    activations.
    """
    long = streams.to(tl.int64)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    waits = 0
    n = tl.arange(0, HP)
    wide = tl.arange(0, WP)
    OFFSET: tl.constexpr = 1 if RECTILINEAR else 0
    CHANNELS: tl.constexpr = VALUES * PARTS
    TOTAL: tl.constexpr = STEPS * STAGES
    SHARES: tl.constexpr = ENTRIES // BLOCK
    c = table + 20
    rows = pid * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    mine = live[:, None] & (n < H)[None, :]
    place = rows[:, None] * H + n[None, :]
    mine_wide = live[:, None] & (wide < W)[None, :]
    place_wide = rows[:, None] * W + wide[None, :]
    ends = tl.load(lengths + rows, mask=live, other=0)
    last_piece = tl.max(ends)
    longest = tl.load(lengths)
    g = tl.zeros([ROWS, HP], tl.float32)
    for knot in range(longest, pieces + 1):
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
                stages = tl.max(own) * STAGES
                for less in range(stages):
                    q = stages - 1 - less
                    step = q // STAGES
                    s = q % STAGES
                    going = step < own
                    h = tl.where(going, share, 0.0)
                    begun = tl.where(going, step * share, 1.0)
                    g_k = pull_combine(g, y0, y1, y2, y3, table, s, h)
                    here = before + (slot + q) * long * (DEPTH * W)
                    to = g_ks + (slot + q) * long * H
                    bent = here + (DEPTH - 1) * streams * W
                    x = tl.zeros([ROWS, WP], tl.float32)
                    if BK == WP:
                        x = tl.load(bent + place_wide, mask=mine_wide, other=0.0)
                        x = activate(x, ACT, FAST)
                    power, inverse = power_of_two(tl.max(tl.abs(g_k * dt[:, None]), 1))
                    found = tl.zeros([ROWS, WP], tl.float32)
                    cross = tl.zeros([ROWS, WP], tl.float32)
                    g_k = through_memory(g_k, to + place, mine)
                    for first in range(0, H, BN):
                        m = first + tl.arange(0, BN)
                        owned = live[:, None] & (m < H)[None, :]
                        spot = rows[:, None] * H + m[None, :]
                        g_m = g_k
                        if BN < HP:
                            g_m = tl.load(to + spot, mask=owned, other=0.0)
                        f = column_from(
                            x, bent, rows * W, live, 0, m, head, tail, bias,
                            HP, W, WP, BK, BN, ACT, TANH, SPLIT, FAST,
                        )  # fmt: skip
                        if WANT_TIME:
                            g_dt += tl.sum(g_m * f, 1)
                        g_f = g_m * dt[:, None]
                        if TANH:
                            g_f = g_f * (1.0 - f * f)
                        found, cross = add_product(
                            found, cross, g_f * inverse[:, None], head, tail,
                            m[:, None] * WP + wide[None, :], SPLIT,
                        )  # fmt: skip
                        tl.debug_barrier()
                        tl.store(to + spot, g_f, mask=owned)
                    if SPLIT:
                        found += cross * 0.00048828125
                    u = begun + tl.load(c + s) * h
                    g_y = pull_features(
                        found * power[:, None], rows, live, here,
                        grads + (slot + q) * long * (DEPTH * W), spill,
                        inner_head, inner_tail, g_drive, piece, u, streams, H, HP, BH, W, WP, BW,
                        BK, DEPTH, ACT, DRIVE, WANT_DRIVE, SPLIT, FAST,
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
            if not ALONE:
                low = tl.load(stream_first + leg * (streams + 1) + rows, mask=live, other=0)
                high = tl.load(stream_first + leg * (streams + 1) + rows + 1, mask=live, other=0)
                item = tl.load(leg_tiles + leg) * SHARES + pid
                last_item = tl.load(leg_tiles + leg + 1) * SHARES
            h = tl.full([ROWS], 1.0 / STEPS, tl.float32)
            g_h = tl.zeros([ROWS, WP], tl.float32)
            for less in range(TOTAL + 1):
                if piece < last_piece:
                    if less > 0:
                        q = TOTAL - less
                        s = q % STAGES
                        if not ALONE:
                            g_h = add_up(parts, low, high - low, live, W, WP)
                        g_y = pull_features(
                            g_h, rows, live, before + (slot + q) * long * (DEPTH * W),
                            grads + (slot + q) * long * (DEPTH * W), spill,
                            inner_head, inner_tail, g_drive, piece,
                            (q // STAGES + tl.load(c + s)) * h, streams, H, HP, BH, W, WP, BW,
                            BK, DEPTH, ACT, DRIVE, WANT_DRIVE, SPLIT, FAST,
                        )  # fmt: skip
                        y0, y1, y2, y3 = put(g_y, s, y0, y1, y2, y3)
                        if s == 0:
                            g += y0 + y1 + y2 + y3
                    if less < TOTAL:
                        q = TOTAL - 1 - less
                        s = q % STAGES
                        g_k = pull_combine(g, y0, y1, y2, y3, table, s, h)
                        tl.store(g_ks + (slot + q) * long * H + place, g_k, mask=mine)
                        size_k = tl.max(tl.abs(g_k), 1)
                        tl.store(g_sizes + rows, size_k, mask=live)
                        largest = tl.maximum(largest, size_k)
                        if ALONE:
                            tl.debug_barrier()
                            bent = before + (slot + q) * long * (DEPTH * W)
                            bent += (DEPTH - 1) * streams * W
                            x = tl.zeros([ROWS, WP], tl.float32)
                            if BK == WP:
                                x = tl.load(bent + place_wide, mask=mine_wide, other=0.0)
                                x = activate(x, ACT, FAST)
                            u = (q // STAGES + tl.load(c + s)) * h
                            g_h = tl.zeros([ROWS, WP], tl.float32)
                            for first in range(0, H, BN):
                                m = first + tl.arange(0, BN)
                                owned = live[:, None] & (m < H)[None, :]
                                g_m = tl.load(
                                    g_ks + (slot + q) * long * H + rows[:, None] * H + m[None, :],
                                    mask=owned,
                                    other=0.0,
                                )
                                for j in range(CHANNELS):
                                    dx = slope_at(
                                        slopes, leg, rows, j, moving, u, long, CHANNELS, DEGREE
                                    )
                                    if WANT_SLOPES or tl.max(tl.abs(dx)) > 0:
                                        f = column_from(
                                            x, bent, rows * W, live, j + OFFSET, m, head, tail,
                                            bias, HP, W, WP, BK, BN, ACT, TANH, SPLIT, FAST,
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
                                        found = tl.zeros([ROWS, WP], tl.float32)
                                        cross = tl.zeros([ROWS, WP], tl.float32)
                                        at = (j + OFFSET) * (HP * WP) + m[:, None] * WP
                                        found, cross = add_product(
                                            found, cross, g_f * inverse[:, None], head, tail,
                                            at + wide[None, :], SPLIT,
                                        )  # fmt: skip
                                        if SPLIT:
                                            found += cross * 0.00048828125
                                        g_h += found * power[:, None]
                if not ALONE:  # noqa: SIM102, the first is known when compiling
                    if less < TOTAL:
                        q = TOTAL - 1 - less
                        now = item
                        value, used, stream, to = entries_of(
                            now, last_item, tile_channel, tile_first, tile_last,
                            entry_stream, entry_place, ENTRIES, BLOCK,
                        )  # fmt: skip
                        time_now = (q // STAGES + tl.load(c + q % STAGES)) * (1.0 / STEPS)
                        bent = before + (slot + q) * long * (DEPTH * W) + (DEPTH - 1) * streams * W
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
                        while now < last_item:
                            there = used[:, None] & (wide < W)[None, :]
                            x = tl.zeros([BLOCK, WP], tl.float32)
                            if BK == WP:
                                x = tl.load(
                                    bent + stream[:, None] * W + wide[None, :],
                                    mask=there,
                                    other=0.0,
                                )
                                x = activate(x, ACT, FAST)
                            size = tl.load(g_sizes + stream, mask=used, other=0.0)
                            most = tl.zeros([BLOCK], tl.float32)
                            for part in tl.static_range(PARTS):
                                dx = slope_at(
                                    slopes, leg, stream, value + part * VALUES, used, time_now,
                                    long, CHANNELS, DEGREE,
                                )  # fmt: skip
                                most = tl.maximum(most, tl.abs(dx))
                            power, inverse = power_of_two(size * most)
                            found = tl.zeros([BLOCK, WP], tl.float32)
                            cross = tl.zeros([BLOCK, WP], tl.float32)
                            for first in range(0, H, BN):
                                m = first + tl.arange(0, BN)
                                owned = used[:, None] & (m < H)[None, :]
                                g_m = tl.load(
                                    g_ks + (slot + q) * long * H + stream[:, None] * H + m[None, :],
                                    mask=owned,
                                    other=0.0,
                                )
                                for part in tl.static_range(PARTS):
                                    j = value + part * VALUES
                                    dx = slope_at(
                                        slopes, leg, stream, j, used, time_now, long,
                                        CHANNELS, DEGREE,
                                    )  # fmt: skip
                                    f = column_from(
                                        x, bent, stream * W, used, j + OFFSET, m, head, tail, bias,
                                        HP, W, WP, BK, BN, ACT, TANH, SPLIT, FAST,
                                    )  # fmt: skip
                                    if WANT_SLOPES:
                                        add_slope(
                                            g_slopes, leg, stream, j, used, time_now, long,
                                            tl.sum(g_m * f, 1), CHANNELS, DEGREE,
                                        )  # fmt: skip
                                    g_f = g_m * (dx * inverse)[:, None]
                                    if TANH:
                                        g_f = g_f * (1.0 - f * f)
                                    at = (j + OFFSET) * (HP * WP) + m[:, None] * WP
                                    found, cross = add_product(
                                        found, cross, g_f, head, tail, at + wide[None, :], SPLIT
                                    )
                            if SPLIT:
                                found += cross * 0.00048828125
                            found = found * power[:, None]
                            tl.store(parts + to[:, None] * W + wide[None, :], found, mask=there)
                            now += programs
                            value, used, stream, to = entries_of(
                                now, last_item, tile_channel, tile_first, tile_last,
                                entry_stream, entry_place, ENTRIES, BLOCK,
                            )  # fmt: skip
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
        g += tl.load(g_knots + piece * long * H + place, mask=mine, other=0.0)
    tl.store(g_z0 + place, g, mask=mine)
    tl.store(g_most + rows, largest, mask=live)
