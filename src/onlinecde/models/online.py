"""The online step of a `NeuralCDE` in plain torch: the reference, and what is differentiated or exported."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from onlinecde.controls.fill import NEVER, count_dtype
from onlinecde.models.past import nothing_yet, numbers_of, take_row
from onlinecde.models.readout import behind
from onlinecde.models.state import (
    CDEState,
    StateError,
    as_numbers,
    check_merge,
    check_observation,
    merge,
    per_stream,
)
from onlinecde.solvers.segments import (
    PathSegments,
    one_segment,
    row_segments,
    steps_for,
    time_segment,
)
from onlinecde.solvers.solve import solve_problem

if TYPE_CHECKING:
    from onlinecde.models.neural_cde import NeuralCDE


def first_state(model: NeuralCDE, streams: int, static: Tensor | None) -> CDEState:
    """The state of streams of which nothing was observed yet; static (stream, feature)."""
    z = torch.zeros(streams, model.hidden, dtype=model.dtype, device=model.device)
    x = torch.full((streams, model.channels), NEVER, dtype=model.dtype, device=model.device)
    counts = torch.zeros_like(x, dtype=count_dtype(model.dtype))
    if model.static_in_path:
        # Static features stand in X from the beginning: no row will move them.
        assert static is not None
        scaled = model.encoding.scale_values(torch.cat([x, static], 1))[:, model.channels :]
        x, counts = torch.cat([x, scaled], 1), torch.cat([counts, torch.ones_like(scaled)], 1)
    never = torch.full((streams,), torch.nan, dtype=torch.float64, device=model.device)
    stamps = None
    if getattr(model.readout, "sees_ages", False):
        stamps = never[:, None].expand(-1, model.channels)
    observed = torch.zeros_like(x, dtype=torch.bool)
    last = model.first_last(streams)
    past = None if model.trees is None else nothing_yet(streams, model.channels, model.device)
    return CDEState(z, z, never, x, counts, observed, x, never, static, stamps, last, past)


def observe(model: NeuralCDE, state: CDEState, t: Any, x: Any) -> CDEState:
    """The state after x (stream, channel) at t, both checked."""
    clock = per_stream(t, len(state), model.device)
    values = as_numbers(x, "x", model.dtype, model.device)
    check_observation(state.time, clock, values, model.channels)
    if model.control != "rectilinear":
        _check_complete(model, state, clock, values)
    scaled = scale(model, values)
    check_merge(state, clock, scaled)
    return replace(take(model, state, clock, scaled), last=model.last_after(state.last, values))


def scale(model: NeuralCDE, x: Tensor) -> Tensor:
    """What was observed, (stream, channel), in the model's units; of static features in X, nothing."""
    if model.static_in_path:
        x = nn.functional.pad(x, (0, model.static), value=torch.nan)
    return model.encoding.scale_values(x)


def take(model: NeuralCDE, state: CDEState, clock: Tensor, scaled: Tensor) -> CDEState:
    """`observe` for checked times (stream,) and values as `scale` gives them; no branches on data."""
    again, observed, values, previous = merge(state, clock, scaled)
    same = again[:, None]
    base_counts = state.counts - (same & state.observed).to(state.counts.dtype)
    counts = base_counts + observed.to(base_counts.dtype)
    began = torch.where(again, state.previous_time, state.time)
    first = began.isnan()
    new = row(model, clock, values, counts)
    z0 = model.begin(new, state.static)
    start = torch.where(same, state.before, state.z)
    since = torch.where(first, clock, began)
    if model.control == "rectilinear":
        # In a merge time has come already: its leg has no length.
        since = torch.where(again, clock, since)
        old = row(model, since, previous, base_counts)
        before, z = row_legs(model, start, since, clock, old, new, observed)
    else:
        before = start
        old = row(model, since, previous, base_counts)
        z = piece(model, start, clock, old, new, _slope(model, state, old))
    return CDEState(
        z=torch.where(first[:, None], z0, z),
        before=torch.where(first[:, None], z0, before),
        time=clock,
        values=values,
        counts=counts,
        observed=observed,
        previous=previous,
        previous_time=torch.where(state.time.isnan(), state.time, began),
        static=state.static,
        stamps=stamps_before(state, again),
        past=past_before(state, again),
    )


def stamps_before(state: CDEState, again: Tensor) -> Tensor | None:
    """When each channel was last observed before the row to come, which (stream,) may be the last again."""
    now = stamps_after(state)
    if state.stamps is None or now is None:
        return None
    return torch.where(again[:, None], state.stamps, now)


def stamps_after(state: CDEState) -> Tensor | None:
    """When each channel was last observed, the last row included."""
    if state.stamps is None:
        return None
    observed = state.observed[:, : state.stamps.shape[1]]
    return torch.where(observed, state.time[:, None], state.stamps)


def past_before(state: CDEState, again: Tensor) -> Tensor | None:
    """Statistics of the rows before the one to come, which (stream,) may be the last again."""
    if state.past is None:
        return None
    return torch.where(again[:, None, None], state.past, _past_after(state, state.past))


def _past_after(state: CDEState, past: Tensor) -> Tensor:
    """Statistics with the last row of a state taken in."""
    wide = past.shape[1]
    return take_row(past, state.time, state.values[:, :wide], state.observed[:, :wide])


