"""Tables of any size, a chunk of lines at a time: CSV, Parquet and Arrow files, and frames."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.data.archives import line_blocks
from onlinecde.data.errors import DataError
from onlinecde.data.table_files import (
    LINE,
    SEPARATORS,
    Table,
    frame_of,
    header_of,
    kind_of_file,
    located,
    parse_csv,
)

if TYPE_CHECKING:
    import polars as pl

ENDS = 1 << 20
"""Bytes at both ends of a file that its fingerprint looks at."""


@dataclass(frozen=True)
class Place:
    """How far a table was read."""

    lines: int = 0
    """Lines, without a header."""
    bytes: int = 0
    """Bytes of a CSV, unpacked, with its header."""


BEGINNING = Place()


class TableSource(ABC):
    """A table that is read in chunks, from its first line or from a place reached before.

    >>> import polars as pl
    >>> source = table_source(pl.DataFrame({"stay": [1, 1, 2], "hours": [0.0, 1.0, 0.0]}))
    >>> [chunk.frame.height for chunk, _ in source.chunks(["stay", "hours"], 32)]
    [2, 1]
    """

    origin: str
    columns: Sequence[str]

    @abstractmethod
    def chunks(
        self, columns: Sequence[str], size: int, place: Place = BEGINNING
    ) -> Iterator[tuple[Table, Place]]:
        """Chunks of about `size` bytes with these columns and `LINE`, each with the place behind it."""

    @abstractmethod
    def done(self, place: Place) -> float:
        """What share of the table lies before a place, 0 to 1."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """About how many bytes the table takes in memory."""

    def fingerprint(self) -> dict[str, Any]:
        """What changes when the table does; empty where it is in memory."""
        return {}


def table_source(
    table: Any, *, what: str = "table", called: Mapping[str, str] | None = None
) -> TableSource:
    """The source for a path or a frame (polars, pandas, Arrow).

    what: a frame is called in errors. called: names of columns to give others.
    """
    if not isinstance(table, (str, os.PathLike)):
        source: TableSource = _Frame(frame_of(table, what), f"the {what}")
    else:
        path = Path(table)
        source = _Text(path) if kind_of_file(path) in SEPARATORS else _Columnar(path)
    return _Renamed(source, called) if called else source


class _Renamed(TableSource):
    """A table some of whose columns are called otherwise."""

    def __init__(self, source: TableSource, called: Mapping[str, str]) -> None:
        self._source, self.origin = source, source.origin
        for name in called:
            if name not in source.columns:
                raise DataError(
                    f"{source.origin}: there is no column '{name}'; there are {', '.join(source.columns[:30])}."
                )
        self._given = {
            called.get(name, name): name for name in source.columns if name not in called.values()
        }
        self.columns = list(self._given)

    def chunks(
        self, columns: Sequence[str], size: int, place: Place = BEGINNING
    ) -> Iterator[tuple[Table, Place]]:
        given = {self._given[name]: name for name in columns}
        for chunk, after in self._source.chunks(list(given), size, place):
            yield Table(chunk.frame.rename(given), chunk.origin), after

    def done(self, place: Place) -> float:
        return self._source.done(place)

    @property
    def bytes(self) -> int:
        return self._source.bytes

    def fingerprint(self) -> dict[str, Any]:
        return {**self._source.fingerprint(), "called": self._given}


class _Frame(TableSource):
    def __init__(self, frame: pl.DataFrame, origin: str) -> None:
        self.origin, self.columns, self._frame = origin, frame.columns, frame
        located(frame, origin, 0)

    def chunks(
        self, columns: Sequence[str], size: int, place: Place = BEGINNING
    ) -> Iterator[tuple[Table, Place]]:
        frame = self._frame.select(columns)
        step = _lines_in(size, frame.schema)
        for start in range(place.lines, frame.height, step):
            part = frame[start : start + step]
            yield located(part, self.origin, start), Place(start + part.height)

    def done(self, place: Place) -> float:
        return place.lines / self._frame.height

    @property
    def bytes(self) -> int:
        return int(self._frame.estimated_size())


class _Columnar(TableSource):
    """A Parquet or Arrow file, or a folder of Parquet files."""

    def __init__(self, path: Path) -> None:
        import polars as pl

        self._path, self.origin = path, str(path)
        self._files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        try:
            lazy = self._lazy()
            self._schema = lazy.collect_schema()
            self._height = int(lazy.select(pl.len()).collect().item())
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _damaged(path, error) from error
        self.columns = self._schema.names()
        if LINE in self.columns:
            raise DataError(f"{path}: a column is called '{LINE}': give it another name.")
        if not self._height:
            raise DataError(f"{path}: there is no line in it.")

    def _lazy(self) -> pl.LazyFrame:
        import polars as pl

        if kind_of_file(self._path) == ".parquet":
            return pl.scan_parquet(self._files, glob=False)
        return pl.scan_ipc(self._files)

    def chunks(
        self, columns: Sequence[str], size: int, place: Place = BEGINNING
    ) -> Iterator[tuple[Table, Place]]:
        import polars as pl

        step = _lines_in(size, {name: self._schema[name] for name in columns})
        for start in range(place.lines, self._height, step):
            try:
                part = self._lazy().select(columns).slice(start, step).collect()
            except (pl.exceptions.PolarsError, OSError) as error:
                raise _damaged(self._path, error) from error
            yield located(part, self.origin, start), Place(start + part.height)

    def done(self, place: Place) -> float:
        return place.lines / self._height

    @property
    def bytes(self) -> int:
        return self._height * _bytes_of_line(self._schema)

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [_fingerprint(file) for file in self._files]}


class _Text(TableSource):
    """A CSV or one of its kin, plain or packed by gzip."""

    def __init__(self, path: Path) -> None:
        self._path, self.origin = path, str(path)
        self._separator = SEPARATORS[kind_of_file(path)]
        first = next(line_blocks(path, 1, limit=1), b"")
        self._header = (first.splitlines(keepends=True) or [b""])[0]
        self.columns = header_of(self._header, self.origin, self._separator)

    def chunks(
        self, columns: Sequence[str], size: int, place: Place = BEGINNING
    ) -> Iterator[tuple[Table, Place]]:
        lines, start = place.lines, max(place.bytes, len(self._header))
        for block in line_blocks(self._path, size, start=start):
            start += len(block)
            if lines and not block.strip():
                lines += block.count(b"\n")
                continue
            whole = parse_csv(self._header + block, self.origin, self._separator, above=lines)
            chunk = located(whole.select(columns), self.origin, 2 + lines)
            lines += whole.height
            yield chunk, Place(lines, start)
        if not lines:
            raise DataError(f"{self.origin}: there is no line below the header.")

    def done(self, place: Place) -> float:
        return min(1.0, place.bytes / self.bytes)

    @property
    def bytes(self) -> int:
        # Packed tables of numbers are a fifth of their size, more or less.
        packed = self._path.name.lower().endswith(".gz")
        return max(1, self._path.stat().st_size * (5 if packed else 1))

    def fingerprint(self) -> dict[str, Any]:
        return _fingerprint(self._path)


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: the file is damaged or of another format ({error}).")


def _lines_in(size: int, schema: Any) -> int:
    return max(1, size // _bytes_of_line(schema))


def _bytes_of_line(schema: Any) -> int:
    """About how many bytes a line takes: 8 a number or time, more for a text."""
    return sum(8 if dtype.is_numeric() or dtype.is_temporal() else 24 for dtype in schema.values())


def _fingerprint(path: Path) -> dict[str, Any]:
    about, digest = path.stat(), hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(ENDS))
        file.seek(max(0, about.st_size - ENDS))
        digest.update(file.read(ENDS))
    return {
        "file": str(path.resolve()),
        "bytes": about.st_size,
        "changed": about.st_mtime_ns,
        "ends": digest.hexdigest(),
    }
