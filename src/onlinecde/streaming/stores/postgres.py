"""A store in a schema of a PostgreSQL database: a transaction a micro-batch, one engine at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.errors import StoreError
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
from onlinecde.streaming.stores.postgres_arrays import Integers, Texts, columns
from onlinecde.streaming.stores.postgres_connections import Address, Connections
from onlinecde.streaming.stores.tables import (
    CUT,
    CUT_KINDS,
    FIELDS,
    FLOOR,
    INSERT,
    KINDS,
    PER_STREAM,
    REARM,
    SCHEMA,
    TABLES,
    UPGRADES,
)

if TYPE_CHECKING:
    from psycopg import Connection

KEPT_REFUSALS = 100_000
"""Refused events are for looking into; only the newest are kept, so that nobody can fill the disk with them."""

Synchronous = Literal["on", "off", "local", "remote_write", "remote_apply"]


class PostgresStore:
    """Everything an engine commits, in a schema of a PostgreSQL database; a `Store`.

    url: as libpq reads it, with the schema if it is not given beside it, which is made where there is none:
    `postgresql://user@host:5432/database?schema=icu`. A password is better kept in `~/.pgpass` or
    `PGPASSWORD`.
    synchronous: PostgreSQL's `synchronous_commit`; "on" syncs the disk (and what synchronous standbys there
    are) at every commit. With "off" the last commits may be lost when the database dies.
    wait: seconds to wait for another engine's lock, or for a connection, before `StoreBusy`.
    readers: connections for reading, at most.

    One engine writes to a schema: its connection holds an advisory lock, and a second engine is refused with
    `StoreBusy`. When the first one's process or machine is gone, PostgreSQL lets go of the lock; the next
    engine then finds exactly what was committed, and the first, should it come back, is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        synchronous: Synchronous = "on",
        wait: float = 5.0,
        readers: int = 2,
    ) -> None:
        if synchronous not in get_args(Synchronous):
            raise StoreError(
                f"synchronous is {synchronous!r}: choose one of {get_args(Synchronous)}."
            )
        if readers < 1:
            raise StoreError(f"readers is {readers}: give at least 1.")
        self.address = Address.read(url, schema)
        self._at = Connections(
            self.address,
            synchronous=synchronous,
            wait=wait,
            readers=readers,
            prepare=self._prepare,
        )

    def __str__(self) -> str:
        return str(self.address)

    def _prepare(self, db: Connection, writer: str) -> None:
        schema = self.address.schema
        (encoding,) = db.execute("SHOW server_encoding").fetchone() or ("",)
        if encoding != "UTF8":
            raise StoreError(f"{self.address} is in {encoding}: give a database in UTF8.")
        with db.transaction():
            spaces = db.execute("SELECT oid FROM pg_namespace WHERE nspname = %s", (schema,))
            if spaces.fetchone() is None:
                db.execute(f'CREATE SCHEMA "{schema}"'.encode())
            tables = db.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
                (f'"{schema}"',),
            ).fetchall()
            if not tables:
                db.execute(TABLES.encode())
                db.execute(
                    "INSERT INTO meta (one, schema, writer, sequence) VALUES (1, %s, '', 0)",
                    (SCHEMA,),
                )
            elif ("meta",) not in tables or ("commits",) not in tables:
                raise StoreError(
                    f"{self.address} has tables of something else: give another schema."
                )
            (result,) = db.execute("SELECT schema FROM meta").fetchone() or (None,)
            if result in UPGRADES:
                for statement in UPGRADES[result]:
                    db.execute(statement.encode())
                db.execute("UPDATE meta SET schema = %s", (SCHEMA,))
            elif result != SCHEMA:
                raise StoreError(
                    f"{self.address} has schema {result}, this onlinecde reads {SCHEMA}: use the "
                    "onlinecde that wrote it."
                )
            db.execute("UPDATE meta SET writer = %s", (writer,))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._at.writing() as db, db.transaction():
            db.execute("SELECT 1 FROM meta FOR UPDATE")  # nobody takes over before the end
            self._at.check(db)
            yield db

    def head(self) -> StoreHead:
        # By the writer, who holds the lock: no commit of an earlier connection is still under way.
        with self._at.writing() as db:
            result = db.execute("SELECT model, sequence, totals FROM meta").fetchone()
            assert result is not None
            return StoreHead(*result)

    def adopt(self, model: str) -> None:
        with self._transaction() as db:
            db.execute("UPDATE meta SET model = %s", (model,))

    def commit(self, commit: Commit) -> None:
        # Sent in one go between its first statement and COMMIT: three round trips, however much there is.
        with self._at.writing() as db, db.pipeline(), db.transaction():
            self._apply(db, commit)

    def check_writable(self) -> None:
        with self._transaction() as db:
            db.execute("UPDATE meta SET sequence = sequence")

    def rebuild(self, model: str, commits: Iterable[Commit]) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM states")
            db.execute("DELETE FROM checkpoints")
            for commit in commits:
                with db.pipeline():
                    self._apply(db, commit)
            db.execute("UPDATE meta SET model = %s", (model,))

    def _apply(self, db: Connection, commit: Commit) -> None:
        sequence = commit.sequence

        def insert(table: str, records: Sequence[tuple]) -> None:
            if records:
                values = columns(list(KINDS[table].values()), records)
                db.execute(INSERT[table].encode(), values)

        done = db.execute(
            "UPDATE meta SET sequence = %s, totals = %s WHERE sequence = %s AND writer = %s RETURNING 1",
            (sequence, commit.totals, sequence - 1, self._at.name),
        )
        if done.fetchone() is None:
            raise StoreError(
                f"{self.address}: commit {sequence} does not follow the last: another engine has "
                "written to this store."
            )
        db.execute("INSERT INTO commits VALUES (%s, %s)", (sequence, commit.received))
        insert("streams", commit.opened)
        insert("rows", list({record[:2]: record for record in commit.rows}.values()))
        insert("states", list({record[0]: record for record in commit.states}.values()))
        if commit.cuts:
            db.execute(CUT.encode(), columns(list(CUT_KINDS.values()), commit.cuts))
        insert("checkpoints", list({record[:2]: record for record in commit.checkpoints}.values()))
        insert("revised", commit.revised)
        if commit.refused:
            insert("refused", [(sequence, *one) for one in commit.refused])
            db.execute(
                "DELETE FROM refused WHERE number <= (SELECT max(number) FROM refused) - %s",
                (KEPT_REFUSALS,),
            )
        if commit.rearmed:
            db.execute(REARM.encode(), columns(list(CUT_KINDS.values()), commit.rearmed))
        insert("alarms", commit.alarms)

    def find(self, names: Sequence[str]) -> list[StreamRecord | None]:
        sql = f"SELECT {FIELDS['streams']} FROM streams WHERE name = ANY(%s)"
        result = {one[1]: StreamRecord(*one) for one in self._at.read(sql, [Texts.of(names)])}
        return [result.get(name) for name in names]

    def streams(self, numbers: Sequence[int] | None = None) -> list[StreamRecord]:
        return [StreamRecord(*one) for one in self._chosen("streams", "number", numbers)]

    def states(self, numbers: Sequence[int] | None = None) -> list[StateRecord]:
        return [StateRecord(*one) for one in self._chosen("states", "stream", numbers)]

    def _chosen(self, table: str, key: str, numbers: Sequence[int] | None) -> list[tuple]:
        sql = f"SELECT {FIELDS[table]} FROM {table}"
        if numbers is None:
            return self._at.read(f"{sql} ORDER BY {key}")
        return self._at.read(f"{sql} WHERE {key} = ANY(%s) ORDER BY {key}", [Integers.of(numbers)])

    def clocks(self, since: float) -> list[ClockRecord]:
        sql = (
            "SELECT stream, time, received, origin, outputs FROM states JOIN streams ON number = stream "
            "WHERE received >= %s OR origin IS NOT NULL ORDER BY stream"
        )
        return [ClockRecord(*one) for one in self._at.read(sql, (since,))]

    def newest(self, most: int) -> list[int]:
        sql = "SELECT stream FROM states ORDER BY received DESC, stream LIMIT %s"
        return [one[0] for one in self._at.read(sql, (most,))]

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
            f"SELECT {FIELDS['rows']} FROM rows WHERE stream = %s AND time >= %s AND time <= %s "
            "ORDER BY time "
        )
        if newest is None:
            result = self._at.read(sql + "LIMIT %s", (stream, since, until, oldest))
        else:
            result = self._at.read(sql + "DESC LIMIT %s", (stream, since, until, newest))[::-1]
        return [RowRecord(*one) for one in result]

    def received(self, sequences: Sequence[int]) -> dict[int, float]:
        sql = "SELECT sequence, received FROM commits WHERE sequence = ANY(%s)"
        return {one[0]: one[1] for one in self._at.read(sql, [Integers.of(sequences)])}

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        sql = (
            f"SELECT {FIELDS['checkpoints']} FROM checkpoints WHERE stream = %s AND time < %s "
            "ORDER BY time DESC LIMIT 1"
        )
        result = self._at.read(sql, (stream, before))
        return CheckpointRecord(*result[0]) if result else None

    def revised(self, stream: int) -> list[RevisedRecord]:
        sql = f"SELECT {FIELDS['revised']} FROM revised WHERE stream = %s ORDER BY number"
        return [RevisedRecord(*one) for one in self._at.read(sql, (stream,))]

    def refused(self, most: int = 1000) -> list[RefusedRecord]:
        sql = "SELECT stream, time, channel, value, code FROM refused ORDER BY number DESC LIMIT %s"
        return [RefusedRecord(*one) for one in self._at.read(sql, (most,))]

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[int]]:
        asked: list[str] = ["TRUE"]
        values: list[Any] = []
        if stream is not None:
            asked.append("stream = %s")
            values.append(stream)
        if unacknowledged:
            asked.append("acknowledged IS NULL")
        sql = f"SELECT {FIELDS['alarms']} FROM alarms WHERE {' AND '.join(asked)} ORDER BY number DESC"
        return [Alarm(*one) for one in self._at.read(sql, values)]

    def newest_alarms(self, streams: Sequence[int] | None = None) -> list[Alarm[int]]:
        sql = f"SELECT DISTINCT ON (stream) {FIELDS['alarms']} FROM alarms"
        chosen = "" if streams is None else " WHERE stream = ANY(%s)"
        values = [] if streams is None else [Integers.of(streams)]
        result = self._at.read(f"{sql}{chosen} ORDER BY stream, number DESC", values)
        return [Alarm(*one) for one in result]

    def acknowledge(self, number: int, at: float, by: str) -> Alarm[int] | None:
        with self._transaction() as db:
            db.execute(
                'UPDATE alarms SET acknowledged = %s, "by" = %s WHERE number = %s AND acknowledged IS NULL',
                (at, by, number),
            )
        sql = f"SELECT {FIELDS['alarms']} FROM alarms WHERE number = %s"
        result = self._at.read(sql, (number,))
        return Alarm(*result[0]) if result else None

    def pruned(self) -> bool:
        return self._at.read("SELECT pruned FROM meta")[0][0]

    def prune(self, keep: float) -> int:
        with self._transaction() as db:

            def delete(table: str, which: str) -> int:
                sql = f"DELETE FROM {table} USING {FLOOR} WHERE {table}.stream = least.stream"
                return db.execute(
                    f"{sql} AND {table}.time {which} least.time".encode(), (keep,)
                ).rowcount

            gone = delete("rows", "<=")
            delete("revised", "<=")
            delete("checkpoints", "<")
            db.execute("DELETE FROM commits WHERE sequence < (SELECT min(sequence) FROM rows)")
            if gone:
                db.execute("UPDATE meta SET pruned = TRUE")
        return gone

    def forget(self, stream: int, totals: str) -> None:
        with self._transaction() as db:
            for table in PER_STREAM:
                db.execute(f"DELETE FROM {table} WHERE stream = %s".encode(), (stream,))
            db.execute(
                "DELETE FROM refused WHERE stream = (SELECT name FROM streams WHERE number = %s)",
                (stream,),
            )
            db.execute("DELETE FROM streams WHERE number = %s", (stream,))
            db.execute("UPDATE meta SET totals = %s", (totals,))

    def close(self) -> None:
        self._at.close()
