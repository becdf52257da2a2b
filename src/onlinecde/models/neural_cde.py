"""`NeuralCDE`: encoding, field, readout and solver, composed; offline and online."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from onlinecde import controls
from onlinecde.controls import Measurability, Path, RectilinearPath
from onlinecde.controls.fill import last_observed
from onlinecde.controls.path import query_times, rows_at
from onlinecde.models import online, past
from onlinecde.models.base import OnlineModel, arguments, check_asked
from onlinecde.models.channel_dropout import drop_channels
from onlinecde.models.explain import (
    Explanation,
    StepExplanation,
    explain_path,
    explain_step,
    in_eval_mode,
)
from onlinecde.models.forest import Forest
from onlinecde.models.frozen import FrozenCDE, packed, predict
from onlinecde.models.parts import (
    Part,
    make_encoding,
    make_field,
    make_readout,
    make_solver,
    recorded,
)
from onlinecde.models.readout import behind, is_plain_readout, read, read_rows
from onlinecde.models.state import CDEState, StateError
from onlinecde.series import SeriesBatch
from onlinecde.series.empty_rows import filled_queries
from onlinecde.solvers import MLPField, Solver, VectorField, solve_with
from onlinecde.solvers.fields import as_field, is_linear
from onlinecde.solvers.segments import PathSegments

Control = Literal["rectilinear", "hermite", "linear", "natural_cubic"]
CONTROLS = {
    "rectilinear": (controls.rectilinear, Measurability.CONTINUOUS),
    "hermite": (controls.hermite, Measurability.DISCRETE),
    "linear": (controls.linear, Measurability.DISCRETE),
    "natural_cubic": (controls.natural_cubic, Measurability.OFFLINE),
}

STREAMS = 2_000
"""Streams at most, evenly spaced, that the readout's quantiles are learned from."""


