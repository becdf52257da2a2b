"""The state of a stream: what is kept of its past, and how more events of one instant are merged into it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from onlinecde.series import SeriesError
from onlinecde.series.checks import as_cells


class StateError(ValueError):
    """An observation or a question that a stream's state cannot take; the message says why."""


class _Viewed:
    """A place beside the fields of a state, of which `vars` and pickles know nothing."""

    __slots__ = ("_arrays",)


@dataclass(frozen=True, eq=False)
class StreamState(_Viewed):
    """The state of some streams: tensors with the stream first, never changed in place."""

    def __len__(self) -> int:
        """The number of streams."""
        return next(iter(vars(self).values())).shape[0]

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _map(self, change: Any) -> Self:
        tensors = self.__getstate__()
        return type(self)(**{k: None if v is None else change(v) for k, v in tensors.items()})

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Self:
        """The state of some of the streams; a number gives a state of one stream."""
        if hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0:
            index = operator.index(index)  # pyright: ignore[reportArgumentType]
            if not -len(self) <= index < len(self):
                raise IndexError(f"stream {index} is out of range for {len(self)} streams.")
            index = [index]
        return self._map(lambda tensor: tensor[index])

    def put(self, index: Sequence[int] | Tensor, streams: Self) -> Self:
        """A state with the streams at `index` replaced by others."""
        at = torch.as_tensor(index)
        tensors = {}
        for f in fields(self):
            mine, other = getattr(self, f.name), getattr(streams, f.name)
            tensors[f.name] = (
                None if mine is None else mine.index_copy(0, at.to(mine.device), other)
            )
        return replace(self, **tensors)

    @classmethod
    def concatenate(cls, states: Sequence[Self]) -> Self:
        """The streams of several states in one."""
        first = states[0]
        tensors = {}
        for f in fields(first):
            parts = [getattr(state, f.name) for state in states]
            tensors[f.name] = None if parts[0] is None else torch.cat(parts)
        return replace(first, **tensors)

    def to(self, device: torch.device | str) -> Self:
        """Move to a device."""
        return self._map(lambda tensor: tensor.to(device))


State = TypeVar("State", bound=StreamState)


