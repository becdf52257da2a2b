"""Alarms between rows: the same as offline, whoever looks and when, through eviction, restarts and late events."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_streams import CHANNELS

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, Event, MemoryStore, SQLiteStore, StreamClock


def swinging_model():
    """Its answer swings from row to row and between them."""
    torch.manual_seed(23)
    model = oc.NeuralCDE(channels=3, hidden=6, outputs=1, field={"width": 8}, counts=False)
    with torch.no_grad():
        model.field.weight *= 4
        for layer in model.field.inner:
            layer.weight *= 3
        model.readout.layers.weight *= 3
    return model.double().eval()


MODEL = swinging_model()
CLOCK = StreamClock(rate=1.0, silent_after=3.0)
POLICY = AlarmPolicy(0.05, rearm=0.0, quiet=0.5, every=0.25)


class Wall:
    """A wall clock that a test moves."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def made_engine(store=None, wall=None, clock=CLOCK, policy=POLICY, **changes):
    return Engine(
        MODEL, store or MemoryStore(), channels=CHANNELS, clock=wall or Wall(), stream_clock=clock,
        policy=policy, **{"lateness": 2.0, "recent": 2, "checkpoint_rows": 4, **changes},
    )  # fmt: skip


def random_rows(random, streams=6, rows=20):
    """(time, stream, values) in order of time; gaps of all sizes, some longer than a stream is followed."""
    made = []
    for stream in range(streams):
        times = np.cumsum(
            random.choice([0.1, 0.25, 0.6, 1.3, 5.0], rows, p=[0.2, 0.2, 0.3, 0.2, 0.1])
        )
        for time in times + random.integers(0, 4) / 8:
            made.append((float(time), f"s{stream}", random.normal(size=3) * 2))
    return sorted(made, key=lambda row: row[:2])


def sent(row, **changes):
    time, stream, values = row
    return [
        Event(stream, time, name, value)
        for name, value in zip(CHANNELS, values.tolist(), strict=True)
    ]


def alarms_of(engine):
    return sorted(
        (one.stream, one.time, round(one.probability, 9), one.rose) for one in engine.alarms()
    )


def offline(rows, until, policy=POLICY):
    """What the model says on the grid of all rows, and where the policy raises alarms there."""
    found = []
    for stream in sorted({row[1] for row in rows}):
        own = [row for row in rows if row[1] == stream]
        times = np.array([[row[0] for row in own]])
        batch = oc.SeriesBatch.from_padded(
            torch.tensor(times), torch.tensor(np.array([[row[2] for row in own]]))
        )
        looks, real = policy.looks(times, [until[stream]], silent_after=CLOCK.silent_after)
        with torch.no_grad():
            said = MODEL(batch, at=torch.tensor(looks))[..., 0].numpy()
        for look in np.flatnonzero(policy.alarm_times(said, looks, real)[0]):
            at = float(looks[0, look])
            rose = "at a row" if at in times else "between rows"
            found.append((stream, at, round(float(said[0, look]), 9), rose))
    return found


@pytest.mark.parametrize("policy", [POLICY, AlarmPolicy(0.1, every=0.1), AlarmPolicy(0.05, 0.0)])
def test_alarms_are_those_of_the_offline_model_on_the_grid(policy):
    rows, wall = random_rows(np.random.default_rng(1)), Wall()
    engine = made_engine(wall=wall, policy=policy)
    for row in rows:
        wall.time = 100.0 + row[0]
        engine.look()
        engine.apply(sent(row))
    wall.time += 10.0
    engine.look()
    last = {row[1]: row[0] for row in rows}
    until = {stream: time + CLOCK.silent_after for stream, time in last.items()}
    wanted = offline(rows, until, policy)
    assert alarms_of(engine) == wanted
    assert {one[3] for one in wanted} == {"at a row", *(["between rows"] if policy.every else [])}


WAYS = st.fixed_dictionaries(
    {
        "looks": st.floats(0, 1),
        "evictions": st.floats(0, 1),
        "restarts": st.floats(0, 0.3),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def late_rows(random, streams=3, rows=14):
    """(wall, events): rows that come after the clock has passed them, out of order, corrected and split in two."""
    arrivals = []
    for time, stream, values in random_rows(random, streams, rows):
        delay = float(random.choice([0.0, 0.4, 1.1, 1.9], p=[0.4, 0.3, 0.2, 0.1]))
        events = sent((time, stream, values))
        parts = [events[:1], events[1:]] if random.random() < 0.3 else [events]
        for part in parts:
            arrivals.append((100.0 + time + delay, part))
            delay += float(random.choice([0.0, 0.3]))
        if random.random() < 0.2:
            arrivals.append((100.0 + time + delay + 0.3, [Event(stream, time, CHANNELS[0], 3.0)]))
    return sorted(arrivals, key=lambda one: one[0])


def followed(arrivals, folder, way, policy, origins):
    """The alarms of an engine that is looked at, evicted from and started anew as it happens."""
    random, wall = np.random.default_rng(way["seed"]), Wall()
    file = Path(folder) / f"{way['seed']}-{id(way)}.db"

    def opened():
        store = SQLiteStore(file, synchronous="NORMAL")
        return made_engine(
            store, wall, policy=policy, resident=2 if way["evictions"] > 0.7 else 100
        )

    engine = opened()
    for stream, origin in origins.items():
        engine.open_stream(stream, origin=origin)
    for at, events in arrivals:
        for moment in np.sort(random.uniform(wall.time, at, 2)) if at > wall.time else ():
            if random.random() < way["looks"]:
                wall.time = float(moment)
                engine.look()
            if random.random() < way["evictions"]:
                engine.evict([f"s{random.integers(3)}"])
            if random.random() < way["restarts"]:
                engine.close()
                engine = opened()
        wall.time = at
        engine.apply(events)
    wall.time += 9.0
    engine.look()
    alarms, raised = alarms_of(engine), [one.raised for one in engine.alarms()][::-1]
    engine.close()
    return alarms, raised


# A failure is one seed already; making it smaller takes minutes.
@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 2.0]), st.booleans(), WAYS)
def test_nobody_can_tell_from_the_alarms_when_looks_were_made(seed, quiet, with_origins, way):
    """Late rows, corrections, evictions and restarts: alarms are those of an engine that only ever took rows."""
    arrivals = late_rows(np.random.default_rng(seed))
    policy = AlarmPolicy(0.0, -0.1, quiet, every=0.25)
    origins = {"s0": 100.0, "s1": 99.7} if with_origins else {}
    with tempfile.TemporaryDirectory() as folder:
        never = {"looks": 0.0, "evictions": 0.0, "restarts": 0.0, "seed": 0}
        wanted = followed(arrivals, folder, never, policy, origins)
        found = followed(arrivals, folder, way, policy, origins)
    assert found[0] == wanted[0]
    # The wall clock is that of whoever looked first.
    assert all(one <= other for one, other in zip(found[1], wanted[1], strict=True))
