"""Other futures of the same past: edits of a batch that leave everything up to a time alone."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from onlinecde.series import SeriesBatch

Future = tuple[np.ndarray, np.ndarray]
"""Times (row,) and values (row, channel) of one stream after the cut."""

Edit = Callable[[Future, float, np.random.Generator], Future]
"""Another future, given the one there was, the time of the cut and a source of chance."""


def edited_futures(
    batch: SeriesBatch, cut: torch.Tensor, generator: np.random.Generator
) -> Iterator[tuple[str, SeriesBatch]]:
    """The batch under each edit of what comes after `cut` (stream,), with the edit's name.

    Rows up to the cut, static features and names stay as they are, bit for bit. Cuts must not
    come before a stream's first row.
    """
    for name, edit in EDITS.items():
        yield name, _with_future(batch, cut, edit, generator)


def cuts(batch: SeriesBatch, number: int, generator: np.random.Generator) -> Iterator[torch.Tensor]:
    """Times (stream,) to cut at: at a random row of each stream, or between it and the next."""
    rows, times = batch.rows.cpu().numpy(), batch.times.detach().cpu().numpy()
    stream = np.arange(len(rows))
    for turn in range(number):
        row = generator.integers(0, rows)
        start = times[stream, row]
        following = times[stream, np.minimum(row + 1, rows - 1)]
        following = np.where(following > start, following, start + 1.0)
        along = generator.uniform(0.1, 0.9) if turn % 2 else 0.0
        yield torch.from_numpy(start + along * (following - start)).to(batch.times)


def _with_future(
    batch: SeriesBatch, cut: torch.Tensor, edit: Edit, generator: np.random.Generator
) -> SeriesBatch:
    times, values = [], []
    dtype = batch.values.detach().cpu().numpy().dtype
    for stream, rows in enumerate(batch.rows.tolist()):
        clock = batch.times[stream, :rows].detach().cpu().numpy()
        table = batch.values[stream, :rows].detach().cpu().numpy()
        now = float(cut[stream])
        past = clock <= now
        later, observations = edit((clock[~past], table[~past]), now, generator)
        times.append(np.concatenate([clock[past], later]))
        values.append(np.concatenate([table[past], observations]).astype(dtype))
    return SeriesBatch.from_arrays(
        times,
        values,
        None if batch.static is None else batch.static.cpu(),
        channels=batch.channels,
        features=batch.features,
        streams=batch.streams,
    ).to(batch.device)


def _change_values(future: Future, now: float, generator: np.random.Generator) -> Future:
    return future[0], future[1] + generator.uniform(0.5, 1.5, future[1].shape)


def _remove_values(future: Future, now: float, generator: np.random.Generator) -> Future:
    kept = generator.random(future[1].shape) < 0.5
    return future[0], np.where(kept, future[1], np.nan)


def _observe_missing(future: Future, now: float, generator: np.random.Generator) -> Future:
    made = generator.uniform(-1, 1, future[1].shape)
    return future[0], np.where(np.isnan(future[1]), made, future[1])


def _move_times(future: Future, now: float, generator: np.random.Generator) -> Future:
    return now + (future[0] - now) * generator.uniform(1.1, 2.0), future[1]


def _delete_next_row(future: Future, now: float, generator: np.random.Generator) -> Future:
    return future[0][1:], future[1][1:]


def _delete_rows(future: Future, now: float, generator: np.random.Generator) -> Future:
    return future[0][:0], future[1][:0]


def _add_rows(future: Future, now: float, generator: np.random.Generator) -> Future:
    """One row between the cut and the next row, and two after the last."""
    times, values = future
    first = times[0] if len(times) else now + 1.0
    last = times[-1] if len(times) else first
    added = generator.uniform(-1, 1, (3, values.shape[1]))
    return (
        np.concatenate([[now + 0.5 * (first - now)], times, [last + 0.7, last + 2.0]]),
        np.concatenate([added[:1], values, added[1:]]),
    )


EDITS: dict[str, Edit] = {
    "changing the values": _change_values,
    "removing values": _remove_values,
    "observing what was missing": _observe_missing,
    "moving the times of the rows": _move_times,
    "deleting the next row": _delete_next_row,
    "deleting every row": _delete_rows,
    "adding rows": _add_rows,
}
"""What may happen after a cut, in the words of a report: '... after time 3.2'."""
