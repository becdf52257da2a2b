"""Rows of all streams one below the other <-> a padded `SeriesBatch`.

Long and short streams mixed, padding can be most of a batch (nine tenths of PhysioNet 2019), so
checks and caches work on the rows alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from onlinecde.series import SeriesBatch


def pad_rows(
    lengths: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    *,
    channels: Sequence[str],
    streams: Sequence[Hashable],
    static: Tensor | None = None,
    features: Sequence[str] = (),
) -> SeriesBatch:
    """Build a batch from lengths (stream,), times (line,) and values (line, channel).

    Checks what `SeriesBatch.from_padded` checks.
    """
    ends = np.cumsum(lengths)
    inner = np.ones(len(times), bool)
    inner[(ends - lengths)[lengths > 0]] = False
    sound = (
        bool((lengths > 0).all())
        and len(set(streams)) == len(lengths)
        and bool(np.isfinite(times).all())
        and not np.isinf(values).any()
        and bool((np.diff(times, prepend=-np.inf)[inner] > 0).all())
        and (static is None or bool(static.isfinite().all()))
    )
    clock = torch.from_numpy(pad(lengths, times.astype(np.float64), 0.0))
    table = torch.from_numpy(pad(lengths, values, np.nan))
    rows = torch.from_numpy(lengths.astype(np.int64))
    if not sound:
        # Slower, and it names the stream, the row and the channel at fault.
        return SeriesBatch.from_padded(
            clock,
            table,
            rows,
            static,
            channels=channels,
            features=features if static is not None else None,
            streams=streams,
        )
    last = clock.gather(1, rows[:, None] - 1)
    real = torch.arange(clock.shape[1]) < rows[:, None]
    return SeriesBatch(
        torch.where(real, clock, last),
        table,
        rows,
        static,
        tuple(channels),
        tuple(features),
        tuple(streams),
    )


def pad(lengths: np.ndarray, lines: np.ndarray, fill: float) -> np.ndarray:
    """Spread (line, ...) over (stream, row, ...), `fill` behind each stream's last row."""
    most = int(lengths.max(initial=0))
    starts = np.cumsum(lengths) - lengths
    row = np.arange(len(lines)) - np.repeat(starts, lengths)
    padded = np.full((len(lengths), most, *lines.shape[1:]), fill, lines.dtype)
    padded[np.repeat(np.arange(len(lengths)), lengths), row] = lines
    return padded


def strip_padding(batch: SeriesBatch, array: Tensor) -> np.ndarray:
    """(stream, row, ...) -> (line, ...): the real rows of all streams one below the other."""
    return array[batch.real].cpu().numpy()
