"""What the API says is what the engine and the model say."""

import json
import logging
import time

import httpx
import numpy as np
import pytest
import torch
from websockets.sync.client import connect

import onlinecde as oc
from onlinecde.serving import Limits, models
from onlinecde.serving.overview import attention
from onlinecde.streaming import Engine, StoreBusy, StoreFull
from onlinecde.streaming.stream_clock import StreamClock

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


def made_rows(random, streams, rows):
    told = []
    for stream in range(streams):
        clock = np.cumsum(random.uniform(0.1, 1.0, rows)).round(4)
        for t in clock.tolist():
            seen = random.permutation(4)[: random.integers(1, 4)]
            values = {CHANNELS[i]: round(float(random.normal()), 3) for i in seen}
            told.append({"stream": f"bed {stream}/x", "time": t, "values": values})
    return told


def offline(model, told, stream):
    own = [row for row in told if row["stream"] == stream]
    x = [[row["values"].get(name, np.nan) for name in CHANNELS] for row in own]
    batch = oc.SeriesBatch.from_arrays([[row["time"] for row in own]], [x])
    with torch.no_grad():
        return batch, model(batch)[0].double().numpy()


def test_answers_are_the_offline_models(start, small_model, rng):
    told = made_rows(rng, 3, 12)
    client, *_ = start(clock_speed=1e-9)
    for row in told:
        answer = client.post("/v1/events", json=row, params={"answers": True})
        assert answer.json()["counts"]["applied"] == len(row["values"])
    path = "/v1/streams/bed%201%2Fx"
    batch, rows = offline(small_model, told, "bed 1/x")
    stored = client.get(f"{path}/history").json()["rows"]
    assert np.allclose(
        [row["outputs"] for row in stored], rows, rtol=0, atol=1e-5 * abs(rows).max()
    )
    own = [row for row in told if row["stream"] == "bed 1/x"]
    assert [row["values"] for row in stored] == [row["values"] for row in own]
    at = own[-1]["time"] + 1.7
    said = client.get(f"{path}/prediction", params={"at": at}).json()
    with torch.no_grad():
        true = small_model(batch, at=torch.tensor([[at]]))[0, 0].double().numpy()
    assert np.allclose(said["outputs"], true, atol=1e-5 * abs(rows).max())
    assert said["probabilities"] == pytest.approx((1 / (1 + np.exp(-true))).tolist(), abs=1e-5)
    curve = client.get(f"{path}/curve", params={"points": 50}).json()
    assert np.allclose(curve["row_probabilities"], 1 / (1 + np.exp(-rows)), atol=1e-5)
    parts = client.get(f"{path}/explanation").json()["rows"]
    for part, output in zip(parts, rows, strict=True):
        total = (
            part["start"][0]
            + part["passing_of_time"][0]
            + sum(p[0] for p in part["channels"].values())
        )
        assert total == pytest.approx(float(output[0]), abs=1e-4)
    listed = {one["stream"]: one for one in client.get("/v1/streams").json()["streams"]}
    assert listed["bed 1/x"]["probabilities"] == pytest.approx(
        stored[-1]["probabilities"], abs=1e-6
    )


def test_repeats_corrections_and_late_events_are_told_apart(start):
    client, *_ = start()
    row = {"stream": "a", "time": 1.0, "values": {"lactate": 1.0}}
    counts = [
        client.post("/v1/events", json=one).json()["counts"]
        for one in (
            row,
            row,
            {**row, "values": {"lactate": 2.0}},
            {**row, "time": 1.5},
            {**row, "time": 1.2},
            {**row, "time": 0.1},
        )
    ]
    ends = [next(name for name, many in one.items() if many) for one in counts]
    assert ends == ["applied", "duplicate", "corrected", "applied", "late_applied", "refused"]
    totals = client.get("/metrics").text
    for outcome, many in (("applied", 2), ("duplicate", 1), ("refused", 1)):
        assert f'onlinecde_events_total{{outcome="{outcome}"}} {many}.0' in totals
    assert 'onlinecde_refusals_total{code="too_late"} 1.0' in totals


