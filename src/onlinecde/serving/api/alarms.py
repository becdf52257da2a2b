"""Routes for alarms."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from onlinecde.serving import models
from onlinecde.serving.api.replies import answers_of, may_read
from onlinecde.serving.bodies import json_object, reply
from onlinecde.serving.problems import Problem
from onlinecde.serving.security import Client
from onlinecde.serving.service import Service

BY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["by"],
                    "properties": {"by": {"type": "string", "minLength": 1, "maxLength": 80}},
                    "additionalProperties": False,
                }
            }
        },
    }
}


def alarm_routes(service: Service) -> APIRouter:
    """Alarms: all, those of a stream, and who has seen them."""
    router = APIRouter(tags=["alarms"])

    @router.get("/v1/alarms", responses=answers_of(models.Alarms, 404))
    async def alarms(
        request: Request,
        stream: Annotated[str | None, Query(max_length=200)] = None,
        unacknowledged: bool = False,
    ) -> Response:
        """Alarms, newest first, at most 1,000."""
        client: Client = request.state.client
        if stream is not None:
            client.check_stream(stream)
        raised = await service.do(
            lambda: service.engine.alarms(stream, unacknowledged=unacknowledged)
        )
        raised = [one for one in raised if client.may_touch(one.stream)][:1000]
        return reply({"alarms": [models.Alarm.of(one, service.names) for one in raised]})

    @router.post(
        "/v1/alarms/{number}/acknowledge",
        responses=answers_of(models.Alarm, 404, 413),
        openapi_extra=BY_BODY,
    )
    async def acknowledge(number: int, request: Request) -> Response:
        """Mark an alarm as seen, by whom; a second time changes nothing.

        Without the scope `read` its number alone is told.
        """
        by = (await json_object(request, service, {"by"})).get("by")
        if not isinstance(by, str) or not 0 < len(by) <= 80 or not by.isprintable():
            raise Problem(
                422, "by_bad", "`by` is a name of 1 to 80 printable characters.", field="by"
            )
        if not 0 <= number < 2**63:
            raise Problem(404, "alarm_unknown", "there is no such alarm.", field="number")
        client: Client = request.state.client
        if not client.all_streams:
            every = await service.do(service.engine.alarms)
            if any(one.number == number and not client.may_touch(one.stream) for one in every):
                raise Problem(404, "alarm_unknown", "there is no such alarm.", field="number")
        alarm = await service.do(lambda: service.engine.acknowledge(number, by))
        service.changed(alarm.stream)
        return reply(
            models.Alarm.of(alarm, service.names) if may_read(request) else {"number": number}
        )

    @router.get("/v1/webhooks", responses=answers_of(models.Webhooks))
    async def webhooks() -> Response:
        """Where alarms are sent, how many wait, and which were given up."""
        kept = service.webhooks
        return reply({"targets": [models.Webhook.of(kept, name) for name in kept.targets]})

    return router
