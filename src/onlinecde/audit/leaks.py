"""Leaks: an event that changed an output it must not reach, and the search for the smallest such edit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from onlinecde.audit.asking import Asked, change, rounding_of, scale_of
from onlinecde.audit.changes import Change, Series, Trial, stack
from onlinecde.series import SeriesBatch

KINDS = ("changed", "moved", "observed", "removed", "deleted", "added")
"""Kinds of edits; those of which one can say most come first."""
_ROWS_AT_ONCE = 20_000
_STREAMS_AT_ONCE = 256


@dataclass(frozen=True)
class Leak:
    """One edit, and the output it changed although it lies before the edited event."""

    edit: str
    """What was done to the event: changed, removed, observed (a value); moved, deleted, added (a row);
    left out (a stream, of the batch)."""
    event_stream: Hashable
    event_time: float
    channel: str | None
    """The event's channel; None where a whole row was moved, deleted or added."""
    old: float | None
    """The value before, or the time of a row that was moved."""
    new: float | None
    events: int
    """How many events had to be edited together; 1 where one was enough."""
    stream: Hashable
    time: float
    output: int
    """The output's index."""
    before: float
    after: float
    relative: float
    """The change as a share of the largest output."""
    between_rows: bool
    """Whether the output was asked for between rows."""

    @property
    def size(self) -> float:
        """By how much the output changed."""
        return abs(self.after - self.before)

    @property
    def through_batch(self) -> bool:
        """Whether the event belongs to another stream than the output."""
        return self.event_stream != self.stream

    def __str__(self) -> str:
        event = f"stream {self.event_stream!r}, time {self.event_time:.6g}"
        if self.channel is not None:
            instead = "" if self.old is None else f" instead of {_number(self.old)}"
            text = f"{event}, channel '{self.channel}': "
            text += {
                "changed": f"changing {_number(self.old)} to {_number(self.new)}",
                "removed": f"removing {_number(self.old)}",
                "observed": f"observing {_number(self.new)}{instead} where nothing was",
            }[self.edit]
        elif self.edit == "left out":
            text = f"leaving stream {self.event_stream!r} out of the batch"
        elif self.edit == "moved":
            text = f"{event}: moving the row to time {_number(self.new)}"
        else:
            text = f"{event}: {'deleting' if self.edit == 'deleted' else 'adding'} the row"
        if self.events > 1:
            text += f" (and {self.events - 1} more together)"
        whose = f"stream {self.stream!r}" if self.through_batch else "it"
        when = "time" if self.through_batch else "the earlier time"
        return (
            f"{text} changed output {self.output} of {whose} at {when} {self.time:.6g}"
            f"{', between rows,' if self.between_rows else ''} from {self.before:.6g} to "
            f"{self.after:.6g}, by {self.size:.2g} ({self.relative:.1g} of the largest output)"
        )


