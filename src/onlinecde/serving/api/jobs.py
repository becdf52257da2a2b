"""Routes for jobs: work that goes on after its request was answered."""

from fastapi import APIRouter, Request, Response

from onlinecde.serving import models
from onlinecde.serving.api.replies import answers_of, may_read
from onlinecde.serving.bodies import reply
from onlinecde.serving.jobs import Job
from onlinecde.serving.problems import Problem
from onlinecde.serving.security import Client
from onlinecde.serving.service import Service


def job_routes(service: Service) -> APIRouter:
    """Jobs: all, and one."""
    router = APIRouter(tags=["jobs"])

    @router.get("/v1/jobs", responses=answers_of(models.Jobs))
    async def jobs() -> Response:
        """Jobs that run or ended within the hour, newest first."""
        return reply({"jobs": [models.Job.of(job) for job in service.jobs.listed()]})

    @router.get("/v1/jobs/{number}", responses=answers_of(models.Job, 404))
    async def job(number: str, request: Request) -> Response:
        """One job: how far it is, and in the end its result or its error."""
        result = service.jobs.find(number)
        client: Client = request.state.client
        everything = may_read(request) and client.all_streams
        if not everything and result.owner != client.name:
            raise Problem(404, "job_unknown", "there is no such job.", field="job")
        return reply(models.Job.of(result))

    return router


def accepted(job: Job) -> Response:
    """202: the work goes on as a job."""
    return reply(models.Job.of(job), 202, {"location": f"/v1/jobs/{job.number}"})
