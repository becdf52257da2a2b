"""A store's connections to PostgreSQL: one that writes and holds the store's lock, a pool of those that read."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from onlinecde.streaming.errors import StoreBusy, StoreError, StoreFull
from onlinecde.streaming.stores.postgres_arrays import register

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

_FULL = "53100"
_BUSY = re.compile(r"08|40|53|57|55P03|25P03")
"""SQLSTATEs of what passes: connections, conflicts, want of memory or slots, shutdowns, locks, timeouts"""


def psycopg_modules() -> tuple[Any, Any]:
    """psycopg and its pool, or what to do where they are missing."""
    try:
        import psycopg
        import psycopg_pool
    except ImportError as error:
        raise StoreError(
            f'a store in PostgreSQL needs psycopg ({error}): pip install "onlinecde[postgres]".'
        ) from error
    return psycopg, psycopg_pool


@dataclass(frozen=True)
class Address:
    """Where a store is: what libpq needs to know, and the schema of its tables."""

    options: dict[str, Any]
    schema: str

    @classmethod
    def read(cls, url: str, schema: str | None = None) -> Address:
        """From a libpq URL that may name the schema, `postgresql://user@host:port/database?schema=icu`."""
        psycopg, _ = psycopg_modules()
        head, _, query = url.partition("?")
        asked = parse_qsl(query, keep_blank_values=True)
        named = [value for name, value in asked if name == "schema"]
        rest = urlencode([one for one in asked if one[0] != "schema"], quote_via=quote)
        chosen = schema or (named[0] if named else "onlinecde")
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", chosen):
            raise StoreError(f"schema is {chosen!r}: give small letters, digits and _, at most 63.")
        try:
            content = psycopg.conninfo.conninfo_to_dict(f"{head}?{rest}" if rest else head)
        except psycopg.Error as error:
            raise StoreError(f"the store's URL cannot be read: {str(error).strip()}.") from error
        return cls(content, chosen)

    def __str__(self) -> str:
        """For people: without user and password."""
        content = self.options
        place = f"{content.get('host', '')}:{content.get('port', 5432)}/{content.get('dbname', '')}"
        return f"PostgreSQL {place} schema {self.schema}"

    @property
    def lock(self) -> int:
        """The advisory lock of the schema's one writer."""
        name = hashlib.sha256(f"onlinecde:{self.schema}".encode()).digest()
        return int.from_bytes(name[:8], "big", signed=True)


