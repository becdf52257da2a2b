"""Trajectories of an `MLPField` from the fused GPU kernels, with exact gradients."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from onlinecde.kernels import gpu_unavailable
from onlinecde.solvers.chain import Chain
from onlinecde.solvers.fields import MLPField, VectorField, is_plain, not_plain
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.fused import weights_of
from onlinecde.solvers.tableau import Tableau

if TYPE_CHECKING:
    from onlinecde.kernels.gpu import Legs, Moves, PackedField, Table

Precision = Literal["highest", "high"]
LARGEST = 256
"""Hidden units and widths the kernels hold on chip."""
MOST_STAGES = 4
"""Stages of a method the kernels hold in registers."""


def why_not(
    field: VectorField, table: Tableau, z0: Tensor, gradient: str, backend: str
) -> str | None:
    """Why the GPU kernels cannot take this solve, or None where they can; an error where they must."""
    reason = None
    if not is_plain(field):
        reason = not_plain(field)
    elif field.channels == 1:
        reason = "the path has one channel alone, and the kernels need values beside time"
    elif gradient != "exact":
        reason = f"gradient='{gradient}' is found in plain torch"
    elif z0.device.type not in _devices():
        reason = f"the tensors are on {z0.device.type}"
    elif z0.dtype != torch.float32 or field.weight.dtype != torch.float32:
        reason = f"z0 is {z0.dtype} and the field {field.weight.dtype}; the kernels take float32"
    elif torch.compiler.is_compiling():
        reason = "torch is tracing the program"
    elif max(field.hidden, field.width) > LARGEST:
        reason = (
            f"hidden is {field.hidden} and width {field.width}; the kernels take up to {LARGEST}"
        )
    elif table.stages > MOST_STAGES:
        reason = f"{table.name} has {table.stages} stages; the kernels take up to {MOST_STAGES}"
    else:
        reason = gpu_unavailable(z0.device)
    reason = _refused(reason, backend)
    return "backend='torch' was asked for" if backend == "torch" else reason


def no_room(chain: Chain, field: MLPField, table: Tableau, z0: Tensor, backend: str) -> str | None:
    """Why what a step with gradients takes does not fit into the GPU's memory, or None where it does."""
    if not (z0.is_cuda and torch.is_grad_enabled()) or torch.cuda.is_current_stream_capturing():
        return None
    if not chain.pieces or not z0.shape[0]:
        return None
    from onlinecde.kernels.gpu import room_for_step

    needed = room_for_step(field, legs_of(chain), table.stages)
    spare = torch.cuda.memory_reserved(z0.device) - torch.cuda.memory_allocated(z0.device)
    free = torch.cuda.mem_get_info(z0.device)[0] + spare
    if needed <= free:
        return None
    return _refused(
        f"a step takes {needed / 2**30:.1f} GiB and {free / 2**30:.1f} are free: take fewer streams",
        backend,
    )


def _refused(reason: str | None, backend: str) -> str | None:
    """The reason to go another way; an error where the GPU's kernels were asked for by name."""
    if backend == "gpu" and reason is not None:
        raise ValueError(f"backend='gpu' cannot solve this: {reason}.")
    return reason


def _devices() -> tuple[str, ...]:
    """Where tensors may be: in Triton's interpreter, also on the CPU."""
    return ("cuda", "cpu") if os.environ.get("TRITON_INTERPRET") == "1" else ("cuda",)


def checked_trajectory(
    chain: Chain, field: MLPField, table: Tableau, z0: Tensor, precision: Precision
) -> tuple[Tensor, str]:
    """`trajectory` and its reason; where "high" leaves the range of halves, it is done anew in "highest"."""
    where = "an MLPField on the GPU with fixed steps"
    if not chain.pieces or not z0.shape[0]:
        return trajectory(chain, field, table, z0, precision), where
    legs = legs_of(chain)
    path = chain.time, chain.slopes
    z = along(legs, field, table, z0, *path, chain.drive, precision)
    capturing = z0.is_cuda and torch.cuda.is_current_stream_capturing()
    if precision == "high" and not capturing and not bool(z.detach().sum().isfinite()):
        z = along(legs, field, table, z0, *path, chain.drive, "highest")
        return z, f"{where}, in 'highest': states left the range of 'high'"
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in path)
    if precision == "high" and not wanted and by_clusters(legs, field, table, z0):
        return z, f"{where}, precision 'high', by thread-block clusters"
    return z, f"{where}, precision '{precision}'"


