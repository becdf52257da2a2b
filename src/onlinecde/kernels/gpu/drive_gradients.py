"""Gradients of what the field sees of the path: one parallel pass over what a reverse sweep wrote down."""

from __future__ import annotations

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
# Its own types call every constant a constexpr, which callers do not give.
# pyright: reportCallIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from onlinecde.kernels.gpu.launching import options
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table, padded

ROWS = 16
"""Streams of a thread block"""


@triton.jit(do_not_specialize=["streams", "pieces"])
def drive_kernel(
    grads, g_drive, lengths, time_steps, slots, table, streams, pieces,
    W: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr, DEPTH: tl.constexpr,
    STEPS: tl.constexpr, STAGES: tl.constexpr, OWN_STEPS: tl.constexpr, POWERS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Sums over stages of the gradients before the first activation, `grads` (slot, layer, stream, WS).

    On straight pieces the field sees (1 - u) of the knot where one begins and u of that where it ends:
    `g_drive` (knot, stream, 1, W). Of a cubic piece it sees u to the `POWERS`: (piece, stream, POWERS, W).
    """
    long = streams.to(tl.int64)
    place = tl.program_id(0)
    power = tl.program_id(2)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = rows < streams
    n = tl.arange(0, WP)
    ends = tl.load(lengths + rows, mask=live, other=0)
    total = tl.zeros([ROWS, WP], tl.float32)
    for back in tl.static_range(2 if POWERS == 1 else 1):
        piece = place - back
        here = (piece >= 0) & (piece < pieces)
        mine = (here & (piece < ends))[:, None] & (n < W)[None, :]
        slot = tl.load(slots + piece, mask=here, other=0)
        stages = tl.load(slots + piece + 1, mask=here, other=0) - slot
        own = tl.full([ROWS], STEPS, tl.int32)
        if OWN_STEPS:
            timed = here & (piece % 2 == 0)
            own = tl.load(time_steps + piece // 2 * streams + rows, mask=timed & live, other=STEPS)
        for q in range(stages):
            # Stages behind a stream's own steps have gradients of 0.
            u = (q // STAGES + tl.load(table + 20 + q % STAGES)) / own.to(tl.float32)
            weight = 1.0 - u
            if back == 1:
                weight = u
            if POWERS > 1:
                weight = tl.where(power % 2 == 1, u, 1.0) * tl.where(power >= 2, u * u, 1.0)
            at = grads + (slot + q) * long * (DEPTH * WS) + rows[:, None] * WS + n[None, :]
            total += weight[:, None] * tl.load(at, mask=mine, other=0.0)
    to = ((place * long + rows[:, None]) * POWERS + power) * W + n[None, :]
    tl.store(g_drive + to, total, mask=live[:, None] & (n < W)[None, :])


def drive_gradients(field: PackedField, legs: Legs, table: Table, grads: Tensor) -> Tensor:
    """The gradient of `legs.drive`, from those before the activations (slot, layer, stream, row of width)."""
    assert legs.drive is not None
    g_drive = torch.empty_like(legs.drive)
    powers = legs.drive.shape[2] if legs.drive.ndim == 4 else 1
    drive_kernel[(len(g_drive), -(-legs.streams // ROWS), powers)](
        grads, g_drive, legs.lengths,
        legs.lengths if legs.time_steps is None else legs.time_steps,
        legs.slots(table.stages)[0], table.numbers, legs.streams, legs.pieces,
        W=field.width, WS=legs.row(field.width), WP=padded(field.width), DEPTH=field.depth,
        STEPS=legs.steps, STAGES=table.stages, OWN_STEPS=legs.time_steps is not None,
        POWERS=powers, ROWS=ROWS, **options(4),
    )  # fmt: skip
    return g_drive
