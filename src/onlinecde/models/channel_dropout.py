"""Channel dropout: a model that sometimes misses a channel learns not to lean on one."""

from dataclasses import replace

import torch

from onlinecde.series import SeriesBatch


def drop_channels(batch: SeriesBatch, share: float) -> SeriesBatch:
    """Hide a random share of the channels of each stream from first row to last."""
    kept = torch.rand(len(batch), 1, batch.values.shape[2], device=batch.device) >= share
    return replace(batch, values=batch.values.masked_fill(~kept, torch.nan))
