"""`PathSegments`: the one form of a path below `controls/`, and every way to build it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from onlinecde.controls import Path, PolynomialPath, RectilinearPath
from onlinecde.controls.path import Piece
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import VectorField

MOST_STEPS = 1_000_000
"""Steps on one time leg; more are taken for times in other units than `max_step`."""
BY_SEGMENT = ("time", "slopes", "observed")
"""What of `PathSegments` is (leg, stream, ...), where it is there at all."""


@runtime_checkable
class PiecewisePath(Protocol):
    """All that `solve` asks of a path of your own; `pieces_per_stream`, `streams` and `evaluate` are used if there.

    `piece(i)` gives polynomial coefficients in u from 0 to 1 and the channels that move, as
    `onlinecde.controls.path.Piece` does.
    """

    @property
    def channels(self) -> int: ...
    @property
    def pieces(self) -> int: ...
    def piece(self, index: int) -> Piece: ...


@dataclass(frozen=True, eq=False)
class PathSegments:
    """The segments of all streams, u in [0, 1] on each.

    A rectilinear path has time legs, on which time alone moves, in the even places, and value legs,
    on which values and counts move, in the odd ones. On any other path all channels move on
    every segment.
    """

    rectilinear: bool
    channels: int
    order: Tensor | None
    """(stream,): which stream of the path stands at each place, longest first; None: as in the path."""
    lengths: Tensor
    """(stream,): segments of each stream, falling."""
    count: int
    """Segments of the longest stream, or for which there is room."""
    active: tuple[int, ...] | None
    """How many streams still move on each segment; None where only the device knows, see `room_for`."""
    time: Tensor | None
    """(leg, stream): increments of time legs; None unless rectilinear."""
    slopes: Tensor
    """(leg, stream, degree, channel): coefficients of dX/du, those of value legs without the time channel."""
    observed: Tensor | None
    """(leg, stream, value channel) bool, rectilinear: what moves on value legs."""
    rows: Tensor | None
    """(stream, row, channel): X at the rows, where segments begin and end; None where no field sees X."""
    counts: bool = False
    per_row: int = 1
    """Segments from one row to the next."""
    steps: int = 1
    """Steps on every segment but time legs with their own number."""
    max_step: float | None = None
    """The longest step on a time leg, in the units of the clock; None where `steps` holds there too."""
    time_steps: Tensor | None = None
    """(leg, stream) int64 steps on time legs, or None where `steps` holds for time legs too."""
    drive: Tensor | None = None
    """What the field sees of X, see `shown_to`: (knot, stream, drive) for straight segments,
    (segment, stream, degree + 1, drive) for others; None where it sees nothing."""

    @property
    def streams(self) -> int:
        return self.lengths.shape[0]

    @property
    def cubic(self) -> bool:
        """Whether segments are curved: cubic, or of a higher degree."""
        return self.slopes.shape[2] > 1

    @property
    def values(self) -> int:
        """Value channels, without time and counts."""
        return (self.channels - 1) // (2 if self.counts else 1)

    def is_time_leg(self, segment: int | Tensor) -> bool | Tensor:
        """Whether time alone moves on a segment, or on each of several."""
        return self.rectilinear and segment % 2 == 0

    def leg(self, segment: int) -> int:
        """The place of a segment in `time` or `slopes`."""
        return segment // 2 if self.rectilinear else segment

    def moved(self, segment: int) -> slice:
        """The channels that may move on a segment."""
        if not self.rectilinear:
            return slice(0, self.channels)
        return slice(0, 1) if self.is_time_leg(segment) else slice(1, self.channels)

    def active_on(self, segment: int) -> int:
        """How many streams still move on a segment; they come first."""
        assert self.active is not None
        return self.active[segment]

    def increments(self, segment: int) -> Tensor:
        """The moving streams' entries of `time`, (stream, 1, 1), or `slopes`, (stream, degree, channel)."""
        n, leg = self.active_on(segment), self.leg(segment)
        if self.is_time_leg(segment):
            assert self.time is not None
            return self.time[leg, :n, None, None]
        return self.slopes[leg, :n]

    def seen(self, segment: int) -> Tensor | None:
        """What `drive_at` needs for one segment: (2 or degree + 1, moving stream, drive)."""
        if self.drive is None:
            return None
        n = self.active_on(segment)
        if not self.cubic:
            return self.drive[segment : segment + 2, :n]
        return self.drive[segment, :n].transpose(0, 1)

    def shown_to(self, field: VectorField) -> PathSegments:
        """The segments with what a field sees of X along them."""
        if not field.sees_path or self.drive is not None:
            return self
        assert self.rows is not None
        if self.cubic:
            if getattr(field, "bounded_counts", 0):
                raise ValueError(
                    "a field with bounded counts sees no linear image of X, and along curved segments it would "
                    "have to: take a rectilinear or linear path."
                )
            start = self.rows[:, : self.count].transpose(0, 1)[:, :, None]
            power = torch.arange(
                1, self.slopes.shape[2] + 1, dtype=self.slopes.dtype, device=self.slopes.device
            )[:, None]
            drive = field.drive(torch.cat([start, self.slopes / power], 2))
        else:
            knots = _rectilinear_knots(self.rows) if self.rectilinear else self.rows
            drive = field.drive(knots[:, : self.count + 1]).transpose(0, 1)
        return replace(self, drive=drive)

    def to(self, dtype: torch.dtype) -> PathSegments:
        """The segments in another dtype."""
        time, drive = (None if x is None else x.to(dtype) for x in (self.time, self.drive))
        return replace(self, time=time, slopes=self.slopes.to(dtype), drive=drive)

    def room_for(self, streams: int, rows: int) -> PathSegments:
        """Segments of the same kind with room for `streams` and `rows`, which can be filled repeatedly.

        Nothing looks at what they hold: a solve along them can be captured by a CUDA graph.
        """

        def room(like: Tensor | None) -> Tensor | None:
            return None if like is None else like.new_zeros(rows - 1, streams, *like.shape[2:])

        assert self.rows is not None
        return replace(
            self,
            order=None,
            lengths=self.lengths.new_zeros(streams),
            count=self.per_row * (rows - 1),
            active=None,
            rows=self.rows.new_zeros(streams, rows, self.channels),
            **{name: room(getattr(self, name)) for name in BY_SEGMENT},
        )

    def fill(self, segments: PathSegments) -> None:
        """Copy segments to where there is room for more of them and more streams: nothing moves beyond.

        There stands 0 as well, and no slope of an earlier batch: gradients are scaled by the largest.
        Streams that are not there keep finite numbers of an earlier batch in `rows`.
        """
        assert self.rows is not None
        assert segments.rows is not None
        copy_rows(self.rows, segments.rows)
        self.lengths.zero_()
        self.lengths[: segments.streams] = segments.lengths
        for name in BY_SEGMENT:
            room, own = getattr(self, name), getattr(segments, name)
            if own is not None:
                room.zero_()
                room[: len(own), : segments.streams] = own


