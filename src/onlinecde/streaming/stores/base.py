"""What an engine needs of a store: commit a micro-batch whole or not at all, and read it back.

Another store needs these methods and no more; `tests/streaming` runs the same tests on every store. Streams are
numbered by the engine; bytes are the engine's business (`codec`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from onlinecde.streaming.alarms import Alarm


class StreamRecord(NamedTuple):
    """A stream as it was opened."""

    number: int
    name: str
    static: bytes | None
    origin: float | None


class RowRecord(NamedTuple):
    """A row of a stream and the answer after it."""

    stream: int
    time: float
    sequence: int
    events: bytes
    more: str | None
    outputs: bytes
    before: float | None = None
    """Time of the stream's row before it, -inf for the first; None where that was not written down"""


class StateRecord(NamedTuple):
    """The newest state of a stream, with what is shown of it without decoding it."""

    stream: int
    time: float
    rows: int
    since: int
    """Rows since the newest checkpoint"""
    first: float
    """Time of the first row"""
    previous: float | None
    """The watched probability after the row before the newest"""
    received: float
    outputs: bytes
    body: bytes


class ClockRecord(NamedTuple):
    """What the clock and the alarm policy need of a stream whose state is not read."""

    stream: int
    time: float
    """of its newest row"""
    received: float
    origin: float | None
    outputs: bytes


class ShadowRecord(NamedTuple):
    """What another model makes of a stream: of its rows up to `state.time`, as they were at a commit."""

    state: StateRecord
    sequence: int


class Floor(NamedTuple):
    """Up to where a stream's rows may be deleted: the time of a state that is kept."""

    stream: int
    time: float


class CheckpointRecord(NamedTuple):
    """The state after one row, kept for good."""

    stream: int
    time: float
    body: bytes


class RevisedRecord(NamedTuple):
    """An answer that a late or corrected event changed."""

    stream: int
    time: float
    sequence: int
    outputs: bytes


class RefusedRecord(NamedTuple):
    """An event that was refused, as far as it could be told."""

    stream: str
    time: str
    channel: str
    value: str
    code: str


@dataclass
class Commit:
    """Everything one micro-batch changes; all of it becomes durable, or nothing.

    Entries are plain tuples of a record's fields in their order: Python's garbage collector lets go of
    those, and would look through named ones again and again.
    """

    sequence: int
    received: float
    totals: str
    """The engine's counters after this commit, as JSON"""
    opened: list[tuple] = field(default_factory=list)
    """of `StreamRecord`"""
    rows: list[tuple] = field(default_factory=list)
    """of `RowRecord`; new rows, and known ones to be replaced"""
    states: list[tuple] = field(default_factory=list)
    """of `StateRecord`"""
    cuts: list[tuple[int, float]] = field(default_factory=list)
    """(stream, time): checkpoints from this time on no longer hold; done before `checkpoints`"""
    checkpoints: list[tuple] = field(default_factory=list)
    """of `CheckpointRecord`"""
    revised: list[tuple] = field(default_factory=list)
    """of `RevisedRecord`"""
    refused: list[tuple] = field(default_factory=list)
    """of `RefusedRecord`"""
    rearmed: list[tuple[int, float]] = field(default_factory=list)
    """(stream, time), no stream twice: its newest alarm is over from this time on, if it was not before; done before
    `alarms`"""
    alarms: list[tuple] = field(default_factory=list)
    """of `Alarm`"""


def rearmed_alarms(store: Any, rearmed: Sequence[tuple[int, float]]) -> list[tuple]:
    """The newest alarm of each of some streams, over from a time on at the latest: (stream, time) of `Commit`."""
    if not rearmed:
        return []
    over = dict(rearmed)
    result = []
    for alarm in store.newest_alarms(list(over)):
        times = [over[alarm.stream], *([] if alarm.rearmed is None else [alarm.rearmed])]
        result.append(astuple(replace(alarm, rearmed=min(times))))
    return result


class StoreHead(NamedTuple):
    """Where a store stands."""

    model: str | None
    """Hash of the model its states belong to; None for a store that was never used"""
    sequence: int
    totals: str | None


