"""The whole solve as one kernel: thread blocks that stay for all pieces and wait for each other.

A tile of streams belongs to one thread block, which keeps their states in registers and takes their
time legs and inner layers alone. On a value leg, columns are computed channel by channel for the
streams in which the channel moved: these tiles are shared out among all thread blocks, and their
results are written side by side and added up by the stream's own thread block, in the order of the
channels. No sum depends on a neighbour or on what comes later.
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import activate, slope_at, wait_for_all
from onlinecde.kernels.gpu.columns import column_from, entries_of
from onlinecde.kernels.gpu.layers import features
from onlinecde.kernels.gpu.stages import add_up, combine, put, through_memory


@triton.jit(do_not_specialize=["streams", "pieces"])
def forward_kernel(
    knots, z0, ks, ys, before, parts, counter,
    time, time_steps, slopes, drive, lengths, slots,
    inner_head, inner_tail, inner_bias, head, tail, bias, table,
    entry_stream, entry_place, tile_channel, tile_first, tile_last, leg_tiles, stream_first,
    streams, pieces,
    H: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr,
    W: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BKH: tl.constexpr,
    BN: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, TANH: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, RECTILINEAR: tl.constexpr, DEGREE: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, OWN_STEPS: tl.constexpr, DRIVE: tl.constexpr,
    ALONE: tl.constexpr, SAVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """z from z0 (stream, H) along all pieces into `knots` (knot, stream, H).

    `table` holds the tableau: a (4, 4), b (4), c (4). `slots` (piece + 1) says where the stages of
    each piece are kept in `ys` and `before`; without `SAVE` these hold one stage. A wide column is
    put together in `ks` (stream, H).
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
    b = table + 16
    c = table + 20
    rows = pid * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    mine = live[:, None] & (n < H)[None, :]
    place = rows[:, None] * H + n[None, :]
    ends = tl.load(lengths + rows, mask=live, other=0)
    last_piece = tl.max(ends)
    z = tl.load(z0 + place, mask=mine, other=0.0)
    tl.store(knots + place, z, mask=mine)
    k0 = tl.zeros([ROWS, HP], tl.float32)
    k1 = tl.zeros([ROWS, HP], tl.float32)
    k2 = tl.zeros([ROWS, HP], tl.float32)
    k3 = tl.zeros([ROWS, HP], tl.float32)
    longest = tl.load(lengths)
    for piece in range(longest):
        slot = tl.load(slots + piece).to(tl.int64)
        time_leg = RECTILINEAR & (piece % 2 == 0)
        leg = piece // 2 if RECTILINEAR else piece
        moving = piece < ends
        here = before
        if time_leg:
            if piece < last_piece:
                dt = tl.load(time + leg * streams + rows, mask=moving, other=0.0)
                own = tl.full([ROWS], STEPS, tl.int32)
                if OWN_STEPS:
                    own = tl.load(time_steps + leg * streams + rows, mask=moving, other=1)
                share = 1.0 / own.to(tl.float32)
                for q in range(tl.max(own) * STAGES):
                    step = q // STAGES
                    s = q % STAGES
                    going = step < own
                    h = tl.where(going, share, 0.0)
                    begun = tl.where(going, step * share, 1.0)
                    y = combine(z, k0, k1, k2, k3, table + s * 4, h)
                    if SAVE:
                        here = before + (slot + q) * long * (DEPTH * W)
                    stage = ys + (slot + q) * SAVE * long * H
                    y = through_memory(y, stage + place, mine)
                    u = begun + tl.load(c + s) * h
                    x = features(
                        y, stage, rows, live, here, inner_head, inner_tail, inner_bias, drive,
                        piece, u, streams, H, HP, BKH, W, WP, BW, BK, DEPTH, ACT, DRIVE, SPLIT,
                        FAST,
                    )  # fmt: skip
                    k = tl.zeros([ROWS, HP], tl.float32)
                    bent = here + (DEPTH - 1) * streams * W
                    if BH == HP:
                        k = column_from(
                            x, bent, rows * W, live, 0, n, head, tail, bias,
                            HP, W, WP, BK, BH, ACT, TANH, SPLIT, FAST,
                        )  # fmt: skip
                    else:
                        for first in range(0, H, BH):
                            m = first + tl.arange(0, BH)
                            f = column_from(
                                x, bent, rows * W, live, 0, m, head, tail, bias,
                                HP, W, WP, BK, BH, ACT, TANH, SPLIT, FAST,
                            )  # fmt: skip
                            owned = live[:, None] & (m < H)[None, :]
                            tl.store(ks + rows[:, None] * H + m[None, :], f, mask=owned)
                        tl.debug_barrier()
                        k = tl.load(ks + place, mask=mine, other=0.0)
                        tl.debug_barrier()
                    k0, k1, k2, k3 = put(dt[:, None] * k, s, k0, k1, k2, k3)
                    if s == STAGES - 1:
                        z = combine(z, k0, k1, k2, k3, b, h)
                tl.store(knots + (piece + 1) * long * H + place, z, mask=mine)
        else:
            low = tl.zeros([ROWS], tl.int32)
            high = tl.zeros([ROWS], tl.int32)
            item = pid
            last_item = 0
            if not ALONE:
                # What does not depend on other thread blocks is read before waiting for them.
                low = tl.load(stream_first + leg * (streams + 1) + rows, mask=live, other=0)
                high = tl.load(stream_first + leg * (streams + 1) + rows + 1, mask=live, other=0)
                item = tl.load(leg_tiles + leg) + pid
                last_item = tl.load(leg_tiles + leg + 1)
            h = tl.full([ROWS], 1.0 / STEPS, tl.float32)
            for q in range(TOTAL + 1):
                s = q % STAGES
                if piece < last_piece:
                    if q > 0:
                        if not ALONE:
                            k = add_up(parts, low, high - low, live, H, HP)
                            k0, k1, k2, k3 = put(k, (q - 1) % STAGES, k0, k1, k2, k3)
                        if s == 0:
                            z = combine(z, k0, k1, k2, k3, b, h)
                    if q < TOTAL:
                        y = combine(z, k0, k1, k2, k3, table + s * 4, h)
                        if SAVE:
                            here = before + (slot + q) * long * (DEPTH * W)
                        stage = ys + (slot + q) * SAVE * long * H
                        y = through_memory(y, stage + place, mine)
                        u = (q // STAGES + tl.load(c + s)) * h
                        x = features(
                            y, stage, rows, live, here, inner_head, inner_tail, inner_bias, drive,
                            piece, u, streams, H, HP, BKH, W, WP, BW, BK, DEPTH, ACT, DRIVE, SPLIT,
                            FAST,
                        )  # fmt: skip
                        if ALONE:
                            k = tl.zeros([ROWS, HP], tl.float32)
                            for first in range(0, H, BH):
                                m = first + tl.arange(0, BH)
                                total = tl.zeros([ROWS, BH], tl.float32)
                                for j in range(CHANNELS):
                                    dx = slope_at(
                                        slopes, leg, rows, j, moving, u, long, CHANNELS, DEGREE
                                    )
                                    if tl.max(tl.abs(dx)) > 0:
                                        f = column_from(
                                            x, here + (DEPTH - 1) * streams * W, rows * W, live,
                                            j + OFFSET, m, head, tail, bias,
                                            HP, W, WP, BK, BH, ACT, TANH, SPLIT, FAST,
                                        )  # fmt: skip
                                        total += dx[:, None] * f
                                if BH == HP:
                                    k = total
                                else:
                                    owned = live[:, None] & (m < H)[None, :]
                                    to = rows[:, None] * H + m[None, :]
                                    tl.store(ks + to, total, mask=owned)
                            if BH < HP:
                                tl.debug_barrier()
                                k = tl.load(ks + place, mask=mine, other=0.0)
                                tl.debug_barrier()
                            k0, k1, k2, k3 = put(k, s, k0, k1, k2, k3)
                if not ALONE:  # noqa: SIM102, the first is known when compiling
                    if q < TOTAL:
                        now = item
                        value, used, stream, to = entries_of(
                            now, last_item, tile_channel, tile_first, tile_last,
                            entry_stream, entry_place, ENTRIES, ENTRIES,
                        )  # fmt: skip
                        time_now = (q // STAGES + tl.load(c + s)) * (1.0 / STEPS)
                        bent = before + (DEPTH - 1) * streams * W
                        if SAVE:
                            bent += (slot + q) * long * (DEPTH * W)
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
                        while now < last_item:
                            x = tl.zeros([ENTRIES, WP], tl.float32)
                            if BK == WP:
                                there = used[:, None] & (wide < W)[None, :]
                                x = tl.load(
                                    bent + stream[:, None] * W + wide[None, :],
                                    mask=there,
                                    other=0.0,
                                )
                                x = activate(x, ACT, FAST)
                            for first in range(0, H, BN):
                                m = first + tl.arange(0, BN)
                                total = tl.zeros([ENTRIES, BN], tl.float32)
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
                                    total += dx[:, None] * f
                                owned = used[:, None] & (m < H)[None, :]
                                tl.store(parts + to[:, None] * H + m[None, :], total, mask=owned)
                            now += programs
                            value, used, stream, to = entries_of(
                                now, last_item, tile_channel, tile_first, tile_last,
                                entry_stream, entry_place, ENTRIES, ENTRIES,
                            )  # fmt: skip
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
            if piece < last_piece:
                tl.store(knots + (piece + 1) * long * H + place, z, mask=mine)
    # From its tile's last piece on a stream stands still.
    for knot in range(last_piece + 1, pieces + 1):
        tl.store(knots + knot * long * H + place, z, mask=mine)
