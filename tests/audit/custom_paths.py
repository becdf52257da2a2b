"""Path classes a user might write, each right but for one thing, for the audit to catch."""

from dataclasses import dataclass, replace

import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from onlinecde import controls
from onlinecde.series import SeriesBatch


class SplineInTime:
    """Natural cubic splines in time itself, by scipy: s is the clock, each stream has its knots."""

    def __init__(self, batch: SeriesBatch) -> None:
        self.batch = batch
        self.knots = batch.times
        self.splines = [
            CubicSpline(times, values, bc_type="natural")
            for times, values in zip(batch.times, batch.values, strict=True)
        ]

    def evaluate(self, s: Tensor) -> Tensor:
        values = [torch.from_numpy(f(q)) for f, q in zip(self.splines, s, strict=True)]
        return torch.cat([s[:, :, None], torch.stack(values)], 2)

    def derivative(self, s: Tensor) -> Tensor:
        slopes = [torch.from_numpy(f(q, 1)) for f, q in zip(self.splines, s, strict=True)]
        return torch.cat([torch.ones_like(s)[:, :, None], torch.stack(slopes)], 2)

    def s_of_time(self, times: Tensor) -> Tensor:
        return torch.minimum(times, self.batch.times[:, -1:])


@dataclass(frozen=True)
class Wrapped:
    """A path of ours with single members exchanged."""

    path: controls.Path

    @property
    def knots(self) -> Tensor:
        return self.path.knots

    def evaluate(self, s: Tensor) -> Tensor:
        return self.path.evaluate(s)

    def derivative(self, s: Tensor) -> Tensor:
        return self.path.derivative(s)

    def s_of_time(self, times: Tensor) -> Tensor:
        return self.path.s_of_time(times)


@dataclass(frozen=True)
class LeftSlope(Wrapped):
    """Gives the slope of the piece before a knot, as torchcde's linear interpolation does."""

    def derivative(self, s: Tensor) -> Tensor:
        return self.path.derivative((s - 1e-9).clamp(min=0))


@dataclass(frozen=True)
class Jumping(Wrapped):
    """Holds each value, then jumps: not even continuous."""

    def evaluate(self, s: Tensor) -> Tensor:
        return self.path.evaluate(s.floor())

    def derivative(self, s: Tensor) -> Tensor:
        return torch.zeros_like(self.evaluate(s))


@dataclass(frozen=True)
class Rounded(Wrapped):
    """Reads its rows with an error of rounding that depends on how many rows there are."""

    def evaluate(self, s: Tensor) -> Tensor:
        size = 1 + 2e-16 * (len(self.path.knots) % 5)
        return self.path.evaluate(s) * size


def centred(batch: SeriesBatch, counts: bool = False) -> controls.RectilinearPath:
    """Rectilinear, but scaled by each series' own mean: a leak often made by hand."""
    mean = batch.values.nanmean(1, keepdim=True)
    return controls.rectilinear(replace(batch, values=batch.values - mean), counts)


def filled_backwards(batch: SeriesBatch, counts: bool = False) -> controls.RectilinearPath:
    """Rectilinear with leading gaps filled from the first observation, as torchcde does."""
    values = batch.values.clone()
    for row in range(values.shape[1] - 2, -1, -1):
        missing = values[:, : row + 1].isnan().all(1)
        values[:, row] = torch.where(missing, values[:, row + 1], values[:, row])
    return controls.rectilinear(replace(batch, values=values), counts)


def accumulated(batch: SeriesBatch, counts: bool = False) -> controls.PolynomialPath:
    """Linear through the running sum of the values: causal, but it grows with the series."""
    return controls.linear(replace(batch, values=batch.values.nan_to_num().cumsum(1)), counts)


def clipped_counts(batch: SeriesBatch) -> controls.PolynomialPath:
    """Linear with counts that stop at 1, which tell nothing after the first row."""
    path = controls.linear(batch, counts=True)
    channels = batch.values.shape[2]
    rows = path.rows.clone()
    rows[:, :, 1 + channels :].clamp_(max=1)
    return replace(path, rows=rows)
