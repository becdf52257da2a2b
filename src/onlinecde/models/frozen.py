"""The live form of a `NeuralCDE`: weights packed for the fused kernels once, one observation at any cost of history."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.controls import Encoding
from onlinecde.controls.encoding import LINEAR
from onlinecde.kernels import cpu_unavailable
from onlinecde.models import online
from onlinecde.models.explain import StepExplanation
from onlinecde.models.state import CDEState, check_question, per_stream, real_cells
from onlinecde.solvers.backends.numba import kernel_tableau, pack, weights_of
from onlinecde.solvers.fields import is_plain
from onlinecde.solvers.segments import leg_steps

if TYPE_CHECKING:
    from onlinecde.kernels.cpu import PackedField
    from onlinecde.kernels.cpu import Tableau as KernelTableau
    from onlinecde.kernels.cpu.observation import Scaling
    from onlinecde.models.neural_cde import NeuralCDE
    from onlinecde.solvers import Solver


ONE_EACH = np.empty(0, np.int32)
"""One step on the time leg of every stream."""
LOG_COUNTS = {"linear": False, "log": True}
"""The count scales that the kernels know, and whether they take logarithms; others go the plain way."""


class FrozenCDE:
    """A `NeuralCDE` as it was when it was frozen, in eval mode: what is done to that model later is not seen.

    It takes the states of that model, and gives them. `NeuralCDE.observe` packs the weights anew at every call, for
    they may have changed; here that was done once.

    >>> from onlinecde.models import NeuralCDE
    >>> live = NeuralCDE(channels=2, hidden=8).frozen()
    >>> state = live.observe(live.init_state(), t=0.0, x=[[36.6, float("nan")]])
    >>> live.predict(state, t=1.5).shape
    torch.Size([1, 1])
    """

    def __init__(self, model: NeuralCDE) -> None:
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        with torch.no_grad():
            self._packed = packed(self._model)
        self.outputs, self.dtype, self.device = model.outputs, model.dtype, model.device

    def init_state(self, streams: int = 1, static: Any = None) -> CDEState:
        """The state of streams of which nothing was observed yet; static (stream, feature)."""
        return self._model.init_state(streams, static)

    def observe(self, state: CDEState, t: Any, x: Any) -> CDEState:
        """Take in what was observed at t, as `NeuralCDE.observe` does."""
        if type(x) is dict:
            x = self._model.row_of(x, len(state))
        if self._packed is not None:
            after = self._packed.observe(self._model, state, t, x)
            if after is not None:
                return after
        with torch.no_grad():
            return online.observe(self._model, state, t, self._model.row_of(x, len(state)))

    def observe_each(
        self, state: CDEState, t: Any, x: Any, largest: float
    ) -> tuple[CDEState, np.ndarray] | None:
        """`observe`, and (stream,) whether each new state has no number beyond `largest`, and none that is NaN.

        None where kernels do not apply or the input is not right. What one stream makes of its row never changes
        what another makes of its own.
        """
        after = None if self._packed is None else self._packed.advance(self._model, state, t, x)
        if after is None:
            return None
        z, _, values, *_ = after.arrays
        return after, (np.abs(z).max(1) <= largest) & (np.abs(values).max(1) <= largest)

    @torch.no_grad()
    def predict(self, state: CDEState, t: Any = None) -> Tensor:
        """What the model says at t, (stream, output), as `NeuralCDE.predict` does."""
        return predict(self._model, self._packed, state, t)

    def explain_observation(self, state: CDEState, t: Any, x: Any) -> StepExplanation:
        """What observing x at t adds to the outputs, as `NeuralCDE.explain_observation` does."""
        return self._model.explain_observation(state, t, x)


@dataclass(frozen=True)
class Packed:
    """The numbers of a model in the kernels' layout; its weights may change without these."""

    encoding: Encoding
    solver: Solver
    field: PackedField
    table: KernelTableau
    scaling: Scaling
    path_weight: np.ndarray | None
    dtype: np.dtype[Any]

    def drive(self, x: np.ndarray) -> np.ndarray:
        """What the field sees of X (stream, knot, path channel), (knot, stream, width).

        A product for each stream: one for all of them would round by how many there are.
        """
        assert self.path_weight is not None
        seen = self.encoding.seen(torch.from_numpy(x)).numpy() if self.encoding.bounded else x
        return np.matmul(seen, self.path_weight).transpose(1, 0, 2)

    def observe(self, model: NeuralCDE, state: CDEState, t: Any, x: Any) -> CDEState | None:
        """`NeuralCDE.observe` by the kernels; None where the input is not right, or the state runs away.

        The caller then takes the plain way, which says what is wrong.
        """
        after = self.advance(model, state, t, x)
        return after if after is not None and _finite(after.arrays[0]) else None

    def advance(self, model: NeuralCDE, state: CDEState, t: Any, x: Any) -> CDEState | None:
        """`observe`, whatever numbers come of it."""
        kernels = _kernels()
        try:
            z, *kept = state.arrays
            streams, channels = len(z), model.channels
            clock = _clock(t, streams)
            rows = np.ascontiguousarray(_cells(x, "x"), self.dtype)
        except (TypeError, ValueError, RuntimeError):
            return None
        if rows.shape != (streams, channels):
            return None
        if (wide := self.encoding.value_channels) > channels:
            # Static features in X are observed no more.
            observed = rows
            rows = np.full((streams, wide), np.nan, self.dtype)
            rows[:, :channels] = observed
        plan = kernels.empty_plan(streams, wide, self.encoding.counts, self.dtype)
        since = np.empty(streams)
        if not kernels.plan_observation(
            clock, rows, since, kernels.Held(*kept), plan, self.scaling
        ):
            return None
        if np.count_nonzero(plan.again):
            z = np.where(plan.again[:, None], state.before.numpy(), z)
        drive = None
        if self.path_weight is not None:
            between = plan.old.copy()
            between[:, 0] = plan.new[:, 0]
            drive = self.drive(np.stack([plan.old, between, plan.new], 1))
        time_steps = self._time_leg_steps(clock, since)
        if time_steps is None:
            return None
        before, z = kernels.advance(
            self.field,
            self.table,
            z,
            plan.dt,
            plan.pointer,
            plan.channel,
            plan.dx,
            time_steps=time_steps,
            drive=drive,
            steps=self.solver.steps,
            threads=_threads(streams),
        )
        if np.count_nonzero(plan.first):
            which = torch.from_numpy(plan.first)
            static = None if state.static is None else state.static[which]
            start = model.begin(torch.from_numpy(plan.new)[which], static)
            before[plan.first] = z[plan.first] = start.numpy()
        return _after(plan, z, before, state, _last_after(model, state, x))

    def ahead(self, model: NeuralCDE, state: CDEState, t: Any) -> Tensor | None:
        """z at t, a number or (stream,), by the kernels; None as for `observe`."""
        kernels = _kernels()
        time = state.time.numpy()
        try:
            clock = _clock(t, len(state))
        except (TypeError, ValueError, RuntimeError):
            return None
        if np.count_nonzero((clock >= time) & (clock < np.inf)) != len(clock):
            return None
        time_steps = self._time_leg_steps(clock, time)
        if time_steps is None:
            return None
        ends = np.empty((2, len(clock)))
        ends[0], ends[1] = clock, time
        now, then = kernels.scale_times(ends, self.scaling)
        drive = None
        if self.path_weight is not None:
            here = online.row(model, state.time, state.values, state.counts).numpy()
            there = here.copy()
            there[:, 0] = now
            drive = self.drive(np.stack([here, there], 1))
        z = kernels.advance_time(
            self.field,
            self.table,
            state.z.detach().numpy(),
            (now - then).astype(self.dtype),
            time_steps=time_steps,
            drive=drive,
            threads=_threads(len(state)),
        )
        return torch.from_numpy(z) if _finite(z) else None

    def _time_leg_steps(self, clock: np.ndarray, since: np.ndarray) -> np.ndarray | None:
        """Steps (stream,) on each time leg, as the kernels want them; None where they are too many."""
        solver = self.solver
        if solver.max_step is not None:
            return leg_steps(clock - since, solver.max_step)
        return ONE_EACH if solver.steps == 1 else np.full(clock.shape, solver.steps, np.int32)


