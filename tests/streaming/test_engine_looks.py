"""Alarms between rows are the same as offline: whoever looks and when, through eviction, restarts and late events."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_streams import CHANNELS
from swinging_streams import (
    CLOCK,
    POLICY,
    Wall,
    alarms_of,
    made_engine,
    offline,
    random_rows,
    rising_rows,
    sent,
)

from onlinecde.controls import Measurability
from onlinecde.models import AlarmPolicy, OnlineModel, StreamState
from onlinecde.streaming import Engine, Event, MemoryStore, SQLiteStore, StreamClock, looks


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
        "restarts": st.sampled_from([0.0, 0.2, 1.0]),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def late_rows(random, streams=3, rows=9):
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


def followed(arrivals, way, policy, origins):
    """The alarms of an engine that is looked at, evicted from and started anew as it happens."""
    random, wall, store = np.random.default_rng(way["seed"]), Wall(), MemoryStore()

    def opened():
        resident = 2 if way["evictions"] > 0.7 else 100
        return made_engine(store, wall, policy=policy, resident=resident)

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
            if random.random() < 0.5 * way["restarts"]:
                engine = opened()
        wall.time = at
        engine.apply(events)
        if random.random() < way["restarts"]:
            engine = opened()
    wall.time += 9.0
    engine.look()
    return alarms_of(engine), [one.raised for one in engine.alarms()][::-1]


# A failure is one seed already; making it smaller takes minutes.
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from([-0.1, 1.0]),  # above the threshold: alarms are repeated
    st.booleans(),
    WAYS,
)
def test_nobody_can_tell_from_the_alarms_when_looks_were_made(
    seed, quiet, rearm, with_origins, way
):
    """Late rows, corrections, evictions and restarts: alarms are those of an engine that only ever took rows."""
    arrivals = late_rows(np.random.default_rng(seed))
    policy = AlarmPolicy(0.0, rearm if quiet else -0.1, quiet, every=0.25)
    origins = {"s0": 100.0, "s1": 99.7} if with_origins else {}
    never = {"looks": 0.0, "evictions": 0.0, "restarts": 0.0, "seed": 0}
    wanted = followed(arrivals, never, policy, origins)
    found = followed(arrivals, way, policy, origins)
    assert found[0] == wanted[0], (seed, quiet, rearm, with_origins, way)
    # The wall clock is that of whoever looked first.
    assert all(one <= other for one, other in zip(found[1], wanted[1], strict=True))


def test_a_time_without_a_server_is_made_up_for_in_order_and_bounded(tmp_path, monkeypatch):
    wall, policy = Wall(), AlarmPolicy(0.0, every=0.25)
    engine = made_engine(SQLiteStore(tmp_path / "live.db"), wall, policy=policy)
    rows = rising_rows(policy)
    for row in rows:
        engine.apply(sent(row))
    engine.close()
    wall.time += 50.0
    again = made_engine(SQLiteStore(tmp_path / "live.db"), wall, policy=policy)
    assert [alarm[:2] for alarm in alarms_of(again)] == []
    again.look()
    last = dict.fromkeys(("s0", "s1", "s2"), CLOCK.silent_after)
    assert alarms_of(again) == offline(rows, last, policy)
    again.close()
    monkeypatch.setattr(looks, "MADE_UP", 2)
    bounded = made_engine(
        SQLiteStore(tmp_path / "live.db"), wall, policy=AlarmPolicy(9.0, every=0.25)
    )
    bounded.apply(sent((1.0, "s9", rows[0][2])))
    wall.time += 50.0
    assert sum(piece.looks for piece in bounded.look_pieces()) <= 2 * 4
    bounded.close()


def test_writers_go_on_between_pieces_and_no_alarm_is_lost(monkeypatch):
    """Looks from one thread, rows from two others: the alarms are the offline model's."""
    monkeypatch.setattr(looks, "PIECE", 2)
    rows = random_rows(np.random.default_rng(7), streams=8, rows=15)
    wall, done = Wall(), threading.Event()
    engine = made_engine(wall=wall, clock=StreamClock(1e-9, CLOCK.silent_after))
    looked = []

    def look():
        while not done.is_set():
            wall.time += 1e-3
            for piece in engine.look_pieces():
                looked.append(piece.looks)

    def write(streams):
        for row in rows:
            if row[1] in streams:
                engine.apply(sent(row))

    threads = [
        threading.Thread(target=write, args=({f"s{n}" for n in half},))
        for half in (range(4), range(4, 8))
    ]
    watcher = threading.Thread(target=look)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    last = {row[1]: row[0] for row in rows}
    assert alarms_of(engine) == offline(rows, last)


@dataclass(frozen=True, eq=False)
class CurveState(StreamState):
    time: torch.Tensor
    values: torch.Tensor


class Curve(OnlineModel):
    """Says a + b s + c s², s after a row with values a, b and c."""

    measurability = Measurability.CONTINUOUS
    channels, outputs, static = 3, 1, 0

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, batch, at=None, *, final=False):
        raise NotImplementedError

    def init_state(self, streams=1, static=None):
        wide = {"dtype": torch.float64}
        return CurveState(torch.full((streams,), np.nan, **wide), torch.zeros(streams, 3, **wide))

    def observe(self, state, t, x):
        return CurveState(torch.full_like(state.time, t), torch.as_tensor(x, dtype=torch.float64))

    def predict(self, state, t=None):
        after = 0.0 * state.time if t is None else torch.as_tensor(t) - state.time
        return (state.values * after[:, None] ** torch.arange(3)).sum(1, keepdim=True)


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_row_that_the_clock_has_passed_is_a_new_view_of_what_came_after(looked, restarted):
    """An alarm at 1 that was over at 4 stays; the row at 0.5 then has the risk rise again, at 2."""
    wall, store, policy = Wall(), MemoryStore(), AlarmPolicy(1.0, rearm=0.5, every=1.0)

    def opened():
        clock = StreamClock(1.0, 24.0)
        return Engine(
            Curve(), store, channels=CHANNELS, clock=wall, stream_clock=clock, policy=policy
        )

    engine = opened()
    engine.apply(sent((0.0, "s", np.array([0.0, 2.0, -0.6]))))
    wall.time += 4.2
    if looked:
        assert [alarm.time for alarm in engine.look()] == [1.0]
    wall.time += 0.1
    raised = engine.apply(sent((0.5, "s", np.array([0.9, 0.2, 0.0])))).alarms
    assert [(alarm.time, alarm.rose) for alarm in raised] == (
        [] if looked else [(1.0, "between rows")]
    )
    engine = opened() if restarted else engine
    assert engine.alarms()[0].rearmed is not None
    wall.time += 2.0
    assert [alarm.time for alarm in engine.look()] == [2.0]
    assert engine.alarms()[1].rearmed <= 1.0
