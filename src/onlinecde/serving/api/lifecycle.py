"""Routes for what changes slowly: the end of a stream, another model beside the one that serves."""

from typing import Any

from fastapi import APIRouter, Query, Request, Response

from onlinecde.serving import models
from onlinecde.serving.api.replies import answers_of, name_of
from onlinecde.serving.bodies import json_object, reply
from onlinecde.serving.problems import Problem
from onlinecde.serving.service import Service

_MODEL_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"folder": {"type": "string"}},
                    "required": ["folder"],
                    "additionalProperties": False,
                }
            }
        },
    }
}


def lifecycle_routes(service: Service) -> APIRouter:
    """The end of a stream; another model."""
    router = APIRouter(tags=["model"])
    engine = service.engine

    @router.post("/v1/streams/{stream}/end", status_code=204, responses=_nothing(404))
    async def end(stream: str) -> Response:
        """Note that a stream has ended: what `--forget-ended` deletes in time, unless another event comes."""
        name = name_of(stream)
        await service.do(lambda: engine.end_stream(name))
        return Response(status_code=204)

    @router.get("/v1/model/shadow", responses=answers_of(models.Shadow))
    async def shadow() -> Response:
        """Another model beside the one that serves: how far it is, how its answers differ."""
        return reply(models.Shadow.of(await service.shadow_status()))

    @router.get("/v1/model/shadow/difference", responses=answers_of(models.ShadowDifference, 404))
    async def difference(stream: str = Query(max_length=200)) -> Response:
        """What both models say of a stream after its newest row."""
        name = name_of(stream)
        result = await service.do(lambda: engine.shadow.difference(name))
        return reply(models.ShadowDifference.fill(result))

    @router.post(
        "/v1/model/shadow", responses=answers_of(models.Shadow, 409), openapi_extra=_MODEL_BODY
    )
    async def begin(request: Request) -> Response:
        """Begin to build the model in a folder of the server beside the one that serves."""
        folder = (await json_object(request, service, {"folder"})).get("folder")
        if not isinstance(folder, str) or not folder or "\0" in folder:
            raise Problem(422, "folder_bad", "`folder` is not a folder's name.", field="folder")
        return reply(models.Shadow.of(await service.begin_shadow(folder)))

    @router.post("/v1/model/shadow/promote", responses=answers_of(models.Shadow, 404, 409))
    async def promote() -> Response:
        """Let it take over, once it is built: from the next event on it answers."""
        return reply(models.Shadow.of(await service.promote_shadow()))

    @router.delete("/v1/model/shadow", status_code=204, responses=_nothing(404, 409))
    async def discard() -> Response:
        """Throw it away."""
        await service.do(engine.shadow.discard)
        return Response(status_code=204)

    return router


def _nothing(*statuses: int) -> dict[int | str, dict[str, Any]]:
    responses = answers_of(None, *statuses)
    del responses[200]
    return responses
