"""`solve`: along a control path, from z at its start to z wherever it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onlinecde.controls import Path
from onlinecde.controls.path import query_times, rows_at
from onlinecde.solvers import adaptive, adjoint, gradients
from onlinecde.solvers.backends.base import BackendName, Gradient, Precision, Problem, Returns
from onlinecde.solvers.backends.choice import choose
from onlinecde.solvers.counting import note_evaluations
from onlinecde.solvers.errors import not_finite
from onlinecde.solvers.fields import VectorField, as_field, check_gradients, is_plain
from onlinecde.solvers.segments import PathSegments, PiecewisePath, query_segments, segments_of
from onlinecde.solvers.solver import Solution, Solver, StepControl
from onlinecde.solvers.surroundings import Surroundings

ADJOINT = "the adjoint equation does not follow that: use gradient='exact' or gradient='backprop'"
ADAPTIVE = "adaptive steps compare evaluations that may then differ by chance, and take some twice: use fixed steps"


def solve(
    path: PiecewisePath,
    field: VectorField | Callable[[Tensor], Tensor],
    z0: Tensor,
    method: str = "rk4",
    *,
    steps: int = 1,
    max_step: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    step_control: StepControl = "stream",
    max_steps: int = 10_000,
    outputs: Returns = "rows",
    at: Any = None,
    gradient: Gradient = "exact",
    backend: BackendName = "auto",
    precision: Precision = "highest",
) -> Solution:
    """Solve `dz = f(z) dX` from z0 (stream, hidden) along a path.

    Knots are step boundaries, except that adaptive steps (those with `rtol` and `atol`) pass the
    knots of a smooth path when only the end is asked for.

    Args:
        path: a control path, or one of your own: any object with `channels`, `pieces` and `piece(i)`,
            the polynomial coefficients of piece i and the channels that it moves (`controls.path.Piece`).
        field: any module z (stream, hidden) -> (stream, hidden, channel).
        z0: z at the start, (stream, hidden).
        method: one of `onlinecde.solvers.TABLEAUS`.
        steps: fixed steps on each segment.
        max_step: the longest step on a time leg, in the units of the series' times.
        rtol: relative tolerance of adaptive steps.
        atol: absolute tolerance of adaptive steps.
        step_control: whether each "stream" chooses its steps, or the "batch" as one.
        max_steps: the most adaptive steps of a stream.
        outputs: z at the "rows", the "knots" or the "end".
        at: query times, (query,) or (stream, query), from each stream's first row on. Between rows
            and after the last one, time of a rectilinear path goes on and values stand still; on
            other paths z is read on the way to the next row.
        gradient: "exact" recomputes each segment in the backward from z at the knots; "backprop" records
            everything, as `torch.func` needs it; "adjoint" solves the adjoint equation.
        backend: the code that does the work; "auto" takes the fastest that can.
        precision: of products in the GPU kernels: "highest" is float32's, "high" takes half-precision operands.

    Raises:
        SolverError: a state is no longer finite, or `max_steps` did not suffice; it names the
            stream and the time.
    """
    solver = Solver(
        method, steps=steps, max_step=max_step, rtol=rtol, atol=atol, step_control=step_control,
        max_steps=max_steps, gradient=gradient, backend=backend, precision=precision,
    )  # fmt: skip
    return solve_with(solver, path, field, z0, outputs=outputs, at=at)


def solve_with(
    solver: Solver,
    path: PiecewisePath | PathSegments,
    field: VectorField | Callable[[Tensor], Tensor],
    z0: Tensor,
    *,
    outputs: Returns = "rows",
    at: Any = None,
) -> Solution:
    """`solve` with settings that were checked before.

    Segments that were built before may stand in place of a path; queries need the path itself.
    """
    if not isinstance(path, (Path, PathSegments)) and not isinstance(path, PiecewisePath):
        raise TypeError(
            f"a {type(path).__name__} is no control path: build one of a SeriesBatch, as "
            "onlinecde.controls.rectilinear(batch) does, or give an object with channels, pieces and piece(i)."
        )
    if not isinstance(z0, Tensor):
        raise TypeError(f"z0 is a {type(z0).__name__}: give a tensor (stream, hidden).")
    if outputs not in ("rows", "end", "knots"):
        raise ValueError(f"outputs is {outputs!r}: choose 'rows', 'end' or 'knots'.")
    _check_transforms(solver)
    if isinstance(path, PathSegments):
        if at is not None:
            raise ValueError("at needs a path, and segments were given: leave it out.")
        segments = path
    else:
        segments = _segments_for(path, z0, solver)
    streams, dtype = segments.streams, segments.slopes.dtype
    if z0.ndim != 2 or z0.shape[0] != streams:
        raise ValueError(
            f"z0 has shape {tuple(z0.shape)}: give (stream, hidden) for {streams} streams."
        )
    if z0.dtype != dtype:
        raise ValueError(f"z0 is {z0.dtype} and the path {dtype}: give both the same dtype.")
    field = as_field(field, z0.shape[1], segments.channels)
    pieces = segments.count if isinstance(path, PathSegments) else path.pieces
    smooth = isinstance(path, Path) and path.smooth
    # The adjoint starts anew from z at every knot, so it needs them all.
    across = smooth and outputs == "end" and at is None and solver.gradient != "adjoint"
    problem = solver.problem(
        segments,
        field,
        _in_order(z0, segments),
        _naming(path, segments),
        returns="knots" if across or at is not None else outputs,
        across=across,
    )
    done = solve_problem(problem)
    note_evaluations(done.nfe)
    z = _in_own_order(done.z, problem, pieces)
    if at is not None:
        assert not isinstance(path, PathSegments)
        return _at_times(solver, path, field, segments, done, z, at)
    return _answer(done, segments, z[-1] if outputs == "end" else z.transpose(0, 1))


def _segments_for(path: PiecewisePath, z0: Tensor, solver: Solver) -> PathSegments:
    """The segments of a path. Errors name the path's own attributes."""
    rows = getattr(path, "rows", None)
    if isinstance(rows, Tensor) and (z0.ndim != 2 or z0.shape[0] != rows.shape[0]):
        raise ValueError(
            f"z0 has shape {tuple(z0.shape)}: give (stream, hidden) for {rows.shape[0]} streams."
        )
    return segments_of(path, solver.steps, solver.max_step)