def slope_at(increments: Tensor, u: float | Tensor) -> Tensor:
    """dX/du (stream, channel) at u of one segment, given its coefficients (stream, degree, channel)."""
    total = increments[:, -1]
    for power in range(increments.shape[1] - 2, -1, -1):
        total = total * u + increments[:, power]
    return total


def drive_at(drive: Tensor | None, u: float | Tensor) -> Tensor | None:
    """Drive at u: on the line between two knots, or of a polynomial."""
    if drive is None:
        return None
    if drive.shape[0] == 2:
        return drive[0] + u * (drive[1] - drive[0])
    total = drive[-1]
    for power in range(drive.shape[0] - 2, -1, -1):
        total = drive[power] + u * total
    return total


def copy_rows(to: Tensor, rows: Tensor) -> None:
    """Copy (stream, row, ...) to where there is room for more of both; the last row stands on."""
    streams, last = rows.shape[:2]
    to[:streams, :last] = rows
    to[:streams, last:] = rows[:, -1:]


def segments_of(path: PiecewisePath, steps: int = 1, max_step: float | None = None) -> PathSegments:
    """The segments of a whole path, up to the end of its longest stream, longest streams first.

    Args:
        path: of one of the schemes of `onlinecde.controls`, or of your own.
        steps: on every segment.
        max_step: the longest step on a time leg of a rectilinear path, in place of `steps` there.

    Raises:
        ValueError: `max_step` for a path that is not rectilinear.
    """
    if max_step is not None and not isinstance(path, RectilinearPath):
        scheme = getattr(path, "scheme", type(path).__name__)
        raise ValueError(
            f"max_step is for the time legs of a rectilinear path, not for {scheme}: give steps."
        )
    if not isinstance(path, (RectilinearPath, PolynomialPath)):
        return _own_segments(path, steps)
    cut: RectilinearPath | PolynomialPath = _without_padding(path)
    ends = cut.pieces_per_stream
    order = torch.argsort(ends, descending=True, stable=True)
    lengths = ends[order]
    rows = cut.rows[order] if not bool((ends == cut.pieces).all()) else cut.rows
    time = observed = time_steps = None
    counts = False
    if isinstance(cut, RectilinearPath):
        time = cut.time_legs[order].T
        slopes = rows[:, :, 1:].diff(dim=1).transpose(0, 1)[:, :, None]
        observed = cut.observed[order, 1:].transpose(0, 1)
        counts = cut.counts
        if max_step is not None:
            time_steps = steps_for(cut.times.diff(dim=1), max_step, cut.streams)[order].T
    elif cut.slopes is None:
        slopes = rows.diff(dim=1).transpose(0, 1)[:, :, None]
    else:
        coefficients = cut.coefficients()[order].transpose(0, 1)
        power = torch.arange(1.0, 4.0, dtype=rows.dtype, device=rows.device)[:, None]
        slopes = coefficients[:, :, 1:] * power
    return PathSegments(
        rectilinear=time is not None,
        channels=cut.channels,
        order=order,
        lengths=lengths,
        count=cut.pieces,
        active=_active(lengths, cut.pieces),
        time=time,
        slopes=slopes,
        observed=observed,
        rows=rows,
        counts=counts,
        per_row=cut.pieces_per_row,
        steps=steps,
        max_step=max_step,
        time_steps=time_steps,
    )


