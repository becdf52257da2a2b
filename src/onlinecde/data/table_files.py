"""Files and frames -> located tables: every cell can be named by file, line and column."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.data.archives import read_members
from onlinecde.data.errors import DataError
from onlinecde.series import SeriesError

if TYPE_CHECKING:
    import polars as pl

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""Texts that mean: not observed."""
LINE = "__line__"
SEPARATORS = {".csv": ",", ".tsv": "\t", ".psv": "|", ".txt": ","}


@dataclass(frozen=True)
class Table:
    """A table that knows where it came from; the column `LINE` numbers its lines."""

    frame: pl.DataFrame
    origin: str

    def column(self, name: str, role: str) -> pl.Series:
        """A column by name; the error lists those there are."""
        if name not in self.frame.columns:
            shown = [column for column in self.frame.columns if column != LINE]
            raise DataError(
                f"{self.origin}: there is no column '{name}' for the {role}; there are "
                f"{', '.join(shown[:30])}."
            )
        return self.frame[name]

    def where(self, index: int, column: str) -> str:
        """`file, line 7, column 'x'` of the cell at position `index`."""
        return f"{self.origin}, line {self.frame[LINE][index]}, column '{column}'"

    def complete(self, name: str, role: str) -> pl.Series:
        """A column in which nothing is missing."""
        column = self.column(name, role)
        if column.null_count():
            at = int(column.is_null().arg_true()[0])
            raise DataError(f"{self.where(at, name)}: the {role} is missing: fill it in.")
        return column

    def numbers(self, name: str, role: str) -> pl.Series:
        """A column as float64, null where missing; text that is no number is refused by name."""
        import polars as pl

        column = self.column(name, role)
        if column.dtype == pl.String:
            cast = column.str.strip_chars().cast(pl.Float64, strict=False)
            bad = (cast.is_null() & column.is_not_null()).arg_true()
            if len(bad):
                at = int(bad[0])
                raise DataError(
                    f"{self.where(at, name)} ({role}): {column[at][:40]!r} is not a number: "
                    "correct it, or leave it empty if it is missing."
                )
            column = cast
        elif column.dtype == pl.Boolean or column.dtype.is_numeric() or column.dtype == pl.Null:
            column = column.cast(pl.Float64)
        else:
            raise DataError(
                f"{self.origin}, column '{name}' ({role}) has type {column.dtype}: it must "
                "be numbers."
            )
        column = column.fill_nan(None)
        bad = column.is_infinite().fill_null(False).arg_true()
        if len(bad):
            raise DataError(
                f"{self.where(int(bad[0]), name)} ({role}): the value is infinite: leave it empty "
                "if it is missing."
            )
        return column

    def keys(self, name: str, role: str) -> pl.Series:
        """A column of identifiers: whole numbers where all are, else text."""
        import polars as pl

        column = self.complete(name, role)
        if column.dtype.is_float():
            whole = column.cast(pl.Int64, strict=False)
            bad = (whole.is_null() | (whole.cast(pl.Float64) != column)).arg_true()
            if len(bad):
                at = int(bad[0])
                raise DataError(
                    f"{self.where(at, name)}: the {role} is {column[at]}: identifiers must be "
                    "whole numbers or text."
                )
            return whole
        if column.dtype.is_integer():
            whole = column.cast(pl.Int64, strict=False)
            return column.cast(pl.String) if whole.null_count() else whole
        text = column.cast(pl.String)
        if text.str.contains(r"^(0|-?[1-9][0-9]{0,17})$").all():
            return text.cast(pl.Int64)
        return text

    def blank(self, name: str, where: pl.Series) -> Table:
        """The table with nothing in a column where `where` is true."""
        import polars as pl

        cells = pl.select(pl.when(~where).then(self.column(name, "value"))).to_series()
        return replace(self, frame=self.frame.with_columns(cells.alias(name)))

    def called(self, given: str | None, name: str) -> Table:
        """The table with its column `given` called `name`; None: it is called so."""
        if given is None or given == name:
            return self
        self.column(given, f"'{name}'")
        return replace(self, frame=self.frame.drop(name, strict=False).rename({given: name}))

    def rows(self, keep: pl.Series) -> Table:
        """Only the lines where `keep` is true."""
        return replace(self, frame=self.frame.filter(keep))


def words_in(column: pl.Series) -> pl.Series:
    """The cells of a column of text that are no numbers."""
    import polars as pl

    numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
    return column.filter(numbers.is_null()).drop_nulls()


def mostly_words(column: pl.Series) -> bool:
    """Whether more than half of what a column of text holds is no number."""
    return len(words_in(column)) > column.drop_nulls().len() / 2


def read_table(table: Any, *, what: str = "table") -> Table:
    """Read CSV (plain or .gz), TSV, Parquet or Arrow files; take polars, pandas and Arrow tables.

    Cells of a CSV are kept as text until their column's role is known, so that a bad one can be
    named. Lines count from 1, the header included; those of a frame from 0.
    """
    if isinstance(table, Table):
        return table
    if isinstance(table, (str, os.PathLike)):
        frame, first = _read_file(Path(table))
        return located(frame, str(table), first)
    return located(frame_of(table, what), f"the {what}", 0)


def frame_of(table: Any, what: str) -> pl.DataFrame:
    """A polars, pandas or Arrow table as a polars frame; `what` it is called in errors."""
    from onlinecde.series.tables import to_polars

    try:
        return to_polars(table)
    except SeriesError as error:
        raise DataError(f"the {what}: {error} Or give the path of a file.") from error


