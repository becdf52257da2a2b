"""The monitor page and the login form: files of this package, and nothing from anywhere else."""

from __future__ import annotations

from importlib.resources import files
from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from onlinecde.serving.api_page import api_page
from onlinecde.serving.bodies import body_of
from onlinecde.serving.request_log import REQUEST
from onlinecde.serving.security import COOKIE
from onlinecde.serving.service import Service
from onlinecde.serving.tokens import TokenBook

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
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
    kept = page_files()
    form = kept["login.html"][0]

    def file(name: str) -> Response:
        content, kind = kept[name]
        return Response(content, media_type=kind)

    async def page(request: Request) -> Response:
        return file("monitor.html")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        return file(name) if name in kept else Response(status_code=404)

    async def docs(request: Request) -> Response:
        return Response(api_page(app.openapi()), media_type=_TYPES[".html"])

    def home_of(request: Request) -> Response:
        where = f"{request.scope.get('root_path', '')}/"
        return Response(status_code=303, headers={"location": where})

    def asked(wrong: str = "", status: int = 200) -> Response:
        details = f'<p class="wrong" role="alert">{wrong}</p>\n' if wrong else ""
        return Response(
            form.replace(_WRONG_HERE, details.encode()), status, media_type=_TYPES[".html"]
        )

    async def login_form(request: Request) -> Response:
        return home_of(request) if tokens is None else asked()

    async def login(request: Request) -> Response:
        async with body_of(request, service, 4096) as body:
            details = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
        if tokens is None:
            return home_of(request)
        token = tokens.whose(details)
        if token is None:
            return asked("This token is not known here.", 401)
        if token.expired:
            return asked("This token has expired: ask for another.", 401)
        if "read" not in token.rights:
            return asked(
                "This token may send events but not look: sign in with one that has the scope read.",
                403,
            )
        service.audit.write("signed in", f"token {token.name}", REQUEST.get())
        home = home_of(request)
        home.set_cookie(
            COOKIE, service.sessions.open(token), max_age=int(service.sessions.seconds), path="/",
            httponly=True, samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
        return home

    async def logout(request: Request) -> Response:
        service.sessions.close(request.cookies.get(COOKIE, ""))
        home = Response(status_code=303, headers={"location": "/login"})
        for name in (COOKIE, "onlinecde_token"):  # 0.1 kept the token itself in a cookie
            home.delete_cookie(name, path="/", httponly=True, samesite="strict")
        return home

    app.router.routes += [
        _PageRoute("/", page),
        _PageRoute("/assets/{name}", asset),
        _PageRoute("/docs", docs),
        _PageRoute("/login", login_form),
        _PageRoute("/login", login, methods=["POST"]),
        _PageRoute("/logout", logout, methods=["POST"]),
    ]


class _PageRoute(Route):
    """A route that says which it was, as those of the API do, for logs and metrics."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return match, {**child, "route": self} if match is not Match.NONE else child
