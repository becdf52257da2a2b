"""`NeuralCDE`: initial map, vector field along a control path, readout; offline and online."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from onlinecde import controls
from onlinecde.controls import Encoding, Measurability, Path, RectilinearPath
from onlinecde.controls.fill import count_dtype, last_observed
from onlinecde.controls.path import query_times, rows_at
from onlinecde.models import legs, live
from onlinecde.models.channel_dropout import drop_channels
from onlinecde.models.contract import (
    OnlineModel,
    StateError,
    StreamState,
    as_numbers,
    check_asked,
    check_conflict,
    check_observation,
    check_question,
    per_stream,
)
from onlinecde.models.explain import (
    Explanation,
    StepExplanation,
    explain_path,
    explain_step,
    in_eval_mode,
)
from onlinecde.models.heads import Head, Kind
from onlinecde.models.steps import Steps
from onlinecde.series import SeriesBatch
from onlinecde.solvers import MLPVectorField, Solver, VectorField, solve_with
from onlinecde.solvers.fields import Activation, as_field, is_linear

Control = Literal["rectilinear", "hermite", "linear", "natural_cubic"]
CONTROLS = {
    "rectilinear": (controls.rectilinear, Measurability.CONTINUOUS),
    "hermite": (controls.hermite, Measurability.DISCRETE),
    "linear": (controls.linear, Measurability.DISCRETE),
    "natural_cubic": (controls.natural_cubic, Measurability.OFFLINE),
}

READ = 16_384
"""Rows that a GPU's readout takes in at once, outside training."""


