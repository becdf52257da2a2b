"""The whole solve as one kernel: thread blocks that stay for all pieces and wait for each other.

A tile of streams belongs to one thread block, which keeps their states in registers and takes their
time legs and inner layers alone. On a value leg, columns are computed channel by channel for the
streams in which the channel moved or, where most moved, in groups of channels for all streams: these
tiles are shared out among all thread blocks, and their results are written side by side and added up
by the stream's own thread block, in the order of the channels. No sum depends on what comes later, and
none on a neighbour but for how a leg is cut into sums.
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import slope_at, wait_for_all
from onlinecde.kernels.gpu.columns import column_from, keep_bent
from onlinecde.kernels.gpu.dense import dense_columns
from onlinecde.kernels.gpu.entries import entries_first, entries_of, units_first
from onlinecde.kernels.gpu.layers import features
from onlinecde.kernels.gpu.stages import add_up, combine, put, through_memory


@triton.jit(do_not_specialize=["streams", "pieces", "groups"])
def forward_kernel(
    knots, z0, ks, ys, before, bent, y_halves, x_halves, parts, counter,
    time, time_steps, slopes, across, drive, lengths, slots,
    inner_head, inner_tail, inner_bias, head, tail, bias, table,
    entry_stream, entry_place, tile_channel, tile_first, tile_last, leg_tiles, stream_first,
    leg_crowd, streams, pieces, groups,
    H: tl.constexpr, HS: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr, BKH: tl.constexpr,
    W: tl.constexpr, WA: tl.constexpr, WB: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, TANH: tl.constexpr,
    VALUES: tl.constexpr, PARTS: tl.constexpr, RECTILINEAR: tl.constexpr, DEGREE: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, OWN_STEPS: tl.constexpr, DRIVE: tl.constexpr,
    ALONE: tl.constexpr, SAVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, SHARES: tl.constexpr, AHEAD: tl.constexpr,
    DENSE: tl.constexpr, CROWD: tl.constexpr, DN: tl.constexpr, DENSE_AHEAD: tl.constexpr,
    NODES: tl.constexpr, EVERY: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """z from z0 (stream, H) along all pieces into `knots` (knot, stream, H), at every `EVERY`-th knot.

    `table` holds the tableau: a (4, 4), b (4), c (4). `slots` (piece + 1) says where the stages of
    each piece are kept in `ys` (slot, stream, HS) and `before` (slot, layer, stream, WS); `bent` keeps
    what the last layer takes in on value legs. Without `SAVE` these hold one stage. A wide column is put
    together in `ks` (stream, HS), what its layers take in goes through
    `y_halves` and `x_halves`. The hidden units of a tile of entries are shared out to `SHARES`. Legs are
    `DENSE` never, always, or where `leg_crowd` says so: then work is cut into `CROWD` streams, `DN` units
    and one of `groups` of channels, whose dX at `NODES` nodes of a leg are in `across`.
    """
    long = streams.to(tl.int64)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    waits = 0
    n = tl.arange(0, HP)
    WS: tl.constexpr = WA + WB
    OFFSET: tl.constexpr = 1 if RECTILINEAR else 0
    CHANNELS: tl.constexpr = VALUES * PARTS
    TOTAL: tl.constexpr = STEPS * STAGES
    UNITS: tl.constexpr = HS // SHARES
    UNITS_FIRST: tl.constexpr = HP >= 64 or BK < WP
    b = table + 16
    c = table + 20
    rows = pid * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    mine = live[:, None] & (n < H)[None, :]
    place = rows[:, None] * H + n[None, :]
    inside = live[:, None] & (n < HS)[None, :]
    spot = rows[:, None] * HS + n[None, :]
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
                # As many as the slowest tile takes: its slots are those of all tiles.
                for q in range(tl.load(slots + piece + 1) - tl.load(slots + piece)):
                    step = q // STAGES
                    s = q % STAGES
                    going = step < own
                    h = tl.where(going, share, 0.0)
                    begun = tl.where(going, step * share, 1.0)
                    y = combine(z, k0, k1, k2, k3, table + s * 4, h)
                    if SAVE:
                        here = before + (slot + q) * long * (DEPTH * WS)
                    stage = ys + (slot + q) * SAVE * long * HS
                    y = through_memory(y, stage + spot, inside)
                    u = begun + tl.load(c + s) * h
                    x = features(
                        y, y_halves, x_halves, rows, live, here, inner_head, inner_tail, inner_bias, drive,
                        piece, u, streams, HS, HP, BKH, W, WS, WP, BW, BK, DEPTH, ACT, DRIVE,
                        SPLIT, FAST,
                    )  # fmt: skip
                    k = tl.zeros([ROWS, HP], tl.float32)
                    if BK < WP:
                        keep_bent(x, x_halves, rows, live, streams, WS, WP, SPLIT)
                        tl.debug_barrier()
                    if BH == HP:
                        k = column_from(
                            x, x_halves, rows, live, streams, 0, n, head, tail, bias,
                            HP, WS, WP, BK, BH, TANH, SPLIT, FAST,
                        )  # fmt: skip
                    else:
                        for first in range(0, HS, BH):
                            m = first + tl.arange(0, BH)
                            f = column_from(
                                x, x_halves, rows, live, streams, 0, m, head, tail, bias,
                                HP, WS, WP, BK, BH, TANH, SPLIT, FAST,
                            )  # fmt: skip
                            tl.store(ks + rows[:, None] * HS + m[None, :], f, mask=live[:, None])
                        tl.debug_barrier()
                        k = tl.load(ks + spot, mask=inside, other=0.0)
                        tl.debug_barrier()
                    k0, k1, k2, k3 = put(dt[:, None] * k, s, k0, k1, k2, k3)
                    if s == STAGES - 1:
                        z = combine(z, k0, k1, k2, k3, b, h)
                asked = mine & ((piece + 1) % EVERY == 0)
                tl.store(knots + (piece + 1) // EVERY * long * H + place, z, mask=asked)
        else:
            low = tl.zeros([ROWS], tl.int32)
            high = tl.zeros([ROWS], tl.int32)
            item = pid
            last_item = 0
            crowd = 0
            # What does not depend on other thread blocks is read before waiting for them.
            if not ALONE and DENSE != "always":
                low = tl.load(stream_first + leg * (streams + 1) + rows, mask=live, other=0)
                high = tl.load(stream_first + leg * (streams + 1) + rows + 1, mask=live, other=0)
                item = tl.load(leg_tiles + leg) * SHARES + pid
                last_item = tl.load(leg_tiles + leg + 1) * SHARES
            if not ALONE and DENSE != "never":
                crowd = tl.load(leg_crowd + leg)
                low = tl.where(crowd > 0, rows * groups, low)
                high = tl.where(crowd > 0, tl.where(moving, low + groups, low), high)
                last_item = tl.where(crowd > 0, 0, last_item)
            h = tl.full([ROWS], 1.0 / STEPS, tl.float32)
            for q in range(TOTAL + 1):
                s = q % STAGES
                if piece < last_piece:
                    if q > 0:
                        if not ALONE:
                            k = add_up(parts, low, high - low, live, HS, HP)
                            k0, k1, k2, k3 = put(k, (q - 1) % STAGES, k0, k1, k2, k3)
                        if s == 0:
                            z = combine(z, k0, k1, k2, k3, b, h)
                    if q < TOTAL:
                        y = combine(z, k0, k1, k2, k3, table + s * 4, h)
                        if SAVE:
                            here = before + (slot + q) * long * (DEPTH * WS)
                        stage = ys + (slot + q) * SAVE * long * HS
                        y = through_memory(y, stage + spot, inside)
                        u = (q // STAGES + tl.load(c + s)) * h
                        x = features(
                            y, y_halves, x_halves, rows, live, here, inner_head, inner_tail, inner_bias, drive,
                            piece, u, streams, HS, HP, BKH, W, WS, WP, BW, BK, DEPTH, ACT, DRIVE,
                            SPLIT, FAST,
                        )  # fmt: skip
                        taken = bent + (leg * TOTAL + q) * SAVE * long * (2 * WS)
                        if SAVE or BK < WP or not ALONE:
                            keep_bent(x, taken, rows, live, streams, WS, WP, SPLIT)
                        if ALONE:
                            if BK < WP:
                                tl.debug_barrier()
                            k = tl.zeros([ROWS, HP], tl.float32)
                            for first in range(0, HS, BH):
                                m = first + tl.arange(0, BH)
                                total = tl.zeros([ROWS, BH], tl.float32)
                                for j in range(CHANNELS):
                                    dx = slope_at(
                                        slopes, leg, rows, j, moving, u, long, CHANNELS, DEGREE
                                    )
                                    if tl.max(tl.abs(dx)) > 0:
                                        f = column_from(
                                            x, taken, rows, live, streams, j + OFFSET, m, head,
                                            tail, bias, HP, WS, WP, BK, BH, TANH, SPLIT, FAST,
                                        )  # fmt: skip
                                        total += dx[:, None] * f
                                if BH == HP:
                                    k = total
                                else:
                                    to = rows[:, None] * HS + m[None, :]
                                    tl.store(ks + to, total, mask=live[:, None])
                            if BH < HP:
                                tl.debug_barrier()
                                k = tl.load(ks + spot, mask=inside, other=0.0)
                                tl.debug_barrier()
                            k0, k1, k2, k3 = put(k, s, k0, k1, k2, k3)
                if not ALONE:  # noqa: SIM102, the first is known when compiling
                    if q < TOTAL:
                        now = item
                        if DENSE != "always":
                            value, used, stream, to = entries_of(
                                now // SHARES, last_item // SHARES, tile_channel, tile_first,
                                tile_last, entry_stream, entry_place, ENTRIES, ENTRIES,
                            )  # fmt: skip
                        time_now = (q // STAGES + tl.load(c + s)) * (1.0 / STEPS)
                        base = bent + (leg * TOTAL + q) * SAVE * long * (2 * WS)
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
                        if DENSE != "never":
                            works = tl.cdiv(crowd, CROWD) * tl.cdiv(HS, DN) * groups
                            node = leg * NODES + q % NODES
                            for work in range(pid, works, programs):
                                dense_columns(
                                    base, parts, work, crowd, groups, streams, across, node,
                                    head, tail, bias, HS, HP, DN, WA, WB, WP, CHANNELS, OFFSET,
                                    CROWD, DENSE_AHEAD, TANH, SPLIT, FAST,
                                )  # fmt: skip
                        if DENSE != "always":
                            while now < last_item:
                                if UNITS_FIRST:
                                    units_first(
                                        base, parts, value, used, stream, to, now % SHARES * UNITS,
                                        streams, slopes, leg, time_now, head, tail, bias, HS, HP, BN,
                                        UNITS, WA, WB, WP, VALUES, PARTS, OFFSET, DEGREE, AHEAD, TANH,
                                        SPLIT, FAST,
                                    )  # fmt: skip
                                else:
                                    source = before + (DEPTH - 1) * streams * WS
                                    if SAVE:
                                        source += (slot + q) * long * (DEPTH * WS)
                                    entries_first(
                                        source, parts, value, used, stream, to, streams, slopes, leg,
                                        time_now, head, tail, bias, HS, HP, WS, WP, VALUES, PARTS,
                                        OFFSET, DEGREE, ACT, TANH, SPLIT, FAST,
                                    )  # fmt: skip
                                now += programs
                                value, used, stream, to = entries_of(
                                    now // SHARES, last_item // SHARES, tile_channel, tile_first,
                                    tile_last, entry_stream, entry_place, ENTRIES, ENTRIES,
                                )  # fmt: skip
                        waits += programs
                        wait_for_all(counter, waits, TOGETHER)
            if piece < last_piece:
                asked = mine & ((piece + 1) % EVERY == 0)
                tl.store(knots + (piece + 1) // EVERY * long * H + place, z, mask=asked)
    # From its tile's last piece on a stream stands still.
    for knot in range(last_piece // EVERY + 1, pieces // EVERY + 1):
        tl.store(knots + knot * long * H + place, z, mask=mine)
