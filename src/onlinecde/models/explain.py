"""Exact attribution: what each event and each stretch of time added to an output.

On every leg the update of z is a sum over the channels that moved, stage by stage, so the step is
one too. With a linear readout the parts of z become parts of the output, and nothing is left
over. With a nonlinear one they are weighted by the readout's mean gradient on the way from knot to
knot, found by Gauss-Legendre quadrature; ramps and steps of a number count for that number. What
quadrature leaves over is shared out by the parts' sizes. What a tree says changes by the number at which
its paths part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.controls import Path
from onlinecde.models import online
from onlinecde.models.past import STATISTICS, numbers_of
from onlinecde.models.readout import is_linear_readout, is_plain_readout
from onlinecde.solvers import solve_with
from onlinecde.solvers.runge_kutta import advance, combine, fixed_steps, stages
from onlinecde.solvers.segments import PathSegments, drive_at, segments_of, slope_at

if TYPE_CHECKING:
    from onlinecde.models.neural_cde import CDEState, NeuralCDE

NODES = 8
"""Quadrature nodes a leg for a nonlinear readout."""
CLOSE = 1e-4
"""The share of a leg's parts that quadrature may leave over before the leg is halved."""
HALVINGS = 8
"""How often a leg is halved at most."""
AT_ONCE = 1 << 14
"""Gradients of the readout that are found together: many, for what a call costs, but not all of a long path's."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contributions that add up: `start + sum over rows up to i of (time + events)` is the output at row i."""

    start: Tensor
    """(stream, output): the output at the first row, which is where static features come in"""
    time: Tensor
    """(stream, row, output): what the passing of time up to each row added; 0 at the first"""
    events: Tensor
    """(stream, row, channel, output): what each channel's event at each row added; 0 at the first"""

    def outputs(self) -> Tensor:
        """The outputs at the rows, (stream, row, output), as the sum of their parts."""
        return self.start[:, None] + (self.time + self.events.sum(2)).cumsum(1)


@dataclass(frozen=True, eq=False)
class StepExplanation:
    """What one observation adds: `start + time + sum of events` is the output after it."""

    start: Tensor
    """(stream, output): the output before it; for a stream's first row, the output after it"""
    time: Tensor
    """(stream, output): the passing of time since the last row"""
    events: Tensor
    """(stream, channel, output): each channel observed"""


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Each module in eval mode, and then in the mode it was in: what is random cannot be explained."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def explain_path(
    model: NeuralCDE,
    path: Path,
    z0: Tensor,
    stamps: Tensor | None = None,
    static: Tensor | None = None,
) -> Explanation:
    """Contributions along a whole path; `stamps` as the model gives them for the batch, static (stream, feature)."""
    _check(model)
    solver = model.solver
    field = model.vector_field
    segments = segments_of(path, solver.steps, solver.max_step).shown_to(field)
    assert segments.order is not None
    assert segments.active is not None
    zs = solve_with(solver, path, field, z0, outputs="knots").z.transpose(0, 1)[:, segments.order]
    views, told = _views(model, path, stamps), _told(model, path, static)
    start = model.read(z0, *(None if x is None else x[0] for x in (views, told)))
    views, told = (None if x is None else x[:, segments.order] for x in (views, told))
    added = z0.new_zeros(*path.rows.shape, start.shape[1])
    for pieces in _blocks(segments.active):
        n, knots = segments.active[pieces[0]], slice(pieces[0], pieces[-1] + 2)
        inputs = _features(model, zs[knots, :n], None if views is None else views[knots, :n])
        outputs = _outputs(model, inputs)
        weights = _mean_gradients(model, inputs, outputs)
        for at, piece in enumerate(pieces):
            n = segments.active[piece]
            added[segments.order[:n], piece // path.pieces_per_row + 1] += _contributions(
                model,
                segments,
                piece,
                zs[piece, :n],
                inputs[at : at + 2, :n],
                weights[at, :n],
                outputs[at + 1, :n] - outputs[at, :n],
                *(None if x is None else x[piece : piece + 2, :n] for x in (views, told)),
            )
    return Explanation(start, *_fold(model, added))


