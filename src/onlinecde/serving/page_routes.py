"""The monitor page and the login form: files of this package, and nothing from anywhere else."""

from __future__ import annotations

from importlib.resources import files
from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onlinecde.serving.access import COOKIE
from onlinecde.serving.api_page import api_page
from onlinecde.serving.bodies import body_of
from onlinecde.serving.service import Service
from onlinecde.serving.tokens import TokenBook

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_YEAR = 365 * 24 * 3600
_WRONG_HERE = b"<!-- what was wrong -->\n"


def page_files() -> dict[str, tuple[bytes, str]]:
    """Name -> content and type of every file of the page."""
    folder = files("onlinecde.serving") / "page"
    return {
        one.name: (one.read_bytes(), _TYPES[one.name[one.name.rindex(".") :]])
        for one in folder.iterdir()
        if one.is_file()
    }


def add_page(app: FastAPI, service: Service, tokens: TokenBook | None) -> None:
    """Serve the page at `/`, its files under `/assets/`, the login at `/login`, the API's description at `/docs`."""
    held = page_files()
    form = held["login.html"][0]

    def file(name: str) -> Response:
        content, kind = held[name]
        return Response(content, media_type=kind)

    async def page(request: Request) -> Response:
        return file("monitor.html")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        return file(name) if name in held else Response(status_code=404)

    async def docs(request: Request) -> Response:
        return Response(api_page(app.openapi()), media_type=_TYPES[".html"])

    async def login_form(request: Request) -> Response:
        return Response(form.replace(_WRONG_HERE, b""), media_type=_TYPES[".html"])

    async def login(request: Request) -> Response:
        async with body_of(request, service, 4096) as body:
            told = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
        if tokens is not None and tokens.whose(told) is None:
            wrong = b'<p class="wrong" role="alert">This token is not known here.</p>\n'
            return Response(form.replace(_WRONG_HERE, wrong), 401, media_type=_TYPES[".html"])
        home = Response(
            status_code=303, headers={"location": f"{request.scope.get('root_path', '')}/"}
        )
        home.set_cookie(
            COOKIE, told, max_age=_YEAR, path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return home

    async def logout(request: Request) -> Response:
        home = Response(status_code=303, headers={"location": "/login"})
        home.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return home

    app.router.routes += [
        Route("/", page),
        Route("/assets/{name}", asset),
        Route("/docs", docs),
        Route("/login", login_form),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]
