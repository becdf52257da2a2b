"""Late events that reach far back, and many rows of a stream: in pieces, others in between, the same in the end."""

import numpy as np
import pytest
from made_streams import CHANNELS, made_model, random_events

from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, Event, EventBatch, Outcome, SQLiteStore
from onlinecde.streaming.pieces import Progress
from onlinecde.streaming.pipeline.long_tails import LongWork

SMALL = {"piece_rows": 8, "recent": 2, "checkpoint_rows": 4}
POLICY = AlarmPolicy(0.1, rearm=0.05, quiet=0.5, every=0.5)


def made_engine(store=None, model=None, **settings):
    return Engine(
        model or made_model(), store, channels=CHANNELS, lateness=1e4, **{"recent": 3, **settings}
    )


def answers(engine, stream):
    return [
        (row.time, row.events, np.round(row.outputs, 5).tolist()) for row in engine.history(stream)
    ]


def same(one, other, alarms=False):
    """Whether two engines say the same of all streams, now and of the past."""
    assert one.overview().streams == other.overview().streams
    for stream in one.overview().streams:
        assert one.state(stream) == other.state(stream)
        assert answers(one, stream) == answers(other, stream)
        curves = [engine.curve(stream, points=9).outputs for engine in (one, other)]
        np.testing.assert_allclose(*curves, atol=1e-5)
    if alarms:
        raised = [
            sorted((a.stream, a.time, a.rose) for a in engine.alarms()) for engine in (one, other)
        ]
        assert raised[0] == raised[1]
        assert raised[0]
    kept = ("received", "applied", "late_applied", "corrected", "duplicate", "refused", "rows")
    assert [one.counters[name] for name in kept] == [other.counters[name] for name in kept]


@pytest.mark.parametrize("seed", range(2))
def test_in_pieces_everything_is_as_at_once(seed):
    # Alarms are looked for where micro-batches end; the larger ones here are cut.
    size = (26, 3)[seed % 2]
    random = np.random.default_rng(seed)
    at_once, pieces = made_engine(policy=POLICY), made_engine(policy=POLICY, **SMALL)
    events = random_events(random, 150, streams=2, late=0.1)
    for start in range(0, len(events), size):
        batch = events[start : start + size]
        times = [event.time for event in events[: start + 1]]
        far = Event("s0", float(random.choice(times)), CHANNELS[1], float(random.normal()))
        for one in ([*batch, far], [Event("s1", 0.25, CHANNELS[0], float(start))]):
            told = [engine.apply(one) for engine in (at_once, pieces)]
            assert told[0].outcomes.tolist() == told[1].outcomes.tolist()
    same(at_once, pieces, alarms=size == 3)
    revised = [sum(len(r.revised) for r in e.history("s0")) for e in (at_once, pieces)]
    assert revised[1] > 20
    assert pieces.counters["commits"] > at_once.counters["commits"]


def rows_of(stream, count, first=0.0):
    times = first + np.arange(count) / 4
    values = np.tile([[1.0, np.nan, -0.5]], (count, 1))
    return EventBatch.from_rows([stream] * count, times, values)


def test_others_have_their_turn_between_the_pieces():
    engine = made_engine(**SMALL)
    engine.apply(rows_of("far", 100))
    engine.apply(rows_of("other", 3))
    late = EventBatch.from_events([Event("far", 1.1, CHANNELS[1], 2.0)])
    engine.refuses_long_work = True
    with pytest.raises(LongWork) as work:
        engine.apply(late)
    assert work.value.streams == {"far"}
    before, turns = engine.state("far"), 0
    for result in engine.apply_pieces(late):
        if not isinstance(result, Progress):
            break
        turns += 1
        assert engine.state("far") == before
        other = engine.apply(rows_of("other", 1, first=10.0 + turns))
        assert other.counts["applied"] == 2
    assert turns > 20
    assert result.outcomes.tolist() == [Outcome.LATE_APPLIED]
    assert engine.state("far") != before
    # The newest state is there; answers after earlier rows follow, the stream's newer rows in between.
    row = engine.history("far")[50]
    pieces = engine.rework_pieces()
    assert next(pieces).done >= 0
    engine.apply(rows_of("far", 1, first=100.0))
    for _ in pieces:
        pass
    again = engine.history("far")[50]
    assert again.outputs != row.outputs
    assert [one.outputs for one in again.revised] == [row.outputs]
    plain = made_engine()
    plain.apply(rows_of("far", 100))
    plain.apply([Event("far", 1.1, CHANNELS[1], 2.0)])
    plain.apply(rows_of("far", 1, first=100.0))
    assert engine.state("far") == plain.state("far")
    assert answers(engine, "far") == answers(plain, "far")


def test_what_others_change_in_between_is_not_lost():
    engine, plain = made_engine(**SMALL), made_engine()
    for one in (engine, plain):
        one.apply(rows_of("far", 60))
    late = [Event("far", 1.1, CHANNELS[1], 2.0)]
    pieces = engine.apply_pieces(late)
    for _ in range(4):
        assert isinstance(next(pieces), Progress)
    # Another late event, of another thread, before what is prepared so far.
    engine.apply([Event("far", 0.6, CHANNELS[1], -1.0)])
    *_, receipts = pieces
    assert receipts.counts["late_applied"] == 1
    *_, _ = engine.rework_pieces()
    plain.apply([Event("far", 0.6, CHANNELS[1], -1.0)])
    plain.apply(late)
    same(engine, plain)
    # And a stream that is forgotten while it is prepared is opened anew.
    pieces = engine.apply_pieces([Event("far", 1.3, CHANNELS[1], 2.0)])
    next(pieces)
    engine.forget("far")
    *_, receipts = pieces
    assert receipts.counts["applied"] == 1
    assert engine.stream("far").rows == 1


def test_a_late_event_without_a_finite_state_is_refused_alone():
    engine = made_engine(**SMALL, horizon=1e30)
    engine.apply(rows_of("far", 60))
    before = engine.state("far")
    bad = [
        Event("far", 1.1, CHANNELS[1], 3e38),
        Event("new", 0.0, CHANNELS[0], 1.0),
        Event("far", 99.0, CHANNELS[0], 1.0),
    ]
    receipts = engine.apply(bad)
    assert [r.outcome.name for r in receipts][:2] == ["REFUSED", "APPLIED"]
    assert receipts[0].refusal.code == "not_finite"
    assert engine.counters["refused"] >= 1
    assert engine.history("far", 0.0, 20.0)[5].revised == ()
    assert len(engine.state("far")) == len(before)


def test_an_engine_that_ended_in_between_goes_on_where_it_was(tmp_path):
    file = tmp_path / "live.db"
    plain = made_engine()
    with made_engine(SQLiteStore(file), **SMALL) as engine:
        for one in (engine, plain):
            one.apply(rows_of("far", 100))
        *_, receipts = engine.apply_pieces([Event("far", 1.1, CHANNELS[1], 2.0)])
        assert receipts.counts["late_applied"] == 1
        pieces = engine.rework_pieces()
        next(pieces)
        next(pieces)
    plain.apply([Event("far", 1.1, CHANNELS[1], 2.0)])
    with made_engine(SQLiteStore(file), **SMALL) as engine:
        assert engine.state("far") == plain.state("far")
        assert answers(engine, "far") != answers(plain, "far")
        engine.apply([Event("other", 0.0, CHANNELS[0], 1.0)])
        engine.forget("other")
        assert answers(engine, "far") == answers(plain, "far")
        assert [len(row.revised) for row in engine.history("far")] == [
            len(row.revised) for row in plain.history("far")
        ]
