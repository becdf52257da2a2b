"""Changes to the future of one stream, each made of parts that can also be made one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from onlinecde.series import SeriesBatch

Kind = Literal["changed", "removed", "observed", "moved", "deleted", "added"]
Series = tuple[np.ndarray, np.ndarray]
"""Times (row,) and values (row, channel) of one stream."""


@dataclass(frozen=True, eq=False)
class Change:
    """Some parts of one kind: values changed, removed or observed; rows moved, deleted or added.

    Any choice of parts, made alone, gives a valid series again.
    """

    kind: Kind
    rows: np.ndarray
    """(part,): the row each part belongs to; an added row comes after it."""
    channels: np.ndarray | None = None
    """(part,), for values."""
    new: np.ndarray | None = None
    """(part,): new values (NaN: removed); (part,): new times of moved and added rows."""
    values: np.ndarray | None = None
    """(part, channel), for added rows."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, chosen: np.ndarray) -> Change:
        """The parts at positions `chosen` alone."""
        taken = [None if a is None else a[chosen] for a in (self.channels, self.new, self.values)]
        return Change(self.kind, self.rows[chosen], *taken)

    def __call__(self, series: Series) -> Series:
        """The series with every part of the change made."""
        times, values = series[0].copy(), series[1].copy()
        if self.kind == "deleted":
            return np.delete(times, self.rows), np.delete(values, self.rows, axis=0)
        assert self.new is not None
        if self.kind == "added":
            assert self.values is not None
            after = self.rows + 1
            return np.insert(times, after, self.new), np.insert(values, after, self.values, axis=0)
        if self.kind == "moved":
            times[self.rows] = self.new
        else:
            values[self.rows, self.channels] = self.new
        return times, values


@dataclass(frozen=True, eq=False)
class Trial:
    """A change of what comes after `cut`, a time at or after row `row` and before the next."""

    cut: float
    row: int
    change: Change
    base: Change | None = None
    """What was done to the series before, in the version that the changed one is compared with."""

    @property
    def keeps_pattern(self) -> bool:
        """Whether as many rows and values are there as before, in the same places."""
        return self.base is not None or self.change.kind in ("changed", "moved")

    def versions(self, series: Series) -> tuple[Series, Series]:
        """The series before and after the change."""
        start = series if self.base is None else self.base(series)
        return start, self.change(start)

    def part(self, chosen: np.ndarray) -> Trial:
        """The trial with the parts at positions `chosen` alone."""
        return Trial(self.cut, self.row, self.change.part(chosen), self.base)


def stream_series(batch: SeriesBatch, stream: int = 0) -> Series:
    """Times and values of one stream as arrays."""
    rows = int(batch.rows[stream])
    return (
        batch.times[stream, :rows].detach().cpu().numpy(),
        batch.values[stream, :rows].detach().cpu().numpy(),
    )


