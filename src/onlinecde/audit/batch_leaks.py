"""Leaks through the batch: events of one stream that change the outputs of another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from onlinecde.audit.asking import Asked, change, rounding_of, scale_of
from onlinecde.audit.changes import Ranges
from onlinecde.audit.leaks import Leak, smallest
from onlinecde.series import SeriesBatch


def batch_leak(
    ask: Asked, batch: SeriesBatch, tolerance: float | None, generator: np.random.Generator
) -> Leak | None:
    """The leak that editing every other stream shows, narrowed to one event; None where all is well.

    The edits change every value of half the streams, cut these streams down to their first row, and
    leave them out; the other half must stay as it was, to rounding. So must a stream alone.
    """
    if len(batch) < 2:
        return None
    before = ask.at_rows(batch)
    allowed = rounding_of(before) if tolerance is None else tolerance
    number = torch.arange(len(batch))
    for edited in (number % 2 == 0, number % 2 == 1):
        changed = _ValuesChanged.of(batch, edited, generator)
        for edit in (changed, _CutShort(edited.nonzero()[:, 0]), _LeftOut.of(edited)):
            leak = _shown(ask, batch, before, edited, edit, allowed)
            if leak is not None:
                return leak
    return _shown(ask, batch, before, number > 0, _LeftOut.of(number > 0), allowed)


@dataclass(frozen=True, eq=False)
class _Seen:
    share: float
    stream: int
    row: int
    output: int
    after: float


def _shown(
    ask: Asked,
    batch: SeriesBatch,
    before: Tensor,
    edited: Tensor,
    edit: _ValuesChanged | _CutShort | _LeftOut,
    allowed: float,
) -> Leak | None:
    shown = (batch.real.cpu() & ~edited[:, None])[:, : before.shape[1], None]
    scale = scale_of(torch.where(batch.real.cpu()[:, : before.shape[1], None], before, 0.0))

    def attempt(part: np.ndarray) -> _Seen | None:
        after = edit.answers(ask, batch, part)
        most = min(before.shape[1], after.shape[1])
        moved = torch.where(shown[:, :most], change(before[:, :most], after[:, :most]), 0.0)
        if float(moved.max()) <= allowed * scale:
            return None
        stream, row, output = np.unravel_index(int(moved.argmax()), moved.shape)
        place = int(stream), int(row), int(output)
        return _Seen(float(moved.max()) / scale, *place, float(after[place]))

    whole = attempt(np.arange(len(edit)))
    if whole is None:
        return None
    left, seen = smallest(len(edit), attempt, whole)
    return Leak(
        **edit.event(batch, int(left[0])),
        events=len(left),
        stream=batch.streams[seen.stream],
        time=float(batch.times[seen.stream, seen.row]),
        output=seen.output,
        before=float(before[seen.stream, seen.row, seen.output]),
        after=seen.after,
        relative=seen.share,
        between_rows=False,
    )


@dataclass(frozen=True, eq=False)
class _ValuesChanged:
    """Every value of some streams changed; the pattern stays."""

    cells: Tensor
    """(part, 3): stream, row, channel"""
    new: Tensor
    """(part,)"""

    @classmethod
    def of(
        cls, batch: SeriesBatch, edited: Tensor, generator: np.random.Generator
    ) -> _ValuesChanged:
        cells = (batch.observed.cpu() & edited[:, None, None]).nonzero()
        shifts = Ranges.of(batch).shifts(generator, cells[:, 2].numpy())
        values = batch.values.detach().cpu()
        return cls(cells, values[tuple(cells.T)] + torch.from_numpy(shifts).to(values))

    def __len__(self) -> int:
        return len(self.new)

    def answers(self, ask: Asked, batch: SeriesBatch, part: np.ndarray) -> Tensor:
        """Outputs at the rows with part of the edit made."""
        values = batch.values.detach().clone()
        where = tuple(self.cells[part].T.to(batch.device))
        values[where] = self.new[part].to(values)
        return ask.at_rows(replace(batch, values=values))

    def event(self, batch: SeriesBatch, part: int) -> dict:
        stream, row, channel = (int(i) for i in self.cells[part])
        return {
            "edit": "changed",
            "event_stream": batch.streams[stream],
            "event_time": float(batch.times[stream, row]),
            "channel": batch.channels[channel],
            "old": float(batch.values[stream, row, channel]),
            "new": float(self.new[part]),
        }


@dataclass(frozen=True, eq=False)
class _CutShort:
    """All rows of some streams deleted but the first."""

    streams: Tensor
    """(part,)"""

    def __len__(self) -> int:
        return len(self.streams)

    def answers(self, ask: Asked, batch: SeriesBatch, part: np.ndarray) -> Tensor:
        """Outputs at the rows with part of the edit made."""
        rows = batch.rows.clone()
        rows[self.streams[part].to(batch.device)] = 1
        return ask.at_rows(batch.first_rows(rows))

    def event(self, batch: SeriesBatch, part: int) -> dict:
        stream = int(self.streams[part])
        return {
            "edit": "deleted",
            "event_stream": batch.streams[stream],
            "event_time": float(batch.times[stream, 1]),
            "channel": None,
            "old": None,
            "new": None,
        }


@dataclass(frozen=True, eq=False)
class _LeftOut:
    """Some streams left out of the batch."""

    streams: Tensor
    """(part,)"""

    @classmethod
    def of(cls, edited: Tensor) -> _LeftOut:
        return cls(edited.nonzero()[:, 0])

    def __len__(self) -> int:
        return len(self.streams)

    def answers(self, ask: Asked, batch: SeriesBatch, part: np.ndarray) -> Tensor:
        """Outputs at the rows with part of the edit made; of streams left out, 0."""
        kept = torch.ones(len(batch), dtype=torch.bool)
        kept[self.streams[part]] = False
        answers = ask.at_rows(batch[kept])
        whole = answers.new_zeros(len(batch), *answers.shape[1:])
        whole[kept] = answers
        return whole

    def event(self, batch: SeriesBatch, part: int) -> dict:
        stream = int(self.streams[part])
        return {
            "edit": "left out",
            "event_stream": batch.streams[stream],
            "event_time": float(batch.times[stream, 0]),
            "channel": None,
            "old": None,
            "new": None,
        }
