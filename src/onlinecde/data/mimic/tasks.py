"""The tables of the concepts -> a `Task`, stays in blocks so that memory holds the task alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb
import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.mimic.settings import MimicSettings
from onlinecde.data.ragged import pad, pad_rows
from onlinecde.data.static_features import with_static
from onlinecde.data.task import Task
from onlinecde.data.truth import IntervalTruth
from onlinecde.series import SeriesBatch

ETHNICITIES = ("white", "black", "hispanic", "asian", "other", "unknown")
_BLOCK = 1_000


@dataclass(frozen=True)
class _Plan:
    table: str
    kind: Literal["binary", "regression"]
    per: Literal["stream", "row"]
    classes: tuple[str, ...]


PLANS: dict[str, _Plan] = {
    "mortality": _Plan("mortality", "binary", "stream", ("survived", "died")),
    "los": _Plan("length_of_stay", "regression", "stream", ("days in the ICU",)),
    "sepsis": _Plan("sepsis_stays", "binary", "row", ("no sepsis", "sepsis")),
}
"""The tasks by name."""


def build_task(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    settings: MimicSettings,
    *,
    seed: int,
    source: str,
    flow: Sequence[tuple[str, int]] = (),
) -> Task:
    """Build a task from a database with the tables of all concepts."""
    plan = PLANS[name]
    label = "label" if plan.per == "stream" else "onset"
    connection.execute(
        "create or replace temp table streams as "
        f"select stay_id, subject_id, rows, {label} as label, "
        "row_number() over (order by stay_id) - 1 as stream "
        f"from {plan.table} where chosen"
    )
    streams = _columns(connection, "from streams order by stream")
    if not len(streams["stay_id"]):
        raise DataError(
            f"no stay of {source} is left for the task '{name}': look at the exclusion flow "
            "(`onlinecde data prepare mimic-iv --report`) and change the settings."
        )
    lengths = streams["rows"].astype(np.int64)
    series, row_labels = _read_series(connection, lengths, streams["stay_id"].tolist(), settings)
    labels, truth = streams["label"], None
    if plan.per == "row":
        truth = _until_the_end(series, labels.astype(np.float64) - settings.sepsis_hours_before)
        labels = pad(lengths, row_labels, np.nan)
    task = Task.build(
        f"mimic-iv/{name}",
        series,
        labels,
        kind=plan.kind,
        per=plan.per,
        subjects=streams["subject_id"].tolist() if settings.split_by == "subject" else None,
        seed=seed,
        classes=plan.classes,
        source=source,
        settings={"task": name, "seed": seed, **settings.as_dict()},
        flow=flow,
        label_lead=settings.sepsis_hours_before if name == "sepsis" else 0.0,
        truth=truth,
    )
    return _with_patients(connection, task, settings)


def _read_series(
    connection: duckdb.DuckDBPyConnection,
    lengths: np.ndarray,
    stays: list[int],
    settings: MimicSettings,
) -> tuple[SeriesBatch, np.ndarray]:
    """Times and values of the chosen rows, and the sepsis label (line,) of each."""
    first = np.cumsum(lengths) - lengths
    times = np.empty(int(lengths.sum()))
    labels = np.full(len(times), np.nan, np.float32)
    values = np.full((len(times), len(settings.channels)), np.nan, np.float32)
    for start in range(0, len(lengths), _BLOCK):
        block = f"streams.stream between {start} and {start + _BLOCK - 1}"
        rows = _columns(
            connection,
            "select stream, rows.row, rows.hours, sepsis_rows.label from rows "
            "join streams using (stay_id) left join sepsis_rows using (stay_id, row) "
            f"where rows.row < streams.rows and {block}",
        )
        line = first[rows["stream"]] + rows["row"]
        times[line] = rows["hours"]
        labels[line] = rows["label"]
        cells = _columns(
            connection,
            "select stream, cells.row, cells.channel, cells.value from cells "
            f"join streams using (stay_id) where cells.row < streams.rows and {block}",
        )
        values[first[cells["stream"]] + cells["row"], cells["channel"]] = cells["value"]
    batch = pad_rows(lengths, times, values, channels=settings.channels, streams=stays)
    return batch, labels


def _until_the_end(series: SeriesBatch, start: np.ndarray) -> IntervalTruth:
    """1 from start (stream,) to each stream's last row, between rows too; NaN: never."""
    starts = torch.from_numpy(np.where(np.isnan(start), np.inf, start))[:, None]
    last = series.times.gather(1, series.rows[:, None] - 1)[:, 0]
    return IntervalTruth(last, starts, torch.full_like(starts, torch.inf))


def _with_patients(
    connection: duckdb.DuckDBPyConnection, task: Task, settings: MimicSettings
) -> Task:
    """Add what is known of the patient on admission."""
    facts = _columns(
        connection,
        "select stays.male, stays.age, body.height, body.weight, stays.race_group, "
        "codes.code from streams join stays using (stay_id) join body using (stay_id) "
        "left join (select race, row_number() over (order by race) - 1 as code "
        "from (select distinct race from stays where race is not null)) as codes using (race) "
        "order by streams.stream",
    )
    columns = {name: facts[name] for name in ("male", "age", "height", "weight")}
    if settings.ethnicity == "code":
        return with_static(task, {**columns, "ethnicity": facts["code"]})
    groups = {"ethnicity": ETHNICITIES}
    return with_static(task, {**columns, "ethnicity": facts["race_group"].tolist()}, groups)


def _columns(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, np.ndarray]:
    """The columns of a result; numbers with gaps come as floats with NaN."""
    columns = {}
    for name, column in connection.execute(sql).fetchnumpy().items():
        if isinstance(column, np.ma.MaskedArray) and column.dtype.kind in "fiu":
            column = np.ma.filled(column.astype(np.float64), np.nan)
        columns[name] = np.asarray(column)
    return columns
