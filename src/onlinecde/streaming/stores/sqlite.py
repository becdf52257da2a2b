"""A store in one SQLite file: WAL, a transaction a micro-batch, one engine at a time."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.errors import StoreBusy, StoreError, StoreFull
from onlinecde.streaming.stores.base import (
    CheckpointRecord,
    ClockRecord,
    Commit,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    StateRecord,
    StoreHead,
    StreamRecord,
)
from onlinecde.streaming.stores.sqlite_file import OwnedFile
from onlinecde.streaming.stores.tables import PER_STREAM, SCHEMA, SQLITE_TABLES, SQLITE_UPGRADES

ROOM = 4 * 2**20
"""Bytes that must be left on the disk: what SQLite lets a WAL grow to before it checkpoints"""
KEPT_REFUSALS = 100_000
"""Refused events are for looking into; only the newest are kept, so that nobody can fill the disk with them."""

_REMEDIES = {
    sqlite3.SQLITE_READONLY: "it cannot be written; give one this user may write, on a disk that is not read-only.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; give one in a folder that this user may write.",
    sqlite3.SQLITE_IOERR: "its disk cannot be read or written; look at the disk, then start again.",
    sqlite3.SQLITE_CORRUPT: "it is damaged; take it from a backup.",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; give another file.",
}
"""What to do about SQLite's errors that do not pass by themselves"""