def test_a_request_sent_again_is_answered_like_the_first(start):
    client, *_ = start()
    told = [
        {"stream": name, "time": 0, "values": {"lactate": 1.0, "nonsense": 2}}
        for name in ("a", "b")
    ]
    first = client.post("/v1/events", json=told, params={"answers": True}).json()
    again = client.post("/v1/events", json=told, params={"answers": True}).json()
    assert again["counts"]["duplicate"] == 2
    assert [one["stream"] for one in first["answers"]] == ["a", "b"]
    assert again["answers"] == first["answers"]
    strange = [*told, {"stream": "new", "time": 0, "channel": "nonsense", "value": 1}]
    more = client.post("/v1/events", json=strange, params={"answers": True}).json()
    assert more["answers"] == first["answers"]


def test_answers_have_the_shape_the_document_says(start):
    client, *_ = start(threshold=0.01)
    client.post("/v1/events", json={"stream": "a", "time": 0, "values": {"lactate": 1.0}})
    client.put("/v1/streams/b", json={"origin": 5.0})
    for path, model in (
        ("/v1/model", models.About),
        ("/v1/streams", models.Streams),
        ("/v1/streams/a", models.Stream),
        ("/v1/streams/b", models.Stream),
        ("/v1/streams/a/prediction", models.Prediction),
        ("/v1/streams/a/history", models.History),
        ("/v1/streams/a/explanation", models.Explanation),
        ("/v1/alarms", models.Alarms),
        ("/healthz", models.Health),
    ):
        model.model_validate_json(client.get(path).content, strict=True)


def test_alarms_are_raised_acknowledged_and_sorted_first(start):
    client, *_ = start(threshold=0.0001)
    for name in ("a", "b"):
        client.post("/v1/events", json={"stream": name, "time": 0, "values": {"lactate": 1.0}})
    alarms = client.get("/v1/alarms", params={"unacknowledged": True}).json()["alarms"]
    assert {one["stream"] for one in alarms} == {"a", "b"}
    number = next(one["number"] for one in alarms if one["stream"] == "a")
    done = client.post(f"/v1/alarms/{number}/acknowledge", json={"by": "nurse Ada"}).json()
    assert done["by"] == "nurse Ada"
    again = client.post(f"/v1/alarms/{number}/acknowledge", json={"by": "another"}).json()
    assert again == done
    listed = client.get("/v1/streams").json()
    assert [one["stream"] for one in listed["streams"]] == ["b", "a"]
    assert listed["alarms"] == 1


def test_the_answer_moves_while_no_data_comes(start):
    client, *_ = start(clock_speed=36000.0, silent_after=30.0, tick=0.05)
    # The first answer of all may wait for its kernels to be compiled.
    for name in ("another", "a"):
        client.post("/v1/events", json={"stream": name, "time": 0, "values": {"lactate": 1.0}})
        client.get(f"/v1/streams/{name}/prediction")
    seen = []
    for _ in range(3):
        seen.append(client.get("/v1/streams/a/prediction").json())
        time.sleep(0.1)
    assert seen[0]["time"] < seen[1]["time"] < seen[2]["time"]
    assert len({one["outputs"][0] for one in seen}) == 3
    time.sleep(3.0)
    silent = client.get("/v1/streams/a/prediction").json()
    assert silent["time"] == 30.0


def test_a_clock_that_jumps_back_never_asks_before_the_newest_row():
    wall = [1000.0]
    clock = StreamClock(1.0, 50.0, wall=lambda: wall[0])
    for now in (1000.0, 0.0, -1e9, 1e12):
        wall[0] = now
        told = clock.now([5.0, 5.0], [1000.0, 1000.0], [np.nan, 990.0])
        assert (told >= 5.0).all()
        assert (told <= 55.0).all()


