"""Continuous adjoint: gradients from an equation solved backwards, segment by segment.

On a segment, with F(z, u) = f(z) dX/du, the adjoint a solves `da/du = -a dF/dz` backwards from the
gradient at the segment's end, and parameters collect `a dF/dtheta du` along it. z is taken from the
forward solve at every knot, so its error does not build up. With adaptive steps, only z and a
decide the step (the seminorm): what is collected is a plain integral and needs no say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.adaptive import SMALLEST, Steps, Sums, error_ratio, next_length, rate_for
from onlinecde.solvers.backends.base import Problem, Tolerance
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.runge_kutta import advance, combine, fixed_steps


def trajectory(problem: Problem, knots: Tensor) -> Tensor:
    """z at the knots, as given, with gradients from the adjoint equation."""
    return _Adjoint.apply(
        problem, knots, problem.z0, *problem.path_inputs, *problem.field.parameters()
    )  # pyright: ignore[reportReturnType]


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        knots: Tensor,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        ctx.problem = problem
        ctx.save_for_backward(knots)
        return knots.clone()

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        problem = ctx.problem
        (knots,) = ctx.saved_tensors
        sums = Sums(problem, ctx.needs_input_grad[3:6])
        g = grads[0][-1].clone()
        for segment in range(problem.segments.count - 1, -1, -1):
            n = problem.segments.active_on(segment)
            back = _Backwards(problem, sums, segment, n)
            if problem.tolerance is None:
                g[:n] = back.fixed(knots[segment + 1, :n], g[:n])
            else:
                g[:n] = back.adaptive(knots[segment + 1, :n], g[:n], problem.tolerance)
            g = g + grads[0][segment]
        return (None, None, g, *sums.of_all())


class _Backwards:
    """One segment, from u = 1 to u = 0."""

    def __init__(self, problem: Problem, sums: Sums, segment: int, n: int) -> None:
        self.problem, self.table = problem, problem.table
        self.sums, self.segment, self.n = sums, segment, n

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
        segment = torch.full_like(who, self.segment)
        steps = Steps(who, segment.double(), segment.double(), segment, segment)
        return rate_for(self.problem, self.sums.data, steps, across=False)

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
        wanted = self.sums.wanted
        if not wanted:
            return
        rate = self._rate(who)
        for weight, (z, a, s) in zip(self.table.b, places, strict=True):
            if weight:
                with torch.enable_grad():
                    forward = rate(z, s)
                parts = torch.autograd.grad(forward, wanted, weight * h * a, allow_unused=True)
                self.sums.add(parts)

    def fixed(self, z: Tensor, a: Tensor) -> Tensor:
        """The adjoint at the segment's start, in the forward solve's own number of steps."""
        who = torch.arange(self.n, device=z.device)
        for u, length in fixed_steps(self.problem.segments, self.segment, z):
            h = torch.as_tensor(length, dtype=z.dtype, device=z.device).expand(self.n, 1)
            s = self.segment + 1 - torch.as_tensor(u, device=z.device).double().expand(self.n, 1)
            back, pulls, places = self.step(who, z, a, s, h)
            self.collect(who, places, h)
            z, a = advance(z, self.table.b, back, h), advance(a, self.table.b, pulls, h)
        return a

    def adaptive(self, z: Tensor, a: Tensor, tolerance: Tolerance) -> Tensor:
        """The adjoint at the segment's start; each stream chooses its steps from z and a alone."""
        assert self.table.error is not None
        z, a = z.clone(), a.clone()
        s = torch.full((self.n,), float(self.segment + 1), dtype=torch.float64, device=z.device)
        h = torch.ones_like(s)
        for _ in range(tolerance.max_steps):
            who = (s > self.segment).nonzero()[:, 0]
            if not who.numel():
                return a
            length = torch.minimum(h[who], s[who] - self.segment)
            step = length[:, None].to(z.dtype)
            back, pulls, places = self.step(who, z[who], a[who], s[who, None], step)
            ratio = torch.zeros_like(length)
            for now, ks in ((z[who], back), (a[who], pulls)):
                ahead = advance(now, self.table.b, ks, step)
                error = step * combine(self.table.error, ks)
                ratio = ratio + error_ratio(error, now, ahead, tolerance).mean(1)
            ratio = (ratio / 2).sqrt()
            if tolerance.joint:
                ratio = ratio.square().mean().sqrt().expand_as(ratio)
            ok = ratio <= 1
            h[who] = next_length(length, ratio, self.table)
            if bool((h[who] < SMALLEST).any()):
                break
            # Steps that were refused collect with length 0.
            self.collect(who, places, step * ok[:, None])
            taken = who[ok]
            z[taken] = advance(z[who], self.table.b, back, step)[ok]
            a[taken] = advance(a[who], self.table.b, pulls, step)[ok]
            s[taken] = torch.where(
                length[ok] >= s[taken] - self.segment, float(self.segment), s[taken] - length[ok]
            )
        place = int(((s > self.segment) & (h <= h[s > self.segment].min())).nonzero()[0])
        raise SolverError(
            f"{self.problem.where(place, float(s[place]))}: the adjoint found no step within rtol and atol, or "
            f"not in {tolerance.max_steps} steps: raise them, or use gradient='exact'."
        )
