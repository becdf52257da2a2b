"""Whatever is wrong is a 4xx with a stable code and the field's name, and changes nothing."""

import json

import httpx
import pytest

from onlinecde.serving import Limits

GOOD = {"stream": "a", "time": 0.0, "channel": "lactate", "value": 1.0}


def changed(**parts):
    return json.dumps({**GOOD, **parts})


DEEP = '{"value":' * 3000 + "1" + "}" * 3000
TABLE = [
    # body, status, code, field
    (changed(value=float("nan")), 422, "value_not_finite", "value"),
    (changed(value=float("inf")), 422, "value_not_finite", "value"),
    ('{"stream":"a","time":0,"channel":"lactate","value":1e999}', 422, "value_not_finite", "value"),
    (changed(value=10**400), 422, "value_not_finite", "value"),
    (changed(value=1e300), 422, "value_too_large", "value"),
    (changed(value="80"), 422, "value_type", "value"),
    (changed(value=True), 422, "value_type", "value"),
    (changed(value=None), 422, "value_type", "value"),
    (changed(value=[1]), 422, "value_type", "value"),
    (changed(time=float("nan")), 422, "time_not_finite", "time"),
    (changed(time=float("-inf")), 422, "time_not_finite", "time"),
    (changed(time="now"), 422, "time_type", "time"),
    (changed(time=None), 422, "time_type", "time"),
    (changed(time=1e17), 422, "time_absurd", "time"),
    (changed(time=-1e17), 422, "time_absurd", "time"),
    (changed(channel="pulse"), 422, "channel_unknown", "channel"),
    (changed(channel=3), 422, "channel_type", "channel"),
    (changed(stream=""), 422, "stream_bad", "stream"),
    (changed(stream="x" * 300), 422, "stream_bad", "stream"),
    (changed(stream="a\u0000b"), 422, "stream_bad", "stream"),
    (changed(stream=7), 422, "stream_bad", "stream"),
    (changed(id=7), 422, "id_type", "id"),
    (changed(extra=1), 422, "field_unknown", "[0].extra"),
    ('{"stream":"a","time":0,"values":{"pulse":1}}', 422, "channel_unknown", "values.pulse"),
    ('{"stream":"a","time":0,"values":{"lactate":"x"}}', 422, "value_type", "values.lactate"),
    ('{"stream":"a","time":0,"values":[1]}', 422, "values_type", "[0].values"),
    ('{"stream":"a","time":0,"values":{"lactate":1},"static":5}', 422, "static_bad", "static"),
    ('{"stream":"a","time":0,"values":{"lactate":1},"static":{"age":5}}', 422, "static_bad", "static"),
    ("[1]", 422, "event_type", "[0]"),
    ("[]", 422, "no_events", "events"),
    ("{}", 422, "stream_bad", "stream"),
    ("5", 422, "body_type", "body"),
    ('"text"', 422, "body_type", "body"),
    ('{"events": 5}', 422, "events_type", "events"),
    ('{"events": [], "more": 1}', 422, "field_unknown", "events"),
    ("", 400, "body_empty", "body"),
    ("{", 400, "json_bad", "body"),
    ("nonsense", 400, "json_bad", "body"),
    (b'{"stream": "\xff\xfe"}', 400, "utf8_bad", "body"),
    ('{"stream": "\\ud800", "time": 0, "channel": "lactate", "value": 1}', 400, "utf8_bad", "body"),
    ('{"stream": "a", "time": 0, "channel": "\\ud800", "value": 1}', 400, "utf8_bad", "body"),
    ('{"stream": "a", "time": 0, "values": {"\\udfff": 1}}', 400, "utf8_bad", "body"),
    ('{"stream": "a", "time": 0, "channel": "lactate", "value": 1, "\\ud800": 1}', 400, "utf8_bad", "body"),
    (changed(stream="."), 422, "stream_bad", "stream"),
    (changed(stream=".."), 422, "stream_bad", "stream"),
    (DEEP, 400, "json_depth", "body"),
    ("[" * 100_000, 400, "json_depth", "body"),
]  # fmt: skip


