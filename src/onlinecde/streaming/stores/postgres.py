"""A store in a schema of a PostgreSQL database: a transaction a micro-batch, one engine at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from onlinecde.streaming.errors import StoreError
from onlinecde.streaming.stores.base import StoreHead
from onlinecde.streaming.stores.postgres_arrays import columns
from onlinecde.streaming.stores.postgres_connections import Address, Connections
from onlinecde.streaming.stores.relational import Meta, RelationalStore
from onlinecde.streaming.stores.tables import (
    CUT_KINDS,
    INSERT,
    KEPT,
    KEYS,
    KINDS,
    SCHEMA,
    cut_sql,
    new_tables,
    upgrades,
)

if TYPE_CHECKING:
    from psycopg import Connection

KEPT_REFUSALS = 100_000
"""Refused events are for looking into; only the newest are kept, so that nobody can fill the disk with them."""

Synchronous = Literal["on", "off", "local", "remote_write", "remote_apply"]


class PostgresStore(RelationalStore):
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
        self._db: Connection | None = None
        self._piped = False
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
            self._db = db
            if not tables:
                for statement in new_tables("postgres"):
                    db.execute(statement.encode())
                db.execute(
                    "INSERT INTO meta (one, schema, writer, sequence) VALUES (1, %s, '', 0)",
                    (SCHEMA,),
                )
                self._seal_meta()
            elif ("meta",) not in tables or ("commits",) not in tables:
                raise StoreError(
                    f"{self.address} has tables of something else: give another schema."
                )
            (result,) = db.execute("SELECT schema FROM meta").fetchone() or (None,)
            if statements := upgrades("postgres", result or 0):
                for statement in statements:
                    db.execute(statement.encode())
                db.execute("UPDATE meta SET schema = %s", (SCHEMA,))
                self._seal_meta(unchecked=True)
            elif result != SCHEMA:
                raise StoreError(
                    f"{self.address} has schema {result}, this onlinecde reads {SCHEMA}: use the "
                    "onlinecde that wrote it."
                )
            db.execute(KEPT.encode())
            db.execute("UPDATE meta SET writer = %s", (writer,))
            self.unchecked = bool(self.notes.get("unchecked"))
            self._db = None

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._at.writing() as db, self._as_current(db), db.transaction():
            db.execute("SELECT 1 FROM meta FOR UPDATE")  # nobody takes over before the end
            self._at.check(db)
            yield db

    @contextmanager
    def _committing(self) -> Iterator[None]:
        # Sent in one go between its first statement and COMMIT: three round trips, however much there is.
        with (
            self._at.writing() as db,
            db.pipeline(),
            self._as_current(db, piped=True),
            db.transaction(),
        ):
            yield

    @contextmanager
    def _as_current(self, db: Connection, *, piped: bool = False) -> Iterator[None]:
        """The connection of the transaction that is under way, for as long as it is."""
        outer = self._db, self._piped
        self._db, self._piped = db, piped
        try:
            yield
        except BaseException:
            self._head = None
            raise
        finally:
            self._db, self._piped = outer

    def check_writable(self) -> None:
        with self._transaction() as db:
            db.execute("UPDATE meta SET sequence = sequence")

    def head(self) -> StoreHead:
        # By the writer, who holds the lock: no commit of an earlier connection is still under way.
        with self._at.writing() as db, self._as_current(db):
            return super().head()

    def _change(self, sql: str, values: Sequence[Any] = ()) -> int:
        assert self._db is not None
        done = self._db.execute(_placed(sql).encode(), values)
        return -1 if self._piped else done.rowcount

    def _claim(self, before: Meta, after: Meta, crc: int) -> bool:
        assert self._db is not None
        done = self._db.execute(
            "UPDATE meta SET sequence = %s, totals = %s, crc = %s WHERE sequence = %s AND writer = %s RETURNING 1",
            (after.sequence, after.totals, crc, before.sequence, self._at.name),
        )
        return done.fetchone() is not None

    def _put(self, table: str, records: Sequence[tuple]) -> None:
        assert self._db is not None
        if key := KEYS.get(table):
            # A statement changes no record twice: the last one counts.
            places = [list(KINDS[table]).index(name) for name in key.split(", ")]
            records = list({tuple(one[n] for n in places): one for one in records}.values())
        values = columns(list(KINDS[table].values()), records)
        self._db.execute(INSERT[table].encode(), values)

    def _cut(self, table: str, cuts: Sequence[tuple[int, float]]) -> None:
        assert self._db is not None
        self._db.execute(cut_sql(table).encode(), columns(list(CUT_KINDS.values()), cuts))

    def _kept_refusals(self) -> int:
        return KEPT_REFUSALS

    _order_of_revised = "number"
    _place, _here, _before_all = "ctid::text AS place", "ctid = ?::text::tid", "(0,0)"
    _after, _sorted = "ctid > ?::text::tid", "ctid"

    def _read(self, sql: str, values: Sequence[Any] = (), stream: int | None = None) -> list[tuple]:
        if self._db is not None and not self._piped:  # what this transaction has changed is seen
            return self._db.execute(_placed(sql).encode(), values, binary=True).fetchall()
        return self._at.read(_placed(sql), values)

    def compact(self, pages: int | None = None) -> int:
        # A step of the server's own autovacuum, which gives room back as it goes.
        if pages is None:
            with self._at.writing() as db:
                for table in KINDS:
                    db.execute(f"VACUUM {table}".encode())
        return 0

    def close(self) -> None:
        self._at.close()


@lru_cache(maxsize=256)
def _placed(sql: str) -> str:
    """A question with placeholders as psycopg has them."""
    return sql.replace("?", "%s")
