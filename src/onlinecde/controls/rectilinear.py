"""Rectilinear control: time and values move in turn, so the path never looks ahead."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from onlinecde.controls.encoding import Encoding
from onlinecde.controls.fill import forward_fill
from onlinecde.controls.path import Measurability, Path, Piece
from onlinecde.controls.rows import encode, join_channels
from onlinecde.series import SeriesBatch


@dataclass(frozen=True, eq=False)
class RectilinearPath(Path):
    """A chain of legs: `X(2i) = (t_i, x_i, c_i)`, `X(2i+1) = (t_{i+1}, x_i, c_i)`.

    Piece 2i is a time leg (only channel 0 moves), piece 2i+1 a value leg (time stands still, and
    only what was observed at t_{i+1} moves).
    """

    rows: Tensor
    times: Tensor
    lengths: Tensor
    streams: tuple[Hashable, ...]
    time: Tensor
    """(stream, row) float64: channel 0 before rounding to the path's dtype."""
    observed: Tensor
    """(stream, row, value channel) bool: what was observed, and so moves on the leg to its row."""
    counts: bool
    """Whether each value channel has a count that moves with it."""
    encoding: Encoding | None
    """How the clock became the time channel; None where it is the clock itself."""

    scheme = "rectilinear"
    measurability = Measurability.CONTINUOUS
    pieces_per_row = 2

    @property
    def smooth(self) -> bool:
        return False

    @property
    def time_legs(self) -> Tensor:
        """(stream, row - 1): how far the time channel moves on each time leg."""
        return self.time.diff(dim=1).to(self.rows.dtype)

    def scale_time(self, times: Tensor) -> Tensor:
        """The time channel, float64, at times of the clock."""
        return times if self.encoding is None else self.encoding.scale_time(times)

    def piece(self, index: int) -> Piece:
        row = index // 2
        if index % 2 == 0:
            rise = (self.time[:, row + 1] - self.time[:, row]).to(self.rows.dtype)
            start = self.rows[:, row, :1]
            return Piece(torch.stack([start, rise[:, None]], 1), slice(0, 1))
        start, stop = self.rows[:, row, 1:], self.rows[:, row + 1, 1:]
        return Piece(torch.stack([start, stop - start], 1), slice(1, self.channels))

    def _at(self, piece: Tensor, u: Tensor, derivative: bool) -> Tensor:
        row = (piece // 2)[:, :, None].expand(-1, -1, self.channels)
        start, stop = self.rows.gather(1, row), self.rows.gather(1, row + 1)
        # Time moves by the difference before rounding, as on `piece`: float32 has no seconds left
        # in a Unix time.
        clock = self.time.gather(1, row[:, :, 0] + 1) - self.time.gather(1, row[:, :, 0])
        rise = torch.cat([clock[:, :, None].to(stop), (stop - start)[:, :, 1:]], 2)
        time_leg = (piece % 2 == 0)[:, :, None]
        is_time = (torch.arange(self.channels, device=u.device) == 0)[None, None, :]
        if derivative:
            return torch.where(time_leg == is_time, rise, 0.0)
        # On a value leg the time channel has already arrived.
        moving = torch.where(time_leg == is_time, u, 0.0)
        return torch.where(~time_leg & is_time, stop, start + moving * rise)


def rectilinear(
    batch: SeriesBatch, counts: bool = False, *, encoding: Encoding | None = None
) -> RectilinearPath:
    """The continuously online control: at every moment it depends on the past alone.

    Values are carried forward until they are observed anew.

    Args:
        batch: the series.
        counts: whether each channel has a channel of counts: how often it was observed so far.
        encoding: scales the series first, and says whether there are counts.

    Returns:
        The path, with channels time, values and counts.

    Raises:
        SeriesError: the encoding is made for other channels, or has no counts where `counts` asks for them.

    >>> batch = SeriesBatch.from_arrays([[0.0, 2.0]], [[[5.0], [7.0]]])
    >>> rectilinear(batch).evaluate([0.0, 1.0, 2.0])[0].tolist()
    [[0.0, 5.0], [2.0, 5.0], [2.0, 7.0]]
    """
    series = encode(batch, counts, encoding)
    values = forward_fill(series.values)
    return RectilinearPath(
        rows=join_channels(series, values),
        times=series.times,
        lengths=series.lengths,
        streams=series.streams,
        time=series.time,
        observed=~series.values.isnan(),
        counts=series.counts is not None,
        encoding=encoding,
    )
