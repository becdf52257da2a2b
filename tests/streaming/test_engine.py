"""What an engine makes of events: in order, late, corrected, repeated; in memory, evicted, after a restart."""

import numpy as np
import pytest
import torch
from made_streams import CHANNELS, NAN, Plain, made_model, outcomes, random_events

import onlinecde as oc
from onlinecde.streaming import Engine, Event, EventBatch, MemoryStore, SQLiteStore, UnknownStream

MODELS = [
    ("NeuralCDE", {}),
    ("NeuralCDE", {"backend": "torch"}),
    ("NeuralCDE", {"method": "dopri5", "rtol": 1e-3, "atol": 1e-4}),
    ("NeuralCDE", {"field_sees_path": True, "readout_sees_path": True, "readout_width": 4}),
    ("NeuralCDE", {"readout_sees_path": True, "readout_ramps": 2}),
    ("GRU", {}),
    ("GRUD", {}),
    ("GRUdtIntensity", {}),
    ("ODERNN", {}),
]


def engine(model=None, store=None, **settings):
    return Engine(made_model() if model is None else model, store, channels=CHANNELS, **settings)


def in_pieces(random, events):
    while events:
        many = int(random.integers(1, 9))
        yield events[:many]
        events = events[many:]


@pytest.mark.parametrize(("kind", "settings"), MODELS, ids=str)
def test_any_model_follows_streams_as_if_rows_had_come_in_order(kind, settings, rng):
    model, plain = made_model(kind, **settings), Plain(lateness=1.5)
    follows = engine(model, lateness=1.5)
    ended = set()
    for events in in_pieces(rng, random_events(rng, 100, late=0.3)):
        wanted = [plain.take(event) for event in events]
        assert outcomes(follows.apply(events)) == wanted
        ended |= set(wanted)
    assert ended == {"applied", "duplicate", "corrected", "late_applied", "refused"}
    for stream in plain.rows:
        assert follows.state(stream) == plain.state(model, stream)


def test_online_answers_are_the_offline_ones(rng):
    model = made_model()
    plain, follows = Plain(lateness=1.5), engine(model, lateness=1.5)
    for events in in_pieces(rng, random_events(rng, 90, late=0.2)):
        for event in events:
            plain.take(event)
        follows.apply(events)
    for stream, rows in plain.rows.items():
        times = sorted(rows)
        values = [[rows[time].get(name, NAN) for name in CHANNELS] for time in times]
        batch = oc.SeriesBatch.from_arrays([times], [values])
        asked = times[-1] + rng.random(4)
        with torch.no_grad():
            offline = model(batch)[0].numpy(), model(batch, at=torch.from_numpy(asked))[0].numpy()
        said = np.array([row.outputs for row in follows.history(stream)])
        np.testing.assert_allclose(said, offline[0], atol=1e-5)
        found = [follows.predict(stream, at) for at in asked]
        np.testing.assert_allclose(found, offline[1], atol=1e-5)


def test_the_way_events_are_cut_into_micro_batches_changes_nothing(rng):
    events = random_events(rng, 200, late=0.2)
    model = made_model()
    alone, together, pieces = (engine(model, lateness=1.0) for _ in range(3))
    one_by_one = [outcomes(alone.apply([event]))[0] for event in events]
    assert outcomes(together.apply(events)) == one_by_one
    assert [
        o for some in in_pieces(rng, events) for o in outcomes(pieces.apply(some))
    ] == one_by_one
    for stream in ("s0", "s1", "s2"):
        assert alone.state(stream) == together.state(stream) == pieces.state(stream)
    assert {**alone.counters, "commits": 0} == {**together.counters, "commits": 0}


def test_events_of_one_instant_in_any_order_make_one_row(rng):
    model = made_model()
    row = [Event("a", 2.0, name, float(n)) for n, name in enumerate(CHANNELS)]
    whole = engine(model)
    whole.apply([Event("a", 0.5, CHANNELS[1], 1.0), *row])
    for _ in range(5):
        single = engine(model)
        single.apply([Event("a", 0.5, CHANNELS[1], 1.0)])
        for place in rng.permutation(3):
            single.apply([row[place]])
        assert single.state("a") == whole.state("a")
        assert single.stream("a").rows == 2


