"""What a Spark worker does with a bucket, without Spark: its state in two dictionaries."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.scale.spark import SparkError
from onlinecde.scale.spark.pages import read_page
from onlinecde.scale.spark.plan import Plan
from onlinecde.scale.spark.processor import BucketProcessor
from onlinecde.streaming import Engine, Event, ModelMismatch, StreamingError
from onlinecde.streaming.served import named_model
from onlinecde.streaming.transfer import outline

pd = pytest.importorskip("pandas")


class Values(dict):
    """A map state and a value state."""

    def getValue(self, key):  # noqa: N802
        return self.get(key)

    def updateValue(self, key, value):  # noqa: N802
        self[key] = value

    def iterator(self):
        return iter(self.items())

    def update(self, value):
        self[()] = value

    def get(self, key=()):
        return super().get(key)


class Handle:
    """Spark's side of a processor."""

    def __init__(self):
        self.pages, self.about, self.timers = Values(), Values(), []

    def getMapState(self, *_):  # noqa: N802
        return self.pages

    def getValueState(self, *_):  # noqa: N802
        return self.about

    def registerTimer(self, at):  # noqa: N802
        self.timers.append(at)


class Timers:
    def __init__(self, watermark):
        self.watermark = watermark

    def getCurrentWatermarkInMs(self):  # noqa: N802
        return int(1e3 * self.watermark)


def processor(folder, handle, **settings):
    torch.manual_seed(0)
    if not folder.exists():
        oc.save(
            oc.NeuralCDE(2, 4, field={"width": 4, "depth": 1}).eval(), folder, channels=["hr", "bp"]
        )
    plan = Plan(str(folder), named_model(folder).hash, **{"pages": 2, **settings})
    found = BucketProcessor(plan)
    found.init(handle)
    return found


def frame(events, **columns):
    told = pd.DataFrame(events, columns=["stream", "time", "channel", "value"])
    return told.assign(page=[len(name) % 2 for name in told["stream"]], **columns)


def taken(one, events, watermark=0.0):
    found = list(one.handleInputRows((0,), [events], Timers(watermark)))
    return pd.concat(found) if found else None


def parcels(handle):
    return {n: p for (body,) in handle.pages.values() for n, p in read_page(body).items()}


def random_rows(random, streams, rows):
    return [
        (name, float(time), channel, float(random.standard_normal()))
        for time in range(rows)
        for name in streams
        for channel in ("hr", "bp")
    ]


def test_a_micro_batch_run_again_comes_to_the_same_in_any_order(tmp_path, rng):
    events = frame(random_rows(rng, ["a", "bb", "c"], 5))
    events = pd.concat([events, events.iloc[:3].assign(value=7.0)])
    found = []
    for _ in range(3):
        handle = Handle()
        said = taken(processor(tmp_path / "model", handle), events.sample(frac=1.0))
        said = said.sort_values(["stream", "time"])[["stream", "time", "kind", "revision"]]
        found.append(
            (said.values.tolist(), {n: outline(p).state.body for n, p in parcels(handle).items()})
        )
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) == 3


def test_neighbours_on_a_page_stay_as_they_are(tmp_path, rng):
    handle = Handle()
    one = processor(tmp_path / "model", handle)
    taken(one, frame(random_rows(rng, ["a", "c", "e", "bb"], 3)))
    before, pages = parcels(handle), dict(handle.pages)
    taken(one, frame([("c", 9.0, "hr", 1.0)]))
    after = parcels(handle)
    assert {name for name in before if before[name] != after[name]} == {"c"}
    assert [key for key in pages if handle.pages[key] == pages[key]] == [(0,)]


def test_state_does_not_grow_with_history_and_is_the_engines(tmp_path, rng):
    """Row by row, some late: what is kept is bounded by the lateness and `checkpoint_rows`."""
    handle = Handle()
    one = processor(tmp_path / "model", handle, lateness=3.0, checkpoint_rows=4)
    engine = Engine(tmp_path / "model", lateness=3.0)
    sizes = []
    for time in range(120):
        late = float(max(0, time - rng.integers(0, 4))) - rng.integers(2) / 2
        events = [("a", float(time), "hr", float(rng.standard_normal())), ("a", late, "bp", 0.5)]
        said = taken(one, frame(events))
        receipts = engine.apply([Event(*e) for e in sorted(events, key=lambda e: e[1])])
        assert (said["kind"] == "refused").sum() == receipts.counts["refused"]
        assert outline(parcels(handle)["a"]).state.body == engine.state("a")
        sizes.append(len(parcels(handle)["a"]))
    assert engine.counters["late_applied"] > 10
    assert max(sizes[60:]) <= 1.5 * max(sizes[20:60])
    last = {row.time: row for row in engine.history("a")}
    assert len(last) > 2 * outline(parcels(handle)["a"]).rows


