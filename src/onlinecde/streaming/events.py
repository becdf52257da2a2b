"""What comes in and what is said of it: events, batches of them, and one receipt for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np


class Outcome(IntEnum):
    """How an event ended; every event received ends as exactly one of these."""

    APPLIED = 0
    """It became part of its stream's newest row, or began a new one."""
    DUPLICATE = 1
    """It was known already: nothing changed."""
    CORRECTED = 2
    """It replaced another value of the same stream, time and channel."""
    LATE_APPLIED = 3
    """It came after a later row of its stream; the rows from it on were integrated again."""
    REFUSED = 4
    """It changed nothing; its `Refusal` says why."""


MOST_NOTES = 10
"""Notes of one stream where several micro-batches are told of as one"""
OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
"""Names of the outcomes, in their order"""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing observed: a channel of a stream had a value at a time (in the model's unit of time).

    With an `id`, a second event of the same stream and id is a duplicate whatever it says.
    """

    stream: str
    time: float
    channel: str
    value: float
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an event was refused: a stable code, the field at fault, and a message for people."""

    code: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one event."""

    outcome: Outcome
    refusal: Refusal | None = None


@dataclass(frozen=True, eq=False)
class EventBatch:
    """Events as columns, in the order in which they were received; entry i of each column is event i.

    Columns are trusted no further than events are: what is wrong with an entry is found by the engine
    and refuses that event alone. Only columns of unequal length are an error.

    >>> batch = EventBatch(["a", "a"], [0.0, 0.0], ["hr", "bp"], [80.0, 120.0])
    >>> len(batch)
    2
    """

    streams: Sequence[str]
    """Names: one for each event, or, with `of`, a list that `of` points into"""
    times: Sequence[float] | np.ndarray
    channels: Sequence[str] | np.ndarray
    """Names, or an integer array of positions in `Engine.channels`"""
    values: Sequence[float] | np.ndarray
    ids: Sequence[str | None] | None = None
    of: np.ndarray | None = None
    """(event,) int: which entry of `streams` each event belongs to"""
    static: Mapping[str, Any] | None = None
    """Static features of streams that may be new, by stream: raw values by name, or numbers in the model's

    order; not looked at for streams that are known
    """
    refused: Mapping[int, Refusal] | None = None
    """Events that whoever made the batch refuses, by position: counted and recorded like the engine's own"""

    def __post_init__(self) -> None:
        events = len(self.times)
        named = self.streams if self.of is None else self.of
        for name, column in (
            ("streams" if self.of is None else "of", named),
            ("channels", self.channels),
            ("values", self.values),
            ("ids", self.ids),
        ):
            if column is not None and len(column) != events:
                raise ValueError(
                    f"{name} has {len(column)} entries, times has {events}: give one for each event."
                )

    def __len__(self) -> int:
        return len(self.times)

    @classmethod
    def from_events(
        cls, events: Iterable[Event], *, static: Mapping[str, Any] | None = None
    ) -> EventBatch:
        """Single events as a batch."""
        events = list(events)
        ids = [e.id for e in events]
        return cls(
            [e.stream for e in events],
            [e.time for e in events],
            [e.channel for e in events],
            [e.value for e in events],
            ids if any(i is not None for i in ids) else None,
            static=static,
        )

    def parts(self, most: int) -> list[EventBatch]:
        """The batch in parts, in order, with at most so many events of a stream in each."""
        streams = self.streams if self.of is None else [self.streams[one] for one in self.of]
        counts: dict[Any, int] = {}
        edges = [0]
        for place, stream in enumerate(streams):
            key = stream if isinstance(stream, str) else None
            counts[key] = counts.get(key, 0) + 1
            if counts[key] > most:
                edges.append(place)
                counts = {key: 1}
        return [self._between(*span) for span in pairwise([*edges, len(self)])]

    def _between(self, begin: int, end: int) -> EventBatch:
        refused = self.refused or {}
        return replace(
            self,
            streams=self.streams if self.of is not None else self.streams[begin:end],
            times=self.times[begin:end],
            channels=self.channels[begin:end],
            values=self.values[begin:end],
            ids=None if self.ids is None else self.ids[begin:end],
            of=None if self.of is None else self.of[begin:end],
            refused={at - begin: why for at, why in refused.items() if begin <= at < end} or None,
        )

    @classmethod
    def joined(cls, parts: Sequence[EventBatch], channels: Sequence[str]) -> EventBatch:
        """Several batches as one, in order; each must have `of`, and of static features the first given count.

        channels: names of the channels, for batches that name theirs.
        """
        if len(parts) == 1:
            return parts[0]
        streams: list[Any] = []
        pointers, static, refused, events = [], {}, {}, 0
        for part in parts:
            assert part.of is not None
            pointers.append(part.of + len(streams))
            streams += part.streams
            static = {**(part.static or {}), **static}
            refused.update({events + event: why for event, why in (part.refused or {}).items()})
            events += len(part)
        codes = [part.channels for part in parts]
        if not all(isinstance(code, np.ndarray) for code in codes):
            codes = [
                [channels[place] for place in code.tolist()]
                if isinstance(code, np.ndarray)
                else code
                for code in codes
            ]
        named = any(part.ids is not None for part in parts)
        return cls(
            streams,
            _joined([part.times for part in parts]),
            _joined(codes),
            _joined([part.values for part in parts]),
            [one for part in parts for one in (part.ids or [None] * len(part))] if named else None,
            of=np.concatenate(pointers),
            static=static or None,
            refused=refused or None,
        )

    def part(self, start: int, stop: int) -> EventBatch:
        """Some of its events, in their order; it must have `of`, which must not fall."""
        assert self.of is not None
        first, last = int(self.of[start]), int(self.of[stop - 1]) + 1
        names = self.streams[first:last]
        known = {name for name in names if isinstance(name, str)}
        refused = {
            at - start: why for at, why in (self.refused or {}).items() if start <= at < stop
        }
        return EventBatch(
            names,
            self.times[start:stop],
            self.channels[start:stop],
            self.values[start:stop],
            None if self.ids is None else self.ids[start:stop],
            of=self.of[start:stop] - first,
            static={name: one for name, one in (self.static or {}).items() if name in known}
            or None,
            refused=refused or None,
        )

    @classmethod
    def from_rows(
        cls,
        streams: Sequence[str],
        times: Any,
        rows: Any,
        *,
        static: Mapping[str, Any] | None = None,
    ) -> EventBatch:
        """Whole rows as a batch: streams (row,), times (row,), rows (row, channel), NaN = not observed.

        >>> len(EventBatch.from_rows(["a", "b"], [0.0, 0.5], [[80.0, float("nan")], [75.0, 120.0]]))
        3
        """
        values = np.asarray(rows, np.float64)
        clock = np.asarray(times, np.float64)
        if values.ndim != 2 or clock.shape != (len(streams),) or len(values) != len(streams):
            raise ValueError(
                f"{len(streams)} streams, times {clock.shape} and rows {values.shape} do not fit: "
                "give (row,), (row,) and (row, channel)."
            )
        row, channel = np.nonzero(~np.isnan(values))
        return cls(
            streams,
            clock[row],
            channel.astype(np.int32),
            values[row, channel],
            of=row,
            static=static,
        )


def _joined(columns: Sequence[Any]) -> Any:
    """Columns one after the other: an array where all are arrays."""
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    return [
        one
        for column in columns
        for one in (column.tolist() if isinstance(column, np.ndarray) else column)
    ]


@dataclass(frozen=True, eq=False)
class Answers:
    """The model's answers for some streams, each at a time of its own."""

    streams: tuple[str, ...]
    times: np.ndarray
    """(stream,): of a micro-batch's answers the time of the newest row"""
    outputs: np.ndarray
    """(stream, output), as `model.predict` gives them"""
    probabilities: np.ndarray
    """(stream, output): the outputs through the head's link; the outputs themselves for a regression"""

    def __len__(self) -> int:
        return len(self.streams)

    def of(self, streams: Collection[str]) -> Answers:
        """Those for some streams."""
        places = [place for place, name in enumerate(self.streams) if name in streams]
        return Answers(
            tuple(self.streams[place] for place in places),
            self.times[places],
            self.outputs[places],
            self.probabilities[places],
        )

    @classmethod
    def none(cls, outputs: int) -> Answers:
        """No answer, of a model with so many outputs."""
        nothing = np.empty((0, outputs))
        return cls((), np.empty(0), nothing, nothing)

    @classmethod
    def joined(cls, first: Answers, second: Answers) -> Answers:
        """Both, one after the other."""
        return cls(
            (*first.streams, *second.streams),
            np.concatenate([first.times, second.times]),
            np.concatenate([first.outputs, second.outputs]),
            np.concatenate([first.probabilities, second.probabilities]),
        )


@dataclass(frozen=True, eq=False)
class Receipts(Sequence[Receipt]):
    """What became of a micro-batch: a receipt for each event, in order; given out only after the commit."""

    outcomes: np.ndarray
    """(event,) uint8, values of `Outcome`"""
    refusals: Mapping[int, Refusal]
    """Why, for each event that was refused, by its position"""
    sequence: int
    """Number of the commit; grows by one with each"""
    answers: Answers
    alarms: tuple[Any, ...] = field(default=())
    """Alarms (`onlinecde.streaming.Alarm`) raised by this micro-batch"""
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What is worth saying of streams: an unknown category of a static feature, implausible values"""
    implausible: Mapping[str, int] = field(default_factory=dict)
    """How many values that were taken lie outside of what is plausible, by channel"""

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return Receipt(Outcome(int(self.outcomes[place])), self.refusals.get(place))

    def __iter__(self) -> Iterator[Receipt]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def joined(cls, parts: Sequence[Receipts]) -> Receipts:
        """Those of parts of a micro-batch as one; of each stream the newest answer."""
        starts = np.cumsum([0, *(len(part) for part in parts)]).tolist()
        answers = parts[0].answers
        for part in parts[1:]:
            kept = answers.of(set(answers.streams) - set(part.answers.streams))
            answers = Answers.joined(kept, part.answers)
        notes: dict[str, list[str]] = {}
        implausible: Counter[str] = Counter()
        for part in parts:
            implausible.update(part.implausible)
            for name, some in part.notes.items():
                notes.setdefault(name, []).extend(some)
        return cls(
            np.concatenate([part.outcomes for part in parts]),
            {
                start + event: why
                for start, part in zip(starts, parts, strict=False)
                for event, why in part.refusals.items()
            },
            parts[-1].sequence,
            answers,
            tuple(alarm for part in parts for alarm in part.alarms),
            {name: tuple(some[:MOST_NOTES]) for name, some in notes.items()},
            dict(implausible),
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many events ended as what; the numbers add up to the events received."""
        return counts_of(self.outcomes)


def counts_of(outcomes: np.ndarray) -> dict[str, int]:
    """How many events (event,) ended as what."""
    return dict(zip(OUTCOMES, np.bincount(outcomes, minlength=len(OUTCOMES)).tolist(), strict=True))
