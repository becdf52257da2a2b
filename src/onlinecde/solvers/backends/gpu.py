"""The Triton and CUDA kernels for NVIDIA GPUs."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onlinecde.kernels import gpu_unavailable
from onlinecde.solvers.backends.base import Backend, Gradients, Needs, Problem, Solved
from onlinecde.solvers.backends.numba import weights_of
from onlinecde.solvers.fields import MLPField, VectorField, is_plain, not_plain
from onlinecde.solvers.runge_kutta import Tableau
from onlinecde.solvers.segments import PathSegments

if TYPE_CHECKING:
    from onlinecde.kernels.gpu import Legs, Moves, PackedField, Table

LARGEST = 256
"""Hidden units and widths the kernels hold on chip."""
MOST_STAGES = 4
"""Stages of a method the kernels hold in registers."""
DEGREES = (1, 3)
"""Degrees of X in u that the kernels take."""


class GPU(Backend):
    """Fused forward and backward over moved channels, for an `MLPField` in float32.

    `legs` and `moves`, where given, are those of all its problems, built before.
    """

    name, device = "gpu", "cuda"
    saves_states = saves_weights = False
    skips_knots = True

    def __init__(self, legs: Legs | None = None, moves: Moves | None = None) -> None:
        self.legs, self.moves = legs, moves

    def unsupported(self, problem: Problem) -> str | None:
        if problem.backend == "auto" and not (problem.z0.is_cuda or problem.capture):
            return f"the tensors are on {problem.z0.device.type}"
        reason = unsupported_settings(
            problem.field,
            problem.table,
            problem.z0,
            problem.gradient,
            problem.backend,
            problem.capture,
        )
        if reason is None and problem.segments.slopes.shape[2] not in DEGREES:
            reason = f"segments are of degree {problem.segments.slopes.shape[2]}"
        return reason or no_room(problem)

    def weights(self, problem: Problem) -> tuple[Tensor, ...]:
        field: Any = problem.field
        return weights_of(field)

    def forward(self, problem: Problem, weights: tuple[Tensor, ...]) -> Solved:
        legs = self.legs or legs_of(problem.segments)
        reason = "an MLPField on the GPU with fixed steps"
        z, tapes = self._forward(problem, legs, weights, problem.precision == "highest")
        look = problem.precision == "high" and not _captured(problem)
        if look and not bool(z.sum().isfinite()):
            z, tapes = self._forward(problem, legs, weights, split=True)
            reason += ", in 'highest': states left the range of 'high'"
        else:
            reason += f", precision '{problem.precision}'"
            if problem.precision == "high" and _clustered(problem, legs):
                reason += ", by thread-block clusters"
        return Solved(z, reason, tapes)

    def _forward(
        self, problem: Problem, legs: Legs, weights: tuple[Tensor, ...], split: bool
    ) -> tuple[Tensor, Any]:
        from onlinecde.kernels import gpu

        field: Any = problem.field
        with _current(problem.z0):
            return gpu.forward(
                pack(field, weights),
                legs,
                problem.z0.detach(),
                _packed_table(problem.table, problem.z0.device),
                save=problem.needs.any,
                split=split,
                moves=self.moves,
                path_gradients=problem.needs.path,
                every=problem.every,
            )

    def backward(
        self,
        problem: Problem,
        solved: Solved,
        weights: tuple[Tensor, ...],
        g: Tensor,
        needs: Needs,
    ) -> Gradients:
        from onlinecde.kernels import gpu

        with _current(g):
            grads = gpu.backward(
                g,
                solved.tape,
                want_time=needs.time,
                want_slopes=needs.slopes,
                want_drive=needs.drive,
                every=problem.every,
            )
        inner = [part for layer in grads.inner for part in layer]
        g_weights = (*inner, grads.weight, grads.bias)
        return Gradients(grads.z0, grads.time, grads.slopes, grads.drive, g_weights)


def unsupported_settings(
    field: VectorField,
    table: Tableau,
    z0: Tensor,
    gradient: str,
    backend: str,
    capture: bool = False,
) -> str | None:
    """Why the kernels do not take solves of a field by a method, whatever the path; None where they do."""
    if backend not in ("auto", "gpu"):
        return f"backend='{backend}' was asked for"
    if not is_plain(field):
        return not_plain(field)
    if field.channels == 1:
        return "the path has one channel alone, and the kernels need values beside time"
    if gradient != "exact":
        return f"gradient='{gradient}' is found in plain torch"
    if z0.device.type not in _devices(backend == "gpu" or capture):
        return f"the tensors are on {z0.device.type}"
    if z0.dtype != torch.float32 or field.weight.dtype != torch.float32:
        return f"z0 is {z0.dtype} and the field {field.weight.dtype}; the kernels take float32"
    if torch.compiler.is_compiling():
        return "torch is tracing the program"
    if max(field.hidden, field.width) > LARGEST:
        return f"hidden is {field.hidden} and width {field.width}; the kernels take up to {LARGEST}"
    if table.stages > MOST_STAGES:
        return f"{table.name} has {table.stages} stages; the kernels take up to {MOST_STAGES}"
    return gpu_unavailable(z0.device)


def no_room(problem: Problem) -> str | None:
    """Why what a step with gradients takes does not fit into the GPU's memory, or None where it does."""
    field, segments, z0 = problem.field, problem.segments, problem.z0
    if not (z0.is_cuda and torch.is_grad_enabled()) or _captured(problem):
        return None
    if not segments.count or not z0.shape[0] or not is_plain(field):
        return None
    from onlinecde.kernels.gpu import room_for_step

    needed = room_for_step(field, legs_of(segments), problem.table.stages)
    spare = torch.cuda.memory_reserved(z0.device) - torch.cuda.memory_allocated(z0.device)
    free = torch.cuda.mem_get_info(z0.device)[0] + spare
    if needed <= free:
        return None
    return (
        f"a step takes {needed / 2**30:.1f} GiB and {free / 2**30:.1f} are free: take fewer streams"
    )


