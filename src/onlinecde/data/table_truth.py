"""Labels of a table that stand in time: at listed times, or over intervals."""

from __future__ import annotations

import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.label_specs import IntervalLabels, TimeLabels
from onlinecde.data.ragged import pad
from onlinecde.data.table_files import Table, read_table
from onlinecde.data.table_ids import known_places, present_cells
from onlinecde.data.table_labels import (
    OwnSeries,
    Target,
    as_labels,
    coded,
    labelled_lines,
    listed,
    names_of,
)
from onlinecde.data.truth import IntervalTruth


def time_target(spec: TimeLabels, source: OwnSeries) -> Target:
    """Labels at their own times; those before a stream's first row or after it is followed are left out, counted."""
    columns = names_of(spec.column)
    table = labelled_lines(source.table(spec.table, "table of labels"), columns)
    code = known_places(table, source.stream, source.series, "label")
    streams = table.keys(source.stream, "stream")
    times = source.clock.read(table, spec.time, streams, "time of the label").to_numpy()
    cells = [present_cells(table, column, "label") for column in columns]
    labels, kind, classes = coded(cells, source.kind, table)
    kept, notes = within(source, code, times, "labels", table, spec.time)
    order = kept[np.lexsort((times[kept], code[kept]))]
    again = (np.diff(code[order]) == 0) & (np.diff(times[order]) == 0)
    apart = ~_alike(labels[order][1:], labels[order][:-1])
    if (again & apart).any():
        at = int(order[1:][again & apart][0])
        raise DataError(
            f"{table.where(at, columns[0])}: stream {streams[at]!r} has two labels at time "
            f"{times[at]:g}: keep one."
        )
    if again.any():
        notes.append(f"{again.sum()} labels of {table.origin} are there twice: each counts once")
    order = np.delete(order, np.flatnonzero(again) + 1)
    truth = listed(source, code[order], times[order], labels[order], kind, spec.stands)
    without = len(source.series) - len(np.unique(code[order]))
    if without:
        notes.append(f"{without} of {len(source.series)} streams have no label")
    queries = truth.times.masked_fill(truth.times == torch.inf, torch.nan)
    return Target(
        truth.listed, kind, "time", classes, notes=tuple(notes), truth=truth, queries=queries
    )


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Bool (line,): whether labels (line, ...) are the same, or missing in both."""
    same = (one == other) | ((one != one) & (other != other))
    return same.reshape(len(same), -1).all(1)


def within(
    source: OwnSeries, code: np.ndarray, times: np.ndarray, what: str, table: Table, column: str
) -> tuple[np.ndarray, list[str]]:
    """Lines whose time is from their stream's first row until it is followed, and how many are not, in words.

    Without `followed`, a stream has no end. Where no line is left, times are in another unit: refused.
    """
    first = source.first.numpy()[code]
    early = times < first
    late = (
        np.zeros_like(early) if source.followed is None else times > source.followed.numpy()[code]
    )
    if (early | late).all():
        raise DataError(
            f"{table.where(0, column)}: none of the {len(times)} {what} lies between the first row of its stream and "
            f"its end: {times[0]:g} is {'before' if early[0] else 'after'} it. Are they in {source.clock.unit}, and "
            "count from where the series do?"
        )
    notes = []
    for lost, where in (
        (early, "before their stream's first row"),
        (late, "after their stream is followed"),
    ):
        if lost.any():
            several = len(np.unique(code[lost]))
            notes.append(
                f"{lost.sum()} of {len(times)} {what} of {table.origin} ({several} streams) are {where}: left out"
            )
    return np.flatnonzero(~early & ~late), notes


def interval_target(spec: IntervalLabels, source: OwnSeries) -> Target:
    """What holds over intervals, at rows and between them; an interval of an unknown stream is refused."""
    if spec.label is None and source.kind not in (None, "binary"):
        raise DataError(
            f"kind is {source.kind!r}: intervals make binary labels, inside or outside."
        )
    table = read_table(spec.table, what="table of intervals")
    streams = table.keys(source.stream, "stream")
    code = known_places(table, source.stream, source.series, "interval")
    start = source.clock.read(table, spec.start, streams, "start").to_numpy()
    end = source.clock.read(table, spec.end, streams, "end").to_numpy()
    if (end < start).any():
        at = int(np.flatnonzero(end < start)[0])
        raise DataError(f"{table.where(at, spec.end)}: the interval ends before it starts.")
    labels, kind, classes = np.ones(len(code)), "binary", ("outside", "inside")
    if spec.label is not None:
        column = table.complete(spec.label, "label of the interval")
        labels, kind, classes = coded([column], source.kind, table)
    lines, ends, joined = _joined(spec, table, code, start, end, labels)
    counts = np.bincount(code[lines], minlength=len(source.series))
    inside = as_labels(pad(counts, labels[lines].astype(np.float64), 0.0), kind)
    unknown = -1 if kind == "multiclass" else torch.nan
    truth = IntervalTruth(
        source.until,
        torch.from_numpy(pad(counts, start[lines], np.inf)),
        torch.from_numpy(pad(counts, ends, np.inf)),
        outside=0.0 if spec.label is None else unknown,
        inside=None if spec.label is None else inside,
    )
    return Target(
        truth.at(source.row_times),
        kind,
        "row",
        classes,
        notes=(f"{joined} intervals of {table.origin} overlap another with the same label: joined",)
        if joined
        else (),
        truth=truth,
    )


def _joined(
    spec: IntervalLabels,
    table: Table,
    code: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    labels: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Lines of intervals by stream and start, where each ends, and how many others were joined to them.

    Those of a stream that overlap are one where their labels agree, and refused where they do not.
    """
    lines: list[int] = []
    ends: list[float] = []
    for line in np.lexsort((end, start, code)).tolist():
        last = lines[-1] if lines and code[lines[-1]] == code[line] else None
        if last is None or (start[line] >= ends[-1] and start[line] > start[last]):
            lines.append(line)
            ends.append(float(end[line]))
        elif labels[line] == labels[last]:
            ends[-1] = max(ends[-1], float(end[line]))
        else:
            raise DataError(
                f"{table.where(line, spec.start)}: the interval starts before another of its stream ends "
                f"({table.where(last, spec.end)}), and has another label: cut one of them."
            )
    return np.array(lines), np.array(ends), len(code) - len(lines)
