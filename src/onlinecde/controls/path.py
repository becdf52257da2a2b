"""What every control path can do, and the polynomial paths (linear, Hermite, natural cubic)."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onlinecde.series import SeriesError
from onlinecde.series.checks import as_real


class Measurability(enum.Enum):
    """What a path (or a model) at time t may depend on, as the paper defines it."""

    CONTINUOUS = "continuous"
    """Only on what was observed up to t, at every t: usable live at any moment."""
    DISCRETE = "discrete"
    """Only on what was observed up to t, at the observation times t_i: usable at the rows."""
    OFFLINE = "offline"
    """On the future: not usable live."""


@dataclass(frozen=True)
class Piece:
    """One piece of a path for all streams, u in [0, 1] along it.

    `X_j(u) = sum_k coefficients[:, k, j] u^k` for the channels that move; the others stand still.
    A stream whose path has ended has zero coefficients beyond the constant one.
    """

    coefficients: Tensor
    """(stream, degree + 1, moved channel)"""
    channels: slice
    """Which of the path's channels the last axis stands for."""

    def value(self, u: float | Tensor) -> Tensor:
        """X(u) of the moved channels, (stream, moved channel); u a number or (stream, 1)."""
        total = self.coefficients[:, -1]
        for k in range(self.coefficients.shape[1] - 2, -1, -1):
            total = total * u + self.coefficients[:, k]
        return total

    def derivative(self, u: float | Tensor) -> Tensor:
        """dX/du of the moved channels, (stream, moved channel); one-sided inside the piece."""
        degree = self.coefficients.shape[1] - 1
        total = degree * self.coefficients[:, -1]
        for k in range(degree - 1, 0, -1):
            total = total * u + k * self.coefficients[:, k]
        return total


class Path(ABC):
    """A control path for each stream, on the parameter s in [0, number of pieces].

    Channels come in the order time, values, counts. A stream with fewer rows than the batch
    stands still after its last one.
    """

    scheme: str
    rows: Tensor
    """(stream, row, channel): X at the rows."""
    times: Tensor
    """(stream, row) float64: the observed times, as given."""
    lengths: Tensor
    """(stream,) int64: how many rows are real."""
    streams: tuple[Hashable, ...]
    """The streams' names, for messages."""
    measurability: Measurability
    """What the path may depend on, for the data at hand."""
    pieces_per_row: int
    """How many pieces lead from one row to the next."""

    @property
    @abstractmethod
    def smooth(self) -> bool:
        """Whether dX/ds is continuous at the knots."""

    @property
    def channels(self) -> int:
        return self.rows.shape[2]

    @property
    def pieces(self) -> int:
        """The number of pieces of the longest stream."""
        return self.pieces_per_row * (self.rows.shape[1] - 1)

    @property
    def pieces_per_stream(self) -> Tensor:
        """(stream,) int64: where each stream's path ends."""
        return self.pieces_per_row * (self.lengths - 1)

    @property
    def knots(self) -> Tensor:
        """(knot,) float64: the parameters 0, 1, ..., pieces at which pieces meet."""
        return torch.arange(self.pieces + 1, dtype=torch.float64, device=self.rows.device)

    @abstractmethod
    def piece(self, index: int) -> Piece:
        """The polynomial on [index, index + 1] and the channels it moves."""

    @abstractmethod
    def _at(self, piece: Tensor, u: Tensor, derivative: bool) -> Tensor:
        """X or dX/du at u (stream, query, 1) on pieces (stream, query), all real."""

    def evaluate(self, s: float | Tensor) -> Tensor:
        """X(s): (stream, channel) for a number; (stream, query, channel) for (query,) or (stream, query)."""
        return self._query(s, derivative=False)

    def derivative(self, s: float | Tensor) -> Tensor:
        """dX/ds, the right slope at a knot, so zero from a stream's last row on; shapes as `evaluate`."""
        return self._query(s, derivative=True)

    def _query(self, s: float | Tensor, derivative: bool) -> Tensor:
        grid = self._parameters(s)
        ends = self.pieces_per_stream[:, None]
        piece = torch.minimum(grid.floor(), ends).to(torch.int64)
        ended = (piece >= ends)[:, :, None]
        u = (grid - piece)[:, :, None].to(self.rows.dtype)
        inside = torch.minimum(piece, (ends - 1).clamp(min=0))
        if self.pieces == 0:
            result = self.rows[:, :1].expand(-1, grid.shape[1], -1)
            result = torch.zeros_like(result) if derivative else result
        else:
            # An ended stream is read at u = 1 of its last piece, which is its last row.
            result = self._at(inside, torch.where(ended, 1.0, u).to(u), derivative)
            at_end = torch.zeros_like(result) if derivative else self._last_row()
            result = torch.where(ended, at_end, result)
        return result if torch.as_tensor(s).ndim else result[:, 0]

    def _parameters(self, s: float | Tensor) -> Tensor:
        grid = self._queries(s, "s")
        if not bool((grid >= 0).all()):
            raise SeriesError("s must be 0 or more: a path starts at its first row, s = 0.")
        return grid

    def _queries(self, numbers: Any, what: str) -> Tensor:
        """A number, (query,) or (stream, query) as (stream, query) float64."""
        wanted = torch.as_tensor(numbers, dtype=torch.float64, device=self.rows.device)
        streams = self.rows.shape[0]
        if wanted.ndim > 2 or (wanted.ndim == 2 and wanted.shape[0] != streams):
            raise SeriesError(
                f"{what} has shape {tuple(wanted.shape)} for {streams} streams: give a number, "
                "(query,) or (stream, query)."
            )
        return wanted.expand(streams, wanted.shape[-1] if wanted.ndim else 1)

    def _last_row(self) -> Tensor:
        index = (self.lengths - 1)[:, None, None].expand(-1, 1, self.channels)
        return self.rows.gather(1, index)

    def s_of_time(self, times: Any) -> Tensor:
        """The parameter s (stream, query) float64 at which the path stands at `times`.

        `times` is a number, (query,) or (stream, query). A row's time gives the knot at which the
        row has been taken in; between rows, s is as far along as the clock is; after the last
        row, the end. A time before a stream's first row is refused.
        """
        row, fraction = self._row_at(self._queries(times, "times"))
        return self.pieces_per_row * row + fraction

    def _row_at(self, clock: Tensor) -> tuple[Tensor, Tensor]:
        """The last row at or before `clock` (stream, query), and how far on the next one is."""
        row = rows_at(self.times, self.lengths, clock, self.streams)
        start = self.times.gather(1, row)
        following = torch.minimum(row + 1, self.lengths[:, None] - 1)
        gap = self.times.gather(1, following) - start
        fraction = torch.where(
            gap > 0, (clock - start) / torch.where(gap > 0, gap, 1.0), 0.0
        ).clamp(0, 1)
        return row, fraction

    def time_of_s(self, s: float | Tensor) -> Tensor:
        """The clock (stream, query) at s; s as for `evaluate`. Inverts `s_of_time`."""
        grid = self._parameters(s)
        row = (grid / self.pieces_per_row).floor()
        row = torch.minimum(row, self.lengths[:, None] - 1).to(torch.int64)
        # The first piece of a row is the one along which time passes.
        fraction = (grid - self.pieces_per_row * row).clamp(0, 1)
        following = torch.minimum(row + 1, self.lengths[:, None] - 1)
        # lerp is exact at both ends, so that a value leg has its row's own time.
        return torch.lerp(self.times.gather(1, row), self.times.gather(1, following), fraction)


