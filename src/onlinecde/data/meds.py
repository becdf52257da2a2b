"""Any data set in the MEDS standard, with a label file -> `Task`. One stream a line of labels."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.ragged import pad_rows
from onlinecde.data.static_features import with_static
from onlinecde.data.task import Kind, Task

EVENTS = {"subject_id": "INT", "time": "TIMESTAMP", "code": "VARCHAR", "numeric_value": "FLOAT"}
"""The columns of events, and the types MEDS gives them."""

KINDS: dict[str, Kind] = {
    "boolean_value": "binary",
    "integer_value": "regression",
    "float_value": "regression",
    "categorical_value": "multiclass",
}
"""The label columns of MEDS, and the kind of task each makes."""

_FITS = {
    "INT": "INT",
    "TIMESTAMP": "TIMESTAMP",
    "VARCHAR": "VARCHAR|ENUM",
    "FLOAT": "FLOAT|DOUBLE|INT|DECIMAL",
}
_SPLITS = {"train": "train", "tuning": "validation", "held_out": "test"}

_CELLS = """
create table cells as
with chosen as (
    select given.subject_id, given.until, channels.channel, events.time,
           avg(case when known.numeric then events.number else 1 end) as value
    from events
    join channels using (code)
    join known using (code)
    join given on given.subject_id = events.subject_id and events.time <= given.until
    where (events.number is not null or not known.numeric)
      and ($hours = 0 or events.time >= given.until - to_seconds(3600 * $hours))
    group by all
)
select *, date_diff('microsecond',
           case when $hours = 0 then min(time) over (partition by subject_id, until)
                else until - to_seconds(3600 * $hours) end,
           time) / 3.6e9 as hours
