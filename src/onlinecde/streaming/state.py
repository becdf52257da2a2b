"""The state of an engine: the streams in memory, in agreement with a store.

Only this file writes cached arrays, and every commit goes through `EngineState.transaction`. Elsewhere the arrays
are read-only views.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from onlinecde.models import StreamState
from onlinecde.streaming.alarms import stored_alarm_state
from onlinecde.streaming.away import KIND, Away
from onlinecde.streaming.codec import StateCodec
from onlinecde.streaming.errors import (
    CodecError,
    ModelMismatch,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StreamingError,
)
from onlinecde.streaming.events import OUTCOMES, Refusal, counts_of
from onlinecde.streaming.pipeline.long_tails import Prepared
from onlinecde.streaming.pipeline.validate import Limits
from onlinecde.streaming.roster import READ_TOGETHER, Roster
from onlinecde.streaming.served import ServedModel
from onlinecde.streaming.settings import EngineSettings
from onlinecde.streaming.stores.base import Commit, StateRecord, Store, StreamRecord
from onlinecde.streaming.stream_clock import StreamClock

ASK_AGAIN = 2.0
"""Seconds after which a store that could not be reached is asked again where memory knows the answer"""
BEFORE = float("-inf")
"""Time of the state before a stream's first row"""


@dataclass
class Totals:
    """Durable counts."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    alarms: int = 0
    streams: int = 0
    next_stream: int = 1
    channels: tuple[str, ...] = ()
    """Names of the channels that stored rows point to"""
    features: tuple[str, ...] = ()
    """Names of the static features streams were opened with; empty where they are not known"""
    looked: float | None = None
    """`EngineState.looked_at` as it was at the commit"""
    reworks: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By the number of a stream: (first, last) time of rows whose answers a late event changed and are still the old"""

    def text(self) -> str:
        """As a store keeps them."""
        return json.dumps(
            {**vars(self), "outcomes": dict(self.outcomes), "refused": dict(self.refused)}
        )

    @classmethod
    def read(cls, text: str | None) -> Totals:
        """What `text` wrote."""
        if text is None:
            return cls()
        content = json.loads(text)
        counts = {name: Counter(content[name]) for name in ("outcomes", "refused")}
        names = {name: tuple(content.get(name, ())) for name in ("channels", "features")}
        reworks = {int(one): tuple(span) for one, span in content.get("reworks", {}).items()}
        return cls(**{**content, **counts, **names, "reworks": reworks})

    def copy(self) -> Totals:
        """Totals that may be changed, with a count of every outcome."""
        outcomes = Counter({name: self.outcomes[name] for name in OUTCOMES})
        refused, reworks = Counter(self.refused), dict(self.reworks)
        return replace(self, outcomes=outcomes, refused=refused, reworks=reworks)

    def count(self, outcomes: np.ndarray, refusals: Mapping[int, Refusal]) -> None:
        """Add the outcomes of a micro-batch, (event,)."""
        for name, count in counts_of(outcomes).items():
            self.outcomes[name] += count
        if refusals:
            self.refused.update(refusal.code for refusal in refusals.values())


@dataclass
class Transaction:
    """A commit that is being put together, with the totals after it; memory follows once it is durable."""

    commit: Commit
    totals: Totals
    then: list[Callable[[], object]] = field(default_factory=list)
    """What to do to memory when the store has the commit, in this order"""


@dataclass(frozen=True, eq=False)
class Changed:
    """The streams that a micro-batch gave rows, each (stream,), as they are after it."""

    slots: np.ndarray
    rows: np.ndarray
    since: np.ndarray
    """Rows since the newest checkpoint"""
    first: np.ndarray
    last: np.ndarray
    previous: np.ndarray
    """Watched probability after the row before the newest"""
    watched: np.ndarray
    outputs: np.ndarray
    checkpointed: np.ndarray
    """Time of the newest checkpoint"""
    looked: np.ndarray
    """Time of the last look for alarms, of those that know the newest row"""
    armed: np.ndarray
    """Whether an alarm may be raised"""
    last_alarm: np.ndarray
    """Time of the newest alarm, -inf before the first"""


