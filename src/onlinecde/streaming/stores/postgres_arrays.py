"""Columns of records as PostgreSQL's binary arrays: a whole micro-batch in a few parameters.

Made here and not by psycopg, which looks at every element, and most of a commit would go into that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_length = struct.Struct(">i").pack
_float = struct.Struct(">id").pack


class Column(bytes):
    """A column in the form PostgreSQL receives arrays in; `oid` is the array's type, `element` its element's."""

    oid = element = 0
    name = ""

    @classmethod
    def of(cls, values: Sequence[Any]) -> Column:
        """The column of these values; None is NULL.

        >>> Texts.of(["a", None])[20:]
        b'\\x00\\x00\\x00\\x01a\\xff\\xff\\xff\\xff'
        """
        return cls(struct.pack(">iiIii", 1, 1, cls.element, len(values), 1) + cls._body(values))

    @staticmethod
    def _body(values: Sequence[Any]) -> bytes:
        raise NotImplementedError


class Integers(Column):
    """Whole numbers; none of them may be None."""

    oid, element, name = 1016, 20, "int8"

    @staticmethod
    def _body(values: Sequence[int]) -> bytes:
        return _wide(values, ">i8").tobytes()


class Floats(Column):
    """Numbers; NaN is NULL, as it is in SQLite."""

    oid, element, name = 1022, 701, "float8"

    @staticmethod
    def _body(values: Sequence[float | None]) -> bytes:
        packed = _wide(values, ">f8")
        if not np.isnan(packed["value"]).any():
            return packed.tobytes()
        none = _length(-1)
        return b"".join(none if v is None or v != v else _float(8, v) for v in values)


class Blobs(Column):
    """Bytes."""

    oid, element, name = 1001, 17, "bytea"

    @staticmethod
    def _body(values: Sequence[bytes | None]) -> bytes:
        none = _length(-1)
        return b"".join(
            [part for v in values for part in ((none,) if v is None else (_length(len(v)), v))]
        )


class Texts(Column):
    """Texts; PostgreSQL has no NUL in a text, so it becomes the sign for what cannot be shown."""

    oid, element, name = 1009, 25, "text"

    @staticmethod
    def _body(values: Sequence[str | None]) -> bytes:
        return Blobs._body(
            [None if v is None else v.replace("\0", "\ufffd").encode() for v in values]
        )


def _wide(values: Sequence[Any], kind: str) -> np.ndarray:
    packed = np.empty(len(values), [("length", ">i4"), ("value", kind)])
    packed["length"] = 8
    packed["value"] = np.array(values, kind)
    return packed


def columns(kinds: Sequence[type[Column]], records: Iterable[Sequence[Any]]) -> list[Column]:
    """Records (at least one), a column for each field."""
    return [kind.of(values) for kind, values in zip(kinds, zip(*records, strict=True), strict=True)]


def register(connection: Any) -> None:
    """Let a connection of psycopg take columns as parameters."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    for kind in (Integers, Floats, Blobs, Texts):

        class Dumped(Dumper):
            format, oid = Format.BINARY, kind.oid

            def dump(self, obj: Any) -> Any:
                return obj

        connection.adapters.register_dumper(kind, Dumped)
