"""Features of what was observed of a stream up to a time, made by hand: what boosted trees are given."""

from __future__ import annotations

import numpy as np
import torch

from onlinecde.series import SeriesBatch

STATISTICS = ("last", "mean", "min", "max", "deviation", "slope", "first", "count", "since")
"""Of each channel, up to the time asked: values; the slope of the line of least squares, in units a unit of time;
how often it was observed; and how long ago it was last."""


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
    times, values = batch.times.numpy(), batch.values.double().numpy()
    stream, query = np.nonzero(~np.isnan(asked))
    clock = asked[stream, query]
    row = _row_before(batch, asked)[stream, query]

    def there(running: np.ndarray) -> np.ndarray:
        """(stream, row, channel) -> (question, channel)"""
        return running[stream, row]

    def total(each: np.ndarray) -> np.ndarray:
        # One row is added after the other: what comes later leaves every bit of what was before.
        return there(np.cumsum(each, 1))

    seen = ~np.isnan(values)
    count = total(seen.astype(np.int64))
    place = np.where(seen, np.arange(values.shape[1])[:, None], -1)
    last = there(np.maximum.accumulate(place, 1))
    # Sums are of differences to what a channel began with: squares of those do not cancel.
    begun = seen.argmax(1)
    first = np.take_along_axis(values, begun[:, None], 1)
    moved = np.where(seen, values - first, 0.0)
    age = np.where(seen, (times[:, :, None] - np.take_along_axis(times, begun, 1)[:, None]), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total(moved) / count
        variance = np.maximum(total(moved**2) / count - mean**2, 0.0)
        spread = total(age**2) / count - (total(age) / count) ** 2
        slope = (total(age * moved) / count - mean * total(age) / count) / spread
    stamp, channel = times[stream[:, None], last], np.arange(values.shape[2])
    statistics = [
        values[stream[:, None], last, channel],
        mean + first[stream, 0],
        there(np.fmin.accumulate(values, 1)),
        there(np.fmax.accumulate(values, 1)),
        np.sqrt(variance),
        np.where((count > 1) & (spread > 0), slope, np.nan),
        first[stream, 0],
        count,
        clock[:, None] - stamp,
    ]
    known = [
        each if name == "count" else np.where(count > 0, each, np.nan)
        for name, each in zip(STATISTICS, statistics, strict=True)
    ]
    static = [] if batch.static is None else [batch.static.numpy()[stream]]
    whole = [*known, *static, clock[:, None], row[:, None] + 1]
    return np.concatenate(whole, 1, dtype=np.float32, casting="unsafe")


def _row_before(batch: SeriesBatch, asked: np.ndarray) -> np.ndarray:
    """The last row at or before each time, (stream, query); 0 where nothing is asked."""
    times = batch.times.masked_fill(~batch.real, torch.inf).contiguous()
    clock = torch.from_numpy(np.nan_to_num(np.ascontiguousarray(asked), nan=-np.inf))
    return (torch.searchsorted(times, clock, right=True) - 1).clamp(min=0).numpy()