def stack(versions: Sequence[Series], like: SeriesBatch) -> SeriesBatch:
    """Versions of the one stream of `like` as one batch."""
    rows = [len(times) for times, _ in versions]
    clock = np.zeros((len(versions), max(rows)))
    table = np.full((*clock.shape, like.values.shape[2]), np.nan, versions[0][1].dtype)
    for k, (times, values) in enumerate(versions):
        clock[k, : len(times)], table[k, : len(times)] = times, values
    static = like.static
    if static is not None:
        static = static.detach().cpu().expand(len(versions), -1)
    name = like.streams[0]
    names = (
        [name] if len(versions) == 1 else [f"{name} (version {k})" for k in range(len(versions))]
    )
    return SeriesBatch.from_padded(
        torch.from_numpy(clock),
        torch.from_numpy(table),
        torch.tensor(rows),
        static,
        channels=like.channels,
        features=like.features,
        streams=names,
    ).to(like.device)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Where the values of each channel (channel,) lie, so that made ones are of their size."""

    middle: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, batch: SeriesBatch) -> Ranges:
        """Mean and standard deviation; where there is none, something that tells in float32."""
        values = batch.values.detach().cpu().double().flatten(0, 1)
        seen = ~values.isnan()
        counts = seen.sum(0)
        middle = values.nan_to_num(0.0).sum(0) / counts.clamp(min=1)
        spread = (
            torch.where(seen, values - middle, 0.0).square().sum(0) / counts.clamp(min=1)
        ).sqrt()
        least = 0.1 * middle.abs().clamp(min=10.0)
        return cls(middle.numpy(), torch.where(spread > 1e-6 * middle.abs(), spread, least).numpy())

    def made(self, generator: np.random.Generator, rows: int) -> np.ndarray:
        """Values (row, channel) of the usual size."""
        return self.middle + self.spread * generator.normal(size=(rows, len(self.middle)))

    def shifts(self, generator: np.random.Generator, channels: np.ndarray) -> np.ndarray:
        """Positive amounts (part,) to change values of these channels by."""
        size = np.exp(generator.uniform(np.log(0.5), np.log(4.0), len(channels)))
        return self.spread[channels] * size


def trials(
    series: Series, row: int, cut: float, ranges: Ranges, generator: np.random.Generator
) -> Iterator[Trial]:
    """Every kind of change to what comes after `cut`, a time from `row` on and before the next."""
    times, values = series
    filled, other = _observed_twice(values, row, ranges, generator)
    made = [
        *_value_changes(values, row, ranges, generator),
        filled,
        _moved(times, row, cut, generator),
        Change("deleted", np.arange(row + 1, min(row + 2, len(times)))),
        Change("deleted", np.arange(row + 1, len(times))),
        _added(times, row, cut, ranges, generator),
    ]
    yield from (Trial(cut, row, change) for change in made if len(change))
    if len(filled):
        yield Trial(cut, row, other, filled)


def _value_changes(
    values: np.ndarray, row: int, ranges: Ranges, generator: np.random.Generator
) -> Iterator[Change]:
    seen = ~np.isnan(values)
    rows, channels = (index for index in np.nonzero(seen[row + 1 :]))
    rows = rows + row + 1
    old = values[rows, channels]
    # Up and down: what looks at the largest or the smallest value must notice one of them.
    for sign in (1.0, -1.0):
        new = old + sign * ranges.shifts(generator, channels).astype(values.dtype)
        yield Change("changed", rows, channels, new)
    half = generator.random(len(rows)) < 0.5
    if len(rows) and not half.any():
        half[generator.integers(len(rows))] = True
    yield Change("removed", rows[half], channels[half], np.full(int(half.sum()), np.nan))


def _observed_twice(
    values: np.ndarray, row: int, ranges: Ranges, generator: np.random.Generator
) -> tuple[Change, Change]:
    """Everything missing observed, and observed with other values: the two have one pattern."""
    rows, channels = np.nonzero(np.isnan(values[row + 1 :]))
    new = ranges.made(generator, len(rows))[np.arange(len(rows)), channels]
    other = new + ranges.shifts(generator, channels)
    rows = rows + row + 1
    return Change("observed", rows, channels, new), Change("observed", rows, channels, other)


def _moved(times: np.ndarray, row: int, cut: float, generator: np.random.Generator) -> Change:
    """Each later row moved within the half-way marks to its neighbours, so that order holds."""
    later = np.arange(row + 1, len(times))
    if len(later) == 0:
        return Change("moved", later, None, times[later])
    low = np.maximum((times[later - 1] + times[later]) / 2, (cut + times[later]) / 2)
    high = np.append((times[later[:-1]] + times[later[1:]]) / 2, times[-1] + _gap(times))
    up = generator.random(len(later)) < 0.5
    share = generator.uniform(0.2, 0.8, len(later))
    new = times[later] + share * np.where(up, high - times[later], low - times[later])
    kept = (new != times[later]) & (new > low) & (new < high)
    return Change("moved", later[kept], None, new[kept])


def _added(
    times: np.ndarray, row: int, cut: float, ranges: Ranges, generator: np.random.Generator
) -> Change:
    """A row between the cut and the next row, one further on, and one after the last."""
    start = np.append(cut, times[row + 1 :])
    stop = np.append(times[row + 1 :], max(times[-1], cut) + 2 * _gap(times))
    chosen = np.unique(np.array([0, generator.integers(len(start)), len(start) - 1]))
    new = start[chosen] + generator.uniform(0.2, 0.8, len(chosen)) * (stop - start)[chosen]
    kept = (new > start[chosen]) & (new < stop[chosen])
    chosen, new = chosen[kept], new[kept]
    return Change("added", row + chosen, None, new, ranges.made(generator, len(chosen)))


def _gap(times: np.ndarray) -> float:
    """How far rows lie apart at the end of a series."""
    return float(times[-1] - times[-2]) if len(times) > 1 else 1.0
