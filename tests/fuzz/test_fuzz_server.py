"""Requests drawn from the OpenAPI document, and a flood of random events: no 5xx, no number that is not finite."""

import json
import socket

import httpx
import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import onlinecde as oc
from onlinecde.serving import Limits, ServeSettings, create_app, in_background
from onlinecde.streaming import Engine

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")
ROW = {"stream": "0", "time": 0.0, "values": {"lactate": 1.0}}


@pytest.fixture(scope="module")
def url():
    torch.manual_seed(1)
    engine = Engine(
        oc.NeuralCDE(4, 8, outputs=1, field={"width": 8, "depth": 1}, readout={"kind": "binary"}),
        channels=CHANNELS,
        lateness=2.0,
        threshold=0.3,
    )
    limits = Limits(requests_per_second=1e6, burst=10**6, body_bytes=200_000)
    settings = ServeSettings(port=0, limits=limits)
    with in_background(create_app(engine, settings), settings) as found:
        httpx.post(f"{found}/v1/events", json=ROW, timeout=60)
        yield found


def document():
    """The API's own description; it needs no running server."""
    engine = Engine(
        oc.NeuralCDE(4, 8, outputs=1, field={"width": 8, "depth": 1}, readout={"kind": "binary"}),
        channels=CHANNELS,
    )
    return create_app(engine).app.openapi()


OPERATIONS = [
    found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_requests_drawn_from_the_document(url, operation, mode):
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def draw(case):
        case.call_and_validate(
            base_url=url,
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    try:
        draw()
    except Unsatisfiable:
        pytest.skip("nothing about it can be wrong")


JUNK = [None, "", "x", True, [], {}, float("nan"), float("inf"), -1e308, 1e308, 5e-324, 10**30, -1]


def random_event(random):
    def some(good, share=0.08):
        return JUNK[random.integers(len(JUNK))] if random.random() < share else good

    return {
        "stream": some(str(random.integers(20))),
        "time": some(float(random.choice([random.uniform(0, 50), random.integers(50)]))),
        "channel": some(CHANNELS[random.integers(4)]),
        "value": some(float(random.normal() * 10.0 ** random.integers(-3, 6))),
    }


def test_random_events_never_break_it(url, rng):
    with httpx.Client(base_url=url, timeout=30) as client:
        before = _totals(client)
        sent = 0
        for _ in range(60):
            events = [random_event(rng) for _ in range(300)]
            answer = client.post(
                "/v1/events", content=json.dumps(events), headers={"content-type": "application/json"}
            )  # fmt: skip
            told = answer.json()
            assert answer.status_code in (200, 422)
            assert sum(told["counts"].values()) == 300
            sent += 300
        assert _totals(client) - before == sent
        for one in client.get("/v1/streams", params={"limit": 1000}).json()["streams"]:
            assert np.isfinite(one["probabilities"]).all()
            assert 0.0 <= one["probabilities"][0] <= 1.0


def _totals(client):
    lines = client.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("onlinecde_events_total")
    )


def test_random_bytes_on_the_wire_never_break_it(url, rng):
    port = httpx.URL(url).port
    heads = [b"", b"GET / HTTP/1.1\r\n", b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n"]
    for number in range(60):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
            wire.sendall(heads[number % 3] + rng.bytes(int(rng.integers(1, 400))) + b"\r\n\r\n")
            wire.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while piece := wire.recv(4096):
                    answer += piece
            except ConnectionResetError:
                continue
            assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]
    assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