def _captured(problem: Problem) -> bool:
    """Whether no number can be looked at."""
    return problem.capture or (problem.z0.is_cuda and torch.cuda.is_current_stream_capturing())


def _devices(alone: bool) -> tuple[str, ...]:
    """Where tensors may be: in Triton's interpreter, where these kernels alone will do, also on the CPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return ("cuda", "cpu") if alone and interpreted else ("cuda",)


def _clustered(problem: Problem, legs: Legs) -> bool:
    """Whether thread-block clusters take a solve in "high"."""
    from onlinecde.kernels.gpu import clustered

    field, z0 = problem.field, problem.z0
    if problem.needs.path or not is_plain(field):
        return False
    with _current(z0):
        table = _packed_table(problem.table, z0.device)
        return clustered(field, legs, table, problem.needs.any, z0.device)


def legs_of(segments: PathSegments) -> Legs:
    """Segments as the kernels read them."""
    from onlinecde.kernels.gpu import Legs

    time, drive, steps = segments.time, segments.drive, segments.time_steps
    return Legs(
        lengths=segments.lengths.to(torch.int32),
        pieces=segments.count,
        time=None if time is None else time.detach().contiguous(),
        slopes=segments.slopes.detach().contiguous(),
        observed=segments.observed,
        parts=2 if segments.rectilinear and segments.counts else 1,
        steps=segments.steps,
        time_steps=None if steps is None else steps.to(torch.int32).contiguous(),
        drive=None if drive is None else drive.detach().contiguous(),
    )


def pack(field: MLPField, weights: tuple[Tensor, ...]) -> PackedField:
    """A field's weights as the kernels read them."""
    from onlinecde.kernels.gpu import pack_field

    own = [weight.detach() for weight in weights]
    inner = list(zip(own[:-2:2], own[1:-2:2], strict=True))
    return pack_field(inner, own[-2], own[-1], activation=field.activation, final=field.final)


@lru_cache(maxsize=32)
def _packed_table(table: Tableau, device: torch.device) -> Table:
    """A tableau on a device; kept, for a captured program cannot bring it there."""
    from onlinecde.kernels.gpu import pack_table

    return pack_table(table.a, table.b, table.c, device)


def _current(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device: make it that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
