"""What the kernels are given: a packed field, a tableau and a path."""

from typing import NamedTuple

import numpy as np


class Field(NamedTuple):
    """What compiled code sees of a field: flat arrays and sizes. wide = padded width, tall = padded hidden."""

    weights: np.ndarray
    transposed: np.ndarray
    hidden: int
    width: int
    depth: int
    channels: int
    tall: int
    wide: int
    activation: int
    final: int
    column_start: int
    column_start_transposed: int
    column_start_gradient: int
    """Where the first column's block begins in `weights`, in `transposed` and in a flat gradient."""
    product: int
    outer: int
    step: int
    step_back: int
    """Addresses of compiled code for the dtype, of this process only; where no gradient is wanted 0 for the backward
    pass."""


class Tableau(NamedTuple):
    """Butcher's coefficients: a (stage, stage), b (stage,), c (stage,), in the dtype of the solve."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


class PathArrays(NamedTuple):
    """The segments of a path for a batch of streams, longest stream first. Made by `rectilinear` or `dense`.

    Empty arrays stand for what was not given, so that compiled code sees one type.
    """

    pieces: np.ndarray
    """(stream,) int64: how many pieces each stream has, not increasing."""
    rectilinear: bool
    """Piece 2i is a time leg (channel 0 alone), piece 2i + 1 a value leg (the other channels)."""
    dt: np.ndarray
    """(row, stream): the increment of time on the time leg of each row; rectilinear only."""
    time_steps: np.ndarray
    """(row, stream) int32: steps on each time leg, 0 to leave it out; empty: one each."""
    slopes: np.ndarray
    """(degree + 1, row, channel - 1, stream) on value legs, or (degree + 1, piece, channel, stream)."""
    moved: np.ndarray
    """uint8, shaped as one slope: 1 where a channel moves."""
    drive: np.ndarray
    """Input added in the first layer: (1, knot, stream, width) at knots, interpolated linearly, or
    (degree + 1, piece, stream, width), a polynomial in u; empty: none."""

    @property
    def dtype(self) -> np.dtype:
        return self.slopes.dtype


# Examples of the types that each has for a dtype: functions that are compiled once are compiled for them.


def field_like(dtype) -> Field:
    """A field."""
    flat = np.empty(0, dtype)
    return Field(flat, flat, *(0 for _ in Field._fields[2:]))


def tableau_like(dtype) -> Tableau:
    """A tableau."""
    return Tableau(np.empty((0, 0), dtype), np.empty(0, dtype), np.empty(0, dtype))


def drive_like(dtype) -> np.ndarray:
    """What a field sees of the path, or its gradient."""
    return np.empty((0, 0, 0, 0), dtype)


def path_like(dtype) -> PathArrays:
    """A path."""
    flat, four = np.empty((0, 0), dtype), np.empty((0, 0, 0, 0), dtype)
    steps, moved = np.empty((0, 0), np.int32), np.empty((0, 0, 0), np.uint8)
    return PathArrays(np.empty(0, np.int64), True, flat, steps, four, moved, four)