def _own_segments(path: PiecewisePath, steps: int) -> PathSegments:
    """The segments of a path that is only a `PiecewisePath`: cubic, or of a higher degree."""
    pieces = [path.piece(index) for index in range(path.pieces)]
    if not pieces:
        raise ValueError(f"the {type(path).__name__} has no piece: give a path of one or more.")
    first = pieces[0].coefficients
    streams, channels = first.shape[0], path.channels
    degree = max(3, *(piece.coefficients.shape[1] - 1 for piece in pieces))
    slopes = first.new_zeros(len(pieces), streams, degree, channels)
    x = path.evaluate(0.0) if hasattr(path, "evaluate") else first.new_zeros(streams, channels)  # pyright: ignore[reportAttributeAccessIssue]
    rows = []
    for number, piece in enumerate(pieces):
        own, where = piece.coefficients, piece.channels
        power = torch.arange(1.0, own.shape[1]).to(own)[:, None]
        slopes[number, :, : own.shape[1] - 1, where] = own[:, 1:] * power
        start, end = x.clone(), x.clone()
        start[:, where], end[:, where] = own[:, 0], piece.value(1.0)
        rows.append(start)
        x = end
    lengths = getattr(path, "pieces_per_stream", None)
    if lengths is None:
        lengths = torch.full((streams,), len(pieces), device=first.device)
    order = torch.argsort(lengths, descending=True, stable=True)
    per_row = getattr(path, "pieces_per_row", 1)
    return PathSegments(
        rectilinear=False,
        channels=channels,
        order=order,
        lengths=lengths[order],
        count=len(pieces),
        active=_active(lengths, len(pieces)),
        time=None,
        slopes=slopes[:, order],
        observed=None,
        rows=torch.stack([*rows, x], 1)[order],
        per_row=per_row if len(pieces) % per_row == 0 else 1,
        steps=steps,
    )


def row_segments(
    old: Tensor, new: Tensor, time: Tensor, observed: Tensor, *, counts: bool, **steps: Any
) -> PathSegments:
    """The time leg and the value leg that lead from one row to the next.

    Args:
        old: X at the first row, (stream, channel).
        new: X at the second.
        time: how far the time channel moves, (stream,).
        observed: which values move, (stream, value channel) bool.
        counts: whether each value has a count that moves with it.
        **steps: `steps`, `max_step` and `time_steps` as in `PathSegments`.
    """
    return PathSegments(
        rectilinear=True,
        channels=old.shape[1],
        time=time[None],
        slopes=(new - old)[None, :, None, 1:],
        observed=observed[None],
        rows=torch.stack([old, new], 1),
        counts=counts,
        per_row=2,
        **_alike(time, 2),
        **steps,
    )


