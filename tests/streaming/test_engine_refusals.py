"""Bad input: refused with a stable code that names the field, one event at a time, and nothing changes."""

import numpy as np
import pytest
from made_streams import CHANNELS, NAN, made_model, outcomes

from onlinecde.streaming import Engine, Event, EventBatch, StreamingError

GOOD = ("a", 1.0, CHANNELS[0], 1.0)


class Unspeakable:
    def __repr__(self):
        raise RuntimeError

    __str__ = __repr__


def deep(levels=5000):
    found = []
    for _ in range(levels):
        found = [found]
    return found


BAD = [
    ("value_type", "value", {"value": Unspeakable()}),
    ("value_type", "value", {"value": deep()}),
    ("value_not_finite", "value", {"value": 10**5000}),
    ("time_type", "time", {"time": deep()}),
    ("channel_type", "channel", {"channel": Unspeakable()}),
    ("channel_unknown", "channel", {"channel": "\ud800" * 300}),
    ("stream_bad", "stream", {"stream": deep()}),
    ("stream_bad", "stream", {"stream": ""}),
    ("stream_bad", "stream", {"stream": "x" * 201}),
    ("stream_bad", "stream", {"stream": "line\nbreak"}),
    ("stream_bad", "stream", {"stream": "\ud800"}),
    ("stream_bad", "stream", {"stream": 7}),
    ("stream_bad", "stream", {"stream": None}),
    ("stream_bad", "stream", {"stream": ["a"]}),
    ("time_type", "time", {"time": "1.0"}),
    ("time_type", "time", {"time": None}),
    ("time_type", "time", {"time": True}),
    ("time_type", "time", {"time": [1.0]}),
    ("time_not_finite", "time", {"time": NAN}),
    ("time_not_finite", "time", {"time": -np.inf}),
    ("time_not_finite", "time", {"time": 10**400}),
    ("time_absurd", "time", {"time": 1.7e9}),
    ("time_absurd", "time", {"time": -1e300}),
    ("channel_unknown", "channel", {"channel": "no such"}),
    ("channel_unknown", "channel", {"channel": ""}),
    ("channel_type", "channel", {"channel": None}),
    ("channel_type", "channel", {"channel": {}}),
    ("value_type", "value", {"value": "high"}),
    ("value_type", "value", {"value": None}),
    ("value_type", "value", {"value": False}),
    ("value_not_finite", "value", {"value": NAN}),
    ("value_not_finite", "value", {"value": np.inf}),
    ("value_not_finite", "value", {"value": -(10**400)}),
    ("value_too_large", "value", {"value": 1e39}),
    ("id_type", "id", {"id": 5}),
    ("id_type", "id", {"id": ""}),
]


def engine(**settings):
    return Engine(made_model(), channels=CHANNELS, **settings)


def event(**changes):
    return Event(
        **{**dict(zip(("stream", "time", "channel", "value"), GOOD, strict=True)), **changes}
    )


@pytest.mark.parametrize(
    ("code", "field", "changes"), BAD, ids=[f"{n}-{one[0]}" for n, one in enumerate(BAD)]
)
def test_a_bad_event_is_refused_alone_and_the_reason_names_its_field(code, field, changes):
    follows = engine()
    follows.apply([event(time=0.5)])
    before, told = follows.state("a"), dict(follows.counters)
    receipts = follows.apply([event(**changes)])
    refusal = receipts[0].refusal
    assert (refusal.code, refusal.field) == (code, field)
    assert refusal.message.startswith(field) or field == "channel" or code == "time_absurd"
    assert follows.state("a") == before
    assert len(follows) == 1
    assert follows.counters["refused"] == told["refused"] + 1
    assert follows.refusals == {code: 1}
    assert follows.store.refused()[0].code == code
    # Beside good ones it changes nothing about them.
    assert outcomes(follows.apply([event(), event(**changes), event(channel=CHANNELS[1])])) == [
        "applied", "refused", "applied",
    ]  # fmt: skip


def test_a_stream_is_not_opened_by_what_is_refused():
    model = made_model()
    model.encoding.scale.fill_(1e-10)
    follows = Engine(model, channels=CHANNELS)
    receipts = follows.apply([event(stream="new", value=NAN), event(stream="other", value=1e30)])
    assert receipts.counts["refused"] == 2
    assert {r.code for r in receipts.refusals.values()} == {"value_not_finite", "not_finite"}
    assert len(follows) == 0
    assert "other" not in follows
    follows.apply([event(stream="other")])
    assert len(follows) == 1


def test_a_row_that_leads_nowhere_is_refused_and_its_neighbours_are_not():
    follows, clean = engine(lateness=3.0), engine(lateness=3.0)
    first = [event(time=0.0), event(stream="b", time=0.0)]
    follows.apply(first)
    clean.apply(first)
    mixed = [
        event(time=1.0),
        event(time=2.0, value=3e38),
        event(time=3.0),
        event(stream="b", time=1.0),
        event(stream="b", time=0.5, value=-3e38),
        event(stream="b", time=0.25),
    ]
    receipts = follows.apply(mixed)
    assert outcomes(receipts) == [
        "applied", "refused", "applied", "applied", "refused", "late_applied",
    ]  # fmt: skip
    assert {r.code for r in receipts.refusals.values()} == {"not_finite"}
    clean.apply([one for one in mixed if abs(one.value) < 2])
    for stream in "ab":
        assert follows.state(stream) == clean.state(stream)


def test_many_rows_that_lead_nowhere_are_refused_in_bounded_time():
    follows = engine()
    receipts = follows.apply([event(time=float(n), value=3e38 * (-1) ** n) for n in range(500)])
    assert {r.code for r in receipts.refusals.values()} == {"not_finite"}
    assert receipts.counts["refused"] == 500
    assert len(follows) == 0


