"""The HTTP API: routes under `/v1`, and how problems become answers."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import unquote

import orjson
from fastapi import APIRouter, FastAPI, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from onlinecde.serving import readiness, schemas, shapes
from onlinecde.serving.board import Snapshot
from onlinecde.serving.bodies import body_of, json_object
from onlinecde.serving.event_formats import read_events, static_of
from onlinecde.serving.live_socket import live
from onlinecde.serving.problems import Problem
from onlinecde.serving.service import Service

_NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_Number = Annotated[float | None, Query(allow_inf_nan=False)]


def _answers(model: Any, *others: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer, for the OpenAPI document."""
    told: dict[int | str, dict[str, Any]] = {200: {"model": model}}
    for status in (400, 401, 403, 421, 422, 429, 503, *others):
        told[status] = {"model": schemas.ErrorAnswer}
    return told


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer as JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def add_routes(app: FastAPI, service: Service) -> None:
    """All routes of the API."""
    app.include_router(_open_routes(service))
    app.include_router(_event_routes(service))
    app.include_router(_stream_routes(service))
    app.include_router(_alarm_routes(service))
    _tell_problems(app)


def _open_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/healthz", responses={200: {"model": schemas.Health}})
    async def health() -> Response:
        """Whether it runs; needs no token."""
        return reply({"status": "ok"})

    @router.get(
        "/readyz", responses={200: {"model": schemas.Health}, 503: {"model": schemas.NotReady}}
    )
    async def ready() -> Response:
        """Whether it can take events: the engine answers and the store can be written; needs no token."""
        problem = await service.readiness.problem()
        content = readiness.as_json(problem)
        return reply(content) if problem is None else reply(content, 503, problem.headers)

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def metrics() -> Response:
        """For Prometheus."""
        text = await service.do(service.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/v1/model", responses=_answers(schemas.About))
    async def about() -> Response:
        """The model, its channels, and how time passes here."""
        return reply(service.about())

    return router


def _event_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["events"])
    responses = _answers(schemas.Receipt, 408, 413, 415)
    responses[422] = {"model": schemas.RefusedReceipt}
    take = taking_events(service)

    @router.post("/v1/events", responses=responses, openapi_extra=schemas.EVENTS_BODY)
    async def events(request: Request, answers: bool = False) -> Response:
        """Take events; answers after they are durable. 422 where every one was refused."""
        return await take(request)

    @router.websocket("/v1/live")
    async def socket(websocket: WebSocket) -> None:
        await live(websocket, service)

    return router


def taking_events(service: Service) -> Callable[[Request], Awaitable[Response]]:
    """What answers `POST /v1/events`."""
    settings = service.settings

    async def take(request: Request) -> Response:
        began = time.perf_counter()
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json" and kind not in _NDJSON:
            raise Problem(
                415, "media_type", "send application/json or application/x-ndjson.", field="content-type"
            )  # fmt: skip
        wants_answers = _flag(request, "answers")
        if wants_answers and not may_read(request):
            raise Problem(
                403, "scope_missing", "answers=true needs a token with the scope 'read' too.", field="answers"
            )  # fmt: skip
        async with body_of(request, service) as body:
            columns = read_events(
                body,
                kind in _NDJSON,
                positions=service.positions,
                features=service.features,
                most=settings.limits.events_per_request,
            )
            try:
                done = await service.commits.enter(columns)
            except Exception as error:
                raise service.problem_of(error, events=True) from error
        service.metrics.waited.observe(time.perf_counter() - began)
        told = done.as_json(service.engine.channels)
        if done.counts["refused"] == len(columns):
            first = told["refusals"][0]
            why = {name: first[name] for name in ("code", "message", "field")}
            return reply({"error": why, **told}, 422)
        if wants_answers:
            told["answers"] = service.shapes.predictions(await service.answers(done))
        return reply(told)

    return take


