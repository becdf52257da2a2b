"""Steps that every control scheme shares: encode a batch, and join time, values and counts."""

import torch
from torch import Tensor

from onlinecde.controls.encoding import EncodedSeries, Encoding
from onlinecde.controls.fill import has_gaps, observation_counts
from onlinecde.controls.path import Measurability
from onlinecde.series import SeriesBatch, SeriesError


def encode(batch: SeriesBatch, counts: bool, encoding: Encoding | None) -> EncodedSeries:
    """Scale a batch with the given encoding, or with none at all."""
    if encoding is None:
        raw = observation_counts(batch.observed, batch.dtype) if counts else None
        return EncodedSeries(batch.times, batch.values, raw, batch.times, batch.rows, batch.streams)
    if counts and not encoding.counts:
        raise SeriesError(
            "counts=True was asked for, but the encoding has no counts: "
            "build it with Encoding(channels, counts=True)."
        )
    return encoding(batch)


def join_channels(series: EncodedSeries, values: Tensor) -> Tensor:
    """(stream, row, channel) in the order time, values, counts."""
    parts = [series.time[:, :, None].to(values.dtype), values]
    if series.counts is not None:
        parts.append(series.counts.to(values.dtype))
    return torch.cat(parts, 2)


def measurability_at_rows(series: EncodedSeries) -> Measurability:
    """DISCRETE where no channel has gaps; filling a gap takes the value behind it."""
    # Static features are never told anew, so what is held of them takes nothing from the future.
    observed = series.values[:, :, : series.values.shape[2] - series.static]
    gaps = has_gaps(observed, series.lengths)
    return Measurability.OFFLINE if gaps else Measurability.DISCRETE