def told_at(model: NeuralCDE, state: CDEState, clock: Tensor) -> Tensor | None:
    """What trees are told at `clock` (stream,), (stream, number); None without trees."""
    if state.past is None:
        return None
    also = model.beside_past(clock, state.static)
    return numbers_of(_past_after(state, state.past), clock, also)


def row(model: NeuralCDE, clock: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """X at a row, (stream, path channel)."""
    parts = [model.encoding.scale_time(clock)[:, None].to(values.dtype), values]
    if model.counts:
        parts.append(model.encoding.scale_counts(counts).to(values.dtype))
    return torch.cat(parts, 1)


def _slope(model: NeuralCDE, state: CDEState, old: Tensor) -> Tensor | None:
    """For Hermite, dX/ds at the last row; NaN where it has none yet (the piece is straight)."""
    if model.control != "hermite":
        return None
    counts = state.counts - state.observed.to(state.counts)
    earlier = row(model, state.previous_time, state.previous, counts)
    return torch.where(state.previous_time.isnan()[:, None], torch.nan, old - earlier)


def _check_complete(model: NeuralCDE, state: CDEState, clock: Tensor, values: Tensor) -> None:
    gap = values.isnan() & (state.counts[:, : model.channels] > 0)
    if bool(gap.any()):
        stream, channel = (int(i) for i in gap.nonzero()[0])
        raise StateError(
            f"stream {stream}, channel {channel} is missing: the {model.control} control would "
            "fill it from the future. Use control='rectilinear' for series with gaps."
        )
    if bool((again := clock == state.time).any()):
        raise StateError(
            f"stream {int(again.nonzero()[0])}: its row at {float(clock[again][0])!r} is taken: "
            f"the {model.control} control takes each row whole. Use control='rectilinear'."
        )


def seen_at(model: NeuralCDE, state: CDEState, clock: Tensor) -> Tensor | None:
    """What the readout sees at `clock` (stream,) if nothing is observed until then; None for nothing."""
    if not getattr(model.readout, "sees_path", False):
        return state.last
    now = clock if model.control == "rectilinear" else state.time
    here = row(model, now, state.values, state.counts)
    return behind(model.seen(here, model.ages(clock, stamps_after(state))), state.last)


def answer(model: NeuralCDE, state: CDEState, clock: Tensor) -> Tensor:
    """`predict` for checked times (stream,); no branches on data."""
    if model.control != "rectilinear":
        return model.read(state.z, seen_at(model, state, state.time))
    here = there = None
    if model.vector_field.sees_path:
        here = row(model, state.time, state.values, state.counts)
        there = torch.cat([model.encoding.scale_time(clock)[:, None].to(here), here[:, 1:]], 1)
    z = time_leg(model, state.z, state.time, clock, here, there)
    return model.read(z, seen_at(model, state, clock), told_at(model, state, clock))


def row_legs(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> tuple[Tensor, Tensor]:
    """A time leg and a value leg from rows `old` to `new` (stream, path channel): z after each."""
    knots = _run(model, segments_of_row(model, z, since, clock, old, new, observed), z, clock)
    return knots[1], knots[2]


def segments_of_row(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> PathSegments:
    """The two legs that lead from row to row in all streams."""
    time = _scaled_gap(model, z, since, clock)
    steps = _steps(model, since, clock)
    return row_segments(old, new, time, observed, counts=model.counts, **steps)


def time_leg(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor | None,
    new: Tensor | None,
) -> Tensor:
    """A time leg alone: z at `clock` if nothing is observed until then.

    `old` and `new` (stream, path channel), X at both ends, are needed by a field that sees it.
    """
    time = _scaled_gap(model, z, since, clock)
    steps = _steps(model, since, clock)
    leg = time_segment(time, model.encoding.path_channels, old, new, counts=model.counts, **steps)
    return _run(model, leg, z, clock)[1]


def piece(
    model: NeuralCDE, z: Tensor, clock: Tensor, old: Tensor, new: Tensor, slope: Tensor | None
) -> Tensor:
    """One piece of a linear (slope None) or Hermite path from row to row: z after it."""
    rise = new - old
    if slope is None:
        slopes = rise[:, None]
    else:
        left = torch.where(slope.isnan(), rise, slope)
        bend = rise - left
        slopes = torch.stack([left, 4 * bend, -3 * bend], 1)
    return _run(model, one_segment(old, new, slopes, steps=model.solver.steps), z, clock)[1]


def _scaled_gap(model: NeuralCDE, z: Tensor, since: Tensor, clock: Tensor) -> Tensor:
    encoding = model.encoding
    return (encoding.scale_time(clock) - encoding.scale_time(since)).to(z.dtype)


def _steps(model: NeuralCDE, since: Tensor, clock: Tensor) -> dict[str, Any]:
    """The steps that a time leg of each stream takes."""
    max_step, time_steps = model.solver.max_step, None
    if max_step is not None:
        time_steps = steps_for(clock - since, max_step, range(len(clock)))[None]
    return {"steps": model.solver.steps, "max_step": max_step, "time_steps": time_steps}


def _run(model: NeuralCDE, segments: PathSegments, z: Tensor, clock: Tensor) -> Tensor:
    def where(place: int, knot: float) -> str:
        return f"stream {place} at time {float(clock[place]):g}"

    return solve_problem(model.solver.problem(segments, model.vector_field, z, where)).z