class Recent(NamedTuple):
    """One of the states that a stream keeps in memory."""

    place: int
    age: int
    """0 for the newest, 1 for the one before, ..."""
    time: float


def lost_name(name: str) -> StoreDamaged:
    """What is said of a stream that the store does not find, where its list of streams is damaged."""
    return StoreDamaged(
        f"stream {name!r} is not found, and the store's list of streams is damaged: stop the server, and let "
        "`onlinecde store repair` mend it."
    )


class EngineState:
    """The streams of a store that are in memory: a slot for each; nothing here locks.

    Slot s keeps its newest states at places `s * recent` and on, a ring: `at` is the newest, `kept` how many hold
    a state, `times` when. What the arrays say of a slot is what the store says of its stream.

    Args:
        served: the model.
        store: where the streams are.
        settings: of the engine.
    """

    number: np.ndarray
    rows: np.ndarray
    since: np.ndarray
    first: np.ndarray
    last: np.ndarray
    previous: np.ndarray
    watched: np.ndarray
    received: np.ndarray
    origin: np.ndarray
    checkpointed: np.ndarray
    outputs: np.ndarray
    looked: np.ndarray
    armed: np.ndarray
    last_alarm: np.ndarray

    def __init__(self, served: ServedModel, store: Store, settings: EngineSettings) -> None:
        served.check_device()
        self.served, self.model, self.store, self.settings = served, served.model, store, settings
        self.policy = settings.policy_for(self.model.alarm_policy, self.model.outputs, served.kind)
        self.watched_output = settings.output if self.policy is None else self.policy.output
        self.horizon = served.horizon(None if self.policy is None else self.policy.horizon)
        self.stream_clock: StreamClock | None = None
        """What time it is on the streams; where it is not known, nothing happens between rows until the next one"""
        self.looked_at: float | None = None
        """Wall clock at which no look was due any more at any stream; None where the clock raises no alarms"""
        self.away = Away()
        self.on_commit: Callable[[Commit], None] = lambda commit: None
        """Hears of each commit once it is in the store and in memory"""
        self.retired = False
        """Whether another model has taken over, and this state may change nothing any more"""
        self._turn = 0
        self.roster = Roster(self.model.outputs)
        self.prepared: list[Prepared] = []
        """Streams that late events will change far back, integrated again as far as they are by now"""
        self.most_rows = max(settings.piece_rows, 2 * settings.recent)
        """Rows of a stream that are integrated at once"""
        self.limits = Limits.of(
            self.model, settings.horizon, settings.ranges(served.schema), settings.implausible
        )
        self.ahead = float("inf") if settings.ahead is None else settings.ahead
        self.blank: StreamState = served.begin(
            [0.0] * self.model.static if self.model.static else None
        )
        self.codec = StateCodec(self.blank, served.hash)
        self.sequence, self.totals = -1, Totals()
        self._doubtful = True
        """Whether what is in memory may not be what is in the store"""
        self._torn = False
        """Whether memory is being brought up to date; after a failure, that it is neither old nor new"""
        self._ask_again = 0.0
        self._clear()

    def _clear(self) -> None:
        """Begin with nothing in memory."""
        recent, integer = self.settings.recent, np.empty(0, np.int64)
        self.slot_of: dict[str, int] = {}
        self.names: list[str] = []
        self.static: dict[int, tuple[float, ...]] = {}
        self._free: list[int] = []
        self._capacity = 0
        self._states = self.blank
        self._columns = {
            **dict.fromkeys(("number", "rows", "since", "turn", "at", "kept"), integer),
            **dict.fromkeys(("first", "last", "previous", "watched", "received"), np.empty(0)),
            **dict.fromkeys(
                ("origin", "checkpointed", "looked", "last_alarm", "used"), np.empty(0)
            ),
            "armed": np.empty(0, bool),
            "outputs": np.empty((0, self.model.outputs)),
            "times": np.empty((0, recent)),
        }
        self.away.clear()
        self.roster.clear()
        self._grow(64)

    def _grow(self, capacity: int) -> None:
        """Make room for more streams."""
        more, recent = capacity - self._capacity, self.settings.recent
        for name, old in self._columns.items():
            column = np.concatenate([old, np.zeros((more, *old.shape[1:]), old.dtype)])
            self._columns[name] = column
            if name in EngineState.__annotations__:
                view = column.view()
                view.flags.writeable = False
                setattr(self, name, view)

        def wider(old: Tensor) -> Tensor:
            new = torch.zeros((capacity * recent, *old.shape[1:]), dtype=old.dtype)
            if self._capacity:
                new[: len(old)] = old
            return new

        self._states = self._states._map(wider)
        self._free += range(capacity - 1, self._capacity - 1, -1)
        self.names += [""] * more
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self.slot_of)

    def follow_clock(self, clock: StreamClock | None, wall: float) -> None:
        """Look by a clock from now on, or by none; what was due while nobody did is made up for.

        Where it never was looked by one, nothing is due yet: streams that have ended raise no alarm.
        """
        looking = clock is not None and self.policy is not None and self.policy.every is not None
        if looking and self.looked_at is None:
            self.looked_at = wall if self.totals.looked is None else self.totals.looked
        self.stream_clock = clock
        self.looked_at = self.looked_at if looking else None

    # Reading what is in memory

    def slots(self) -> np.ndarray:
        """The slots of all streams that are in memory."""
        return np.flatnonzero(self.number)

    def followed(self, slots: np.ndarray) -> np.ndarray:
        """What the clock and the alarm policy need of some streams: a table, `away.KIND`."""
        streams = np.empty(len(slots), KIND)
        for name in KIND.names or ():
            streams[name] = self._columns[name][slots]
        return streams

    def looked_until(self, streams: np.ndarray) -> np.ndarray:
        """(stream,): up to when streams (a table as `followed` gives it) were looked at, as they are known now."""
        clock, wall = self.stream_clock, self.looked_at
        if clock is None or wall is None:
            return streams["looked"]
        then = clock.now(streams["last"], streams["received"], streams["origin"], wall)
        known = streams["received"] < wall
        return np.where(known, np.maximum(streams["looked"], then), streams["looked"])

    def newest(self, slots: np.ndarray) -> StreamState:
        """The newest state of each of some streams."""
        return self.states_at(self.newest_places(slots))

    def newest_places(self, slots: np.ndarray) -> np.ndarray:
        """Where the newest states of some streams are."""
        return slots * self.settings.recent + self._columns["at"][slots]

    def states_at(self, places: np.ndarray) -> StreamState:
        """States at some places."""
        index = torch.from_numpy(places)
        return self._states._map(lambda tensor: tensor.index_select(0, index))

    def recent_before(self, slot: int, time: float) -> Recent | None:
        """The newest state in memory that is from before a time; None where none is."""
        newest, times = int(self._columns["at"][slot]), self._columns["times"][slot]
        for age in range(int(self._columns["kept"][slot])):
            at = (newest - age) % len(times)
            if times[at] < time:
                return Recent(slot * len(times) + at, age, float(times[at]))
        return None

    # Agreement with the store

    @contextmanager
    def transaction(
        self, received: float, write: Callable[[Transaction], None] | None = None
    ) -> Iterator[Transaction]:
        """Everything one commit changes: durable when the block ends, and then in memory.

        Where anything fails, memory is doubtful, and `settle` compares it with the store before the next use.

        Args:
            received: the wall clock, seconds.
            write: writes to the store instead of `Store.commit`, without giving the store a new sequence.
        """
        if self.retired:
            raise StreamingError(
                "another model took over while this was being computed: ask again.", "model_changed"
            )
        change = Transaction(Commit(self.sequence + 1, received, ""), self.totals.copy())
        change.totals.looked = self.looked_at
        try:
            yield change
            change.commit.totals = change.totals.text()
            if write is None:
                self.store.commit(change.commit)
            else:
                write(change)
            self._torn = True
            for act in change.then:
                act()
            # Last: where memory was not brought up to date, the sequences differ, and it is read anew.
            if write is None:
                self.sequence = change.commit.sequence
            self.totals, self._torn = change.totals, False
            self.on_commit(change.commit)
        except BaseException:
            if write is not None:
                # It may be done all the same, and no commit's sequence would tell: read everything anew.
                self.sequence = -1
            self._doubtful = True
            raise

    def reread(self) -> None:
        """Read everything anew before the next use."""
        self._doubtful, self.sequence = True, -1

    def settle(self) -> None:
        """Begin from what is in the store, if a commit failed or none was made yet."""
        if not self._doubtful:
            return
        head = self.store.head()
        self._ask_again = 0.0
        if head.model is not None and head.model != self.served.hash:
            raise ModelMismatch(
                f"the store belongs to model {head.model[:12]}, this is {self.served.hash[:12]}: serve "
                "that model, or give rebuild=True (`onlinecde serve --rebuild`) to integrate its stored rows "
                "again under this one."
            )
        if head.model is None:
            self.store.adopt(self.served.hash)
        if head.sequence == self.sequence:
            # Nothing was committed, and memory changes only after that.
            self._drop_unopened()
            self._doubtful = False
            return
        self.sequence, self.totals = head.sequence, Totals.read(head.totals)
        self.totals.channels = self.served.channels
        self.totals.features = self.served.schema.features
        self._clear()
        self._doubtful = self._torn = False

    @property
    def settled(self) -> bool:
        """Whether memory is known to be what is in the store."""
        return not self._doubtful

    def settle_to_read(self) -> None:
        """`settle`; but where the store is away for now, memory still has what was acknowledged last."""
        torn = self._torn or self.sequence < 0
        if not self._doubtful or (not torn and time.monotonic() < self._ask_again):
            return
        try:
            self.settle()
        except (StoreBusy, StoreFull):
            if torn:
                raise
            self._drop_unopened()
            self._ask_again = time.monotonic() + ASK_AGAIN

    def _drop_unopened(self) -> None:
        """Drop the streams that a commit was to open."""
        numbers, slots = self.number, list(self.slot_of.values())
        self.drop([slot for slot in slots if numbers[slot] >= self.totals.next_stream])

    # Bringing streams into memory, and letting them go

    def preload(self) -> None:
        """Bring the streams changed last into memory, as many as may be there."""
        self.load(self.store.streams(self.store.newest(self.settings.resident)))

    def load(self, streams: Sequence[StreamRecord]) -> dict[str, StreamingError]:
        """Bring streams of the store into memory, each as it was; by name, those that cannot be read."""
        stored = {state.stream: state for state in self.store.states([s.number for s in streams])}
        begun = [stream for stream in streams if stream.number in stored]
        unreadable: dict[str, StreamingError] = {}
        states = None
        try:
            if begun:
                states = self.codec.decode([stored[stream.number].body for stream in begun])
                if self.policy is not None:
                    self.store.newest_alarms([stream.number for stream in begun])
        except (CodecError, ModelMismatch) as error:
            if len(streams) == 1:
                return {streams[0].name: error}
            for stream in streams:
                unreadable |= self.load([stream])
            return unreadable
        self.add(streams)
        if states is not None:
            slots = np.array([self.slot_of[stream.name] for stream in begun])
            self._restore(slots, [stored[stream.number] for stream in begun], states)
        return unreadable

    def _restore(
        self, slots: np.ndarray, records: Sequence[StateRecord], states: StreamState
    ) -> None:
        """Give streams in memory the states they have in the store."""
        columns = self._columns
        columns["rows"][slots] = [state.rows for state in records]
        columns["since"][slots] = [state.since for state in records]
        columns["first"][slots] = [state.first for state in records]
        columns["last"][slots] = last = np.array([state.time for state in records])
        columns["received"][slots] = [state.received for state in records]
        columns["used"][slots] = columns["received"][slots]
        columns["previous"][slots] = np.array([state.previous for state in records], np.float64)
        outputs = np.frombuffer(b"".join(state.outputs for state in records), "<f8")
        outputs = outputs.reshape(len(records), self.model.outputs)
        columns["outputs"][slots] = outputs
        columns["watched"][slots] = self.watch(self.served.probabilities(outputs))
        columns["checkpointed"][slots] = np.inf  # not looked up: a cut is asked for in any case
        columns["kept"][slots] = 0
        self._push(slots, last, states)
        numbers, watched = columns["number"][slots], columns["watched"][slots]
        received = columns["received"][slots]
        alarm_state = self._stored_alarm_state(numbers, last, received, watched)
        columns["armed"][slots], columns["last_alarm"][slots], columns["looked"][slots] = (
            alarm_state
        )
        self.away.take(numbers)

    def _stored_alarm_state(
        self, numbers: np.ndarray, last: np.ndarray, received: np.ndarray, watched: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`armed`, `last_alarm` and `looked` of streams of the store, each (stream,)."""
        if self.policy is None:
            return np.ones(len(last), bool), np.full(len(last), BEFORE), last
        newest = self.store.newest_alarms(numbers.tolist())
        return stored_alarm_state(self.policy, numbers, last, received, watched, newest)

    def find_away(self) -> None:
        """Look up the streams of the store that are not in memory, and at which looks may be due."""
        clock, since = self.stream_clock, self.looked_at
        if self.away.complete or clock is None or since is None:
            return
        records = self.store.clocks(since - clock.silent_after / clock.rate)
        here = {*self.number[self.slots()].tolist(), *self.away.table["number"].tolist()}
        records = [one for one in records if one.stream not in here]
        streams = np.zeros(len(records), KIND)
        streams["number"] = numbers = np.array([one.stream for one in records], np.int64)
        streams["last"] = last = np.array([one.time for one in records], np.float64)
        streams["received"] = [one.received for one in records]
        streams["origin"] = np.array([one.origin for one in records], np.float64)
        outputs = np.frombuffer(b"".join(one.outputs for one in records), "<f8")
        outputs = outputs.reshape(len(records), self.model.outputs)
        watched = self.watch(self.served.probabilities(outputs))
        alarm_state = self._stored_alarm_state(numbers, last, streams["received"], watched)
        streams["armed"], streams["last_alarm"], streams["looked"] = alarm_state
        self.away.put(streams)
        self.away.complete = True

    def add(self, streams: Sequence[StreamRecord]) -> list[int]:
        """Slots for streams, each in the state before its first row."""
        if not streams:
            return []
        while len(self._free) < len(streams):
            self._grow(2 * self._capacity)
        slots, columns = [self._free.pop() for _ in streams], self._columns
        for slot, stream in zip(slots, streams, strict=True):
            self.names[slot], self.slot_of[stream.name] = stream.name, slot
            if stream.static is not None:
                self.static[slot] = tuple(np.frombuffer(stream.static, "<f8").tolist())
        at = np.array(slots)
        columns["number"][at] = [stream.number for stream in streams]
        columns["origin"][at] = np.array([stream.origin for stream in streams], np.float64)
        for name in ("rows", "since", "kept"):
            columns[name][at] = 0
        for name in ("first", "received", "previous", "watched", "outputs"):
            columns[name][at] = np.nan
        for name in ("last", "checkpointed", "looked", "last_alarm", "used"):
            columns[name][at] = BEFORE
        columns["armed"][at] = True
        columns["at"][at] = self.settings.recent - 1
        columns["turn"][at] = self._turn
        if self.model.static:
            states = type(self.blank).concatenate([self.begin(slot) for slot in slots])
        else:
            states = self.blank[torch.zeros(len(slots), dtype=torch.int64)]
        self._push(at, np.full(len(slots), BEFORE), states)
        return slots

    def begin(self, slot: int) -> StreamState:
        """The state of a stream before its first row."""
        return self.served.begin(self.static.get(slot))

    def bring(self, names: Iterable[str]) -> dict[str, StreamingError]:
        """Bring streams into memory where the store has them; by name, those that cannot be read."""
        away = [name for name in dict.fromkeys(names) if name not in self.slot_of]
        if not away:
            return {}
        known = [stream for stream in self.store.find(away) if stream is not None]
        unreadable = self.load(known)
        if self.store.names_lost and len(known) < len(away):
            lost = set(away).difference(stream.name for stream in known)
            unreadable |= {name: lost_name(name) for name in lost}
        return unreadable

    @contextmanager
    def visiting(self, names: Iterable[str]) -> Iterator[dict[str, StreamingError]]:
        """Streams of the store in memory for the length of the block; gives those that cannot be read, by name."""
        guests = [name for name in dict.fromkeys(names) if name not in self.slot_of]
        try:
            yield self.bring(guests)
        finally:
            self.drop([self.slot_of[name] for name in guests if name in self.slot_of])

    def slot(self, name: str) -> int:
        """The slot of a stream, brought into memory where the store has it; -1 for an unknown one."""
        unreadable = self.bring([name])
        if name in unreadable:
            raise self.unreadable(name, unreadable[name])
        return self.slot_of.get(name, -1)

    @staticmethod
    def unreadable(name: str, error: StreamingError) -> CodecError:
        """What is said of a stream whose stored state is damaged."""
        return CodecError(
            f"stream {name!r}: {error} `engine.repair(stream)` integrates its stored rows again; "
            "`forget` (DELETE) drops it."
        )

    def drop(self, slots: Iterable[int]) -> int:
        """Drop streams from memory; how many. The clock goes on for those with rows."""
        gone, columns = np.array(list(slots), np.int64), self._columns
        if self.policy is not None and self.policy.every is not None:
            self.away.put(self.followed(gone[np.isfinite(self.last[gone])]))
        if self.roster.read_until:
            self._enrol(gone)
        for slot in gone.tolist():
            self.static.pop(slot, None)
            del self.slot_of[self.names[slot]]
            self.names[slot] = ""
            self._free.append(slot)
        columns["number"][gone] = 0
        return len(gone)

    def drop_idle(self, since: float) -> int:
        """Drop the streams that were not used since a wall clock; how many."""
        used = self._columns["used"]
        return self.drop([slot for slot in self.slot_of.values() if used[slot] < since])

    def make_room(self) -> None:
        """Drop the streams idle longest where there are too many in memory."""
        over = len(self) - self.settings.resident
        if over > 0:
            slots = np.fromiter(self.slot_of.values(), np.int64, len(self))
            idle = np.argsort(self._columns["turn"][slots], kind="stable")
            self.drop(slots[idle[: over + self.settings.resident // 10]].tolist())

    # All streams, in memory or not

    def read_roster(self) -> None:
        """Bring the roster up to date; or, where some of the store are not in it yet, read a piece of those."""
        roster = self.roster
        if not roster.complete and len(self) < self.totals.streams:
            stored = self.store.outlines(roster.read_until, READ_TOGETHER)
            entries = roster.entries(len(stored))
            for name in ("rows", "received", "previous"):
                column = [getattr(state, name) for _, state in stored]
                entries[name] = np.array(column, entries.dtype[name])
            entries["number"] = [stream.number for stream, _ in stored]
            entries["last"] = [state.time for _, state in stored]
            entries["origin"] = np.array([stream.origin for stream, _ in stored], np.float64)
            outputs = np.frombuffer(b"".join(state.outputs for _, state in stored), "<f8")
            entries["outputs"] = outputs.reshape(len(stored), self.model.outputs)
            roster.put(entries, [stream.name for stream, _ in stored])
            roster.complete = len(stored) < READ_TOGETHER
            roster.read_until = stored[-1][0].number if stored else max(1, roster.read_until)
            if not roster.complete:
                return
        roster.complete, roster.read_until = True, max(1, roster.read_until)
        self._enrol(self.slots())

    def _enrol(self, slots: np.ndarray) -> None:
        """Put streams in memory that have a row in the roster."""
        slots = slots[np.isfinite(self.last[slots])]
        entries = self.roster.entries(len(slots))
        for name in entries.dtype.names or ():
            entries[name] = self._columns[name][slots]
        self.roster.put(entries, [self.names[slot] for slot in slots.tolist()])

    def shrink(self) -> None:
        """Give memory back where most of it is free; streams have other slots then."""
        wanted = 64
        while wanted < len(self):
            wanted *= 2
        if wanted > self._capacity // 2:
            return
        old, recent = self.slots(), self.settings.recent
        names = [self.names[slot] for slot in old.tolist()]
        static = {place: self.static.get(slot) for place, slot in enumerate(old.tolist())}
        kept = torch.from_numpy((old[:, None] * recent + np.arange(recent)).reshape(-1))
        self._columns = {name: column[old] for name, column in self._columns.items()}
        self._states = self._states._map(lambda tensor: tensor.index_select(0, kept))
        self.names, self.slot_of = names, {name: place for place, name in enumerate(names)}
        self.static = {
            place: features for place, features in static.items() if features is not None
        }
        self._free, self._capacity = [], len(old)
        self._grow(wanted)

    # What a commit changes

    def advance(
        self,
        commit: Commit,
        changed: Changed,
        cuts: Iterable[tuple[int, float]],
        newer: Iterable[tuple[np.ndarray, np.ndarray, StreamState]],
    ) -> None:
        """Bring memory up to a commit.

        Args:
            commit: what the store has now.
            changed: the streams it gave rows.
            cuts: (slot, time): the states of a stream from this time on no longer hold; done first.
            newer: (slots, times, states), oldest first; no stream twice in one of them.
        """
        columns = self._columns
        for slot, time_ in cuts:
            while columns["kept"][slot] and columns["times"][slot, columns["at"][slot]] >= time_:
                columns["kept"][slot] -= 1
                columns["at"][slot] = (columns["at"][slot] - 1) % self.settings.recent
        for slots, times, states in newer:
            self._push(slots, times, states)
        for name, column in vars(changed).items():
            if name != "slots":
                columns[name][changed.slots] = column
        columns["received"][changed.slots] = commit.received
        self.use(changed.slots, commit.received)

    def use(self, slots: np.ndarray, wall: float) -> None:
        """Note that streams were used at a wall clock: those used last stay in memory longest."""
        self._turn += 1
        self._columns["turn"][slots], self._columns["used"][slots] = self._turn, wall

    def see(self, slots: np.ndarray, streams: np.ndarray) -> None:
        """What looks between rows came to (a table as `followed` gives it); alarms are in the store by now."""
        for name in ("looked", "armed", "last_alarm"):
            self._columns[name][slots] = streams[name]

    def see_away(self, streams: np.ndarray) -> None:
        """`see` for streams that are not in memory."""
        self.away.put(streams)

    def _push(self, slots: np.ndarray, times: np.ndarray, states: StreamState) -> None:
        """A newer state for each of some streams, none of them named twice."""
        columns, recent = self._columns, self.settings.recent
        at = (columns["at"][slots] + 1) % recent
        columns["at"][slots] = at
        columns["kept"][slots] = np.minimum(columns["kept"][slots] + 1, recent)
        columns["times"][slots, at] = times
        index = torch.from_numpy(slots * recent + at)
        for one in fields(self._states):
            cached = getattr(self._states, one.name)
            if cached is not None:
                cached.index_copy_(0, index, getattr(states, one.name))

    def watch(self, probabilities: np.ndarray) -> np.ndarray:
        """The number alarms look at, (...,) of what `ServedModel.probabilities` gives (..., output)."""
        return self.served.risks(probabilities, self.horizon)[..., self.watched_output]