@dataclass(frozen=True, eq=False)
class CDEState(StreamState):
    """All a stream's past comes to: z, its last row, its counts and its last time.

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


class NeuralCDE(OnlineModel[CDEState]):
    """`z(t) = zeta(static, X(t0)) + integral of f(z) dX`, read out by a head.

    With the rectilinear control (the default) it is continuously online: it answers at any time
    from the past alone, and one observation costs the same whatever the history.

    `field_sees_path` makes the field f(z, X) (still a CDE: X is part of the state); `rank` makes
    its columns mixtures of that many shared ones; `restoring` is the rate at which z, to begin
    with, is pulled back to 0 as time passes and counts grow; `readout_sees_path` reads out (z, X(t));
    `static_in_path` makes static features part of X, so that field and readout see them all along
    and not z(t0) alone; `readout_ramps` shows the readout each number of X, and how long ago each
    channel was observed, as itself and as that many ramps between quantiles; `readout_width` makes the
    readout a small MLP, with `readout_dropout` in training and as the mean of `readout_members` that
    share their weights; `readout_steps` has room for so many steps of single numbers that the readout
    sees, whose log-odds are averaged with its own (`Steps`, laid by `fit`); `channel_dropout` hides
    whole channels of a stream, never static features, in training. `gain`, `clip`, `count_scale`, `count_gain`
    and `bounded`, with which time, and counts where they are seen, stop growing, belong to the `Encoding`; fit it on
    training series with `model.encoding.fit(train)`. Solver settings as in `solve`.

    >>> model = NeuralCDE(channels=2, hidden=8, width=16, outputs=1)
    >>> state = model.observe(model.init_state(), t=0.0, x=[[36.6, float("nan")]])
    >>> model.predict(state, t=1.5).shape
    torch.Size([1, 1])
    """

    weights_alone = ("encoding",)
    encodes_by_call = True

    def __init__(
        self,
        channels: int,
        hidden: int = 64,
        width: int = 64,
        depth: int = 2,
        outputs: int = 1,
        control: Control = "rectilinear",
        counts: bool = True,
        static: int = 0,
        *,
        kind: Kind = "regression",
        activation: Activation = "relu",
        field_sees_path: bool = False,
        rank: int | None = None,
        restoring: float = 0.0,
        readout_sees_path: bool = False,
        static_in_path: bool = False,
        readout_ramps: int = 0,
        readout_width: int | None = None,
        readout_dropout: float = 0.0,
        readout_members: int = 1,
        readout_steps: int = 0,
        channel_dropout: float = 0.0,
        gain: float = 1.0,
        clip: float | None = None,
        count_scale: Literal["linear", "log"] = "linear",
        count_gain: float = 1.0,
        bounded: bool = False,
        method: str = "rk4",
        steps: int = 1,
        max_step: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        step_control: Literal["stream", "batch"] = "stream",
        max_steps: int = 10_000,
        gradient: Literal["exact", "backprop", "adjoint"] = "exact",
        backend: Literal["auto", "torch", "cpu", "gpu"] = "auto",
        precision: Literal["highest", "high"] = "highest",
    ) -> None:
        super().__init__()
        if hidden < 1:
            raise ValueError(f"hidden is {hidden}: give at least 1.")
        if static < 0:
            raise ValueError(f"static is {static}: give 0 or more.")
        if control not in CONTROLS:
            raise ValueError(f"control is {control!r}: choose one of {', '.join(CONTROLS)}.")
        if static_in_path and static < 1:
            raise ValueError(
                "static_in_path is for static features, and static is 0: leave it out."
            )
        if readout_ramps and not readout_sees_path:
            raise ValueError("readout_ramps are of X: give readout_sees_path=True too.")
        if readout_dropout and readout_width is None:
            raise ValueError("readout_dropout is for an MLP: give readout_width too.")
        if readout_steps and not readout_sees_path:
            raise ValueError("readout_steps are of X: give readout_sees_path=True too.")
        if readout_steps and (kind != "binary" or outputs != 1):
            raise ValueError("readout_steps are of log-odds: give kind='binary' and one output.")
        if not 0 <= channel_dropout < 1:
            raise ValueError(f"channel_dropout is {channel_dropout}: give a share from 0 up to 1.")
        if not 0 <= restoring < float("inf"):
            raise ValueError(f"restoring is {restoring}: give a rate of 0 or more.")
        if bounded and control != "rectilinear":
            raise ValueError("bounded is for the rectilinear control: leave it out.")
        if max_step is not None and control != "rectilinear":
            raise ValueError(
                "max_step is for the time legs of the rectilinear control: give steps."
            )
        self.channels, self.hidden, self.outputs = channels, hidden, outputs
        self.static, self.control, self.counts = static, control, counts
        self.channel_dropout, self.readout_sees_path = channel_dropout, readout_sees_path
        self.static_in_path = static_in_path
        self.encoding = Encoding(
            channels,
            counts,
            static=static if static_in_path else 0,
            ramps=readout_ramps,
            gain=gain,
            clip=clip,
            count_scale=count_scale,
            count_gain=count_gain,
            bounded=bounded,
        )
        v = self.encoding.path_channels
        self.initial = nn.Linear(v if static_in_path else static + v, hidden)
        self.field = MLPVectorField(
            hidden,
            v,
            width,
            depth,
            activation,
            sees_path=field_sees_path,
            rank=rank,
            bounded_counts=self.encoding.value_channels if bounded and counts else 0,
        )
        if restoring:
            grow = range(1 + self.encoding.value_channels, v)
            self.field.start_restoring([0, *grow], restoring)
        seen = v if readout_sees_path else 0
        if self.encoding.ramps is not None:
            seen = self.encoding.ramps.outputs
        self.head = Head(
            hidden + seen, outputs, kind, readout_width, readout_dropout, readout_members
        )
        told = v if self.encoding.ramps is None else self.encoding.ramps.inputs
        self.steps = Steps(told, readout_steps) if readout_steps else None
        self.solver = Solver(
            method,
            steps=steps,
            max_step=max_step,
            rtol=rtol,
            atol=atol,
            step_control=step_control,
            max_steps=max_steps,
            gradient=gradient,
            backend=backend,
            precision=precision,
        )
        self.config = {
            "channels": channels,
            "hidden": hidden,
            "width": width,
            "depth": depth,
            "outputs": outputs,
            "control": control,
            "counts": counts,
            "static": static,
            "kind": kind,
            "activation": activation,
            "field_sees_path": field_sees_path,
            "rank": rank,
            "restoring": restoring,
            "readout_sees_path": readout_sees_path,
            "static_in_path": static_in_path,
            "readout_ramps": readout_ramps,
            "readout_width": readout_width,
            "readout_dropout": readout_dropout,
            "readout_members": readout_members,
            "readout_steps": readout_steps,
            "channel_dropout": channel_dropout,
            "gain": gain,
            "clip": clip,
            "count_scale": count_scale,
            "count_gain": count_gain,
            **({"bounded": True} if bounded else {}),
            "method": method,
            "steps": steps,
            "max_step": max_step,
            "rtol": rtol,
            "atol": atol,
            "step_control": step_control,
            "max_steps": max_steps,
            "gradient": gradient,
            "backend": backend,
            "precision": precision,
        }

    @property
    def measurability(self) -> Measurability:
        """CONTINUOUS, DISCRETE (where no channel has gaps) or OFFLINE, by the control."""
        return CONTROLS[self.control][1]

    def path(self, batch: SeriesBatch) -> Path:
        """The control path of a batch, in the model's units."""
        return CONTROLS[self.control][0](self.prepare(batch), encoding=self.encoding)

    @property
    def vector_field(self) -> VectorField:
        """The field as solvers take it: `field` itself, or a plain module z -> (stream, hidden, channel)."""
        return as_field(self.field, self.hidden, self.encoding.path_channels)

    def start(self, path: Path, static: Tensor | None) -> Tensor:
        """z at the first row, (stream, hidden)."""
        return self.begin(path.rows[:, 0], static)

    def begin(self, row: Tensor, static: Tensor | None) -> Tensor:
        """z of streams whose first row is X = row (stream, path channel)."""
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

    def forward(self, batch: SeriesBatch, at: Any = None, *, final: bool = False) -> Tensor:
        check_asked(at, final)
        batch = self.prepare(batch)
        if self.training and self.channel_dropout:
            batch = drop_channels(batch, self.channel_dropout)
        path = self.path(batch)
        field, z0 = self.vector_field, self.start(path, batch.static)
        stamps = self.stamps(batch)
        if final or at is None:
            view = self.view(path.rows, path.times, stamps)
            if final:
                z = solve_with(self.solver, path, field, z0, outputs="end").z
                return self.read(z, None if view is None else view[:, -1])
            z = solve_with(self.solver, path, field, z0).z
            return self._read_rows(z, view, path.lengths)
        clock = query_times(at, len(batch), path.times.device)
        row = rows_at(path.times, path.lengths, clock, path.streams)
        x = _pick(path.rows, row)
        stamps = None if stamps is None else _pick(stamps, row)
        if isinstance(path, RectilinearPath):
            z = solve_with(self.solver, path, field, z0, at=clock).z
            x = torch.cat([path.scale_time(clock)[:, :, None].to(x), x[:, :, 1:]], 2)
            return self.read(z, self.view(x, clock, stamps))
        # Between rows the next one is not known yet: what was said after the last row stands.
        z = _pick(solve_with(self.solver, path, field, z0).z, row)
        return self.read(z, self.view(x, path.times.gather(1, row), stamps))

    def stamps(self, batch: SeriesBatch) -> Tensor | None:
        """When each channel was last observed, (stream, row, channel) float64, where the readout asks."""
        if self.encoding.ramps is None:
            return None
        return last_observed(batch.observed, batch.times)

    def view(self, x: Tensor, times: Tensor, stamps: Tensor | None) -> Tensor | None:
        """What the readout sees of the path at X (..., path channel): X, and how long ago each channel was
        observed; None where it sees z alone. times (...) and stamps (..., channel) as observed."""
        if not self.readout_sees_path:
            return None
        x = self.encoding.seen(x)
        return x if stamps is None else torch.cat([x, self.encoding.since(times, stamps)], -1)

    def read(self, z: Tensor, view: Tensor | None) -> Tensor:
        """Outputs of states z (..., hidden) with what the readout sees of the path besides, `view`."""
        if z.is_cuda and not torch.is_grad_enabled():
            return self._read_once(z, view)
        return self._beside(self.head(self.head_inputs(z, view)), view)

    def _beside(self, outputs: Tensor, view: Tensor | None) -> Tensor:
        """Outputs of the head with what the steps say; in training the head learns by itself."""
        if self.steps is None or view is None or self.training:
            return outputs
        return self.steps.beside(outputs, view)

    def _read_once(self, z: Tensor, view: Tensor | None) -> Tensor:
        """`read` rounded once, from float64: a GPU's products alone would round by the number of rows.

        A readout that sees ramps takes in a thousand numbers a row, so rows go through it in blocks.
        """
        tensors = [*self.head.named_parameters(), *self.head.named_buffers()]
        weights = {name: x.double() for name, x in tensors if x.is_floating_point()}
        states = z.flatten(0, -2).split(READ)
        views = [None] * len(states) if view is None else view.flatten(0, -2).split(READ)
        found = []
        for state, seen in zip(states, views, strict=True):
            inputs = self.head_inputs(state, seen).double()
            outputs = torch.func.functional_call(self.head, weights, (inputs,))
            found.append(self._beside(outputs, None if seen is None else seen.double()))
        return torch.cat(found).to(z.dtype).unflatten(0, z.shape[:-1])

    def _read_rows(self, z: Tensor, view: Tensor | None, lengths: Tensor) -> Tensor:
        """`read` at all rows (stream, row, ...); in training an MLP is spared the padding."""
        linear = getattr(self.head, "linear", False)
        if not self.training or linear or torch.compiler.is_compiling():
            return self.read(z, view)
        row = torch.arange(z.shape[1], device=z.device)
        real = row < lengths[:, None]
        found = self.read(z[real], None if view is None else view[real])
        # What stands in the padding repeats the last row.
        first = nn.functional.pad(lengths.cumsum(0), (1, 0))[:-1]
        return found[first[:, None] + row.minimum(lengths[:, None] - 1)]

    def head_inputs(self, z: Tensor, view: Tensor | None) -> Tensor:
        """What the head takes in."""
        if view is None:
            return z
        ramps = self.encoding.ramps
        return torch.cat([z, view if ramps is None else ramps(view)], -1)

    def init_state(self, streams: int = 1, static: Any = None) -> CDEState:
        if self.measurability is Measurability.OFFLINE:
            raise StateError(
                "the natural cubic control needs the whole series, so this model cannot run "
                "online: use control='rectilinear'."
            )
        features = self.prepare_static(streams, static)
        z = torch.zeros(streams, self.hidden, dtype=self.dtype, device=self.device)
        x = torch.zeros(streams, self.channels, dtype=self.dtype, device=self.device)
        counts = x.to(count_dtype(self.dtype))
        if self.static_in_path:
            # Static features stand in X from the beginning: no row will move them.
            assert features is not None
            told = self.encoding.scale_values(torch.cat([x, features], 1))[:, self.channels :]
            x, counts = torch.cat([x, told], 1), torch.cat([counts, torch.ones_like(told)], 1)
        never = torch.full((streams,), torch.nan, dtype=torch.float64, device=self.device)
        stamps = None
        if self.encoding.ramps is not None:
            stamps = never[:, None].expand(-1, self.channels)
        observed = torch.zeros_like(x, dtype=torch.bool)
        return CDEState(z, z, never, x, counts, observed, x, never, features, stamps)

    def observe(self, state: CDEState, t: Any, x: Any) -> CDEState:
        x = self.row_of(x, len(state))
        fast = live.observe(self, state, t, x)
        if fast is not None:
            return fast
        clock = per_stream(t, len(state), self.device)
        values = as_numbers(x, "x", self.dtype, self.device)
        check_observation(state.time, clock, values, self.channels)
        if self.control != "rectilinear":
            self._check_complete(state, clock, values)
        scaled = self.scale(values)
        again = (clock == state.time)[:, None]
        check_conflict(again & ~scaled.isnan() & state.observed & (scaled != state.values))
        return self.take(state, clock, scaled)

    def scale(self, x: Tensor) -> Tensor:
        """What was observed, (stream, channel), in the model's units; of static features in X, nothing."""
        if self.static_in_path:
            x = nn.functional.pad(x, (0, self.static), value=torch.nan)
        return self.encoding.scale_values(x)

    def take(self, state: CDEState, clock: Tensor, scaled: Tensor) -> CDEState:
        """`observe` for checked times (stream,) and values as `scale` gives them; no branches on data."""
        new = state.time.isnan()
        again = clock == state.time
        here = ~scaled.isnan()
        merged = again[:, None]
        observed = torch.where(merged, state.observed | here, here)
        base = torch.where(merged, state.previous, state.values)
        base_counts = state.counts - (merged & state.observed).to(state.counts.dtype)
        # In a merge, channels observed before at this instant keep their value.
        told = torch.where(here, scaled, state.values)
        values = torch.where(observed, told, base)
        counts = base_counts + observed.to(base_counts.dtype)
        began = torch.where(again, state.previous_time, state.time)
        first = began.isnan()
        row = self.row(clock, values, counts)
        z0 = self.begin(row, state.static)
        start = torch.where(merged, state.before, state.z)
        since = torch.where(first, clock, began)
        if self.control == "rectilinear":
            # In a merge time has come already: its leg has no length.
            since = torch.where(again, clock, since)
            before, z = legs.row_legs(
                self, start, since, clock, self.row(since, base, base_counts), row, observed
            )
        else:
            before = start
            old = self.row(since, base, base_counts)
            z = legs.piece(self, start, clock, old, row, self._slope(state, old))
        z = torch.where(first[:, None], z0, z)
        before = torch.where(first[:, None], z0, before)
        return CDEState(
            z=z,
            before=before,
            time=clock,
            values=values,
            counts=counts,
            observed=observed,
            previous=base,
            previous_time=torch.where(new, state.time, began),
            static=state.static,
            stamps=self.stamps_before(state, again),
        )

    def stamps_before(self, state: CDEState, again: Tensor) -> Tensor | None:
        """When each channel was last observed before the row to come, which (stream,) may be the last again."""
        now = self.stamps_after(state)
        if state.stamps is None or now is None:
            return None
        return torch.where(again[:, None], state.stamps, now)

    def stamps_after(self, state: CDEState) -> Tensor | None:
        """When each channel was last observed, the last row included."""
        if state.stamps is None:
            return None
        observed = state.observed[:, : self.channels]
        return torch.where(observed, state.time[:, None], state.stamps)

    def row(self, clock: Tensor, values: Tensor, counts: Tensor) -> Tensor:
        """X at a row, (stream, path channel)."""
        parts = [self.encoding.scale_time(clock)[:, None].to(values.dtype), values]
        if self.counts:
            parts.append(self.encoding.scale_counts(counts).to(values.dtype))
        return torch.cat(parts, 1)

    def _slope(self, state: CDEState, old: Tensor) -> Tensor | None:
        """For Hermite, dX/ds at the last row; NaN where it has none yet (the piece is straight)."""
        if self.control != "hermite":
            return None
        earlier = self.row(
            state.previous_time, state.previous, state.counts - state.observed.to(state.counts)
        )
        return torch.where(state.previous_time.isnan()[:, None], torch.nan, old - earlier)

    def _check_complete(self, state: CDEState, clock: Tensor, values: Tensor) -> None:
        gap = values.isnan() & (state.counts[:, : self.channels] > 0)
        if bool(gap.any()):
            stream, channel = (int(i) for i in gap.nonzero()[0])
            raise StateError(
                f"stream {stream}, channel {channel} is missing: the {self.control} control would "
                "fill it from the future. Use control='rectilinear' for series with gaps."
            )
        if bool((again := clock == state.time).any()):
            raise StateError(
                f"stream {int(again.nonzero()[0])}: its row at {float(clock[again][0])!r} is taken: "
                f"the {self.control} control takes each row whole. Use control='rectilinear'."
            )

    def predict(self, state: CDEState, t: Any = None) -> Tensor:
        z = live.ahead(self, state, t)
        if z is not None and not self.readout_sees_path:
            return self.read(z, None)
        clock = state.time if t is None else per_stream(t, len(state), self.device)
        if z is not None:
            x = self.row(clock, state.values, state.counts)
            return self.read(z, self.view(x, clock, self.stamps_after(state)))
        check_question(state.time, clock)
        return self.say(state, clock)

    def say(self, state: CDEState, clock: Tensor) -> Tensor:
        """`predict` for checked times (stream,); no branches on data."""
        stamps = self.stamps_after(state)
        if self.control != "rectilinear":
            here = self.row(state.time, state.values, state.counts)
            return self.read(state.z, self.view(here, state.time, stamps))
        if not self.readout_sees_path and not self.vector_field.sees_path:
            return self.read(legs.time_leg(self, state.z, state.time, clock, None, None), None)
        here = self.row(state.time, state.values, state.counts)
        there = torch.cat([self.encoding.scale_time(clock)[:, None].to(here), here[:, 1:]], 1)
        z = legs.time_leg(self, state.z, state.time, clock, here, there)
        return self.read(z, self.view(there, clock, stamps))

    def explain(self, batch: SeriesBatch) -> Explanation:
        """What each event and each stretch of time added to the outputs, row by row, with nothing left over.

        The outputs are those in eval mode, whatever mode the model is in.
        """
        batch = self.prepare(batch)
        path = self.path(batch)
        with torch.no_grad(), in_eval_mode(self):
            return explain_path(self, path, self.start(path, batch.static), self.stamps(batch))

    def explain_observation(self, state: CDEState, t: Any, x: Any) -> StepExplanation:
        """What observing x at t adds to the outputs of each stream: by time and by each channel.

        For more events of an instant already begun, the whole instant is explained anew.
        """
        after = self.observe(state, t, x)
        with torch.no_grad(), in_eval_mode(self):
            return explain_step(self, state, after)


def _pick(of_rows: Tensor, row: Tensor) -> Tensor:
    """Of (stream, row, number) the rows (stream, question)."""
    return of_rows.gather(1, row[:, :, None].expand(-1, -1, of_rows.shape[2]))
