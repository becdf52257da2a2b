"""A checksum for each record of a store, over all its fields: what a disk changes is noticed when it is read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from onlinecde.streaming.stores.postgres_arrays import Column, Floats, Integers

_PRIME, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1
_NAN = struct.unpack("<Q", struct.pack("<d", float("nan")))[0]
_FEW = 16
"""Records for which plain numbers are quicker than arrays"""


class Checksum:
    """The checksums of records with these fields, 32 bits; of a `body`, whose bytes have one, the last four count.

    Numbers are mixed one after the other, bytes and texts by their CRC-32.

    without: a field that is left out.

    >>> checksum = Checksum({"stream": Integers, "time": Floats})
    >>> checksum.of([(1, -0.0), (1, 0.5)]) == checksum.of([(1, 0.0), (1, 0.5)])
    True
    """

    def __init__(self, kinds: Mapping[str, type[Column]], without: str = "") -> None:
        names = list(kinds)
        self._left_out = names.index(without) if without else -1
        self._body = names.index("body") if "body" in kinds else -1
        known = {Integers: "i", Floats: "f"}
        self._kinds = [
            (n, known.get(kind, "b"))
            for n, kind in enumerate(kinds.values())
            if n != self._left_out
        ]

    def of(self, records: Sequence[Sequence[Any]], *more: Any) -> list[int]:
        """The checksum of each record; more: fields that all have behind their own."""
        if len(records) <= _FEW:
            return [self._alone((*record, *more)) for record in records]
        columns = [*zip(*records, strict=True), *([one] * len(records) for one in more)]
        mixed = np.zeros(len(records), np.uint64)
        prime, far = np.uint64(_PRIME), np.uint64(29)
        for n, kind in self._kinds:
            if kind == "b":
                numbers = np.fromiter(map(crc32, self._bytes_of(n, columns[n])), np.uint64)
            elif kind == "i":
                numbers = np.array(columns[n], np.int64).view(np.uint64)
            else:
                column = np.array(columns[n], np.float64)
                # NaN is stored as nothing, and -0.0 as 0.0.
                with np.errstate(invalid="ignore"):
                    numbers = np.where(np.isnan(column), np.nan, column + 0.0).view(np.uint64)
            mixed = (mixed ^ numbers) * prime
            mixed ^= mixed >> far
        return (mixed >> np.uint64(32)).tolist()

    def _bytes_of(self, place: int, column: Sequence[Any]) -> Sequence[bytes]:
        if place == self._body:
            return [part[-4:] for part in column]
        if set(map(type, column)) <= {bytes}:
            return column
        return [_bytes(part) for part in column]

    def _alone(self, record: Sequence[Any]) -> int:
        mixed = 0
        for n, kind in self._kinds:
            value = record[n]
            if kind == "b":
                number = crc32(value[-4:] if n == self._body else _bytes(value))
            elif kind == "i":
                number = int(value) & _MASK
            elif value is None or value != value:
                number = _NAN
            else:
                (number,) = struct.unpack("<Q", struct.pack("<d", value + 0.0))
            mixed = (mixed ^ number) * _PRIME & _MASK
            mixed ^= mixed >> 29
        return mixed >> 32

    def sealed(self, records: Sequence[Sequence[Any]], *more: Any) -> list[tuple]:
        """Records with their checksums behind them; more: fields that all have before those."""
        sums = self.of(records, *more)
        return [(*record, *more, crc) for record, crc in zip(records, sums, strict=True)]

    def sound(self, stored: Sequence[Sequence[Any]]) -> list[bool]:
        """Whether records that have a checksum behind them are as they were written."""
        try:
            sums = self.of([one[:-1] for one in stored])
        except (TypeError, ValueError, OverflowError, struct.error):  # a field is of another kind
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


def _bytes(part: Any) -> bytes:
    """A text or bytes as they are counted; nothing is something else than no bytes."""
    if part is None:
        return b"\0nothing"
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