def _check_transforms(solver: Solver) -> None:
    """Refuse `torch.func` where it cannot follow: through gradients that are written out, and steps chosen by data."""
    if not torch._C._are_functorch_transforms_active():
        return
    if solver.gradient != "backprop" or solver.tolerance is not None:
        kind = f"gradient='{solver.gradient}'" if solver.tolerance is None else "adaptive steps"
        raise ValueError(
            f"torch.func (vmap, grad, jacrev, ...) cannot look into a solve with {kind}: use "
            "gradient='backprop' and fixed steps."
        )


def _naming(
    path: PiecewisePath | PathSegments, segments: PathSegments
) -> Callable[[int, float], str]:
    """Names the stream at a place and the time at a knot."""
    names = getattr(path, "streams", None)

    def where(place: int, knot: float) -> str:
        stream = place if segments.order is None else int(segments.order[place])
        name = f"stream {names[stream]!r}" if isinstance(names, Sequence) else f"stream {stream}"
        if isinstance(path, Path):
            return f"{name} at time {float(path.time_of_s(knot)[stream, 0]):g}"
        return f"{name} at knot {knot:g}"

    return where


def _in_order(z: Tensor, segments: PathSegments) -> Tensor:
    return z if segments.order is None else z[segments.order]


def _in_own_order(z: Tensor, problem: Problem, pieces: int) -> Tensor:
    """z (knot, stream, hidden) with its streams in the order of the path, and at all its knots."""
    segments = problem.segments
    if segments.order is not None:
        z = z[:, torch.argsort(segments.order)]
    if segments.count < pieces:
        still = pieces // problem.every + 1 - len(z)
        z = torch.cat([z, z[-1:].expand(still, -1, -1)])
    return z


def _answer(done: Solution, segments: PathSegments, z: Tensor) -> Solution:
    """z as it was asked for, and costs in the order of the path's streams."""
    costs = (done.nfe, done.steps, done.rejected)
    if segments.order is not None:
        inverse = torch.argsort(segments.order)
        costs = (done.nfe[inverse], done.steps[inverse], done.rejected[inverse])
    return Solution(z, *costs, done.backend, done.reason)


