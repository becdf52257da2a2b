"""Routes for events: `POST /v1/events` and the WebSocket `/v1/live`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response, WebSocket

from onlinecde.serving import models
from onlinecde.serving.api.jobs import accepted
from onlinecde.serving.api.replies import answers_of, may_read
from onlinecde.serving.bodies import QUICK_BYTES, body_of, reply
from onlinecde.serving.jobs import Job
from onlinecde.serving.live import live
from onlinecde.serving.problems import Problem
from onlinecde.serving.service import Service

_NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["stream", "time", "channel", "value"],
    "properties": {
        "stream": _NAME,
        "time": {"type": "number"},
        "channel": {"type": "string"},
        "value": {"type": "number"},
        "id": _NAME,
    },
    "additionalProperties": False,
}
ROW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["stream", "time", "values"],
    "properties": {
        "stream": _NAME,
        "time": {"type": "number"},
        "values": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "id": _NAME,
        "static": {
            "oneOf": [
                {
                    "type": "object",
                    "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
                },
                {"type": "array", "items": {"type": "number"}},
            ]
        },
    },
    "additionalProperties": False,
}
_ONE: dict[str, Any] = {"oneOf": [_EVENT, ROW_SCHEMA]}
_LIST: dict[str, Any] = {"type": "array", "items": _ONE, "minItems": 1}
EVENTS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        _ONE,
                        _LIST,
                        {
                            "type": "object",
                            "required": ["events"],
                            "properties": {"events": _LIST},
                            "additionalProperties": False,
                        },
                    ]
                }
            },
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}


def event_routes(service: Service) -> APIRouter:
    """Events by HTTP and by WebSocket."""
    router = APIRouter(tags=["events"])
    responses = answers_of(models.Receipt, 408, 413, 415)
    responses[202] = {"model": models.Job}
    responses[422] = {"model": models.RefusedReceipt}
    take = taking_events(service)

    @router.post("/v1/events", responses=responses, openapi_extra=EVENTS_BODY)
    async def events(
        request: Request, answers: bool = False, horizon: float | None = None
    ) -> Response:
        """Take events; answers after they are durable. 422 where every one was refused."""
        return await take(request)

    @router.websocket("/v1/live")
    async def socket(websocket: WebSocket) -> None:
        await live(websocket, service)

    return router


def taking_events(service: Service) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of `POST /v1/events`."""

    async def take(request: Request) -> Response:
        began = time.perf_counter()
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json" and kind not in _NDJSON:
            raise Problem(
                415, "media_type", "send application/json or application/x-ndjson.", field="content-type"
            )  # fmt: skip
        wants_answers = _flag(request, "answers")
        names = service.names_within(_horizon(request) if wants_answers else None)
        if wants_answers and not may_read(request):
            raise Problem(
                403, "scope_missing", "answers=true needs a token with the scope 'read' too.", field="answers"
            )  # fmt: skip
        async with body_of(request, service) as body:
            if len(body) <= QUICK_BYTES:
                sent = service.reader.read(body, kind in _NDJSON)
            else:
                async with service.reading:  # one at a time: small requests wait for none of them
                    sent = await asyncio.to_thread(service.reader.read, body, kind in _NDJSON)
            try:
                done = await service.take(sent, request.state.client, as_job=True)
            except Exception as error:
                raise service.problem_of(error, events=True) from error
        if isinstance(done, Job):
            return accepted(done)
        service.metrics.waited.observe(time.perf_counter() - began)
        receipt = done.as_json(service.engine.channels, full=may_read(request))
        if done.counts["refused"] == len(sent.batch):
            first = receipt["refusals"][0]
            why = {name: first[name] for name in ("code", "message", "field")}
            return reply({"error": why, **receipt}, 422)
        if wants_answers:
            answers = await service.answers(done)
            receipt["answers"] = models.Prediction.of(answers, names)
        return reply(receipt)

    return take


def _horizon(request: Request) -> float | None:
    given = request.query_params.get("horizon")
    try:
        return None if given is None else float(given)
    except ValueError:
        raise Problem(422, "parameter_bad", "horizon: give a number.", field="horizon") from None


def _flag(request: Request, name: str) -> bool:
    if not request.scope["query_string"]:
        return False
    given = request.query_params.get(name, "false").lower()
    if given not in ("true", "1", "false", "0"):
        raise Problem(422, "parameter_bad", f"{name}: give true or false.", field=name)
    return given in ("true", "1")
