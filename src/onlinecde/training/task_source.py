"""Where a task came from, in plain values, so that whoever has the model can have the task again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from onlinecde.data import (
    EventLabels,
    EventTruth,
    ForecastLabels,
    IntervalLabels,
    RowLabels,
    StreamLabels,
    Task,
    TimeLabels,
    Truth,
    fold_of,
    fold_task,
    forecast_task,
    load,
    task_from_table,
)
from onlinecde.data.joining import join
from onlinecde.data.label_specs import Labels
from onlinecde.data.parts import part_arrays
from onlinecde.data.task import encoded
from onlinecde.series import Schema
from onlinecde.training.journal import known_task
from onlinecde.training.settings import FitError


def registry_source(name: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The source of a prepared data set's task, by name: "physionet-2019", "mimic-iv/sepsis".

    >>> registry_source("mimic-iv/sepsis")
    {'source': 'registry', 'name': 'mimic-iv', 'arguments': {'task': 'sepsis'}}
    """
    set_name, _, task = name.partition("/")
    arguments = {**({"task": task} if task else {}), **(settings or {})}
    return {"source": "registry", "name": set_name, "arguments": arguments}


def table_source(
    events: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None,
    label: list[str],
    label_per: str,
    **arguments: Any,
) -> dict[str, Any]:
    """The source of a task from one's own files.

    `label_per` is "stream", "row", "time", "interval", "event" or "forecast"; `label` names the label's column or
    columns; for intervals those of their start and end; for events and forecasts none.
    """
    files = {"events": events, "labels": labels}
    files |= {name: arguments.pop(name, None) for name in ("static", "splits")}
    told = {name: str(Path(file).resolve()) for name, file in files.items() if file is not None}
    kept = {name: value for name, value in arguments.items() if value is not None}
    return {
        "source": "table",
        "name": Path(events).name,
        "arguments": {**told, "label": label, "label_per": label_per, **kept},
    }


def load_task(
    description: Mapping[str, Any],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    schema: Schema | None = None,
) -> Task:
    """The task a source describes, as a run's manifest has it under `task`.

    schema: of a model that is to judge it; a table is then read by what that knows.
    """
    try:
        source, arguments = description["source"], dict(description.get("arguments", {}))
        if source == "registry":
            task = load(description["name"], data_dir=data_dir, **arguments)
            if "forecast" in description:
                task = forecast_task(task, **description["forecast"])
            return as_fitted(task, description)
        if source == "table":
            named = {"name": f"table {description['name']}", **arguments}
            return as_fitted(_from_table(named, schema), description)
        if source == "update":
            return _updated(arguments, data_dir)
        if source == "experiment" and not arguments.pop("demo", False):
            dealt = fold_of(description)
            for name in ("fold", "folds"):
                arguments.pop(name, None)
            whole = load_task(registry_source(arguments.pop("name"), arguments), data_dir)
            if dealt is None:
                return as_fitted(whole, description)
            return as_fitted(fold_task(whole, *dealt), description, whole)
    except (KeyError, TypeError) as error:
        raise FitError(f"the task's source cannot be read ({error!r}): give the task.") from error
    raise FitError(
        f"the model was fitted on a task given in memory ('{description.get('name')}'), which cannot "
        "be loaded again: give the task."
    )


def update_source(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    schema: Schema,
    rehearsal: float,
    seed: int,
    parent: str,
) -> dict[str, Any]:
    """The source of the data of an update: that of the model before, with a share of it, and the new one."""
    arguments = {
        "old": dict(old),
        "new": dict(new),
        "schema": schema.as_json(),
        "rehearsal": rehearsal,
        "seed": seed,
        "parent": parent,
    }
    return {"source": "update", "name": str(new.get("name")), "arguments": arguments}


def new_source(
    source: Mapping[str, Any], files: Mapping[str, str | os.PathLike[str] | None]
) -> dict[str, Any]:
    """The same source with other files, by role: events, labels, static; of an update those of its oldest data."""
    given = {role: str(Path(file).resolve()) for role, file in files.items() if file is not None}
    if not given:
        return dict(source)
    arguments = dict(source["arguments"])
    if source.get("source") == "update":
        return {**source, "arguments": {**arguments, "old": new_source(arguments["old"], files)}}
    if source.get("source") != "table":
        raise FitError(f"'{source.get('name')}' is no table of your own: it has no files to name.")
    name = Path(str(given.get("events", arguments["events"]))).name
    kept = {key: value for key, value in source.items() if key != "content"}
    return {**kept, "name": name, "arguments": {**arguments, **given}}


def table_of(source: Mapping[str, Any]) -> dict[str, Any]:
    """The source itself, or, of an update, that of the first data: whose columns all later tables have."""
    first = dict(source)
    while first.get("source") == "update":
        first = dict(first["arguments"]["old"])
    return first


def _updated(arguments: Mapping[str, Any], data_dir: str | os.PathLike[str] | None) -> Task:
    """Old and new streams, as an update joined them."""
    schema = Schema.from_json(arguments["schema"])
    old, new = (load_task(arguments[name], data_dir).under(schema) for name in ("old", "new"))
    return join(old, new, rehearsal=arguments["rehearsal"], seed=arguments["seed"])


