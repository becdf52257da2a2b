"""Routes for who runs the server: they need the scope `admin`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from onlinecde.serving import models
from onlinecde.serving.api.replies import answers_of, name_of
from onlinecde.serving.bodies import reply
from onlinecde.serving.service import Service


def admin_routes(service: Service) -> APIRouter:
    """Reading files again, and the audit log."""
    router = APIRouter(tags=["admin"], prefix="/v1/admin")

    @router.post("/reload", responses=answers_of(models.Reloaded))
    async def reload() -> Response:
        """Read the files of tokens and certificates again, as SIGHUP does; what cannot be read stays as it was."""
        return reply({"wrong": service.reload()})

    @router.get("/audit", responses=answers_of(models.AuditLines))
    async def audit(most: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        """The last lines of the audit log, newest first."""
        lines: list[dict[str, Any]] = service.audit.newest(most)
        return reply({"lines": lines})

    @router.post("/webhooks/{target}/retry", responses=answers_of(models.Retried, 404))
    async def retry(target: str) -> Response:
        """Send the alarms again that were given up for a target."""
        return reply({"alarms": await service.webhooks.retry(name_of(target))})

    return router