from chosen
"""
_STREAMS = """
create table streams as
select *, row_number() over (order by subject_id, until) - 1 as stream
from given semi join cells using (subject_id, until)
"""
_LINES = """
select stream, channel, value, hours, dense_rank() over (order by stream, hours) - 1 as line
from cells join streams using (subject_id, until)
"""


def load(
    paths: Sequence[Path],
    *,
    task: str = "labels",
    seed: int = 0,
    labels: str = "",
    label_column: str = "",
    codes: str | Sequence[str] = "",
    prefixes: str | Sequence[str] = "",
    most_frequent: int = 100,
    window_hours: float = 0.0,
    memory: str = "1GB",
) -> Task:
    """Load a MEDS data set: a Parquet file, several, or a folder with shards under data/.

    Each line of the label file (`labels`; default: those in labels/, or labels.parquet beside the
    data) is a stream: the subject's events up to and including its prediction_time, none later.
    Time is in hours from the first of them, or from `window_hours` before the prediction.

    Channels are the `codes` given, those that begin with one of `prefixes`, or else the
    `most_frequent` codes by the number of labelled subjects who have them (lists, or text with
    commas). Values of one code at one time are averaged. A code that never has a number is 1
    whenever it occurs. Events without a time are static features; `NAME//CATEGORY` without a
    number is a category. Splits are those of metadata/subject_splits.parquet where it exists.
    """
    where, shards, files, splits = _find([Path(path) for path in paths], labels)
    if window_hours < 0 or most_frequent < 1:
        raise DataError(
            f"window_hours is {window_hours} and most_frequent {most_frequent}: give a window of 0 "
            "(all) or more, and at least one code."
        )
    with tempfile.TemporaryDirectory(prefix="onlinecde-meds-") as place:
        connection = duckdb.connect(str(Path(place) / "events.duckdb"))
        try:
            connection.execute("set preserve_insertion_order = false")
            connection.execute(f"set memory_limit = '{memory}'")
            connection.execute(f"set temp_directory = '{place}/spill'")
            _create_events(connection, shards)
            column = _create_given(connection, files, label_column)
            channels = _create_channels(connection, _texts(codes), _texts(prefixes), most_frequent)
            connection.execute(_CELLS, {"hours": float(window_hours)})
            connection.execute(_STREAMS)
            settings = {
                "labels": [str(path) for path in files],
                "label_column": column,
                "codes": list(_texts(codes)),
                "prefixes": list(_texts(prefixes)),
                "most_frequent": most_frequent,
                "window_hours": window_hours,
                "seed": seed,
            }
            return _build(connection, where, column, channels, splits, seed, settings)
        except duckdb.Error as error:
            raise DataError(
                f"{where}: {str(error).splitlines()[0]} The data are damaged or not MEDS: check "
                "them against https://medical-event-data-standard.github.io/."
            ) from error
        finally:
            connection.close()


def _find(paths: list[Path], labels: str) -> tuple[Path, list[Path], list[Path], Path]:
    """Where the data set is, its shards, its label files, and where its splits would be."""
    if not paths:
        raise DataError("there is no MEDS data set: give a Parquet file or a folder of shards.")
    where = paths[0]
    home = where if where.is_dir() else where.parent
    shards = [path for path in paths if path.is_file() and not path.stem.endswith("labels")]
    beside = [home / f"{where.stem}-labels.parquet", home / "labels.parquet"]
    if where.is_dir():
        loose = [p for p in home.rglob("*.parquet") if p.parent.name not in ("labels", "metadata")]
        loose = [path for path in loose if not path.stem.endswith("labels")]
        shards = sorted((home / "data").rglob("*.parquet")) or sorted(loose)
        beside += sorted((home / "labels").rglob("*.parquet"))
    if not shards:
        raise DataError(f"{where} holds no MEDS data: there is no Parquet file with events.")
    if labels:
        beside = sorted(Path(labels).rglob("*.parquet")) or [Path(labels)]
    files = [path for path in beside if path.is_file()]
    if not files:
        raise DataError(
            f"{labels or where} holds no labels: name a Parquet file with subject_id, "
            f"prediction_time and one of {list(KINDS)} in `labels`, or put it at labels.parquet "
            "beside the data."
        )
    return where, shards, files, home / "metadata" / "subject_splits.parquet"


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(part.strip() for part in parts if part.strip())


def _read(paths: Sequence[Path]) -> str:
    listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{listed}], union_by_name = true)"


def _columns(
    connection: duckdb.DuckDBPyConnection, path: Path, needed: dict[str, str]
) -> dict[str, str]:
    """The columns of a file and their types; those needed are there and of a fitting type."""
    try:
        rows = connection.execute(f"describe select * from {_read([path])}").fetchall()
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as Parquet ({reason}): make it again.") from error
    held = {row[0]: row[1] for row in rows}
    for name, wanted in needed.items():
        if name not in held:
            raise DataError(f"{path} has no column '{name}': it has {list(held)}.")
        if not re.search(_FITS[wanted], held[name]):
            raise DataError(f"{path}, column '{name}' has type {held[name]}: MEDS wants {wanted}.")
    return held


def _create_events(connection: duckdb.DuckDBPyConnection, shards: Sequence[Path]) -> None:
    for path in shards:
        _columns(connection, path, EVENTS)
    connection.execute(
        "create view events as select subject_id, time::timestamp as time, code::varchar as code, "
        "case when isfinite(numeric_value::double) then numeric_value::double end as number "
        f"from {_read(shards)}"
    )


def _create_given(connection: duckdb.DuckDBPyConnection, files: Sequence[Path], column: str) -> str:
    """Create `given` (subject_id, until, label); return the column the labels are in."""
    needed = {"subject_id": "INT", "prediction_time": "TIMESTAMP"}
    held = {name for path in files for name in _columns(connection, path, needed)}
    present = [name for name in KINDS if name in held]
    counts = ", ".join(f"count({name})" for name in present) or "1"
    many = connection.execute(f"select {counts} from {_read(files)}").fetchall()[0]
    filled = [name for name, number in zip(present, many, strict=False) if number]
    if column not in filled and (column or len(filled) != 1):
        raise DataError(
            f"the label file {files[0]} has labels in {filled or 'no column'}: name one of these "
            f"in `label_column`{f', not {column!r}' if column else ''}; MEDS knows {list(KINDS)}."
        )
    column = column or filled[0]
    connection.execute(
        "create table given as select distinct subject_id, prediction_time::timestamp as until, "
        f"{column} as label from {_read(files)} where {column} is not null"
    )
    bad = connection.execute(
        "select subject_id, until from given group by all having count(*) > 1 or until is null"
    ).fetchall()
    if bad:
        raise DataError(
            f"the label file {files[0]}, subject {bad[0][0]}: prediction_time {bad[0][1]} is "
            "missing or has two labels: keep one line for each."
        )
    return column


def _create_channels(
    connection: duckdb.DuckDBPyConnection,
    codes: tuple[str, ...],
    prefixes: tuple[str, ...],
    most: int,
) -> tuple[str, ...]:
    """Create `known` (code, numeric) and `channels` (code, channel); return the codes chosen."""
    connection.execute(
        "create table known as select code, count(distinct subject_id) as subjects, "
        "count(number) > 0 as numeric from events where time is not null "
        "and subject_id in (select subject_id from given) group by code"
    )
    rows = connection.execute("select code from known order by subjects desc, code").fetchall()
    every = [row[0] for row in rows]
    chosen = codes or tuple(every[:most])
    if prefixes and not codes:
        chosen = tuple(sorted(code for code in every if code.startswith(prefixes)))
    absent = [code for code in chosen if code not in set(every)]
    if absent or not chosen:
        sought = f"code '{absent[0]}'" if absent else f"a code that begins with {prefixes}"
        raise DataError(
            f"{sought} is in no event of the labelled subjects: they have {len(every)} codes, such "
            f"as {every[:5]}."
        )
    connection.execute(
        "create table channels as "
        "select unnest($codes) as code, unnest(range(len($codes))) as channel",
        {"codes": list(chosen)},
    )
    return chosen


def _build(
    connection: duckdb.DuckDBPyConnection,
    where: Path,
    column: str,
    channels: tuple[str, ...],
    splits: Path,
    seed: int,
    settings: dict[str, Any],
) -> Task:
    streams = connection.execute("from streams order by stream").fetchall()
    asked = connection.execute("select count(*) from given").fetchall()[0][0]
    if not streams:
        raise DataError(
            f"{where}: no label has an event of the chosen codes before it: check that the "
            "subjects and times of data and labels belong together."
        )
    cells = {k: np.asarray(v) for k, v in connection.execute(_LINES).fetchnumpy().items()}
    times = np.empty(int(cells["line"].max()) + 1)
    owner = np.empty(len(times), np.int64)
    values = np.full((len(times), len(channels)), np.nan, np.float32)
    times[cells["line"]] = cells["hours"]
    owner[cells["line"]] = cells["stream"]
    values[cells["line"], cells["channel"]] = cells["value"]
    names = [f"{subject}@{until.isoformat()}" for subject, until, *_ in streams]
    series = pad_rows(np.bincount(owner), times, values, channels=channels, streams=names)
    classes = sorted({str(row[2]) for row in streams}) if KINDS[column] == "multiclass" else []
    subjects = [row[0] for row in streams]
    task = Task.build(
        "meds",
        series,
        torch.tensor([classes.index(str(r[2])) if classes else float(r[2]) for r in streams]),
        kind=KINDS[column],
        subjects=subjects,
        splits=_own_splits(connection, splits, subjects),
        seed=seed,
        classes=classes,
        source=str(where),
        settings={**settings, "labels_without_events": asked - len(streams)},
    )
    return with_static(task, *_static(connection, subjects))


def _own_splits(
    connection: duckdb.DuckDBPyConnection, path: Path, subjects: list[Any]
) -> dict[str, list[int]] | None:
    """The splits the data set comes with, where none of the three is empty."""
    if not path.is_file():
        return None
    rows = connection.execute(f"select subject_id, split from {_read([path])}").fetchall()
    home = {subject: _SPLITS.get(split) for subject, split in rows}
    splits = {
        name: [at for at, subject in enumerate(subjects) if home.get(subject) == name]
        for name in _SPLITS.values()
    }
    return splits if all(splits.values()) else None


def _static(
    connection: duckdb.DuckDBPyConnection, subjects: list[Any]
) -> tuple[dict[str, list[Any]], dict[str, list[str]]]:
    """Columns and categories of the events without a time."""
    rows = connection.execute(
        "select subject_id, code, avg(number) from events where time is null "
        "and subject_id in (select subject_id from streams) group by all order by all"
    ).fetchall()
    facts: dict[str, dict[Any, Any]] = {}
    categories: dict[str, set[str]] = {}
    for subject, code, number in rows:
        if number is not None:
            facts.setdefault(code, {})[subject] = number
            continue
        name, cut, category = code.rpartition("//")
        name, category = (name, category) if cut else (code, "present")
        facts.setdefault(name, {})[subject] = category
        categories.setdefault(name, set()).add(category)
    columns = {name: [column.get(s) for s in subjects] for name, column in facts.items()}
    return columns, {name: sorted(names) for name, names in categories.items()}