def may_read(request: Request) -> bool:
    """Whether whoever asks may be told what only looking would tell."""
    return "read" in request.state.client.scopes


def _flag(request: Request, name: str) -> bool:
    if not request.scope["query_string"]:
        return False
    told = request.query_params.get(name, "false").lower()
    if told not in ("true", "1", "false", "0"):
        raise Problem(422, "parameter_bad", f"{name}: give true or false.", field=name)
    return told in ("true", "1")


def _stream_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["streams"])
    engine, limits = service.engine, service.settings.limits
    most_listed, most_points = limits.listed_streams, limits.curve_points

    @router.get("/v1/streams", responses=_answers(schemas.Streams))
    async def streams(
        search: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=most_listed)] = min(200, most_listed),
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    ) -> Response:
        """All streams and what the model says of each now, what needs attention first."""
        found = await service.board.snapshot()
        return await asyncio.to_thread(_listed, found, search, offset, limit, service)

    @router.get("/v1/streams/{stream}", responses=_answers(schemas.Stream, 404))
    async def stream(stream: str) -> Response:
        """One stream: what is known of it, what the model says now, its alarms."""
        name = _name(stream)
        info = await service.do(lambda: engine.stream(name))
        now = None if info.last_time is None else await service.board.at_now({name})
        if now is not None and not len(now):  # deleted in between
            raise Problem(404, "stream_unknown", f"there is no stream {name!r}.", field="stream")
        alarms = await service.do(lambda: engine.alarms(name))
        return reply(service.shapes.stream_info(info, now, alarms[:100]))

    @router.put(
        "/v1/streams/{stream}",
        responses=_answers(schemas.Stream, 409, 413),
        openapi_extra=schemas.STREAM_BODY,
    )
    async def open_stream(stream: str, request: Request) -> Response:
        """Make a stream known before its first event, with static features and the wall clock at its time 0.

        Without the scope `read` its name alone is told.
        """
        name = _name(stream)
        told = await json_object(request, service, {"static", "origin"})
        static = static_of(told.get("static"), service.features)
        origin = told.get("origin")
        if origin is not None and not _finite(origin):
            raise Problem(422, "origin_bad", "`origin` is not a number.", field="origin")
        info = await service.do(lambda: engine.open_stream(name, static=static, origin=origin))
        if may_read(request):
            return reply(service.shapes.stream_info(info, None, ()))
        return reply({"stream": name, **({"notes": list(info.notes)} if info.notes else {})})

    @router.delete("/v1/streams/{stream}", status_code=204, responses=_gone())
    async def forget(stream: str) -> Response:
        """Delete a stream and everything known of it."""
        name = _name(stream)
        await service.do(lambda: engine.forget(name))
        service.board.forget()
        return Response(status_code=204)

    @router.get("/v1/streams/{stream}/prediction", responses=_answers(schemas.Prediction, 404))
    async def prediction(stream: str, at: _Number = None) -> Response:
        """What the model says at a time from the newest row on; without `at`: now."""
        name = _name(stream)
        if at is None:
            await service.do(lambda: engine.stream(name))
            found = await service.board.at_now({name})
            if not len(found):
                raise Problem(404, "no_rows", "the stream has no row yet.", field="stream")
        else:
            found = await service.do(lambda: engine.predict_many([name], [at]))
        return reply(service.shapes.predictions(found)[0])

    @router.get("/v1/streams/{stream}/history", responses=_answers(schemas.History, 404))
    async def history(
        stream: str,
        since: _Number = None,
        until: _Number = None,
        most: Annotated[int, Query(ge=1, le=limits.history_rows)] = min(500, limits.history_rows),
    ) -> Response:
        """Rows as received and what was answered after each; `most` keeps the newest."""
        name = _name(stream)
        rows = await service.do(lambda: engine.history(name, since, until, most=most))
        return reply({"stream": name, "rows": [service.shapes.history_row(row) for row in rows]})

    @router.get("/v1/streams/{stream}/curve", responses=_answers(schemas.Curve, 404))
    async def curve(
        stream: str,
        request: Request,
        since: _Number = None,
        until: _Number = None,
        points: Annotated[int, Query(ge=2, le=most_points)] = min(300, most_points),
    ) -> Response:
        """The answer in continuous time; `until` may lie in the future, default: now.

        Of the rows in the span at most `points` are told, spread evenly.
        """
        name = _name(stream)
        if until is None:
            await service.do(lambda: engine.stream(name))
            now = await service.board.at_now({name})
            until = float(now.times[0]) if len(now) else None
        found = await service.do_in_pieces(
            engine.curve_pieces(name, since, until, points=points, most_rows=points),
            request.is_disconnected,
        )
        return reply({"stream": name, **service.shapes.curve(found)})

    @router.get("/v1/streams/{stream}/explanation", responses=_answers(schemas.Explanation, 404))
    async def explanation(
        stream: str, request: Request, last: Annotated[int, Query(ge=1, le=200)] = 20
    ) -> Response:
        """What moved the answer, row by row: each channel and the passing of time, adding up exactly."""
        name = _name(stream)
        rows = await service.do_in_pieces(
            engine.explain_pieces(name, last), request.is_disconnected
        )
        return reply({"stream": name, "rows": [shapes.explanation(row) for row in rows]})

    return router