class Connections:
    """The writer's connection, which holds the schema's lock, and a pool for reading.

    A lost connection is made again when it is next needed; a write is never tried twice, a read once more.
    prepare: called once with the first connection and the name of this writer, to make or check the tables.
    """

    def __init__(
        self,
        address: Address,
        *,
        synchronous: str,
        wait: float,
        readers: int,
        prepare: Callable[[Connection, str], None],
    ) -> None:
        self.address, self.wait = address, wait
        self.name = secrets.token_hex(16)
        """Written to the store: whoever writes there last is its writer"""
        self._psycopg, self._pools = psycopg_modules()
        self._readers = readers
        self._session = (
            f'SET search_path TO "{address.schema}"; SET client_encoding TO UTF8; '
            f"SET synchronous_commit TO {synchronous}; SET lock_timeout TO {max(1, int(1e3 * wait))}; "
            # Where the writer's machine is gone, its lock is free after half a minute.
            "SET tcp_keepalives_idle TO 10; SET tcp_keepalives_interval TO 5; SET tcp_keepalives_count TO 4"
        )
        self._options: dict[str, Any] = {
            "application_name": "onlinecde",
            "connect_timeout": max(2, math.ceil(wait)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
            "tcp_user_timeout": 30_000,
            **address.options,
        }
        self._writer: Connection | None = None
        self._pool: ConnectionPool | None = None
        self._backend: tuple[int, Any] | None = None
        self._closed = False
        self._connect(prepare)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """The writer's connection; errors are ours."""
        with self._failing():
            yield self._connected()

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple]:
        """The rows of a question, asked once more where the connection was lost."""
        with self._failing():
            self._connected()
            try:
                return self._ask(sql, values)
            except self._psycopg.OperationalError as error:
                if error.sqlstate is not None and error.sqlstate[:2] not in ("08", "57"):
                    raise
                self._drop()
                self._connected()
                return self._ask(sql, values)

    def _ask(self, sql: str, values: Sequence[Any]) -> list[tuple]:
        assert self._pool is not None
        with self._pool.connection() as connection:
            return connection.execute(sql.encode(), values, binary=True).fetchall()

    def _connected(self) -> Connection:
        if self._writer is None or not self._alive(self._writer):
            self._drop()
            self._connect()
        assert self._writer is not None
        return self._writer

    def _alive(self, connection: Connection) -> bool:
        """Whether a connection was still there a moment ago, without asking the database."""
        try:
            for _ in range(
                2
            ):  # the first takes in a last word, if there is one, the second finds the end
                connection.pgconn.consume_input()
        except self._psycopg.OperationalError:
            return False
        return not connection.closed

    def _configure(self, connection: Connection) -> None:
        connection.execute(self._session.encode())
        register(connection)

    def _connect(self, prepare: Callable[[Connection, str], None] | None = None) -> None:
        """A writer that holds the lock, as the same writer as before, and a new pool."""
        if self._closed:
            raise StoreError(f"{self.address} was closed: open it again.")
        with self._failing():
            writer = self._psycopg.connect(**self._options, autocommit=True)
            try:
                self._configure(writer)
                self._own(writer)
                if prepare is not None:
                    prepare(writer, self.name)
                self.check(writer)
                self._backend = writer.execute(
                    "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
                ).fetchone()
            except BaseException:
                writer.close()
                raise
        self._writer = writer
        self._pool = self._pools.ConnectionPool(
            kwargs={**self._options, "autocommit": True},
            min_size=1,
            max_size=self._readers,
            configure=self._configure,
            timeout=max(2.0, self.wait),
            num_workers=1,
            open=True,
        )

    def _own(self, connection: Connection) -> None:
        """Take the lock. It comes free only when the backend that held it has ended, its commit decided."""
        if self._backend is not None:
            # Our own last one may not have noticed yet that nobody is there.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE (pid, backend_start) = (%s, %s)",
                self._backend,
            )
        lock = self.address.lock
        try:
            connection.execute("SELECT pg_advisory_lock(%s)", (lock,))
        except self._psycopg.errors.LockNotAvailable as error:
            holder = connection.execute(
                "SELECT pid, client_addr, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid) "
                "WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = %s AND objid = %s",
                (lock >> 32 & 0xFFFFFFFF, lock & 0xFFFFFFFF),
            ).fetchone()
            who = (
                ""
                if holder is None
                else f" (backend {holder[0]} from {holder[1]} since {holder[2]})"
            )
            raise StoreBusy(
                f"{self.address} is in use by another engine{who}: stop that one, or give another schema."
            ) from error

    def check(self, connection: Connection) -> None:
        """Refuse where another engine has taken the store over."""
        result = connection.execute("SELECT writer FROM meta").fetchone()
        if result is None or result[0] != self.name:
            raise StoreError(
                f"{self.address} was taken over by another engine while this one had lost it: what this "
                "one holds in memory is old. Stop it, or start it again."
            )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """PostgreSQL's errors as ours."""
        try:
            yield
        except self._psycopg.Error as error:
            if self._writer is not None and self._writer.closed:
                self._drop()
            state = error.sqlstate
            outputs = str(error).strip().splitlines() or [type(error).__name__]
            content = f"{self.address}: {outputs[0]}"
            lost = isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)
            if state == _FULL:
                raise StoreFull(f"{content}: make room, then send the events again.") from error
            if _BUSY.match(state) if state else lost:
                raise StoreBusy(
                    f"{content}: it is busy or cannot be reached; try again later."
                ) from error
            raise StoreError(f"{content}.") from error

    def _drop(self) -> None:
        writer, pool = self._writer, self._pool
        self._writer = self._pool = None
        if writer is not None:
            writer.close()
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Let go of the lock and of all connections."""
        if self._writer is not None and not self._writer.closed:
            with contextlib.suppress(self._psycopg.Error):
                self._writer.execute("SELECT pg_advisory_unlock(%s)", (self.address.lock,))
        self._drop()
        self._closed = True
