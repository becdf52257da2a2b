"""A control path as the kernels read it: pieces, and what moves on each.

On a piece with parameter u in [0, 1], dX_j/du = slope_0 + slope_1 u + slope_2 u^2 ...
"""

from typing import NamedTuple

import numpy as np


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


def rectilinear(pieces, dt, dx, *, moved=None, time_steps=None, drive=None) -> PathArrays:
    """Time and values in turn.

    pieces: (stream,), not increasing. dt: (row, stream). dx: (row, channel - 1, stream), rows as in dt or one
    fewer. moved: (row, channel - 1, stream), by default dx != 0. time_steps: (row, stream), by default 1.
    drive: (knot, stream, width), knot p at the start of piece p.
    """
    dx = np.ascontiguousarray(dx)
    pieces = _lengths(pieces, dx.shape[2])
    dt = np.ascontiguousarray(dt, dx.dtype)
    longest = int(pieces.max(initial=0))
    if dt.shape[0] < (longest + 1) // 2 or dx.shape[0] < longest // 2 or dt.shape[1] != dx.shape[2]:
        raise ValueError(
            f"{longest} pieces need more rows than dt {dt.shape} and dx {dx.shape} hold"
        )
    steps = (
        np.empty((0, 0), np.int32)
        if time_steps is None
        else np.ascontiguousarray(time_steps, np.int32)
    )
    if time_steps is not None and steps.shape != dt.shape:
        raise ValueError(f"time_steps {steps.shape} must be shaped as dt {dt.shape}")
    drive = None if drive is None else np.asarray(drive)[None]
    return PathArrays(
        pieces,
        True,
        dt,
        steps,
        dx[None],
        _mask(moved, dx[None]),
        _drive(drive, dx.dtype, longest + 1),
    )


def dense(pieces, slopes, *, moved=None, drive=None) -> PathArrays:
    """Pieces on which any channel may move.

    pieces: (stream,), not increasing. slopes: (degree + 1, piece, channel, stream). moved: (piece, channel,
    stream), by default where a slope is not zero. drive: (knot, stream, width) interpolated linearly in u, or
    (degree + 1, piece, stream, width), a polynomial in u.
    """
    slopes = np.ascontiguousarray(slopes)
    pieces = _lengths(pieces, slopes.shape[3])
    longest = int(pieces.max(initial=0))
    if slopes.shape[1] < longest:
        raise ValueError(f"{longest} pieces need more than the {slopes.shape[1]} in slopes")
    knots = longest
    if drive is not None and np.ndim(drive) == 3:
        drive, knots = np.asarray(drive)[None], longest + 1
    elif drive is not None and len(drive) == 1:
        raise ValueError("a drive of degree 0 within pieces: give a second coefficient, of zeros")
    none = np.empty((0, 0), slopes.dtype), np.empty((0, 0), np.int32)
    drive = _drive(drive, slopes.dtype, knots)
    return PathArrays(pieces, False, *none, slopes, _mask(moved, slopes), drive)


def _lengths(pieces, streams):
    pieces = np.ascontiguousarray(pieces, np.int64)
    if pieces.shape != (streams,) or (np.diff(pieces) > 0).any():
        raise ValueError(
            f"pieces must be ({streams},), longest stream first; got shape {pieces.shape}"
        )
    return pieces


def _mask(moved, slopes):
    if moved is None:
        return np.ascontiguousarray((slopes != 0).any(0)).view(np.uint8)
    moved = np.ascontiguousarray(moved)
    if moved.shape != slopes.shape[1:]:
        raise ValueError(f"moved {moved.shape} must be shaped {slopes.shape[1:]}")
    return (moved if moved.dtype == np.bool_ else moved != 0).view(np.uint8)


def _drive(drive, dtype, least):
    if drive is None:
        return np.empty((0, 0, 0, 0), dtype)
    if drive.shape[1] < least:
        raise ValueError(f"drive {drive.shape} must hold {least} knots or pieces")
    return np.ascontiguousarray(drive, dtype)