def test_now_is_never_later_than_the_model_can_be_asked(start):
    client, engine, _ = start(clock_speed=3600.0, tick=0.05)
    rows = [("near", 0.0), ("edge", engine.latest - 1e-3)]
    client.post(
        "/v1/events", json=[{"stream": s, "time": t, "values": {"lactate": 1}} for s, t in rows]
    )
    before = client.get("/v1/streams?search=near").json()["streams"][0]
    time.sleep(0.2)
    after = client.get("/v1/streams?search=near").json()["streams"][0]
    assert after["now"] > before["now"]
    edge = client.get("/v1/streams/edge").json()["now"]
    assert edge["time"] == engine.latest
    for what in ("prediction", "curve"):
        assert client.get(f"/v1/streams/edge/{what}").status_code == 200


def damaged(engine, stream):
    """Zeroes the stored state of a stream in a MemoryStore, and has the engine read it anew."""
    number = engine.store.find([stream])[0].number
    held = engine.store._states[number]
    engine.store._states[number] = (*held[:-1], bytes(len(held[-1])))
    engine.evict([stream])


def test_a_stream_that_cannot_be_read_freezes_no_other_and_has_no_number_itself(start, caplog):
    client, engine, url = start(clock_speed=3600.0, tick=0.05)
    names = [f"s{n}" for n in range(20)]
    told = [{"stream": name, "time": 0, "values": {"lactate": 1.0}} for name in names]
    client.post("/v1/events", json=told)
    damaged(engine, "s7")

    def listed():
        return {one["stream"]: one for one in client.get("/v1/streams").json()["streams"]}

    with connect(url.replace("http", "ws") + "/v1/live") as socket, caplog.at_level("WARNING"):
        before = listed()
        time.sleep(0.3)
        after = listed()
        for name in names:
            if name == "s7":
                assert after[name]["probabilities"] == [None]
            else:
                assert after[name]["now"] > before[name]["now"]
                assert after[name]["probabilities"] != before[name]["probabilities"]
        for wanted in ("all", ["s7", "s8"]):
            socket.send(json.dumps({"subscribe": wanted}))
            heard = []
            while not any(one.get("reason") == "tick" for one in heard):
                heard = json.loads(socket.recv(timeout=20))
            answers = {p["stream"]: p for p in heard[-1]["predictions"]}
            assert answers["s8"]["probabilities"][0] is not None
            assert answers.get("s7", {}).get("probabilities") in (None, [None])
    noted = [one for one in caplog.records if one.getMessage() == "stream has no answer"]
    assert [one.told for one in noted] == [{"code": "state_unreadable"}]
    # It is told apart, its past can be looked at, and it can be deleted.
    refused = client.get("/v1/streams/s7/prediction").json()["error"]
    assert refused["code"] == "state_unreadable"
    assert "repair" in refused["message"]
    assert len(client.get("/v1/streams/s7/history").json()["rows"]) == 1
    assert client.get("/v1/alarms?stream=s7").json() == {"alarms": []}
    assert client.delete("/v1/streams/s7").status_code == 204
    assert "s7" not in listed()


def test_a_stream_deleted_while_it_is_asked_for_is_a_404(start, monkeypatch):
    client, engine, _ = start()
    row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
    ask = engine.stream

    def deleted_after(name):
        found = ask(name)
        engine.forget(name)
        return found

    for path in ("", "/prediction", "/curve"):
        client.post("/v1/events", json=row)
        monkeypatch.setattr(engine, "stream", deleted_after)
        assert client.get(f"/v1/streams/a{path}").status_code == 404
        monkeypatch.undo()


