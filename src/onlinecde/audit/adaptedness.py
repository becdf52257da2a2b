"""Measurability of a path, found by editing the future and looking for change in the past."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onlinecde.audit.editing import cuts, edited_futures
from onlinecde.audit.paths import ControlPath, PathBuilder, build_path, knots_per_stream
from onlinecde.controls import Measurability
from onlinecde.series import SeriesBatch

_ALONG_A_GAP = (0.0, 0.3, 0.7)


@dataclass(frozen=True)
class PathMeasurability:
    """What a path was seen to depend on, and the edit that showed it."""

    measurability: Measurability
    reason: str
    edits: int
    """How many edited batches were compared with the original."""


@dataclass(frozen=True)
class _Change:
    """The largest change one edit made to the past."""

    size: float
    stream: int
    time: float


def path_measurability(
    build: PathBuilder,
    batch: SeriesBatch,
    *,
    seed: int = 0,
    cuts_per_stream: int = 16,
    tolerance: float = 0.0,
) -> PathMeasurability:
    """Find by experiment what the path at time t depends on, for series like those of `batch`.

    What comes after a time t is changed, removed, moved, deleted and added to, for many t. A path
    - that is then the same, bit for bit, at every time up to t is CONTINUOUS;
    - that is the same up to the last row at or before t, but not from there to t, is DISCRETE;
    - any other is OFFLINE.

    Between rows the time channel alone may differ by rounding: where on a piece the clock stands
    is found by a division. A `tolerance` above 0 lets X and dX/ds move by that much anywhere.
    An experiment can miss a dependence; it cannot make one up.
    """
    if int(batch.rows.max()) < 2:
        raise ValueError("every stream has one row: give series with a row that can be edited.")
    generator = np.random.default_rng(seed)
    path = build_path(build, batch)
    size = path.evaluate(knots_per_stream(path, len(batch))).detach().abs().amax((1, 2))
    # What a few operations on numbers of that size may lose, (stream,).
    rounding = 64 * torch.finfo(size.dtype).eps * size
    edits, between = 0, None
    for cut in cuts(batch, cuts_per_stream, generator):
        # Padding repeats the last time, so it does not disturb the last row at or before the cut.
        now = torch.where(batch.times <= cut[:, None], batch.times, -torch.inf).amax(1)
        for name, other in edited_futures(batch, cut, generator):
            edits += 1
            edited = build_path(build, other)
            at_rows = _largest(*_moved_up_to_rows(path, edited, batch, now), tolerance)
            if at_rows is not None:
                reason = _told(batch, name, cut, at_rows) + ", before a row already seen."
                if at_rows.size <= float(rounding[at_rows.stream]):
                    reason += f" That is rounding: allow it with tolerance={2 * at_rows.size:.0e}."
                return PathMeasurability(Measurability.OFFLINE, reason, edits)
            if between is None:
                ends = torch.minimum(batch.times[:, -1], other.times[:, -1])
                until = cut.minimum(ends).maximum(now)
                since = _largest(*_moved_since_row(path, edited, now, until, rounding), tolerance)
                if since is not None:
                    between = _told(batch, name, cut, since)
    if between is not None:
        reason = f"{between}; up to the rows already seen {edits} edits moved nothing."
        return PathMeasurability(Measurability.DISCRETE, reason, edits)
    return PathMeasurability(
        Measurability.CONTINUOUS,
        f"{edits} edits of the future left the path at every earlier time as it was.",
        edits,
    )


def _told(batch: SeriesBatch, name: str, cut: Tensor, change: _Change) -> str:
    return (
        f"{name} after time {float(cut[change.stream]):.4g} (stream "
        f"{batch.streams[change.stream]!r}) moved the path at time {change.time:.4g} by "
        f"{change.size:.2g}"
    )


def _moved_up_to_rows(
    path: ControlPath, edited: ControlPath, batch: SeriesBatch, now: Tensor
) -> tuple[Tensor, Tensor]:
    """Change of X and dX/ds on the pieces up to the rows at `now` (stream,), and where it is."""
    clock = _clock(batch.times[:, :-1], batch.times[:, 1:]).minimum(now[:, None])
    clock = torch.cat([clock, now[:, None]], 1)
    s, t = path.s_of_time(clock), edited.s_of_time(clock)
    # Midpoints reach what the clock does not: pieces on which time stands still.
    middle = (s[:, 1:] + s[:, :-1]) / 2, (t[:, 1:] + t[:, :-1]) / 2
    before = clock[:, 1:] > clock[:, :-1]
    inside = [
        (path.evaluate(middle[0]) - edited.evaluate(middle[1])).abs().amax(2),
        (path.derivative(middle[0]) - edited.derivative(middle[1])).abs().amax(2),
    ]
    moved = [
        (path.evaluate(s) - edited.evaluate(t)).abs().amax(2),
        *(torch.where(before, change, 0.0) for change in inside),
    ]
    return torch.cat(moved, 1), torch.cat([clock, clock[:, :-1], clock[:, :-1]], 1)


def _moved_since_row(
    path: ControlPath, edited: ControlPath, now: Tensor, until: Tensor, rounding: Tensor
) -> tuple[Tensor, Tensor]:
    """Change of X from rows at `now` to `until` (stream,), and where it is; time to rounding."""
    clock = torch.cat([_clock(now[:, None], until[:, None]), until[:, None]], 1)
    moved = (path.evaluate(path.s_of_time(clock)) - edited.evaluate(edited.s_of_time(clock))).abs()
    time = torch.where(moved[:, :, 0] <= rounding[:, None], 0.0, moved[:, :, 0])
    return torch.maximum(time, moved[:, :, 1:].amax(2)), clock


def _clock(start: Tensor, stop: Tensor) -> Tensor:
    """Times (stream, 3 * gap) from each start on, before each stop (stream, gap)."""
    along = torch.tensor(_ALONG_A_GAP, dtype=start.dtype, device=start.device)
    return (start[:, :, None] + along * (stop - start)[:, :, None]).flatten(1)


def _largest(moved: Tensor, clock: Tensor, tolerance: float) -> _Change | None:
    """The largest entry of `moved` (stream, query) above the tolerance, if any; NaN is above."""
    moved = moved.detach().nan_to_num(nan=torch.inf)
    place = int(moved.argmax())
    stream, query = divmod(place, moved.shape[1])
    size = float(moved[stream, query])
    return _Change(size, stream, float(clock[stream, query])) if size > tolerance else None
