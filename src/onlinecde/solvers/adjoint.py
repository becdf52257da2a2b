"""Continuous adjoint: gradients from an equation solved backwards, piece by piece.

On a piece, with F(z, u) = f(z) dX/du, the adjoint a solves `da/du = -a dF/dz` backwards from the
gradient at the piece's end, and parameters collect `a dF/dtheta du` along it. z is taken from the
forward solve at every knot, so its error does not build up. With adaptive steps, only z and a
decide the step (the seminorm): what is collected is a plain integral and needs no say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.adaptive import (
    SMALLEST,
    Slopes,
    Steps,
    Tolerance,
    rate_for,
)
from onlinecde.solvers.chain import Chain
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import VectorField
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.stepping import advance, combine, piece_steps
from onlinecde.solvers.tableau import Tableau


def trajectory(
    chain: Chain,
    field: VectorField,
    table: Tableau,
    z0: Tensor,
    knots: Tensor,
    tolerance: Tolerance | None,
    where: Callable[[int, float], str],
) -> Tensor:
    """z at the knots, as given, with gradients from the adjoint equation."""
    return _Adjoint.apply(
        chain,
        field,
        table,
        knots,
        (tolerance, where),
        z0,
        chain.time,
        chain.slopes,
        chain.drive,
        *field.parameters(),
    )  # pyright: ignore[reportReturnType]


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        field: VectorField,
        table: Tableau,
        knots: Tensor,
        control: tuple[Tolerance | None, Callable[[int, float], str]],
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        ctx.chain, ctx.field, ctx.table = chain, field, table
        ctx.tolerance, ctx.where = control
        ctx.save_for_backward(knots)
        return knots.clone()

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        chain, field, table = ctx.chain, ctx.field, ctx.table
        (knots,) = ctx.saved_tensors
        needs = ctx.needs_input_grad[6:9]
        data = [
            None if tensor is None else tensor.detach().requires_grad_(bool(need))
            for tensor, need in zip((chain.time, chain.slopes, chain.drive), needs, strict=True)
        ]
        weights = [weight for weight in field.parameters() if weight.requires_grad]
        wanted = [*(tensor for tensor, need in zip(data, needs, strict=True) if need), *weights]
        sums = [torch.zeros_like(tensor) for tensor in wanted]
        g = grads[0][-1].clone()
        for piece in range(chain.pieces - 1, -1, -1):
            n = chain.active[piece]
            back = _Backwards(chain, field, table, tuple(data), wanted, sums, piece, n)  # pyright: ignore[reportArgumentType]
            if ctx.tolerance is None:
                g[:n] = back.fixed(knots[piece + 1, :n], g[:n])
            else:
                g[:n] = back.adaptive(knots[piece + 1, :n], g[:n], ctx.tolerance, ctx.where)
            g = g + grads[0][piece]
        totals = iter(sums)
        g_data = [next(totals) if need else None for need in needs]
        g_weights = [
            next(totals) if weight.requires_grad else None for weight in field.parameters()
        ]
        return (None, None, None, None, None, g, *g_data, *g_weights)


class _Backwards:
    """One piece, from u = 1 to u = 0."""

    def __init__(
        self,
        chain: Chain,
        field: VectorField,
        table: Tableau,
        data: Slopes,
        wanted: list[Tensor],
        sums: list[Tensor],
        piece: int,
        n: int,
    ) -> None:
        self.chain, self.field, self.table, self.data = chain, field, table, data
        self.wanted, self.sums, self.piece, self.n = wanted, sums, piece, n

    def rates(self, who: Tensor, z: Tensor, a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """F and a dF/dz at parameters s (taken, 1)."""
        rate = self._rate(who)
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            forward = rate(z, s)
        pull = None
        if forward.requires_grad:
            (pull,) = torch.autograd.grad(forward, z, a, allow_unused=True)
        return forward.detach(), torch.zeros_like(z) if pull is None else pull

    def _rate(self, who: Tensor) -> Any:
        piece = torch.full_like(who, self.piece)
        steps = Steps(who, piece.double(), piece.double(), piece, piece)
        return rate_for(self.chain, self.field, self.data, steps, across=False)

    def step(
        self, who: Tensor, z: Tensor, a: Tensor, s: Tensor, h: Tensor
    ) -> tuple[list[Tensor], list[Tensor], list[tuple[Tensor, Tensor, Tensor]]]:
        """Stages of (-F, a dF/dz) for a step of length h (taken, 1) back from s."""
        back, pulls, places = [], [], []
        for stage in range(self.table.stages):
            zs = advance(z, self.table.a[stage], back, h)
            as_ = advance(a, self.table.a[stage], pulls, h)
            node = s - self.table.c[stage] * h
            forward, pull = self.rates(who, zs, as_, node)
            back.append(-forward)
            pulls.append(pull)
            places.append((zs, as_, node))
        return back, pulls, places

    def collect(self, who: Tensor, places: list[tuple[Tensor, Tensor, Tensor]], h: Tensor) -> None:
        """Add a dF/dtheta of an accepted step to the sums."""
        if not self.wanted:
            return
        rate = self._rate(who)
        for weight, (z, a, s) in zip(self.table.b, places, strict=True):
            if weight:
                with torch.enable_grad():
                    forward = rate(z, s)
                found = torch.autograd.grad(forward, self.wanted, weight * h * a, allow_unused=True)
                for total, part in zip(self.sums, found, strict=True):
                    if part is not None:
                        total += part

    def fixed(self, z: Tensor, a: Tensor) -> Tensor:
        """The adjoint at the piece's start, in the forward solve's own number of steps."""
        who = torch.arange(self.n, device=z.device)
        for u, length in piece_steps(self.chain, self.piece, z):
            h = torch.as_tensor(length, dtype=z.dtype, device=z.device).expand(self.n, 1)
            s = self.piece + 1 - torch.as_tensor(u, device=z.device).double().expand(self.n, 1)
            back, pulls, places = self.step(who, z, a, s, h)
            self.collect(who, places, h)
            z, a = advance(z, self.table.b, back, h), advance(a, self.table.b, pulls, h)
        return a

    def adaptive(
        self, z: Tensor, a: Tensor, tolerance: Tolerance, where: Callable[[int, float], str]
    ) -> Tensor:
        """The adjoint at the piece's start; each stream chooses its steps from z and a alone."""
        assert self.table.error is not None
        z, a = z.clone(), a.clone()
        s = torch.full((self.n,), float(self.piece + 1), dtype=torch.float64, device=z.device)
        h = torch.ones_like(s)
        power = -1.0 / (self.table.embedded_order + 1)
        for _ in range(tolerance.max_steps):
            who = (s > self.piece).nonzero()[:, 0]
            if not who.numel():
                return a
            length = torch.minimum(h[who], s[who] - self.piece)
            step = length[:, None].to(z.dtype)
            back, pulls, places = self.step(who, z[who], a[who], s[who, None], step)
            ratio = torch.zeros_like(length)
            for now, ks in ((z[who], back), (a[who], pulls)):
                ahead = advance(now, self.table.b, ks, step)
                scale = tolerance.atol + tolerance.rtol * torch.maximum(now.abs(), ahead.abs())
                ratio = ratio + (step * combine(self.table.error, ks) / scale).square().mean(1)
            ratio = (ratio / 2).sqrt()
            if tolerance.joint:
                ratio = ratio.square().mean().sqrt().expand_as(ratio)
            ok = ratio <= 1
            factor = (0.9 * ratio.clamp(min=1e-10).pow(power)).clamp(0.2, 10.0).nan_to_num(0.2)
            h[who] = length * torch.where(ok, factor, factor.clamp(max=1.0))
            if bool((h[who] < SMALLEST).any()):
                break
            # Steps that were refused collect with length 0.
            self.collect(who, places, step * ok[:, None])
            taken = who[ok]
            z[taken] = advance(z[who], self.table.b, back, step)[ok]
            a[taken] = advance(a[who], self.table.b, pulls, step)[ok]
            s[taken] = torch.where(
                length[ok] >= s[taken] - self.piece, float(self.piece), s[taken] - length[ok]
            )
        place = int(((s > self.piece) & (h <= h[s > self.piece].min())).nonzero()[0])
        raise SolverError(
            f"{where(place, float(s[place]))}: the adjoint found no step within rtol and atol, or "
            f"not in {tolerance.max_steps} steps: raise them, or use gradient='exact'."
        )