def located(frame: pl.DataFrame, origin: str, first: int) -> Table:
    """A frame whose lines count from `first`; categories become texts."""
    import polars as pl
    import polars.selectors as cs

    if LINE in frame.columns:
        raise DataError(f"{origin}: a column is called '{LINE}': give it another name.")
    if frame.height == 0:
        raise DataError(f"{origin}: there is no line in it.")
    lines = pl.Series(LINE, range(first, first + frame.height), dtype=pl.Int64)
    text = (cs.categorical() | cs.enum()).cast(pl.String)
    return Table(frame.with_columns(text, lines), origin)


def kind_of_file(path: Path) -> str:
    """The ending that says how a file is read, without .gz; refused where it is not there, or not known."""
    if not path.exists():
        raise DataError(f"{path} does not exist: check the path.")
    ending = path.name.lower().removesuffix(".gz")
    ending = ending[ending.rfind(".") :]
    if ending in (".parquet", ".arrow", ".feather", ".ipc"):
        return ending
    if path.is_dir():
        raise DataError(f"{path} is a folder: give one file.")
    if ending not in SEPARATORS:
        raise DataError(
            f"{path}: files ending in '{path.suffix}' are not read: give .csv, .csv.gz, .tsv, "
            ".psv, .parquet, .arrow or .feather."
        )
    return ending


def _read_file(path: Path) -> tuple[pl.DataFrame, int]:
    """The frame and the number of its first line."""
    import polars as pl

    ending = kind_of_file(path)
    try:
        if ending == ".parquet":
            return pl.read_parquet(path), 0
        if ending not in SEPARATORS:
            return pl.read_ipc(path), 0
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path}: the file is damaged or of another format ({error}).") from error
    member = next(read_members([path], lambda name: True))
    return parse_csv(member.data, str(path), SEPARATORS[ending]), 2


def parse_csv(data: bytes, origin: str, separator: str = ",", *, above: int = 0) -> pl.DataFrame:
    """Parse a CSV into columns of text, null where missing; lines may end in LF, CRLF or CR.

    above: lines left out between the header and the rest, where `data` is a part of a file.
    """
    import polars as pl

    data = _plain_lines(data)
    header = header_of(data, origin, separator)
    if b"\x00" in data:
        raise DataError(f"{origin}: the file holds zero bytes: it is no text, or is damaged.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1 + above
        raise DataError(
            f"{origin}, line {line}: not UTF-8 text: save the file as UTF-8."
        ) from error
    _check_widths(text, len(header), origin, separator, above)
    try:
        frame = pl.read_csv(
            data,
            separator=separator,
            has_header=False,
            skip_rows=1,
            new_columns=header,
            schema=dict.fromkeys(header, pl.String),
            null_values=list(MISSING),
        )
    except pl.exceptions.NoDataError:
        raise DataError(f"{origin}: there is no line below the header.") from None
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{origin}: the file cannot be read as a table ({error}).") from error
    if frame.height == 0:
        raise DataError(f"{origin}: there is no line below the header.")
    return frame


def header_of(data: bytes, origin: str, separator: str) -> list[str]:
    """The names of the columns, from the first line of a CSV; refused where they cannot be right."""
    first = _plain_lines(data).partition(b"\n")[0]
    if not data.strip():
        raise DataError(f"{origin}: the file is empty.")
    try:
        text = first.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{origin}, line 1: not UTF-8 text: save the file as UTF-8.") from error
    header = next(csv.reader(io.StringIO(text), delimiter=separator), [])
    header = [name.strip() for name in header]
    if not header or not all(header):
        raise DataError(
            f"{origin}, line 1: a column has no name: the first line must name them all."
        )
    _check_separator(header, origin, separator)
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{origin}, line 1: column '{twice}' stands twice: give each its own name.")
    return header


def _plain_lines(data: bytes) -> bytes:
    """Text without a byte order mark, its lines ended by LF."""
    return data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _check_separator(header: Sequence[str], origin: str, separator: str) -> None:
    """A header that is one name with another separator in it was split at the wrong one."""
    others = [other for other in (";", "\t", "|", ",") if other != separator and other in header[0]]
    if len(header) == 1 and others:
        raise DataError(
            f"{origin}, line 1: one column, called {header[0][:40]!r}: its cells seem to be separated "
            f"by {others[0]!r}, not {separator!r}. Save the file with commas (and decimal points) as "
            ".csv, with tabs as .tsv, or with | as .psv."
        )


def _check_widths(text: str, columns: int, origin: str, separator: str, above: int) -> None:
    """Every line has as many cells as the header; `above` lines behind that were left out."""
    if '"' in text:
        lines: Sequence[Any] = list(csv.reader(io.StringIO(text), delimiter=separator))
        widths = [len(cells) for cells in lines]
        if any("\n" in cell for cells in lines for cell in cells):
            raise DataError(f"{origin}: a cell holds a line break: write each line as one line.")
    else:
        lines = text.split("\n")
        if lines and not lines[-1].strip():
            lines = lines[:-1]
        widths = [line.count(separator) + 1 for line in lines]
    for number, width in enumerate(widths, start=1):
        if width != columns:
            raise DataError(
                f"{origin}, line {number + above}: {width} cells for {columns} columns: the line is "
                "damaged, empty or cut short."
            )
