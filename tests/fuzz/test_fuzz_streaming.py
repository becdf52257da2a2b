"""A million random events, most of them wrong in some way: every one is accounted for, no state is not finite."""

import numpy as np
import torch

import onlinecde as oc
from onlinecde.streaming import Engine, EventBatch
from onlinecde.streaming.codec import StateCodec

CHANNELS = [f"c{n}" for n in range(6)]
EVENTS, TOGETHER, STREAMS = 1_000_000, 25_000, 3_000
STRANGE_TIMES = np.array([np.nan, np.inf, -np.inf, 1e300, -1e18, 1e9, -0.0, 5e-324])
STRANGE_VALUES = np.array([np.nan, np.inf, -np.inf, 1e300, 3.4e38, -3.4e38, 1e30, -1e20, 5e-324])


def fuzzed(random, clock, disorder):
    """Columns of a micro-batch: times that go on from `clock`, values of every size, some nonsense."""
    stream = random.integers(0, STREAMS, TOGETHER)
    late = random.random(TOGETHER) < disorder
    times = (
        clock + np.linspace(0, 1, TOGETHER) + np.where(late, random.normal(0, 0.3, TOGETHER), 0.0)
    )
    times = np.where(random.random(TOGETHER) < disorder, np.round(times, 1), times)
    values = random.normal(size=TOGETHER) * 10.0 ** random.integers(-3, 3, TOGETHER)
    odd = random.random(TOGETHER)
    times = np.where(odd < 0.01, random.choice(STRANGE_TIMES, TOGETHER), times)
    values = np.where((odd > 0.01) & (odd < 0.02), random.choice(STRANGE_VALUES, TOGETHER), values)
    channels = np.where((odd > 0.02) & (odd < 0.025), -1, random.integers(0, 6, TOGETHER))
    again = np.where(
        random.random(TOGETHER) < disorder / 10,
        random.integers(0, TOGETHER, TOGETHER),
        np.arange(TOGETHER),
    )
    stream, times, channels, values = stream[again], times[again], channels[again], values[again]
    return EventBatch([f"s{n}" for n in range(STREAMS)], times, channels, values, of=stream)


def test_a_million_events_leave_only_finite_states(rng):
    torch.manual_seed(0)
    model = oc.NeuralCDE(channels=6, hidden=8, outputs=2, field={"width": 8}).eval()
    engine = Engine(model, channels=CHANNELS, lateness=0.5)
    seen = np.zeros(5, np.int64)
    for number in range(EVENTS // TOGETHER):
        receipts = engine.apply(fuzzed(rng, number, disorder=0.01 if number % 10 else 0.3))
        seen += np.bincount(receipts.outcomes, minlength=5)
        assert len(receipts.refusals) == (receipts.outcomes == 4).sum()
        assert np.isfinite(receipts.answers.outputs).all()
    assert seen.sum() == EVENTS == engine.counters["received"]
    assert (seen > 0).all()
    assert {"not_finite", "too_late", "value_not_finite", "value_too_large", "time_absurd",
            "time_not_finite", "channel_unknown"} <= set(engine.refusals)  # fmt: skip
    streams = engine.overview().streams
    codec = StateCodec(model.init_state(1), engine.model_hash)
    states = codec.decode([state.body for state in engine.store.states()])
    assert len(states) == len(streams)
    for name in ("z", "before", "values", "counts", "previous", "time"):
        assert bool(getattr(states, name).isfinite().all())
    assert np.isfinite(engine.predict_many(streams, 1e4).outputs).all()
