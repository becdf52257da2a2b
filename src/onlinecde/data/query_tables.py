"""Query times from a table: which streams are asked, and when."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onlinecde.data.errors import DataError
from onlinecde.data.queries import Queries
from onlinecde.data.table_files import LINE, read_table
from onlinecde.data.task import Task


def queries_of(text: str, task: Task) -> Queries | Tensor | str:
    """What `Task.asked` takes, of "clock", "rows", "every=1h", "random=16" and the like, or of a table's file."""
    if text == "clock":
        return text
    if Path(text).is_file():
        return query_table(text, task)
    try:
        return Queries.parse(text, task.time_unit)
    except DataError as error:
        raise DataError(
            f"{error} Or give a table of streams and times; there is no file {text!r}."
        ) from error


def query_table(file: str | os.PathLike[str], task: Task) -> Tensor:
    """Query times (stream, query) of a table with a column of streams and one of times, in the task's unit.

    The columns may have any names, the streams first. Streams that the table does not name are not asked.

    Raises:
        DataError: a stream that the task does not have; a time that is missing, given twice, before a stream's first
            row or after it is followed.
    """
    table = read_table(file, what="table of query times")
    names = [name for name in table.frame.columns if name != LINE]
    if len(names) < 2:
        raise DataError(
            f"{table.origin} has {len(names)} column: give one of streams and one of times."
        )
    stream, clock = names[:2]
    times = table.numbers(clock, "query time")
    places = {str(name): place for place, name in enumerate(task.series.streams)}
    asked: list[list[float]] = [[] for _ in places]
    first, until = task.series.times[:, 0], task.label_truth.until
    for index, (name, time) in enumerate(
        zip(table.keys(stream, "stream").to_list(), times.to_list(), strict=True)
    ):
        where = table.where(index, stream if str(name) not in places else clock)
        if str(name) not in places:
            raise DataError(
                f"{where}: the task has no stream {name!r}: its first is {task.series.streams[0]!r}."
            )
        if time is None:
            raise DataError(
                f"{where}: the query time is missing: fill it in, or leave the line out."
            )
        place = places[str(name)]
        if time < float(first[place]):
            raise DataError(
                f"{where}: {time:g} lies before the first row of stream {name!r}, at {float(first[place]):g}: nothing "
                f"is known then. Times are in {task.time_unit}."
            )
        if time > float(until[place]):
            raise DataError(
                f"{where}: stream {name!r} is followed until {float(until[place]):g}, and {time:g} comes after it. "
                f"Times are in {task.time_unit}."
            )
        asked[place].append(time)
    for name, own in zip(task.series.streams, asked, strict=True):
        own.sort()
        again = np.flatnonzero(np.diff(own) == 0)
        if len(again):
            raise DataError(
                f"{table.origin}: stream {name!r} is asked at {own[again[0]]:g} twice: once will do."
            )
    most = max(map(len, asked))
    if not most:
        raise DataError(f"{table.origin} asks about nothing: give a line for each query.")
    rows = [[*own, *[float("nan")] * (most - len(own))] for own in asked]
    return torch.tensor(rows, dtype=torch.float64)
