"""Splits that a table names, and splits by time: the oldest streams for training, the newest for the test."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import Table
from onlinecde.data.table_ids import per_stream, without_line
from onlinecde.data.table_times import raw_times
from onlinecde.series import SeriesBatch

if TYPE_CHECKING:
    from onlinecde.data.table_series import TableSeries

TIME = "time"
"""Given as what to split by: each stream's first event."""

NAMES: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def table_splits(
    read: TableSeries,
    table: Table | None,
    by: str,
    stream: str,
    subjects: Sequence[Hashable],
    fractions: Mapping[str, float],
) -> tuple[dict[str, Tensor], list[str]]:
    """Positions of the streams of each split, and what is worth saying.

    Args:
        read: the series and the tables they came from.
        table: a table of splits of its own.
        by: "time", or a column of that table, of that of static features or of the events: names of splits, or times.
        stream: the column of streams.
        subjects: whose each stream is; by time a subject goes where its first stream goes.
        fractions: the share of subjects in each split, by time.
    """
    series = read.series
    if by == TIME and table is None:
        return by_start(_first_events(read), subjects, fractions), []
    held = [one for one in (table, read.facts, read.own) if one is not None]
    home = next((one for one in held if by in one.frame.columns), held[0])
    notes = []
    if home is not read.own:
        count = without_line(home, stream, series)
        notes = [f"{count} of {len(series)} streams are in no split"] if count else []
    if home.column(by, "split").dtype.is_temporal() or not _names_splits(home, by):
        lines = home.rows(home.column(by, "split").is_not_null())
        times, _ = raw_times(lines, by, "time to split by")
        starts = per_stream(_with(lines, by, times), stream, by, series, "time to split by")
        if None in starts:
            at = series.streams[starts.index(None)]
            raise DataError(f"{home.origin}, column '{by}': stream {at!r} has no time to split by.")
        return by_start(np.array(starts, float), subjects, fractions), []
    cells = per_stream(home, stream, by, series, "split")
    splits = {name: [] for name in ("train", "validation", "test")}
    for place, cell in enumerate(cells):
        if cell is not None:
            splits[NAMES[str(cell).strip().lower()]].append(place)
    missing = [name for name in ("train", "validation") if not splits[name]]
    if missing and "train" in fractions:
        raise DataError(
            f"{home.origin}, column '{by}': no stream is in '{missing[0]}': the epoch is chosen on validation "
            "streams, so that some must be for training and others for validation."
        )
    return {name: torch.tensor(at, dtype=torch.int64) for name, at in splits.items() if at}, notes


def by_start(
    starts: np.ndarray, subjects: Sequence[Hashable], fractions: Mapping[str, float]
) -> dict[str, Tensor]:
    """Positions of each split, oldest subjects first, by when their first stream starts (stream,).

    >>> by_start(np.array([3.0, 1.0, 2.0, 9.0]), "abbc", {"train": 0.5, "test": 0.5})
    {'train': tensor([1, 2]), 'test': tensor([0, 3])}
    """
    first: dict[Hashable, float] = {}
    for subject, start in zip(subjects, starts.tolist(), strict=True):
        first[subject] = min(first.get(subject, np.inf), start)
    if len(set(first.values())) < len(fractions):
        raise DataError(
            "streams cannot be split by time: fewer of them start at different times than there are splits. Where "
            "times are numbers from each stream's own start, name a column of when that was (split_by, --split-by)."
        )
    order = sorted(first, key=lambda subject: first[subject])
    sizes = np.zeros(len(order))
    place = {subject: number for number, subject in enumerate(order)}
    for subject in subjects:
        sizes[place[subject]] += 1
    # The share of streams before the middle of each subject's own.
    before = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    ends = np.cumsum(list(fractions.values()))
    home = np.searchsorted(ends[:-1], before, side="right")
    owner = np.array([home[place[subject]] for subject in subjects])
    return {
        name: torch.from_numpy(np.flatnonzero(owner == number))
        for number, name in enumerate(fractions)
    }


def _names_splits(table: Table, by: str) -> bool:
    """Whether a column holds names of splits; a text that is neither that nor a time is refused by what reads times."""
    import polars as pl

    cells = table.column(by, "split")
    if cells.dtype != pl.String:
        return False
    known = cells.drop_nulls().str.strip_chars().str.to_lowercase().is_in(list(NAMES))
    if known.any() and not known.all():
        at = int(
            (
                cells.is_not_null() & ~cells.str.strip_chars().str.to_lowercase().is_in(list(NAMES))
            ).arg_true()[0]
        )
        raise DataError(
            f"{table.where(at, by)}: {str(cells[at])[:40]!r} is no split: write train, validation or test."
        )
    return bool(known.all()) and len(known) > 0


def _with(table: Table, column: str, cells: Any) -> Table:
    return Table(table.frame.with_columns(cells.alias(column)), table.origin)


def _first_events(read: TableSeries) -> np.ndarray:
    """(stream,) when each stream starts: the timestamp its times count from, or the time of its first row."""
    series: SeriesBatch = read.series
    first = series.times[:, 0].numpy()
    if not read.clock.origins:
        return first
    origins = np.array([read.clock.origins[str(name)] for name in series.streams])
    return origins if read.clock.form != "numbers" else origins + first
