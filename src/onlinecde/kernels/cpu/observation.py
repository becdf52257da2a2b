"""What one observation moves: scaling, the merge rule and the entries of its value leg, in one call.

Plain IEEE arithmetic, no reordering: the numbers are those of the encoding in torch.
"""

from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.compiled import kernel


class Scaling(NamedTuple):
    """How a model sees time, values and counts (`onlinecde.controls.Encoding`)."""

    time_shift: float
    time_scale: float
    shift: np.ndarray
    scale: np.ndarray
    gain: np.floating
    clip: np.floating
    """Infinite where values are not clipped."""
    counts: bool
    log_counts: bool
    count_gain: np.floating
    linear: float
    """Scaled time beyond it is bounded; infinite where none is."""


class Held(NamedTuple):
    """A state's arrays besides z: (stream,) times and (stream, channel) rows."""

    time: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    observed: np.ndarray
    previous: np.ndarray
    previous_time: np.ndarray


class Plan(NamedTuple):
    """The legs an observation takes, and what will be held after it."""

    held: Held
    first: np.ndarray
    """(stream,) bool: this is the stream's first row, so z is set, not moved."""
    again: np.ndarray
    """(stream,) bool: this instant has begun already: start from z before its values."""
    dt: np.ndarray
    old: np.ndarray
    new: np.ndarray
    """(stream, path channel): X before the row's values and after, time of the clock."""
    pointer: np.ndarray
    channel: np.ndarray
    dx: np.ndarray


@kernel
def _scaled_count(count, scaling):
    if scaling.log_counts:
        count = np.log1p(count)
    return count * scaling.count_gain


@kernel
def _scaled_time(t, scaling):
    scaled = (t - scaling.time_shift) / scaling.time_scale
    beyond = abs(scaled) - scaling.linear
    if beyond > 0:
        return np.sign(scaled) * (scaling.linear + beyond / (1 + beyond))
    return scaled


@kernel
def scale_times(times, scaling):
    """Scaled time of each of times (time, stream)."""
    scaled = np.empty_like(times)
    for n in range(times.size):
        scaled.flat[n] = _scaled_time(times.flat[n], scaling)
    return scaled


@kernel
def plan_observation(clock, x, since, held, plan, scaling):
    """Fill `plan` for x (stream, channel) at clock (stream,); False where the observation is not right."""
    streams, channels = x.shape
    entry = 0
    for n in range(streams):
        t = clock[n]
        if not np.isfinite(t) or t < held.time[n]:
            return False
        again = t == held.time[n]
        began = held.previous_time[n] if again else held.time[n]
        first = np.isnan(began)
        since[n] = t if first or again else began
        plan.again[n], plan.first[n] = again, first
        now, then = _scaled_time(t, scaling), _scaled_time(since[n], scaling)
        plan.dt[n] = now - then
        plan.held.time[n] = t
        plan.held.previous_time[n] = began
        plan.old[n, 0], plan.new[n, 0] = then, now
        plan.pointer[n] = entry
        for c in range(channels):
            raw = x[n, c]
            here = not np.isnan(raw)
            if np.isinf(raw):
                return False
            value = (raw - scaling.shift[c]) / scaling.scale[c]
            value = min(max(value, -scaling.clip), scaling.clip) * scaling.gain
            before = again and held.observed[n, c]
            if here and before and value != held.values[n, c]:
                return False
            base = held.previous[n, c] if again else held.values[n, c]
            count = held.counts[n, c] - (1 if before else 0)
            observed = here or before
            if not here:
                value = held.values[n, c] if before else base
            plan.held.values[n, c] = value
            plan.held.counts[n, c] = count + (1 if observed else 0)
            plan.held.observed[n, c] = observed
            plan.held.previous[n, c] = base
            plan.old[n, 1 + c], plan.new[n, 1 + c] = base, value
            if observed:
                plan.channel[entry] = 1 + c
                plan.dx[entry] = plan.new[n, 1 + c] - plan.old[n, 1 + c]
                entry += 1
            if scaling.counts:
                j = 1 + channels + c
                plan.old[n, j] = _scaled_count(count, scaling)
                plan.new[n, j] = _scaled_count(plan.held.counts[n, c], scaling)
                if observed:
                    plan.channel[entry] = j
                    plan.dx[entry] = plan.new[n, j] - plan.old[n, j]
                    entry += 1
    plan.pointer[streams] = entry
    return True


def empty_plan(streams: int, channels: int, counts: bool, dtype: np.dtype) -> Plan:
    """A plan for `plan_observation` to fill."""
    wide = channels * (2 if counts else 1)
    rows = (streams, channels)
    return Plan(
        Held(
            np.empty(streams), np.empty(rows, dtype), np.empty(rows, dtype),
            np.empty(rows, np.bool_), np.empty(rows, dtype), np.empty(streams),
        ),
        np.empty(streams, np.bool_),
        np.empty(streams, np.bool_),
        np.empty(streams, dtype),
        np.empty((streams, 1 + wide), dtype),
        np.empty((streams, 1 + wide), dtype),
        np.empty(streams + 1, np.int64),
        np.empty(streams * wide, np.int64),
        np.empty(streams * wide, dtype),
    )  # fmt: skip


def observe_once(dtype: np.dtype) -> None:
    """Plan one made observation, with the types that all of them have."""
    rows = np.ones((1, 1), dtype)
    one = rows[0, 0]
    scaling = Scaling(0.0, 1.0, rows[0], rows[0], one, one, True, True, one, 1.0)
    held = Held(np.zeros(1), rows, rows, np.ones((1, 1), np.bool_), rows, np.zeros(1))
    plan_observation(np.ones(1), rows, np.zeros(1), held, empty_plan(1, 1, True, dtype), scaling)
    scale_times(np.ones((2, 1)), scaling)