def test_a_new_first_row_begins_the_stream_anew():
    model = made_model(static=2)
    late, ordered = (engine(model, lateness=5.0) for _ in range(2))
    for one in (late, ordered):
        one.open_stream("a", static=[0.5, -1.0])
    first, second = Event("a", 1.0, CHANNELS[0], 1.0), Event("a", 3.0, CHANNELS[1], 2.0)
    late.apply([second])
    assert outcomes(late.apply([first])) == ["late_applied"]
    ordered.apply([first, second])
    assert late.state("a") == ordered.state("a")
    assert late.stream("a").first_time == 1.0


def test_a_correction_holds_and_an_older_value_sent_again_does_not_undo_it():
    follows = engine(lateness=1.0)
    wrong, right = Event("a", 0.0, CHANNELS[0], 800.0), Event("a", 0.0, CHANNELS[0], 80.0)
    assert outcomes(follows.apply([wrong, right, wrong, right])) == [
        "applied", "corrected", "duplicate", "duplicate",
    ]  # fmt: skip
    assert follows.history("a")[0].events == {CHANNELS[0]: 80.0}
    assert follows.history("a")[0].superseded == ((CHANNELS[0], 800.0),)
    clean = engine()
    clean.apply([right])
    assert follows.state("a") == clean.state("a")


def test_a_row_keeps_so_many_corrections_and_is_looked_through_in_no_time():
    follows = engine(lateness=1.0)
    for ids in (False, True):
        stream, many = f"ids {ids}", 1000
        told = [
            Event(stream, 0.0, CHANNELS[0], float(n), f"e{n}" if ids else None)
            for n in range(many + 3)
        ]
        wanted = ["applied", *["corrected"] * many, "refused", "refused"]
        receipts = follows.apply(told)
        assert outcomes(receipts) == wanted
        assert receipts[many + 1].refusal.code == "row_full"
        assert outcomes(follows.apply(told)) == ["duplicate"] * (many + 1) + ["refused"] * 2
        row = follows.history(stream)[0]
        assert (len(row.superseded), row.events[CHANNELS[0]]) == (many, float(many))
        # Other channels, and other times, are taken as ever.
        more = [Event(stream, time, CHANNELS[1], 1.0) for time in (0.0, 0.5)]
        assert outcomes(follows.apply(more)) == ["applied", "applied"]


def test_ids_told_again_and_again_fill_a_row_too():
    follows = engine(lateness=1.0)
    told = [Event("a", 0.0, CHANNELS[0], 1.0, f"e{n}") for n in range(1003)]
    ended = outcomes(follows.apply(told))
    assert ended == ["applied", *["duplicate"] * 1000, "refused", "refused"]


def test_with_ids_a_value_may_be_corrected_back():
    follows = engine(lateness=1.0)
    sent = [
        Event("a", 0.0, CHANNELS[0], value, id)
        for value, id in ((1.0, "x"), (2.0, "y"), (1.0, "z"))
    ]
    assert outcomes(follows.apply(sent)) == ["applied", "corrected", "corrected"]
    assert (
        outcomes(follows.apply([*sent, Event("a", 0.5, CHANNELS[1], 9.0, "x")]))
        == ["duplicate"] * 4
    )
    assert follows.history("a")[0].events == {CHANNELS[0]: 1.0}


def test_an_event_sent_again_after_its_time_has_passed_is_a_duplicate_and_a_new_one_too_late():
    follows = engine(lateness=1.0)
    old = Event("a", 0.0, CHANNELS[0], 1.0)
    follows.apply([old, Event("a", 10.0, CHANNELS[0], 2.0)])
    before = follows.state("a")
    receipts = follows.apply(
        [old, Event("a", 0.0, CHANNELS[0], 7.0), Event("a", 0.5, CHANNELS[0], 7.0)]
    )
    assert outcomes(receipts) == ["duplicate", "refused", "refused"]
    assert {r.code for r in receipts.refusals.values()} == {"too_late"}
    assert follows.state("a") == before
    assert follows.store.refused()[0].code == "too_late"


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
def test_an_evicted_stream_comes_back_as_it_was(durable, tmp_path, rng):
    model = made_model()
    store = SQLiteStore(tmp_path / "live.db") if durable else MemoryStore()
    stays = engine(model, lateness=1.5)
    goes = engine(model, store, lateness=1.5, recent=3, checkpoint_rows=4)
    for events in in_pieces(rng, random_events(rng, 150, late=0.3)):
        assert outcomes(goes.apply(events)) == outcomes(stays.apply(events))
        before = {name: goes.state(name) for name in goes.overview().streams}
        gone = rng.permutation(["s0", "s1", "s2"])[: rng.integers(4)].tolist()
        goes.evict(gone)
        assert all(goes.state(name) == state for name, state in before.items())
    for stream in ("s0", "s1", "s2"):
        assert goes.state(stream) == stays.state(stream)
        assert goes.stream(stream).rows == stays.stream(stream).rows
    goes.close()