def test_ended_streams_are_forgotten_when_their_page_is_next_written(tmp_path):
    handle = Handle()
    one = processor(tmp_path / "model", handle, rate=1.0, forget_after=10.0)
    events = [("a", 0.0, "hr", 1.0), ("c", 0.0, "hr", 1.0), ("e", 15.0, "hr", 1.0)]
    taken(one, frame(events, clock=[100.0, 100.0, 115.0]))
    taken(one, frame([("c", 20.0, "hr", 1.0)], clock=[120.0]), watermark=110.0)
    assert set(parcels(handle)) == {"a", "c", "e"}
    taken(one, frame([("c", 21.0, "hr", 1.0)], clock=[121.0]), watermark=110.5)
    assert set(parcels(handle)) == {"c", "e"}


def test_ticks_stop_when_all_are_silent_and_begin_again(tmp_path):
    handle = Handle()
    one = processor(tmp_path / "model", handle, rate=1.0, every=2.0, silent_after=3.0)
    taken(one, frame([("a", 0.0, "hr", 1.0)], clock=[100.0]))
    assert handle.timers == [2000]
    said = pd.concat(list(one.handleExpiredTimer((0,), Timers(102.5), None)))
    assert said["time"].tolist() == [0.0, 2.0]
    assert handle.timers == [2000]  # at 104 it is silent already
    taken(one, frame([("a", 3.5, "hr", 1.0)], clock=[103.5]), watermark=102.5)
    assert handle.timers == [2000, 104000]
    said = pd.concat(list(one.handleExpiredTimer((0,), Timers(107.0), None)))
    assert said["time"].tolist() == [4.0, 6.0]
    engine = Engine(tmp_path / "model")
    engine.apply([Event("a", 0.0, "hr", 1.0), Event("a", 3.5, "hr", 1.0)])
    np.testing.assert_allclose(said["outputs"].tolist()[1], engine.predict("a", 6.0), rtol=1e-6)


def test_more_lateness_than_was_kept_for_is_refused(tmp_path):
    handle = Handle()
    rows = [("a", float(time), "hr", 1.0) for time in range(60)]
    taken(processor(tmp_path / "model", handle, checkpoint_rows=4), frame(rows))
    with pytest.raises(StreamingError, match="was kept for less lateness than 30"):
        taken(processor(tmp_path / "model", handle, lateness=30.0), frame(rows[-1:]))


def test_only_parcels_of_the_same_model_are_begun_with(tmp_path):
    """Parcels of an engine become pages; another model's are refused."""
    handle = Handle()
    one = processor(tmp_path / "model", handle)
    engine = Engine(tmp_path / "model")
    engine.apply([Event(name, 0.0, "hr", 1.0) for name in ("a", "bb")])
    begun = {"page": [1, 0], "parcel": [engine.export("a"), engine.export("bb")]}
    one.handleInitialState((0,), pd.DataFrame(begun), Timers(0.0))
    assert parcels(handle) == {name: engine.export(name) for name in ("a", "bb")}
    taken(one, frame([("a", 1.0, "bp", 2.0)]))
    engine.apply([Event("a", 1.0, "bp", 2.0)])
    assert outline(parcels(handle)["a"]).state.body == engine.state("a")

    oc.save(
        oc.NeuralCDE(2, 4, field={"width": 4, "depth": 1}).eval(),
        tmp_path / "other",
        channels=["hr", "bp"],
    )
    other = processor(tmp_path / "other", Handle())
    with pytest.raises(ModelMismatch, match="the state belongs to model"):
        other.handleInitialState((0,), pd.DataFrame(begun), Timers(0.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"pages": 3}, "pages was 2, now it is 3"), ({"rate": 2.0}, "rate was 1.0, now it is 2.0")],
)
def test_states_of_another_layout_are_refused(tmp_path, change, words):
    handle = Handle()
    events = frame([("a", 0.0, "hr", 1.0)])
    taken(processor(tmp_path / "model", handle), events)
    with pytest.raises(SparkError, match=words):
        taken(processor(tmp_path / "model", handle, **change), events)
