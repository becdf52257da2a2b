"""A table of query times -> a task that is asked at them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from onlinecde.data.ragged import pad
from onlinecde.data.table_files import read_table
from onlinecde.data.table_ids import known_places
from onlinecde.data.table_labels import OwnSeries
from onlinecde.data.table_times import Clock, TableClock
from onlinecde.data.table_truth import within
from onlinecde.data.task import Task


def asked_at_table(
    task: Task, table: Any, *, stream: str | None = None, time: str | None = None
) -> Task:
    """The task with its labels at the times of a table: a line for each time of a stream, a path or a frame.

    Times are read as those of the task's own table are (numbers, or timestamps from the same origin); of a prepared
    task they are numbers in its unit. A time before its stream's first row or after it is followed is left out, one
    that is there twice counts once, and both are counted in `task.notes`, as are streams without any time.

    Args:
        task: whose streams are asked about.
        table: with a column of streams and one of times.
        stream: name of the first; default: as in the task's own table, else "stream".
        time: name of the second; default: as in the task's own table, else "time".

    Raises:
        DataError: naming file, line and column: no such column, a stream that the task does not have, a time that is
            missing, no number, or of another form than the task's; or where no time lies within its stream.

    >>> import polars as pl
    >>> from onlinecde.data import simulate_ward
    >>> rounds = pl.DataFrame({"stream": [0, 0, 3], "time": [6.0, 2.0, 1.5]})
    >>> asked = asked_at_table(simulate_ward(20, seed=0).task, rounds)
    >>> asked.queries[0].tolist(), asked.notes[-1]
    ([2.0, 6.0], '18 of 20 streams are asked about at no time')
    """
    named = task.table_clock or TableClock(Clock(task.time_unit, "numbers", {}), "stream", "time")
    stream, time = stream or named.stream, time or named.time
    own = read_table(table, what="table of query times")
    series, truth = task.series, task.label_truth
    code = known_places(own, stream, series, "query time")
    times = named.clock.read(own, time, own.keys(stream, "stream"), "query time").to_numpy()
    source = OwnSeries(own, stream, time, named.clock, series, None, truth.until)
    kept, notes = within(source, code, times, "query times", own, time)
    order = kept[np.lexsort((times[kept], code[kept]))]
    again = (np.diff(code[order]) == 0) & (np.diff(times[order]) == 0)
    if again.any():
        notes.append(f"{again.sum()} query times of {own.origin} are there twice: each counts once")
    order = np.delete(order, np.flatnonzero(again) + 1)
    counts = np.bincount(code[order], minlength=len(series))
    if not counts.all():
        notes.append(f"{(counts == 0).sum()} of {len(series)} streams are asked about at no time")
    asked = task.asked(torch.from_numpy(pad(counts, times[order], np.nan)))
    return replace(asked, notes=(*asked.notes, *notes))
