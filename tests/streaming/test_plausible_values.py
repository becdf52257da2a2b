"""Values that no training row had, and names that look like others: marked or refused, never silent."""

import json

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.series import Schema
from onlinecde.streaming import Engine, Event, MemoryStore, StreamingError

CHANNELS = ("hr", "bp")


def model(ranges=None):
    torch.manual_seed(0)
    made = oc.NeuralCDE(2, 4, field={"width": 4, "depth": 1}, readout={"kind": "binary"}).eval()
    made.schema = Schema(CHANNELS, ranges=ranges)
    return made


EVENTS = [
    Event("a", 0.0, "hr", 80.0),
    Event("a", 0.0, "bp", 500.0),
    Event("a", 1.0, "hr", 900.0),
    Event("b", 0.0, "hr", 300.0),
    Event("b", 0.0, "bp", float("nan")),
]


@pytest.mark.parametrize("source", ["training", "given"])
def test_implausible_values_are_taken_and_marked(source):
    spans = {"hr": (20.0, 300.0), "bp": (40.0, 250.0)}
    ranges = tuple(spans.values()) if source == "training" else ((0.0, 1.0), (0.0, 1.0))
    more = {} if source == "training" else {"plausible": spans}
    with Engine(model(ranges), **more) as engine:
        receipts = engine.apply(EVENTS)
        assert receipts.counts["applied"] == 4
        assert receipts.implausible == {"bp": 1, "hr": 1}
        assert set(receipts.notes) == {"a"}
        assert receipts.notes["a"] == (
            "bp 500 at 0 is not between 40 and 250", "hr 900 at 1 is not between 20 and 300",
        )  # fmt: skip
        again = engine.apply(EVENTS)  # what is known already is no news
        assert not again.implausible
        assert not again.notes


def test_implausible_values_are_refused_where_one_wants_it():
    with Engine(model(), plausible={"hr": (20, 300)}, implausible="refuse") as engine:
        receipts = engine.apply(EVENTS)
        assert [one.outcome.name for one in receipts] == [
            "APPLIED",
            "APPLIED",
            "REFUSED",
            "APPLIED",
            "REFUSED",
        ]
        assert receipts[2].refusal.code == "value_implausible"
        assert "300" in receipts[2].refusal.message
        assert engine.stream("a").rows == 1


def test_a_model_without_ranges_marks_nothing():
    with Engine(model((None, None))) as engine:
        assert not engine.apply(EVENTS).notes


@pytest.mark.parametrize(
    "settings",
    [{"plausible": {"hr": (3, 1)}}, {"plausible": {"pulse": (0, 1)}}, {"implausible": "ignore"}],
)
def test_ranges_that_make_no_sense_are_refused(settings):
    with pytest.raises(StreamingError):
        Engine(model(), **settings)


def test_the_training_split_says_what_is_plausible(tmp_path):
    values = np.array([[[1.0, np.nan], [5.0, np.nan]], [[100.0, 7.0], [200.0, np.nan]]])
    batch = oc.SeriesBatch.from_arrays(np.array([[0.0, 1.0]] * 2), values, channels=CHANNELS)
    schema = Schema.of(batch, np.array([0]))
    assert schema.ranges == ((1.0, 5.0), None)
    assert Schema.of(batch).ranges is None
    assert Schema.from_json(json.loads(json.dumps(schema.as_json()))).ranges == schema.ranges
    saved = model(schema.ranges)
    oc.save(saved, tmp_path / "model")
    assert oc.load(tmp_path / "model").schema.ranges == schema.ranges


LOOKALIKES = ["bed 7 ", " bed 7", "caf\u0065\u0301"]


@pytest.mark.parametrize("name", LOOKALIKES)
def test_no_stream_is_opened_under_a_name_that_looks_like_another(name):
    with Engine(model()) as engine:
        receipt = engine.apply([Event(name, 0.0, "hr", 1.0)])[0]
        assert receipt.refusal.code == "stream_bad"
        assert repr("caf\u00e9" if "caf" in name else "bed 7") in receipt.refusal.message
        with pytest.raises(StreamingError) as refused:
            engine.open_stream(name)
        assert refused.value.code == "stream_bad"
        assert len(engine) == 0
        assert (
            engine.apply(
                [Event("caf\u00e9", 0.0, "hr", 1.0), Event("bed 7", 0.0, "hr", 1.0)]
            ).counts["applied"]
            == 2
        )


def test_a_stream_of_an_earlier_version_goes_on_under_such_a_name(monkeypatch):
    store = MemoryStore()
    with monkeypatch.context() as earlier:
        earlier.setattr("onlinecde.streaming.pipeline.apply.name_fault", lambda name: None)
        engine = Engine(model(), store)
        engine.apply([Event("bed 7 ", 0.0, "hr", 1.0)])
        engine.evict(["bed 7 "])
    assert engine.apply([Event("bed 7 ", 1.0, "hr", 1.0)]).counts["applied"] == 1
    assert engine.stream("bed 7 ").rows == 2