class Store(Protocol):
    """Durable home of streams, rows, states and answers. Methods raise `StoreError` where they fail.

    Only one engine may write to a store; a commit whose sequence does not follow the store's own is
    refused. An engine calls from one thread at a time.
    """

    @property
    def names_lost(self) -> bool:
        """Whether the list of streams is damaged, so that a stream that is not found may have been lost."""
        ...

    def head(self) -> StoreHead:
        """Where the store stands."""
        ...

    def adopt(self, model: str) -> None:
        """Bind a store that was never used to a model."""
        ...

    def commit(self, commit: Commit) -> None:
        """Make a micro-batch durable, whole or not at all."""
        ...

    def check_writable(self) -> None:
        """Raise `StoreError` where a commit would fail; writes something of no meaning, durably."""
        ...

    def rebuild(self, model: str, commits: Iterable[Commit]) -> None:
        """In one transaction: drop all states and checkpoints, apply these commits, bind to the model."""
        ...

    def find(self, names: Sequence[str]) -> list[StreamRecord | None]:
        """Streams by name."""
        ...

    def streams(self, numbers: Sequence[int] | None = None) -> list[StreamRecord]:
        """Streams by number, default all, in order of number."""
        ...

    def states(self, numbers: Sequence[int] | None = None) -> list[StateRecord]:
        """Newest states, default all, in order of number; those of streams without rows are left out."""
        ...

    def clocks(self, since: float) -> list[ClockRecord]:
        """Streams with rows that a commit changed from a wall clock on, and all that have an origin, by number."""
        ...

    def outlines(self, after: int, most: int) -> list[tuple[StreamRecord, StateRecord]]:
        """Streams with rows, by number, from after a number on, at most so many; their states have no body."""
        ...

    def newest(self, most: int) -> list[int]:
        """The streams changed last, at most so many."""
        ...

    def rows(
        self,
        stream: int,
        since: float = float("-inf"),
        until: float = float("inf"),
        *,
        newest: int | None = None,
        oldest: int | None = None,
    ) -> list[RowRecord]:
        """Rows with since <= time <= until in order of time; at most the `newest` or the `oldest` of them."""
        ...

    def received(self, sequences: Sequence[int]) -> dict[int, float]:
        """The wall clock of some commits."""
        ...

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        """The newest checkpoint before a time, that time not included."""
        ...

    def revised(self, stream: int) -> list[RevisedRecord]:
        """Answers that were changed later, oldest first."""
        ...

    def refused(self, most: int = 1000) -> list[RefusedRecord]:
        """Refused events, newest first."""
        ...

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[int]]:
        """Alarms, newest first."""
        ...

    def newest_alarms(self, streams: Sequence[int] | None = None) -> list[Alarm[int]]:
        """The alarm raised last of each stream that has one, default all, in order of stream."""
        ...

    def acknowledge(self, number: int, at: float, by: str) -> Alarm[int] | None:
        """Mark an alarm as seen unless it is already; None where there is no such alarm."""
        ...

    def pruned(self) -> bool:
        """Whether rows were ever pruned."""
        ...

    def prune(self, keep: float) -> int:
        """Delete rows and checkpoints that no row within `keep` of a stream's newest needs; how many rows."""
        ...

    def sequence_at(self, wall: float) -> int:
        """Number of the newest commit from before a wall clock."""
        ...

    def floors(
        self, after: int, most: int, *, keep: float | None, lateness: float, old: int | None
    ) -> tuple[list[Floor], int, int | None] | None:
        """Where the next `most` streams after a number may be cut, the last of them, the oldest commit of a row.

        keep: rows more than this before the newest go; old: rows of commits up to this one go. Rows within
        `lateness` of the newest, and those from the state before them on, stay in any case.
        """
        ...

    def cut(self, floors: Sequence[Floor], most: int = 2_000) -> tuple[int, int]:
        """Delete about `most` rows up to some floors in one transaction: how many went, how many floors are done."""
        ...

    def drop_old(self, wall: float | None, old: int, least: int, most: int = 1_000) -> int:
        """Delete a few alarms raised before a wall clock, but each stream's newest, and events refused up to a commit.

        least: the oldest commit that a row is from; those before it go, too.
        """
        ...

    def first_row(self, stream: int) -> RowRecord | None:
        """The oldest row of a stream that is stored."""
        ...

    def next_rows(self, stream: int, after: float, most: int) -> list[RowRecord]:
        """The first rows after a time, at most so many."""
        ...

    def changed_since(self, stream: int, sequence: int) -> float:
        """Time of the first row that a commit after this one wrote; there must be one."""
        ...

    def over(self, ended: float | None, idle: float | None, most: int) -> list[StreamRecord]:
        """Streams whose end was told before a wall clock, or that no event has changed since one."""
        ...

    def end(self, stream: int, at: float) -> None:
        """Note that a stream's end was told."""
        ...

    def compact(self, pages: int | None = None) -> int:
        """Give back room that is free in the store, `pages` at most, all by default; how many are still free."""
        ...

    @property
    def notes(self) -> dict[str, Any]:
        """What is noted of the store: the model that is being built for it, those that served before."""
        ...

    def write_notes(self, notes: Mapping[str, Any]) -> None:
        """Note something else."""
        ...

    def shadows(self, numbers: Sequence[int]) -> dict[int, ShadowRecord]:
        """What the model that is being built makes of some streams."""
        ...

    def shadow_checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        """`checkpoint` of the model that is being built."""
        ...

    def sequences(self, after: int, most: int) -> list[tuple[int, int, int | None]]:
        """(stream, commit that changed its state, commit as of which the shadow has all its rows) after a number."""
        ...

    def put_shadows(
        self,
        states: Sequence[tuple[StateRecord, int]],
        checkpoints: Sequence[tuple],
        cuts: Sequence[tuple[int, float]],
    ) -> None:
        """Write states of the model that is being built, each with the commit as of which it holds."""
        ...

    def promote(self, model: str, totals: str, notes: Mapping[str, Any]) -> None:
        """In one transaction: the shadow's states are the store's, and the store's the shadow's."""
        ...

    def clear_shadows(self, most: int = 500) -> int:
        """Delete a few of the shadow's states; 0 once there are none."""
        ...

    def forget(self, stream: int, totals: str) -> None:
        """Delete a stream and all that belongs to it."""
        ...

    def alarms_from(self, number: int, most: int) -> list[Alarm[int]]:
        """Alarms from a number on, oldest first, at most so many."""
        ...

    def kept(self, key: str) -> str | None:
        """The text that was kept under a key."""
        ...

    def keep(self, key: str, text: str) -> None:
        """Keep a small text under a key in the place of what was there, durably; states have nothing to do with it."""
        ...

    def close(self) -> None:
        """Let go of the store; what was committed stays."""
        ...