def _at_times(
    solver: Solver,
    path: PiecewisePath,
    field: VectorField,
    segments: PathSegments,
    done: Solution,
    z: Tensor,
    at: Any,
) -> Solution:
    """From z at the knot before each query time, go on along what of the path leads there."""
    if not isinstance(path, Path):
        raise ValueError(
            f"at needs a path that knows its times, and a {type(path).__name__} may not: subclass "
            "onlinecde.controls.Path."
        )
    clock = query_times(at, path.rows.shape[0], path.times.device)
    row = rows_at(path.times, path.lengths, clock, path.streams)
    ahead, knot = query_segments(path, segments, clock, row, field.sees_path)
    stream = torch.arange(clock.shape[0], device=clock.device)[:, None].expand_as(row)
    start = z[knot, stream].flatten(0, 1)

    def where(place: int, knot: float) -> str:
        asked = divmod(place, clock.shape[1])
        return f"stream {path.streams[asked[0]]!r} at time {float(clock[asked]):g}"

    reached = solve_problem(solver.problem(ahead, field, start, where))
    note_evaluations(reached.nfe)
    before = _answer(done, segments, reached.z[-1].unflatten(0, clock.shape))
    return replace(
        before,
        nfe=before.nfe + reached.nfe.view(clock.shape).sum(1),
        steps=before.steps + reached.steps.view(clock.shape).sum(1),
        rejected=before.rejected + reached.rejected.view(clock.shape).sum(1),
    )


def solve_problem(problem: Problem) -> Solution:
    """z at every `problem.every`-th knot (knot, stream, hidden), and costs, in the segments' order of streams.

    A compiled program calls it as it is: unrolling hundreds of stages would gain nothing. Under
    autocast it is done in the field's dtype all the same: what is added up over many steps
    should not be rounded at each.
    """
    if torch.compiler.is_dynamo_compiling():
        # Marking a function opaque loads the compiler, so it is done only under it.
        from onlinecde.solvers.opaque import solve_uncompiled

        return solve_uncompiled(problem)  # pyright: ignore
    device = problem.z0.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            dtype = next((w.dtype for w in problem.field.parameters()), problem.z0.dtype)
            segments = problem.segments.to(dtype)
            return solve_problem(replace(problem, segments=segments, z0=problem.z0.to(dtype)))
    return _fixed(problem) if problem.tolerance is None else _adaptive(problem)


def _fixed(problem: Problem) -> Solution:
    backend, reason = choose(problem)
    z0, segments = problem.z0, problem.segments
    if backend.device is None and problem.gradient != "backprop":
        check_gradients(problem.field, z0)
    if problem.gradient == "adjoint":
        plain = replace(problem, returns="knots")
        with _undisturbed(problem.field, z0, ADJOINT), torch.no_grad():
            knots, _ = backend.trajectory(plain)
        z = adjoint.trajectory(plain, knots)[:: problem.every]
    else:
        with_gradients = problem.written_out
        z, own_reason = (
            gradients.trajectory(problem, backend)
            if with_gradients
            else backend.trajectory(problem)
        )
        reason = reason or own_reason
    check_finite(z, problem)
    taken = segments.lengths * segments.steps
    if segments.time_steps is not None:
        leg = torch.arange(segments.time_steps.shape[0], device=segments.lengths.device)[:, None]
        real = leg < (segments.lengths + 1)[None, :] // 2
        taken = (segments.time_steps * real).sum(0) + segments.lengths // 2 * segments.steps
    stages = problem.table.stages
    return Solution(z, taken * stages, taken, torch.zeros_like(taken), backend.name, reason)


def _adaptive(problem: Problem) -> Solution:
    tolerance, field, z0 = problem.tolerance, problem.field, problem.z0
    assert tolerance is not None
    if problem.gradient != "backprop":
        check_gradients(field, z0)
    with _undisturbed(field, z0, ADAPTIVE):
        done = adaptive.walk(problem, tolerance)
    z = done.knots
    if torch.is_grad_enabled():
        by_adjoint = problem.gradient == "adjoint"
        z = adjoint.trajectory(problem, z) if by_adjoint else adaptive.trajectory(problem, done)
    z = z[:: problem.every]
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


def check_finite(z: Tensor, problem: Problem) -> None:
    """Raise for the first knot and stream at which z, at every `problem.every`-th knot, is not finite."""
    z = z.detach()
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return  # a traced program cannot stop half-way
    if problem.capture:
        return
    check_states(z, lambda place, knot: problem.where(place, knot * problem.every))


def check_states(z: Tensor, where: Callable[[int, int], str]) -> None:
    """Raise for the first place at which z (knot, stream, hidden) is not finite; no look inside a CUDA graph."""
    if z.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    # The sum meets every NaN and infinity in one fast pass; only then is the mask worth building.
    if bool(z.sum().isfinite()) or bool((finite := z.isfinite().all(2)).all()):
        return
    knot, place = (int(i) for i in (~finite).nonzero()[0])
    raise not_finite(where(place, knot))
