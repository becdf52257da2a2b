"""The application: an engine behind the API, the door and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from onlinecde.serving import api
from onlinecde.serving.api.replies import add_problems
from onlinecde.serving.page_routes import add_page
from onlinecde.serving.problems import ServingError
from onlinecde.serving.reloading import Reload
from onlinecde.serving.security import Access
from onlinecde.serving.service import Service
from onlinecde.serving.settings import ServeSettings
from onlinecde.serving.tokens import TokenBook
from onlinecde.streaming import Engine
from onlinecde.version import __version__


def create_app(
    engine: Engine,
    settings: ServeSettings | None = None,
    *,
    tokens: TokenBook | None = None,
    reload: Reload | None = None,
) -> Access:
    """An ASGI application that serves an engine; it closes the engine when it ends.

    reload: what `POST /v1/admin/reload` has read again.

    Without tokens, anyone who can reach it may do everything: only a server bound to loopback may run so.
    """
    settings = settings or ServeSettings()
    check_tokens(settings, tokens)
    service = Service(engine, settings, tokens, reload)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title=settings.title,
        description="Live predictions from irregular time series.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    routers = (
        api.server_routes,
        api.admin_routes,
        api.event_routes,
        api.stream_routes,
        api.alarm_routes,
        api.job_routes,
        api.lifecycle_routes,
    )
    for routes in routers:
        app.include_router(routes(service))
    add_problems(app)
    if settings.page:
        add_page(app, service, tokens)
    return Access(
        app,
        settings=settings,
        tokens=tokens,
        sessions=service.sessions,
        audit=service.audit,
        rates=service.rates,
        requests=service.metrics.requests,
        errors=service.metrics.errors,
        shortcuts={("POST", "/v1/events"): api.taking_events(service)},
    )


def check_tokens(settings: ServeSettings, tokens: TokenBook | None) -> None:
    """Refuse to be reached by others without tokens, or with tokens that anyone on the way could read."""
    if tokens is not None:
        tokens.filled()
    elif not settings.loopback:
        raise ServingError(
            f"bound to {settings.host}, others can reach the server: give --tokens FILE (`onlinecde "
            "tokens new` makes one), or bind it to 127.0.0.1."
        )
    if not (settings.loopback or settings.tls_cert or settings.insecure_http):
        raise ServingError(
            f"bound to {settings.host} without TLS, tokens and data would cross the network for all to read: give "
            "--tls-cert FILE and --tls-key FILE; bind it to 127.0.0.1 behind a proxy that does TLS; or, where the "
            "network is trusted, give --insecure-http."
        )
