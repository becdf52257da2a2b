"""Refuse bad series at the border, naming the stream, the row, the channel and the remedy."""

from collections.abc import Hashable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor


class SeriesError(ValueError):
    """A series that cannot be used as it is; the message says what is wrong, where, and what to do."""


def names_or_default(
    names: Sequence[str] | None, count: int, prefix: str, what: str
) -> tuple[str, ...]:
    """Return checked channel or feature names, `prefix0, prefix1, ...` where none are given."""
    if names is None:
        return tuple(f"{prefix}{i}" for i in range(count))
    checked = tuple(str(name) for name in names)
    if len(checked) != count:
        raise SeriesError(
            f"{len(checked)} {what} names were given for {count} {what}s: give one name for each."
        )
    seen: set[str] = set()
    for name in checked:
        if name in seen:
            raise SeriesError(f"{what} '{name}' is named twice: {what} names must be unique.")
        seen.add(name)
    return checked


def default_names(names: Sequence[str], prefix: str) -> bool:
    """Whether names are those that `names_or_default` gives where nobody named anything."""
    return all(name == f"{prefix}{i}" for i, name in enumerate(names))


def streams_or_default(streams: Sequence[Hashable] | None, count: int) -> tuple[Hashable, ...]:
    """Return checked stream identifiers, `0, 1, ...` where none are given."""
    if streams is None:
        return tuple(range(count))
    checked = tuple(streams)
    if len(checked) != count:
        raise SeriesError(
            f"{len(checked)} stream identifiers were given for {count} streams: give one for each."
        )
    if len(set(checked)) != count:
        twice = next(s for s in checked if checked.count(s) > 1)
        raise SeriesError(f"stream {twice!r} occurs twice: stream identifiers must be unique.")
    return checked


def as_real(array: Any, what: str, whole: torch.dtype | None = None) -> Tensor:
    """Return `array` as a float32 or float64 tensor, None in a list and masked entries as NaN.

    Whole numbers, and lists, which have no dtype of their own, become `whole` (default: torch's).
    """
    whole = whole or torch.get_default_dtype()
    if isinstance(array, Tensor):
        tensor = array
    else:
        cells = as_cells(array, what)
        if cells.dtype.kind not in "fiu" or cells.dtype.itemsize > 8:
            raise SeriesError(f"{what} has dtype {cells.dtype}: give real numbers.")
        # torch takes neither numpy's reversed nor its read-only arrays, nor foreign byte orders.
        cells = cells.astype(cells.dtype.newbyteorder("="), copy=False)
        tensor = torch.from_numpy(np.require(cells, requirements=["C", "W"]))
        own = getattr(array, "dtype", None)
        if own is None or getattr(own, "kind", None) in ("i", "u"):
            tensor = tensor.to(whole)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise SeriesError(f"{what} has dtype {tensor.dtype}: give real numbers.")
    if not tensor.is_floating_point():
        tensor = tensor.to(whole)
    if tensor.dtype not in (torch.float32, torch.float64):
        raise SeriesError(f"{what} has dtype {tensor.dtype}: give float32 or float64.")
    return tensor


def as_cells(array: Any, what: str) -> np.ndarray:
    """Return anything like an array as one of numpy's, NaN for None and for what is masked."""
    try:
        if isinstance(array, np.ma.MaskedArray) and array.dtype.kind in "fiu":
            kind = array.dtype if array.dtype.kind == "f" else np.float64
            array = np.ma.filled(array.astype(kind), np.nan)
        cells = np.asarray(array)
        if cells.dtype == object and all(c is None or isinstance(c, Real) for c in cells.flat):
            cells = cells.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SeriesError(
            f"{what} cannot be read as numbers ({error}): give numbers, NaN where not observed."
        ) from error
    return cells


def as_row_counts(rows: Any, what: str) -> Tensor:
    """Return numbers of rows as a tensor of whole numbers."""
    try:
        tensor = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SeriesError(f"{what} cannot be read ({error}): give whole numbers.") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise SeriesError(f"{what} has dtype {tensor.dtype}: give whole numbers.")
    return tensor.to(torch.int64)


def check_shapes(times: Tensor, values: Tensor, rows: Tensor, static: Tensor | None) -> None:
    """Check that times (stream, row), values (stream, row, channel) and the rest fit together."""
    if times.ndim != 2 or values.ndim != 3:
        raise SeriesError(
            "times must have shape (stream, row) and values (stream, row, channel), "
            f"not {tuple(times.shape)} and {tuple(values.shape)}."
        )
    if values.shape[:2] != times.shape:
        raise SeriesError(
            f"times {tuple(times.shape)} and values {tuple(values.shape)} do not agree on "
            "(stream, row): give one time for each row of values."
        )
    if times.shape[0] == 0:
        raise SeriesError("there is no stream: give at least one.")
    if values.shape[2] == 0:
        raise SeriesError("there is no channel: give at least one column of values.")
    if rows.shape != times.shape[:1]:
        raise SeriesError(
            f"rows has shape {tuple(rows.shape)}: give one number of rows for each of the "
            f"{times.shape[0]} streams."
        )
    if static is not None and (static.ndim != 2 or static.shape[0] != times.shape[0]):
        raise SeriesError(
            f"static has shape {tuple(static.shape)}: it must be (stream, feature) "
            f"for {times.shape[0]} streams."
        )


def check_content(
    times: Tensor,
    values: Tensor,
    rows: Tensor,
    static: Tensor | None,
    streams: Sequence[Hashable],
    channels: Sequence[str],
    features: Sequence[str],
) -> None:
    """Check row counts, times and values of every stream; raise for the first fault found."""
    most = times.shape[1]
    if (bad := (rows < 1) | (rows > most)).any():
        stream = int(bad.nonzero()[0])
        if int(rows[stream]) == 0:
            raise SeriesError(f"stream {streams[stream]!r} has no row: leave empty streams out.")
        raise SeriesError(
            f"stream {streams[stream]!r} claims {int(rows[stream])} rows, but there is room for "
            f"1 to {most}."
        )
    real = torch.arange(most, device=times.device) < rows[:, None]
    if (bad := real & ~times.isfinite()).any():
        stream, row = (int(i) for i in bad.nonzero()[0])
        raise SeriesError(
            f"stream {streams[stream]!r}, row {row}: the time is {float(times[stream, row])}: "
            "every row needs a finite time."
        )
    if (bad := real[:, 1:] & (times[:, 1:] <= times[:, :-1])).any():
        stream, row = (int(i) for i in bad.nonzero()[0])
        before, after = float(times[stream, row]), float(times[stream, row + 1])
        remedy = (
            "merge what was observed at one instant into one row (`from_long` does)"
            if after == before
            else "sort the rows by time"
        )
        raise SeriesError(
            f"stream {streams[stream]!r}, row {row + 1}: time {after!r} does not come after "
            f"time {before!r} of the row before: {remedy}."
        )
    if (bad := real[:, :, None] & values.isinf()).any():
        stream, row, channel = (int(i) for i in bad.nonzero()[0])
        raise SeriesError(
            f"stream {streams[stream]!r}, row {row}, channel '{channels[channel]}': the value is "
            f"{float(values[stream, row, channel])}: use NaN for what was not observed."
        )
    if static is not None and (bad := ~static.isfinite()).any():
        stream, feature = (int(i) for i in bad.nonzero()[0])
        raise SeriesError(
            f"stream {streams[stream]!r}, static feature '{features[feature]}' is "
            f"{float(static[stream, feature])}: static features must be known and finite."
        )
