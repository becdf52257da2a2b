"""How much memory a training step takes, and how many streams one launch may have, found before either is tried."""

from __future__ import annotations

from typing import Protocol

from onlinecde.kernels.gpu.launching import FieldShape, Shape, room_for, shape_for
from onlinecde.kernels.gpu.packing import Legs

PLANNED = 40
"""Bytes for every value of a stream's leg while its move list is made; two numbers of them stay."""
OFFSETS = 2**31 - 1
"""The largest offset that 32 bits hold."""


class _Sizes(FieldShape, Protocol):
    @property
    def depth(self) -> int: ...


def room_for_step(field: _Sizes, legs: Legs, stages: int) -> int:
    """Bytes that a solve and its backward sweep take beside the path, at the moment they take most."""
    shape = shape_for(field, legs)
    number, streams, degree, channels = legs.slopes.shape
    hidden, width = legs.row(field.hidden), legs.row(field.width)
    _, slots = legs.slots(stages)
    at_stages = slots * streams * (hidden + field.depth * width)
    knots = (legs.pieces + 1) * streams * field.hidden
    kept = at_stages + knots + number * legs.steps * stages * streams * width
    moves = 0 if shape.alone else number * streams * legs.values
    kept += 2 * moves
    every = shape.alone or legs.observed is None
    slopes = number * streams * channels
    if shape.dense or shape.dense_back or every:
        kept += slopes * (legs.steps * stages if degree > 1 else 1)
    there = room_for(legs, shape, 1, shape.dense.groups if shape.dense else 0) * hidden
    back = shape.dense_back.parts_of(hidden) if shape.dense_back else 0
    parts = room_for(legs, shape, shape.shares_back, back) * width
    steep = slopes * degree if shape.dense_back else 0
    kept += max(there, at_stages + knots + max(parts, steep))
    # The path is laid out anew where it was made in another order.
    return 4 * slopes * degree + max(PLANNED * moves, 4 * kept)


def streams_at_once(field: FieldShape, legs: Legs, shape: Shape) -> int:
    """Streams that one launch takes: those for which its thread blocks have tiles, and no offset is too large."""
    if shape.alone:
        return legs.streams
    longest = max(legs.row(field.hidden), legs.row(field.width))
    most = max(shape.shares, shape.shares_back) * legs.values * longest
    return min(
        shape.rows * shape.programs,
        max(1, OFFSETS // most),
        max(1, OFFSETS // max(1, legs.slopes.shape[0] * legs.values)),
    )