def test_while_the_store_is_away_questions_are_a_503_in_their_own_words(start, monkeypatch):
    client, engine, _ = start()
    row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
    client.post("/v1/events", json=row)

    def away(*_, **__):
        raise StoreBusy("the database is away")

    for name in ("commit", "head", "find", "rows", "alarms", "states", "streams"):
        monkeypatch.setattr(engine.store, name, away)
    answer = client.post("/v1/events", json={**row, "time": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_busy")
    assert "nothing was applied" in answer.json()["error"]["message"]
    for path in ("/v1/streams", "/v1/streams/a/history", "/v1/alarms"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_busy")
        assert answer.json()["error"]["message"] == "the store is busy: try again later."
    assert client.get("/v1/streams/a/prediction").status_code == 200
    metrics = client.get("/metrics")
    assert metrics.status_code == 200
    assert 'onlinecde_events_total{outcome="applied"} 1.0' in metrics.text


def test_long_work_lets_events_through_and_ends_with_whoever_asked(start, monkeypatch):
    client, engine, url = start()
    row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
    client.post("/v1/events", json=row)
    pieces = []

    def without_end(*_, **__):
        while True:
            time.sleep(0.01)
            pieces.append(1)
            yield None

    monkeypatch.setattr(engine, "curve_pieces", without_end)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{url}/v1/streams/a/curve", timeout=0.5)
    assert pieces
    done = client.post("/v1/events", json={**row, "time": 1})
    assert done.json()["counts"]["applied"] == 1
    for _ in range(100):
        many = len(pieces)
        time.sleep(0.1)
        if len(pieces) == many:
            break
    assert len(pieces) == many


def test_of_a_long_stream_no_more_rows_are_told_than_points(start):
    client, *_ = start()
    told = [{"stream": "a", "time": t / 8, "values": {"lactate": t % 5}} for t in range(300)]
    client.post("/v1/events", json=told)
    curve = client.get("/v1/streams/a/curve?points=50").json()
    assert len(curve["row_times"]) == len(curve["row_before"]) == len(curve["times"]) == 50
    assert (curve["row_times"][0], curve["row_times"][-1]) == (0.0, 299 / 8)


def test_attention_puts_open_alarms_first_then_risk_then_rise():
    order = attention(
        np.array([0.1, 0.5, 0.5, 0.3]),
        np.array([0.0, 0.0, 0.3, np.nan]),
        np.array([True, False, False, False]),
    )
    assert order.tolist() == [0, 2, 1, 3]


def test_search_and_pages(start):
    client, *_ = start()
    client.post("/v1/events", json=[
        {"stream": f"Ward {'A' if i % 2 else 'B'} {i}", "time": 0, "values": {"lactate": i / 10}} for i in range(30)
    ])  # fmt: skip
    told = client.get("/v1/streams", params={"search": "ward a"}).json()
    assert (told["total"], told["found"], len(told["streams"])) == (30, 15, 15)
    pages = [
        client.get("/v1/streams", params={"limit": 7, "offset": at}).json()["streams"]
        for at in range(0, 30, 7)
    ]
    assert len({one["stream"] for page in pages for one in page}) == 30


def test_a_stream_can_be_forgotten(start):
    client, *_ = start()
    client.post("/v1/events", json={"stream": "a", "time": 0, "values": {"lactate": 1.0}})
    assert client.delete("/v1/streams/a").status_code == 204
    assert client.get("/v1/streams/a").status_code == 404
    assert client.get("/v1/streams").json()["total"] == 0


def test_static_features_are_asked_for(start, tmp_path):
    torch.manual_seed(0)
    engine = Engine(
        oc.NeuralCDE(4, 8, outputs=1, static=2, field={"width": 8, "depth": 1}), channels=CHANNELS
    )
    client, *_ = start(engine=engine, features=("age", "sex"))
    row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
    refused = client.post("/v1/events", json=row)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "static_needed")
    done = client.post("/v1/events", json={**row, "static": {"sex": 1, "age": 66}})
    assert done.status_code == 200
    assert client.get("/v1/streams/a").json()["static"] == [66.0, 1.0]
    client.put("/v1/streams/b", json={"static": [50, 0], "origin": 12.5})
    assert client.get("/v1/streams/b").json()["origin"] == 12.5


def test_static_features_of_another_item_change_nothing_and_refuse_no_other(start):
    engine = Engine(
        oc.NeuralCDE(4, 8, outputs=1, static=2, field={"width": 8, "depth": 1}), channels=CHANNELS
    )
    client, *_ = start(engine=engine, features=("age", "sex"))

    def row(time, *static):
        told = {"stream": "a", "time": time, "values": {"lactate": 1.0}}
        return {**told, "static": static[0]} if static else told

    wrong = (["oops", 1], ["60", "1"], [True, False], [60], {"age": 60}, {"shoe": 44}, 5)
    told = [row(0, [66, 1]), row(1), row(2, [20, 0]), row(3, None)]
    told += [row(4 + n, one) for n, one in enumerate(wrong)]
    answer = client.post("/v1/events", json=told).json()
    assert answer["counts"]["applied"] == 4
    refused = [(one["index"], one["code"], one["field"]) for one in answer["refusals"]]
    assert refused == [(4 + n, "static_bad", "static") for n in range(len(wrong))]
    assert client.get("/v1/streams/a").json()["static"] == [66.0, 1.0]
    assert engine.counters["refused"] == len(wrong)
    for one in wrong:
        answer = client.put("/v1/streams/b", json={"static": one})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "static_bad")


def test_the_origin_of_a_known_stream_stays(start):
    client, *_ = start()
    row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
    client.post("/v1/events", json=row)
    client.put("/v1/streams/b", json={"origin": 12.5})
    assert client.put("/v1/streams/b", json={"origin": 12.5}).status_code == 200
    for name, was in (("a", None), ("b", 12.5)):
        answer = client.put(f"/v1/streams/{name}", json={"origin": 99.0})
        told = answer.json()["error"]
        assert (answer.status_code, told["code"], told["field"]) == (409, "origin_fixed", "origin")
        assert client.get(f"/v1/streams/{name}").json()["origin"] == was


def test_a_full_disk_is_a_503_and_nothing_is_lost_by_sending_again(start, monkeypatch):
    client, engine, _ = start()
    real, failed = engine.apply, []

    def full(events):
        if len(failed) < 2:
            failed.append(len(events))
            raise StoreFull("no room")
        return real(events)

    monkeypatch.setattr(engine, "apply", full)
    row = {"stream": "a", "time": 0, "values": {"lactate": 1.0, "oxygen": 2.0}}
    for _ in range(2):
        answer = client.post("/v1/events", json=row)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_full")
        assert int(answer.headers["retry-after"]) >= 1
    assert failed == [2, 2]
    assert client.post("/v1/events", json=row).json()["counts"]["applied"] == 2


def test_an_unforeseen_error_is_told_without_what_was_sent(start, monkeypatch, caplog):
    client, engine, _ = start()
    monkeypatch.setattr(engine, "apply", lambda events: {}["secret patient 7"])
    answer = client.post("/v1/events", json={"stream": "a", "time": 0, "values": {"lactate": 1}})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    from onlinecde.serving.request_log import JsonLines

    lines = [JsonLines().format(record) for record in caplog.records]
    assert any("KeyError" in line for line in lines)
    assert not any("secret" in line for line in lines)


def test_what_asyncio_has_to_say_is_a_line_without_data():
    import asyncio

    from onlinecde.serving.request_log import JsonLines

    loop, heard = asyncio.new_event_loop(), []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(JsonLines().format(record))
    logging.getLogger("asyncio").addHandler(handler)
    try:
        loop.call_soon(lambda name: [][0], "bed 7")
        loop.call_soon(loop.stop)
        loop.run_forever()
    finally:
        logging.getLogger("asyncio").removeHandler(handler)
        loop.close()
    told = json.loads(heard[0])
    assert (told["event"], told["error"]) == ("failed", "IndexError")
    assert "bed 7" not in heard[0]


def test_who_asks_too_often_waits(start):
    client, *_ = start(limits=Limits(requests_per_second=5.0, burst=10))
    answers = [client.get("/v1/model") for _ in range(30)]
    refused = [one for one in answers if one.status_code == 429]
    assert 15 <= len(refused) <= 20
    assert int(refused[0].headers["retry-after"]) >= 1


def test_without_a_page_the_api_is_all_there_is(start):
    client, *_ = start(page=False)
    assert client.get("/").status_code == 404
    assert client.get("/v1/model").status_code == 200


def test_the_port_taken_is_told(start):
    from onlinecde.serving import ServingError

    _, _, url = start()
    with pytest.raises(ServingError, match="--port"):
        start(port=httpx.URL(url).port)
