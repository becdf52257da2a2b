"""Another model beside the one that serves: built in pieces from stored rows, compared, promoted or thrown away.

The store says who serves: the model that its head names. A model that is being built is noted in the store with the
folder it is in, and its states stand in tables of their own, each with the commit as of which it has the stream's rows.
Whatever ends the process, the next one goes on from there, or, where that folder no longer has that model, deletes
them. Taking over is one transaction: the tables change places, and the head names the other model.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.models import StreamState
from onlinecde.streaming.codec import dense_rows
from onlinecde.streaming.errors import CodecError, StreamingError
from onlinecde.streaming.pieces import Progress
from onlinecde.streaming.pipeline.integrate import Integrated, integrate
from onlinecde.streaming.served import ServedModel, named_model, served_model
from onlinecde.streaming.state import EngineState, Transaction
from onlinecde.streaming.stores.base import Commit, RowRecord, StateRecord, Store

if TYPE_CHECKING:
    from onlinecde.streaming.engine import Engine

_LOGGER = logging.getLogger("onlinecde.streaming")
STREAMS, ROWS = 64, 1_024
"""Streams and rows of one piece"""
TIMED = 16
"""One piece in so many is integrated by both models, to compare how long they take"""
BEFORE = float("-inf")
_COMPARED = np.dtype([("difference", "f8"), ("live", "?"), ("shadow", "?")])


@dataclass(frozen=True)
class ShadowStatus:
    """How far another model is, and how its answers differ from those of the one that serves."""

    state: str
    """`none`, `clearing` (what is left of one is being deleted), `building` or `following`"""
    model: str | None = None
    """Content hash"""
    folder: str | None = None
    streams: int = 0
    built: int = 0
    """Streams whose rows it has all seen"""
    from_cut: int = 0
    """Streams whose first rows are gone: it begins with the rows that are left, as if these were the first"""
    failed: tuple[str, ...] = ()
    """Streams that it cannot follow, the first ten: it does not take over"""
    compared: int = 0
    mean_difference: float | None = None
    """Mean absolute difference of the watched number after the newest row, over the streams compared"""
    largest_difference: float | None = None
    alarms_disagree: int = 0
    """Streams at or above the threshold of one model alone"""
    row_seconds: float | None = None
    """What a row costs under it, and under the one that serves, integrated side by side with others"""
    live_row_seconds: float | None = None


@dataclass(frozen=True)
class Difference:
    """What both models say of a stream after its newest row."""

    stream: str
    time: float
    live: tuple[float, ...]
    shadow: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class _Next:
    """The next rows of a stream and the state they follow."""

    live: StateRecord
    base: StreamState | None
    """None before the first row"""
    since: int
    previous: float | None
    rows: list[RowRecord]
    old: StateRecord | None
    """The state that stays where there are no rows"""


class Shadow:
    """The other model of an engine, if there is one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.state: EngineState | None = None
        """Of the other model; it owns nothing in the store until it takes over"""
        self.folder: str | None = None
        self._clearing = False
        self._begin_again()
        notes = engine.store.notes
        self._clearing = bool(notes.get("clearing"))
        if noted := notes.get("shadow"):
            self._resume(noted)

    def _begin_again(self) -> None:
        self._behind: dict[int, None] = {}
        self._scanned: int | None = 0
        """All streams up to this number were looked at; None after the last"""
        self._failed: dict[int, str] = {}
        self._from_cut: set[int] = set()
        self._compared = np.zeros(0, _COMPARED)
        self._known = np.zeros(0, bool)
        self._pieces = 0
        self._spent = np.zeros((2, 2))
        """(this model, the one that serves): seconds, rows"""

    def _resume(self, noted: dict[str, Any]) -> None:
        try:
            served = served_model(noted["folder"])
            if served.hash != noted["model"]:
                raise StreamingError("the folder has another model by now.")
            self._take(served, noted["folder"])
        except (ValueError, OSError) as error:
            _LOGGER.warning(
                "shadow discarded",
                extra={"told": {"folder": noted["folder"], "reason": str(error)}},
            )
            self._note_end()

    def _take(self, served: ServedModel, folder: str) -> None:
        live = self._engine._state
        check_fit(live.served, served)
        state = EngineState(served, self._engine.store, self._engine.settings)
        self._begin_again()
        self.state, self.folder = state, folder

    # What an operator asks for

    def begin(
        self, folder: str | os.PathLike[str], served: ServedModel | None = None
    ) -> ShadowStatus:
        """Begin to build the model in a folder, which may be loaded already, beside the one that serves."""
        home = str(Path(folder).resolve())
        served = served or served_model(home)
        with self._engine._ready() as live:
            if self.state is not None or self._clearing:
                raise StreamingError(
                    "there is another model beside the one that serves already: promote or discard it first.",
                    "shadow_exists",
                )
            check_fit(live.served, served)
            notes = live.store.notes
            live.store.write_notes(
                {**notes, "shadow": {"model": served.hash, "folder": home}, "clearing": False}
            )
            self._take(served, home)
            return self.status()

    def discard(self) -> None:
        """Throw the other model away; its states are deleted piece by piece."""
        with self._engine._ready():
            self._needed()
            self._note_end()

    def _note_end(self) -> None:
        store = self._engine.store
        store.write_notes({**store.notes, "shadow": None, "clearing": True})
        self.state, self.folder, self._clearing = None, None, True

    def _needed(self) -> EngineState:
        if self.state is None:
            raise StreamingError("there is no model beside the one that serves.", "shadow_none")
        return self.state

    def promote_pieces(self) -> Iterator[Progress | ShadowStatus]:
        """Let the other model take over, once it has seen all rows: pieces that catch up, then one transaction."""
        while True:
            with self._engine._ready() as live:
                new = self._needed()
                if self._failed:
                    names = ", ".join(self._failed.values())
                    raise StreamingError(
                        f"the model cannot follow {len(self._failed)} streams ({names[:200]}): discard it, or forget "
                        "those streams.",
                        "shadow_failed",
                    )
                more = self.piece()
                if not more:
                    self._switch(live, new)
                result = (
                    Progress(int(self._known.sum()), live.totals.streams) if more else self.status()
                )
            yield result
            if not more:
                return

    def _switch(self, live: EngineState, new: EngineState) -> None:
        store, notes = live.store, live.store.notes
        entry = {
            "from": live.served.hash, "to": new.served.hash, "folder": self.folder,
            "sequence": live.sequence, "at": self._engine.clock(),
        }  # fmt: skip
        after = {
            **notes, "shadow": None, "clearing": True,
            "took_over": [*notes.get("took_over", []), entry],
        }  # fmt: skip

        def write(change: Transaction) -> None:
            store.promote(new.served.hash, change.totals.text(), after)

        with live.transaction(0.0, write):
            pass
        self.state, self.folder, self._clearing = None, None, True
        self._engine._follow(new)
        _LOGGER.info("model changed", extra={"told": {"model": new.served.hash[:12]}})

    def status(self) -> ShadowStatus:
        """How far it is."""
        with self._engine._reading() as live:
            if self.state is None:
                return ShadowStatus("clearing" if self._clearing else "none")
            known = self._compared[self._known]
            spent = [float(s / n) if n else None for s, n in self._spent]
            return ShadowStatus(
                "building" if self._scanned is not None or self._left() else "following",
                self.state.served.hash,
                self.folder,
                streams=live.totals.streams,
                built=int(self._known.sum()),
                from_cut=len(self._from_cut),
                failed=tuple(list(self._failed.values())[:10]),
                compared=len(known),
                mean_difference=float(known["difference"].mean()) if len(known) else None,
                largest_difference=float(known["difference"].max()) if len(known) else None,
                alarms_disagree=int((known["live"] != known["shadow"]).sum()),
                row_seconds=spent[0],
                live_row_seconds=spent[1],
            )

    def _left(self) -> bool:
        """Whether streams are behind that it has never seen whole."""
        return any(number >= len(self._known) or not self._known[number] for number in self._behind)

    def difference(self, stream: str) -> Difference:
        """What both models say of a stream after its newest row."""
        with self._engine._reading() as live:
            new = self._needed()
            number = self._engine._number(live, stream)
            states, shadow = live.store.states([number]), live.store.shadows([number]).get(number)
            if not states or shadow is None or shadow.state.time != states[0].time:
                raise StreamingError(f"stream {stream!r} is not built yet.", "shadow_behind")
            says = [
                one.served.probabilities(np.frombuffer(record.outputs, "<f8"))
                for one, record in ((live, states[0]), (new, shadow.state))
            ]
            return Difference(stream, states[0].time, *(tuple(one.tolist()) for one in says))

    # Piece by piece

    @property
    def at_work(self) -> bool:
        """Whether there is another model, or something left of one."""
        return self.state is not None or self._clearing

    def heard(self, commit: Commit) -> None:
        """Note the streams that a commit changed."""
        if self.state is not None:
            self._behind.update(dict.fromkeys(one[0] for one in commit.states))

    def piece(self) -> bool:
        """The next piece of what there is to do; False where there is nothing."""
        with self._engine._ready() as live:
            if self.state is None:
                return self._clear()
            if self._scanned is not None:
                self._scan(live, self._scanned)
                return True
            if not self._behind:
                return False
            some = list(self._behind)[:STREAMS]
            for number in some:
                del self._behind[number]
            self._advance(live, self.state, some)
            return True

    def _clear(self) -> bool:
        if not self._clearing:
            return False
        store = self._engine.store
        if not store.clear_shadows():
            store.write_notes({**store.notes, "clearing": False})
            self._clearing = False
        return True

    def _scan(self, live: EngineState, after: int) -> None:
        """Find streams that it has not seen all rows of, and compare the others."""
        part = live.store.sequences(after, 4 * STREAMS)
        self._scanned = part[-1][0] if part else None
        done = [one[0] for one in part if one[2] is not None and one[2] >= one[1]]
        self._behind.update(dict.fromkeys(sorted({one[0] for one in part}.difference(done))))
        if done:
            shadows = live.store.shadows(done)
            states = {one.stream: one for one in live.store.states(done)}
            self._compare(live, [(states[n], shadows[n].state) for n in done if n in states])

    def _advance(self, live: EngineState, new: EngineState, numbers: Sequence[int]) -> None:
        """Integrate the next rows of some streams, and write the states they come to."""
        store, room = live.store, ROWS
        shadows = store.shadows(numbers)
        streams = {one.number: one for one in store.streams(numbers)}
        cuts: list[tuple[int, float]] = []
        work: list[_Next] = []
        for record in store.states(numbers):
            number = record.stream
            if room <= 0:
                self._behind[number] = None
                continue
            try:
                live.codec.decode([record.body])
                one = self._next(store, new, record, shadows.get(number), room, cuts)
            except CodecError as error:
                self._failed[number] = f"{streams[number].name!r}: {error}"
                continue
            self._failed.pop(number, None)
            room -= len(one.rows)
            work.append(one)
        moving = [one for one in work if one.rows]
        written = [(one.old, live.sequence) for one in work if not one.rows and one.old is not None]
        checkpoints: list[tuple] = []
        if moving:
            done = self._integrated(live, new, moving, streams)
            self._fill(live, new, moving, done, written, checkpoints)
        store.put_shadows(written, checkpoints, cuts)
        known = {one.live.stream: one.live for one in work}
        whole = []
        for record, _ in written:
            if record.time == known[record.stream].time:
                whole.append((known[record.stream], record))
            else:
                self._behind[record.stream] = None
        self._compare(live, whole)

    def _next(
        self,
        store: Store,
        new: EngineState,
        record: StateRecord,
        shadow: Any,
        room: int,
        cuts: list,
    ) -> _Next:
        """What to integrate next of a stream."""
        number, base, since, at, previous, old = record.stream, None, 0, BEFORE, None, None
        if shadow is not None:
            try:
                base = new.codec.decode([shadow.state.body])
                old, at, since = shadow.state, shadow.state.time, shadow.state.since
                outputs = np.frombuffer(shadow.state.outputs, "<f8")
                previous = float(new.watch(new.served.probabilities(outputs)))
            except CodecError:  # of another model, or damaged: from the beginning
                base = None
        if shadow is not None and base is not None:
            newest = store.rows(number, until=at, newest=1)
            if newest and newest[0].sequence > shadow.sequence:
                changed = store.changed_since(number, shadow.sequence)
                cuts.append((number, changed))
                kept = store.shadow_checkpoint(number, changed)
                base = None if kept is None else new.codec.decode([kept.body])
                at, since, previous, old = BEFORE if kept is None else kept.time, 0, None, None
        rows = store.next_rows(number, at, room)
        if rows and rows[0].before is not None and rows[0].before > at:
            base, at, since, previous = None, BEFORE, 0, None  # rows were deleted that it never saw
            cuts.append((number, BEFORE))
            rows = store.next_rows(number, at, room)
        if base is None and rows:
            first = rows[0].before
            if store.pruned() if first is None else first > BEFORE:
                self._from_cut.add(number)
        if old is not None:
            old = old._replace(rows=record.rows, first=record.first, received=record.received)
        return _Next(record, base, since, previous, rows, old)

    def _integrated(
        self, live: EngineState, new: EngineState, moving: list[_Next], streams: dict
    ) -> Integrated:
        def begin(one: _Next) -> StreamState:
            if one.base is not None:
                return one.base
            static = streams[one.live.stream].static
            return new.served.begin(
                None if static is None else np.frombuffer(static, "<f8").tolist()
            )

        flat = [row for one in moving for row in one.rows]
        lengths = np.array([len(one.rows) for one in moving])
        times = np.array([row.time for row in flat])
        values = dense_rows(flat, new.model.channels)
        start = type(new.blank).concatenate([begin(one) for one in moving])
        began = time.perf_counter()
        done = integrate(new.served.live, start, lengths, times, values)
        self._pieces += 1
        if self._pieces % TIMED == 0:
            self._spent[0] += (time.perf_counter() - began, len(flat))
            own = live.codec.decode([one.live.body for one in moving])
            began, last = time.perf_counter(), np.array([one.live.time for one in moving])
            shift = np.repeat(last, lengths) + 1.0 + np.arange(len(flat))
            integrate(live.served.live, own, lengths, np.minimum(shift, live.limits.latest), values)
            self._spent[1] += (time.perf_counter() - began, len(flat))
        for row in done.bad:
            number = flat[row].stream
            self._failed[number] = (
                f"{streams[number].name!r}: its row at {flat[row].time!r} has no finite state under this model"
            )
        return done

    def _fill(
        self,
        live: EngineState,
        new: EngineState,
        moving: list[_Next],
        done: Integrated,
        written: list,
        checkpoints: list[tuple],
    ) -> None:
        step, end = new.settings.checkpoint_rows, 0
        watched = new.watch(new.served.probabilities(done.outputs))
        for one in moving:
            begin, end = end, end + len(one.rows)
            number = one.live.stream
            if number in self._failed:
                continue
            due = np.arange(begin + max(0, step - 1 - one.since), end, step)
            since = one.since + end - begin if not len(due) else end - 1 - int(due[-1])
            places = np.append(due, end - 1)
            bodies = new.codec.encode(done.states_of(places))
            checkpoints += [
                (number, one.rows[place - begin].time, body)
                for place, body in zip(due.tolist(), bodies, strict=False)
            ]
            record = StateRecord(
                number,
                one.rows[-1].time,
                one.live.rows,
                since,
                one.live.first,
                float(watched[end - 2]) if end - begin > 1 else one.previous,
                one.live.received,
                done.outputs[end - 1].astype("<f8").tobytes(),
                bodies[-1],
            )
            written.append((record, live.sequence))

    def _compare(self, live: EngineState, pairs: Sequence[tuple[StateRecord, StateRecord]]) -> None:
        """Note what both models say of some streams."""
        assert self.state is not None
        if not pairs:
            return
        watched = [
            one.watch(
                one.served.probabilities(
                    np.array([np.frombuffer(pair[place].outputs, "<f8") for pair in pairs])
                )
            )
            for place, one in enumerate((live, self.state))
        ]
        numbers = np.array([pair[0].stream for pair in pairs])
        if (wide := int(numbers.max()) + 1) > len(self._known):
            more = max(wide, 2 * len(self._known)) - len(self._known)
            self._known = np.append(self._known, np.zeros(more, bool))
            self._compared = np.append(self._compared, np.zeros(more, _COMPARED))
        self._known[numbers] = True
        self._compared["difference"][numbers] = np.abs(watched[0] - watched[1])
        for name, one, says in zip(("live", "shadow"), (live, self.state), watched, strict=True):
            threshold = float("inf") if one.policy is None else one.policy.threshold
            self._compared[name][numbers] = says >= threshold


