"""`Solver`: the settings of a solve, checked once, and the solve along one chain of pieces."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from onlinecde.solvers import adaptive, adjoint, fixed, fused, fused_gpu
from onlinecde.solvers.adaptive import Tolerance
from onlinecde.solvers.chain import Chain
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import MLPField, VectorField, check_gradients, is_plain
from onlinecde.solvers.fused_gpu import Precision
from onlinecde.solvers.surroundings import Surroundings
from onlinecde.solvers.tableau import Tableau, tableau

Gradient = Literal["exact", "backprop", "adjoint"]
Backend = Literal["auto", "torch", "cpu", "gpu"]
StepControl = Literal["stream", "batch"]
CHOICES = {
    "gradient": get_args(Gradient),
    "backend": get_args(Backend),
    "precision": get_args(Precision),
    "step_control": get_args(StepControl),
}
ADJOINT = "the adjoint equation does not follow that: use gradient='exact' or gradient='backprop'"
ADAPTIVE = "adaptive steps compare evaluations that may then differ by chance, and take some twice: use fixed steps"


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
    backend: Backend = "auto"
    precision: Precision = "highest"

    def __post_init__(self) -> None:
        tableau(self.method)
        for name, choices in CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name in ("steps", "max_steps"):
            object.__setattr__(self, name, _whole(getattr(self, name), name))
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}: give at least 1 step a piece.")
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
            raise ValueError(
                f"{self.method} has no error estimate: for adaptive steps choose heun, bosh3, dopri5 "
                "or tsit5."
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

    def run(
        self,
        chain: Chain,
        field: VectorField,
        z0: Tensor,
        where: Callable[[int, float], str],
        across: bool = False,
    ) -> Solution:
        """z (knot, stream, hidden) and costs; z0 and all else in the chain's order of streams.

        A compiled program calls it as it is: unrolling hundreds of stages would gain nothing. Under
        autocast it is done in the field's dtype all the same: what is added up over many steps
        should not be rounded at each.
        `where(place, s)` names the stream at a place and the time at parameter s, for errors.
        """
        if torch.compiler.is_dynamo_compiling():
            # Marking a function opaque loads the compiler, so it is done only under it.
            from onlinecde.solvers.opaque import run

            return run(self, chain, field, z0, where, across)  # pyright: ignore[reportCallIssue]
        if torch.is_autocast_enabled(z0.device.type):
            with torch.autocast(z0.device.type, enabled=False):
                laid, start = _in_dtype_of(field, chain, z0)
                return self.run(laid, field, start, where, across)
        if self.tolerance is None:
            return self._fixed(chain, field, z0, where)
        return self._adaptive(chain, field, z0, where, self.tolerance, across)

    def _fixed(
        self, chain: Chain, field: VectorField, z0: Tensor, where: Callable[[int, float], str]
    ) -> Solution:
        on_gpu = self.backend == "gpu" or (z0.is_cuda and self.backend != "cpu")
        if on_gpu:
            reason = fused_gpu.why_not(field, self.table, z0, self.gradient, self.backend)
            if reason is None and isinstance(field, MLPField):
                reason = fused_gpu.no_room(chain, field, self.table, z0, self.backend)
        else:
            reason = fused.why_not(field, chain, z0, self.gradient, self.backend)
        if reason is None and isinstance(field, MLPField):
            if on_gpu:
                z, why = fused_gpu.checked_trajectory(chain, field, self.table, z0, self.precision)
                name = "gpu"
            else:
                z = fused.trajectory(chain, field, self.table, z0)
                name, why = "cpu", "an MLPField on the CPU with fixed steps"
        else:
            name, why = "torch", reason or ""
            if self.gradient != "backprop":
                check_gradients(field, z0)
            if self.gradient == "adjoint":
                with _undisturbed(field, z0, ADJOINT), torch.no_grad():
                    knots = fixed.trajectory(chain, field, self.table, z0, exact=False)
                z = adjoint.trajectory(chain, field, self.table, z0, knots, None, where)
            else:
                z = fixed.trajectory(chain, field, self.table, z0, self.gradient == "exact")
        check_finite(z.detach(), where)
        taken = chain.lengths * chain.steps
        if chain.time_steps is not None:
            leg = torch.arange(chain.time_steps.shape[0], device=chain.lengths.device)[:, None]
            real = leg < (chain.lengths + 1)[None, :] // 2
            taken = (chain.time_steps * real).sum(0) + chain.lengths // 2 * chain.steps
        return Solution(z, taken * self.table.stages, taken, torch.zeros_like(taken), name, why)

    def _adaptive(
        self,
        chain: Chain,
        field: VectorField,
        z0: Tensor,
        where: Callable[[int, float], str],
        tolerance: Tolerance,
        across: bool,
    ) -> Solution:
        if self.gradient != "backprop":
            check_gradients(field, z0)
        with _undisturbed(field, z0, ADAPTIVE):
            done = adaptive.walk(chain, field, self.table, z0, tolerance, across, where)
        z = done.knots
        if torch.is_grad_enabled():
            if self.gradient == "adjoint":
                z = adjoint.trajectory(chain, field, self.table, z0, z, tolerance, where)
            else:
                exact = self.gradient == "exact"
                z = adaptive.trajectory(chain, field, self.table, z0, done, across, exact)
        return Solution(z, done.nfe, done.accepted, done.rejected, "torch", "adaptive steps")


@contextmanager
def _undisturbed(field: VectorField, z: Tensor, remedy: str) -> Iterator[None]:
    """Refuse gradients of a field that draws random numbers or changes its buffers inside; both are put back."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_plain(field):
        yield
        return
    around = Surroundings(field, z)
    yield
    around.mark()
    if (change := around.change()) is not None:
        around.go_back()
        raise ValueError(f"the vector field {change}, and {remedy}, or field.eval().")


def _in_dtype_of(field: VectorField, chain: Chain, z0: Tensor) -> tuple[Chain, Tensor]:
    """A chain and z0 in the dtype of the field's parameters."""
    dtype = next((weight.dtype for weight in field.parameters()), z0.dtype)
    time, drive = (None if x is None else x.to(dtype) for x in (chain.time, chain.drive))
    return replace(chain, time=time, slopes=chain.slopes.to(dtype), drive=drive), z0.to(dtype)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices[:-1])
        raise ValueError(f"{name} is {value!r}: choose {listed} or {choices[-1]!r}.")


def _whole(number: int, name: str) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ValueError(f"{name} is {number!r}: give a whole number.") from None


def check_finite(z: Tensor, where: Callable[[int, float], str]) -> None:
    """Raise for the first knot and stream at which z (knot, stream, hidden) is not finite."""
    if torch.compiler.is_compiling() or (z.is_cuda and torch.cuda.is_current_stream_capturing()):
        return  # a traced program cannot stop half-way
    # The sum meets every NaN and infinity in one fast pass; only then is the mask worth building.
    if bool(z.sum().isfinite()) or bool((finite := z.isfinite().all(2)).all()):
        return
    knot, place = (int(i) for i in (~finite).nonzero()[0])
    raise SolverError(
        f"{where(place, knot)}: the state is no longer finite: the inputs or the weights are too "
        "large. Scale the series (Encoding.fit), take more steps, or lower the learning rate."
    )
