"""A store in one SQLite file: WAL, a transaction a micro-batch, one engine at a time."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from onlinecde.streaming.stores.base import RevisedRecord
from onlinecde.streaming.stores.relational import REMEDY, RelationalStore
from onlinecde.streaming.stores.salvage import any_text, beyond
from onlinecde.streaming.stores.sqlite_file import OwnedFile
from onlinecde.streaming.stores.tables import (
    CHECKSUMS,
    FIELDS,
    KEPT,
    SCHEMA,
    SQLITE_INSERT,
    new_tables,
    upgrades,
)

_LOGGER = logging.getLogger("onlinecde.streaming")
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


class SQLiteStore(RelationalStore):
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
        self._lost: set[str] = set()
        """Tables whose records may not be found by their indexes"""
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
                self._db.text_factory = any_text
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
        run(
            "PRAGMA auto_vacuum = INCREMENTAL"
        )  # of a new file: room that is free is given back in steps
        if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreError(f"{self.file} is where SQLite cannot keep a WAL: use a local disk.")
        run(f"PRAGMA synchronous = {synchronous}")
        run("PRAGMA cache_size = -65536")
        run("PRAGMA foreign_keys = OFF")
        with self._transaction():
            result = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not result:
                for statement in new_tables("sqlite"):
                    run(statement)
                run("INSERT INTO meta (one, schema, sequence) VALUES (1, ?, 0)", (SCHEMA,))
                self._seal_meta()
        try:
            schema = run("SELECT schema FROM meta").fetchone()
        except sqlite3.OperationalError:
            schema = None
        if schema is None:
            raise StoreError(f"{self.file} is a database of something else: give another file.")
        if statements := upgrades("sqlite", schema[0]):
            with self._transaction():
                for statement in statements:
                    run(statement)
                run("UPDATE meta SET schema = ?", (SCHEMA,))
                self._seal_meta(unchecked=True)
        elif schema[0] != SCHEMA:
            raise StoreError(
                f"{self.file} has schema {schema[0]}, this onlinecde reads {SCHEMA}: use the "
                "onlinecde that wrote it."
            )
        run(KEPT)
        self.unchecked = bool(self.notes.get("unchecked"))
        self._check_directory()

    def _check_directory(self) -> None:
        """Look through the small lists that an index finds: nothing is missed silently in them."""
        for table in ("streams", "alarms", "revised"):
            try:
                report = self._read(f"PRAGMA integrity_check('{table}')")
                sql = f"SELECT {FIELDS['streams']} FROM streams NOT INDEXED"
                sound = table != "streams" or all(self._sound(CHECKSUMS[table], self._read(sql)))
            except StoreError as error:
                report, sound = [(str(error),)], False
            if report != [("ok",)] or not sound:
                self._lost.add(table)
                _LOGGER.error(
                    "store damaged", extra={"told": {"table": table, "what": report[0][0]}}
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
            if code == sqlite3.SQLITE_CORRUPT:
                raise StoreCorrupt(f"{content}: {_REMEDIES[code]}") from error
            if code in _REMEDIES:
                raise StoreError(f"{content}: {_REMEDIES[code]}") from error
            raise StoreError(f"{content}.") from error
        except UnicodeDecodeError as error:  # what SQLite would say of it is not even text
            raise StoreCorrupt(f"{self.file}: {_REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._failing():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._head = None
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self, sql: str, values: Sequence[Any] = (), stream: int | None = None) -> list[tuple]:
        try:
            with self._failing():
                return self._db.execute(sql, values).fetchall()
        except StoreCorrupt as error:
            if stream is None:
                raise
            raise StoreDamaged(f"{self._called(stream)}{error} Or {REMEDY}.") from error

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

    @property
    def names_lost(self) -> bool:
        return "streams" in self._lost

    def _check_list(self, table: str, streams: Sequence[int] | None) -> None:
        """Raise where records of these streams may be missing among those that an index finds."""
        if table in self._lost and (streams is None or len(streams)):
            stream = None if streams is None else streams[0]
            self._damaged(stream, f"the list of `{table}` is damaged, so that some may be missing")

    def revised(self, stream: int) -> list[RevisedRecord]:
        self._check_list("revised", [stream])
        return super().revised(stream)

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[int]]:
        self._check_list("alarms", None if stream is None else [stream])
        return super().alarms(stream, unacknowledged=unacknowledged)

    def newest_alarms(self, streams: Sequence[int] | None = None) -> list[Alarm[int]]:
        self._check_list("alarms", streams)
        return super().newest_alarms(streams)

    def _change(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._db.execute(sql, values).rowcount

    def _put(self, table: str, records: Sequence[tuple]) -> None:
        self._db.executemany(SQLITE_INSERT[table], records)

    def _cut(self, table: str, cuts: Sequence[tuple[int, float]]) -> None:
        self._db.executemany(f"DELETE FROM {table} WHERE stream = ? AND time >= ?", cuts)

    def _beyond(self, sql: str, last: Any) -> Any:
        return beyond(self._db, sql, last)

    def integrity(self) -> list[str]:
        try:
            report = self._read("PRAGMA integrity_check(20)")
        except StoreError as error:
            return [str(error)]
        return [] if report == [("ok",)] else [one[0].replace("\n", " ") for one in report]

    def _kept_refusals(self) -> int:
        return KEPT_REFUSALS

    def compact(self, pages: int | None = None) -> int:
        with self._failing():
            if pages is None:
                self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self._db.execute("VACUUM")
            else:
                # Each row of the answer is a page that was given back.
                self._db.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
            return self._db.execute("PRAGMA freelist_count").fetchone()[0]

    def close(self) -> None:
        with self._failing():
            self._db.close()
        self._owned.release()
