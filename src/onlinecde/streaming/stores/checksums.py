"""A checksum for each record of a store, over all its fields: what a disk changes is noticed when it is read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np

from onlinecde.streaming.stores.postgres_arrays import Column, Floats, Integers


class Checksum:
    """The checksums of records with these fields; of a `body`, whose bytes have one, the last four count.

    without: fields that are left out.

    >>> checksum = Checksum({"stream": Integers, "time": Floats})
    >>> checksum.of([(1, -0.0), (1, 0.5)]) == checksum.of([(1, 0.0), (1, 0.5)])
    True
    """

    def __init__(self, kinds: Mapping[str, type[Column]], without: str = "") -> None:
        self._numbers = [n for n, kind in enumerate(kinds.values()) if kind in (Integers, Floats)]
        self._left_out = list(kinds).index(without) if without else -1
        left_out = (*self._numbers, self._left_out)
        self._parts = [n for n in range(len(kinds)) if n not in left_out]
        self._body = list(kinds).index("body") if "body" in kinds else -1
        fields = [
            (f"n{n}", "<f8" if list(kinds.values())[n] is Floats else "<i8") for n in self._numbers
        ]
        self._head = np.dtype([*fields, *((f"length{n}", "<i4") for n in self._parts)])

    def of(self, records: Sequence[Sequence[Any]]) -> list[int]:
        """The checksum of each record."""
        if not records:
            return []
        columns = list(zip(*records, strict=True))
        head = np.empty(len(records), self._head)
        for n in self._numbers:
            kind = self._head[f"n{n}"]
            column = np.array(columns[n], kind)
            # NaN is stored as nothing, and -0.0 as 0.0.
            if kind == "<f8":
                with np.errstate(invalid="ignore"):
                    column = np.where(np.isnan(column), np.nan, column + 0.0)
            head[f"n{n}"] = column
        parts = []
        for n in self._parts:
            column = columns[n]
            if n == self._body:
                column = [part[-4:] for part in column]
            elif any(type(part) is not bytes for part in column):
                column = [_bytes(part) for part in column]
                head[f"length{n}"] = [-1 if part is None else len(part) for part in column]
                parts.append([part or b"" for part in column])
                continue
            head[f"length{n}"] = list(map(len, column))
            parts.append(column)
        data, width = head.tobytes(), self._head.itemsize
        places = range(0, len(data) + 1, width)
        heads = [data[a:b] for a, b in pairwise(places)]
        return list(map(crc32, map(b"".join, zip(heads, *parts, strict=True))))

    def sealed(self, records: Sequence[Sequence[Any]]) -> list[tuple]:
        """Records with their checksums behind them."""
        return [(*record, crc) for record, crc in zip(records, self.of(records), strict=True)]

    def sound(self, stored: Sequence[Sequence[Any]]) -> list[bool]:
        """Whether records that have a checksum behind them are as they were written."""
        try:
            sums = self.of([one[:-1] for one in stored])
        except (TypeError, ValueError, OverflowError):  # a field is of another kind by now
            return [self.sound([one])[0] for one in stored] if len(stored) > 1 else [False]
        return [one[-1] == crc for one, crc in zip(stored, sums, strict=True)]

    def mended(self, stored: Sequence[Any]) -> tuple | None:
        """The record that one flipped bit made this of, its checksum behind it; None where there is none.

        >>> checksum = Checksum({"stream": Integers, "time": Floats})
        >>> right = checksum.sealed([(1, 0.5)])[0]
        >>> checksum.mended((3, *right[1:])) == right
        True
        """
        *record, crc = stored
        try:
            if not isinstance(crc, int):
                return None
            (right,) = self.of([record])
            if (right ^ crc).bit_count() <= 1:
                return (*record, right)
            for place, value in enumerate(record):
                if value is None or place == self._left_out:
                    continue
                others = [(*record[:place], one, *record[place + 1 :]) for one in _flipped(value)]
                for other, found in zip(others, self.of(others), strict=True):
                    if found == crc:
                        return (*other, crc)
        except (
            TypeError,
            ValueError,
            OverflowError,
        ):  # not even its fields are what they should be
            return None
        return None


def _bytes(part: Any) -> bytes | None:
    """A text or bytes as they are counted."""
    if isinstance(part, str):
        return part.replace("\0", "\ufffd").encode("utf-8", "surrogatepass")
    return part


def _flipped(value: Any) -> Iterator[Any]:
    """A value with each of its bits the other way."""
    if isinstance(value, int):
        yield from (value ^ (1 << bit) for bit in range(62))
        return
    if isinstance(value, float):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        numbers = (
            struct.unpack("<d", struct.pack("<Q", bits ^ (1 << bit)))[0] for bit in range(64)
        )
        yield from numbers
        return
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    for place in range(len(data)):
        for bit in range(8):
            other = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
            yield other.decode("utf-8", "replace") if isinstance(value, str) else other


def mended_body(body: bytes) -> bytes | None:
    """The state that one flipped bit made these bytes of; None where there is none."""
    data = bytearray(body)
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            if crc32(data[:-4]) == int.from_bytes(data[-4:], "little"):
                return bytes(data)
            data[place] ^= 1 << bit
    return None
