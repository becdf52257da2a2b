"""`Solver`: the settings of a solve, checked once; `Solution`: what comes of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal, get_args

from torch import Tensor

from onlinecde.solvers.backends.base import (
    BackendName,
    Gradient,
    Precision,
    Problem,
    Returns,
    Tolerance,
    needs_of,
)
from onlinecde.solvers.fields import VectorField
from onlinecde.solvers.runge_kutta import TABLEAUS, Tableau, tableau
from onlinecde.solvers.segments import PathSegments

StepControl = Literal["stream", "batch"]
CHOICES = {
    "gradient": get_args(Gradient),
    "backend": get_args(BackendName),
    "precision": get_args(Precision),
    "step_control": get_args(StepControl),
}


@dataclass(frozen=True, eq=False)
class Solution:
    """z where it was asked for, and what it cost."""

    z: Tensor
    """(stream, row, hidden) at the rows; (stream, knot, hidden) at the knots; (stream, hidden) at
    the end; (stream, query, hidden) at query times. After its last row a stream stands still."""
    nfe: Tensor
    """(stream,) int64: how often the vector field was evaluated."""
    steps: Tensor
    """(stream,) int64: accepted steps."""
    rejected: Tensor
    """(stream,) int64: rejected steps; 0 with fixed steps."""
    backend: str
    """Which code did the work: "torch", or fused kernels: "cpu", "gpu"."""
    reason: str
    """Why that one."""


@dataclass(frozen=True)
class Solver:
    """How to solve: a method, its steps, and how gradients are found. The same settings as in `solve`.

    >>> Solver(method="rk4", steps=2).gradient
    'exact'
    """

    method: str = "rk4"
    _: KW_ONLY
    steps: int = 1
    max_step: float | None = None
    rtol: float | None = None
    atol: float | None = None
    step_control: StepControl = "stream"
    max_steps: int = 10_000
    gradient: Gradient = "exact"
    backend: BackendName = "auto"
    precision: Precision = "highest"

    def __post_init__(self) -> None:
        tableau(self.method)
        for name, choices in CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name in ("steps", "max_steps"):
            object.__setattr__(self, name, _whole(getattr(self, name), name))
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}: give at least 1 step a segment.")
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}: give at least 1.")
        if self.max_step is not None and not self.max_step > 0:
            raise ValueError(f"max_step is {self.max_step}: give a positive time.")
        if self.rtol is not None or self.atol is not None:
            self._check_tolerances()

    def _check_tolerances(self) -> None:
        rtol, atol = self.rtol, self.atol
        if rtol is None or atol is None:
            raise ValueError("adaptive steps need both rtol and atol: give both, or neither.")
        if self.table.error is None:
            *others, last = (name for name, one in TABLEAUS.items() if one.error is not None)
            raise ValueError(
                f"{self.method} has no error estimate: for adaptive steps choose {', '.join(others)} or {last}."
            )
        if not (rtol >= 0 and atol >= 0 and rtol + atol > 0):
            raise ValueError(f"rtol is {rtol} and atol {atol}: give positive tolerances.")
        if self.backend in ("cpu", "gpu"):
            raise ValueError(
                f"backend='{self.backend}' takes fixed steps only: use 'auto' with rtol and atol."
            )
        if self.steps != 1 or self.max_step is not None:
            raise ValueError(
                "steps and max_step are for fixed steps: leave them out with rtol and atol."
            )

    @cached_property
    def table(self) -> Tableau:
        """The coefficients of `method`."""
        return tableau(self.method)

    @cached_property
    def tolerance(self) -> Tolerance | None:
        """The tolerances of adaptive steps; None with fixed steps."""
        if self.rtol is None or self.atol is None:
            return None
        return Tolerance(self.rtol, self.atol, self.step_control == "batch", self.max_steps)

    def problem(
        self,
        segments: PathSegments,
        field: VectorField,
        z0: Tensor,
        where: Callable[[int, float], str],
        *,
        returns: Returns = "knots",
        across: bool = False,
    ) -> Problem:
        """The problem of solving along some segments by these settings; z0 in their order of streams.

        `where(place, knot)` names the stream at a place and the time at a knot, for errors.
        """
        segments = segments.shown_to(field)
        return Problem(
            segments=segments,
            field=field,
            z0=z0,
            table=self.table,
            where=where,
            tolerance=self.tolerance,
            returns=returns,
            gradient=self.gradient,
            backend=self.backend,
            precision=self.precision,
            capture=segments.active is None,
            across=across,
            needs=needs_of(segments, field, z0),
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices[:-1])
        raise ValueError(f"{name} is {value!r}: choose {listed} or {choices[-1]!r}.")


def _whole(number: int, name: str) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ValueError(f"{name} is {number!r}: give a whole number.") from None