def time_segment(
    time: Tensor, channels: int, old: Tensor | None = None, new: Tensor | None = None, **steps: Any
) -> PathSegments:
    """A time leg alone, along which time (stream,) moves; X at its ends where a field sees it."""
    return PathSegments(
        rectilinear=True,
        channels=channels,
        time=time[None],
        slopes=time.new_zeros(1, 1, 1, channels - 1).expand(1, time.shape[0], -1, -1),
        observed=None,
        rows=None if old is None or new is None else torch.stack([old, new], 1),
        per_row=2,
        **_alike(time, 1),
        **steps,
    )


def one_segment(
    old: Tensor | None, new: Tensor | None, slopes: Tensor, **steps: Any
) -> PathSegments:
    """One segment on which all channels move, from X = old to new (stream, channel) where a field sees it.

    `slopes` (stream, degree, channel): coefficients of dX/du.
    """
    return PathSegments(
        rectilinear=False,
        channels=slopes.shape[2],
        time=None,
        slopes=slopes[None],
        observed=None,
        rows=None if old is None or new is None else torch.stack([old, new], 1),
        **_alike(slopes, 1),
        **steps,
    )


def segments_from(
    slopes: Tensor, lengths: Tensor, order: Tensor | None = None, steps: int = 1
) -> PathSegments:
    """Segments by their slopes alone, (segment, stream, degree, channel), for a field that does not see X.

    `lengths` (stream,), falling: how many segments each stream has.
    """
    return PathSegments(
        rectilinear=False,
        channels=slopes.shape[3],
        order=order,
        lengths=lengths,
        count=slopes.shape[0],
        active=_active(lengths, slopes.shape[0]),
        time=None,
        slopes=slopes,
        observed=None,
        rows=None,
        steps=steps,
    )


def query_segments(
    path: PiecewisePath, segments: PathSegments, clock: Tensor, row: Tensor, sees_path: bool
) -> tuple[PathSegments, Tensor]:
    """One segment for each (stream, query) in turn, up to the query time, and the knot (stream, query) it begins at.

    Args:
        path: a whole path.
        segments: those of the path.
        clock: the query times, (stream, query) float64.
        row: the last row at or before each of them, (stream, query).
        sees_path: whether a field sees X along them.
    """
    if isinstance(path, RectilinearPath):
        return _query_time_legs(path, segments, clock, row, sees_path), row * path.pieces_per_row
    if isinstance(path, PolynomialPath):
        last = (path.lengths - 1)[:, None]
        gap = path.times.gather(1, torch.minimum(row + 1, last)) - path.times.gather(1, row)
        # How far on towards the next row the query is; from the last row on there is none.
        share = torch.where(
            gap > 0,
            (clock - path.times.gather(1, row)) / torch.where(gap > 0, gap, 1.0),
            0.0,
        )
        knot = row
    elif isinstance(path, Path):
        s = path.s_of_time(clock)
        last = path.pieces_per_stream[:, None]
        knot = torch.minimum(s.floor().to(torch.int64), last)
        share = torch.where(knot < last, s - knot, 0.0)
    else:
        raise ValueError(
            f"at needs a path that knows its times, and a {type(path).__name__} may not: subclass "
            "onlinecde.controls.Path."
        )
    return _parts_of(segments, knot, share, sees_path), knot


def _query_time_legs(
    path: RectilinearPath, segments: PathSegments, clock: Tensor, row: Tensor, sees_path: bool
) -> PathSegments:
    """Time goes on from the row before a query; values stand still."""
    now, old, new = path.scale_time(clock), None, None
    if sees_path:
        stream = torch.arange(row.shape[0], device=row.device)[:, None].expand_as(row)
        old = path.rows[stream, row].flatten(0, 1)
        new = torch.cat([now.flatten()[:, None].to(old), old[:, 1:]], 1)
    max_step, time_steps = segments.max_step, None
    if max_step is not None:
        gaps = clock - path.times.gather(1, row)
        time_steps = steps_for(gaps, max_step, path.streams).view(1, -1)
    return time_segment(
        (now - path.time.gather(1, row)).flatten().to(path.rows.dtype),
        path.channels,
        old,
        new,
        counts=segments.counts,
        steps=segments.steps,
        max_step=max_step,
        time_steps=time_steps,
    )


