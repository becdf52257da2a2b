"""What is true of each stream at any time: labels at the end, at times, over intervals, or from an event's time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from onlinecde.data.errors import DataError
from onlinecde.series import SeriesBatch

CLASSLESS = -1
"""The label of a class that is not known."""


@dataclass(frozen=True, eq=False)
class Truth(ABC):
    """Labels as functions of time. `at` says what the label is, and by NaN where nobody knows.

    Times are those of the series, (stream, ...) float64, in the task's unit.
    """

    until: Tensor
    """(stream,) float64: how long each stream is followed; asked about later times, nothing is known."""

    @abstractmethod
    def labels(self, times: Tensor) -> Tensor:
        """Labels (stream, query) at times (stream, query), before `until` is looked at."""

    @property
    def unknown(self) -> float | int:
        """What stands where there is no label: NaN, or -1 for classes."""
        return torch.nan

    @property
    def continuous(self) -> bool:
        """Whether labels are known between the times at which they are listed."""
        return True

    def at(self, times: Tensor) -> Tensor:
        """The label of each stream at times (stream, query): (stream, query), `unknown` where it is not known.

        With several outputs (stream, query, output).
        """
        if times.ndim != 2 or len(times) != len(self.until):
            raise DataError(
                f"times have shape {tuple(times.shape)} for {len(self.until)} streams: give (stream, query)."
            )
        times = times.to(self.until.dtype)
        labels, late = self.labels(times), ~(times <= self.until[:, None])
        return labels.masked_fill(late[:, :, None] if labels.ndim == 3 else late, self.unknown)

    def describe(self, unit: str) -> str:
        """What is known when, in words; times in `unit`."""
        return "the same at any time"

    def select(self, streams: Tensor | slice) -> Self:
        """The truth of these streams alone."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = {n: x[streams] for n, x in mine.items() if isinstance(x, Tensor)}
        return replace(self, **chosen)

    def cut(self, until: Tensor) -> Self:
        """The same, asked about until (stream,) at the longest."""
        return replace(self, until=torch.minimum(self.until, until.to(self.until)))

    def to(self, device: torch.device | str | None) -> Self:
        """The same on another device."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{n: x.to(device) for n, x in mine.items() if isinstance(x, Tensor)})


@dataclass(frozen=True, eq=False)
class EndLabels(Truth):
    """One label a stream, the same whenever it is asked about: how a stay ends, what a series is.

    >>> truth = EndLabels(torch.tensor([2.0, 5.0]), torch.tensor([1.0, 0.0]))
    >>> truth.at(torch.tensor([[0.5, 3.0], [0.5, 3.0]]))
    tensor([[1., nan],
            [0., 0.]])
    """

    label: Tensor
    """(stream,) or (stream, output) float32, or (stream,) int64 classes"""

    @property
    def unknown(self) -> float | int:
        return _unknown(self.label)

    def labels(self, times: Tensor) -> Tensor:
        return self.label[:, None].expand(*times.shape, *self.label.shape[1:]).clone()


@dataclass(frozen=True, eq=False)
class ListedLabels(Truth):
    """Labels listed at times, each of which stands for a while.

    >>> listed = torch.tensor([[0.0, 1.0, 4.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    >>> truth = ListedLabels(torch.tensor([9.0]), *listed, stands=2.0)
    >>> truth.at(torch.tensor([[1.0, 2.5, 3.5, 4.5]]))
    tensor([[0., 0., nan, 1.]])
    """

    times: Tensor
    """(stream, entry) float64, rising; infinite behind a stream's last entry"""
    listed: Tensor
    """(stream, entry) or (stream, entry, output) float32, or (stream, entry) int64 classes"""
    stands: float = 0.0
    """How long after its time a label holds, until the next one: 0 for no longer than that instant"""

    @property
    def unknown(self) -> float | int:
        return _unknown(self.listed)

    @property
    def continuous(self) -> bool:
        return self.stands > 0

    def describe(self, unit: str) -> str:
        if not self.stands:
            return "at listed times alone"
        return f"from listed times, for up to {self.stands:g} {unit}"

    def labels(self, times: Tensor) -> Tensor:
        entry = torch.searchsorted(self.times, times.contiguous(), right=True) - 1
        place = entry.clamp(min=0)
        since = times - self.times.gather(1, place)
        known = (entry >= 0) & (since <= self.stands)
        stream = torch.arange(len(times), device=times.device)[:, None]
        labels = self.listed[stream, place]
        return labels.masked_fill(~known[:, :, None] if labels.ndim == 3 else ~known, self.unknown)


@dataclass(frozen=True, eq=False)
class IntervalTruth(Truth):
    """A label from `starts` to `ends` of each interval, both included, `outside` at all other times.

    >>> truth = IntervalTruth(torch.tensor([9.0]), torch.tensor([[2.0]]), torch.tensor([[3.0]]))
    >>> truth.at(torch.tensor([[1.0, 2.0, 3.0, 3.5]]))
    tensor([[0., 1., 1., 0.]])
    """

    starts: Tensor
    """(stream, interval) float64, rising; infinite behind a stream's last interval"""
    ends: Tensor
    """(stream, interval) float64; intervals of a stream do not overlap, but one may start where another ends"""
    outside: float = 0.0
    """The label outside of all intervals; NaN, and -1 of classes, where it is not known there"""
    inside: Tensor | None = None
    """(stream, interval) float32 or int64 classes: the label in each interval; default: 1"""

    @property
    def unknown(self) -> float | int:
        return torch.nan if self.inside is None else _unknown(self.inside)

    def describe(self, unit: str) -> str:
        number = int((self.starts < torch.inf).sum())
        alone = math.isnan(self.outside) or self.outside == self.unknown
        return f"{'within' if alone else 'at any time, by'} {number} intervals"

    def labels(self, times: Tensor) -> Tensor:
        if not self.starts.shape[1]:
            kind = None if self.inside is None else self.inside.dtype
            return torch.full(times.shape, self.outside, dtype=kind, device=times.device)
        last = torch.searchsorted(self.starts, times.contiguous(), right=True) - 1
        place = last.clamp(min=0)
        within = (last >= 0) & (times <= self.ends.gather(1, place))
        if self.inside is None:
            return torch.where(within, 1.0, self.outside)
        return self.inside.gather(1, place).masked_fill(~within, self.outside)


@dataclass(frozen=True, eq=False)
class EventTruth(Truth):
    """Whether the event comes within `horizon` from a time on; not known where a stream is lost before that.

    Without a horizon labels are those of time to the event, (stream, query, 2): how long from then to the event or to
    when the stream is lost, and 1 for the event.

    >>> event, lost = torch.tensor([5.0, torch.inf]), torch.tensor([5.0, 6.0])
    >>> truth = EventTruth(lost, event, horizon=2.0)
    >>> truth.at(torch.tensor([[2.0, 3.0, 5.0], [2.0, 4.0, 4.5]]))
    tensor([[0., 1., nan],
            [0., 0., nan]])
    >>> replace(truth, horizon=None).at(torch.tensor([[2.0], [4.0]]))
    tensor([[[3., 1.]],
    <BLANKLINE>
            [[2., 0.]]])
    """

    event: Tensor
    """(stream,) float64: when the event came; infinite where it did not while the stream was followed"""
    horizon: float | None
    followed: Tensor | None = None
    """(stream,) float64: until when an event would be known of (where it is censored); default: `until`.

    A patient may be asked about until discharge, and followed for a month beyond it.
    """

    @property
    def censored(self) -> Tensor:
        """(stream,): until when an event would be known of."""
        return self.until if self.followed is None else self.followed

    def describe(self, unit: str) -> str:
        came = int(torch.isfinite(self.event).sum())
        ahead = (
            "time to the event" if self.horizon is None else f"event within {self.horizon:g} {unit}"
        )
        return f"{ahead}, which {came} of {len(self.event)} streams have"

    def cut(self, until: Tensor) -> Self:
        return replace(super().cut(until), followed=self.censored)

    def labels(self, times: Tensor) -> Tensor:
        if self.horizon is None:
            left, came = self.remaining(times)
            return torch.stack([left, torch.where(left.isnan(), left, came.to(left))], -1).float()
        event, followed = self.event[:, None], self.censored[:, None]
        came, ahead = torch.isfinite(event), times + self.horizon
        known = (times < event) & (came | (ahead <= followed))
        return torch.where(known, (came & (event <= ahead)).to(torch.float32), torch.nan)

    def remaining(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """How long from times (stream, query) to the event or the end of following, and whether it is the event.

        Both (stream, query); NaN from the event on, and after `until`.
        """
        event, followed = self.event[:, None], self.censored[:, None]
        came = torch.isfinite(event).expand(times.shape)
        left = torch.where(came, event, followed) - times
        known = (times <= self.until[:, None]) & ((left > 0) | (~came & (left == 0)))
        return left.masked_fill(~known, torch.nan), came


def check_truth(truth: Truth, series: SeriesBatch) -> None:
    """Refuse a truth that is not about these series, or whose times are out of order; the error names the stream."""
    first, until = series.times[:, :1], truth.until[:, None]
    for one in fields(truth):
        table = getattr(truth, one.name)
        if isinstance(table, Tensor) and len(table) != len(series):
            raise DataError(
                f"{one.name} of the truth is about {len(table)} streams, the series are {len(series)}."
            )
    wrong = {
        "is followed until no finite time": ~until.isfinite(),
        "is followed until a time before its first row": until < first,
    }
    if isinstance(truth, ListedLabels):
        wrong["has listed labels out of order, or two at one time"] = _not_rising(truth.times)
    if isinstance(truth, IntervalTruth):
        wrong["has intervals out of order"] = _not_rising(truth.starts)
        real = truth.starts < torch.inf
        wrong["has an interval that ends before it starts"] = real & ~(truth.ends >= truth.starts)
        wrong["has intervals that overlap"] = real[:, 1:] & (
            truth.ends[:, :-1] > truth.starts[:, 1:]
        )
    if isinstance(truth, EventTruth):
        wrong["has its event no later than its first row: leave it out"] = ~(
            truth.event[:, None] > first
        )
    for what, where in wrong.items():
        if bool(where.any()):
            raise DataError(f"stream {series.streams[int(where.any(1).nonzero()[0])]!r} {what}.")


def _not_rising(times: Tensor) -> Tensor:
    """Bool (stream, entry - 1): where times, infinite behind a stream's last, do not rise."""
    return ~(times.diff(dim=1) > 0) & (times[:, :-1] < torch.inf) | times.isnan()[:, 1:]


def _unknown(labels: Tensor) -> float | int:
    return torch.nan if labels.is_floating_point() else CLASSLESS
