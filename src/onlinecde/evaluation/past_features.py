"""Features of what was observed of a stream up to a time, made by hand: what boosted trees are given."""

from __future__ import annotations

import numpy as np
import torch

from onlinecde.models.past import STATISTICS, numbers_along
from onlinecde.series import SeriesBatch


def feature_names(batch: SeriesBatch) -> tuple[str, ...]:
    """Names of the features that `past_features` gives.

    >>> batch = SeriesBatch.from_arrays([[0.0]], [[[1.0]]], channels=["hr"])
    >>> feature_names(batch)[:3], feature_names(batch)[-2:]
    (('hr last', 'hr mean', 'hr min'), ('time', 'rows'))
    """
    own = [f"{channel} {name}" for name in STATISTICS for channel in batch.channels]
    return (*own, *batch.features, "time", "rows")


def past_features(batch: SeriesBatch, asked: np.ndarray) -> np.ndarray:
    """Features of each stream at the times it is asked about, from what was observed until then.

    Args:
        batch: the series, on the CPU.
        asked: (stream, query) float64, none before a stream's first row; NaN where nothing is asked.

    Returns:
        (question, feature) float32: questions stream by stream; NaN where nothing is known. Statistics of each
        channel, as in `STATISTICS`; static features; the time; how many rows there were.

    >>> batch = SeriesBatch.from_arrays([[0.0, 2.0]], [[[1.0], [5.0]]])
    >>> past_features(batch, np.array([[0.5, 3.0]]))[:, :4].tolist()
    [[1.0, 1.0, 1.0, 1.0], [5.0, 3.0, 1.0, 5.0]]
    """
    row = rows_before(batch, asked)
    clock = torch.from_numpy(np.nan_to_num(asked, nan=0.0))
    static = [] if batch.static is None else [batch.static[:, None].expand(-1, row.shape[1], -1)]
    also = torch.cat([*static, clock[:, :, None], row[:, :, None] + 1], 2).float()
    observed = ~batch.values.isnan()
    told = numbers_along(batch.times, batch.values.double(), observed, row, clock, also)
    return told.numpy()[~np.isnan(asked)]


def rows_before(batch: SeriesBatch, asked: np.ndarray) -> torch.Tensor:
    """The last row at or before each time, (stream, query); 0 where nothing is asked."""
    times = batch.times.masked_fill(~batch.real, torch.inf).contiguous()
    clock = torch.from_numpy(np.nan_to_num(np.ascontiguousarray(asked), nan=-np.inf))
    return (torch.searchsorted(times, clock.to(times.device), right=True) - 1).clamp(min=0)
