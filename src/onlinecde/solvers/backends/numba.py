"""The numba kernels for the CPU: the reference's numbers, much sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.kernels import cpu_unavailable
from onlinecde.solvers.backends.base import Backend, Gradients, Needs, Problem, Solved
from onlinecde.solvers.fields import MLPField, is_plain, not_plain
from onlinecde.solvers.runge_kutta import Tableau
from onlinecde.solvers.segments import PathSegments

if TYPE_CHECKING:
    from onlinecde.kernels.cpu import PackedField, PathArrays
    from onlinecde.kernels.cpu import Tableau as KernelTableau


class Numba(Backend):
    """Fused forward and backward over moved channels, for an `MLPField`."""

    name = device = "cpu"
    saves_weights = False

    def unsupported(self, problem: Problem) -> str | None:
        field, z0 = problem.field, problem.z0
        if problem.backend not in ("auto", "cpu"):
            return f"backend='{problem.backend}' was asked for"
        if problem.capture:
            return "it goes into a CUDA graph"
        if not is_plain(field):
            return not_plain(field)
        if problem.gradient != "exact":
            return f"gradient='{problem.gradient}' is found in plain torch"
        if z0.device.type != "cpu":
            return f"the tensors are on {z0.device.type}"
        if z0.dtype not in (torch.float32, torch.float64) or z0.dtype != field.weight.dtype:
            return f"z0 is {z0.dtype} and the field {field.weight.dtype}"
        if torch.compiler.is_compiling():
            return "torch is tracing the program"
        return cpu_unavailable()

    def weights(self, problem: Problem) -> tuple[Tensor, ...]:
        field: Any = problem.field
        return weights_of(field)

    def forward(self, problem: Problem, weights: tuple[Tensor, ...]) -> Solved:
        from onlinecde.kernels import cpu

        field: Any = problem.field
        packed = pack(field, weights, gradient=problem.needs.any)
        path = arrays_of(problem.segments, all_observed=problem.needs.path)
        method = kernel_tableau(problem.table, packed.dtype)
        z = cpu.forward(
            packed,
            path,
            problem.z0.detach().numpy(),
            method,
            steps=problem.segments.steps,
            threads=torch.get_num_threads(),
        )
        reason = "an MLPField on the CPU with fixed steps"
        return Solved(torch.from_numpy(z), reason, (packed, path, method))

    def backward(
        self,
        problem: Problem,
        solved: Solved,
        weights: tuple[Tensor, ...],
        g: Tensor,
        needs: Needs,
    ) -> Gradients:
        from onlinecde.kernels import cpu

        segments = problem.segments
        packed, path, method = solved.tape
        g_z0, g_field, g_path = cpu.backward(
            g.numpy(),
            solved.z.detach().numpy(),
            packed,
            path,
            method,
            steps=segments.steps,
            threads=torch.get_num_threads(),
            path_gradient=needs.path,
            drive_gradient=needs.drive,
        )
        g_slopes = g_drive = None
        if needs.slopes:
            g_slopes = torch.from_numpy(g_path.slopes)
            # Those of value legs have one coefficient.
            g_slopes = g_slopes[None] if segments.rectilinear else g_slopes
            g_slopes = g_slopes.permute(1, 3, 0, 2)
        if needs.drive:
            g_drive = torch.from_numpy(g_path.drive)
            g_drive = g_drive.permute(1, 2, 0, 3) if g_drive.ndim == 4 else g_drive
        inner = [torch.from_numpy(part) for layer in g_field.layers for part in layer]
        return Gradients(
            torch.from_numpy(g_z0),
            torch.from_numpy(g_path.dt) if needs.time else None,
            g_slopes,
            g_drive,
            (*inner, torch.from_numpy(g_field.columns), torch.from_numpy(g_field.column_biases)),
        )


def weights_of(field: MLPField) -> tuple[Tensor, ...]:
    """The tensors all kernels read, in their order; what the field sees of the path comes as drive."""
    return (*field.inner_weights(), field.weight, field.bias)


def pack(field: MLPField, weights: tuple[Tensor, ...], gradient: bool) -> PackedField:
    """A field's weights as the kernels read them."""
    from onlinecde.kernels.cpu import pack_field

    arrays = [weight.detach().numpy() for weight in weights]
    inner = list(zip(arrays[:-2:2], arrays[1:-2:2], strict=True))
    return pack_field(
        inner,
        arrays[-2],
        arrays[-1],
        activation=field.activation,
        final=field.final,
        gradient=gradient,
    )


def kernel_tableau(table: Tableau, dtype: np.dtype[Any]) -> KernelTableau:
    """A tableau as the kernels read it."""
    from onlinecde.kernels.cpu import tableau

    a = np.zeros((table.stages, table.stages))
    for stage, row in enumerate(table.a):
        a[stage, : len(row)] = row
    return tableau(a, np.array(table.b), np.array(table.c), dtype)


def arrays_of(segments: PathSegments, all_observed: bool) -> PathArrays:
    """Segments as the kernels read them; `all_observed`: also the channels that moved by nothing."""
    from onlinecde.kernels.cpu import dense, rectilinear

    lengths = segments.lengths.numpy()
    drive = None if segments.drive is None else segments.drive.detach()
    slopes = segments.slopes.detach()
    if segments.time is None:
        if drive is not None and drive.ndim == 4:
            drive = drive.permute(2, 0, 1, 3)
        count, streams, _, channels = slopes.shape
        return dense(
            lengths,
            slopes.permute(2, 0, 3, 1).contiguous().numpy(),
            moved=np.ones((count, channels, streams), np.bool_) if all_observed else None,
            drive=None if drive is None else drive.contiguous().numpy(),
        )
    moved = None
    if all_observed and segments.observed is not None:
        moved = segments.observed.transpose(1, 2)
        moved = (torch.cat([moved, moved], 1) if segments.counts else moved).numpy()
    steps = segments.time_steps
    if steps is None and segments.steps > 1:
        steps = torch.full(segments.time.shape, segments.steps)
    return rectilinear(
        lengths,
        segments.time.detach().numpy(),
        slopes[:, :, 0].transpose(1, 2).contiguous().numpy(),
        moved=moved,
        time_steps=None if steps is None else steps.to(torch.int32).numpy(),
        drive=None if drive is None else drive.contiguous().numpy(),
    )
