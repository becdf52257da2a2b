"""`Problem`, all there is to say about one solve, and `Backend`, what may solve it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from onlinecde.solvers.fields import VectorField
from onlinecde.solvers.runge_kutta import Tableau
from onlinecde.solvers.segments import PathSegments

Gradient = Literal["exact", "backprop", "adjoint"]
BackendName = Literal["auto", "torch", "cpu", "gpu"]
Precision = Literal["highest", "high"]
Returns = Literal["knots", "rows", "end"]


@dataclass(frozen=True)
class Tolerance:
    """When an adaptive step is accepted: its error within `atol + rtol |z|`, root mean square over hidden."""

    rtol: float
    atol: float
    joint: bool
    """One error and one step for the whole batch, as torchdiffeq does; else one a stream."""
    max_steps: int


@dataclass(frozen=True)
class Needs:
    """What gradients are asked of."""

    z0: bool = False
    time: bool = False
    slopes: bool = False
    drive: bool = False
    field: bool = False

    @property
    def path(self) -> bool:
        """Whether gradients of the path itself are."""
        return self.time or self.slopes

    @property
    def any(self) -> bool:
        return self.z0 or self.path or self.drive or self.field


NOTHING = Needs()


@dataclass(frozen=True, eq=False)
class Problem:
    """One solve of `dz = f(z) dX` from z0: along what, of which field, by which method, and what is wanted."""

    segments: PathSegments
    field: VectorField
    z0: Tensor
    """(stream, hidden), in the segments' order of streams"""
    table: Tableau
    where: Callable[[int, float], str]
    """Names the stream at a place and the time at a knot, for errors."""
    tolerance: Tolerance | None = None
    """None with fixed steps."""
    returns: Returns = "knots"
    gradient: Gradient = "exact"
    backend: BackendName = "auto"
    precision: Precision = "highest"
    capture: bool = False
    """Whether it goes into a CUDA graph: a launch costs next to nothing, and no number can be looked at."""
    across: bool = False
    """Whether adaptive steps may pass the knots."""
    needs: Needs = NOTHING

    @property
    def every(self) -> int:
        """z is wanted at every `every`-th knot, the first included."""
        return 1 if self.returns == "knots" else self.segments.per_row

    def path_gradients(self, needs: Needs) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Zeros shaped as (time, slopes, drive), to add gradients to; None where they are not asked for."""
        wanted = zip(self.path_inputs, (needs.time, needs.slopes, needs.drive), strict=True)
        time, slopes, drive = (
            torch.zeros_like(x) if needed and x is not None else None for x, needed in wanted
        )
        return time, slopes, drive

    @property
    def path_inputs(self) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """(time, slopes, drive), which gradients may be asked of."""
        return self.segments.time, self.segments.slopes, self.segments.drive

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to solve."""
        return not self.segments.count or not self.z0.shape[0]

    @property
    def written_out(self) -> bool:
        """Whether gradients are found by a backend, not by autograd."""
        # Which streams move is data: a traced program must not depend on it.
        exact = self.gradient == "exact" and not torch.compiler.is_compiling()
        return exact and torch.is_grad_enabled()

    def prepared(self) -> Problem:
        """The problem with what its field sees of the path, and what needs gradients."""
        segments = self.segments.shown_to(self.field)
        return replace(self, segments=segments, needs=needs_of(segments, self.field, self.z0))


def needs_of(segments: PathSegments, field: VectorField, z0: Tensor) -> Needs:
    """What gradients are asked of, as things stand."""
    if not torch.is_grad_enabled():
        return NOTHING
    inputs = (z0, segments.time, segments.slopes, segments.drive)
    wanted = (x is not None and x.requires_grad for x in inputs)
    return Needs(*wanted, field=any(p.requires_grad for p in field.parameters()))


@dataclass(frozen=True, eq=False)
class Solved:
    """What a backend's forward gives."""

    z: Tensor
    """(knot, stream, hidden)"""
    reason: str = ""
    """Why this backend, in words."""
    tape: Any = None
    """What its backward needs besides z and the weights."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of all that goes into a solve; None where they were not asked for."""

    z0: Tensor
    time: Tensor | None
    slopes: Tensor | None
    drive: Tensor | None
    weights: tuple[Tensor | None, ...]


class Backend(ABC):
    """Code that solves with fixed steps, and finds exact gradients.

    `unsupported` says in words why it cannot take a problem, or None.
    """

    name: str
    """As `Solution.backend` gives it."""
    device: str | None = None
    """The kind of device that it has kernels for; None for plain torch."""
    skips_knots = False
    """Whether it gives z at every `problem.every`-th knot, not at all of them."""
    saves_states = True
    """Whether its backward reads z: then a change of z in place is noticed."""
    saves_weights = True
    """Whether its backward reads the weights themselves: a change in place is noticed."""

    def stride(self, problem: Problem) -> int:
        """Number of knots from one z that `forward` gives to the next."""
        return 1 if self.skips_knots else problem.every

    def trajectory(self, problem: Problem) -> tuple[Tensor, str]:
        """z at every `problem.every`-th knot, and why by this backend; autograd records what is plain torch."""
        if problem.is_empty:
            knots = problem.segments.count // problem.every + 1
            return problem.z0[None].expand(knots, -1, -1), ""
        solved = self.forward(problem, self.weights(problem))
        return solved.z[:: self.stride(problem)], solved.reason

    @abstractmethod
    def unsupported(self, problem: Problem) -> str | None:
        """Why it cannot take a problem, or None where it can."""

    @abstractmethod
    def weights(self, problem: Problem) -> tuple[Tensor, ...]:
        """The tensors it reads of the field: parameters, or differentiable functions of them."""

    @abstractmethod
    def forward(self, problem: Problem, weights: tuple[Tensor, ...]) -> Solved:
        """z at the knots; what `backward` needs is kept where `problem.needs` any gradient."""

    @abstractmethod
    def backward(
        self,
        problem: Problem,
        solved: Solved,
        weights: tuple[Tensor, ...],
        g: Tensor,
        needs: Needs,
    ) -> Gradients:
        """Exact gradients, from those of z at the knots (knot, stream, hidden)."""
