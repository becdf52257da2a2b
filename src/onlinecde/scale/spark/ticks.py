"""Answers between rows: at each tick of a shared clock, from the newest row before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from onlinecde.scale.spark.bucket import Bucket
from onlinecde.scale.spark.columns import answer_frame
from onlinecde.streaming.past import past_of, states_of
from onlinecde.streaming.pipeline.integrate import predict


def due(wall: float, step: float) -> int:
    """Number of the last tick up to a wall clock; ticks are `step` seconds apart.

    >>> due(7199.9, 3600.0), due(7200.0, 3600.0)
    (1, 2)
    """
    return int(np.floor(wall / step))


def answers_between(bucket: Bucket, answered: int | None, newest: int) -> Any:
    """A frame of the answers of a bucket's streams at the ticks after `answered`, up to `newest`."""
    plan, state = bucket.plan, bucket.state
    assert plan.every is not None
    step = plan.every / plan.rate
    streams = [stream for stream in bucket.store.streams() if stream.origin is not None]
    state.bring([stream.name for stream in streams])
    easy, hard = [], []
    for stream in streams:
        slot, origin = state.slot_of[stream.name], float(stream.origin or 0.0)
        first = float(state.first[slot])
        start = due(origin + first / plan.rate, step)
        ticks = np.arange(start if answered is None else max(start, answered + 1), newest + 1)
        times = (ticks * step - origin) * plan.rate
        times = times[(times >= first) & (times <= state.last[slot] + plan.silent_after)]
        if not len(times):
            continue
        if times[0] >= state.last[slot]:
            easy.append((slot, times))
        else:
            hard.append((slot, times))
    slots = [slot for slot, times in easy for _ in times]
    clock = [times for _, times in easy]
    parts = []
    if slots:
        parts.append(predict(state.model, state.newest(np.array(slots)), np.concatenate(clock)))
    for slot, times in hard:
        # Rows after a tick are here already: answer from the row before it.
        past = past_of(state, slot, float(times[0]), float(times[-1]))
        place = np.searchsorted(past.times, times, side="right") - 1
        heard = times <= past.times[place] + plan.silent_after
        if heard.any():
            states = states_of(state, past, place[heard])
            parts.append(predict(state.model, states, times[heard]))
            slots += [slot] * int(heard.sum())
            clock.append(times[heard])
    if not slots:
        return None
    outputs = np.concatenate(parts)
    return answer_frame(
        [state.names[slot] for slot in slots],
        np.concatenate(clock),
        "between",
        outputs=outputs,
        probabilities=state.served.probabilities(outputs),
    )


def still_heard(bucket: Bucket, tick: int) -> bool:
    """Whether any stream of a bucket may have an answer at a tick."""
    plan = bucket.plan
    assert plan.every is not None
    wall = tick * plan.every / plan.rate
    for stream, state in zip(bucket.store.streams(), bucket.store.states(), strict=True):
        if stream.origin is not None:
            time = (wall - stream.origin) * plan.rate
            if time <= state.time + plan.silent_after:
                return True
    return False