@pytest.fixture(scope="module")
def running(small_model):
    from onlinecde.serving import ServeSettings, create_app, in_background
    from onlinecde.streaming import Engine

    settings = ServeSettings(port=0, limits=Limits(body_bytes=500_000, events_per_request=1000))
    engine = Engine(small_model, channels=("heart_rate", "lactate", "oxygen", "pressure"))
    with (
        in_background(create_app(engine, settings), settings) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        assert client.post("/v1/events", json=GOOD).status_code == 200
        yield client


def state(client):
    return client.get("/v1/streams/a/history").json(), client.get("/v1/streams").json()["total"]


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_bad_events_are_refused_and_change_nothing(running, number):
    body, status, code, field = TABLE[number]
    before = state(running)
    answer = running.post("/v1/events", content=body, headers={"content-type": "application/json"})
    why = answer.json()["error"]
    assert (answer.status_code, why["code"], why["field"]) == (status, code, field)
    assert field.split(".")[-1].strip("[]0") in why["message"] or status == 400
    assert state(running) == before


def test_a_huge_body_is_cut_off(running):
    for content in (b"x" * 600_000, (b"x" * 10_000 for _ in range(200))):
        answer = running.post(
            "/v1/events", content=content, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_too_many_events_are_refused_before_any_is_applied(running):
    before = state(running)
    answer = running.post("/v1/events", json=[{**GOOD, "time": i} for i in range(1001)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_events")
    assert state(running) == before


def test_other_media_types_are_refused(running):
    answer = running.post("/v1/events", content=b"a=1", headers={"content-type": "text/csv"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "media_type")


def test_an_event_split_across_lines_is_no_line(running):
    for body in (
        b'{"stream": "split", "time": 0\n"channel": "lactate", "value": 1},'
        b'{"stream": "split", "time": 1, "channel": "lactate", "value": 1}',
        b'{"stream": "split", "time": 0, "values": {"lactate": 1\n"oxygen": 2}},'
        b'{"stream": "split", "time": 1, "values": {"lactate": 1}}\n',
    ):
        answer = running.post(
            "/v1/events", content=body, headers={"content-type": "application/x-ndjson"}
        )
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "line 1")
    assert running.get("/v1/streams/split").status_code == 404


def test_messages_have_plain_numbers(running):
    for told in ({"time": 1e9}, {"value": 1e300}):
        row = {"stream": "a", "time": 50, "channel": "lactate", "value": 1.0, **told}
        message = running.post("/v1/events", json=row).json()["error"]["message"]
        assert repr(*told.values()) in message
        assert "np." not in message
    assert (
        f"not between {-1e5!r} and {1e5!r}"
        in running.post("/v1/events", json={**row, "time": 1e9}).text
    )


def test_a_bad_line_is_named(running):
    lines = json.dumps(GOOD) + "\n{nonsense\n"
    answer = running.post(
        "/v1/events", content=lines, headers={"content-type": "application/x-ndjson"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "line 2"


def test_an_event_beside_a_row_is_refused_by_its_own_fields(running):
    told = [
        {"stream": "beside", "time": 0, "values": {"lactate": 1, "oxygen": "x"}},
        *({"stream": "beside", "time": 1, "channel": one, "value": 1} for one in ([], None, 7, {})),
        {"stream": "beside", "time": 1, "channel": "lactate", "value": "x"},
    ]
    answer = running.post("/v1/events", json=told)
    assert answer.status_code == 200
    assert answer.json()["counts"]["applied"] == 1
    assert [(r["index"], r["code"], r["field"]) for r in answer.json()["refusals"]] == [
        (0, "value_type", "values.oxygen"),
        *((index, "channel_type", "channel") for index in (1, 2, 3, 4)),
        (5, "value_type", "value"),
    ]


def test_the_good_events_of_a_mixed_request_are_applied(running):
    told = [
        {"stream": "mixed", "time": 0, "values": {"lactate": 1, "pulse": 2}},
        {"stream": "mixed", "time": 1, "values": {"oxygen": "x", "lactate": 2}},
    ]
    answer = running.post("/v1/events", json=told)
    assert answer.status_code == 200
    assert answer.json()["counts"]["applied"] == 2
    assert [(r["index"], r["code"], r["field"]) for r in answer.json()["refusals"]] == [
        (0, "channel_unknown", "values.pulse"),
        (1, "value_type", "values.oxygen"),
    ]


@pytest.mark.parametrize(
    ("path", "status", "code", "field"),
    [
        ("/v1/streams/none", 404, "stream_unknown", "stream"),
        ("/v1/streams/%FF", 400, "utf8_bad", "stream"),
        ("/v1/streams/none/prediction", 404, "stream_unknown", "stream"),
        ("/v1/streams/none/prediction?at=1", 404, "stream_unknown", "stream"),
        ("/v1/streams/a/prediction?at=-1", 422, "before_last_row", "at"),
        ("/v1/streams/a/prediction?at=nan", 422, "parameter_bad", "at"),
        ("/v1/streams/a/prediction?at=inf", 422, "parameter_bad", "at"),
        ("/v1/streams/a/prediction?at=x", 422, "parameter_bad", "at"),
        ("/v1/streams/none/history", 404, "stream_unknown", "stream"),
        ("/v1/streams/a/history?most=0", 422, "parameter_bad", "most"),
        ("/v1/streams/a/history?most=1000000", 422, "parameter_bad", "most"),
        ("/v1/streams/none/curve", 404, "stream_unknown", "stream"),
        ("/v1/streams/a/curve?points=1", 422, "parameter_bad", "points"),
        ("/v1/streams/none/explanation", 404, "stream_unknown", "stream"),
        ("/v1/streams?limit=-1", 422, "parameter_bad", "limit"),
        ("/v1/nowhere", 404, "not_found", None),
    ],
)  # fmt: skip
def test_bad_questions(running, path, status, code, field):
    answer = running.get(path)
    why = answer.json()["error"]
    assert (answer.status_code, why["code"], why.get("field")) == (status, code, field)


def test_bad_bodies_of_other_routes(running):
    for method, path, body, code in (
        ("PUT", "/v1/streams/new", b"[]", "body_type"),
        ("PUT", "/v1/streams/new", b'{"x": 1}', "field_unknown"),
        ("PUT", "/v1/streams/new", b'{"origin": "x"}', "origin_bad"),
        ("PUT", "/v1/streams/new", b'{"origin": 1e999}', "origin_bad"),
        ("PUT", "/v1/streams/new", b'{"static": 5}', "static_bad"),
        ("PUT", "/v1/streams/new", b"x" * 70_000, "body_too_large"),
        ("POST", "/v1/alarms/1/acknowledge", b'{"by": ""}', "by_bad"),
        ("POST", "/v1/alarms/1/acknowledge", b"{}", "by_bad"),
        ("POST", "/v1/alarms/x/acknowledge", b'{"by": "me"}', "parameter_bad"),
        ("POST", "/v1/alarms/99999999999999999999/acknowledge", b'{"by": "me"}', "alarm_unknown"),
        ("POST", "/v1/alarms/7/acknowledge", b'{"by": "me"}', "alarm_unknown"),
        ("DELETE", "/v1/streams/none", b"", "stream_unknown"),
        ("PATCH", "/v1/streams/a", b"", "method_not_allowed"),
    ):  # fmt: skip
        answer = running.request(method, path, content=body)
        assert 400 <= answer.status_code < 500, (path, body)
        assert answer.json()["error"]["code"] == code, (path, body, answer.text)
    assert running.get("/v1/streams/new").status_code == 404


def test_a_stream_without_a_row_has_nothing_to_say_yet(running):
    assert running.put("/v1/streams/empty", json={"origin": 0.0}).status_code == 200
    for path in ("prediction", "prediction?at=1", "curve", "explanation", "history"):
        answer = running.get(f"/v1/streams/empty/{path}")
        assert answer.status_code in (200, 404), (path, answer.text)
    assert running.get("/v1/streams/empty").json()["now"] is None