@dataclass(frozen=True, eq=False)
class Found:
    """The output one trial changed most."""

    trial: Trial
    size: float
    share: float
    """of the largest output"""
    rounding: bool
    """Whether it is no more than the order of additions may do."""
    between: bool
    time: float
    output: int
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Question:
    """One stream to be edited, where its outputs are looked at, and what counts as a change."""

    ask: Asked
    one: SeriesBatch
    """the stream, alone"""
    series: Series
    queries: np.ndarray
    """(query,): times at which it is asked too, where it takes any"""
    tolerance: float | None
    """Share of the scale; None: bit for bit for changes that keep the pattern, else rounding."""
    companion: Series | None = None
    """A longer series added to every version, so that arrays keep their size."""
    _unedited: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def changed(self, tests: Sequence[Trial], together: int | None = None) -> list[Found]:
        """The trials that changed an output up to their cut: at rows first, and between rows."""
        most = max(1, _ROWS_AT_ONCE // (len(self.series[0]) + 3))
        size = together or min(_STREAMS_AT_ONCE, most)
        leaks: list[Found] = []
        # Versions of one kind stand in one call, so that a model that looks at the number of rows sees it.
        for kind in KINDS:
            for based in (False, True):
                alike = [
                    t for t in tests if t.change.kind == kind and (t.base is not None) == based
                ]
                for start in range(0, len(alike), size):
                    leaks += self._compare(alike[start : start + size])
        return leaks

    def _compare(self, tests: Sequence[Trial]) -> list[Found]:
        count, beside = len(tests), [] if self.companion is None else [self.companion]
        clock = torch.from_numpy(self.queries).to(self.one.device).expand(count + len(beside), -1)
        pairs = [test.versions(self.series) for test in tests]
        known = self._unedited.get(count) if tests[0].base is None else None
        if known is None:
            whole = stack([start for start, _ in pairs] + beside, self.one)
            asked = self.ask.at_times(whole, clock) if self.ask.takes_at else None
            known = self.ask.at_rows(whole), asked
            if tests[0].base is None:
                self._unedited[count] = known
        before, before_asked = known
        edited = stack([changed for _, changed in pairs] + beside, self.one)
        after = self.ask.at_rows(edited)
        most = min(before.shape[1], after.shape[1], len(self.series[0]))
        before, after = before[:count, :most], after[:count, :most]
        times = np.broadcast_to(self.series[0][:most], before.shape[:2])
        last = np.array([test.row for test in tests])[:, None]
        leaks = self._largest(tests, before, after, times, np.arange(most) <= last, False)
        if before_asked is None:
            return leaks
        before, after = before_asked[:count], self.ask.at_times(edited, clock)[:count]
        cut = np.array([test.cut for test in tests])[:, None]
        at_row = np.isin(self.queries, self.series[0])
        asked = np.broadcast_to(self.queries, before.shape[:2])
        for between in (False, True):
            shown = (self.queries <= cut) & (at_row != between)
            leaks += self._largest(tests, before, after, asked, shown, between)
        return leaks

    def _largest(
        self,
        tests: Sequence[Trial],
        before: Tensor,
        after: Tensor,
        times: np.ndarray,
        shown: np.ndarray,
        between: bool,
    ) -> list[Found]:
        moved = torch.where(torch.from_numpy(shown)[:, :, None], change(before, after), 0.0)
        scale, rounding = scale_of(before), rounding_of(before)
        leaks = []
        for k, test in enumerate(tests):
            share = float(moved[k].max()) / scale if moved[k].numel() else 0.0
            allowed = self.tolerance
            if allowed is None:
                allowed = 0.0 if test.keeps_pattern else rounding
            if share <= allowed:
                continue
            at, output = divmod(int(moved[k].argmax()), moved.shape[2])
            was, now = float(before[k, at, output]), float(after[k, at, output])
            size = float(moved[k, at, output])
            time = float(times[k, at])
            leaks.append(
                Found(test, size, share, share <= rounding, between, time, output, was, now)
            )
        return leaks


Evidence = TypeVar("Evidence")


def smallest(
    count: int, attempt: Callable[[np.ndarray], Evidence | None], whole: Evidence
) -> tuple[np.ndarray, Evidence]:
    """Halve `many` parts for as long as one half alone still leaks: what is left, and its evidence."""
    left, evidence = np.arange(count), whole
    while len(left) > 1:
        half = len(left) // 2
        for part in (left[:half], left[half:]):
            seen = attempt(part)
            if seen is not None:
                left, evidence = part, seen
                break
        else:
            break
    return left, evidence


def narrow(question: Question, evidence: Found) -> Leak:
    """The leak that `found` shows, with as few events edited as will do."""
    test = evidence.trial

    def attempt(part: np.ndarray) -> Found | None:
        seen = question.changed([test.part(part)], together=1)
        seen = [f for f in seen if f.between == evidence.between]
        return max(seen, key=lambda f: f.size) if seen else None

    left, shown = smallest(len(test.change), attempt, evidence)
    change = test.change.part(left)
    return Leak(
        **event_of(change, test.versions(question.series)[0], question.one.channels),
        event_stream=question.one.streams[0],
        events=len(change),
        stream=question.one.streams[0],
        time=shown.time,
        output=shown.output,
        before=shown.before,
        after=shown.after,
        relative=shown.share,
        between_rows=shown.between,
    )


def event_of(edit: Change, series: Series, channels: Sequence[str]) -> dict:
    """The first event of a change, in the words of a `Leak`."""
    row = int(edit.rows[0])
    new = None if edit.new is None else float(edit.new[0])
    event = {"edit": edit.kind, "event_time": float(series[0][row]), "channel": None}
    if edit.channels is not None:
        channel = int(edit.channels[0])
        old = float(series[1][row, channel])
        known = {
            "old": None if np.isnan(old) else old,
            "new": None if edit.kind == "removed" else new,
        }
        return {**event, "channel": channels[channel], **known}
    if edit.kind == "added":
        return {**event, "event_time": new, "old": None, "new": None}
    return {**event, "old": float(series[0][row]) if edit.kind == "moved" else None, "new": new}


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
