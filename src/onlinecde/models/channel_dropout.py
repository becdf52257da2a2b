"""Channel dropout: a model that sometimes misses a channel learns not to lean on one."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch
from torch import Tensor

from onlinecde.series import SeriesBatch

_part: ContextVar[tuple[Tensor, int] | None] = ContextVar("part", default=None)


def drop_channels(batch: SeriesBatch, share: float) -> SeriesBatch:
    """Hide a random share of the channels of each stream from first row to last."""
    part = _part.get()
    streams = len(batch) if part is None else part[1]
    kept = torch.rand(streams, 1, batch.values.shape[2], device=batch.device) >= share
    if part is not None:
        kept = kept[part[0].to(batch.device)]
    return replace(batch, values=batch.values.masked_fill(~kept, torch.nan))


@contextmanager
def dropping_as_part(positions: Tensor, streams: int) -> Iterator[None]:
    """Inside, hide from the streams at `positions` (stream,) what a whole batch of `streams` would hide.

    Draws are made for the whole batch, so that one cut over several processes loses the same
    channels of each stream as one that is not cut.
    """
    token = _part.set((positions, streams))
    try:
        yield
    finally:
        _part.reset(token)
