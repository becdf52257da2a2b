"""Routes for streams: all of them, one, its past and its future."""

import asyncio
import math
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from onlinecde.serving import models
from onlinecde.serving.api.events import ROW_SCHEMA
from onlinecde.serving.api.replies import answers_of, may_read, name_of
from onlinecde.serving.bodies import json_object, reply
from onlinecde.serving.event_formats import static_of
from onlinecde.serving.overview import Snapshot, attention
from onlinecde.serving.problems import Problem
from onlinecde.serving.security import Client
from onlinecde.serving.service import Service

_Number = Annotated[float | None, Query(allow_inf_nan=False)]
STREAM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "static": ROW_SCHEMA["properties"]["static"],
                        "origin": {"type": "number"},
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}


def stream_routes(service: Service) -> APIRouter:
    """Streams: all of them, one, and what the model says of it."""
    router = APIRouter(tags=["streams"])
    engine, limits = service.engine, service.settings.limits
    names = service.names
    most_listed, most_points = limits.listed_streams, limits.curve_points

    @router.get("/v1/streams", responses=answers_of(models.Streams))
    async def streams(
        request: Request,
        search: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=most_listed)] = min(200, most_listed),
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        horizon: _Number = None,
    ) -> Response:
        """All streams and what the model says of each now, what needs attention first.

        Here and below, `horizon`, of time to an event, is how far ahead the risk looks; default: as far as the one that
        is watched.
        """
        names = service.names_within(horizon)
        snapshot = await service.board.snapshot()
        return await asyncio.to_thread(
            _listed, snapshot, search, offset, limit, service, names, request.state.client
        )

    @router.get("/v1/streams/{stream}", responses=answers_of(models.Stream, 404))
    async def stream(stream: str, horizon: _Number = None) -> Response:
        """One stream: what is known of it, what the model says now, its alarms."""
        name, names = name_of(stream), service.names_within(horizon)
        info = await service.do(lambda: engine.stream(name))
        now = None if info.last_time is None else await service.board.at_now({name})
        if now is not None and not len(now):  # deleted in between
            raise Problem(404, "stream_unknown", f"there is no stream {name!r}.", field="stream")
        alarms = await service.do(lambda: engine.alarms(name))
        return reply(models.Stream.of(info, now, alarms[:100], names))

    @router.put(
        "/v1/streams/{stream}",
        responses=answers_of(models.Stream, 409, 413),
        openapi_extra=STREAM_BODY,
    )
    async def open_stream(stream: str, request: Request) -> Response:
        """Make a stream known before its first event, with static features and the wall clock at its time 0.

        Without the scope `read` its name alone is told.
        """
        name = name_of(stream)
        given = await json_object(request, service, {"static", "origin"})
        static = static_of(given.get("static"), service.reader.features)
        origin = given.get("origin")
        if origin is not None and not _finite(origin):
            raise Problem(422, "origin_bad", "`origin` is not a number.", field="origin")
        try:
            info = await service.do(lambda: engine.open_stream(name, static=static, origin=origin))
        except Problem as problem:
            if problem.code == "origin_fixed" and not may_read(request):
                problem.message = "the stream was opened with another origin, which stays."
            raise
        if may_read(request):
            return reply(models.Stream.of(info, None, (), names))
        return reply({"stream": name, **({"notes": list(info.notes)} if info.notes else {})})

    @router.delete("/v1/streams/{stream}", status_code=204, responses=_gone())
    async def forget(stream: str) -> Response:
        """Delete a stream and everything known of it."""
        name = name_of(stream)
        await service.do(lambda: engine.forget(name))
        service.changed(name)
        return Response(status_code=204)

    @router.get("/v1/streams/{stream}/prediction", responses=answers_of(models.Prediction, 404))
    async def prediction(stream: str, at: _Number = None, horizon: _Number = None) -> Response:
        """What the model says at a time from the newest row on; without `at`: now."""
        name, names = name_of(stream), service.names_within(horizon)
        if at is None:
            await service.do(lambda: engine.stream(name))
            answers = await service.board.at_now({name})
            if not len(answers):
                raise Problem(404, "no_rows", "the stream has no row yet.", field="stream")
        else:
            answers = await service.do(lambda: engine.predict_many([name], [at]))
        return reply(models.Prediction.of(answers, names)[0])

    @router.get("/v1/streams/{stream}/history", responses=answers_of(models.History, 404))
    async def history(
        stream: str,
        since: _Number = None,
        until: _Number = None,
        most: Annotated[int, Query(ge=1, le=limits.history_rows)] = min(500, limits.history_rows),
        horizon: _Number = None,
    ) -> Response:
        """Rows as received and what was answered after each; `most` keeps the newest."""
        name, names = name_of(stream), service.names_within(horizon)
        rows = await service.do(lambda: engine.history(name, since, until, most=most))
        return reply(
            {
                "stream": name,
                "rows": [models.HistoryRow.of(row, names, engine.plausible) for row in rows],
            }
        )

    @router.get("/v1/streams/{stream}/curve", responses=answers_of(models.Curve, 404))
    async def curve(
        stream: str,
        request: Request,
        since: _Number = None,
        until: _Number = None,
        points: Annotated[int, Query(ge=2, le=most_points)] = min(300, most_points),
        horizon: _Number = None,
    ) -> Response:
        """The answer in continuous time; `until` may lie in the future, default: now.

        Of the rows in the span at most `points` are told, spread evenly.
        """
        name, names = name_of(stream), service.names_within(horizon)
        if until is None:
            await service.do(lambda: engine.stream(name))
            now = await service.board.at_now({name})
            until = float(now.times[0]) if len(now) else None
        result = await service.do_in_pieces(
            engine.curve_pieces(name, since, until, points=points, most_rows=points),
            request.is_disconnected,
        )
        return reply(models.Curve.of(name, result, names))

    @router.get("/v1/streams/{stream}/explanation", responses=answers_of(models.Explanation, 404))
    async def explanation(
        stream: str,
        request: Request,
        last: Annotated[int, Query(ge=1, le=200)] = 20,
        horizon: _Number = None,
    ) -> Response:
        """What moved the answer, row by row: each channel and the passing of time, adding up exactly.

        Of time to an event the answer is the log-odds of the risk within the horizon.
        """
        name, _ = name_of(stream), service.names_within(horizon)
        rows = await service.do_in_pieces(
            engine.explain_pieces(name, last, horizon=horizon), request.is_disconnected
        )
        return reply({"stream": name, "rows": [models.RowExplanation.of(row) for row in rows]})

    return router


