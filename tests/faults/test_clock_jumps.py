"""A wall clock that jumps changes no state; event times that jump are refused or follow the rule."""

import numpy as np
from killable_engine import CHANNELS, made_engine, micro_batches

from onlinecde.streaming import Engine, Event


def test_a_jumping_wall_clock_changes_no_state_and_evicts_nobody_for_good(rng):
    now, seen = [1.7e9], []

    def clock():
        now[0] += float(rng.choice([1.0, 3.2e8, -3.2e8, 0.0]))
        seen.append(now[0])
        return now[0]

    steady, jumping = made_engine(), made_engine()
    jumping.clock = clock
    for events in micro_batches(seed=8)[:80]:
        assert [r.outcome for r in jumping.apply(events)] == [
            r.outcome for r in steady.apply(events)
        ]
        jumping.evict_idle(60.0)
    assert min(np.diff(seen)) < 0 < max(np.diff(seen))
    for stream in steady.overview().streams:
        assert jumping.state(stream) == steady.state(stream)
        assert jumping.stream(stream).rows == steady.stream(stream).rows


def test_event_times_that_jump_do_not_poison_a_stream(rng):
    model = made_engine().model
    engine = Engine(model, channels=CHANNELS, lateness=1.0, ahead=24.0)
    clean = Engine(model, channels=CHANNELS, lateness=1.0, ahead=24.0)
    refused = 0
    for hour in range(60):
        good = Event("bed 1", float(hour), "a", float(rng.normal()))
        jump = Event("bed 1", float(hour + rng.choice([-5000.0, 5000.0, 1e9, -1e9])), "b", 1.0)
        clean.apply([good])
        receipts = engine.apply([good, jump] if hour else [good])
        refused += receipts.counts["refused"]
    assert refused == 59
    assert set(engine.refusals) <= {"too_late", "time_ahead", "time_absurd"}
    assert engine.state("bed 1") == clean.state("bed 1")
