"""What all routes share: answers as JSON, what they may answer, problems, names in paths."""

from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from onlinecde.serving import models
from onlinecde.serving.bodies import reply
from onlinecde.serving.problems import Problem


def answers_of(model: Any, *others: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer, for the OpenAPI document."""
    responses: dict[int | str, dict[str, Any]] = {200: {"model": model}}
    for status in (400, 401, 403, 421, 422, 429, 503, *others):
        responses[status] = {"model": models.ErrorAnswer}
    return responses


def may_read(request: Request) -> bool:
    """Whether whoever asks may be told what only looking would tell."""
    return "read" in request.state.client.scopes


def name_of(quoted: str) -> str:
    """The name of a stream, as it stands in a path."""
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise Problem(400, "utf8_bad", "the name is not UTF-8.", field="stream") from error


def add_problems(app: FastAPI) -> None:
    """Answer problems, wrong parameters and unknown paths as JSON."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        request.state.problem = error.code
        return reply(error.as_json(), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        answer = Problem(422, "parameter_bad", f"{field}: {first['msg']}.", field=field)
        request.state.problem = answer.code
        return reply(answer.as_json(), answer.status)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        answer = Problem(error.status_code, code, str(error.detail))
        request.state.problem = code
        return reply(answer.as_json(), answer.status, dict(error.headers or {}))
