"""Plain torch, for any field: the reference that all other backends are judged by."""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.solvers.backends.base import Backend, Gradients, Needs, Problem, Solved
from onlinecde.solvers.runge_kutta import Contract, take_segment
from onlinecde.solvers.surroundings import Surroundings, check_recomputed


class TorchReference(Backend):
    """Calls the field; its backward recomputes each segment from z at its start, and lets autograd do the rest."""

    name = "torch"

    def unsupported(self, problem: Problem) -> str | None:
        return None

    def weights(self, problem: Problem) -> tuple[Tensor, ...]:
        return tuple(problem.field.parameters())

    def forward(self, problem: Problem, weights: tuple[Tensor, ...]) -> Solved:
        segments, z = problem.segments, problem.z0
        around = Surroundings(problem.field, z) if problem.needs.any and not _recorded() else None
        knots = [z]
        for segment in range(segments.count):
            n = segments.active_on(segment)
            increments, drive = segments.increments(segment), segments.seen(segment)
            contract = _contract(problem, segment)
            ahead = take_segment(
                segments, problem.table, contract, segment, z[:n], increments, drive
            )
            z = ahead if n == z.shape[0] else torch.cat([ahead, z[n:]])
            knots.append(z)
            if around is not None:
                around.mark()
        return Solved(torch.stack(knots), tape=around)

    def backward(
        self,
        problem: Problem,
        solved: Solved,
        weights: tuple[Tensor, ...],
        g: Tensor,
        needs: Needs,
    ) -> Gradients:
        sweep = _Sweep(problem, solved, weights, needs)
        upstream, g_z = g, g[-1]
        for segment in range(problem.segments.count - 1, -1, -1):
            g_z = sweep.back_over(segment, g_z) + upstream[segment]
        check_recomputed(sweep.off, solved.z)
        totals = iter(sweep.g_weights)
        g_weights = tuple(next(totals) if weight.requires_grad else None for weight in weights)
        return Gradients(g_z, sweep.g_time, sweep.g_slopes, sweep.g_drive, g_weights)


class _Sweep:
    """The way back over the segments, and the gradients it adds up."""

    def __init__(
        self, problem: Problem, solved: Solved, weights: tuple[Tensor, ...], needs: Needs
    ) -> None:
        self.problem, self.z, self.around = problem, solved.z, solved.tape
        self.wanted = [weight for weight in weights if weight.requires_grad]
        self.g_weights = [torch.zeros_like(weight) for weight in self.wanted]
        self.needs = needs
        self.g_time, self.g_slopes, self.g_drive = problem.path_gradients(needs)
        self.off = torch.zeros((), dtype=self.z.dtype, device=self.z.device)
        """By how much z came out otherwise when it was computed again."""

    def back_over(self, segment: int, g: Tensor) -> Tensor:
        """The gradient of z (stream, hidden) at a segment's start from that at its end."""
        segments, needs = self.problem.segments, self.needs
        n = segments.active_on(segment)
        z = self.z[segment, :n].detach().requires_grad_()
        increments = segments.increments(segment).detach()
        increments.requires_grad_(needs.time if segments.is_time_leg(segment) else needs.slopes)
        drive = segments.seen(segment)
        if drive is not None:
            drive = drive.detach().requires_grad_(needs.drive)
        inputs = [x for x in (z, increments, drive) if x is not None and x.requires_grad]
        with self.around.as_at(segment):
            with torch.enable_grad():
                contract = _contract(self.problem, segment)
                end = take_segment(
                    segments, self.problem.table, contract, segment, z, increments, drive
                )
            parts = list(
                torch.autograd.grad(end, [*inputs, *self.wanted], g[:n], allow_unused=True)
            )
        if n:
            self.off = self.off.maximum((end.detach() - self.z[segment + 1, :n]).abs().amax())
        g_z = parts.pop(0)
        if increments.requires_grad:
            self._add_increments(segment, n, parts.pop(0))
        if drive is not None and drive.requires_grad:
            self._add_drive(segment, n, parts.pop(0))
        for total, part in zip(self.g_weights, parts, strict=True):
            if part is not None:
                total += part
        return torch.cat([g_z, g[n:]]) if n < g.shape[0] else g_z

    def _add_increments(self, segment: int, n: int, part: Tensor | None) -> None:
        leg = self.problem.segments.leg(segment)
        if part is None:
            return
        if self.problem.segments.is_time_leg(segment):
            assert self.g_time is not None
            self.g_time[leg, :n] += part[:, 0, 0]
        else:
            assert self.g_slopes is not None
            self.g_slopes[leg, :n] += part

    def _add_drive(self, segment: int, n: int, part: Tensor | None) -> None:
        if part is None or self.g_drive is None:
            return
        if self.g_drive.ndim == 3:
            self.g_drive[segment : segment + 2, :n] += part
        else:
            self.g_drive[segment, :n] += part.transpose(0, 1)


def _recorded() -> bool:
    """Whether autograd records what is computed now."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling()


def _contract(problem: Problem, segment: int) -> Contract:
    """The field's own contraction over the channels that may move on a segment."""
    field, channels = problem.field, problem.segments.moved(segment)
    return lambda y, dx, drive: field.contract(y, dx, channels, drive)
