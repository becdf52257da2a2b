"""A solve, its gradients, and what is kept between the two."""

from __future__ import annotations

# Triton's own types call every constant a constexpr, which callers do not give.
# pyright: reportArgumentType=false, reportCallIssue=false
from dataclasses import dataclass

import torch
from torch import Tensor

from onlinecde.kernels.gpu.assembler import right_ptxas
from onlinecde.kernels.gpu.drive_gradients import drive_gradients
from onlinecde.kernels.gpu.forward_sweep import forward_kernel
from onlinecde.kernels.gpu.hopper import clusters
from onlinecde.kernels.gpu.hopper.clusters import Clusters, FieldSizes
from onlinecde.kernels.gpu.launching import (
    ALONE_UP_TO,
    Shape,
    counter,
    dense_of,
    grid_of,
    interpreted,
    lists_of,
    options,
    path_of,
    precision_of,
    room_for,
    shape_for,
    sizes_of,
)
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table
from onlinecde.kernels.gpu.plan import Moves, plan_moves
from onlinecde.kernels.gpu.reverse_sweep import backward_kernel
from onlinecde.kernels.gpu.room import streams_at_once
from onlinecde.kernels.gpu.weight_gradients import Tape, weight_gradients


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of all that went in; None where they were not asked for."""

    z0: Tensor
    inner: list[tuple[Tensor, Tensor]]
    weight: Tensor
    bias: Tensor
    time: Tensor | None
    slopes: Tensor | None
    drive: Tensor | None


def forward(
    field: PackedField,
    legs: Legs,
    z0: Tensor,
    table: Table,
    *,
    save: bool,
    split: bool = True,
    shape: Shape | None = None,
    moves: Moves | None = None,
    path_gradients: bool = False,
    every: int = 1,
) -> tuple[Tensor, list[Tape]]:
    """z at every `every`-th knot (knot, stream, hidden) from z0 (stream, hidden), and tapes to `save`.

    `split` computes products to 22 bits, else to 11. `moves` are the path's move lists, if they
    were made before. Where gradients of times or values will be asked for (`path_gradients`), clusters leave the
    solve to the sweeps, which find them. More streams than the GPU has room for at once are taken one lot after
    another, each with a tape of its own.
    """
    shape = shape or shape_for(field, legs, split=split)
    room = streams_at_once(field, legs, shape)
    if legs.streams <= room:
        return _forward(field, legs, z0, table, save, split, shape, moves, path_gradients, every)
    outputs: list[Tensor] = []
    tapes: list[Tape] = []
    for first in range(0, legs.streams, room):
        some = slice(first, first + room)
        part = legs.some(first, first + room)
        knots, tape = _forward(
            field, part, z0[some], table, save, split, shape, None, path_gradients, every
        )
        outputs.append(knots)
        tapes += tape
    return torch.cat(outputs, 1), tapes


def _forward(
    field: PackedField,
    legs: Legs,
    z0: Tensor,
    table: Table,
    save: bool,
    split: bool,
    shape: Shape,
    moves: Moves | None,
    path_gradients: bool,
    every: int,
) -> tuple[Tensor, list[Tape]]:
    streams, device = legs.streams, z0.device
    plan = None
    if not shape.alone and not path_gradients:
        plan = clusters.plan(field, legs, table, split=split, save=save, device=device)
    # Clusters list their moves themselves.
    if moves is None and not (shape.alone or isinstance(plan, Clusters)):
        moves = plan_moves(legs, shape.entries)
    slots, room = legs.slots(table.stages)
    new, hidden, width = z0.new_empty, legs.row(field.hidden), legs.row(field.width)
    knots = new(legs.pieces // every + 1, streams, field.hidden)
    ys = new(room if save else 1, streams, hidden)
    before = new(room if save else 1, field.depth, streams, width)
    if isinstance(plan, Clusters):
        features = clusters.forward(field, legs, z0, plan, knots, every, ys, before, save=save)
        if not save:
            return knots, []
        tape = Tape(
            field, legs, table, shape, moves, slots, room, ys, before, None, split, plan, features
        )
        return knots, [tape]
    kept = (field, legs, table, shape, moves, slots, room, ys, before)
    number = legs.slopes.shape[0] * legs.steps * table.stages if save else 1
    bent = new(number, 2, streams, width, dtype=torch.float16)
    parts = new(room_for(legs, shape, 1, shape.dense.groups if shape.dense else 0), hidden)
    forward_kernel[grid_of(shape, streams)](
        knots, z0.contiguous(), new(streams, hidden), ys, before, bent,
        _halves(streams, hidden, device), _halves(streams, width, device), parts, counter(device),
        *path_of(legs, table, shape.dense), legs.slopes if legs.drive is None else legs.drive,
        legs.lengths, slots,
        field.inner_head, field.inner_tail, field.inner_bias, field.head, field.tail, field.bias,
        table.numbers, *lists_of(moves, legs), streams, legs.pieces,
        **sizes_of(field, legs, shape, table.stages, shape.columns), SAVE=save, EVERY=every,
        DRIVE=0 if legs.drive is None else legs.drive.ndim - 2,
        **dense_of(shape.dense, legs, table), SHARES=shape.shares, AHEAD=shape.ahead,
        TOGETHER=not interpreted(), **precision_of(split, device),
        **options(shape.warps, together=not shape.alone),
    )  # fmt: skip
    return knots, [Tape(*kept, bent, split)] if save else []


def clustered(
    field: FieldSizes, legs: Legs, table: Table, save: bool, device: torch.device
) -> bool:
    """Whether thread-block clusters take a solve whose products are not split."""
    if legs.values * legs.parts <= ALONE_UP_TO:
        return False
    plan = clusters.plan(field, legs, table, split=False, save=save, device=device)
    return isinstance(plan, Clusters)


def backward(
    g_knots: Tensor,
    tapes: list[Tape],
    *,
    want_time: bool = False,
    want_slopes: bool = False,
    want_drive: bool = False,
    every: int = 1,
) -> Gradients:
    """Gradients of a solve from those of z at every `every`-th knot (knot, stream, hidden)."""
    wants = (every, want_time, want_slopes, want_drive)
    if len(tapes) == 1:
        return _backward(g_knots, tapes[0], *wants)
    parts, first = [], 0
    for tape in tapes:
        some = slice(first, first + tape.legs.streams)
        parts.append(_backward(g_knots[:, some], tape, *wants))
        first += tape.legs.streams

    def joined(name: str) -> Tensor | None:
        tensors = [getattr(part, name) for part in parts]
        return None if tensors[0] is None else torch.cat(tensors, 1)

    def total(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).sum(0)

    return Gradients(
        torch.cat([part.z0 for part in parts]),
        [
            (
                total([part.inner[i][0] for part in parts]),
                total([part.inner[i][1] for part in parts]),
            )
            for i in range(tapes[0].field.depth)
        ],
        total([part.weight for part in parts]),
        total([part.bias for part in parts]),
        *(joined(name) for name in ("time", "slopes", "drive")),
    )


def _backward(
    g_knots: Tensor, tape: Tape, every: int, want_time: bool, want_slopes: bool, want_drive: bool
) -> Gradients:
    field, legs, streams, new = tape.field, tape.legs, tape.legs.streams, g_knots.new_empty
    hidden, width = legs.row(field.hidden), legs.row(field.width)
    g_z0 = new(streams, field.hidden)
    g_ks = new(tape.room, streams, hidden)
    g_most = new(streams)
    grads = new(tape.room, field.depth, streams, width)
    g_time = torch.zeros_like(legs.time) if want_time and legs.time is not None else None
    g_slopes = torch.zeros_like(legs.slopes) if want_slopes else None
    g_knots, room = g_knots.contiguous(), (g_z0, g_ks, g_most, grads)
    if tape.features is None:
        _sweep_back(tape, g_knots, every, *room, g_time, g_slopes)
    else:
        # Whoever wants gradients of times or values said so before the forward pass, which the sweeps then took.
        assert g_time is None
        assert g_slopes is None
        clusters.reverse(tape, g_knots, every, *room)
    g_drive = None
    if want_drive and legs.drive is not None:
        g_drive = drive_gradients(field, legs, tape.table, grads)
    inner, weight, bias = weight_gradients(tape, g_ks, g_most, grads)
    return Gradients(g_z0, inner, weight, bias, g_time, g_slopes, g_drive)


def _sweep_back(
    tape: Tape,
    g_knots: Tensor,
    every: int,
    g_z0: Tensor,
    g_ks: Tensor,
    g_most: Tensor,
    grads: Tensor,
    g_time: Tensor | None,
    g_slopes: Tensor | None,
) -> None:
    """Fill the gradients of the states, and those of times and values where there is room given for them."""
    field, legs, shape, table = tape.field, tape.legs, tape.shape, tape.table
    streams, device, new = legs.streams, g_knots.device, g_knots.new_empty
    hidden, width = legs.row(field.hidden), legs.row(field.width)
    want_slopes = g_slopes is not None
    # Gradients of values are added up by one thread block for each entry.
    shares = 1 if want_slopes else shape.shares_back
    dense = None if want_slopes else shape.dense_back
    parts = new(room_for(legs, shape, shares, dense.parts_of(hidden) if dense else 0), width)
    with right_ptxas():
        backward_kernel[grid_of(shape, streams)](
            g_knots, g_z0, g_ks, new(streams), g_most, grads, tape.before, tape.bent,
            _halves(streams, width, device), _halves(streams, hidden, device), parts,
            new(streams, max(hidden, width)), counter(device),
            *(g_z0 if g is None else g for g in (g_time, g_slopes)),
            *path_of(legs, table, dense), legs.steep if dense else legs.slopes, legs.lengths, tape.slots,
            field.inner_head, field.inner_tail, field.head, field.tail, field.bias,
            table.numbers, *lists_of(tape.moves, legs), streams, legs.pieces,
            **sizes_of(field, legs, shape, table.stages, shape.columns_back), EVERY=every,
            **dense_of(dense, legs, table), BLOCK=shape.entries_back, SHARES=shares, AHEAD=2,
            WANT_TIME=g_time is not None, WANT_SLOPES=want_slopes,
            TOGETHER=not interpreted(), **precision_of(tape.split, device),
            **options(shape.warps_back, together=not shape.alone),
        )  # fmt: skip


def _halves(streams: int, size: int, device: torch.device) -> Tensor:
    """Room for one row of every stream in halves."""
    return torch.empty(2, streams, size, dtype=torch.float16, device=device)
