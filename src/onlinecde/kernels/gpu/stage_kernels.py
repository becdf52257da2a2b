"""What streams do by themselves in a solve stage by stage, a tile of them to each thread block.

A kernel takes in what the columns of one stage gave and begins the next; states wait in memory until then.
"""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.layers import features, pull_features
from onlinecde.kernels.gpu.stages import add_up, combine, pull_combine, put, through_memory


@triton.jit
def _four(rooms, spot, inside, streams, HS: tl.constexpr):
    """What is kept of four stages, (4, stream, HS), for a tile."""
    k0 = tl.load(rooms + spot, mask=inside, other=0.0)
    k1 = tl.load(rooms + streams * HS + spot, mask=inside, other=0.0)
    k2 = tl.load(rooms + 2 * streams * HS + spot, mask=inside, other=0.0)
    return k0, k1, k2, tl.load(rooms + 3 * streams * HS + spot, mask=inside, other=0.0)


@triton.jit
def _keep_in_blocks(
    x, to, rows, live, apart, LINE: tl.constexpr, WP: tl.constexpr, SPLIT: tl.constexpr
):
    """Write x (row, WP) in halves to `to` (stream, LINE) in blocks of 8 x 8, tails `apart` from heads."""
    if SPLIT:
        # Room for numbers up to 4 million; what is small keeps 1e-9 through its tail.
        x = x * 0.015625
    k = tl.arange(0, WP)
    block = (rows // 8)[:, None] * (LINE // 8) + (k // 8)[None, :]
    at = to + block * 64 + (rows % 8)[:, None] * 8 + (k % 8)[None, :]
    mine = live[:, None] & (k < LINE)[None, :]
    upper = x.to(tl.float16)
    tl.store(at, upper, mask=mine)
    if SPLIT:
        tl.store(at + apart, ((x - upper.to(tl.float32)) * 2048.0).to(tl.float16), mask=mine)


@triton.jit(do_not_specialize=["streams", "room", "stages", "groups", "number"])
def stage_kernel(
    knots, z_now, ks, ys, before, bent, y_halves, x_halves, parts, drive, lengths,
    inner_head, inner_tail, inner_bias, table, streams, room, stages, groups, number,
    H: tl.constexpr, HS: tl.constexpr, HP: tl.constexpr, BKH: tl.constexpr,
    W: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr, LINE: tl.constexpr, BW: tl.constexpr,
    BK: tl.constexpr, DEPTH: tl.constexpr, ACT: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
    DRIVE: tl.constexpr, SAVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    """Take in stage `number` - 1 of all `stages` of a solve, and begin stage `number`.

    Of the stage that ended, `parts` (stream, group, HS) are added up to its k in `ks` (4, stream, HS); with a
    step's last, z moves on in `z_now` (stream, HS) and, at its piece's end, into `knots`.
    """
    long = streams.to(tl.int64)
    TOTAL: tl.constexpr = STEPS * STAGES
    n = tl.arange(0, HP)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    mine = live[:, None] & (n < H)[None, :]
    place = rows[:, None] * H + n[None, :]
    inside = live[:, None] & (n < HS)[None, :]
    spot = rows[:, None] * HS + n[None, :]
    ends = tl.load(lengths + rows, mask=live, other=0)
    last_piece = tl.max(ends)
    h = tl.full([ROWS], 1.0 / STEPS, tl.float32)
    z = tl.load(z_now + spot, mask=inside, other=0.0)
    k0, k1, k2, k3 = _four(ks, spot, inside, long, HS)
    ended = number - 1
    if (number > 0) & (ended // TOTAL < last_piece):
        s = ended % STAGES
        many = tl.where(ended // TOTAL < ends, groups, 0)
        k = add_up(parts, rows * groups, many, live, HS, HP)
        tl.store(ks + s * long * HS + spot, k, mask=inside)
        k0, k1, k2, k3 = put(k, s, k0, k1, k2, k3)
        if s == STAGES - 1:
            z = combine(z, k0, k1, k2, k3, table + 16, h)
            tl.store(z_now + spot, z, mask=inside)
    piece = number // TOTAL
    if number % TOTAL == 0:
        tl.store(knots + piece // EVERY * long * H + place, z, mask=mine & (piece % EVERY == 0))
    if (number < stages) & (piece < last_piece):
        q = number % TOTAL
        s = q % STAGES
        slot = number.to(tl.int64) * SAVE
        y = combine(z, k0, k1, k2, k3, table + s * 4, h)
        y = through_memory(y, ys + slot * long * HS + spot, inside)
        u = (q // STAGES + tl.load(table + 20 + s)) * h
        x = features(
            y, y_halves, x_halves, rows, live, before + slot * long * (DEPTH * WS), inner_head,
            inner_tail, inner_bias, drive, piece, u, streams, HS, HP, BKH, W, WS, WP, BW, BK, DEPTH,
            ACT, DRIVE, SPLIT, FAST,
        )  # fmt: skip
        wide = room.to(tl.int64) * LINE
        _keep_in_blocks(x, bent + slot * (2 if SPLIT else 1) * wide, rows, live, wide, LINE, WP, SPLIT)


@triton.jit(do_not_specialize=["streams", "stages", "many", "number"])
def pull_stage_kernel(
    g_knots, g_z0, g_now, g_ys, g_ks, g_sizes, g_most, grads, before, halves, spill, parts, g_drive,
    lengths, inner_head, inner_tail, table, streams, stages, many, number,
    H: tl.constexpr, HS: tl.constexpr, GS: tl.constexpr, HP: tl.constexpr, BH: tl.constexpr,
    W: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
    DEPTH: tl.constexpr, ACT: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
    DRIVE: tl.constexpr, WANT_DRIVE: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    """Take in the gradients through the columns of stage `number`, and begin with those of the stage before it.

    `parts` (stream, `many`, WS) are added up to that of h and go back to that of the stage's input in
    `g_ys` (4, stream, HS); with a step's first stage they join that of z in `g_now` (stream, HS). Then `g_ks`,
    `g_sizes` and `g_most` take that of the k before. `number` is `stages` where there is none to take in.
    """
    long = streams.to(tl.int64)
    TOTAL: tl.constexpr = STEPS * STAGES
    n = tl.arange(0, HP)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    mine = live[:, None] & (n < H)[None, :]
    place = rows[:, None] * H + n[None, :]
    inside = live[:, None] & (n < HS)[None, :]
    spot = rows[:, None] * HS + n[None, :]
    ends = tl.load(lengths + rows, mask=live, other=0)
    last_piece = tl.max(ends)
    h = tl.full([ROWS], 1.0 / STEPS, tl.float32)
    g = tl.load(g_now + spot, mask=inside, other=0.0)
    y0, y1, y2, y3 = _four(g_ys, spot, inside, long, HS)
    piece = number // TOTAL
    if (number < stages) & (piece < last_piece):
        q = number % TOTAL
        s = q % STAGES
        g_h = add_up(parts, rows * many, tl.where(piece < ends, many, 0), live, WS, WP)
        at = number.to(tl.int64) * long * (DEPTH * WS)
        g_y = pull_features(
            g_h, rows, live, before + at, grads + at, halves, spill, inner_head, inner_tail, g_drive,
            piece, (q // STAGES + tl.load(table + 20 + s)) * h, streams, HS, HP, BH, W, WS, WP, BW, BK,
            DEPTH, ACT, DRIVE, WANT_DRIVE, SPLIT, FAST,
        )  # fmt: skip
        tl.store(g_ys + s * long * HS + spot, g_y, mask=inside)
        y0, y1, y2, y3 = put(g_y, s, y0, y1, y2, y3)
        if s == 0:
            g += y0 + y1 + y2 + y3
    if number % TOTAL == 0:
        given = mine & (piece % EVERY == 0)
        g += tl.load(g_knots + piece // EVERY * long * H + place, mask=given, other=0.0)
    if number % STAGES == 0:
        tl.store(g_now + spot, g, mask=inside)
    if number == 0:
        tl.store(g_z0 + place, g, mask=mine)
    else:
        piece = (number - 1) // TOTAL
        if piece < last_piece:
            q = (number - 1) % TOTAL
            g_k = pull_combine(g, y0, y1, y2, y3, table, q % STAGES, h)
            to = g_ks + (number - 1).to(tl.int64) * long * GS
            tl.store(to + rows[:, None] * GS + n[None, :], g_k, mask=inside)
            size = tl.max(tl.abs(g_k), 1)
            tl.store(g_sizes + rows, size, mask=live)
            largest = tl.load(g_most + rows, mask=live, other=0.0)
            tl.store(g_most + rows, tl.maximum(largest, size), mask=live)
