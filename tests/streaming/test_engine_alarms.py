"""What an engine does between rows: whom it looks at, what it raises, and what goes wrong."""

import copy

import pytest
from made_streams import CHANNELS
from swinging_streams import MODEL, POLICY, Wall, made_engine, rising_rows, sent

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, MemoryStore, StoreFull, StreamingError


@pytest.fixture
def watched():
    """An engine with three streams, of which the model's answer rises to the threshold some time after their rows."""
    wall = Wall()
    engine = made_engine(wall=wall, policy=AlarmPolicy(0.0, every=0.25))
    rows = {row[1]: row for row in rising_rows(AlarmPolicy(0.0, every=0.25))}
    for row in rows.values():
        engine.apply(sent((0.0, row[1], row[2])))
    return engine, wall


def test_a_risk_that_rises_while_no_data_comes_is_an_alarm_on_the_grid(watched):
    engine, wall = watched
    assert engine.alarms() == []
    assert engine.look() == ()
    wall.time += 0.7
    assert engine.look() == ()
    wall.time += 2.3
    raised = engine.look()
    assert {alarm.stream for alarm in raised} == {"s0", "s1", "s2"}
    for alarm in raised:
        assert alarm.time % 0.25 == 0
        assert 0 < alarm.time <= 3
        assert alarm.rose == "between rows"
        assert alarm.probability >= alarm.threshold == 0.0
        assert alarm.raised == wall.time
        assert engine.predict(alarm.stream, alarm.time)[0] == pytest.approx(alarm.probability)
    assert engine.look() == ()
    assert engine.counters["alarms"] == 3


def test_a_silent_stream_is_no_longer_looked_at(watched):
    engine, wall = watched
    wall.time += 2.0
    first = sum(piece.looks for piece in engine.look_pieces())
    wall.time += 100.0
    second = sum(piece.looks for piece in engine.look_pieces())
    assert (first, second) == (3 * 8, 3 * 4)
    assert engine.stream("s0").looked == 3.0
    wall.time += 100.0
    assert list(engine.look_pieces()) == []


def test_streams_out_of_memory_are_looked_at_all_the_same(watched):
    engine, wall = watched
    other, other_wall = made_engine(wall=(twin := Wall()), policy=engine.policy), twin
    for row in rising_rows(engine.policy):
        other.apply(sent(row))
    engine.evict(["s0", "s2"])
    for step in (1.0, 0.4, 0.9, 1.0):
        wall.time += step
        other_wall.time += step
        found, wanted = engine.look(), other.look()
        assert sorted(map(shown, found)) == sorted(map(shown, wanted))
        assert engine.resident == 1
    assert len(engine.alarms()) == 3
    assert engine.stream("s0").looked == 3.0


def shown(alarm):
    return alarm.stream, alarm.time, round(alarm.probability, 9), alarm.rose


def test_a_forgotten_stream_raises_no_alarm(watched):
    engine, wall = watched
    engine.evict(["s0"])
    engine.forget("s0")
    engine.forget("s1")
    wall.time += 3.0
    assert {alarm.stream for alarm in engine.look()} == {"s2"}


def test_a_stream_whose_state_is_damaged_keeps_no_other_from_being_looked_at(watched):
    engine, wall = watched
    states = engine.store._states
    engine.evict(["s0", "s1", "s2"])
    states[1] = (*states[1][:-1], b"damaged")
    wall.time += 3.0
    assert {alarm.stream for alarm in engine.look()} == {"s1", "s2"}


def test_looks_that_a_store_could_not_take_are_made_again(watched, monkeypatch):
    engine, wall = watched
    wall.time += 3.0

    def full(commit):
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(engine.store, "commit", full)
        with pytest.raises(StoreFull):
            engine.look()
    assert engine.alarms() == []
    assert len(engine.look()) == len(engine.alarms()) == 3


def test_the_models_own_policy_holds_unless_another_is_named(tmp_path):
    model = copy.deepcopy(MODEL)
    model.alarm_policy = AlarmPolicy(0.2, rearm=0.1, every=0.5)
    folder = oc.save(model, tmp_path / "model", channels=CHANNELS)
    assert Engine(folder).policy == model.alarm_policy
    assert Engine(folder, threshold=0.4).policy == AlarmPolicy(0.4)
    assert Engine(folder, policy=POLICY).policy == POLICY
    assert Engine(folder, alarms=False).policy is None
    assert Engine(MODEL).policy is None
    assert Engine(folder).model_hash == Engine(MODEL, channels=CHANNELS).model_hash
    for two in ({"threshold": 0.4, "policy": POLICY}, {"threshold": 0.4, "alarms": False}):
        with pytest.raises(StreamingError, match=r"threshold and .* were given"):
            Engine(folder, **two)
    with pytest.raises(StreamingError, match="output is 1: the model has no such output"):
        Engine(folder, policy=AlarmPolicy(0.2, output=1))


def test_a_stream_above_a_threshold_that_is_new_is_an_alarm_at_the_next_look():
    """Nobody was told of it so far."""
    store, wall = MemoryStore(), Wall()
    row = rising_rows(AlarmPolicy(0.0, every=0.25))[0]
    with made_engine(store, wall, policy=None) as engine:
        engine.apply(sent(row))
        below = engine.predict("s0", 0.25)[0]
    engine = made_engine(store, wall, policy=AlarmPolicy(below - 1.0, every=0.25))
    wall.time += 0.3
    assert [alarm.time for alarm in engine.look()] == [0.25]


def test_streams_that_ended_before_anyone_looked_by_the_clock_raise_no_alarm():
    """A policy with looks between rows, given to a store that was followed without."""
    store, wall, policy = MemoryStore(), Wall(), AlarmPolicy(0.0, every=0.25)
    old = made_engine(store, wall, policy=None)
    rows = rising_rows(policy)
    for row in rows:
        old.apply(sent(row))
    wall.time += 100.0
    engine = made_engine(store, wall, policy=policy)
    wall.time += 100.0
    assert engine.look() == ()
    engine.apply(sent((0.0, "new", rows[0][2])))
    wall.time += 3.0
    assert [alarm.stream for alarm in engine.look()] == ["new"]


def test_what_was_looked_at_before_a_restart_is_not_looked_at_again():
    store, wall, policy = MemoryStore(), Wall(), AlarmPolicy(0.0, every=0.25)
    engine = made_engine(store, wall, policy=policy)
    for row in rising_rows(policy):
        engine.apply(sent(row))
    wall.time += 2.0
    engine.look()
    engine.apply(sent((0.0, "another", rising_rows(policy)[0][2])))
    again = made_engine(store, wall, policy=policy, resident=1)
    assert list(again.look_pieces()) == []
    wall.time += 0.5
    assert sum(piece.looks for piece in again.look_pieces()) == 4 * 2