def by_clusters(legs: Legs, field: MLPField, table: Tableau, z0: Tensor) -> bool:
    """Whether thread-block clusters take a solve in "high"."""
    from onlinecde.kernels.gpu import clustered

    with _current(z0):
        packed = _packed_table(table, z0.device)
        return clustered(field, legs, packed, torch.is_grad_enabled(), z0.device)


def trajectory(
    chain: Chain, field: MLPField, table: Tableau, z0: Tensor, precision: Precision
) -> Tensor:
    """z at all knots, (knot, stream, hidden), streams in the chain's order, with exact gradients."""
    if not chain.pieces or not z0.shape[0]:
        return z0[None].expand(chain.pieces + 1, -1, -1)
    legs = legs_of(chain)
    return along(legs, field, table, z0, chain.time, chain.slopes, chain.drive, precision)


def along(
    legs: Legs,
    field: MLPField,
    table: Tableau,
    z0: Tensor,
    time: Tensor | None,
    slopes: Tensor,
    drive: Tensor | None,
    precision: Precision,
    moves: Moves | None = None,
    every: int = 1,
) -> Tensor:
    """`trajectory` along legs laid out before; gradients reach time, slopes and drive as given here.

    Of the knots it gives one of `every` so many, beginning with the first.
    """
    # Inside the function itself gradients are always off.
    how = (legs, field, table, precision, moves, every, torch.is_grad_enabled())
    return _Fused.apply(*how, z0, time, slopes, drive, *weights_of(field))  # pyright: ignore[reportReturnType]


def legs_of(chain: Chain) -> Legs:
    """A chain in the kernels' layout."""
    from onlinecde.kernels.gpu import Legs

    slopes, drive = chain.slopes.detach(), chain.drive
    steps = chain.time_steps
    return Legs(
        lengths=chain.lengths.to(torch.int32),
        pieces=chain.pieces,
        time=None if chain.time is None else chain.time.detach().contiguous(),
        slopes=(slopes[:, :, None] if chain.rectilinear else slopes).contiguous(),
        observed=chain.observed,
        parts=2 if chain.rectilinear and chain.counts else 1,
        steps=chain.steps,
        time_steps=None if steps is None else steps.to(torch.int32).contiguous(),
        drive=None if drive is None else drive.detach().contiguous(),
    )


def pack(field: MLPField, weights: tuple[Tensor, ...]) -> PackedField:
    """Lay the weights out as the kernels want them."""
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


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        legs: Legs,
        field: MLPField,
        table: Tableau,
        precision: Precision,
        moves: Moves | None,
        every: int,
        grads: bool,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        from onlinecde.kernels import gpu

        with _current(z0):
            knots, ctx.tapes = gpu.forward(
                pack(field, weights),
                legs,
                z0.detach(),
                _packed_table(table, z0.device),
                save=grads and any(ctx.needs_input_grad),
                split=precision == "highest",
                moves=moves,
                path_gradients=grads and any(ctx.needs_input_grad[8:10]),
                every=every,
            )
        ctx.legs, ctx.every = legs, every
        return knots

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from onlinecde.kernels import gpu

        need_time, need_slopes, need_drive = ctx.needs_input_grad[8:11]
        with _current(grads[0]):
            found = gpu.backward(
                grads[0],
                ctx.tapes,
                want_time=need_time,
                want_slopes=need_slopes,
                want_drive=need_drive,
                every=ctx.every,
            )
        slopes = found.slopes
        if slopes is not None and ctx.legs.rectilinear:
            slopes = slopes[:, :, 0]
        inner = [part for layer in found.inner for part in layer]
        return (
            *(None,) * 7,
            found.z0,
            found.time,
            slopes,
            found.drive,
            *inner,
            found.weight,
            found.bias,
        )
