"""Answers between rows: at each tick of a shared clock, from the newest row before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from onlinecde.scale.spark.bucket import Bucket
from onlinecde.scale.spark.columns import answer_frame
from onlinecde.streaming.reading import ask
from onlinecde.streaming.stretch import states_of, stretch


def due(wall: float, step: float) -> int:
    """Number of the last tick up to a wall clock; ticks are `step` seconds apart.

    >>> due(7199.9, 3600.0), due(7200.0, 3600.0)
    (1, 2)
    """
    return int(np.floor(wall / step))


def answers_between(bucket: Bucket, answered: int | None, newest: int) -> Any:
    """A frame of the answers of a bucket's streams at the ticks after `answered`, up to `newest`."""
    plan, following = bucket.plan, bucket.following
    assert plan.every is not None
    step = plan.every / plan.rate
    streams = [stream for stream in bucket.store.streams() if stream.origin is not None]
    following.bring([stream.name for stream in streams])
    held, easy, hard = following.residents, [], []
    for stream in streams:
        slot, origin = held.slot_of[stream.name], float(stream.origin or 0.0)
        first = float(held.first[slot])
        start = due(origin + first / plan.rate, step)
        ticks = np.arange(start if answered is None else max(start, answered + 1), newest + 1)
        times = (ticks * step - origin) * plan.rate
        times = times[(times >= first) & (times <= held.last[slot] + plan.silent_after)]
        if not len(times):
            continue
        if times[0] >= held.last[slot]:
            easy.append((slot, times))
        else:
            hard.append((slot, times))
    slots = [slot for slot, times in easy for _ in times]
    clock = [times for _, times in easy]
    parts = []
    if slots:
        parts.append(ask(following, held.newest(np.array(slots)), np.concatenate(clock)))
    for slot, times in hard:
        # Rows after a tick are here already: answer from the row before it.
        found = stretch(following, slot, float(times[0]), float(times[-1]))
        place = np.searchsorted(found.times, times, side="right") - 1
        heard = times <= found.times[place] + plan.silent_after
        if heard.any():
            states = states_of(following, found, place[heard])
            parts.append(ask(following, states, times[heard]))
            slots += [slot] * int(heard.sum())
            clock.append(times[heard])
    if not slots:
        return None
    outputs = np.concatenate(parts)
    return answer_frame(
        [held.names[slot] for slot in slots],
        np.concatenate(clock),
        "between",
        outputs=outputs,
        probabilities=following.probabilities(outputs),
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
