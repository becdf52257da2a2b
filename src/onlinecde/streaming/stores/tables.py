"""The tables of a store, in SQLite and in PostgreSQL, and the statements that write whole columns to the latter."""

from __future__ import annotations

from onlinecde.streaming.stores.checksums import Checksum
from onlinecde.streaming.stores.postgres_arrays import Blobs, Column, Floats, Integers, Texts

KEPT = "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, text TEXT NOT NULL)"
"""What other parts keep beside streams and rows"""
SCHEMA = 3

# Rows are appended, and found by their index: a table in the order of streams would have to write a page
# for each stream of a micro-batch.
_STATES = """
CREATE TABLE {0}states (stream {int} PRIMARY KEY, time {real} NOT NULL, rows {int} NOT NULL, since {int} NOT NULL,
    first {real} NOT NULL, previous {real}, received {real} NOT NULL, outputs {blob} NOT NULL, body {blob} NOT NULL,
    sequence {int}, crc {int}){room};
CREATE TABLE {0}checkpoints (stream {int} NOT NULL, time {real} NOT NULL, body {blob} NOT NULL, crc {int});
CREATE UNIQUE INDEX {0}checkpoints_of_stream ON {0}checkpoints (stream, time)"""
_TABLES = """
CREATE TABLE meta (one {int} PRIMARY KEY CHECK (one = 1), schema {int} NOT NULL, {writer}model TEXT,
    sequence {int} NOT NULL, totals TEXT, pruned {int} NOT NULL DEFAULT 0, notes TEXT, crc {int});
CREATE TABLE streams (number {int} PRIMARY KEY, name TEXT NOT NULL UNIQUE, static {blob}, origin {real}, ended {real},
    crc {int});
CREATE TABLE rows (stream {int} NOT NULL, time {real} NOT NULL, sequence {int} NOT NULL, events {blob} NOT NULL,
    more TEXT, outputs {blob} NOT NULL, before {real}, crc {int});
CREATE UNIQUE INDEX rows_of_stream ON rows (stream, time);
CREATE TABLE revised ({number}stream {int} NOT NULL, time {real} NOT NULL, sequence {int} NOT NULL,
    outputs {blob} NOT NULL, crc {int});
CREATE INDEX revised_of_stream ON revised (stream);
CREATE TABLE refused (number {int} PRIMARY KEY, sequence {int} NOT NULL, stream TEXT, time TEXT, channel TEXT,
    value TEXT, code TEXT NOT NULL, crc {int});
CREATE TABLE alarms (number {int} PRIMARY KEY, stream {int} NOT NULL, time {real} NOT NULL, probability {real} NOT NULL,
    threshold {real} NOT NULL, raised {real} NOT NULL, acknowledged {real}, "by" TEXT, rose TEXT, policy TEXT,
    rearmed {real}, crc {int});
CREATE INDEX alarms_of_stream ON alarms (stream);
CREATE TABLE commits (sequence {int} PRIMARY KEY, received {real} NOT NULL, crc {int})"""
_TYPES = {
    "sqlite": {"int": "INTEGER", "real": "REAL", "blob": "BLOB", "number": "", "room": "", "writer": ""},
    # States are replaced again and again: with room on their pages that touches no index.
    "postgres": {
        "int": "BIGINT", "real": "FLOAT8", "blob": "BYTEA", "number": "number BIGINT PRIMARY KEY, ",
        "room": " WITH (fillfactor = 50)", "writer": "writer TEXT NOT NULL, ",
    },
}  # fmt: skip


def _written(dialect: str, *texts: tuple[str, str]) -> list[str]:
    """Statements in a dialect."""
    joined = ";".join(text.format(prefix, **_TYPES[dialect]) for prefix, text in texts)
    return [one.strip() for one in joined.split(";")]


def _external(prefix: str) -> list[str]:
    """The bytes of states are floats, which do not compress."""
    return [
        f"ALTER TABLE {prefix}{table} ALTER COLUMN body SET STORAGE EXTERNAL"
        for table in ("states", "checkpoints")
    ]


SHADOW = "shadow_"
"""Before the names of the tables with the states of another model that is being built"""


def new_tables(dialect: str) -> list[str]:
    """Statements that make all tables."""
    both = _written(dialect, ("", _TABLES), ("", _STATES), (SHADOW, _STATES))
    return both + (_external("") + _external(SHADOW) if dialect == "postgres" else [])


def upgrades(dialect: str, schema: int) -> list[str]:
    """Statements that bring the tables of an earlier schema up to date; empty for one that is not known."""
    text, real, integer = "TEXT", _TYPES[dialect]["real"], _TYPES[dialect]["int"]
    added: list[tuple[str, str, str]] = []
    if schema == 1:
        added += [("alarms", "rose", text), ("alarms", "policy", text), ("alarms", "rearmed", real)]
    added += [("meta", "notes", text), ("streams", "ended", real), ("rows", "before", real)]
    added += [("states", "sequence", integer), ("meta", "crc", integer)]
    added += [(table, "crc", integer) for table in KINDS if not table.startswith(SHADOW)]
    if schema not in (1, 2):
        return []
    result = [f"ALTER TABLE {table} ADD COLUMN {name} {kind}" for table, name, kind in added]
    if dialect == "postgres":
        result += [
            "ALTER TABLE meta ALTER COLUMN pruned DROP DEFAULT",
            "ALTER TABLE meta ALTER COLUMN pruned TYPE BIGINT USING pruned::int",
            "ALTER TABLE meta ALTER COLUMN pruned SET DEFAULT 0",
        ]
    result += _written(dialect, (SHADOW, _STATES))
    return result + (_external(SHADOW) if dialect == "postgres" else [])