class NeuralCDE(OnlineModel[CDEState]):
    """`z(t) = zeta(static, X(t0)) + integral of f(z) dX`, read out at any time.

    With the rectilinear control (the default) it is continuously online: it answers at any time
    from the past alone, and one observation costs the same whatever the history. Fit its scales on
    training series with `model.fit_scales(train)`.

    Args:
        channels: how many channels are observed.
        hidden: size of z.
        outputs: how many outputs there are.
        static: how many static features a stream has; the initial map takes them in.
        control: the path through the observations.
        counts: whether the path counts the observations of each channel.
        encoding: settings of `Encoding` (gain, clip, count_scale, count_gain, bounded) and `static_in_path`, which
            makes static features channels of X for field and readout to see; or an `Encoding`.
        field: settings of `MLPField` (width, depth, activation, final, sees_path, rank) and `restoring`, the rate at
            which z is at first pulled back to 0 as time passes and counts grow; or a module z (stream, hidden) ->
            (stream, hidden, path channel). One with `sees_path = True` is called with X (stream, path channel) too.
        readout: settings of `Readout` (kind, width, dropout, members, ramps, steps, direct) and `sees_path`; or a
            module (..., hidden) -> (..., output), which with `sees_path = True` gets X behind z, (..., hidden + path
            channel), and may say its `kind`.
        solver: settings of `Solver`; or one.
        initial: a module (stream, static + path channel) -> (stream, hidden), z at the first row; default: linear.
        channel_dropout: share of a stream's channels hidden in training, never of static features.

    Raises:
        ValueError: settings that do not go together.
        TypeError: a setting that a part does not have.

    >>> model = NeuralCDE(channels=2, hidden=8, field={"width": 16})
    >>> state = model.observe(model.init_state(), t=0.0, x=[[36.6, float("nan")]])
    >>> model.predict(state, t=1.5).shape
    torch.Size([1, 1])
    """

    field: MLPField
    """or a module of one's own"""
    weights_alone = ("encoding",)
    encodes_by_call = True

    def __init__(
        self,
        channels: int,
        hidden: int = 64,
        outputs: int = 1,
        static: int = 0,
        control: Control = "rectilinear",
        counts: bool = True,
        *,
        encoding: Part = None,
        field: Part = None,
        readout: Part = None,
        solver: Mapping[str, Any] | Solver | None = None,
        initial: nn.Module | None = None,
        channel_dropout: float = 0.0,
    ) -> None:
        config = arguments(locals())
        super().__init__()
        if hidden < 1:
            raise ValueError(f"hidden is {hidden}: give at least 1.")
        if static < 0:
            raise ValueError(f"static is {static}: give 0 or more.")
        if control not in CONTROLS:
            raise ValueError(f"control is {control!r}: choose one of {', '.join(CONTROLS)}.")
        if not 0 <= channel_dropout < 1:
            raise ValueError(f"channel_dropout is {channel_dropout}: give a share from 0 up to 1.")
        self.channels, self.hidden, self.outputs, self.static = channels, hidden, outputs, static
        self.control, self.counts, self.channel_dropout = control, counts, channel_dropout
        records = {"initial": recorded(initial)}
        self.encoding, records["encoding"] = make_encoding(encoding, channels, static, counts)
        if self.encoding.bounded and control != "rectilinear":
            raise ValueError("bounded is for the rectilinear control: leave it out.")
        seen = self.encoding.path_channels + (0 if self.static_in_path else static)
        self.initial = nn.Linear(seen, hidden) if initial is None else initial
        self.field, records["field"] = make_field(field, hidden, self.encoding)
        self.readout, records["readout"] = make_readout(readout, hidden, outputs, self.encoding)
        self.solver, records["solver"] = make_solver(solver, control)
        self.config = config | records

    @property
    def measurability(self) -> Measurability:
        """CONTINUOUS, DISCRETE (where no channel has gaps) or OFFLINE, by the control."""
        return CONTROLS[self.control][1]

    @property
    def static_in_path(self) -> bool:
        """Whether static features are channels of X."""
        return self.encoding.static > 0

    def fit_scales(self, batch: SeriesBatch, times: Tensor | None = None) -> Self:
        super().fit_scales(batch)
        ramps = getattr(self.readout, "ramps", None)
        if ramps is None:
            return self
        every = slice(None, None, -(-len(batch) // STREAMS))
        some = batch[every].to(self.device)
        path, asked, row = controls.rectilinear(some, encoding=self.encoding), some.real, None
        clock = some.times
        if times is not None:
            asked, clock = ~times[every].isnan(), filled_queries(some, times[every])
            row = rows_at(some.times, some.rows, clock, some.streams)
        view = self._seen_at(path, self.stamps(some), clock, row)
        assert view is not None
        # What was never observed is not known, and 0 only in X.
        ever = path.observed.cumsum(1) > 0
        ever = ever if row is None else _pick(ever, row)
        known = torch.ones_like(view, dtype=torch.bool)
        known[:, :, 1 : 1 + ever.shape[2]] = ever
        known[:, :, self.encoding.path_channels :] = ever[:, :, : self.channels]
        ramps.fit(torch.where(known, view, torch.nan)[asked.to(view.device)])
        return self

    def path(self, batch: SeriesBatch) -> Path:
        """The control path of a batch, in the model's units."""
        return CONTROLS[self.control][0](self.prepare(batch), encoding=self.encoding)

    @property
    def vector_field(self) -> VectorField:
        """The field as solvers take it: `field` itself, or a plain module z -> (stream, hidden, channel)."""
        return as_field(self.field, self.hidden, self.encoding.path_channels)

    def begin(self, row: Tensor, static: Tensor | None) -> Tensor:
        """z (stream, hidden) of streams whose first row is X = row (stream, path channel)."""
        row = self.encoding.seen(row)
        inputs = row if static is None or self.static_in_path else torch.cat([static, row], 1)
        if not is_linear(self.initial):
            z = self.initial(inputs)
            if z.shape != (wanted := (len(row), self.hidden)):
                raise ValueError(
                    f"the initial map returned shape {tuple(z.shape)}, but (stream, hidden) is {wanted}."
                )
            return z.to(row.dtype)
        # In float64, for its rounding depends on the number of streams, and what follows from it
        # would carry that on; rounded once, it is the same in a batch, alone and online.
        weight, bias = self.initial.weight.double(), self.initial.bias
        bias = None if bias is None else bias.double()
        return nn.functional.linear(inputs.double().contiguous(), weight, bias).to(row.dtype)

    def stamps(self, batch: SeriesBatch) -> Tensor | None:
        """When each channel was last observed, (stream, row, channel) float64, where the readout asks."""
        if not getattr(self.readout, "sees_ages", False):
            return None
        return last_observed(batch.observed, batch.times)

    def ages(self, times: Tensor, stamps: Tensor | None) -> Tensor | None:
        """How long ago each channel was observed, (..., channel), from times (...) and stamps, where there are any."""
        return None if stamps is None else self.encoding.since(times, stamps)

    def seen(self, x: Tensor, ages: Tensor | None) -> Tensor | None:
        """What the readout sees besides z, (..., number), of X (..., path channel) and ages; None for nothing."""
        if not getattr(self.readout, "sees_path", False):
            return None
        x = self.encoding.seen(x)
        return x if ages is None else torch.cat([x, ages], -1)

    def seen_of(self, batch: SeriesBatch, times: Tensor | None = None) -> Tensor | None:
        """What the readout sees of prepared series at rows, or at query times, (stream, row, number); None for nothing.

        times (stream, query), NaN behind a stream's last.
        """
        path, clock, row = self.path(batch), batch.times, None
        if times is not None:
            clock = filled_queries(batch, times)
            row = rows_at(path.times, path.lengths, clock, path.streams)
        return self._seen_at(path, self.stamps(batch), clock, row)

    def _seen_at(
        self, path: Path, stamps: Tensor | None, clock: Tensor, row: Tensor | None
    ) -> Tensor | None:
        """What the readout sees at `clock` (stream, query), of which `row` is the last row; None: at all rows."""
        if row is None:
            return self.seen(path.rows, self.ages(path.times, stamps))
        x, stamps = _pick(path.rows, row), None if stamps is None else _pick(stamps, row)
        if isinstance(path, RectilinearPath):
            x = torch.cat([path.scale_time(clock)[:, :, None].to(x), x[:, :, 1:]], 2)
        else:
            clock = path.times.gather(1, row)
        return self.seen(x, self.ages(clock, stamps))

    @property
    def trees(self) -> Forest | None:
        """The trees whose outputs are averaged with the readout's own, where `fit` has grown some."""
        return getattr(self.readout, "trees", None)

    def plant(self, trees: Forest) -> None:
        """Average the outputs with those of trees over `past_along`, outside training, from now on.

        Raises:
            ValueError: the model has no place for trees, or they are of other numbers or outputs.
        """
        config = self.config["readout"]
        if not is_plain_readout(self.readout) or self.control != "rectilinear" or "class" in config:
            raise ValueError("trees go beside the usual readout, on rectilinear paths.")
        if trees.outputs != self.outputs:
            raise ValueError(f"the trees have {trees.outputs} outputs, the model {self.outputs}.")
        trees.check(self.told)
        self.readout.trees = trees.to(self.device)
        for one in (config, self.readout.config):
            one["trees"] = [trees.trees, trees.nodes, trees.depth]

    def uproot(self) -> None:
        """Take the trees away."""
        self.readout.trees = None
        for one in (self.config["readout"], self.readout.config):
            one["trees"] = None

    @property
    def told(self) -> int:
        """How many numbers trees are told (`past_along`)."""
        return len(past.STATISTICS) * self.channels + self.static + 1

    def past_along(self, path: Path, static: Tensor | None, row: Tensor, clock: Tensor) -> Tensor:
        """Running statistics of a path at `clock` (stream, query), of which `row` is the last row: what trees are told.

        (stream, query, number): `past.STATISTICS` of all channels in the model's units, static features, scaled time.
        """
        assert isinstance(path, RectilinearPath)
        values = path.rows[:, :, 1 : 1 + self.channels]
        observed = path.observed[:, :, : self.channels]
        also = self.beside_past(clock, static)
        return past.numbers_along(path.times, values, observed, row, clock, also)

    def beside_past(self, clock: Tensor, static: Tensor | None) -> Tensor:
        """What trees are told besides statistics at `clock` (stream, ...): static features and scaled time, float32."""
        time = ((clock - self.encoding.time_shift) / self.encoding.time_scale)[..., None].float()
        if static is None:
            return time
        static = static.float() if clock.ndim == 1 else static[:, None].float()
        return torch.cat([static.expand(*clock.shape, -1), time], -1)

    def _told_along(
        self,
        path: Path,
        static: Tensor | None,
        row: Tensor | None = None,
        clock: Tensor | None = None,
    ) -> Tensor | None:
        """`past_along` where there are trees to be told, at all rows by default."""
        if self.trees is None or self.training:
            return None
        if row is None:
            row = torch.arange(path.times.shape[1], device=path.times.device)
            row = row.expand(path.times.shape)
        return self.past_along(path, static, row, path.times if clock is None else clock)

    def read(self, z: Tensor, seen: Tensor | None, past: Tensor | None = None) -> Tensor:
        """Outputs of z (..., hidden) with what the readout sees of the path besides, and its trees of the past."""
        return read(self.readout, z, seen, past)

    def forward(self, batch: SeriesBatch, at: Any = None, *, final: bool = False) -> Tensor:
        check_asked(at, final)
        batch = self.prepare(batch)
        last = self.last_values(batch)
        if self.training and self.channel_dropout:
            batch = drop_channels(batch, self.channel_dropout)
        path, stamps = self.path(batch), self.stamps(batch)
        if at is not None:
            return self._at_times(path, batch.static, stamps, at, last)
        ages, row = self.ages(path.times, stamps), None
        if final:
            row = path.lengths[:, None] - 1
        clock = None if row is None else path.times.gather(1, row)
        told = self._told_along(path, batch.static, row, clock)
        return self.along(
            path, path.rows, batch.static, ages, told, lengths=path.lengths, final=final, last=last
        )

    def along(
        self,
        path: Path | PathSegments,
        rows: Tensor,
        static: Tensor | None,
        ages: Tensor | None,
        told: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        final: bool = False,
        last: Tensor | None = None,
    ) -> Tensor:
        """Outputs at a path's rows (stream, row, output), or (stream, output) at its last.

        Args:
            path: what z is solved along.
            rows: X at its rows, (stream, row, path channel).
            static: (stream, feature).
            ages: how long ago each channel was observed, (stream, row, channel), where the readout sees it.
            told: `past_along` at the rows asked for, where there are trees.
            lengths: (stream,) rows that are real; None: all are read, padding too.
            final: whether the last row alone is asked for.
            last: (stream, row, forecast) last values, of forecasts.
        """
        z0, seen = self.begin(rows[:, 0], static), behind(self.seen(rows, ages), last)
        asked = "end" if final else "rows"
        z = solve_with(self.solver, path, self.vector_field, z0, outputs=asked).z
        if final:
            seen, told = (None if x is None else x[:, -1] for x in (seen, told))
            return self.read(z, seen, told)
        return read_rows(self.readout, z, seen, lengths, told)

    def _at_times(
        self,
        path: Path,
        static: Tensor | None,
        stamps: Tensor | None,
        at: Any,
        last: Tensor | None,
    ) -> Tensor:
        """Outputs at query times, (stream, query, output)."""
        clock = query_times(at, len(path.rows), path.times.device)
        row = rows_at(path.times, path.lengths, clock, path.streams)
        field, z0 = self.vector_field, self.begin(path.rows[:, 0], static)
        seen = self._seen_at(path, stamps, clock, row)
        seen = behind(seen, None if last is None else _pick(last, row))
        if isinstance(path, RectilinearPath):
            told = self._told_along(path, static, row, clock)
            return self.read(solve_with(self.solver, path, field, z0, at=clock).z, seen, told)
        # Between rows the next one is not known yet: what was said after the last row stands.
        return self.read(_pick(solve_with(self.solver, path, field, z0).z, row), seen)

    def init_state(self, streams: int = 1, static: Any = None) -> CDEState:
        if self.measurability is Measurability.OFFLINE:
            raise StateError(
                "the natural cubic control needs the whole series, so this model cannot run "
                "online: use control='rectilinear'."
            )
        return online.first_state(self, streams, self.prepare_static(streams, static))

    def observe(self, state: CDEState, t: Any, x: Any) -> CDEState:
        x = self.row_of(x, len(state))
        fast = packed(self)
        after = None if fast is None else fast.observe(self, state, t, x)
        return online.observe(self, state, t, x) if after is None else after

    def predict(self, state: CDEState, t: Any = None) -> Tensor:
        return predict(self, None if t is None else packed(self), state, t)

    def frozen(self) -> FrozenCDE:
        """The model as it is now, for following streams: immutable, and several times as fast an `observe`."""
        return FrozenCDE(self)

    def explain(self, batch: SeriesBatch) -> Explanation:
        """What each event and each stretch of time added to the outputs, row by row, with nothing left over.

        The outputs are those in eval mode, whatever mode the model is in.
        """
        batch = self.prepare(batch)
        path = self.path(batch)
        with torch.no_grad(), in_eval_mode(self):
            z0 = self.begin(path.rows[:, 0], batch.static)
            return explain_path(self, path, z0, self.stamps(batch), batch.static)

    def explain_observation(self, state: CDEState, t: Any, x: Any) -> StepExplanation:
        """What observing x at t adds to the outputs of each stream: by time and by each channel.

        For more events of an instant already begun, the whole instant is explained anew.
        """
        after = self.observe(state, t, x)
        with torch.no_grad(), in_eval_mode(self):
            return explain_step(self, state, after)


def _pick(of_rows: Tensor, row: Tensor) -> Tensor:
    """Of (stream, row, number) the rows (stream, query)."""
    return of_rows.gather(1, row[:, :, None].expand(-1, -1, of_rows.shape[2]))