@dataclass(frozen=True, eq=False)
class CDEState(StreamState):
    """Everything kept of a stream's past: z, its last row, its counts and its last time.

    What stood before the last row is kept too, so that more events of the same instant can be
    taken in as if they had come together.
    """

    z: Tensor
    """(stream, hidden) after the last row"""
    before: Tensor
    """(stream, hidden): z as the last row's time came, before its values were taken in"""
    time: Tensor
    """(stream,) float64: time of the last row, NaN before the first"""
    values: Tensor
    """(stream, channel): last values in the model's units, 0 where never observed; with `static_in_path`,
    here and below, static features are channels too, behind those observed"""
    counts: Tensor
    """(stream, channel): how often each channel was observed, in `count_dtype`"""
    observed: Tensor
    """(stream, channel) bool: what was observed at the last row's instant"""
    previous: Tensor
    """(stream, channel): values before the last row"""
    previous_time: Tensor
    """(stream,) float64: time of the row before the last, NaN before the second"""
    static: Tensor | None
    """(stream, feature)"""
    stamps: Tensor | None = None
    """(stream, channel) float64: when each channel was last observed before the last row, NaN where never;
    for models whose readout asks how long ago that was"""
    last: Tensor | None = None
    """(stream, forecast): what was last observed of each channel that is forecast, as it was given"""
    past: Tensor | None = None
    """(stream, channel, `past.KEPT`) float64: running statistics of the rows before the last one; for models with
    trees"""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """z and what the kernels keep of a row (their `Held`), on the memory of the tensors; made once."""
        try:
            return self._arrays
        except AttributeError:
            kept = (self.time, self.values, self.counts, self.observed, self.previous)
            return self.with_arrays(
                tuple(tensor.numpy() for tensor in (self.z, *kept, self.previous_time))
            )

    def with_arrays(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Keep the arrays that the tensors stand on, and give them back."""
        object.__setattr__(self, "_arrays", arrays)
        return arrays


def real_cells(given: Any, what: str) -> np.ndarray:
    """Numbers as an array, NaN for None; StateError where they are times of day, texts and the like."""
    cells = given
    if type(given) is not np.ndarray or given.dtype.kind == "O":
        try:
            cells = as_cells(given, what)
        except SeriesError as error:
            raise StateError(str(error)) from error
    if cells.dtype.kind not in "fiub":
        raise StateError(
            f"{what} has dtype {cells.dtype}: give real numbers, in the units the model was made for."
        )
    return cells


def as_numbers(given: Any, what: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor, read as `real_cells` does."""
    if isinstance(given, float | int):
        return torch.tensor(given, dtype=dtype, device=device)
    if not isinstance(given, Tensor):
        # By way of float64: torch reads neither all of numpy's dtypes nor its read-only arrays.
        given = torch.from_numpy(np.array(real_cells(given, what), np.float64))
    if given.is_complex():
        raise StateError(f"{what} has dtype {given.dtype}: give real numbers.")
    return given.to(device=device, dtype=dtype)


def per_stream(t: Any, streams: int, device: torch.device) -> Tensor:
    """A time as (stream,) float64, from a number or one for each stream."""
    clock = as_numbers(t, "t", torch.float64, device)
    if clock.ndim > 1 or (clock.ndim == 1 and clock.shape[0] not in (1, streams)):
        raise StateError(
            f"t has shape {tuple(clock.shape)}: give a number or one time for each of the "
            f"{streams} streams."
        )
    return clock.expand(streams)


def check_observation(time: Tensor, clock: Tensor, x: Tensor, channels: int) -> None:
    """Refuse times that go back or are not finite, infinite values and wrong shapes."""
    if x.shape != (clock.shape[0], channels):
        raise StateError(
            f"x has shape {tuple(x.shape)}: give (stream, channel) = ({clock.shape[0]}, {channels}), "
            "NaN for what was not observed."
        )
    if not bool(clock.isfinite().all()):
        stream = int((~clock.isfinite()).nonzero()[0])
        raise StateError(
            f"stream {stream}: the time is {float(clock[stream])}: give a finite time."
        )
    if bool((back := clock < time).any()):
        stream = int(back.nonzero()[0])
        raise StateError(
            f"stream {stream}: time {float(clock[stream])!r} lies before its last row at "
            f"{float(time[stream])!r}: rows must come in order of time."
        )
    if bool((wild := x.isinf()).any()):
        stream, channel = (int(i) for i in wild.nonzero()[0])
        raise StateError(
            f"stream {stream}, channel {channel}: the value is {float(x[stream, channel])}: use NaN "
            "for what was not observed."
        )


def check_conflict(clash: Tensor) -> None:
    """Refuse a second, different value (stream, channel) for one channel at one instant."""
    if bool(clash.any()):
        stream, channel = (int(i) for i in clash.nonzero()[0])
        raise StateError(
            f"stream {stream}, channel {channel}: this instant already has another value: observe "
            "each channel once an instant."
        )


def check_question(time: Tensor, clock: Tensor) -> None:
    """Refuse questions about a stream without rows, about its past, or at no time at all."""
    if bool((empty := time.isnan()).any()):
        stream = int(empty.nonzero()[0])
        raise StateError(f"stream {stream} has no row yet: observe one first.")
    if bool((bad := ~(clock >= time) | clock.isinf()).any()):
        stream = int(bad.nonzero()[0])
        raise StateError(
            f"stream {stream} is asked for at time {float(clock[stream])!r}, its last row is at "
            f"{float(time[stream])!r}: ask for that time or later."
        )


class Merged(NamedTuple):
    """A row of (stream, channel) values after one more event of the same instant, or a new row."""

    again: Tensor
    """(stream,) bool: this instant had a row already"""
    observed: Tensor
    """(stream, channel) bool: what was observed at this instant, now and before"""
    values: Tensor
    """(stream, channel): the last values, this instant's taken in"""
    previous: Tensor
    """(stream, channel): those before this instant"""


def merge(state: Any, clock: Tensor, scaled: Tensor) -> Merged:
    """What is observed at `clock` (stream,), scaled (stream, channel), with what the state has of that instant.

    Events of one instant are one row, whatever order they come in: a channel observed before at this instant keeps
    its value. `kernels.cpu.observation.plan_observation` is the same rule in compiled code.
    """
    again = clock == state.time
    here = ~scaled.isnan()
    same = again[:, None]
    observed = here | (same & state.observed)
    previous = torch.where(same, state.previous, state.values)
    values = torch.where(observed, torch.where(here, scaled, state.values), previous)
    return Merged(again, observed, values, previous)


def check_merge(state: Any, clock: Tensor, scaled: Tensor) -> None:
    """Refuse a second, different value for one channel at one instant."""
    again = (clock == state.time)[:, None]
    check_conflict(again & ~scaled.isnan() & state.observed & (scaled != state.values))
