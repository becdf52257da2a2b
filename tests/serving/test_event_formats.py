import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onlinecde.serving.event_formats import EventReader
from onlinecde.serving.problems import Problem
from onlinecde.streaming import EventBatch, Refusal
from onlinecde.streaming.pipeline.validate import is_text

POSITIONS = {"hr": 0, "bp": 1, "lactate": 2}
NAMES = list(POSITIONS)
READER = EventReader(POSITIONS)

rows = st.lists(
    st.fixed_dictionaries(
        {
            "stream": st.sampled_from(["a", "b", "bed 7"]),
            "time": st.floats(0, 100),
            "values": st.dictionaries(st.sampled_from(NAMES), st.floats(-10, 10), min_size=1),
        }
    ),
    min_size=1,
    max_size=8,
)


def as_events(told):
    return [
        {"stream": row["stream"], "time": row["time"], "channel": channel, "value": value}
        for row in told
        for channel, value in row["values"].items()
    ]


def events_of(told, *features, fault=lambda stream, static: None):
    return EventReader(POSITIONS, features, static_fault=fault).events_of(told).batch


def events_in(batch):
    streams = [batch.streams[i] for i in batch.of]
    return list(
        zip(streams, batch.times, [int(c) for c in batch.channels], batch.values, strict=True)
    )


@given(rows)
def test_every_form_says_the_same(told):
    single = as_events(told)
    wanted = [(e["stream"], e["time"], POSITIONS[e["channel"]], e["value"]) for e in single]
    forms = [
        (json.dumps(told), False),
        (json.dumps({"events": told}), False),
        (json.dumps(single), False),
        ("\n".join(map(json.dumps, told)), True),
        ("\n".join(map(json.dumps, single)) + "\n\n", True),
    ]
    if len(told) == 1:
        forms.append((json.dumps(told[0]), False))
    for text, ndjson in forms:
        assert events_in(READER.read(text.encode(), ndjson).batch) == wanted


@given(rows, rows)
def test_requests_merged_keep_their_order(first, second):
    parts = [events_of(told) for told in (first, second)]
    both = EventBatch.joined(parts, NAMES)
    streams = [both.streams[i] for i in both.of]
    assert streams == [e["stream"] for e in as_events(first) + as_events(second)]
    assert len(both) == len(parts[0]) + len(parts[1])


def test_a_request_with_junk_leaves_the_others_as_they_were():
    clean = events_of([{"stream": "a", "time": 1, "values": {"hr": 2}}])
    junk = events_of([{"stream": [], "time": "x", "channel": 5, "value": None}])
    both = EventBatch.joined([clean, junk], NAMES)
    assert both.times == [1.0, "x"]
    assert both.channels == ["hr", 5]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(body, ndjson):
    problem = None
    try:
        READER.read(body, ndjson)
    except Problem as error:
        problem = error
    assert problem is None or 400 <= problem.status < 500


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["stream", "time", "values", "channel", "value", "id", "static", "events"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_any_json_is_read_or_refused(told):
    found = problem = None
    try:
        found = events_of(told, "age")
    except Problem as error:
        problem = error
    if problem is not None:
        assert problem.status in (413, 422)
        assert problem.field
    else:
        batch = EventBatch.joined([found], NAMES)
        assert len(batch) == len(found) > 0
        assert batch.ids is None or len(batch.ids) == len(found)


def test_null_in_a_row_is_not_observed():
    found = events_of({"stream": "a", "time": 0, "values": {"hr": None, "bp": 1}})
    assert len(found) == 1
    with pytest.raises(Problem, match="no event"):
        events_of({"stream": "a", "time": 0, "values": {"hr": None}})


def test_each_channel_of_a_row_has_an_id_of_its_own():
    told = [
        {"stream": "a", "time": 0, "channel": "hr", "value": 1},
        {"stream": "a", "time": 0, "values": {"hr": 1, "bp": 2}, "id": "m1"},
    ]
    assert events_of(told).ids == [None, "m1/hr", "m1/bp"]


def test_a_row_may_have_as_long_an_id_as_an_event():
    def ids(own):
        told = {"stream": "a", "time": 0, "values": {"hr": 1, "lactate": 2}, "id": own}
        return events_of(told).ids

    for length in (1, 193, 198, 200):
        found = ids("x" * length)
        assert len(set(found)) == 2
        assert all(map(is_text, found))
        assert ids("x" * length) == found
    for wrong in ("", "x" * 201, 7):
        assert not any(map(is_text, ids(wrong)))


def test_static_features_by_name_are_put_in_order():
    told = {"stream": "a", "time": 0, "values": {"hr": 1}, "static": {"sex": 1, "age": 66}}
    found = events_of(told, "age", "sex")
    assert found.static == {"a": [66, 1]}


def test_of_static_features_the_first_sound_ones_count_and_an_item_with_wrong_ones_is_refused_alone():
    def part(*given):
        told = [
            {"stream": "a", "time": time, "values": {"hr": 1, "bp": 2}, "static": static}
            for time, static in enumerate(given)
        ]
        return events_of(told, "age", "sex", fault=fault)

    def fault(stream, static):
        return None if len(static) == 2 else Refusal("static_bad", "static", "two are needed")

    parts = [part(None, [1], {"shoe": 44}), part([66, 1], None, [70, 0]), part("x")]
    both = EventBatch.joined(parts, NAMES)
    assert both.static == {"a": [66, 1]}
    assert sorted(both.refused) == [2, 3, 4, 5, 12, 13]
    assert {one.code for one in both.refused.values()} == {"static_bad"}


def test_numbers_become_arrays_and_junk_stays():
    found = events_of({"stream": "a", "time": 0, "values": {"hr": 1, "bp": 2}})
    assert found.values.dtype == np.float64
    assert found.channels.tolist() == [0, 1]
    found = events_of({"stream": "a", "time": True, "values": {"nope": "x"}})
    assert found.times == [True]
    assert found.channels == ["nope"]