PER_STREAM = (
    "rows",
    "states",
    "checkpoints",
    "revised",
    "alarms",
    f"{SHADOW}states",
    f"{SHADOW}checkpoints",
)
_STATE_KINDS: dict[str, type[Column]] = {
    "stream": Integers, "time": Floats, "rows": Integers, "since": Integers, "first": Floats,
    "previous": Floats, "received": Floats, "outputs": Blobs, "body": Blobs, "sequence": Integers,
}  # fmt: skip
_CHECKPOINT_KINDS: dict[str, type[Column]] = {"stream": Integers, "time": Floats, "body": Blobs}
KINDS: dict[str, dict[str, type[Column]]] = {
    "streams": {
        "number": Integers, "name": Texts, "static": Blobs, "origin": Floats, "ended": Floats,
    },
    "rows": {
        "stream": Integers, "time": Floats, "sequence": Integers, "events": Blobs, "more": Texts,
        "outputs": Blobs, "before": Floats,
    },
    "states": _STATE_KINDS,
    "checkpoints": _CHECKPOINT_KINDS,
    "revised": {"stream": Integers, "time": Floats, "sequence": Integers, "outputs": Blobs},
    "refused": {
        "sequence": Integers, "stream": Texts, "time": Texts, "channel": Texts, "value": Texts,
        "code": Texts,
    },
    "alarms": {
        "number": Integers, "stream": Integers, "time": Floats, "probability": Floats,
        "threshold": Floats, "raised": Floats, "acknowledged": Floats, '"by"': Texts,
        "rose": Texts, "policy": Texts, "rearmed": Floats,
    },
    "commits": {"sequence": Integers, "received": Floats},
}  # fmt: skip
"""The fields of each table that has a checksum for each record, `crc`, beside these"""
CHECKSUMS = {
    # Of states the bytes have a checksum of their own, and need not be read where they are not looked at.
    table: Checksum(kinds, without="body" if table == "states" else "")
    for table, kinds in KINDS.items()
}
KINDS |= {f"{SHADOW}states": _STATE_KINDS, f"{SHADOW}checkpoints": _CHECKPOINT_KINDS}
CHECKSUMS |= {f"{SHADOW}{table}": CHECKSUMS[table] for table in ("states", "checkpoints")}
KINDS = {table: {**kinds, "crc": Integers} for table, kinds in KINDS.items()}
FIELDS = {table: ", ".join(kinds) for table, kinds in KINDS.items()}
HEAD = Checksum(
    {"schema": Integers, "model": Texts, "sequence": Integers, "totals": Texts, "pruned": Integers, "notes": Texts}
)  # fmt: skip
KEYS = {
    "rows": "stream, time",
    "states": "stream",
    "checkpoints": "stream, time",
    f"{SHADOW}states": "stream",
    f"{SHADOW}checkpoints": "stream, time",
    "streams": "number",
    "alarms": "number",
    "commits": "sequence",
}
"""Tables in which a record takes the place of an older one with the same key"""


def upsert(table: str, source: str) -> str:
    """Insert records; one whose key is there already takes the old one's place."""
    sql = f"INSERT INTO {table} ({FIELDS[table]}) {source}"
    if key := KEYS.get(table):
        new = [name for name in KINDS[table] if name not in key.split(", ")]
        sql += f" ON CONFLICT ({key}) DO UPDATE SET "
        sql += ", ".join(f"{name} = excluded.{name}" for name in new)
    return sql


def _unnest(kinds: dict[str, type[Column]]) -> str:
    return f"unnest({', '.join(f'%b::{kind.name}[]' for kind in kinds.values())})"


def _append(table: str) -> str:
    """Insert columns under numbers that go on from the largest, in their order."""
    fields = FIELDS[table]
    return (
        f"INSERT INTO {table} (number, {fields}) SELECT place + (SELECT coalesce(max(number), 0) FROM {table}), "
        f"{fields} FROM {_unnest(KINDS[table])} WITH ORDINALITY AS new ({fields}, place)"
    )


INSERT = {
    table: upsert(table, f"SELECT * FROM {_unnest(kinds)}")
    for table, kinds in KINDS.items()
    if table not in ("revised", "refused")
} | {table: _append(table) for table in ("revised", "refused")}
SQLITE_INSERT = {
    table: upsert(table, f"VALUES ({', '.join('?' * len(kinds))})") for table, kinds in KINDS.items()
}  # fmt: skip
CUT_KINDS = {"stream": Integers, "time": Floats}


def cut_sql(table: str) -> str:
    """Deletes the checkpoints of some streams from a time on, given as columns."""
    return (
        f"DELETE FROM {table} USING {_unnest(CUT_KINDS)} AS cut (stream, time) "
        f"WHERE {table}.stream = cut.stream AND {table}.time >= cut.time"
    )