def query_times(at: Any, streams: int, device: torch.device) -> Tensor:
    """Query times (query,) or (stream, query) as (stream, query) float64."""
    clock = as_real(at, "at", torch.float64).to(device=device, dtype=torch.float64)
    if clock.ndim not in (1, 2) or (clock.ndim == 2 and clock.shape[0] != streams):
        raise SeriesError(
            f"at has shape {tuple(clock.shape)} for {streams} streams: give (query,) or "
            "(stream, query)."
        )
    return clock.expand(streams, clock.shape[-1])


def rows_at(times: Tensor, lengths: Tensor, clock: Tensor, streams: Sequence[Hashable]) -> Tensor:
    """The last real row (stream, query) at or before each time of `clock` (stream, query)."""
    row = torch.searchsorted(times.contiguous(), clock.contiguous(), right=True) - 1
    if (bad := ~(row >= 0) | clock.isnan()).any():
        stream, query = (int(i) for i in bad.nonzero()[0])
        raise SeriesError(
            f"stream {streams[stream]!r} is asked for at time {float(clock[stream, query])}, but its "
            f"first row is at {float(times[stream, 0])}: nothing is known before that."
        )
    return torch.minimum(row, lengths[:, None] - 1)


@dataclass(frozen=True, eq=False)
class PolynomialPath(Path):
    """Pieces of degree 1 (no slopes) or 3 (with slopes) from row to row, on s_i = i.

    A cubic is kept as its values and slopes at both ends, which is all a C1 path needs.
    """

    scheme: str
    rows: Tensor
    times: Tensor
    lengths: Tensor
    streams: tuple[Hashable, ...]
    measurability: Measurability
    slopes: Tensor | None = None
    """(stream, row, channel): dX/ds at the rows; None for straight pieces."""

    pieces_per_row = 1

    @property
    def smooth(self) -> bool:
        return self.slopes is not None

    def piece(self, index: int) -> Piece:
        start, stop = self.rows[:, index], self.rows[:, index + 1]
        if self.slopes is None:
            return Piece(torch.stack([start, stop - start], 1), slice(0, self.channels))
        real = (index + 1 < self.lengths)[:, None]
        left = torch.where(real, self.slopes[:, index], 0.0)
        right = torch.where(real, self.slopes[:, index + 1], 0.0)
        rise = stop - start
        return Piece(
            torch.stack([start, left, 3 * rise - 2 * left - right, left + right - 2 * rise], 1),
            slice(0, self.channels),
        )

    def coefficients(self) -> Tensor:
        """The polynomials of all pieces, (stream, piece, degree + 1, channel)."""
        start, rise = self.rows[:, :-1], self.rows.diff(dim=1)
        if self.slopes is None:
            return torch.stack([start, rise], 2)
        real = torch.arange(1, self.rows.shape[1], device=self.rows.device) < self.lengths[:, None]
        left = torch.where(real[:, :, None], self.slopes[:, :-1], 0.0)
        right = torch.where(real[:, :, None], self.slopes[:, 1:], 0.0)
        return torch.stack([start, left, 3 * rise - 2 * left - right, left + right - 2 * rise], 2)

    def _at(self, piece: Tensor, u: Tensor, derivative: bool) -> Tensor:
        index = piece[:, :, None].expand(-1, -1, self.channels)
        start, stop = self.rows.gather(1, index), self.rows.gather(1, index + 1)
        rise = stop - start
        if self.slopes is None:
            return rise if derivative else start + u * rise
        left, right = self.slopes.gather(1, index), self.slopes.gather(1, index + 1)
        second, third = 3 * rise - 2 * left - right, left + right - 2 * rise
        if derivative:
            return left + u * (2 * second + 3 * u * third)
        return start + u * (left + u * (second + u * third))