def check_fit(live: ServedModel, other: ServedModel) -> None:
    """Refuse a model that cannot take the place of the one that serves while it does."""
    why = None
    if other.hash == live.hash:
        why = "it is the model that serves"
    elif other.channels != live.channels:
        why = "its channels are others, or in another order"
    elif (other.kind, other.model.outputs) != (live.kind, live.model.outputs):
        why = "it answers something else"
    elif other.forecasts != live.forecasts:
        why = "its forecasts are others"
    elif (other.schema.features, other.model.static) != (live.schema.features, live.model.static):
        why = "its static features are others"
    elif (
        other.bins is not None
        and live.bins is not None
        and (other.bins.edges.tolist() != live.bins.edges.tolist())
    ):
        why = "its horizons are others"
    if why is not None:
        raise StreamingError(
            f"the model {other.hash[:12]} cannot be built beside {live.hash[:12]}: {why}. Stop the server and start "
            "it with --rebuild, or begin a new store.",
            "shadow_unfit",
        )


def successor(store: Store, model: str | os.PathLike[str]) -> str | None:
    """The folder of the model that took over from the one in a folder; None where none did."""
    serving, given = store.head().model, named_model(model).hash
    entries = store.notes.get("took_over", [])
    folder = next((one["folder"] for one in reversed(entries) if one["to"] == serving), None)
    known = given in {one["from"] for one in entries} | {one["to"] for one in entries}
    if folder is None or not known or given == serving:
        return None
    try:
        return folder if named_model(folder).hash == serving else None
    except (ValueError, OSError):
        return None
