"""The tables of a store, in SQLite and in PostgreSQL, and the statements that write whole columns to the latter."""

from __future__ import annotations

from dataclasses import fields

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.stores.postgres_arrays import Blobs, Column, Floats, Integers, Texts

ALARM_FIELDS = ", ".join('"by"' if one.name == "by" else one.name for one in fields(Alarm))
KEPT = "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, text TEXT NOT NULL)"
"""What other parts keep beside streams and rows; earlier versions leave it alone"""
SCHEMA = 2

# Rows are appended, and found by their index: a table in the order of streams would have to write a page
# for each stream of a micro-batch.
SQLITE_TABLES = """
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
                     acknowledged REAL, "by" TEXT, rose TEXT, policy TEXT, rearmed REAL);
CREATE INDEX alarms_of_stream ON alarms (stream);
CREATE TABLE commits (sequence INTEGER PRIMARY KEY, received REAL NOT NULL);
"""

SQLITE_UPGRADES = {
    1: (
        "ALTER TABLE alarms ADD COLUMN rose TEXT",
        "ALTER TABLE alarms ADD COLUMN policy TEXT",
        "ALTER TABLE alarms ADD COLUMN rearmed REAL",
    )
}
"""What to do to the tables of an earlier schema"""

# States are replaced again and again: with room on their pages that touches no index. Their bytes are
# floats, which do not compress.
TABLES = """
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), schema INTEGER NOT NULL, writer TEXT NOT NULL,
                   model TEXT, sequence BIGINT NOT NULL, totals TEXT, pruned BOOLEAN NOT NULL DEFAULT FALSE);
CREATE TABLE streams (number BIGINT PRIMARY KEY, name TEXT NOT NULL UNIQUE, static BYTEA, origin FLOAT8);
CREATE TABLE rows (stream BIGINT NOT NULL, time FLOAT8 NOT NULL, sequence BIGINT NOT NULL,
                   events BYTEA NOT NULL, more TEXT, outputs BYTEA NOT NULL, PRIMARY KEY (stream, time));
CREATE TABLE states (stream BIGINT PRIMARY KEY, time FLOAT8 NOT NULL, rows BIGINT NOT NULL,
                     since BIGINT NOT NULL, first FLOAT8 NOT NULL, previous FLOAT8,
                     received FLOAT8 NOT NULL, outputs BYTEA NOT NULL, body BYTEA NOT NULL)
                     WITH (fillfactor = 50);
ALTER TABLE states ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE checkpoints (stream BIGINT NOT NULL, time FLOAT8 NOT NULL, body BYTEA NOT NULL,
                          PRIMARY KEY (stream, time));
ALTER TABLE checkpoints ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE revised (number BIGINT PRIMARY KEY, stream BIGINT NOT NULL, time FLOAT8 NOT NULL,
                      sequence BIGINT NOT NULL, outputs BYTEA NOT NULL);
CREATE INDEX revised_of_stream ON revised (stream);
CREATE TABLE refused (number BIGINT PRIMARY KEY, sequence BIGINT NOT NULL, stream TEXT, time TEXT,
                      channel TEXT, value TEXT, code TEXT NOT NULL);
CREATE TABLE alarms (number BIGINT PRIMARY KEY, stream BIGINT NOT NULL, time FLOAT8 NOT NULL,
                     probability FLOAT8 NOT NULL, threshold FLOAT8 NOT NULL, raised FLOAT8 NOT NULL,
                     acknowledged FLOAT8, "by" TEXT, rose TEXT, policy TEXT, rearmed FLOAT8);
CREATE INDEX alarms_of_stream ON alarms (stream);
CREATE TABLE commits (sequence BIGINT PRIMARY KEY, received FLOAT8 NOT NULL)
"""

UPGRADES = {
    1: (
        "ALTER TABLE alarms ADD COLUMN rose TEXT, ADD COLUMN policy TEXT, ADD COLUMN rearmed FLOAT8",
    )
}

PER_STREAM = ("rows", "states", "checkpoints", "revised", "alarms")
KINDS: dict[str, dict[str, type[Column]]] = {
    "streams": {"number": Integers, "name": Texts, "static": Blobs, "origin": Floats},
    "rows": {
        "stream": Integers, "time": Floats, "sequence": Integers, "events": Blobs, "more": Texts,
        "outputs": Blobs,
    },
    "states": {
        "stream": Integers, "time": Floats, "rows": Integers, "since": Integers, "first": Floats,
        "previous": Floats, "received": Floats, "outputs": Blobs, "body": Blobs,
    },
    "checkpoints": {"stream": Integers, "time": Floats, "body": Blobs},
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
}  # fmt: skip
FIELDS = {table: ", ".join(kinds) for table, kinds in KINDS.items()}
CUT_KINDS = {"stream": Integers, "time": Floats}


def _unnest(kinds: dict[str, type[Column]]) -> str:
    return f"unnest({', '.join(f'%b::{kind.name}[]' for kind in kinds.values())})"


def _insert(table: str, key: str = "") -> str:
    """Insert columns; a record whose key is there already takes the old one's place."""
    kinds, fields = KINDS[table], FIELDS[table]
    sql = f"INSERT INTO {table} ({fields}) SELECT * FROM {_unnest(kinds)}"
    if key:
        new = [name for name in kinds if name not in key.split(", ")]
        sql += f" ON CONFLICT ({key}) DO UPDATE SET "
        sql += ", ".join(f"{name} = excluded.{name}" for name in new)
    return sql


def _append(table: str) -> str:
    """Insert columns under numbers that go on from the largest, in their order."""
    fields = FIELDS[table]
    return (
        f"INSERT INTO {table} (number, {fields}) SELECT place + (SELECT coalesce(max(number), 0) FROM {table}), "
        f"{fields} FROM {_unnest(KINDS[table])} WITH ORDINALITY AS new ({fields}, place)"
    )


INSERT = {
    "streams": _insert("streams"),
    "rows": _insert("rows", "stream, time"),
    "states": _insert("states", "stream"),
    "checkpoints": _insert("checkpoints", "stream, time"),
    "revised": _append("revised"),
    "refused": _append("refused"),
    "alarms": _insert("alarms"),
}
CUT = (
    f"DELETE FROM checkpoints USING {_unnest(CUT_KINDS)} AS cut (stream, time) "
    "WHERE checkpoints.stream = cut.stream AND checkpoints.time >= cut.time"
)
REARM = (
    f"UPDATE alarms SET rearmed = LEAST(rearmed, over.time) FROM {_unnest(CUT_KINDS)} AS over (stream, time) "
    "WHERE number = (SELECT max(number) FROM alarms AS newest WHERE newest.stream = over.stream)"
)
FLOOR = (
    "(SELECT s.stream, max(c.time) AS time FROM states s JOIN checkpoints c ON c.stream = s.stream "
    "AND c.time < s.time - %s GROUP BY s.stream) AS least"
)
"""For each stream, the newest checkpoint that the rows to be kept need"""
