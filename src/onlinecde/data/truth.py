"""What is true of each stream at any time: labels at the end, at times, over intervals, or from an event's time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from onlinecde.data.errors import DataError

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
        labels, late = self.labels(times), ~(times <= self.until[:, None])
        return labels.masked_fill(late[:, :, None] if labels.ndim == 3 else late, self.unknown)

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
    """1 from `starts` to `ends` of each interval, both included, `outside` at all other times.

    >>> truth = IntervalTruth(torch.tensor([9.0]), torch.tensor([[2.0]]), torch.tensor([[3.0]]))
    >>> truth.at(torch.tensor([[1.0, 2.0, 3.0, 3.5]]))
    tensor([[0., 1., 1., 0.]])
    """

    starts: Tensor
    """(stream, interval) float64, rising; infinite behind a stream's last interval"""
    ends: Tensor
    """(stream, interval) float64; intervals of a stream do not overlap"""
    outside: float = 0.0
    """The label outside of all intervals; NaN where it is not known there"""

    def labels(self, times: Tensor) -> Tensor:
        last = torch.searchsorted(self.starts, times.contiguous(), right=True) - 1
        if not self.starts.shape[1]:
            return torch.full(times.shape, self.outside, device=times.device)
        inside = (last >= 0) & (times <= self.ends.gather(1, last.clamp(min=0)))
        return torch.where(inside, 1.0, self.outside)


@dataclass(frozen=True, eq=False)
class EventTruth(Truth):
    """Whether the event comes within `horizon` from a time on; not known where a stream is lost before that.

    >>> event, lost = torch.tensor([5.0, torch.inf]), torch.tensor([5.0, 6.0])
    >>> truth = EventTruth(lost, event, horizon=2.0)
    >>> truth.at(torch.tensor([[2.0, 3.0, 5.0], [2.0, 4.0, 4.5]]))
    tensor([[0., 1., nan],
            [0., 0., nan]])
    """

    event: Tensor
    """(stream,) float64: when the event came; infinite where it did not while the stream was followed"""
    horizon: float
    followed: Tensor | None = None
    """(stream,) float64: until when an event would be known of (where it is censored); default: `until`.

    A patient may be asked about until discharge, and followed for a month beyond it.
    """

    @property
    def censored(self) -> Tensor:
        """(stream,): until when an event would be known of."""
        return self.until if self.followed is None else self.followed

    def cut(self, until: Tensor) -> Self:
        return replace(super().cut(until), followed=self.censored)

    def labels(self, times: Tensor) -> Tensor:
        event, followed = self.event[:, None], self.censored[:, None]
        comes = event <= times + self.horizon
        known = (times < event) & (comes | (times + self.horizon <= followed))
        return torch.where(known, comes.to(torch.float32), torch.nan)

    def remaining(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """How long from times (stream, query) to the event or the end of following, and whether it is the event.

        Both (stream, query); NaN from the event on, and after `until`.
        """
        event, followed = self.event[:, None], self.censored[:, None]
        came = torch.isfinite(event).expand(times.shape)
        left = torch.where(came, event, followed) - times
        known = (times <= self.until[:, None]) & ((left > 0) | (~came & (left == 0)))
        return left.masked_fill(~known, torch.nan), came


def _unknown(labels: Tensor) -> float | int:
    return torch.nan if labels.is_floating_point() else CLASSLESS
