"""What every model can do, offline and online, and the state of its streams."""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.controls import Measurability
from onlinecde.models.heads import Head
from onlinecde.series import Schema, SchemaWarning, SeriesBatch, SeriesError
from onlinecde.series.checks import as_cells
from onlinecde.solvers.fields import has_hooks


class StateError(ValueError):
    """An observation or a question that a stream's state cannot take; the message says why."""


@dataclass(frozen=True, eq=False)
class StreamState:
    """The state of some streams: tensors with the stream first, never changed in place."""

    def __len__(self) -> int:
        """The number of streams."""
        return next(iter(vars(self).values())).shape[0]

    def _map(self, change: Any) -> Self:
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: None if v is None else change(v) for k, v in held.items()})

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
        held = {}
        for f in fields(self):
            mine, other = getattr(self, f.name), getattr(streams, f.name)
            held[f.name] = None if mine is None else mine.index_copy(0, at.to(mine.device), other)
        return replace(self, **held)

    @classmethod
    def concatenate(cls, states: Sequence[Self]) -> Self:
        """The streams of several states in one."""
        first = states[0]
        held = {}
        for f in fields(first):
            parts = [getattr(state, f.name) for state in states]
            held[f.name] = None if parts[0] is None else torch.cat(parts)
        return replace(first, **held)

    def to(self, device: torch.device | str) -> Self:
        """Move to a device."""
        return self._map(lambda tensor: tensor.to(device))


State = TypeVar("State", bound=StreamState)


class OnlineModel(nn.Module, ABC, Generic[State]):
    """A model from irregular series to predictions, the same offline and online.

    Feeding a series row by row through `observe` gives what `forward` gives for the whole of it.
    """

    channels: int
    outputs: int
    static: int
    head: Head
    _schema: Schema | None = None

    @property
    def schema(self) -> Schema | None:
        """Names of its channels and static features, and how raw ones become its own; None: they go by position.

        `fit` sets it and `save` keeps it; until then it is that of the series its encoding was fitted on.
        """
        if self._schema is not None:
            return self._schema
        learned = getattr(getattr(self, "encoding", None), "schema", None)
        # An encoding may be fitted on series without the static features its model takes in beside it.
        if learned is not None and len(learned.features) == self.static:
            return learned
        return None

    @schema.setter
    def schema(self, schema: Schema | None) -> None:
        self._schema = schema

    @property
    @abstractmethod
    def measurability(self) -> Measurability:
        """What its outputs may depend on: CONTINUOUS, DISCRETE or OFFLINE."""

    @abstractmethod
    def forward(self, batch: SeriesBatch, at: Any = None, *, final: bool = False) -> Tensor:
        """Outputs after each row, (stream, row, output); what stands in the padding repeats the last.

        With `at`, query times (query,) or (stream, query): (stream, query, output). With `final`:
        (stream, output) after the last row.
        """

    @abstractmethod
    def init_state(self, streams: int = 1, static: Any = None) -> State:
        """The state of streams of which nothing was observed yet; static (stream, feature)."""

    @abstractmethod
    def observe(self, state: State, t: Any, x: Any) -> State:
        """Take in what was observed at t, a number or (stream,): x (stream, channel), NaN = not observed.

        x by name, where the model's `schema` has names: {channel: a number or (stream,)}.

        Events of one instant may come in any order, together or one by one. Returns a new state;
        raises StateError, and changes nothing, where the observation cannot be right.
        """

    @abstractmethod
    def predict(self, state: State, t: Any = None) -> Tensor:
        """What the model says at t, (stream, output), t a number or (stream,), default: the last row's time."""

    encodes_by_call: ClassVar[bool] = False
    """Whether whole series are encoded by calling `encoding`"""
    weights_alone: ClassVar[tuple[str, ...]] = ()
    """Parts that are not always called, for what they compute is read off their tensors"""

    def check_parts(self, *, live: bool) -> None:
        """Refuse what is done to such parts by hooks or another forward: it would take effect in places alone.

        Whole series go through an encoding's own forward, so that its hooks are refused in live streams alone.
        """
        for name in self.weights_alone:
            part = self._modules.get(name)
            if part is None or (name == "encoding" and self.encodes_by_call and not live):
                continue
            if has_hooks(part):
                raise ValueError(
                    f"`{name}` has hooks, and is not called everywhere it is used: remove them."
                )
            if name != "encoding" and (
                "forward" in vars(part) or not type(part).forward.__module__.startswith("torch.nn.")
            ):
                raise ValueError(
                    f"`{name}` has a forward of its own, and is not called everywhere it is used: write a "
                    "model that calls it."
                )

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def aligned(self, batch: SeriesBatch) -> SeriesBatch:
        """A batch with the model's channels and static features, matched by name where the model has names.

        What the batch lacks of the model's `schema`, or has besides, is said by a `SchemaWarning`.
        """
        if self.schema is None or self.schema.fits(batch):
            return batch
        batch, notes = self.schema.align(batch)
        for told in notes:
            warnings.warn(told, SchemaWarning, stacklevel=3)
        return batch

    def prepare(self, batch: SeriesBatch) -> SeriesBatch:
        """Check that a batch fits, and give it the model's channels, static features and dtype."""
        self.check_parts(live=False)
        if not isinstance(batch, SeriesBatch):
            raise TypeError(
                f"a {type(batch).__name__} is no series: give a SeriesBatch, as "
                "SeriesBatch.from_padded(times, values) builds it."
            )
        batch = self.aligned(batch)
        if batch.values.shape[2] != self.channels:
            raise ValueError(
                f"the series has {batch.values.shape[2]} channels ({', '.join(batch.channels[:5])}"
                f"{', ...' if len(batch.channels) > 5 else ''}), the model was made for "
                f"{self.channels}."
            )
        given = 0 if batch.static is None else batch.static.shape[1]
        if given != self.static:
            raise ValueError(
                f"the series has {given} static features, the model was made for {self.static}."
            )
        return batch if batch.dtype == self.dtype else _in_dtype(batch, self.dtype)

    def row_of(self, x: Any, streams: int) -> Any:
        """An observation by name as (stream, channel), NaN for what is not named; any other as it is."""
        if not isinstance(x, Mapping):
            return x
        if self.schema is None:
            raise StateError("the model's channels have no names: give x as (stream, channel).")
        row = np.full((streams, self.channels), np.nan)
        place = {name: number for number, name in enumerate(self.schema.channels)}
        for name, values in x.items():
            if name not in place:
                raise StateError(f"the model has no channel {name!r}: it has {', '.join(place)}.")
            cells = real_cells(values, f"channel {name!r}")
            if cells.shape not in ((), (1,), (streams,)):
                raise StateError(
                    f"channel {name!r} has shape {cells.shape}: give a number or one for each of the "
                    f"{streams} streams."
                )
            row[:, place[name]] = cells
        return row

    def prepare_static(self, streams: int, static: Any) -> Tensor | None:
        """Check static features for `init_state`: (stream, feature), or raw ones by name, where there are names."""
        self.check_parts(live=True)
        if streams < 1:
            raise StateError(f"streams is {streams}: give at least 1.")
        if isinstance(static, Mapping) and self.schema is not None:
            try:
                static, notes = self.schema.encode(static, range(streams))
            except SeriesError as error:
                raise StateError(str(error)) from error
            for told in notes:
                warnings.warn(told, SchemaWarning, stacklevel=3)
            static = static if self.static else None
        if self.static == 0:
            if static is not None:
                raise StateError("the model takes no static features: leave static out.")
            return None
        if static is None:
            raise StateError(f"the model takes {self.static} static features: give static.")
        features = as_numbers(static, "static", self.dtype, self.device)
        if features.shape != (streams, self.static):
            raise StateError(
                f"static has shape {tuple(features.shape)}: give (stream, feature) = "
                f"({streams}, {self.static})."
            )
        if not bool(features.isfinite().all()):
            raise StateError("static features must be known and finite.")
        return features


