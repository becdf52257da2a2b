"""What the stores in SQLite and in PostgreSQL share: all that is asked of tables in SQL, and the checksums of records.

A store adds how it runs a statement, and how it writes many records.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Any, NamedTuple

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.errors import (
    StoreCorrupt,
    StoreDamaged,
    StoreError,
)
from onlinecde.streaming.stores.base import (
    CheckpointRecord,
    ClockRecord,
    Commit,
    Floor,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    ShadowRecord,
    StateRecord,
    StoreHead,
    StreamRecord,
    rearmed_alarms,
)
from onlinecde.streaming.stores.tables import (
    CHECKSUMS,
    FIELDS,
    HEAD,
    KEYS,
    KINDS,
    PER_STREAM,
    SHADOW,
)

KEPT_REFUSALS = 100_000
"""Refused events are for looking into; only the newest are kept, so that nobody can fill the disk with them."""
REMEDY = "stop the server, then `onlinecde store check` names all that is damaged and `onlinecde store repair` mends it"


class Meta(NamedTuple):
    """The one record about the store itself."""

    schema: int
    model: str | None
    sequence: int
    totals: str | None
    pruned: int
    notes: str | None


class RelationalStore:
    """A store in tables; its subclasses say how statements are run. Placeholders are question marks."""

    _head: Meta | None = None
    """The record about the store as it was last read or written; None where it must be read"""
    unchecked = False
    """Whether records without a checksum are taken as they are: those of a store of an earlier version"""
    names_lost = False
    """Whether the list of streams is damaged, so that a stream that is not found may have been lost"""

    # What a subclass adds

    def _read(self, sql: str, values: Sequence[Any] = (), stream: int | None = None) -> list[tuple]:
        """The answer to a question, about a stream where one is given."""
        raise NotImplementedError

    def _change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement in a transaction; how many records it changed."""
        raise NotImplementedError

    def _put(self, table: str, records: Sequence[tuple]) -> None:
        """Write records that have their checksums, in a transaction."""
        raise NotImplementedError

    def _cut(self, table: str, cuts: Sequence[tuple[int, float]]) -> None:
        """Delete the checkpoints of some streams from a time on, in a transaction."""
        raise NotImplementedError

    def _transaction(self) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def compact(self, pages: int | None = None) -> int:
        """Give back room that is free in the store, `pages` at most, all by default; how many are still free."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store; what was committed stays."""
        raise NotImplementedError

    def _claim(self, before: Meta, after: Meta, crc: int) -> bool:
        """Write the record about the store if nobody else has since."""
        sql = "UPDATE meta SET sequence = ?, totals = ?, crc = ? WHERE sequence = ?"
        return self._change(sql, (after.sequence, after.totals, crc, before.sequence)) == 1

    # The record about the store

    def _meta(self) -> Meta:
        fields = "schema, model, sequence, totals, pruned, notes, crc"
        stored = self._read(f"SELECT {fields} FROM meta")[0]
        if not self._sound(HEAD, [stored])[0]:
            raise StoreError(
                f"{self}: the record about the store itself is damaged: take the store from a backup, or {REMEDY}."
            )
        self._head = Meta(*stored[:-1])
        return self._head

    def _write_meta(self, **changes: Any) -> None:
        """Change the record about the store, in a transaction."""
        head = self._meta()._replace(**changes)
        fields = ", ".join(f"{name} = ?" for name in head._fields)
        self._head = None
        self._change(f"UPDATE meta SET {fields}, crc = ?", (*head, HEAD.of([head])[0]))

    def _seal_meta(self, **notes: Any) -> None:
        """Give the record about a new or an older store its checksum."""
        fields = "schema, model, sequence, totals, pruned, notes"
        head = self._read(f"SELECT {fields} FROM meta")[0]
        head = Meta(*head)._replace(notes=json.dumps(notes), pruned=int(head[4]))
        self._change("UPDATE meta SET notes = ?, crc = ?", (head.notes, HEAD.of([head])[0]))

    @property
    def notes(self) -> dict[str, Any]:
        """What is noted of the store: the model that is being built for it, those that served before."""
        return json.loads(self._meta().notes or "{}")

    def write_notes(self, notes: Mapping[str, Any]) -> None:
        with self._transaction():
            self._write_meta(notes=json.dumps(dict(notes)))

    def head(self) -> StoreHead:
        head = self._meta()
        return StoreHead(head.model, head.sequence, head.totals)

    def adopt(self, model: str) -> None:
        with self._transaction():
            self._write_meta(model=model)

    def pruned(self) -> bool:
        return bool(self._meta().pruned)

    # Records and their checksums

    def _sound(self, checksum: Any, stored: Sequence[tuple]) -> list[bool]:
        """Whether records, their checksums behind them, are as they were written."""
        sound = checksum.sound(stored)
        if self.unchecked and not all(sound):
            sound = [fine or one[-1] is None for fine, one in zip(sound, stored, strict=True)]
        return sound

    def _checked(
        self,
        table: str,
        stored: Sequence[tuple],
        owner: int | None = 0,
        stream: int | None = None,
    ) -> list[tuple]:
        """Records without their checksums; owner: the field with the number of their stream, or that stream."""
        if not stored:
            return []
        sound = self._sound(CHECKSUMS[table], stored)
        if not all(sound):
            bad = stored[sound.index(False)]
            when = f" at {bad[1]!r}" if table in ("rows", "checkpoints", "revised") else ""
            if stream is None and owner is not None:
                stream = bad[owner]
            self._damaged(stream, f"a record of `{table}`{when} is damaged")
        return [one[:-1] for one in stored]

    def _damaged(self, stream: Any, what: str) -> None:
        """Raise the error that names a stream and what of it is damaged."""
        raise StoreDamaged(f"{self._called(stream)}{what}: {REMEDY}.")

    def _called(self, stream: Any) -> str:
        """A stream's name for a message; its number where the name cannot be read."""
        if stream is None:
            return f"{self}: "
        try:
            names = self._read("SELECT name FROM streams WHERE number = ?", (stream,))
        except StoreError:
            names = []
        return f"stream {names[0][0]!r}: " if names else f"stream number {stream}: "

    def _insert(self, table: str, records: Sequence[tuple], *more: Any) -> None:
        if records:
            self._put(table, CHECKSUMS[table].sealed(records, *more))

    # Writing

    def commit(self, commit: Commit) -> None:
        with self._committing():
            self._apply(commit)

    def _committing(self) -> AbstractContextManager[Any]:
        return self._transaction()

    def rebuild(self, model: str, commits: Iterable[Commit]) -> None:
        with self._transaction():
            self._change("DELETE FROM states")
            self._change("DELETE FROM checkpoints")
            for commit in commits:
                self._apply(commit)
            self._write_meta(model=model)

    def _apply(self, commit: Commit) -> None:
        sequence = commit.sequence
        head = self._head or self._meta()
        self._head = None
        follows = head.sequence == sequence - 1
        after = head._replace(sequence=sequence, totals=commit.totals)
        if not follows or not self._claim(head, after, HEAD.of([after])[0]):
            raise StoreError(
                f"{self}: commit {sequence} does not follow the last: another engine has written "
                "to this store."
            )
        rearmed = rearmed_alarms(self, commit.rearmed)
        self._insert("commits", [(sequence, commit.received)])
        self._insert("streams", commit.opened, None)
        self._insert("rows", commit.rows)
        self._insert("states", commit.states, sequence)
        if commit.cuts:
            self._cut("checkpoints", commit.cuts)
        self._insert("checkpoints", commit.checkpoints)
        self._insert("revised", commit.revised)
        if commit.refused:
            self._insert("refused", [(sequence, *one) for one in commit.refused])
            self._change(
                "DELETE FROM refused WHERE number <= (SELECT max(number) FROM refused) - ?",
                (self._kept_refusals(),),
            )
        self._insert("alarms", [*rearmed, *commit.alarms])
        self._head = after

    def _kept_refusals(self) -> int:
        return KEPT_REFUSALS

    def acknowledge(self, number: int, at: float, by: str) -> Alarm[int] | None:
        with self._transaction():
            sql = f"SELECT {FIELDS['alarms']} FROM alarms WHERE number = ?"
            stored = self._checked("alarms", self._read(sql, (number,)), owner=1)
            if not stored:
                return None
            alarm = Alarm(*stored[0])
            if alarm.acknowledged is None:
                alarm = replace(alarm, acknowledged=at, by=by)
                self._insert("alarms", [astuple(alarm)])
            return alarm

    def end(self, stream: int, at: float) -> None:
        record = self.streams([stream])[0]
        with self._transaction():
            self._insert("streams", [(*record, at)])

    def forget(self, stream: int, totals: str) -> None:
        with self._transaction():
            for table in PER_STREAM:
                self._change(f"DELETE FROM {table} WHERE stream = ?", (stream,))
            self._change(
                "DELETE FROM refused WHERE stream = (SELECT name FROM streams WHERE number = ?)",
                (stream,),
            )
            self._change("DELETE FROM streams WHERE number = ?", (stream,))
            self._write_meta(totals=totals)

    # Reading

    def _chosen(
        self, table: str, key: str, numbers: Sequence[int] | None, more: str = ""
    ) -> list[tuple]:
        """Records by key, default all, in order of it."""
        sql = f"SELECT {FIELDS[table]} FROM {table}"
        if numbers is None:
            return self._read(f"{sql} {more and f'WHERE {more} '}ORDER BY {key}")
        result, wanted = [], sorted({int(n) for n in numbers})
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            where = f"{key} IN ({','.join('?' * len(some))}) {more and f'AND {more}'}"
            result += self._read(f"{sql} WHERE {where} ORDER BY {key}", some)
        return result

    def find(self, names: Sequence[str]) -> list[StreamRecord | None]:
        sql = f"SELECT {FIELDS['streams']} FROM streams WHERE name IN "
        stored: dict[str, tuple] = {}
        for start in range(0, len(names), 500):
            some = list(names[start : start + 500])
            rows = self._read(f"{sql}({','.join('?' * len(some))})", some)
            stored |= {one[1]: one for one in rows}
        checked = self._checked("streams", list(stored.values()))
        records = {one[1]: StreamRecord(*one[:4]) for one in checked}
        return [records.get(name) for name in names]

    def streams(self, numbers: Sequence[int] | None = None) -> list[StreamRecord]:
        stored = self._chosen("streams", "number", numbers)
        return [StreamRecord(*one[:4]) for one in self._checked("streams", stored)]

    def states(self, numbers: Sequence[int] | None = None) -> list[StateRecord]:
        try:
            stored = self._chosen("states", "stream", numbers)
        except StoreCorrupt:
            if numbers is None:
                raise
            stored = [
                one for number in sorted(set(numbers)) for one in self._state_alone(int(number))
            ]
        if numbers is not None:
            missing = {int(n) for n in numbers} - {one[0] for one in stored}
            sql = "SELECT 1 FROM rows WHERE stream = ? LIMIT 1"
            lost = [n for n in missing if self._read(sql, (n,), n)]
            stored = sorted([*stored, *map(_damaged_state, lost)], key=lambda one: one[0])
        return [StateRecord(*one[:9]) for one in self._marked(stored)]

    def _state_alone(self, number: int) -> list[tuple]:
        """A state that may not be readable."""
        try:
            return self._read(
                f"SELECT {FIELDS['states']} FROM states WHERE stream = ?", (number,), number
            )
        except StoreDamaged:
            return [_damaged_state(number)]

    def _marked(self, stored: list[tuple]) -> list[tuple]:
        """States; one that is damaged has no bytes that anyone could take for a state, and keeps nobody else away."""
        sound = self._sound(CHECKSUMS["states"], stored) if stored else []
        return [
            one if fine else _damaged_state(one[0], one[7])
            for one, fine in zip(stored, sound, strict=True)
        ]

    def clocks(self, since: float) -> list[ClockRecord]:
        # Whoever asks for a damaged one is told; it raises no alarm.
        return [
            ClockRecord(state.stream, state.time, state.received, stream.origin, state.outputs)
            for stream, state, sound in self._outlines(
                "received >= ? OR origin IS NOT NULL ORDER BY stream", (since,)
            )
            if sound
        ]

    def outlines(self, after: int, most: int) -> list[tuple[StreamRecord, StateRecord]]:
        asked = self._outlines("stream > ? ORDER BY stream LIMIT ?", (after, most))
        return [(stream, state) for stream, state, _ in asked]

    def _outlines(
        self, where: str, values: Sequence[Any]
    ) -> list[tuple[StreamRecord, StateRecord, bool]]:
        """Streams and their states without the body, and whether both are as they were written."""
        fields = ", ".join(f"s.{name}" for name in FIELDS["states"].split(", ")).replace(
            "s.body", "NULL"
        )
        sql = (
            f"SELECT {fields}, number, name, static, origin, ended, t.crc FROM states s JOIN streams t "
            f"ON number = stream WHERE {where}"
        )
        stored = self._read(sql, values)
        if not stored:
            return []
        sound = self._sound(CHECKSUMS["states"], [one[:11] for one in stored])
        known = self._sound(CHECKSUMS["streams"], [one[11:] for one in stored])
        states = [
            one[:8] if fine else _damaged_state(one[0], one[7])[:8]
            for one, fine in zip(stored, sound, strict=True)
        ]
        return [
            (StreamRecord(*one[11:15]), StateRecord._make((*state, b"")), all(fine))
            for one, state, *fine in zip(stored, states, sound, known, strict=True)
        ]

    def newest(self, most: int) -> list[int]:
        sql = "SELECT stream FROM states ORDER BY received DESC, stream LIMIT ?"
        return [one[0] for one in self._read(sql, (most,))]

    def rows(
        self,
        stream: int,
        since: float = float("-inf"),
        until: float = float("inf"),
        *,
        newest: int | None = None,
        oldest: int | None = None,
    ) -> list[RowRecord]:
        sql = (
            f"SELECT {FIELDS['rows']} FROM rows WHERE stream = ? AND time >= ? AND time <= ? "
            "ORDER BY time "
        )
        if oldest is not None:
            stored = self._read(sql + "LIMIT ?", (stream, since, until, oldest), stream)
            until = stored[-1][1] if len(stored) == oldest else until
        elif newest is None:
            stored = self._read(sql, (stream, since, until), stream)
        else:
            stored = self._read(sql + "DESC LIMIT ?", (stream, since, until, newest), stream)[::-1]
        result = [RowRecord(*one) for one in self._checked("rows", stored, stream=stream)]
        self._check_links(
            stream, result, since, until, whole=newest is None or len(stored) < newest
        )
        return result

    def _check_links(
        self, stream: int, rows: list[RowRecord], since: float, until: float, *, whole: bool
    ) -> None:
        """Raise where a row is missing among some that were read: each knows the time of the one before."""
        last = since
        for place, row in enumerate(rows):
            if row.before is not None and (
                row.before != last if place else whole and row.before >= since > float("-inf")
            ):
                self._missing(stream, row, cut=not place)
            last = row.time
        if rows and whole and since == float("-inf") and rows[0].before not in (None, since):
            self._missing(stream, rows[0], cut=True)
        sql = "SELECT before, time FROM rows WHERE stream = ? AND time > ? ORDER BY time LIMIT 1"
        after = self._read(sql, (stream, until), stream) if until < float("inf") else []
        if after:
            before = after[0][0]
            wrong = before is not None and (
                before != last if rows else float("-inf") < before >= since
            )
            if wrong and not (not rows and self._is_cut(stream, before, after[0][1])):
                self._damaged(stream, f"a row before that at {after[0][1]!r} is missing")
        elif not rows or rows[-1].before is not None:
            state = self._read("SELECT time FROM states WHERE stream = ?", (stream,), stream)
            lost = state and (state[0][0] > last or not rows) and since <= state[0][0] <= until
            if lost and not self._is_cut(stream, state[0][0], float("inf")):
                self._damaged(stream, f"its newest row, at {state[0][0]!r}, is missing")

    def _missing(self, stream: int, row: RowRecord, *, cut: bool) -> None:
        """Raise unless the rows before this one were deleted by retention, and the state there was kept."""
        if not cut or not self._is_cut(stream, row.before, row.time):
            self._damaged(stream, f"a row before that at {row.time!r} is missing")

    def _is_cut(self, stream: int, before: float | None, time: float) -> bool:
        """Whether a stream's stored rows begin with that at `time`, after the state at `before`."""
        kept = self._read(
            "SELECT time FROM checkpoints WHERE stream = ? AND time = ?", (stream, before), stream
        )
        sql = "SELECT time FROM rows WHERE stream = ? AND time < ? LIMIT 1"
        return bool(kept) and not self._read(sql, (stream, time), stream)

    def received(self, sequences: Sequence[int]) -> dict[int, float]:
        stored = self._chosen("commits", "sequence", list(sequences))
        if missing := set(sequences).difference(one[0] for one in stored):
            oldest = self._read("SELECT min(sequence) FROM commits")[0][0]
            lost = [n for n in missing if (oldest or n) < n <= self._meta().sequence]
            if lost:
                self._damaged(None, f"the record of commit {lost[0]} is missing")
        return {one[0]: one[1] for one in self._checked("commits", stored, owner=None)}

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        return self._checkpoint("checkpoints", stream, before)

    def _checkpoint(self, table: str, stream: int, before: float) -> CheckpointRecord | None:
        sql = (
            f"SELECT {FIELDS['checkpoints']} FROM {table} WHERE stream = ? AND time < ? "
            "ORDER BY time DESC LIMIT 1"
        )
        stored = self._checked(
            "checkpoints", self._read(sql, (stream, before), stream), stream=stream
        )
        return CheckpointRecord(*stored[0]) if stored else None

    def revised(self, stream: int) -> list[RevisedRecord]:
        order = self._order_of_revised
        sql = f"SELECT {FIELDS['revised']} FROM revised WHERE stream = ? ORDER BY {order}"
        stored = self._checked("revised", self._read(sql, (stream,), stream), stream=stream)
        return [RevisedRecord(*one) for one in stored]

    _order_of_revised = "rowid"

    def refused(self, most: int = 1000) -> list[RefusedRecord]:
        sql = f"SELECT {FIELDS['refused']} FROM refused ORDER BY number DESC LIMIT ?"
        stored = self._checked("refused", self._read(sql, (most,)), owner=None)
        return [RefusedRecord(*one[1:]) for one in stored]

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[int]]:
        asked, values = [], []
        if stream is not None:
            asked.append("stream = ?")
            values.append(stream)
        if unacknowledged:
            asked.append("acknowledged IS NULL")
        where = f"WHERE {' AND '.join(asked)}" if asked else ""
        sql = f"SELECT {FIELDS['alarms']} FROM alarms {where} ORDER BY number DESC"
        stored = self._checked("alarms", self._read(sql, values, stream), 1, stream)
        return [Alarm(*one) for one in stored]

    def alarms_from(self, number: int, most: int) -> list[Alarm[int]]:
        sql = f"SELECT {FIELDS['alarms']} FROM alarms WHERE number >= ? ORDER BY number LIMIT ?"
        stored = self._checked("alarms", self._read(sql, (number, most)), owner=1)
        return [Alarm(*one) for one in stored]

    def kept(self, key: str) -> str | None:
        result = self._read("SELECT text FROM kept WHERE key = ?", (key,))
        return result[0][0] if result else None

    def keep(self, key: str, text: str) -> None:
        with self._transaction():
            self._change(
                "INSERT INTO kept VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET text = excluded.text",
                (key, text),
            )

    def newest_alarms(self, streams: Sequence[int] | None = None) -> list[Alarm[int]]:
        sql, pairs = "SELECT max(number) FROM alarms", []
        if streams is None:
            pairs = self._read(f"{sql} GROUP BY stream")
        else:
            wanted = sorted({int(n) for n in streams})
            for start in range(0, len(wanted), 500):
                some = wanted[start : start + 500]
                where = f"WHERE stream IN ({','.join('?' * len(some))})"
                pairs += self._read(f"{sql} {where} GROUP BY stream", some)
        stored = self._chosen("alarms", "number", [number for (number,) in pairs])
        alarms = [Alarm(*one) for one in self._checked("alarms", stored, owner=1)]
        return sorted(alarms, key=lambda alarm: alarm.stream)

    # Retention

    def prune(self, keep: float) -> int:
        gone, after = 0, 0
        while (piece := self.floors(after, 500, keep=keep, lateness=0.0, old=None)) is not None:
            floors, after, _ = piece
            while floors:
                deleted, done = self.cut(floors)
                gone, floors = gone + deleted, floors[done:]
        least = self._read("SELECT min(sequence) FROM rows")[0][0]
        with self._transaction():
            self._change("DELETE FROM commits WHERE sequence < ?", (least or 0,))
        return gone

    def sequence_at(self, wall: float) -> int:
        low, high = 0, self._meta().sequence
        while low < high:  # the newest commit from before, by halves
            middle = (low + high + 1) // 2
            sql = "SELECT sequence, received FROM commits WHERE sequence >= ? ORDER BY sequence LIMIT 1"
            stored = self._read(sql, (middle,))
            if stored and stored[0][1] < wall:
                low = max(middle, stored[0][0])
            else:
                high = middle - 1
        return low

    def floors(
        self, after: int, most: int, *, keep: float | None, lateness: float, old: int | None
    ) -> tuple[list[Floor], int, int | None] | None:
        sql = "SELECT stream, time FROM states WHERE stream > ? ORDER BY stream LIMIT ?"
        some = self._read(sql, (after, most))
        if not some:
            return None
        floors, oldest = [], []
        for stream, newest in some:
            sql = "SELECT sequence FROM rows WHERE stream = ? ORDER BY time LIMIT 1"
            oldest += [one[0] for one in self._read(sql, (stream,), stream)]
            limits = [] if keep is None else [newest - max(keep, lateness)]
            if old is not None:
                sql = (
                    "SELECT time FROM rows WHERE stream = ? AND sequence > ? ORDER BY time LIMIT 1"
                )
                recent = self._read(sql, (stream, old), stream)
                limits.append(min([newest - lateness, *(one[0] for one in recent)]))
            sql = "SELECT max(time) FROM checkpoints WHERE stream = ? AND time < ?"
            floor = self._read(sql, (stream, max(limits)), stream)[0][0]
            if floor is not None:
                sql = "SELECT 1 FROM rows WHERE stream = ? AND time <= ? LIMIT 1"
                if self._read(sql, (stream, floor), stream):
                    floors.append(Floor(stream, floor))
        return floors, some[-1][0], min(oldest, default=None)

    def cut(self, floors: Sequence[Floor], most: int = 2_000) -> tuple[int, int]:
        gone = done = 0
        with self._transaction():
            for stream, floor in floors:
                step = self._step(stream, floor, most - gone)
                gone += self._change(
                    "DELETE FROM rows WHERE stream = ? AND time <= ?", (stream, step)
                )
                self._change("DELETE FROM revised WHERE stream = ? AND time <= ?", (stream, step))
                self._change(
                    "DELETE FROM checkpoints WHERE stream = ? AND time < ?", (stream, step)
                )
                done += step == floor
                if gone >= most or step < floor:
                    break
            if gone and not self._meta().pruned:
                self._write_meta(pruned=1)
        return gone, done

    def _step(self, stream: int, floor: float, most: int) -> float:
        """How far to cut at once: to a checkpoint about so many rows on, the floor at most."""
        sql = "SELECT time FROM rows WHERE stream = ? AND time <= ? ORDER BY time LIMIT 1 OFFSET ?"
        far = self._read(sql, (stream, floor, max(0, most)), stream)
        if not far:
            return floor
        sql = "SELECT min(time) FROM checkpoints WHERE stream = ? AND time >= ? AND time <= ?"
        return self._read(sql, (stream, far[0][0], floor), stream)[0][0]

    def drop_old(self, wall: float | None, old: int, least: int, most: int = 1_000) -> int:
        gone = 0
        with self._transaction():
            sql = (
                "DELETE FROM {0} WHERE {1} IN (SELECT {1} FROM {0} WHERE {2} ORDER BY {1} LIMIT ?)"
            )
            if wall is not None:
                newest = (
                    "number < (SELECT max(number) FROM alarms n WHERE n.stream = alarms.stream)"
                )
                gone += self._change(
                    sql.format("alarms", "number", f"raised < ? AND {newest}"), (wall, most)
                )
                gone += self._change(sql.format("refused", "number", "sequence <= ?"), (old, most))
            gone += self._change(sql.format("commits", "sequence", "sequence < ?"), (least, most))
        return gone

    def first_row(self, stream: int) -> RowRecord | None:
        sql = f"SELECT {FIELDS['rows']} FROM rows WHERE stream = ? ORDER BY time LIMIT 1"
        stored = self._checked("rows", self._read(sql, (stream,), stream), stream=stream)
        return RowRecord(*stored[0]) if stored else None

    def next_rows(self, stream: int, after: float, most: int) -> list[RowRecord]:
        sql = (
            f"SELECT {FIELDS['rows']} FROM rows WHERE stream = ? AND time > ? ORDER BY time LIMIT ?"
        )
        stored = self._checked(
            "rows", self._read(sql, (stream, after, most), stream), stream=stream
        )
        rows = [RowRecord(*one) for one in stored]
        if rows:
            if rows[0].before not in (None, float("-inf"), after):
                self._missing(stream, rows[0], cut=True)
            for first, second in pairwise(rows):
                if second.before not in (None, first.time):
                    self._missing(stream, second, cut=False)
        return rows

    def changed_since(self, stream: int, sequence: int) -> float:
        sql = "SELECT min(time) FROM rows WHERE stream = ? AND sequence > ?"
        return self._read(sql, (stream, sequence), stream)[0][0]

    def over(self, ended: float | None, idle: float | None, most: int) -> list[StreamRecord]:
        asked, values = [], []
        if ended is not None:
            asked.append("(ended IS NOT NULL AND ended < ? AND coalesce(received, ended) <= ended)")
            values.append(ended)
        if idle is not None:
            asked.append("received < ?")
            values.append(idle)
        fields = ", ".join(f"t.{name}" for name in FIELDS["streams"].split(", "))
        sql = f"SELECT {fields} FROM streams t LEFT JOIN states ON stream = number WHERE {' OR '.join(asked)} LIMIT ?"
        stored = self._read(sql, (*values, most))
        return [StreamRecord(*one[:4]) for one in self._checked("streams", stored)]

    # Looking through a whole store, and mending it

    _place = "rowid"
    _here = "rowid = ?"

    def read(self, sql: str, *values: Any) -> list[tuple]:
        """The answer to a question, as it is stored: nothing is checked."""
        return self._read(sql, values)

    def integrity(self) -> list[str]:
        """What is wrong with the store beside its records."""
        return []

    def scan(self, table: str, together: int = 1_000) -> Iterator[list[tuple] | str]:
        """All records of a table, some at a time, each with its place before it; or what keeps some from being read."""
        place, fields = self._place, FIELDS[table]
        sql = f"SELECT {place}, {fields} FROM {table} WHERE {self._after} ORDER BY {self._sorted} LIMIT ?"
        last: Any = self._before_all
        size = together
        while last is not None:
            try:
                some = self._read(sql, (last, size))
            except StoreCorrupt as error:
                if size > 1:
                    size //= 2
                    continue
                yield str(error)
                last, size = self._beyond(sql, last), together
                continue
            if not some:
                return
            yield some
            last, size = some[-1][0], together

    _after, _sorted = "rowid > ?", "rowid"
    _before_all: Any = -(2**62)

    def _beyond(self, sql: str, last: Any) -> Any:
        """The first place after some that cannot be read; None where nothing comes after."""
        return None

    def replace_record(self, table: str, place: Any, record: tuple | None) -> None:
        """Write another record, with its checksum, to a place; none: delete what is stored there."""
        with self._transaction():
            if record is None:
                self._change(f"DELETE FROM {table} WHERE {self._here}", (place,))
                return
            fields = ", ".join(f"{name} = ?" for name in KINDS[table])
            self._change(f"UPDATE {table} SET {fields} WHERE {self._here}", (*record, place))

    def set_aside(self, stream: int) -> None:
        """Delete all there is of a stream, without counting it out."""
        with self._transaction():
            for table in PER_STREAM:
                self._change(f"DELETE FROM {table} WHERE stream = ?", (stream,))
            self._change("DELETE FROM streams WHERE number = ?", (stream,))

    def cut_at(self, floor: CheckpointRecord) -> None:
        """Delete a stream's rows up to a state, whether it was kept for good until now or not."""
        with self._transaction():
            self._cut("checkpoints", [(floor.stream, floor.time)])
            self._change(
                "DELETE FROM checkpoints WHERE stream = ? AND time <= ?", (floor.stream, floor.time)
            )
            self._insert("checkpoints", [floor])
            for table in ("rows", "revised"):
                self._change(
                    f"DELETE FROM {table} WHERE stream = ? AND time <= ?",
                    (floor.stream, floor.time),
                )
            self._write_meta(pruned=1)

    def seal_old(self) -> int:
        """Give the records of an earlier version their checksums, and its rows the time of the row before; how many."""
        if not self.unchecked:
            return 0
        count = 0
        for table, checksum in CHECKSUMS.items():
            for some in self.scan(table):
                old = [one for one in some if isinstance(one, tuple) and one[-1] is None]
                if not old:
                    continue
                count += len(old)
                records = [one[1:-1] for one in old]
                if table == "rows":
                    records = [self._linked(one) for one in records]
                elif table in ("states", f"{SHADOW}states"):
                    records = [(*one[:-1], one[-1] or 0) for one in records]
                with self._transaction():
                    if table in KEYS:
                        self._put(table, checksum.sealed(records))
                    else:
                        sql = f"UPDATE {table} SET crc = ? WHERE {self._here}"
                        for one, crc in zip(old, checksum.of(records), strict=True):
                            self._change(sql, (crc, one[0]))
        self.write_notes({name: one for name, one in self.notes.items() if name != "unchecked"})
        self.unchecked = False
        return count

    def _linked(self, row: tuple) -> tuple:
        """A row with the time of the row before it; where there is none and rows were deleted, it stays unknown."""
        sql = "SELECT max(time) FROM rows WHERE stream = ? AND time < ?"
        before = self._read(sql, (row[0], row[1]))[0][0]
        if before is None:
            before = None if self.pruned() else float("-inf")
        return (*row[:-1], before)

    # Another model beside the one that serves

    def shadows(self, numbers: Sequence[int]) -> dict[int, ShadowRecord]:
        stored = self._marked(self._chosen(f"{SHADOW}states", "stream", numbers))
        return {one[0]: ShadowRecord(StateRecord(*one[:9]), one[9]) for one in stored}

    def shadow_checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        return self._checkpoint(f"{SHADOW}checkpoints", stream, before)

    def sequences(self, after: int, most: int) -> list[tuple[int, int, int | None]]:
        sql = (
            "SELECT s.stream, coalesce(s.sequence, 0), CASE WHEN b.time = s.time THEN b.sequence END FROM "
            f"states s LEFT JOIN {SHADOW}states b ON b.stream = s.stream WHERE s.stream > ? ORDER BY s.stream LIMIT ?"
        )
        return self._read(sql, (after, most))  # pyright: ignore[reportReturnType]

    def put_shadows(
        self,
        states: Sequence[tuple[StateRecord, int]],
        checkpoints: Sequence[tuple],
        cuts: Sequence[tuple[int, float]],
    ) -> None:
        with self._transaction():
            if cuts:
                self._cut(f"{SHADOW}checkpoints", cuts)
            self._insert(f"{SHADOW}checkpoints", checkpoints)
            self._insert(f"{SHADOW}states", [(*record, sequence) for record, sequence in states])

    def promote(self, model: str, totals: str, notes: Mapping[str, Any]) -> None:
        with self._transaction():
            for table in ("states", "checkpoints"):
                for old, new in (
                    (table, "former"),
                    (f"{SHADOW}{table}", table),
                    ("former", f"{SHADOW}{table}"),
                ):
                    self._change(f"ALTER TABLE {old} RENAME TO {new}")
            self._write_meta(model=model, totals=totals, notes=json.dumps(dict(notes)))

    def clear_shadows(self, most: int = 500) -> int:
        with self._transaction():
            gone = 0
            for table in ("states", "checkpoints"):
                name = f"{SHADOW}{table}"
                some = f"SELECT DISTINCT stream FROM (SELECT stream FROM {name} ORDER BY stream LIMIT ?) t"
                gone += self._change(f"DELETE FROM {name} WHERE stream IN ({some})", (most,))
        return gone


def _damaged_state(stream: int, outputs: Any = b"") -> tuple:
    nothing = struct.pack("<d", float("nan"))
    count = len(outputs) // 8 if isinstance(outputs, bytes) else 1
    return (stream, float("nan"), 0, 0, float("nan"), None, 0.0, nothing * count, b"", 0, None)
