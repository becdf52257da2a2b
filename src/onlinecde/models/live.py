"""The legs of one observation: what a live stream costs, whatever its history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from onlinecde.kernels import cpu_unavailable
from onlinecde.solvers.chain import Chain, steps_for
from onlinecde.solvers.fused import kernel_tableau, pack, weights_of

if TYPE_CHECKING:
    from onlinecde.kernels.cpu import PackedField
    from onlinecde.kernels.cpu import Tableau as KernelTableau
    from onlinecde.kernels.cpu.observation import Scaling
    from onlinecde.models.neural_cde import CDEState, NeuralCDE


@dataclass(frozen=True)
class _Compiled:
    """A model as the kernels want it, and the versions of the tensors it was made from."""

    key: tuple[int, ...]
    field: PackedField
    table: KernelTableau
    scaling: Scaling
    path_weight: np.ndarray | None
    dtype: np.dtype[Any]


_compiled: WeakKeyDictionary[NeuralCDE, _Compiled] = WeakKeyDictionary()


def _fast(model: NeuralCDE) -> _Compiled | None:
    """The model's weights in the kernels' layout, or None where the kernels do not apply.

    Packed once and kept until a weight changes; a change made behind autograd's back, through
    `parameter.data`, is not noticed.
    """
    how = model.integrator
    if (
        torch.is_grad_enabled()
        or model.control != "rectilinear"
        or how.tolerance is not None
        or how.backend == "torch"
        or torch.compiler.is_compiling()
    ):
        return None
    field, encoding = model.field, model.encoding
    weights = weights_of(field)
    seen = field.path_weight
    watched = (*weights, encoding.shift, encoding.scale, encoding.time_shift, encoding.time_scale)
    if seen is not None:
        watched = (*watched, seen)
    # Tensors made in inference mode have no version; they cannot be trained either.
    key = tuple([n for w in watched for n in (w.data_ptr(), 0 if w.is_inference() else w._version)])
    known = _compiled.get(model)
    if known is not None and known.key == key:
        return known
    if (
        cpu_unavailable() is not None
        or field.weight.device.type != "cpu"
        or field.weight.dtype not in (torch.float32, torch.float64)
    ):
        return None
    from onlinecde.kernels.cpu.observation import Scaling

    packed = pack(field, weights, gradient=False)
    kind = packed.dtype.type
    known = _Compiled(
        key=key,
        field=packed,
        table=kernel_tableau(how.table, packed.dtype),
        scaling=Scaling(
            float(encoding.time_shift),
            float(encoding.time_scale),
            encoding.shift.numpy(),
            encoding.scale.numpy(),
            kind(encoding.gain),
            kind(np.inf if encoding.clip is None else encoding.clip),
            encoding.counts,
            encoding.count_scale == "log",
            kind(encoding.count_gain),
        ),
        path_weight=None if seen is None else seen.detach().numpy().T,
        dtype=packed.dtype,
    )
    _compiled[model] = known
    return known


def observe(model: NeuralCDE, state: CDEState, t: Any, x: Any) -> CDEState | None:
    """`NeuralCDE.observe` by the kernels; None where they do not apply or the input is not right.

    The caller then takes the plain way, which finds the same numbers or says what is wrong.
    """
    fast = _fast(model)
    if fast is None:
        return None
    from onlinecde.kernels.cpu import advance
    from onlinecde.kernels.cpu.observation import Held, empty_plan, plan_observation

    streams = len(state)
    clock = np.empty(streams)
    try:
        clock[:] = t
        rows = np.ascontiguousarray(x, fast.dtype)
    except (TypeError, ValueError, RuntimeError):
        return None
    if rows.shape != (streams, model.channels):
        return None
    held = Held(
        state.time.numpy(),
        state.values.numpy(),
        state.counts.numpy(),
        state.observed.numpy(),
        state.previous.numpy(),
        state.previous_time.numpy(),
    )
    plan = empty_plan(streams, model.channels, model.counts, fast.dtype)
    since = np.empty(streams)
    if not plan_observation(clock, rows, since, held, plan, fast.scaling):
        return None
    z = state.z.numpy()
    if plan.again.any():
        z = np.where(plan.again[:, None], state.before.numpy(), z)
    drive = None
    if fast.path_weight is not None:
        between = plan.old.copy()
        between[:, 0] = plan.new[:, 0]
        drive = np.stack([plan.old, between, plan.new]) @ fast.path_weight
    how = model.integrator
    gaps = None
    if how.max_step is not None:
        gaps = _steps(clock - since, how.max_step)
    elif how.steps > 1:
        gaps = np.full(streams, how.steps, np.int32)
    before, z = advance(
        fast.field,
        fast.table,
        z,
        plan.dt,
        plan.pointer,
        plan.channel,
        plan.dx,
        time_steps=gaps,
        drive=drive,
        steps=how.steps,
        threads=_threads(streams),
    )
    if plan.first.any():
        which = torch.from_numpy(plan.first)
        start = torch.from_numpy(plan.new)[which]
        if state.static is not None:
            start = torch.cat([state.static[which], start], 1)
        before[plan.first] = z[plan.first] = model.initial(start).numpy()
    if not np.isfinite(z.sum()):
        return None
    kept = plan.held
    return type(state)(
        torch.from_numpy(z),
        torch.from_numpy(before),
        torch.from_numpy(kept.time),
        torch.from_numpy(kept.values),
        torch.from_numpy(kept.counts),
        torch.from_numpy(kept.observed),
        torch.from_numpy(kept.previous),
        torch.from_numpy(kept.previous_time),
        state.static,
    )


def _steps(gaps: np.ndarray, max_step: float) -> np.ndarray:
    return steps_for(torch.from_numpy(gaps), max_step).to(torch.int32).numpy()


def _threads(streams: int) -> int:
    """Threads pay off only for many streams at once."""
    return torch.get_num_threads() if streams >= 256 else 1


def legs(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> tuple[Tensor, Tensor]:
    """A time leg and a value leg from rows `old` to `new` (stream, path channel): z after each."""
    knots = _run(model, row_chain(model, z, since, clock, old, new, observed), z, clock)
    return knots[1], knots[2]


def row_chain(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> Chain:
    """The two legs that lead from row to row, one chain for all streams."""
    encoding = model.encoding
    time = (encoding.scale_time(clock) - encoding.scale_time(since)).to(z.dtype)
    drive = None
    if model.field.sees_path:
        between = torch.cat([new[:, :1], old[:, 1:]], 1)
        drive = model.field.drive(torch.stack([old, between, new]))
    return _chain(
        model,
        z,
        rectilinear=True,
        pieces=2,
        time=time[None],
        slopes=(new - old)[None, :, 1:],
        observed=observed[None],
        time_steps=_time_steps(model, since, clock),
        drive=drive,
    )


def time_leg(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor | None,
    new: Tensor | None,
) -> Tensor:
    """A time leg alone: z at `clock` if nothing is observed until then.

    `old` and `new` (stream, path channel), X at both ends, are needed by a field that sees it.
    """
    encoding = model.encoding
    fast = _fast(model)
    if fast is not None:
        from onlinecde.kernels.cpu import advance_time

        max_step = model.integrator.max_step
        gaps = None if max_step is None else _steps((clock - since).numpy(), max_step)
        if gaps is None and model.integrator.steps > 1:
            gaps = np.full(z.shape[0], model.integrator.steps, np.int32)
        drive = None
        if fast.path_weight is not None:
            assert old is not None
            assert new is not None
            drive = np.stack([old.numpy(), new.numpy()]) @ fast.path_weight
        passed = (encoding.scale_time(clock) - encoding.scale_time(since)).numpy()
        ahead = advance_time(
            fast.field,
            fast.table,
            z.numpy(),
            passed.astype(fast.dtype),
            time_steps=gaps,
            drive=drive,
            threads=_threads(z.shape[0]),
        )
        return torch.from_numpy(ahead)
    time = (encoding.scale_time(clock) - encoding.scale_time(since)).to(z.dtype)
    drive = None
    if model.field.sees_path:
        assert old is not None
        assert new is not None
        drive = model.field.drive(torch.stack([old, new]))
    still = z.new_zeros(1, 1, model.encoding.path_channels - 1).expand(1, z.shape[0], -1)
    chain = _chain(
        model,
        z,
        rectilinear=True,
        pieces=1,
        time=time[None],
        slopes=still,
        observed=None,
        time_steps=_time_steps(model, since, clock),
        drive=drive,
    )
    return _run(model, chain, z, clock)[1]


def piece(model: NeuralCDE, z: Tensor, old: Tensor, new: Tensor, slope: Tensor | None) -> Tensor:
    """One piece of a linear (slope None) or Hermite path from row to row: z after it."""
    rise = new - old
    if slope is None:
        slopes = rise[:, None]
    else:
        left = torch.where(slope.isnan(), rise, slope)
        bend = rise - left
        slopes = torch.stack([left, 4 * bend, -3 * bend], 1)
    drive = None
    if model.field.sees_path:
        if slope is None:
            drive = model.field.drive(torch.stack([old, new]))
        else:
            cubic = torch.stack([old, slopes[:, 0], slopes[:, 1] / 2, slopes[:, 2] / 3], 1)
            drive = model.field.drive(cubic)[None]
    chain = _chain(
        model,
        z,
        rectilinear=False,
        pieces=1,
        time=None,
        slopes=slopes[None],
        observed=None,
        time_steps=None,
        drive=drive,
    )
    return _run(model, chain, z, new[:, 0])[1]


def _time_steps(model: NeuralCDE, since: Tensor, clock: Tensor) -> Tensor | None:
    if model.integrator.max_step is None:
        return None
    return steps_for(clock - since, model.integrator.max_step)[None]


def _chain(model: NeuralCDE, z: Tensor, pieces: int, **parts: Any) -> Chain:
    many = z.shape[0]
    return Chain(
        channels=model.encoding.path_channels,
        order=torch.arange(many, device=z.device),
        lengths=torch.full((many,), pieces, device=z.device),
        active=[many] * pieces,
        counts=model.counts,
        steps=model.integrator.steps,
        max_step=model.integrator.max_step,
        **parts,
    )


def _run(model: NeuralCDE, chain: Chain, z: Tensor, clock: Tensor) -> Tensor:
    def where(place: int, s: float) -> str:
        return f"stream {place} at time {float(clock[place]):g}"

    return model.integrator.run(chain, model.field, z, where).z