class SQLiteStore:
    """Everything an engine commits, in one file that outlives a killed process; a `Store`.

    synchronous: "FULL" syncs the disk at every commit: what was acknowledged outlives a loss of power.
    "NORMAL" is faster: it outlives a killed process, but a loss of power may take the last commits.
    wait: seconds to wait for another process's lock before `StoreBusy`.

    >>> import tempfile, pathlib
    >>> store = SQLiteStore(pathlib.Path(tempfile.mkdtemp()) / "live.db")
    >>> store.head().sequence
    0
    >>> store.close()
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        wait: float = 5.0,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise StoreError(f"synchronous is {synchronous!r}: choose 'FULL' or 'NORMAL'.")
        self.file = Path(file)
        if self.file.is_dir():
            raise StoreError(f"{self.file} is a folder: give a file in it.")
        if not self.file.parent.is_dir():
            raise StoreError(f"{self.file.parent} is not a folder: make it first.")
        # SQLite keeps the WAL beside the file that a link leads to.
        self._real = self.file.resolve()
        self._owned = OwnedFile(self.file, self._real)
        try:
            with self._failing():
                self._db = sqlite3.connect(
                    self._real, timeout=wait, isolation_level=None, check_same_thread=False
                )
                try:
                    self._prepare(synchronous)
                except BaseException:
                    self._db.close()
                    raise
        except BaseException:
            self._owned.release()
            raise

    def __str__(self) -> str:
        return str(self.file)

    def _prepare(self, synchronous: str) -> None:
        run = self._db.execute
        if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreError(f"{self.file} is where SQLite cannot keep a WAL: use a local disk.")
        run(f"PRAGMA synchronous = {synchronous}")
        run("PRAGMA cache_size = -65536")
        run("PRAGMA foreign_keys = OFF")
        with self._transaction():
            result = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not result:
                for statement in SQLITE_TABLES.split(";\n"):
                    run(statement)
                run("INSERT INTO meta (one, schema, sequence) VALUES (1, ?, 0)", (SCHEMA,))
        try:
            schema = run("SELECT schema FROM meta").fetchone()
        except sqlite3.OperationalError:
            schema = None
        if schema is None:
            raise StoreError(f"{self.file} is a database of something else: give another file.")
        if schema[0] in SQLITE_UPGRADES:
            with self._transaction():
                for statement in SQLITE_UPGRADES[schema[0]]:
                    run(statement)
                run("UPDATE meta SET schema = ?", (SCHEMA,))
        elif schema[0] != SCHEMA:
            raise StoreError(
                f"{self.file} has schema {schema[0]}, this onlinecde reads {SCHEMA}: use the "
                "onlinecde that wrote it."
            )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            content = f"{self.file}: {error}"
            if code == sqlite3.SQLITE_FULL:
                raise StoreFull(f"{content}: make room, then send the events again.") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusy(f"{content}: another process holds it; try again later.") from error
            if code in _REMEDIES:
                raise StoreError(f"{content}: {_REMEDIES[code]}") from error
            raise StoreError(f"{content}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._failing():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple]:
        with self._failing():
            return self._db.execute(sql, values).fetchall()

    def head(self) -> StoreHead:
        return StoreHead(*self._read("SELECT model, sequence, totals FROM meta")[0])

    def adopt(self, model: str) -> None:
        with self._transaction():
            self._db.execute("UPDATE meta SET model = ?", (model,))

    def commit(self, commit: Commit) -> None:
        with self._transaction():
            self._apply(commit)

    def check_writable(self) -> None:
        self._owned.check()
        if shutil.disk_usage(self._real).free < ROOM:
            raise StoreFull(
                f"{self.file}: less than {ROOM >> 20} MiB are left on its disk: make room."
            )
        with self._transaction():
            # A number that nothing else uses; what would not change the file would not be written to it.
            (number,) = self._db.execute("PRAGMA user_version").fetchone()
            self._db.execute(f"PRAGMA user_version = {(number + 1) % 2**31}")

    def rebuild(self, model: str, commits: Iterable[Commit]) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM states")
            self._db.execute("DELETE FROM checkpoints")
            for commit in commits:
                self._apply(commit)
            self._db.execute("UPDATE meta SET model = ?", (model,))

    def _apply(self, commit: Commit) -> None:
        count, sequence = self._db.executemany, commit.sequence
        done = self._db.execute(
            "UPDATE meta SET sequence = ?, totals = ? WHERE sequence = ?",
            (sequence, commit.totals, sequence - 1),
        )
        if done.rowcount != 1:
            raise StoreError(
                f"{self.file}: commit {sequence} does not follow the last: another engine has written "
                "to this store."
            )
        count("INSERT INTO commits VALUES (?, ?)", [(sequence, commit.received)])
        count("INSERT INTO streams VALUES (?, ?, ?, ?)", commit.opened)
        count(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (stream, time) DO UPDATE SET "
            "sequence = excluded.sequence, events = excluded.events, more = excluded.more, "
            "outputs = excluded.outputs",
            commit.rows,
        )
        count(f"INSERT OR REPLACE INTO states VALUES ({_places(StateRecord)})", commit.states)
        count("DELETE FROM checkpoints WHERE stream = ? AND time >= ?", commit.cuts)
        count("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", commit.checkpoints)
        count("INSERT INTO revised VALUES (?, ?, ?, ?)", commit.revised)
        if commit.refused:
            count(
                "INSERT INTO refused (sequence, stream, time, channel, value, code) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(sequence, *one) for one in commit.refused],
            )
            self._db.execute(
                "DELETE FROM refused WHERE number <= (SELECT max(number) FROM refused) - ?",
                (KEPT_REFUSALS,),
            )
        count(
            "UPDATE alarms SET rearmed = min(?2, coalesce(rearmed, ?2)) "
            "WHERE number = (SELECT max(number) FROM alarms WHERE stream = ?1)",
            commit.rearmed,
        )
        count(f"INSERT INTO alarms VALUES ({_places(Alarm)})", commit.alarms)

    def find(self, names: Sequence[str]) -> list[StreamRecord | None]:
        sql = "SELECT number, name, static, origin FROM streams WHERE name = ?"
        result = [self._read(sql, (name,)) for name in names]
        return [StreamRecord(*one[0]) if one else None for one in result]

    def streams(self, numbers: Sequence[int] | None = None) -> list[StreamRecord]:
        sql = "SELECT number, name, static, origin FROM streams"
        return [StreamRecord(*one) for one in self._chosen(sql, "number", numbers)]

    def states(self, numbers: Sequence[int] | None = None) -> list[StateRecord]:
        return [
            StateRecord(*one) for one in self._chosen("SELECT * FROM states", "stream", numbers)
        ]

    def _chosen(
        self, sql: str, key: str, numbers: Sequence[int] | None, *, group: bool = False
    ) -> list[tuple]:
        by = f" GROUP BY {key}" if group else ""
        if numbers is None:
            return self._read(f"{sql}{by} ORDER BY {key}")
        result = []
        for start in range(0, len(numbers), 500):
            some = [int(n) for n in numbers[start : start + 500]]
            result += self._read(f"{sql} WHERE {key} IN ({','.join('?' * len(some))}){by}", some)
        return sorted(result)

    def clocks(self, since: float) -> list[ClockRecord]:
        sql = (
            "SELECT stream, time, received, origin, outputs FROM states JOIN streams ON number = stream "
            "WHERE received >= ? OR origin IS NOT NULL ORDER BY stream"
        )
        return [ClockRecord(*one) for one in self._read(sql, (since,))]

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
        sql = "SELECT * FROM rows WHERE stream = ? AND time >= ? AND time <= ? ORDER BY time "
        if newest is None:
            most = -1 if oldest is None else oldest
            result = self._read(sql + "LIMIT ?", (stream, since, until, most))
        else:
            result = self._read(sql + "DESC LIMIT ?", (stream, since, until, newest))[::-1]
        return [RowRecord(*one) for one in result]

    def received(self, sequences: Sequence[int]) -> dict[int, float]:
        sql = "SELECT sequence, received FROM commits"
        return dict(self._chosen(sql, "sequence", list(sequences)))

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        sql = "SELECT * FROM checkpoints WHERE stream = ? AND time < ? ORDER BY time DESC LIMIT 1"
        result = self._read(sql, (stream, before))
        return CheckpointRecord(*result[0]) if result else None

    def revised(self, stream: int) -> list[RevisedRecord]:
        result = self._read("SELECT * FROM revised WHERE stream = ? ORDER BY rowid", (stream,))
        return [RevisedRecord(*one) for one in result]

    def refused(self, most: int = 1000) -> list[RefusedRecord]:
        sql = "SELECT stream, time, channel, value, code FROM refused ORDER BY number DESC LIMIT ?"
        return [RefusedRecord(*one) for one in self._read(sql, (most,))]

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[int]]:
        asked, values = ["TRUE"], []
        if stream is not None:
            asked.append("stream = ?")
            values.append(stream)
        if unacknowledged:
            asked.append("acknowledged IS NULL")
        sql = f"SELECT * FROM alarms WHERE {' AND '.join(asked)} ORDER BY number DESC"
        return [Alarm(*one) for one in self._read(sql, values)]

    def newest_alarms(self, streams: Sequence[int] | None = None) -> list[Alarm[int]]:
        numbers = self._chosen(
            "SELECT stream, max(number) FROM alarms", "stream", streams, group=True
        )
        alarms = self._chosen("SELECT * FROM alarms", "number", [number for _, number in numbers])
        return sorted((Alarm(*one) for one in alarms), key=lambda alarm: alarm.stream)

    def acknowledge(self, number: int, at: float, by: str) -> Alarm[int] | None:
        with self._transaction():
            self._db.execute(
                'UPDATE alarms SET acknowledged = ?, "by" = ? WHERE number = ? AND acknowledged IS NULL',
                (at, by, number),
            )
        result = self._read("SELECT * FROM alarms WHERE number = ?", (number,))
        return Alarm(*result[0]) if result else None

    def pruned(self) -> bool:
        return bool(self._read("SELECT pruned FROM meta")[0][0])

    def prune(self, keep: float) -> int:
        with self._transaction():
            run = self._db.execute
            run("CREATE TEMP TABLE floor (stream INTEGER PRIMARY KEY, time REAL NOT NULL)")
            run(
                "INSERT INTO floor SELECT s.stream, max(c.time) FROM states s JOIN checkpoints c "
                "ON c.stream = s.stream AND c.time < s.time - ? GROUP BY s.stream",
                (keep,),
            )
            at = "(SELECT time FROM floor WHERE floor.stream = {0}.stream)"
            gone = run(f"DELETE FROM rows WHERE time <= {at.format('rows')}").rowcount
            run(f"DELETE FROM checkpoints WHERE time < {at.format('checkpoints')}")
            run(f"DELETE FROM revised WHERE time <= {at.format('revised')}")
            run("DELETE FROM commits WHERE sequence < (SELECT min(sequence) FROM rows)")
            if gone:
                run("UPDATE meta SET pruned = 1")
            run("DROP TABLE floor")
        return gone

    def forget(self, stream: int, totals: str) -> None:
        with self._transaction():
            for table in PER_STREAM:
                self._db.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
            self._db.execute(
                "DELETE FROM refused WHERE stream = (SELECT name FROM streams WHERE number = ?)",
                (stream,),
            )
            self._db.execute("DELETE FROM streams WHERE number = ?", (stream,))
            self._db.execute("UPDATE meta SET totals = ?", (totals,))

    def close(self) -> None:
        with self._failing():
            self._db.close()
        self._owned.release()


def _places(record: type[Any]) -> str:
    """A question mark for each field of a record."""
    return ", ".join("?" * len(record.__match_args__))
