"""Exact gradients of fixed steps: one `autograd.Function` for every backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.backends.base import Backend, Needs, Problem, Solved
from onlinecde.solvers.first_order import once_by_solve


def trajectory(problem: Problem, backend: Backend) -> tuple[Tensor, str]:
    """z at every `problem.every`-th knot, (knot, stream, hidden), and why by this backend.

    With gradient="exact", z is kept at the knots and each segment is recomputed by the backend's
    backward; otherwise autograd records everything.
    """
    if not problem.segments.count or not problem.z0.shape[0]:
        knots = problem.segments.count // problem.every + 1
        return problem.z0[None].expand(knots, -1, -1), ""
    every = 1 if backend.skips_knots else problem.every
    weights = backend.weights(problem)
    # Which streams move is data: a traced program must not depend on it.
    record = problem.gradient != "exact" or torch.compiler.is_compiling()
    if record or not torch.is_grad_enabled():
        solved = backend.forward(problem, weights)
        return solved.z[::every], solved.reason
    run = _Run(problem, backend)
    z: Tensor = _FixedSteps.apply(run, problem.z0, *problem.path_inputs, *weights)  # pyright: ignore[reportAssignmentType]
    return z[::every], run.reason


class _Run:
    """A problem on its way through autograd, and what is kept of its solution."""

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self.problem, self.backend = problem, backend
        self.reason, self.tape = "", None


class _FixedSteps(torch.autograd.Function):
    """Discretise-then-optimise gradients; memory O(stream * knot * hidden)."""

    @staticmethod
    def forward(
        ctx: Any,
        run: _Run,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        solved = run.backend.forward(run.problem, weights)
        ctx.run, run.reason, run.tape = run, solved.reason, solved.tape
        # Saved as torch does it, so that a change in place is noticed.
        backend = run.backend
        ctx.save_for_backward(
            *((solved.z,) if backend.saves_states else ()),
            *(weights if backend.saves_weights else ()),
        )
        return solved.z

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        run, saved = ctx.run, ctx.saved_tensors
        z = saved[0] if run.backend.saves_states else grads[0]
        weights = tuple(saved[1:]) if run.backend.saves_weights else ()
        needs = Needs(*ctx.needs_input_grad[1:5], field=any(ctx.needs_input_grad[5:]))
        result = run.backend.backward(
            run.problem, Solved(z, tape=run.tape), weights, grads[0], needs
        )
        return (None, result.z0, result.time, result.slopes, result.drive, *result.weights)