def _in_dtype(batch: SeriesBatch, dtype: torch.dtype) -> SeriesBatch:
    """A batch in another dtype; refuses what that one cannot hold."""
    told = batch.to(dtype=dtype)
    if bool((wild := told.values.isinf()).any()):
        stream, row, channel = (int(i) for i in wild.nonzero()[0])
        raise SeriesError(
            f"stream {batch.streams[stream]!r}, row {row}, channel '{batch.channels[channel]}': the "
            f"value {float(batch.values[stream, row, channel]):g} is beyond {dtype}, the model's: "
            "use NaN for what was not observed, or model.double()."
        )
    if told.static is not None and batch.static is not None and bool(told.static.isinf().any()):
        stream, feature = (int(i) for i in told.static.isinf().nonzero()[0])
        raise SeriesError(
            f"stream {batch.streams[stream]!r}, static feature '{batch.features[feature]}' is "
            f"{float(batch.static[stream, feature]):g}, which is beyond {dtype}, the model's: use "
            "other units, or model.double()."
        )
    return told


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


def arguments(names: Mapping[str, Any]) -> dict[str, Any]:
    """A constructor's arguments, of its `locals()` before there are others: what a saved model is built from."""
    return {name: value for name, value in names.items() if name not in ("self", "__class__")}


def check_asked(at: Any, final: bool) -> None:
    """Refuse query times and the last row at once: there is one answer a call."""
    if at is not None and final:
        raise ValueError(
            "at and final=True were both given: leave final out for outputs at query times, or at for "
            "outputs after the last row."
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