def as_fitted(task: Task, description: Mapping[str, Any], whole: Task | None = None) -> Task:
    """The task with static features as 0.1 encoded them, where that is what a model was fitted on.

    0.1 took categories, and which numbers have gaps, from all streams, and fills of a fold from the training
    split of the data set's own, `whole`.
    """
    whole = whole or task
    content, raw = description.get("content"), whole.series.raw_static
    if content is None or raw is None:
        return task
    every = torch.arange(len(whole.series))
    older = encoded(whole.series, whole.splits, seen=every)
    alike = older.features == task.series.features
    if alike and older.static is not None and torch.equal(older.static, task.series.static):  # pyright: ignore[reportArgumentType]
        return task
    if content_of(task) == content:
        return task
    former = replace(task, series=older)
    return former if content_of(former) == content else task


def task_of_run(
    task: Task, run: str | os.PathLike[str] | None, schema: Schema | None = None
) -> Task:
    """The task as the run of a folder was begun with it, where the data are the same; `run` may hold none.

    schema: of a model that is trained further.
    """
    task = task if schema is None else task.under(schema)
    return task if run is None else as_fitted(task, known_task(run))


def content_of(task: Task) -> str:
    """A hash of all that training can see of a task: series, labels, splits, and what is true at other times.

    Truths that 0.1 had labels at rows of are left out, so that its runs go on.
    """
    digest = hashlib.blake2b(digest_size=16)
    series = task.series
    for tensor in (series.times, series.values, series.rows, series.static, task.labels):
        if tensor is not None:
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    if task.queries is not None:
        digest.update(task.queries.cpu().contiguous().numpy().tobytes())
    if (truth := _beyond_rows(task)) is not None:
        arrays: dict[str, Any] = {}
        digest.update(json.dumps(part_arrays(truth, "truth", arrays)).encode())
        for name in sorted(arrays):
            digest.update(arrays[name].tobytes())
    for name in sorted(task.splits):
        digest.update(name.encode() + task.splits[name].numpy().tobytes())
    return digest.hexdigest()


def _beyond_rows(task: Task) -> Truth | None:
    """The truth of a task where it is more than 0.1 knew of the same series and labels.

    What simulated data know is known by their series, and the truths of 0.1's own data sets and tables end with
    each stream's last row.
    """
    series, truth = task.series, task.truth
    if truth is None or task.per == "time":
        return truth
    last = series.times.gather(1, series.rows[:, None] - 1)[:, 0]
    longer = isinstance(truth, EventTruth) or not torch.equal(truth.until.to(last), last)
    return truth if longer and task.known_risk is None else None


def check_content(task: Task, description: Mapping[str, Any]) -> None:
    """Refuse data that changed since a model was fitted on it: its test split may be others' streams."""
    known = description.get("content")
    if known is not None and known != content_of(task):
        remedy = (
            "give the table with --events to judge all its streams"
            if description.get("source") == "table"
            else "name the task with --task to judge it all the same"
        )
        raise FitError(
            f"the data of task '{task.name}' is not what the model was fitted on: streams it was trained "
            f"on may now be in the test split. Fit again, or {remedy}."
        )


def _from_table(arguments: dict[str, Any], schema: Schema | None) -> Task:
    events, columns = arguments.pop("events"), arguments.pop("label")
    file, per = arguments.pop("labels", None), arguments.pop("label_per")
    own = {name: arguments.pop(name) for name in LABEL_OPTIONS if name in arguments}
    labels = _labels(per, columns, file, own)
    return task_from_table(events, labels=labels, schema=schema, **arguments)


LABEL_OPTIONS = (
    *("label_times", "label_stands", "interval_label"),
    *("event_time", "censored", "horizon"),
    *("forecast", "horizons", "within"),
)
"""Arguments of a table's source that say more of its labels, as the options are named."""


def _labels(per: str, columns: list[str], file: str | None, own: Mapping[str, Any]) -> Labels:
    """The labels that a source describes."""
    stands = own.get("label_stands", 0.0)
    if per == "stream":
        return StreamLabels(columns[0] if len(columns) == 1 else columns, file)
    if per == "row":
        if len(columns) != 1:
            raise FitError(
                f"{len(columns)} labels ({', '.join(columns)}) per row: a row has one, name one column "
                "(--label)."
            )
        return RowLabels(columns[0], file, stands)
    if per == "time":
        return TimeLabels(file, own["label_times"], columns, stands)
    if per == "interval":
        if file is None:
            raise FitError("interval labels need a table of their own: give labels (--labels).")
        if len(columns) != 2:
            raise FitError(
                f"intervals by {', '.join(columns)}: name two columns (--label), "
                "that of the start, then that of the end."
            )
        return IntervalLabels(file, *columns, label=own.get("interval_label"))
    if per == "event":
        return EventLabels(file, own["event_time"], own.get("censored"), own.get("horizon"))
    if per == "forecast":
        return ForecastLabels(own["forecast"], own["horizons"], own.get("within"))
    raise FitError(f"label_per is {per!r}: choose stream, row, time, interval, event or forecast.")
