"""A checksum for each record of a store, over all its fields: what a disk changes is noticed when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        left_out = list(kinds).index(without) if without else -1
        self._parts = [n for n in range(len(kinds)) if n not in self._numbers and n != left_out]
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
            head[f"n{n}"] = (
                np.where(np.isnan(column), np.nan, column + 0.0) if kind == "<f8" else column
            )
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


def _bytes(part: Any) -> bytes | None:
    """A text or bytes as they are counted."""
    if isinstance(part, str):
        return part.replace("\0", "\ufffd").encode("utf-8", "surrogatepass")
    return part
