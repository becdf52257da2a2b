"""Files of scores: Parquet or CSV, there whole or not at all; or the standard output."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from onlinecde.data import DataError
from onlinecde.files import check_file
from onlinecde.scoring.answers import POSITION
from onlinecde.scoring.work import disk_is_full, room_on_disk

if TYPE_CHECKING:
    pass

FORMATS = ("parquet", "csv")
_BYTES = 100
"""Bytes that a score takes in memory, about"""
_LINES = 1 << 18
"""Lines that become text together"""


@dataclass(frozen=True)
class OutputFile:
    """Where scores go: a file, or the standard output; Parquet or CSV.

    >>> OutputFile.named("scores.csv").form
    'csv'
    """

    path: Path | None
    """None for the standard output"""
    form: str
    overwrite: bool = False

    @classmethod
    def named(
        cls, name: str | Path, form: str | None = None, overwrite: bool = False
    ) -> OutputFile:
        """The file of a name, "-" for the standard output; its form by its ending, unless it is given."""
        if form not in (None, *FORMATS):
            raise DataError(f"the format is {form!r}: choose parquet or csv.")
        if str(name) == "-":
            return cls(None, form or "csv", overwrite)
        path = Path(name)
        ending = path.suffix.lower().removeprefix(".")
        chosen = form or {"pq": "parquet"}.get(ending, ending)
        if chosen not in FORMATS:
            raise DataError(
                f"{path}: give a name that ends in .parquet or .csv, or say which of them it is (--format)."
            )
        return cls(path, chosen, overwrite)

    def check(self) -> None:
        """Refuse a place where no file can be written, or one is that is not to be lost."""
        check_file(self.path, "--out")
        if self.path is not None and self.path.exists() and not self.overwrite:
            raise DataError(f"{self.path} is there already: give another name, or --overwrite.")

    def work_folder(self) -> Path | None:
        """The folder beside the output that it is made in; None for the standard output."""
        return None if self.path is None else self.path.with_name(f"{self.path.name}.work")


def write_scores(files: list[Path], lines: int, folder: Path, out: OutputFile, memory: int) -> None:
    """Put files of scores in order, and into the output.

    Args:
        files: Parquet files of scores with their `POSITION`.
        lines: how many lines they have together.
        folder: where there is room to work.
        out: where to.
        memory: how many bytes the data may take, about; more are sorted on disk.
    """
    import polars as pl

    sorted_file = folder / "sorted.parquet"
    with room_on_disk(folder):
        if lines * _BYTES <= memory:
            scores = pl.concat(pl.read_parquet(file) for file in files)
            scores = scores.sort(POSITION, "time").drop(POSITION)
            with sorted_file.open("wb") as file:
                scores.write_parquet(file)
        else:
            _sort_on_disk(files, sorted_file, folder, memory)
        made = sorted_file
        if out.form == "csv":
            made = folder / "sorted.csv"
            with made.open("wb") as file:
                _write_csv(sorted_file, lines, file)
        if out.path is None:
            _to_standard_output(made)
            return
        with made.open("rb+") as file:
            os.fsync(file.fileno())
        out.check()
        made.replace(out.path)


def _to_standard_output(made: Path) -> None:
    try:
        with made.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever reads it has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_csv(scores: Path, lines: int, file: BinaryIO) -> None:
    import polars as pl

    lazy = pl.scan_parquet(scores, glob=False)
    for start in range(0, max(1, lines), _LINES):
        part = lazy.slice(start, _LINES).collect()
        part.write_csv(file, include_header=start == 0)


def _sort_on_disk(files: list[Path], target: Path, folder: Path, memory: int) -> None:
    import duckdb

    config: dict[str, Any] = {
        "memory_limit": f"{max(64, memory >> 20)}MiB",
        "temp_directory": str(folder / "sorting"),
        "threads": 2,
        "autoinstall_known_extensions": False,
    }
    names = ", ".join(_quoted(file) for file in files)
    query = f"SELECT * EXCLUDE {POSITION} FROM read_parquet([{names}]) ORDER BY {POSITION}, time"
    try:
        with duckdb.connect(config=config) as database:
            database.execute(
                f"COPY ({query}) TO {_quoted(target)} (FORMAT parquet, COMPRESSION zstd)"
            )
    except duckdb.Error as error:
        if "space" in str(error):
            raise disk_is_full(folder) from error
        raise


def _quoted(file: Path) -> str:
    return "'" + str(file).replace("'", "''") + "'"
