"""One observation by the fused kernels: what a live stream costs, whatever its history."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from onlinecde.controls import Encoding
from onlinecde.controls.encoding import LINEAR
from onlinecde.kernels import cpu_unavailable
from onlinecde.models.contract import real_cells
from onlinecde.solvers.backends.numba import kernel_tableau, pack, weights_of
from onlinecde.solvers.fields import HOOKS, is_plain
from onlinecde.solvers.segments import leg_steps

if TYPE_CHECKING:
    from onlinecde.kernels.cpu import PackedField
    from onlinecde.kernels.cpu import Tableau as KernelTableau
    from onlinecde.kernels.cpu.observation import Scaling
    from onlinecde.models.neural_cde import CDEState, NeuralCDE
    from onlinecde.solvers import Solver


Place = tuple[dict[str, Any], str, Any]
"""Where something was found: a module's own dictionary, the name in it, and what stood there"""
Watch = tuple[dict[str, Any], str, Tensor, int, int | None, memoryview, int]
"""The same of a tensor, its address and version, a view of one of its numbers, and that number's bits"""

ONE_EACH = np.empty(0, np.int32)
"""One step on the time leg of every stream."""
_last_step = object()
"""Another one after every step of any optimizer: fused ones change weights and not their versions."""


def _note_step(*_: Any) -> None:
    global _last_step
    _last_step = object()


@cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_note_step)


@dataclass(frozen=True)
class _Compiled:
    """A model as the kernels want it, and what it was made from."""

    held: tuple[Place, ...]
    watched: tuple[Watch, ...]
    dictionaries: tuple[dict[str, Any], ...]
    """What must stay as large as it was: attributes of encoding, field and its layers, hooks of the latter"""
    sizes: tuple[int, ...]
    settings: tuple[Any, ...]
    encoding: Encoding
    step: object
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

    def is_current(self, model: NeuralCDE) -> bool:
        """Whether nothing it was made from was changed or replaced."""
        if self.step is not _last_step or self.settings != _settings(model.solver, self.encoding):
            return False
        if self.sizes != tuple(map(len, self.dictionaries)):
            return False
        for home, name, thing in self.held:
            if home.get(name) is not thing:
                return False
        for home, name, tensor, address, version, view, bits in self.watched:
            if home.get(name) is not tensor or tensor.data_ptr() != address or view[0] != bits:
                return False
            if version is not None and tensor._version != version:
                return False
        return True


def _settings(how: Solver, encoding: Encoding) -> tuple[Any, ...]:
    """What `_compile` reads besides tensors."""
    own = ("gain", "clip", "count_scale", "count_gain", "bounded")
    return (how, *(getattr(encoding, name) for name in own))


def _things(model: NeuralCDE) -> list[Place]:
    """Modules, parameters and buffers that `_compile` reads, where they are found."""
    modules = [*model.field.modules(), model.encoding]
    homes = [home for m in modules for home in (m._modules, m._parameters, m._buffers)]
    found = [(home, name, thing) for home in homes for name, thing in home.items()]
    top = model._modules
    return [(top, "field", model.field), (top, "encoding", model.encoding), *found]


def _watch(home: dict[str, Any], name: str, tensor: Tensor) -> Watch:
    # Of all its numbers the largest: what is done to a whole tensor, in whatever way, changes it.
    line = tensor.detach().numpy().reshape(-1)
    place = int(np.abs(line).argmax())
    view = line[place : place + 1].view(f"u{line.itemsize}").data
    # Tensors made in inference mode have no version.
    version = None if tensor.is_inference() else tensor._version
    return home, name, tensor, tensor.data_ptr(), version, view, view[0]


_compiled: WeakKeyDictionary[NeuralCDE, _Compiled] = WeakKeyDictionary()


def _fast(model: NeuralCDE) -> _Compiled | None:
    """The model's weights in the kernels' layout, or None where the kernels do not apply.

    Packed once and kept until a weight or a setting changes. Of changes made behind autograd's
    back, through `parameter.data`, those of a whole tensor are noticed; that of a few of its numbers
    may not be.
    """
    how = model.solver
    if (
        torch.is_grad_enabled()
        or model.control != "rectilinear"
        or how.tolerance is not None
        or how.backend in ("torch", "gpu")
        or torch.compiler.is_compiling()
    ):
        return None
    known = _compiled.get(model)
    if known is not None and known.is_current(model):
        return known
    if not is_plain(model.field) or not model.encoding.is_plain or cpu_unavailable() is not None:
        return None
    weight = model.field.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
        return None
    known = _compiled[model] = _compile(model)
    return known


def _compile(model: NeuralCDE) -> _Compiled:
    from onlinecde.kernels.cpu.observation import Scaling

    _watch_optimizers()
    field, encoding, step = model.field, model.encoding, _last_step
    things = _things(model)
    dictionaries = [vars(encoding)]
    for module in (field, *field.inner):
        dictionaries += [vars(module), *(vars(module)[hooks] for hooks in HOOKS)]
    packed = pack(field, weights_of(field), gradient=False)
    kind = packed.dtype.type
    seen = field.path_weight
    return _Compiled(
        held=tuple(held for held in things if not isinstance(held[2], Tensor)),
        watched=tuple(_watch(*held) for held in things if isinstance(held[2], Tensor)),
        dictionaries=tuple(dictionaries),
        sizes=tuple(map(len, dictionaries)),
        settings=_settings(model.solver, encoding),
        encoding=encoding,
        step=step,
        field=packed,
        table=kernel_tableau(model.solver.table, packed.dtype),
        scaling=Scaling(
            float(encoding.time_shift),
            float(encoding.time_scale),
            encoding.shift.numpy().copy(),
            encoding.scale.numpy().copy(),
            kind(encoding.gain),
            kind(np.inf if encoding.clip is None else encoding.clip),
            encoding.counts,
            encoding.count_scale == "log",
            kind(encoding.count_gain),
            LINEAR if encoding.bounded else np.inf,
        ),
        path_weight=None if seen is None else seen.detach().numpy().T.copy(),
        dtype=packed.dtype,
    )