def _listed(
    snapshot: Snapshot,
    search: str,
    offset: int,
    limit: int,
    service: Service,
    names: models.OutputNames,
    client: Client,
) -> Response:
    streams, order = snapshot.overview.streams, snapshot.order
    if not names.watched:
        order = attention(
            names.answered(snapshot.probabilities)[:, 0],
            np.zeros(len(order)),
            np.fromiter(map(snapshot.alarms.__contains__, streams), bool, len(order)),
        )
    order = order.tolist()
    total, alarms = len(streams), len(snapshot.alarms)
    if not client.all_streams:
        order = [place for place in order if client.may_touch(streams[place])]
        total, alarms = len(order), sum(map(client.may_touch, snapshot.alarms))
    if search:
        wanted = search.casefold()
        order = [place for place in order if wanted in streams[place].casefold()]
    part = order[offset : offset + limit]
    return reply(
        {
            "total": total,
            "found": len(order),
            "taken": snapshot.taken,
            "alarms": alarms,
            "streams": models.BoardRow.of(snapshot, part, service.engine.watched_output, names),
        }
    )


def _gone() -> dict[int | str, dict[str, Any]]:
    responses = answers_of(None, 404)
    del responses[200]
    return responses


def _finite(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e300
        and math.isfinite(value)
    )