def _listed(found: Snapshot, search: str, offset: int, limit: int, service: Service) -> Response:
    names, order = found.overview.streams, found.order.tolist()
    if search:
        wanted = search.casefold()
        order = [place for place in order if wanted in names[place].casefold()]
    part = order[offset : offset + limit]
    return reply(
        {
            "total": len(names),
            "found": len(order),
            "taken": found.taken,
            "alarms": len(found.alarms),
            "streams": service.shapes.board_rows(found, part, service.settings.output),
        }
    )


def _alarm_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["alarms"])

    @router.get("/v1/alarms", responses=_answers(schemas.Alarms, 404))
    async def alarms(
        stream: Annotated[str | None, Query(max_length=200)] = None, unacknowledged: bool = False
    ) -> Response:
        """Alarms, newest first, at most 1,000."""
        found = await service.do(
            lambda: service.engine.alarms(stream, unacknowledged=unacknowledged)
        )
        return reply({"alarms": [service.shapes.alarm(one) for one in found[:1000]]})

    @router.post(
        "/v1/alarms/{number}/acknowledge",
        responses=_answers(schemas.Alarm, 404, 413),
        openapi_extra=schemas.BY_BODY,
    )
    async def acknowledge(number: int, request: Request) -> Response:
        """Mark an alarm as seen, by whom; a second time changes nothing.

        Without the scope `read` its number alone is told.
        """
        told = await json_object(request, service, {"by"})
        by = told.get("by")
        if not isinstance(by, str) or not 0 < len(by) <= 80 or not by.isprintable():
            raise Problem(
                422, "by_bad", "`by` is a name of 1 to 80 printable characters.", field="by"
            )
        if not 0 <= number < 2**63:
            raise Problem(404, "alarm_unknown", "there is no such alarm.", field="number")
        found = await service.do(lambda: service.engine.acknowledge(number, by))
        service.board.forget()
        return reply(service.shapes.alarm(found) if may_read(request) else {"number": number})

    return router


def _gone() -> dict[int | str, dict[str, Any]]:
    told = _answers(None, 404)
    del told[200]
    return told


def _name(quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise Problem(400, "utf8_bad", "the name is not UTF-8.", field="stream") from error


def _finite(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e300
        and math.isfinite(value)
    )


def _tell_problems(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return reply(error.as_json(), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        told = Problem(422, "parameter_bad", f"{field}: {first['msg']}.", field=field)
        return reply(told.as_json(), told.status)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        told = Problem(error.status_code, code, str(error.detail))
        return reply(told.as_json(), told.status, dict(error.headers or {}))