def test_an_incomplete_row_is_refused_where_the_control_would_fill_it_from_the_future():
    follows = Engine(made_model(control="linear"), channels=CHANNELS)
    whole = [event(channel=name, time=0.0) for name in CHANNELS]
    assert follows.apply(whole).counts["applied"] == 3
    refusal = follows.apply([event(time=1.0)])[0].refusal
    assert refusal.code == "row_refused"
    assert "rectilinear" in refusal.message
    assert (
        follows.apply([event(channel=name, time=1.0) for name in CHANNELS]).counts["applied"] == 3
    )


def test_a_model_that_needs_the_whole_series_is_refused():
    with pytest.raises(StreamingError, match="rectilinear"):
        Engine(made_model(control="natural_cubic"), channels=CHANNELS)


def test_static_features_must_be_known_first():
    follows = Engine(made_model(static=2), channels=CHANNELS)
    assert follows.apply([event()])[0].refusal.code == "static_needed"
    texts = (["1", "2"], [True, False], [1.0, None], np.array(["1", "2"]), np.array([True, False]))
    for wrong in ([1.0], [1.0, NAN], "ab", [1.0, 1e39], [[1.0], [2.0]], 5, {"x": 1}, *texts):
        batch = EventBatch(*([column] for column in GOOD), static={"a": wrong})
        assert follows.apply(batch)[0].refusal.code == "static_bad"
    assert len(follows) == 0
    batch = EventBatch(*([column] for column in GOOD), static={"a": [0.1, 0.2]})
    assert outcomes(follows.apply(batch)) == ["applied"]
    assert follows.stream("a").static == (0.1, 0.2)
    with pytest.raises(StreamingError, match="other static features"):
        follows.open_stream("a", static=[0.1, 0.3])
    assert follows.open_stream("a", static=np.array([0.1, 0.2])).rows == 1


def test_static_features_for_a_model_that_takes_none_are_refused_in_words():
    follows = Engine(made_model(), channels=CHANNELS)
    for wrong in ({"age": 71}, [71.0], []):
        batch = EventBatch(*([column] for column in GOOD), static={"a": wrong})
        refusal = follows.apply(batch)[0].refusal
        assert refusal.code == "static_bad"
        assert refusal.message == "stream 'a': the model takes no static features: leave them out."


def test_a_time_far_ahead_is_refused_and_does_not_make_the_rest_late():
    follows = engine(ahead=10.0)
    follows.apply([event(time=0.0)])
    receipts = follows.apply([event(time=50.0), event(time=1.0), event(time=10.5)])
    assert outcomes(receipts) == ["refused", "applied", "applied"]
    assert receipts[0].refusal.code == "time_ahead"


def test_no_more_streams_than_allowed():
    follows = engine(most_streams=2)
    receipts = follows.apply([event(stream=name) for name in "abca"])
    assert outcomes(receipts) == ["applied", "applied", "refused", "duplicate"]
    assert receipts[2].refusal.code == "stream_limit"
    with pytest.raises(StreamingError, match="as many"):
        follows.open_stream("c")
    follows.forget("a")
    assert outcomes(follows.apply([event(stream="c")])) == ["applied"]


def test_columns_that_do_not_fit_are_an_error_and_change_nothing():
    follows = engine()
    with pytest.raises(ValueError, match="channels has 2 entries, times has 1"):
        EventBatch(["a"], [0.0], CHANNELS[:2], [1.0])
    with pytest.raises(ValueError, match="positions in `streams`"):
        follows.apply(EventBatch(["a"], [0.0], [CHANNELS[0]], [1.0], of=np.array([3])))
    assert follows.counters["received"] == 0


def test_positions_of_channels_outside_the_model_are_unknown():
    batch = EventBatch(["a"] * 3, [0.0] * 3, np.array([-1, 3, 1]), [1.0] * 3)
    receipts = engine().apply(batch)
    assert outcomes(receipts) == ["refused", "refused", "applied"]
    assert {r.code for r in receipts.refusals.values()} == {"channel_unknown"}


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda e: e.predict("a", 0.5), "before_last_row"),
        (lambda e: e.predict("a", NAN), "time_absurd"),
        (lambda e: e.predict("a", 1e12), "time_absurd"),
        (lambda e: e.predict("b"), "stream_unknown"),
        (lambda e: e.predict("empty"), "no_rows"),
        (lambda e: e.curve("empty"), "no_rows"),
        (lambda e: e.curve("a", 5.0, 2.0), "span_bad"),
        (lambda e: e.curve("a", NAN), "span_bad"),
        (lambda e: e.curve("a", until=1e12), "span_bad"),
        (lambda e: e.curve("a", points=1), "points_bad"),
        (lambda e: e.explain("a", last=0), "last_bad"),
        (lambda e: e.acknowledge(3, by="me"), "alarm_unknown"),
        (lambda e: e.open_stream("bad\n"), "stream_bad"),
        (lambda e: e.open_stream("ok", origin=NAN), "origin_bad"),
        (lambda e: e.prune(-1.0), "setting_bad"),
        (lambda e: engine(lateness=-1.0), "setting_bad"),
        (lambda e: engine(horizon=0.0), "setting_bad"),
        (lambda e: engine(recent=0), "setting_bad"),
        (lambda e: engine(output=9), "setting_bad"),
    ],
)
def test_bad_questions_and_settings_have_codes(ask, code):
    follows = engine()
    follows.apply([event()])
    follows.open_stream("empty")
    with pytest.raises(StreamingError) as caught:
        ask(follows)
    assert caught.value.code == code
