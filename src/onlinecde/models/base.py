"""What every model can do, offline and online."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.controls import Encoding, Measurability
from onlinecde.models.alarm_policy import AlarmPolicy
from onlinecde.models.forecasts import QuantileIntervals
from onlinecde.models.intervals import Intervals, IntervalsError
from onlinecde.models.readout import Readout
from onlinecde.models.state import State, StateError, as_numbers, real_cells
from onlinecde.series import Schema, SchemaWarning, SeriesBatch, SeriesError
from onlinecde.solvers.fields import has_hooks

Asking = Literal["hold", "empty-rows"]
"""What a model that is online at rows alone does between them, see `models.asking`."""


class OnlineModel(nn.Module, ABC, Generic[State]):
    """A model from irregular series to predictions, the same offline and online.

    Feeding a series row by row through `observe` gives what `forward` gives for the whole of it.
    """

    channels: int
    outputs: int
    static: int
    readout: Readout
    encoding: Encoding
    alarm_policy: AlarmPolicy | None = None
    """When live streams raise alarms; `save` keeps it, and an engine follows it unless it is given another."""
    intervals: Intervals | None = None
    """Around the numbers of a regression, measured by `fit`; `save` keeps them."""
    _schema: Schema | None = None
    _asking: Asking = "hold"
    _boundary: float | None = None

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
    def asking(self) -> Asking:
        """How series are asked about between rows, where nobody says otherwise: `fit` sets it and `save` keeps it.

        `predict` and live streams hold the last answer in any case: rows, empty ones too, are `observe`'s.
        """
        return self._asking

    @asking.setter
    def asking(self, asking: Asking) -> None:
        self._asking = asking

    @property
    def boundary(self) -> float | None:
        """Of one that learned what alarms are worth, the probability from which on one is worth more than silence."""
        return self._boundary

    @boundary.setter
    def boundary(self, boundary: float | None) -> None:
        self._boundary = boundary

    @property
    @abstractmethod
    def measurability(self) -> Measurability:
        """What its outputs may depend on: CONTINUOUS, DISCRETE or OFFLINE."""

    @abstractmethod
    def forward(self, batch: SeriesBatch, at: Any = None, *, final: bool = False) -> Tensor:
        """Outputs after each row, at query times, or after the last row.

        Args:
            batch: the series.
            at: query times, (query,) or (stream, query), none before a stream's first row.
            final: whether the last row alone is asked for; not together with `at`.

        Returns:
            (stream, row, output), where padding repeats the last row; (stream, query, output) with `at`; (stream,
            output) with `final`.

        Raises:
            SeriesError: the series is not one the model can take.
            SolverError: a state is no longer finite, or needs too many steps.
        """

    @abstractmethod
    def init_state(self, streams: int = 1, static: Any = None) -> State:
        """The state of streams of which nothing was observed yet.

        Args:
            streams: how many.
            static: their static features, (stream, feature), or raw ones by name where the model has names.

        Raises:
            StateError: static features are missing, too many or not finite, or the model runs offline alone.
        """

    @abstractmethod
    def observe(self, state: State, t: Any, x: Any) -> State:
        """Take in what was observed at t. Events of one instant may come in any order, together or one by one.

        Args:
            state: of the streams, left as it is.
            t: a number or (stream,).
            x: (stream, channel), NaN for what was not observed; or {channel: a number or (stream,)}, where the
                model's `schema` has names.

        Returns:
            A new state.

        Raises:
            StateError: the observation cannot be right.
            SolverError: the new state is not finite.
        """

    @abstractmethod
    def predict(self, state: State, t: Any = None) -> Tensor:
        """Outputs at t if nothing is observed until then, (stream, output); the state stays as it is.

        Args:
            state: of the streams.
            t: a number or (stream,), not before a stream's last row; None for that row's own time.

        Raises:
            StateError: a stream has no row yet, or t lies before its last one.
        """

    def last_values(self, batch: SeriesBatch) -> Tensor | None:
        """What was last observed of each channel that is forecast, (stream, row, forecast); None of other kinds."""
        forecasts = getattr(self.readout, "forecasts", None)
        return None if forecasts is None else forecasts.along(batch.values)

    def last_after(self, last: Tensor | None, x: Tensor) -> Tensor | None:
        """The same of live streams, (stream, forecast), after a row x (stream, channel), NaN where not observed."""
        forecasts = None if last is None else self.readout.forecasts
        return None if last is None or forecasts is None else forecasts.after(last, x)

    def first_last(self, streams: int) -> Tensor | None:
        """The same of streams of which nothing was observed yet."""
        forecasts = getattr(self.readout, "forecasts", None)
        return None if forecasts is None else forecasts.first(streams).to(self.dtype)

    def interval(self, outputs: Tensor, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals around a regression's outputs (..., output), or a forecast's, on CPU.

        Args:
            outputs: what the model put out.
            level: the share of labels that such intervals hold; default: the highest there is.

        Raises:
            IntervalsError: the model has none, or none of this level.

        >>> import onlinecde as oc
        >>> model = oc.GRU(channels=1, hidden=2, outputs=1)
        >>> model.intervals = Intervals((0.9,), ((2.0,),), ((0.0,),), ((1.0,),), subjects=40)
        >>> model.interval(torch.tensor([[3.0]]))
        (tensor([[1.]]), tensor([[5.]]))
        """
        intervals = self.own_intervals
        if intervals is None:
            raise IntervalsError(
                "the model has no intervals: they are measured by `fit`, for a regression with enough validation "
                "subjects."
            )
        numbers = outputs.detach().double().cpu().numpy()
        lower, upper = (torch.from_numpy(x) for x in intervals.bounds(numbers, level))
        return lower.to(outputs.dtype), upper.to(outputs.dtype)

    @property
    def own_intervals(self) -> Intervals | QuantileIntervals | None:
        """Its `intervals`, or those between the quantiles of its forecasts."""
        return QuantileIntervals() if getattr(self.readout, "forecasts", None) else self.intervals

    def within(self, horizon: float | None = None) -> Self:
        """Of a model of time to an event one of kind "binary", of the same weights: whether it comes within a horizon.

        Args:
            horizon: in the unit of the series' time; default: the model's own.
        """
        one = copy.copy(self)
        one._modules = {**self._modules, "readout": self.readout.within(horizon)}
        one.outputs = 1
        return one

    def fit_scales(self, batch: SeriesBatch, times: Tensor | None = None) -> Self:
        """Learn from training series how the model sees them: its scales, and the names of its channels.

        Args:
            batch: training series alone.
            times: where they will be asked about, (stream, query), NaN behind a stream's last; default: at rows.

        Returns:
            The model itself.
        """
        self.encoding.fit(batch)
        return self

    def frozen(self) -> Any:
        """The model as it is now, in eval mode, for following streams: what is done to this one later is not seen."""
        return copy.deepcopy(self).eval().requires_grad_(False)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, *more: Any
    ) -> None:
        own = {prefix + name for name in self.state_dict()}
        for name in [name for name in state_dict if name.startswith(prefix) and name not in own]:
            state_dict[prefix + present_name(name[len(prefix) :])] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *more)

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
        for note in notes:
            warnings.warn(note, SchemaWarning, stacklevel=3)
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
            for note in notes:
                warnings.warn(note, SchemaWarning, stacklevel=3)
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
    converted = batch.to(dtype=dtype)
    if bool((wild := converted.values.isinf()).any()):
        stream, row, channel = (int(i) for i in wild.nonzero()[0])
        raise SeriesError(
            f"stream {batch.streams[stream]!r}, row {row}, channel '{batch.channels[channel]}': the "
            f"value {float(batch.values[stream, row, channel]):g} is beyond {dtype}, the model's: "
            "use NaN for what was not observed, or model.double()."
        )
    if (
        converted.static is not None
        and batch.static is not None
        and bool(converted.static.isinf().any())
    ):
        stream, feature = (int(i) for i in converted.static.isinf().nonzero()[0])
        raise SeriesError(
            f"stream {batch.streams[stream]!r}, static feature '{batch.features[feature]}' is "
            f"{float(batch.static[stream, feature]):g}, which is beyond {dtype}, the model's: use "
            "other units, or model.double()."
        )
    return converted


MOVED = {"head.": "readout.", "steps.": "readout.steps.", "encoding.ramps.": "readout.ramps."}
"""Where the tensors of models saved by 0.1 are now."""


def present_name(name: str) -> str:
    """The name of a model's tensor, from that in a file of any version."""
    for before, now in MOVED.items():
        if name.startswith(before):
            return now + name[len(before) :]
    return name


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