@cache
def _kernels() -> Any:
    """What is called of the kernels, which are loaded when first needed."""
    from onlinecde.kernels.cpu import advance, advance_time, observation

    names = ("Held", "empty_plan", "plan_observation", "scale_times")
    more = {name: getattr(observation, name) for name in names}
    return SimpleNamespace(advance=advance, advance_time=advance_time, **more)


def kernels_apply(model: NeuralCDE) -> bool:
    """Whether the kernels do what the model does, as it is now."""
    solver = model.solver
    if (
        torch.is_grad_enabled()
        or model.control != "rectilinear"
        or solver.tolerance is not None
        or solver.backend in ("torch", "gpu")
        or torch.compiler.is_compiling()
        or not is_plain(model.field)  # pyright: ignore[reportArgumentType]
        or not model.encoding.is_plain
        or model.encoding.count_scale not in LOG_COUNTS
        or cpu_unavailable() is not None
    ):
        return False
    bias = model.field.bias
    if bias.device.type != "cpu" or bias.dtype not in (torch.float32, torch.float64):
        return False
    return bias.shape == (model.encoding.path_channels, model.hidden)


def packed(model: NeuralCDE) -> Packed | None:
    """A model's weights in the kernels' layout, or None where the kernels do not apply."""
    if not kernels_apply(model):
        return None
    from onlinecde.kernels.cpu import ready
    from onlinecde.kernels.cpu.observation import Scaling

    field, encoding, solver = model.field, model.encoding, model.solver
    numbers = pack(field, weights_of(field), gradient=False)
    ready("live", numbers.dtype)
    kind = numbers.dtype.type
    seen = field.path_weight
    return Packed(
        encoding=encoding,
        solver=solver,
        field=numbers,
        table=kernel_tableau(solver.table, numbers.dtype),
        scaling=Scaling(
            float(encoding.time_shift),
            float(encoding.time_scale),
            encoding.shift.numpy().copy(),
            encoding.scale.numpy().copy(),
            kind(encoding.gain),
            kind(np.inf if encoding.clip is None else encoding.clip),
            encoding.counts,
            LOG_COUNTS[encoding.count_scale],
            kind(encoding.count_gain),
            LINEAR if encoding.bounded else np.inf,
        ),
        path_weight=None if seen is None else seen.detach().numpy().T.copy(),
        dtype=numbers.dtype,
    )


