"""A store in one SQLite file: WAL, a transaction a micro-batch, one engine at a time."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from onlinecde.streaming.errors import StoreBusy, StoreError, StoreFull
from onlinecde.streaming.store import (
    AlarmRecord,
    CheckpointRecord,
    Commit,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    StateRecord,
    StoreHead,
    StreamRecord,
)

SCHEMA = 1
ROOM = 4 * 2**20
"""Bytes that must be left on the disk: what SQLite lets a WAL grow to before it checkpoints"""
KEPT_REFUSALS = 100_000
"""Refused events are for looking into; only the newest are kept, so that nobody can fill the disk with them."""

# Rows are appended, and found by their index: a table in the order of streams would have to write a page
# for each stream of a micro-batch.
_TABLES = """
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), schema INTEGER NOT NULL, model TEXT,
                   sequence INTEGER NOT NULL, totals TEXT, pruned INTEGER NOT NULL DEFAULT 0);
CREATE TABLE streams (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, static BLOB, origin REAL);
CREATE TABLE rows (stream INTEGER NOT NULL, time REAL NOT NULL, sequence INTEGER NOT NULL,
                   events BLOB NOT NULL, more TEXT, outputs BLOB NOT NULL);
CREATE UNIQUE INDEX rows_of_stream ON rows (stream, time);
CREATE TABLE states (stream INTEGER PRIMARY KEY, time REAL NOT NULL, rows INTEGER NOT NULL,
                     since INTEGER NOT NULL, first REAL NOT NULL, previous REAL, received REAL NOT NULL,
                     outputs BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE checkpoints (stream INTEGER NOT NULL, time REAL NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX checkpoints_of_stream ON checkpoints (stream, time);
CREATE TABLE revised (stream INTEGER NOT NULL, time REAL NOT NULL, sequence INTEGER NOT NULL,
                      outputs BLOB NOT NULL);
CREATE INDEX revised_of_stream ON revised (stream);
CREATE TABLE refused (number INTEGER PRIMARY KEY, sequence INTEGER NOT NULL, stream TEXT, time TEXT,
                      channel TEXT, value TEXT, code TEXT NOT NULL);
CREATE TABLE alarms (number INTEGER PRIMARY KEY, stream INTEGER NOT NULL, time REAL NOT NULL,
                     probability REAL NOT NULL, threshold REAL NOT NULL, raised REAL NOT NULL,
                     acknowledged REAL, "by" TEXT);
CREATE INDEX alarms_of_stream ON alarms (stream);
CREATE TABLE commits (sequence INTEGER PRIMARY KEY, received REAL NOT NULL);
"""

_REMEDIES = {
    sqlite3.SQLITE_READONLY: "it cannot be written; give one this user may write, on a disk that is not read-only.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; give one in a folder that this user may write.",
    sqlite3.SQLITE_IOERR: "its disk cannot be read or written; look at the disk, then start again.",
    sqlite3.SQLITE_CORRUPT: "it is damaged; take it from a backup.",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; give another file.",
}
"""What to do about SQLite's errors that do not pass by themselves"""
_LOGGER = logging.getLogger("onlinecde.streaming")
_owned: dict[tuple[int, int], str] = {}
"""Device and inode of the files that stores of this process own, with their names"""
_owning = threading.Lock()
_PER_STREAM = ("rows", "states", "checkpoints", "revised", "alarms")


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
        self._owned = _Owned(self.file, self._real)
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
            found = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not found:
                for statement in _TABLES.split(";\n"):
                    run(statement)
                run("INSERT INTO meta (one, schema, sequence) VALUES (1, ?, 0)", (SCHEMA,))
        try:
            schema = run("SELECT schema FROM meta").fetchone()
        except sqlite3.OperationalError:
            schema = None
        if schema is None:
            raise StoreError(f"{self.file} is a database of something else: give another file.")
        if schema[0] != SCHEMA:
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
            told = f"{self.file}: {error}"
            if code == sqlite3.SQLITE_FULL:
                raise StoreFull(f"{told}: make room, then send the events again.") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusy(f"{told}: another process holds it; try again later.") from error
            if code in _REMEDIES:
                raise StoreError(f"{told}: {_REMEDIES[code]}") from error
            raise StoreError(f"{told}.") from error

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
        many, sequence = self._db.executemany, commit.sequence
        done = self._db.execute(
            "UPDATE meta SET sequence = ?, totals = ? WHERE sequence = ?",
            (sequence, commit.totals, sequence - 1),
        )
        if done.rowcount != 1:
            raise StoreError(
                f"{self.file}: commit {sequence} does not follow the last: another engine has written "
                "to this store."
            )
        many("INSERT INTO commits VALUES (?, ?)", [(sequence, commit.received)])
        many("INSERT INTO streams VALUES (?, ?, ?, ?)", commit.opened)
        many(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (stream, time) DO UPDATE SET "
            "sequence = excluded.sequence, events = excluded.events, more = excluded.more, "
            "outputs = excluded.outputs",
            commit.rows,
        )
        many("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", commit.states)
        many("DELETE FROM checkpoints WHERE stream = ? AND time >= ?", commit.cuts)
        many("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", commit.checkpoints)
        many("INSERT INTO revised VALUES (?, ?, ?, ?)", commit.revised)
        if commit.refused:
            many(
                "INSERT INTO refused (sequence, stream, time, channel, value, code) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(sequence, *one) for one in commit.refused],
            )
            self._db.execute(
                "DELETE FROM refused WHERE number <= (SELECT max(number) FROM refused) - ?",
                (KEPT_REFUSALS,),
            )
        many("INSERT INTO alarms VALUES (?, ?, ?, ?, ?, ?, ?, ?)", commit.alarms)

    def find(self, names: Sequence[str]) -> list[StreamRecord | None]:
        sql = "SELECT number, name, static, origin FROM streams WHERE name = ?"
        found = [self._read(sql, (name,)) for name in names]
        return [StreamRecord(*one[0]) if one else None for one in found]

    def streams(self, numbers: Sequence[int] | None = None) -> list[StreamRecord]:
        sql = "SELECT number, name, static, origin FROM streams"
        return [StreamRecord(*one) for one in self._chosen(sql, "number", numbers)]

    def states(self, numbers: Sequence[int] | None = None) -> list[StateRecord]:
        return [
            StateRecord(*one) for one in self._chosen("SELECT * FROM states", "stream", numbers)
        ]

    def _chosen(self, sql: str, key: str, numbers: Sequence[int] | None) -> list[tuple]:
        if numbers is None:
            return self._read(f"{sql} ORDER BY {key}")
        found = []
        for start in range(0, len(numbers), 500):
            some = [int(n) for n in numbers[start : start + 500]]
            found += self._read(f"{sql} WHERE {key} IN ({','.join('?' * len(some))})", some)
        return sorted(found)

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
    ) -> list[RowRecord]:
        sql = "SELECT * FROM rows WHERE stream = ? AND time >= ? AND time <= ? ORDER BY time "
        if newest is None:
            found = self._read(sql, (stream, since, until))
        else:
            found = self._read(sql + "DESC LIMIT ?", (stream, since, until, newest))[::-1]
        return [RowRecord(*one) for one in found]

    def received(self, sequences: Sequence[int]) -> dict[int, float]:
        sql = "SELECT sequence, received FROM commits"
        return dict(self._chosen(sql, "sequence", list(sequences)))

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        sql = "SELECT * FROM checkpoints WHERE stream = ? AND time < ? ORDER BY time DESC LIMIT 1"
        found = self._read(sql, (stream, before))
        return CheckpointRecord(*found[0]) if found else None

    def revised(self, stream: int) -> list[RevisedRecord]:
        found = self._read("SELECT * FROM revised WHERE stream = ? ORDER BY rowid", (stream,))
        return [RevisedRecord(*one) for one in found]

    def refused(self, most: int = 1000) -> list[RefusedRecord]:
        sql = "SELECT stream, time, channel, value, code FROM refused ORDER BY number DESC LIMIT ?"
        return [RefusedRecord(*one) for one in self._read(sql, (most,))]

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[AlarmRecord]:
        asked, values = ["TRUE"], []
        if stream is not None:
            asked.append("stream = ?")
            values.append(stream)
        if unacknowledged:
            asked.append("acknowledged IS NULL")
        sql = f"SELECT * FROM alarms WHERE {' AND '.join(asked)} ORDER BY number DESC"
        return [AlarmRecord(*one) for one in self._read(sql, values)]

    def acknowledge(self, number: int, at: float, by: str) -> AlarmRecord | None:
        with self._transaction():
            self._db.execute(
                'UPDATE alarms SET acknowledged = ?, "by" = ? WHERE number = ? AND acknowledged IS NULL',
                (at, by, number),
            )
        found = self._read("SELECT * FROM alarms WHERE number = ?", (number,))
        return AlarmRecord(*found[0]) if found else None

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
            for table in _PER_STREAM:
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


class _Owned:
    """A store's file, locked for this process under every name it has, and closed to other users.

    A second engine on it would undo what the first holds in memory. The lock is on the file itself, so that
    links lead to the same one and there is no file beside it to delete; a process that dies lets go of it.
    """

    def __init__(self, file: Path, real: Path) -> None:
        self._file, self._real = file, real
        with _owning:
            # Closing any descriptor of a file drops the locks that SQLite has on it in this process: one
            # that is owned here is not opened a second time.
            if _identity(real) in _owned:
                raise self._busy()
            try:
                self._handle = os.open(real, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreError(
                    f"{file} cannot be written ({error.strerror}): give a file that this user may write, in a "
                    "folder that this user may write, on a disk that is not read-only."
                ) from error
            try:
                self._lock()
                status = os.fstat(self._handle)
                self._identity = status.st_dev, status.st_ino
                self.check()
                self._close_to_others()
            except BaseException:
                os.close(self._handle)
                raise
            _owned[self._identity] = str(file)

    def _lock(self) -> None:
        try:
            import fcntl
        except (
            ImportError
        ):  # not on this system: the sequence of commits still tells two writers apart
            return
        try:
            if sys.platform == "linux":  # where these locks and SQLite's do not see each other
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:  # a byte far beyond those that SQLite locks
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2**60)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise self._busy() from error
            raise StoreError(
                f"{self._file} cannot be locked ({error.strerror}): use a local disk."
            ) from error

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"{self._file} is in use by another engine: stop that one, or give another file."
        )

    def _close_to_others(self) -> None:
        """Take other users' rights to the file, and to what SQLite keeps beside it, as it will to new ones."""
        for name in ("", "-wal", "-shm"):
            part = self._real.with_name(self._real.name + name)
            try:
                mode = part.stat().st_mode & 0o777
                if mode & 0o077:
                    part.chmod(mode & 0o700)
                    _LOGGER.warning(
                        "store closed to other users",
                        extra={"told": {"part": name or "file", "mode_before": f"{mode:04o}"}},
                    )
            except FileNotFoundError:
                continue
            except PermissionError:  # another user's file
                _LOGGER.warning(
                    "store open to other users", extra={"told": {"part": name or "file"}}
                )

    def check(self) -> None:
        """Refuse to go on where the name leads to another file by now."""
        if _identity(self._real) != self._identity:
            raise StoreError(
                f"{self._file} was deleted, moved or replaced while it was in use: stop this engine, and put "
                "the file back in its place."
            )

    def release(self) -> None:
        """Let go of the file; after SQLite has closed it."""
        with _owning:
            if _owned.pop(self._identity, None) is not None:
                os.close(self._handle)


def _identity(file: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