def test_memory_holds_only_as_many_streams_as_it_may():
    follows = engine(resident=10)
    for stream in range(50):
        follows.apply([Event(f"s{stream:02}", 0.0, CHANNELS[0], float(stream))])
        assert follows.resident <= 10
    assert len(follows) == 50
    assert len(follows.overview()) == 50
    fresh = engine()
    fresh.apply([Event("s00", 0.0, CHANNELS[0], 0.0)])
    assert not follows.stream("s00").resident
    assert follows.state("s00") == fresh.state("s00")


def test_an_engine_goes_on_where_another_stopped(tmp_path, rng):
    model = made_model()
    events = random_events(rng, 200, late=0.2)
    whole = engine(model, lateness=1.0)
    whole.apply(events)
    for start in range(0, 200, 25):
        with engine(model, SQLiteStore(tmp_path / "live.db"), lateness=1.0, recent=2) as part:
            part.apply(events[start : start + 25])
    with engine(model, SQLiteStore(tmp_path / "live.db"), lateness=1.0) as part:
        assert {**part.counters, "commits": 0} == {**whole.counters, "commits": 0}
        for stream in whole.overview().streams:
            assert part.state(stream) == whole.state(stream)
            assert [(r.time, r.events) for r in part.history(stream)] == [
                (r.time, r.events) for r in whole.history(stream)
            ]


def test_counts_add_up_to_what_was_received(rng):
    follows = engine(lateness=0.5)
    sent = 0
    for events in in_pieces(rng, random_events(rng, 300, late=0.4)):
        junk = [Event("s0", NAN, CHANNELS[0], 1.0), Event("s0", 1.0, "no such", 1.0)]
        receipts = follows.apply(events + junk)
        assert sum(receipts.counts.values()) == len(events) + 2 == len(receipts)
        sent += len(events) + 2
    counters = follows.counters
    ended = ("applied", "duplicate", "corrected", "late_applied", "refused")
    assert sum(counters[name] for name in ended) == counters["received"] == sent
    assert sum(follows.refusals.values()) == counters["refused"]
    assert counters["rows"] == sum(follows.stream(name).rows for name in follows.overview().streams)


def test_columns_and_events_say_the_same(rng):
    model = made_model()
    rows = rng.normal(size=(40, 3))
    rows[rng.random(rows.shape) < 0.5] = NAN
    rows[:, 0] = rng.normal(size=40)
    names, times = [f"s{n % 4}" for n in range(40)], np.arange(40) / 3
    columns, single = engine(model), engine(model)
    columns.apply(EventBatch.from_rows(names, times, rows))
    for name, time, row in zip(names, times, rows, strict=True):
        single.apply(
            [Event(name, time, CHANNELS[c], float(x)) for c, x in enumerate(row) if x == x]
        )
    for name in set(names):
        assert columns.state(name) == single.state(name)


def test_a_saved_model_and_the_model_itself_are_one(tmp_path):
    model = made_model()
    oc.save(model, tmp_path / "model", channels=CHANNELS, units=["1/min", "mmHg", "mmol/l"])
    saved, held = Engine(tmp_path / "model"), engine(model)
    assert saved.model_hash == held.model_hash
    assert saved.channels == tuple(CHANNELS)
    assert saved.units == ("1/min", "mmHg", "mmol/l")
    other = made_model(max_step=0.5)
    assert engine(other).model_hash != held.model_hash


def test_what_is_unknown_is_said_to_be():
    with pytest.raises(UnknownStream, match="no stream 'nobody'"):
        engine().predict("nobody")


def test_reading_from_other_threads_while_events_come(rng):
    import threading

    follows = engine(lateness=1.0)
    follows.apply(random_events(rng, 50))
    stop, failed = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                seen = follows.overview()
                follows.predict_many(seen.streams, seen.last_times + 1.0, clamp=True)
                follows.curve(seen.streams[0], points=5)
        except Exception as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for events in in_pieces(rng, random_events(rng, 300, late=0.2)):
        follows.apply(events)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failed
