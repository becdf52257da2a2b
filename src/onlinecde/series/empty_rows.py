"""Empty rows: rows at which nothing is observed, so that models which only move at rows let time pass."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from onlinecde.series.batch import SeriesBatch
from onlinecde.series.checks import SeriesError


def with_empty_rows(batch: SeriesBatch, times: Tensor) -> tuple[SeriesBatch, Tensor]:
    """The series with an empty row at each time where a stream has no row, and where those times stand in it.

    What comes before a time stays as it was, so a model that is online answers there from the past alone.

    Args:
        batch: the series.
        times: (stream, query) float64, none before a stream's first row; NaN behind a stream's last.

    Returns:
        The series, and for each time its row, (stream, query) int64; behind a stream's last time that of the last.

    Raises:
        SeriesError: a time before a stream's first row, or of another number of streams.

    >>> batch = SeriesBatch.from_arrays([[0.0, 2.0]], [[[1.0], [3.0]]])
    >>> more, row = with_empty_rows(batch, torch.tensor([[1.0, 2.0, 5.0]]))
    >>> more.times, more.values[0, :, 0], row
    (tensor([[0., 1., 2., 5.]], dtype=torch.float64), tensor([1., nan, 3., nan]), tensor([[1, 2, 3]]))
    """
    times = filled_queries(batch, times)
    clock = torch.cat([batch.times.masked_fill(~batch.real, torch.inf), times], 1)
    values = batch.values.new_full((*times.shape, batch.values.shape[2]), torch.nan)
    values = torch.cat([batch.values, values], 1)
    # Stable: of equal times a row comes first, and what follows it is the same instant.
    clock, order = clock.sort(dim=1, stable=True)
    again = torch.nn.functional.pad(clock[:, 1:] == clock[:, :-1], (1, 0))
    clock, kept = clock.masked_fill(again, torch.inf).sort(dim=1, stable=True)
    rows = clock.isfinite().sum(1)
    most = int(rows.max())
    order = order.gather(1, kept)[:, :most]
    clock, last = clock[:, :most], clock.gather(1, rows[:, None] - 1)
    real = clock.isfinite()
    values = values.gather(1, order[:, :, None].expand(-1, -1, values.shape[2]))
    row = torch.searchsorted(clock.contiguous(), times.contiguous(), right=True) - 1
    grown = replace(
        batch,
        times=torch.where(real, clock, last),
        values=values.masked_fill(~real[:, :, None], torch.nan),
        rows=rows,
    )
    return grown, row


def filled_queries(batch: SeriesBatch, times: Tensor) -> Tensor:
    """Query times (stream, query) with a stream's last one, or its first row's, in place of NaN.

    Raises:
        SeriesError: a time before a stream's first row, or times of another number of streams.
    """
    times = times.to(device=batch.device, dtype=torch.float64)
    if times.ndim != 2 or len(times) != len(batch):
        raise SeriesError(
            f"query times have shape {tuple(times.shape)} for {len(batch)} streams: give (stream, query)."
        )
    first = batch.times[:, :1]
    if bool((early := times < first).any()):
        stream, query = (int(i) for i in early.nonzero()[0])
        raise SeriesError(
            f"stream {batch.streams[stream]!r} is asked for at time {float(times[stream, query])}, but its "
            f"first row is at {float(first[stream, 0])}: nothing is known before that."
        )
    if not times.shape[1]:
        return times
    latest = times.nan_to_num(nan=-torch.inf).cummax(1).values.maximum(first)
    return torch.where(times.isnan(), latest, times)