def _blocks(active: tuple[int, ...]) -> Iterator[range]:
    """Stretches of pieces, of at most `AT_ONCE` pieces of streams each, or of one piece."""
    start = 0
    while start < len(active):
        stop = min(len(active), start + max(1, AT_ONCE // active[start]))
        yield range(start, stop)
        start = stop


def _told(model: NeuralCDE, path: Path, static: Tensor | None) -> Tensor | None:
    """What trees are told at the knots of a path, (knot, stream, number): before and after each row's values."""
    if model.trees is None:
        return None
    row = torch.arange(path.times.shape[1], device=path.times.device).repeat_interleave(2)
    # Of the first row there is one knot alone, after its values.
    row, clock = row[:-1].expand(len(path.times), -1), path.times.repeat_interleave(2, 1)[:, 1:]
    return model.past_along(path, static, row, clock).transpose(0, 1)


def _views(model: NeuralCDE, path: Path, stamps: Tensor | None) -> Tensor | None:
    """What the readout sees of a path at its knots, (knot, stream, ...)."""
    if not getattr(model.readout, "sees_path", False):
        return None
    times = path.times
    if path.pieces_per_row == 2:
        # Time has come to a row before its values have.
        times = torch.cat([times[:, :1], times[:, 1:].repeat_interleave(2, 1)], 1)
        if stamps is not None:
            pairs = torch.stack([stamps[:, :-1], stamps[:, 1:]], 2).flatten(1, 2)
            stamps = torch.cat([stamps[:, :1], pairs], 1)
    view = model.seen(path.evaluate(path.knots), model.ages(times, stamps))
    assert view is not None
    return view.transpose(0, 1)


def explain_step(model: NeuralCDE, state: CDEState, after: CDEState) -> StepExplanation:
    """Contributions of the row that leads from one state to the next."""
    _check(model)
    if model.control != "rectilinear":
        raise ValueError("single observations are explained for the rectilinear control.")
    first = after.previous_time.isnan()
    again = after.time == state.time
    since = torch.where(first | again, after.time, state.time)
    z = torch.where(again[:, None], state.before, state.z)
    z = torch.where(first[:, None], after.z, z)
    new = online.row(model, after.time, after.values, after.counts)
    old = online.row(model, since, after.previous, after.counts - after.observed.to(after.counts))
    old = torch.where(first[:, None], new, old)
    segments = online.segments_of_row(model, z, since, after.time, old, new, after.observed)
    segments = segments.shown_to(model.vector_field)
    zs = torch.stack([z, after.before, after.z])
    views = None
    if getattr(model.readout, "sees_path", False):
        xs = torch.stack([old, torch.cat([new[:, :1], old[:, 1:]], 1), new])
        times = torch.stack([since, after.time, after.time])
        stamps = None
        if after.stamps is not None:
            then, now = after.stamps, online.stamps_after(after)
            assert now is not None
            then = torch.where(first[:, None], now, then)
            stamps = torch.stack([then, then, now])
        views = model.seen(xs, model.ages(times, stamps))
    told = None
    if after.past is not None:
        now = online.told_at(model, after, after.time)
        assert now is not None
        before = [
            numbers_of(after.past, clock, model.beside_past(clock, after.static))
            for clock in (since, after.time)
        ]
        told = torch.stack([*(torch.where(first[:, None], now, one) for one in before), now])
    start = model.read(z, *(None if x is None else x[0] for x in (views, told)))
    added = z.new_zeros(*new.shape, start.shape[1])
    inputs = _features(model, zs, views)
    outputs = _outputs(model, inputs)
    weights = _mean_gradients(model, inputs, outputs)
    for piece in range(2):
        ends = slice(piece, piece + 2)
        seen = (None if x is None else x[ends] for x in (views, told))
        rise = outputs[piece + 1] - outputs[piece]
        added += _contributions(
            model, segments, piece, zs[piece], inputs[ends], weights[piece], rise, *seen
        )
    return StepExplanation(start, *_fold(model, added))


def _contributions(
    model: NeuralCDE,
    segments: PathSegments,
    piece: int,
    z: Tensor,
    ends: Tensor,
    weight: Tensor,
    difference: Tensor,
    views: Tensor | None,
    told: Tensor | None,
) -> Tensor:
    """What each channel of the path adds to the outputs on a piece, (stream, path channel, output).

    z (stream, hidden) at its start; at both its ends what the readout takes in, (2, stream, number), and what the
    readout sees, (2, stream, ...); weight (stream, output, number): its mean gradient between them; difference
    (stream, output): what the readout's layers make of them. `told` (2, stream, number): what trees are told there.
    """
    moved = segments.moved(piece)
    parts = _parts(model, segments, piece, z)
    step = torch.einsum("soh,sch->sco", weight[:, :, : model.hidden], parts)
    added = step.new_zeros(step.shape[0], segments.channels, step.shape[2])
    added[:, moved] += step
    if views is not None:
        rise = (ends[1] - ends[0])[:, model.hidden :]
        seen = weight[:, :, model.hidden :] * rise[:, None]
        if (ramps := _usual(model, "ramps")) is not None:
            seen = ramps.by_input(seen)
        added += _by_channel(segments, piece, seen.transpose(1, 2))
    if not is_linear_readout(model.readout):
        touched = torch.zeros_like(added[:, :, :1])
        touched[:, moved, 0] = (parts != 0).any(2).to(added.dtype)
        added = _share_out(added, difference, touched)
    if (steps := _usual(model, "steps")) is not None and views is not None:
        before, after = steps.by_input(views)
        alone = _by_channel(segments, piece, (after - before)[:, :, None])
        added += steps.share * (alone - added)
    if (trees := model.trees) is not None and told is not None:
        number = torch.arange(told.shape[2], device=told.device)
        own = number < len(STATISTICS) * model.channels
        channel = torch.where(own, 1 + number % model.channels, 0)
        if segments.is_time_leg(piece):
            channel = torch.zeros_like(channel)
        alone = trees.change(told[0], told[1], channel, segments.channels)
        added = (added + trees.share * (alone - added)).to(added.dtype)
    return added


def _by_channel(segments: PathSegments, piece: int, seen: Tensor) -> Tensor:
    """Parts of what a readout sees (stream, number, output) as parts of the path's channels."""
    added, ago = seen.split([segments.channels, seen.shape[1] - segments.channels], 1)
    added = added.clone()
    # How long ago a channel was observed grows with time, and falls to 0 with its event.
    if segments.is_time_leg(piece):
        added[:, 0] += ago.sum(1)
    else:
        added[:, 1 : 1 + ago.shape[1]] += ago
    return added


def _usual(model: NeuralCDE, name: str) -> Any:
    """The readout's `ramps` or `steps`, where it does nothing besides that they would have to be seen with."""
    return getattr(model.readout, name) if is_plain_readout(model.readout) else None


def _features(model: NeuralCDE, z: Tensor, seen: Tensor | None) -> Tensor:
    """What the readout's layers take in; of a readout of another kind, z and what it sees, one behind the other."""
    readout: Any = model.readout
    if is_plain_readout(readout):
        return readout.features(z, seen)
    return z if seen is None else torch.cat([z, seen], -1)


def _outputs(model: NeuralCDE, features: Tensor) -> Tensor:
    """What the readout makes of its `_features`, without its steps."""
    readout: Any = model.readout
    if is_plain_readout(readout):
        return readout.layers(features)
    z, seen = features[..., : model.hidden], features[..., model.hidden :]
    return readout(z, seen) if seen.shape[-1] else readout(z)


def _check(model: NeuralCDE) -> None:
    if getattr(model.readout, "forecasts", None) is not None:
        raise ValueError("forecasts are not explained: they are changes from the last value.")
    if model.solver.tolerance is not None:
        raise ValueError("attribution follows fixed steps: build the model without rtol and atol.")


def _fold(model: NeuralCDE, added: Tensor) -> tuple[Tensor, Tensor]:
    """Split (..., path channel, output) into time and channels, a count going with its value."""
    wide = model.encoding.value_channels
    values = added[..., 1 : 1 + wide, :]
    if model.counts:
        values = values + added[..., 1 + wide :, :]
    # Static features in X never move, so what is cut off here is 0.
    return added[..., 0, :], values[..., : model.channels, :]


def _parts(model: NeuralCDE, segments: PathSegments, piece: int, z: Tensor) -> Tensor:
    """What each moved channel adds to z on a piece, (stream, moved, hidden)."""
    table, field = model.solver.table, model.vector_field
    data, drive, channels = segments.increments(piece), segments.seen(piece), segments.moved(piece)
    columns: list[Tensor] = []

    def rate(y: Tensor, u: float | Tensor) -> Tensor:
        matrix = field(y, drive_at(drive, u))[:, :, channels].transpose(1, 2)
        columns.append(matrix * slope_at(data, u)[:, :, None])
        return columns[-1].sum(1)

    total = None
    for u, h in fixed_steps(segments, piece, z):
        columns.clear()
        z = advance(z, table.b, stages(table, rate, z, u, h), h)
        step = (h[:, :, None] if isinstance(h, Tensor) else h) * combine(table.b, columns)
        total = step if total is None else total + step
    assert total is not None
    return total


def _mean_gradients(model: NeuralCDE, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Mean gradient of the readout on the straight line from what it takes in at one knot to the next.

    (piece, stream, output, number), of inputs (knot, stream, number) and what the readout says of them,
    (knot, stream, output).
    """
    between = (len(inputs) - 1, inputs.shape[1])
    if is_linear_readout(model.readout):
        return model.readout.layers.weight.expand(*between, -1, -1)  # pyright: ignore[reportAttributeAccessIssue, reportReturnType, reportCallIssue]
    lines, ends = (torch.stack([x[:-1], x[1:]]).flatten(1, 2) for x in (inputs, outputs))
    return _settled_gradient(model, lines, ends, None, HALVINGS).unflatten(0, between)


def _settled_gradient(
    model: NeuralCDE, lines: Tensor, outputs: Tensor, allowed: Tensor | None, halvings: int
) -> Tensor:
    """The same, (line, output, number), for lines (2, line, number), halved where they have to be.

    Layer norm of a few numbers bends so sharply that the nodes of a whole line may miss it: those that do
    not come to what the readout says of their ends, said (2, line, output), are halved. `allowed` (line,
    output): by how much a line may be off.
    """
    weight = _gradient_at_nodes(model, lines[0], lines[1])
    parts, difference = weight * (lines[1] - lines[0])[:, None], outputs[1] - outputs[0]
    most = allowed
    if most is None:
        most = CLOSE * (difference.abs() + parts.abs().sum(2) + 0.01 * outputs.abs().amax(0))
    off = ((difference - parts.sum(2)).abs() > most).any(1)
    if halvings and bool(off.any()):
        middle = lines[:, off].mean(0)
        halves, ends = (
            torch.cat([torch.stack([x[0, off], half]), torch.stack([half, x[1, off]])], 1)
            for x, half in ((lines, middle), (outputs, _outputs(model, middle)))
        )
        gradients = [
            _settled_gradient(model, halves[:, some], ends[:, some], limit, halvings - 1)
            for some, limit in _in_blocks(most[off].repeat(2, 1))
        ]
        weight[off] = torch.cat(gradients).unflatten(0, (2, -1)).mean(0)
    return weight


def _in_blocks(lines: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """At most `AT_ONCE` of some lines at a time, and where they stand."""
    for start in range(0, len(lines), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        yield some, lines[some]


def _gradient_at_nodes(model: NeuralCDE, start: Tensor, stop: Tensor) -> Tensor:
    """The same for lines from start to stop (line, number), by quadrature alone."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    total = torch.zeros((), dtype=start.dtype, device=start.device)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        place = start + float(node) * (stop - start)
        total = total + float(weight) * torch.func.vmap(
            torch.func.jacrev(partial(_outputs, model))
        )(place)
    return total


def _share_out(added: Tensor, difference: Tensor, touched: Tensor) -> Tensor:
    """Parts (stream, path channel, output) that come to a difference (stream, output) to rounding.

    What quadrature has left over goes to parts by their size; where all are 0, to the channels (stream,
    path channel, 1) that were touched.
    """
    size = added.abs() + touched * torch.finfo(added.dtype).tiny
    total = size.sum(1, keepdim=True)
    left = difference[:, None] - added.sum(1, keepdim=True)
    return added + torch.where(total > 0, left * (size / total), 0.0)