def observe(model: NeuralCDE, state: CDEState, t: Any, x: Any) -> CDEState | None:
    """`NeuralCDE.observe` by the kernels; None where they do not apply or the input is not right.

    The caller then takes the plain way, which finds the same numbers or says what is wrong.
    """
    after = _observe(model, state, t, x)
    return after if after is not None and np.isfinite(after.z.numpy()).all() else None


def observe_each(
    model: NeuralCDE, state: CDEState, t: Any, x: Any, largest: float
) -> tuple[CDEState, np.ndarray] | None:
    """`observe`, and (stream,) whether each new state has no number beyond `largest`, and none that is NaN.

    None only where the kernels do not apply or the input is not right. What one stream makes of its
    row never changes what another makes of its own.
    """
    after = _observe(model, state, t, x)
    if after is None:
        return None
    within = [np.abs(part.numpy()).max(1) <= largest for part in (after.z, after.values)]
    return after, np.logical_and(*within)


def _observe(model: NeuralCDE, state: CDEState, t: Any, x: Any) -> CDEState | None:
    fast = _fast(model)
    if fast is None:
        return None
    from onlinecde.kernels.cpu import advance
    from onlinecde.kernels.cpu.observation import Held, empty_plan, plan_observation

    streams = len(state)
    clock = np.empty(streams)
    try:
        clock[:] = t if isinstance(t, float | int) else _cells(t, "t")
        rows = np.ascontiguousarray(_cells(x, "x"), fast.dtype)
    except (TypeError, ValueError, RuntimeError):
        return None
    if rows.shape != (streams, model.channels):
        return None
    if model.static_in_path:
        wide = np.full((streams, model.encoding.value_channels), np.nan, fast.dtype)
        wide[:, : model.channels] = rows
        rows = wide
    held = Held(
        state.time.numpy(),
        state.values.numpy(),
        state.counts.numpy(),
        state.observed.numpy(),
        state.previous.numpy(),
        state.previous_time.numpy(),
    )
    plan = empty_plan(streams, rows.shape[1], model.counts, fast.dtype)
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
        drive = fast.drive(np.stack([plan.old, between, plan.new], 1))
    time_steps = _time_leg_steps(model, clock, since)
    if time_steps is None:
        return None
    before, z = advance(
        fast.field,
        fast.table,
        z,
        plan.dt,
        plan.pointer,
        plan.channel,
        plan.dx,
        time_steps=time_steps,
        drive=drive,
        steps=model.solver.steps,
        threads=_threads(streams),
    )
    if plan.first.any():
        which = torch.from_numpy(plan.first)
        static = None if state.static is None else state.static[which]
        start = model.begin(torch.from_numpy(plan.new)[which], static)
        before[plan.first] = z[plan.first] = start.numpy()
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
        model.stamps_before(state, torch.from_numpy(plan.again)),
    )


def ahead(model: NeuralCDE, state: CDEState, t: Any) -> Tensor | None:
    """Z at t (a number, (stream,) or None for the last row) by the kernels; None as for `observe`."""
    fast = _fast(model)
    if fast is None:
        return None
    from onlinecde.kernels.cpu import advance_time
    from onlinecde.kernels.cpu.observation import scale_times

    time = state.time.numpy()
    clock = np.empty(len(state))
    try:
        clock[:] = time if t is None else t if isinstance(t, float | int) else _cells(t, "t")
    except (TypeError, ValueError, RuntimeError):
        return None
    if not (clock >= time).all() or np.isinf(clock).any():
        return None
    if t is None:  # a time leg without length leaves z as it is
        return state.z
    time_steps = _time_leg_steps(model, clock, time)
    if time_steps is None:
        return None
    scaling = fast.scaling
    now, then = scale_times(clock, scaling), scale_times(time, scaling)
    drive = None
    if fast.path_weight is not None:
        here = model.row(state.time, state.values, state.counts).numpy()
        there = here.copy()
        there[:, 0] = now
        drive = fast.drive(np.stack([here, there], 1))
    z = advance_time(
        fast.field,
        fast.table,
        state.z.numpy(),
        (now - then).astype(fast.dtype),
        time_steps=time_steps,
        drive=drive,
        threads=_threads(len(state)),
    )
    return torch.from_numpy(z) if np.isfinite(z).all() else None


def _cells(given: Any, what: str) -> np.ndarray:
    """`real_cells` without a copy of tensors; an error of any kind where it is not for the kernels."""
    return real_cells(given.detach().numpy() if isinstance(given, Tensor) else given, what)


def _time_leg_steps(model: NeuralCDE, clock: np.ndarray, since: np.ndarray) -> np.ndarray | None:
    """Steps (stream,) on each time leg, as the kernels want them; None where they are too many."""
    how = model.solver
    if how.max_step is not None:
        return leg_steps(clock - since, how.max_step)
    return ONE_EACH if how.steps == 1 else np.full(clock.shape, how.steps, np.int32)


def _threads(streams: int) -> int:
    """Threads pay off only for many streams at once."""
    return torch.get_num_threads() if streams >= 256 else 1
