"""A SQLite file whose structure is damaged: its indexes made anew, or all that can be read copied to a new file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from onlinecde.streaming.errors import StoreError
from onlinecde.streaming.stores.sqlite_file import OwnedFile
from onlinecde.streaming.stores.tables import FIELDS, KINDS, SQLITE_INSERT, new_tables

HEAD = "one, schema, model, sequence, totals, pruned, notes, crc"


def salvage(file: Path) -> list[str]:
    """Make the structure of a store's file whole again; what was done.

    A file that is copied stays beside the new one under the name it had and `.damaged`.
    """
    owned = OwnedFile(file, file.resolve())
    try:
        return _salvage(file, file.resolve())
    except sqlite3.Error as error:
        raise StoreError(f"{file}: {error}: take it from a backup.") from error
    finally:
        owned.release()


def _salvage(file: Path, real: Path) -> list[str]:
    old = sqlite3.connect(real, isolation_level=None)
    old.text_factory = any_text
    try:
        if _sound(old):
            return []
        try:
            old.execute("REINDEX")
            if _sound(old):
                return ["indexes that did not fit their tables were made anew"]
        except sqlite3.Error:
            pass
        fresh = real.with_name(f"{real.name}.repaired")
        fresh.unlink(missing_ok=True)
        new = sqlite3.connect(fresh, isolation_level=None)
        try:
            new.execute("PRAGMA auto_vacuum = INCREMENTAL")
            new.execute("BEGIN")
            for statement in new_tables("sqlite"):
                new.execute(statement)
            head = old.execute(f"SELECT {HEAD} FROM meta").fetchall()
            new.executemany(f"INSERT INTO meta ({HEAD}) VALUES ({', '.join('?' * 8)})", head)
            lost = sum(_copy(old, new, table) for table in KINDS)
            new.execute("COMMIT")
        finally:
            new.close()
    finally:
        old.close()
    aside = real.with_name(f"{real.name}.damaged")
    for part in ("-wal", "-shm"):
        beside = real.with_name(real.name + part)
        if beside.exists():
            beside.replace(aside.with_name(aside.name + part))
    real.replace(aside)
    fresh.chmod(0o600)
    fresh.replace(real)
    return [
        f"the file's structure was damaged: what can be read was copied, {lost} places in it cannot; as it was it is "
        f"{aside.name}"
    ]


def any_text(data: bytes) -> str:
    """A text as it is, be it damaged: its record's checksum tells."""
    return data.decode("utf-8", "replace")


def _sound(db: sqlite3.Connection) -> bool:
    try:
        return db.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> int:
    """Copy the records of a table that can be read; how many gaps there are between them."""
    sql = f"SELECT rowid, {FIELDS[table]} FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid LIMIT ?"
    insert = (
        SQLITE_INSERT[table]
        .replace("INSERT INTO", "INSERT OR IGNORE INTO")
        .partition(" ON CONFLICT")[0]
    )
    last, gaps, size = -(2**62), 0, 1_000
    while True:
        try:
            some = old.execute(sql, (last, size)).fetchall()
        except sqlite3.Error:
            if size > 1:
                size //= 2
                continue
            gaps += 1
            after = beyond(old, sql, last)
            if after is None:
                return gaps
            last, size = after, 1_000
            continue
        if not some:
            return gaps
        new.executemany(insert, [one[1:] for one in some])
        last, size = some[-1][0], 1_000


def beyond(old: sqlite3.Connection, sql: str, last: int) -> int | None:
    """The first place after some that cannot be read; None where nothing comes after."""

    def fails(place: int) -> bool:
        try:
            old.execute(sql, (place, 1)).fetchall()
        except sqlite3.Error:
            return True
        return False

    low, step = max(last, 0), 1
    while fails(low + step):
        low, step = low + step, 2 * step
        if step > 2**50:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high
