"""A solve stage by stage, for paths on which every channel moves: two kernels a stage, there and back.

One, in Triton, takes in what the stage before gave and begins the next; the other, in CUDA, computes columns.
What the sweeps do in one kernel takes hundreds of launches here. That pays inside a CUDA graph, where a
launch takes a microsecond: neither kernel has to leave registers to the other.
"""

from __future__ import annotations

# Triton's own types call every constant a constexpr, which callers do not give.
# pyright: reportArgumentType=false, reportCallIssue=false
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from onlinecde.kernels.gpu import stage_columns
from onlinecde.kernels.gpu.launching import options, precision_of, sizes_of
from onlinecde.kernels.gpu.stage_kernels import pull_stage_kernel, stage_kernel
from onlinecde.kernels.gpu.weight_gradients import Tape

WARPS = 8
"""Warps of a thread block that takes streams from stage to stage"""
_captured: ContextVar[bool] = ContextVar("captured", default=False)


@contextlib.contextmanager
def to_be_captured() -> Iterator[None]:
    """What is solved herein goes into a CUDA graph, or prepares for that: a launch costs next to nothing."""
    before = _captured.set(True)
    try:
        yield
    finally:
        _captured.reset(before)


def pays() -> bool:
    """Whether launches cost so little that a solve is better done stage by stage."""
    return _captured.get()


def forward(
    tape: Tape, z0: Tensor, knots: Tensor, every: int, halves: tuple[Tensor, Tensor], *, save: bool
) -> None:
    """Fill `knots`, one of `every` so many, and, to `save` it, the tape."""
    assert tape.staged is not None
    assert tape.bent is not None
    field, legs, table, shape = tape.field, tape.legs, tape.table, tape.shape
    streams, hidden, groups = legs.streams, legs.row(field.hidden), tape.staged.there.groups
    z_now = torch.nn.functional.pad(z0, (0, hidden - field.hidden))
    ks = z0.new_zeros(4, streams, hidden)
    parts = z0.new_empty(streams * groups, hidden)
    stages = legs.pieces * legs.steps * table.stages
    assert tape.blocks is not None
    sizes = _sizes_of(stage_kernel, tape)
    for number in range(stages + 1):
        stage_kernel[(-(-streams // shape.rows),)](
            knots, z_now, ks, tape.ys, tape.before, tape.bent, *halves, parts,
            legs.slopes if legs.drive is None else legs.drive, legs.lengths,
            field.inner_head, field.inner_tail, field.inner_bias, table.numbers,
            streams, tape.bent.shape[2], stages, groups, number, **sizes, SAVE=save, EVERY=every,
        )  # fmt: skip
        if number < stages:
            stage_columns.forward(tape, tape.staged, tape.blocks, parts, number, save=save)


def reverse(
    tape: Tape,
    g_knots: Tensor,
    every: int,
    g_z0: Tensor,
    g_ks: Tensor,
    g_most: Tensor,
    grads: Tensor,
    g_drive: Tensor | None,
    halves: Tensor,
) -> None:
    """Fill the gradients of the states and what those of the weights are found from.

    `g_knots` are gradients at one of `every` so many knots.
    """
    assert tape.staged is not None
    field, legs, table, shape = tape.field, tape.legs, tape.table, tape.shape
    streams, hidden, width = legs.streams, legs.row(field.hidden), legs.row(field.width)
    new, room = g_knots.new_zeros, g_knots.new_empty
    g_now, g_ys, g_sizes = new(streams, hidden), new(4, streams, hidden), new(streams)
    g_most.zero_()
    many = tape.staged.back.parts
    parts, spill = room(streams * many, width), room(streams, max(hidden, width))
    stages = legs.pieces * legs.steps * table.stages
    assert tape.blocks is not None
    sizes = _sizes_of(pull_stage_kernel, tape)
    for number in range(stages, -1, -1):
        pull_stage_kernel[(-(-streams // shape.rows),)](
            g_knots, g_z0, g_now, g_ys, g_ks, g_sizes, g_most, grads, tape.before, halves, spill, parts,
            g_z0 if g_drive is None else g_drive, legs.lengths,
            field.inner_head, field.inner_tail, table.numbers, streams, stages, many, number,
            **sizes, WANT_DRIVE=g_drive is not None, EVERY=every,
        )  # fmt: skip
        if number:
            stage_columns.reverse(tape, tape.staged, tape.blocks, g_ks, g_sizes, parts, number - 1)


def _sizes_of(kernel: Any, tape: Tape) -> dict[str, Any]:
    """What a kernel is compiled for, and the options of its launch."""
    sizes = sizes_of(tape.field, tape.legs, tape.shape, tape.table.stages, tape.shape.columns)
    assert tape.staged is not None
    sizes |= {
        "WS": sizes["WA"] + sizes["WB"],
        "LINE": tape.staged.line,
        "GS": tape.staged.size("GS"),
    }
    sizes |= precision_of(tape.split, tape.ys.device)
    return {name: size for name, size in sizes.items() if name in kernel.arg_names} | options(WARPS)
