"""What can be read of a stream's past is what the model says of its rows, offline, and adds up."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from made_streams import CHANNELS, NAN, made_model

import onlinecde as oc
from onlinecde.streaming import Engine, Event, EventBatch, SQLiteStore, StreamingError


def made_past(model, rows=30, seed=None, **settings):
    """An engine that followed one stream, and the stream as a series."""
    random = np.random.default_rng(seed)
    times = random.random(rows).cumsum()
    values = random.normal(size=(rows, 3))
    values[random.random(values.shape) < 0.5] = NAN
    values[:, 0] = random.normal(size=rows)
    engine = Engine(model, channels=CHANNELS, **settings)
    for row in range(rows):
        engine.apply(EventBatch.from_rows(["a"], times[row : row + 1], values[row : row + 1]))
    return engine, oc.SeriesBatch.from_arrays([times], [values]), times, values


@pytest.mark.parametrize("checkpoint_rows", [4, 1000])
@pytest.mark.parametrize("kind", ["NeuralCDE", "GRUD", "GRU"])
def test_the_curve_is_the_offline_answer_at_any_time(kind, checkpoint_rows):
    model = made_model(kind)
    engine, batch, times, _ = made_past(model, checkpoint_rows=checkpoint_rows)
    for since, until in (
        (None, None),
        (times[7] + 0.01, times[20]),
        (times[3], times[-1] + 5.0),
        (-9.0, times[0]),
    ):
        curve = engine.curve("a", since, until, points=50)
        with torch.no_grad():
            wanted = model(batch, at=torch.from_numpy(curve.times))[0].numpy()
        np.testing.assert_allclose(curve.outputs, wanted, atol=1e-5)
        begin, end = (
            max(times[0], times[0] if since is None else since),
            times[-1] if until is None else until,
        )
        assert (curve.times[0], curve.times[-1]) == (begin, end)
        inside = (times >= begin) & (times <= end)
        np.testing.assert_array_equal(curve.row_times, times[inside])
        with torch.no_grad():
            after = model(batch)[0].numpy()[inside]
            before = np.full_like(after, NAN)
            just = torch.from_numpy(np.nextafter(times[inside], -np.inf))
            if inside.sum() > inside[0]:
                before[int(inside[0]) :] = model(batch, at=just[int(inside[0]) :])[0].numpy()
        np.testing.assert_allclose(curve.row_probabilities, after, atol=1e-5)
        np.testing.assert_allclose(curve.row_before, before, atol=1e-5)


def test_many_rows_at_once_leave_as_many_checkpoints_as_one_by_one():
    model, many = made_model(), 200
    times = np.arange(many) / 8
    rows = np.random.default_rng(0).normal(size=(many, 3))
    for pieces in ((many,), (5, many), (40, 41, 150, many)):
        engine = Engine(model, channels=CHANNELS, checkpoint_rows=16, lateness=2.0)
        for begin, end in pairwise((0, *pieces)):
            engine.apply(
                EventBatch.from_rows(["a"] * (end - begin), times[begin:end], rows[begin:end])
            )
        engine.apply([Event("a", times[-1] - 1.99, CHANNELS[0], 1.0)])  # takes those after it away
        kept = [one[1] for one in engine.store._checkpoints[1]]
        gaps = np.diff([-1, *np.searchsorted(times, kept)])
        assert max(gaps) <= 2 * 16
        assert np.mean(gaps) < 20
        followed = engine.state("a")
        engine.repair("a")
        assert engine.state("a") == followed


@pytest.mark.parametrize("checkpoint_rows", [8, 10_000])
def test_a_long_past_is_integrated_in_pieces_with_the_engine_free_in_between(checkpoint_rows):
    model, many = made_model(), 600
    times = np.arange(many) / 8
    rows = np.random.default_rng(1).normal(size=(many, 3))
    engine = Engine(model, channels=CHANNELS, checkpoint_rows=checkpoint_rows)
    engine.apply(EventBatch.from_rows(["a"] * many, times, rows))
    batch = oc.SeriesBatch.from_arrays([times], [rows])
    taken = 0
    for found in engine.curve_pieces("a", points=700):
        if found is None:
            taken += 1
            assert engine.apply([Event("b", float(taken), CHANNELS[0], 1.0)]).counts["applied"] == 1
    assert taken >= (2 if checkpoint_rows == 8 else many // 128)
    with torch.no_grad():
        wanted = model(batch, at=torch.from_numpy(found.times))[0].numpy()
    np.testing.assert_allclose(found.outputs, wanted, atol=1e-5)
    np.testing.assert_array_equal(found.row_times, times)
    thin = engine.curve("a", points=20, most_rows=20)
    assert len(thin.row_times) == 20
    assert {times[0], times[-1]} <= set(thin.row_times) <= set(times)
    at = np.searchsorted(times, thin.row_times)
    # Numbers reach 260, of which one float32 rounding is 3e-5: how many rows are read at once may round them.
    near = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}
    np.testing.assert_allclose(thin.row_probabilities, found.row_probabilities[at], **near)
    np.testing.assert_allclose(thin.row_before, found.row_before[at], **near)
    *_, moved = engine.explain_pieces("a", last=200)
    assert [row.row_time for row in moved] == times[-200:].tolist()


@pytest.mark.parametrize("last", [1, 7, 100])
def test_explanations_are_those_of_the_whole_history_and_add_up(last):
    model = made_model(readout_width=4)
    engine, batch, times, values = made_past(model, checkpoint_rows=8)
    wanted = model.explain(batch)
    found = engine.explain("a", last=last)
    assert [row.row_time for row in found] == times[-last:].tolist()
    said = {row.time: row.outputs for row in engine.history("a")}
    for row in found:
        place = int(np.flatnonzero(times == row.row_time)[0])
        np.testing.assert_allclose(row.time, wanted.time[0, place].numpy(), atol=1e-5)
        for channel, part in row.events.items():
            at = CHANNELS.index(channel)
            np.testing.assert_allclose(part, wanted.events[0, place, at].numpy(), atol=1e-5)
            assert row.values[channel] == values[place, at]
        assert len(row.events) == (~np.isnan(values[place])).sum()
        total = row.start + row.time + sum(row.events.values())
        np.testing.assert_allclose(total, said[row.row_time], atol=1e-5)


def test_models_without_exact_parts_say_so():
    engine, *_ = made_past(made_model("GRU"), rows=2)
    with pytest.raises(StreamingError, match="not for this GRU") as caught:
        engine.explain("a")
    assert caught.value.code == "not_explainable"


def test_history_tells_what_was_answered_and_what_became_of_it():
    engine = Engine(
        made_model(), channels=CHANNELS, lateness=5.0, clock=iter(range(100, 200)).__next__
    )
    engine.apply([Event("a", 1.0, CHANNELS[0], 1.0)])
    engine.apply([Event("a", 3.0, CHANNELS[1], -1.0)])
    first = engine.history("a")
    assert [(row.sequence, row.received, row.revised) for row in first] == [
        (1, 100, ()),
        (2, 101, ()),
    ]
    engine.apply([Event("a", 2.0, CHANNELS[2], 3.0)])
    rows = engine.history("a")
    assert [row.time for row in rows] == [1.0, 2.0, 3.0]
    assert rows[0] == first[0]
    assert rows[2].revised[0].outputs == first[1].outputs != rows[2].outputs
    assert (rows[2].revised[0].sequence, rows[2].sequence) == (2, 3)
    assert engine.history("a", 1.5, 2.5) == rows[1:2]
    assert engine.history("a", most=2) == rows[1:]


def test_the_overview_is_what_each_stream_says_of_itself(tmp_path, rng):
    with Engine(made_model(), SQLiteStore(tmp_path / "a.db"), channels=CHANNELS) as engine:
        for time in range(3):
            names = [f"s{n}" for n in range(20) if n % 3 or time]
            engine.apply(
                EventBatch.from_rows(
                    names, np.full(len(names), time), rng.normal(size=(len(names), 3))
                )
            )
        engine.open_stream("nothing yet", origin=5.0)
        engine.evict([f"s{n}" for n in range(0, 20, 2)])
        seen = engine.overview()
        assert seen.streams == tuple(sorted(f"s{n}" for n in range(20)))
        for place, name in enumerate(seen.streams):
            info = engine.stream(name)
            assert info.rows == seen.rows[place]
            assert info.last_time == seen.last_times[place]
            assert info.outputs == tuple(seen.outputs[place])
            assert info.probabilities == tuple(seen.probabilities[place])
            rows = engine.history(name)
            assert rows[-2].probabilities[0] == pytest.approx(seen.previous[place])
        np.testing.assert_allclose(
            engine.predict_many(seen.streams).outputs, seen.outputs, atol=1e-6
        )
        assert engine.stream("nothing yet").origin == 5.0
        assert engine.stream("nothing yet").last_time is None


def test_many_streams_are_asked_at_once_and_time_moves_the_answers():
    engine, *_ = made_past(made_model())
    engine.apply([Event("b", 0.0, CHANNELS[0], 1.0)])
    last = engine.stream("a").last_time
    later = engine.predict_many(["a", "b"], [last + 1.0, 2.0])
    np.testing.assert_allclose(later.outputs[0], engine.predict("a", last + 1.0), atol=1e-6)
    assert not np.allclose(later.outputs[0], engine.predict("a"))
    clamped = engine.predict_many(["a", "b"], 2.0, clamp=True)
    np.testing.assert_allclose(clamped.outputs[0], engine.predict("a"), atol=1e-6)
    assert clamped.times.tolist() == [last, 2.0]
    assert len(engine.predict_many([])) == 0
    before = engine.state("a")
    engine.predict("a", last + 50.0)
    assert engine.state("a") == before


def test_probabilities_are_the_heads():
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        channels=3, hidden=4, outputs=3, field={"width": 4}, readout={"kind": "multiclass"}
    ).eval()
    engine = Engine(model, channels=CHANNELS)
    answers = engine.apply([Event("a", 0.0, CHANNELS[0], 1.0)]).answers
    assert engine.kind == "multiclass"
    np.testing.assert_allclose(answers.probabilities.sum(1), 1.0)
    np.testing.assert_allclose(engine.probabilities(answers.outputs), answers.probabilities)


def test_alarms_rise_once_and_stay_acknowledged(tmp_path):
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        channels=3, hidden=8, field={"width": 8}, readout={"kind": "binary"}, encoding={"gain": 3.0}
    ).eval()
    random = np.random.default_rng(0)
    settings = {"channels": CHANNELS, "threshold": 0.5}
    engine = Engine(model, SQLiteStore(tmp_path / "a.db"), **settings)
    raised, wanted, above = [], [], {}
    for time in range(40):
        rows = random.normal(size=(5, 3)) * 2
        receipts = engine.apply(
            EventBatch.from_rows([f"s{n}" for n in range(5)], np.full(5, time), rows)
        )
        raised += [(alarm.stream, alarm.time) for alarm in receipts.alarms]
        for name, p in zip(
            receipts.answers.streams, receipts.answers.probabilities[:, 0], strict=True
        ):
            if p >= 0.5 and not above.get(name):
                wanted.append((name, float(time)))
            above[name] = p >= 0.5
    assert sorted(raised) == sorted(wanted)
    assert len(raised) > 5
    found = engine.alarms()
    assert [alarm.number for alarm in found] == list(range(len(raised), 0, -1))
    done = engine.acknowledge(found[0].number, by="nurse")
    assert done.by == "nurse"
    assert done.acknowledged is not None
    engine.close()
    again = Engine(model, SQLiteStore(tmp_path / "a.db"), **settings)
    assert len(again.alarms(unacknowledged=True)) == len(raised) - 1
    assert again.alarms()[0] == done
    assert again.acknowledge(done.number, by="someone else") == done
    assert {alarm.stream for alarm in again.alarms("s1")} == {"s1"}
    again.close()


def followed_in_pieces(pieces, threshold=0.5):
    """An engine that took micro-batches of rows (time, values, whether each event has an id)."""
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        channels=3, hidden=8, field={"width": 8}, readout={"kind": "binary"}, encoding={"gain": 3.0}
    ).eval()
    engine = Engine(model, channels=CHANNELS, lateness=50.0, threshold=threshold)
    for rows in pieces:
        engine.apply(
            [
                Event("a", time, name, value, f"{time}/{name}" if ids else None)
                for time, values, ids in rows
                for name, value in zip(CHANNELS, values, strict=True)
            ]
        )
    return engine


def made_rises():
    """Rows without ids, and a threshold that half of their probabilities reach."""
    values = (np.random.default_rng(4).normal(size=(24, 3)) * 4).tolist()
    rows = [(time / 32, row, False) for time, row in enumerate(values)]
    return rows, float(np.median(said(followed_in_pieces([rows]))))


def said(engine):
    return [row.probabilities[0] for row in engine.history("a")]


def alarmed(engine):
    return sorted((alarm.time, round(alarm.probability, 5)) for alarm in engine.alarms())


def test_a_rise_is_an_alarm_with_ids_with_repeats_and_in_any_micro_batch():
    plain, threshold = made_rises()
    with_ids = [(time, row, True) for time, row, _ in plain]
    wanted = alarmed(followed_in_pieces([[row] for row in plain], threshold))
    assert len(wanted) > 3
    pieces = list(pairwise((0, 1, 9, 10, 24)))
    for told in (
        [plain],
        [with_ids],
        [[row] for row in with_ids],
        [plain[a:b] for a, b in pieces],
        [with_ids[a:b] for a, b in pieces],
        [plain[max(0, a - 1) : b] for a, b in pieces],  # with a repeat of the row before
    ):
        assert alarmed(followed_in_pieces(told, threshold)) == wanted


def test_of_rows_integrated_again_only_the_newest_raises_an_alarm():
    rows, threshold = made_rises()
    for first in (-30.0, 30.0):
        engine = followed_in_pieces([rows], threshold)
        before, old = alarmed(engine), said(engine)
        engine.apply([Event("a", 1 / 64, CHANNELS[0], first)])
        new = said(engine)
        del new[1]  # the late row itself
        assert [p >= threshold for p in new] != [p >= threshold for p in old]
        raised = [time for time, _ in alarmed(engine) if time not in dict(before)]
        assert raised == ([23 / 32] if new[-1] >= threshold > old[-1] else [])


def test_pruning_forgets_the_old_and_keeps_the_state():
    model = made_model()
    engine, batch, times, _ = made_past(model, rows=60, checkpoint_rows=8)
    before, answer = engine.state("a"), engine.predict("a", times[-1] + 1.0)
    assert engine.prune(keep=3.0) > 10
    left = engine.history("a")
    assert times[-1] - 3.0 <= times[-len(left)] + 12
    assert engine.state("a") == before
    curve = engine.curve("a", times[-3])
    with torch.no_grad():
        wanted = model(batch, at=torch.from_numpy(curve.times))[0].numpy()
    np.testing.assert_allclose(curve.outputs, wanted, atol=1e-5)
    assert engine.curve("a").times[0] >= times[0]
    assert len(engine.explain("a", last=100)) == len(left)
    engine.evict(["a"])
    np.testing.assert_array_equal(engine.predict("a", times[-1] + 1.0), answer)


def test_a_forgotten_stream_is_unknown_and_begins_anew():
    engine, *_ = made_past(made_model())
    engine.forget("a")
    assert "a" not in engine
    assert len(engine) == 0
    engine.apply([Event("a", 0.0, CHANNELS[0], 1.0)])
    fresh = Engine(made_model(), channels=CHANNELS)
    fresh.apply([Event("a", 0.0, CHANNELS[0], 1.0)])
    assert engine.state("a") == fresh.state("a")
    assert engine.stream("a").rows == 1