def _parts_of(segments: PathSegments, knot: Tensor, share: Tensor, sees_path: bool) -> PathSegments:
    """The first `share` (stream, query) of the segment that begins at each knot: u = share * v."""
    assert segments.rows is not None
    assert segments.order is not None
    place = torch.argsort(segments.order)[:, None].expand_as(knot)
    share = share.flatten()[:, None, None].to(segments.slopes.dtype)
    if segments.count == 0:
        x = segments.rows[place, 0].flatten(0, 1)
        return one_segment(x, x, torch.zeros_like(x)[:, None], steps=segments.steps)
    # At a stream's end the share is 0, of whichever segment.
    segment = knot.clamp(max=segments.count - 1)
    slopes = segments.slopes[segment, place].flatten(0, 1)
    power = torch.arange(1, slopes.shape[1] + 1, device=knot.device)[None, :, None]
    old = new = None
    if sees_path:
        old, new = (segments.rows[place, at].flatten(0, 1) for at in (segment, segment + 1))
        new = new if segments.cubic else old + share[:, 0] * (new - old)
    return one_segment(old, new, slopes * share**power, steps=segments.steps)


def _alike(by_stream: Tensor, count: int) -> dict[str, Any]:
    """The case that all streams have the same number of segments."""
    streams = by_stream.shape[0]  # an exported program would keep what len() says
    lengths = torch.full((streams,), count, dtype=torch.int64, device=by_stream.device)
    return {"order": None, "lengths": lengths, "count": count, "active": (streams,) * count}


def _active(lengths: Tensor, count: int) -> tuple[int, ...]:
    """The number of streams that have each segment."""
    segment = torch.arange(count, device=lengths.device)
    return tuple((lengths[None, :] > segment[:, None]).sum(1).tolist())


def _rectilinear_knots(rows: Tensor) -> Tensor:
    """X at the knots, (stream, knot, channel), of the rectilinear path through rows."""
    stay, come = rows[:, :-1, 1:], rows[:, 1:, :1]
    between = torch.cat([come, stay], 2)
    knots = torch.stack([rows[:, :-1], between], 2).flatten(1, 2)
    return torch.cat([knots, rows[:, -1:]], 1)


def _without_padding(path: Any) -> Any:
    """The path without rows that are padding in every stream."""
    longest = int(path.lengths.max())
    if longest == path.rows.shape[1]:
        return path
    by_row = ("rows", "times", "time", "observed", "slopes")
    tensors = {name: getattr(path, name, None) for name in by_row}
    cut = {name: tensor[:, :longest] for name, tensor in tensors.items() if tensor is not None}
    return replace(path, **cut)


def steps_for(gaps: Tensor, max_step: float, streams: Sequence[Hashable]) -> Tensor:
    """How many steps a time leg of each gap (stream, ...) takes; it depends on the gap alone.

    Raises:
        SolverError: more than `MOST_STEPS` on a leg; it names the stream.
    """
    steps = (gaps / max_step - 1e-9).ceil().clamp(min=1)
    if steps.numel() and bool(steps.amax() > MOST_STEPS):
        worst = int(steps.argmax())
        stream = worst // (steps.numel() // len(steps))
        raise SolverError(
            f"stream {streams[stream]!r}: a gap of {float(gaps.flatten()[worst]):g} in steps of at "
            f"most {max_step:g} takes {float(steps.flatten()[worst]):.3g} of them, more than "
            f"{MOST_STEPS:,}: give a larger max_step, in the units of the series' times."
        )
    return steps.to(torch.int64)


def leg_steps(gaps: np.ndarray, max_step: float) -> np.ndarray | None:
    """`steps_for` the gaps (stream,) of single observations, int32; None where they are too many."""
    try:
        return steps_for(torch.from_numpy(gaps), max_step, range(len(gaps))).int().numpy()
    except SolverError:
        return None
