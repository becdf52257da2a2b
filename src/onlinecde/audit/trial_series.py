"""Made series on which the audit tries a path: irregular times, values within [-1, 1]."""

import numpy as np
import torch

from onlinecde.models import OnlineModel
from onlinecde.series import SeriesBatch

SHORTEST_GAP, LONGEST_GAP = 0.5, 1.5


def trial_batch(
    seed: int = 0, *, streams: int = 6, rows: int = 9, channels: int = 2, missing: float = 0.0
) -> SeriesBatch:
    """Random float64 series with gaps of 0.5 to 1.5 in time, a share `missing` not observed.

    >>> trial_batch(missing=0.4)
    SeriesBatch(6 streams, 9 rows, 2 channels, 65 % observed)
    """
    if not 0 <= missing < 1:
        raise ValueError(f"missing is {missing}: give a share of at least 0 and below 1.")
    generator = np.random.default_rng(seed)
    gaps = generator.uniform(SHORTEST_GAP, LONGEST_GAP, (streams, rows))
    values = generator.uniform(-1, 1, (streams, rows, channels))
    values[generator.random(values.shape) < missing] = np.nan
    return SeriesBatch.from_padded(torch.from_numpy(gaps.cumsum(1)), torch.from_numpy(values))


def trial_batch_for(
    model: OnlineModel, seed: int = 0, *, streams: int = 6, rows: int = 8, missing: float = 0.4
) -> SeriesBatch:
    """Random series of unequal length that fit a model: its channels, static features, dtype, units.

    Units are those the model's `encoding` was fitted to, if it has one.
    """
    made = trial_batch(seed, streams=streams, rows=rows, channels=model.channels, missing=missing)
    generator = np.random.default_rng(seed)
    times, values = made.times, made.values
    lengths = torch.from_numpy(generator.integers(max(2, rows // 2), rows + 1, streams))
    lengths[0] = rows
    static = torch.from_numpy(generator.normal(size=(streams, model.static)))
    encoding = getattr(model, "encoding", None)
    if encoding is not None:
        times = times * encoding.time_scale.cpu() + encoding.time_shift.cpu()
        scale, shift = encoding.scale.cpu(), encoding.shift.cpu()
        values = values * scale[: model.channels] + shift[: model.channels]
        if encoding.static:
            static = static * scale[model.channels :] + shift[model.channels :]
    batch = SeriesBatch.from_padded(times, values, lengths, static if model.static else None)
    return batch.to(model.device, model.dtype)
