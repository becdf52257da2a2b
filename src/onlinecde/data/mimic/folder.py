"""A folder of MIMIC-IV, any release from 1.0 to 3.1 -> views `mimic.<table>`, columns checked."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import duckdb

from onlinecde.data.errors import DataError
from onlinecde.data.mimic.tables import OPTIONAL, TABLES, Column

_PARTS = ("", "hosp", "icu", "core")
_ENDINGS = (".parquet", ".csv.gz", ".csv")
_TIMES = "['%m/%d/%Y %H:%M', '%m/%d/%Y %H:%M:%S', '%m/%d/%Y']"
ADVICE = (
    "MIMIC-IV is at https://physionet.org/content/mimiciv/ (credentialed) and its demo at "
    "https://physionet.org/content/mimic-iv-demo/ (open): give the folder with hosp/ and icu/."
)


@dataclass(frozen=True)
class TableFile:
    """One table on disk: where, and the names and types of its columns (types for Parquet only)."""

    table: str
    path: Path
    columns: dict[str, str]

    def column(self, wanted: Column) -> str | None:
        """The name under which this release has the column, or None."""
        lower = {name.strip().lower(): name for name in self.columns}
        return next((lower[name] for name in wanted.names if name in lower), None)


@dataclass(frozen=True)
class MimicFolder:
    """The tables found in a folder, checked for the columns that are needed."""

    path: Path
    files: dict[str, TableFile]
    notes: tuple[str, ...]
    """What is absent, and what is done instead."""

    @classmethod
    def find(cls, path: str | Path, *, needed: Collection[str] = ()) -> MimicFolder:
        """Find every table under `path` (itself, or its core/, hosp/ and icu/).

        `needed` names tables to insist on beyond those always needed. Raises `DataError` naming the
        table or the file and the column that is missing.
        """
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is not a folder. {ADVICE}")
        path = _descend(path)
        files, notes = {}, []
        for table, columns in TABLES.items():
            found = _find_table(path, table)
            if found is None:
                if table in OPTIONAL and table not in needed:
                    notes.append(f"there is no {table}: {OPTIONAL[table]}")
                    continue
                raise DataError(
                    f"{path} has no table {table} (looked for {table}.csv.gz, .csv and .parquet in "
                    f"it, hosp/, icu/ and core/). {ADVICE}"
                )
            file = TableFile(table, found, _read_columns(found))
            for column in columns:
                if file.column(column) is None:
                    names = " or ".join(f"'{name}'" for name in column.names)
                    if column.without is None:
                        raise DataError(
                            f"{found} has no column {names}: it has {list(file.columns)}. Download "
                            "the table again, or take it from the same release as the others."
                        )
                    notes.append(f"{table} has no column {names}: {column.without}")
            files[table] = file
        return cls(path, files, tuple(notes))

    @property
    def layout(self) -> str:
        """The releases this folder may be, told by its tables and columns."""
        admissions = self.files["admissions"]
        if admissions.path.parent.name == "core":
            return "1.0"
        if "race" not in (name.lower() for name in admissions.columns):
            return "before 2.0"
        return "2.0 to 3.1"

    def create_views(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create `mimic.<table>` for every table, absent ones empty, with the columns of TABLES."""
        connection.execute("create schema if not exists mimic")
        for table, columns in TABLES.items():
            file = self.files.get(table)
            chosen = ", ".join(_select(file, column) for column in columns)
            source = "(select 1) where false" if file is None else _scan(file)
            connection.execute(f"create view mimic.{table} as select {chosen} from {source}")

    def blame(self, sql: str, error: duckdb.Error) -> DataError:
        """The `DataError` for a failure of `sql`: which file it read, and the reader's words."""
        tables = dict.fromkeys(re.findall(r"\bmimic\.(\w+)", sql))
        paths = [str(self.files[table].path) for table in tables if table in self.files]
        said = str(error)
        named = [path for path in paths if path in said] or paths
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        cut = next((i for i, line in enumerate(lines) if line.startswith("Possible")), 4)
        reason = " ".join(lines[: max(1, min(cut, 4))])
        return DataError(
            f"{' or '.join(named) or self.path}: {reason} The file is damaged or not as released: "
            "compare it with SHA256SUMS.txt of the release and download it again."
        )


def _descend(path: Path) -> Path:
    """Where the release lies deeper (mimic-iv-3.1/, physionet.org/files/mimiciv/3.1/), go there."""
    if _find_table(path, "icustays") is not None:
        return path
    homes = sorted({found.parent.parent for found in path.rglob("icu/icustays.*")})
    if len(homes) > 1:
        raise DataError(f"{path} holds {len(homes)} releases: name one of {list(map(str, homes))}.")
    return homes[0] if homes else path


def _find_table(path: Path, table: str) -> Path | None:
    for part in _PARTS:
        for ending in _ENDINGS:
            found = path / part / f"{table}{ending}"
            if found.is_file():
                return found
    return None


def _read_columns(path: Path) -> dict[str, str]:
    """The column names of a file, with their types where the file knows them."""
    if path.suffix == ".parquet":
        try:
            with duckdb.connect() as reader:
                rows = reader.execute(
                    f"describe select * from read_parquet({_quote(str(path))})"
                ).fetchall()
        except duckdb.Error as error:
            raise DataError(
                f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}): make it again."
            ) from error
        return {row[0]: row[1] for row in rows}
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            header = next(csv.reader(lines), [])
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again.") from error
    if not header:
        raise DataError(f"{path} is empty: download it again.")
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path} has the column '{twice}' twice: download it again.")
    return dict.fromkeys(header, "VARCHAR")


def _scan(file: TableFile) -> str:
    """The table function that reads the file as a stream."""
    if file.path.suffix == ".parquet":
        return f"read_parquet({_quote(str(file.path))})"
    numbers = {
        file.column(column): column.type
        for column in TABLES[file.table]
        if column.type != "TIMESTAMP"
    }
    columns = ", ".join(
        f"{_quote(name)}: '{numbers.get(name, 'VARCHAR')}'" for name in file.columns
    )
    return (
        f"read_csv({_quote(str(file.path))}, auto_detect = false, header = true, delim = ',', "
        f"quote = '\"', escape = '\"', columns = {{{columns}}})"
    )


def _select(file: TableFile | None, column: Column) -> str:
    """The expression of one column: cast, and times in either way of writing them."""
    name = None if file is None else file.column(column)
    if file is None or name is None:
        return f"null::{column.type} as {column.name}"
    held = file.columns[name]
    text = '"' + name.replace('"', '""') + '"'
    if column.type != "TIMESTAMP" or held.startswith("TIMESTAMP") or held == "DATE":
        return f"{text}::{column.type} as {column.name}"
    # Some copies of the demo were saved by a spreadsheet, which writes 5/15/2156 18:00.
    problem = _quote(f"{file.path}: column {name} is not a time: ")
    return (
        f"case when {text} is not null then coalesce(try_cast({text} as timestamp), "
        f"try_strptime({text}, {_TIMES}), error({problem} || {text})) end as {column.name}"
    )


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
