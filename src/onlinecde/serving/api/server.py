"""Routes about the server itself."""

from fastapi import APIRouter, Response

from onlinecde.serving.api.replies import answers_of
from onlinecde.serving.bodies import reply
from onlinecde.serving.models import About, Health, NotReady
from onlinecde.serving.service import Service


def server_routes(service: Service) -> APIRouter:
    """Health, readiness, metrics, the model."""
    router = APIRouter(tags=["server"])

    @router.get("/healthz", responses={200: {"model": Health}})
    async def health() -> Response:
        """Whether it runs; needs no token."""
        return reply({"status": "ok"})

    @router.get("/readyz", responses={200: {"model": Health}, 503: {"model": NotReady}})
    async def ready() -> Response:
        """Whether it can take events: the engine answers and the store can be written; needs no token."""
        problem = await service.readiness.problem()
        if problem is None:
            return reply({"status": "ready"})
        return reply(NotReady.of(problem), 503, problem.headers)

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def metrics() -> Response:
        """For Prometheus."""
        text = await service.metrics_text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/v1/model", responses=answers_of(About))
    async def about() -> Response:
        """The model, its channels, and how time passes here."""
        guarded = service.tokens is not None
        return reply(About.of(service.engine, service.settings, service.names, guarded=guarded))

    return router
