"""Trajectories of an `MLPField` from the fused CPU kernels: the same numbers, much sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.kernels import cpu_unavailable
from onlinecde.solvers.chain import Chain
from onlinecde.solvers.fields import MLPField, VectorField, is_plain, not_plain
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.tableau import Tableau

if TYPE_CHECKING:
    from onlinecde.kernels.cpu import PackedField, Path
    from onlinecde.kernels.cpu import Tableau as KernelTableau


def why_not(
    field: VectorField, chain: Chain, z0: Tensor, gradient: str, backend: str
) -> str | None:
    """Why the kernels cannot take this solve, or None where they can; an error where they must."""
    reason = None
    if not is_plain(field):
        reason = not_plain(field)
    elif gradient != "exact":
        reason = f"gradient='{gradient}' is found in plain torch"
    elif z0.device.type != "cpu":
        reason = f"the tensors are on {z0.device.type}"
    elif z0.dtype not in (torch.float32, torch.float64) or z0.dtype != field.weight.dtype:
        reason = f"z0 is {z0.dtype} and the field {field.weight.dtype}"
    elif torch.compiler.is_compiling():
        reason = "torch is tracing the program"
    else:
        reason = cpu_unavailable()
    if backend == "cpu" and reason is not None:
        raise ValueError(f"backend='cpu' cannot solve this: {reason}.")
    return "backend='torch' was asked for" if backend == "torch" else reason


def trajectory(chain: Chain, field: MLPField, table: Tableau, z0: Tensor) -> Tensor:
    """z at all knots, (knot, stream, hidden), streams in the chain's order, with exact gradients."""
    return _Fused.apply(
        chain, field, table, z0, chain.time, chain.slopes, chain.drive, *weights_of(field)
    )  # pyright: ignore[reportReturnType]


def weights_of(field: MLPField) -> tuple[Tensor, ...]:
    """The tensors the kernels read, in their order; what the field sees of the path comes as drive."""
    return (*field.inner_weights(), field.weight, field.bias)


def pack(field: MLPField, weights: tuple[Tensor, ...], gradient: bool) -> PackedField:
    """Lay the weights out as the kernels want them."""
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
    """A tableau as the kernels want it."""
    from onlinecde.kernels.cpu import tableau

    a = np.zeros((table.stages, table.stages))
    for stage, row in enumerate(table.a):
        a[stage, : len(row)] = row
    return tableau(a, np.array(table.b), np.array(table.c), dtype)


def _kernel_path(chain: Chain, all_observed: bool) -> Path:
    """The chain in the kernels' layout; `all_observed`: also the channels that moved by nothing."""
    from onlinecde.kernels.cpu import dense, rectilinear

    pieces = chain.lengths.numpy()
    drive = None if chain.drive is None else chain.drive.detach()
    slopes = chain.slopes.detach()
    if chain.time is None:
        if drive is not None and drive.ndim == 4:
            drive = drive.permute(2, 0, 1, 3)
        return dense(
            pieces,
            slopes.permute(2, 0, 3, 1).contiguous().numpy(),
            moved=np.ones((slopes.shape[0], slopes.shape[3], slopes.shape[1]), np.bool_)
            if all_observed
            else None,
            drive=None if drive is None else drive.contiguous().numpy(),
        )
    moved = None
    if all_observed and chain.observed is not None:
        moved = chain.observed.transpose(1, 2)
        moved = (torch.cat([moved, moved], 1) if chain.counts else moved).numpy()
    steps = chain.time_steps
    if steps is None and chain.steps > 1:
        steps = torch.full(chain.time.shape, chain.steps)
    return rectilinear(
        pieces,
        chain.time.detach().numpy(),
        slopes.transpose(1, 2).contiguous().numpy(),
        moved=moved,
        time_steps=None if steps is None else steps.to(torch.int32).numpy(),
        drive=None if drive is None else drive.contiguous().numpy(),
    )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        field: MLPField,
        table: Tableau,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        from onlinecde.kernels import cpu

        packed = pack(field, weights, gradient=any(ctx.needs_input_grad))
        path = _kernel_path(chain, all_observed=any(ctx.needs_input_grad[4:6]))
        method = kernel_tableau(table, packed.dtype)
        z = cpu.forward(
            packed,
            path,
            z0.detach().numpy(),
            method,
            steps=chain.steps,
            threads=torch.get_num_threads(),
        )
        knots = torch.from_numpy(z)
        ctx.kernel, ctx.chain = (packed, path, method), chain
        # Saved as torch does it, so that a change of z in place is noticed on the way back.
        ctx.save_for_backward(knots)
        return knots

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from onlinecde.kernels import cpu

        chain = ctx.chain
        need_time, need_slopes, need_drive = ctx.needs_input_grad[4:7]
        packed, path, method = ctx.kernel
        (z,) = ctx.saved_tensors
        g_z0, g_field, g_path = cpu.backward(
            grads[0].numpy(),
            z.detach().numpy(),
            packed,
            path,
            method,
            steps=chain.steps,
            threads=torch.get_num_threads(),
            path_gradient=need_time or need_slopes,
            drive_gradient=need_drive,
        )
        g_time = torch.from_numpy(g_path.dt) if need_time else None
        g_slopes = g_drive = None
        if need_slopes:
            found = torch.from_numpy(g_path.slopes)
            g_slopes = found.transpose(1, 2) if chain.rectilinear else found.permute(1, 3, 0, 2)
        if need_drive:
            g_drive = torch.from_numpy(g_path.drive)
            if g_drive.ndim == 4:
                g_drive = g_drive.permute(1, 2, 0, 3)
        inner = [torch.from_numpy(part) for layer in g_field.layers for part in layer]
        last = [torch.from_numpy(g_field.columns), torch.from_numpy(g_field.column_biases)]
        return (None, None, None, torch.from_numpy(g_z0), g_time, g_slopes, g_drive, *inner, *last)