def predict(model: NeuralCDE, fast: Packed | None, state: CDEState, t: Any) -> Tensor:
    """Outputs of a model at t, by the kernels where they apply; without a t nothing has to be packed."""
    z = None
    if t is None and (fast is not None or kernels_apply(model)):
        # A time leg without length leaves z as it is.
        z = state.z if not np.isnan(state.time.numpy()).any() else None
    elif fast is not None:
        z = fast.ahead(model, state, t)
    blind = state.past is None and not getattr(model.readout, "sees_path", False)
    if z is not None and blind:
        return model.read(z, state.last)
    clock = state.time if t is None else per_stream(t, len(state), model.device)
    if z is not None:
        seen, told = online.seen_at(model, state, clock), online.told_at(model, state, clock)
        return model.read(z, seen, told)
    check_question(state.time, clock)
    return online.answer(model, state, clock)


def _last_after(model: NeuralCDE, state: CDEState, x: Any) -> Tensor | None:
    """Last values after a row x (stream, channel), where the model forecasts."""
    if state.last is None:
        return None
    return model.last_after(state.last, torch.from_numpy(np.asarray(_cells(x, "x"))))


def _after(
    plan: Any, z: np.ndarray, before: np.ndarray, state: CDEState, last: Tensor | None
) -> CDEState:
    """The state after the rows that were planned, z and before as the kernels found them."""
    stamps = past = None
    if state.stamps is not None or state.past is not None:
        again = torch.from_numpy(plan.again)
        stamps, past = online.stamps_before(state, again), online.past_before(state, again)
    kept = plan.held
    after = CDEState(
        torch.from_numpy(z),
        torch.from_numpy(before),
        torch.from_numpy(kept.time),
        torch.from_numpy(kept.values),
        torch.from_numpy(kept.counts),
        torch.from_numpy(kept.observed),
        torch.from_numpy(kept.previous),
        torch.from_numpy(kept.previous_time),
        state.static,
        stamps,
        last,
        past,
    )
    after.with_arrays((z, *kept))
    return after


def _clock(t: Any, streams: int) -> np.ndarray:
    """Times (stream,) of a number or one for each stream; an error of any kind for anything else."""
    clock = np.empty(streams)
    if isinstance(t, float | int):
        clock.fill(t)
        return clock
    times = _cells(t, "t")
    if times.ndim > 1:
        raise ValueError("one time for each stream")
    clock[:] = times
    return clock


def _cells(given: Any, what: str) -> np.ndarray:
    """`real_cells` without a copy of tensors; an error of any kind where it is not for the kernels."""
    if isinstance(given, Tensor):
        given = (given.detach() if given.requires_grad else given).numpy()
    return (
        given
        if given.__class__ is np.ndarray and given.dtype.kind == "f"
        else real_cells(given, what)
    )


def _finite(z: np.ndarray) -> bool:
    # Of a few numbers this takes a tenth of the time of `all`.
    return np.count_nonzero(np.isfinite(z)) == z.size


def _threads(streams: int) -> int:
    """Threads pay off only for many streams at once."""
    return torch.get_num_threads() if streams >= 256 else 1
