"""`onlinecde model`: another model beside the one that a server serves, without a pause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

model_app = typer.Typer(
    no_args_is_help=True, help="Try another model on a running server, and let it take over."
)
_To = Annotated[str, typer.Option("--to", help="Address of the server.")]
_Token = Annotated[
    str | None, typer.Option(envvar="ONLINECDE_TOKEN", help="Token with the scopes read and admin.")
]
_HERE = "http://127.0.0.1:8000"


def _ask(to: str, token: str | None, method: str, path: str, **content: Any) -> Any:
    from onlinecde.serving.replay import Server

    server = Server(to, token)
    try:
        return server.ask(method, path, **content)
    finally:
        server.close()


def _say(status: dict[str, Any]) -> None:
    if status["model"] is None:
        none = "no model beside the one that serves"
        typer.echo(
            {"clearing": "what is left of another model is being deleted"}.get(
                status["state"], none
            )
        )
        return
    typer.echo(f"{status['state']}: model {status['model'][:12]} in {status['folder']}")
    typer.echo(f"{status['built']:,} of {status['streams']:,} streams built")
    if status["from_cut"]:
        typer.echo(
            f"{status['from_cut']:,} begin with the rows that are left: the first were deleted by retention"
        )
    if status["compared"]:
        typer.echo(
            f"answers differ by {status['mean_difference']:.4g} in the mean, {status['largest_difference']:.4g} at "
            f"most; alarms disagree at {status['alarms_disagree']:,} of {status['compared']:,} streams"
        )
    if status["row_seconds"] is not None and status["live_row_seconds"]:
        ratio = status["row_seconds"] / status["live_row_seconds"]
        typer.echo(
            f"a row costs {1e6 * status['row_seconds']:.0f} us, {ratio:.2f} times what it costs now"
        )
    for one in status["failed"]:
        typer.echo(f"cannot follow {one}")


@model_app.command()
def shadow(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the other model, on the server's disk.")
    ],
    to: _To = _HERE,
    token: _Token = None,
) -> None:
    """Build another model from stored rows beside the one that serves, and compare."""
    _say(_ask(to, token, "POST", "/v1/model/shadow", json={"folder": str(folder.resolve())}))


@model_app.command()
def status(
    stream: Annotated[str | None, typer.Option(help="What both models say of this stream.")] = None,
    to: _To = _HERE,
    token: _Token = None,
) -> None:
    """How far the other model is, and how its answers differ."""
    if stream is None:
        return _say(_ask(to, token, "GET", "/v1/model/shadow"))
    told = _ask(to, token, "GET", "/v1/model/shadow/difference", params={"stream": stream})
    typer.echo(
        f"{stream} at {told['time']!r}: {told['live']} now, {told['shadow']} under the other model"
    )
    return None


@model_app.command()
def promote(to: _To = _HERE, token: _Token = None) -> None:
    """Let the other model take over, at an instant."""
    _ask(to, token, "POST", "/v1/model/shadow/promote")
    typer.echo(f"model {_ask(to, token, 'GET', '/v1/model')['model'][:12]} serves")


@model_app.command()
def discard(to: _To = _HERE, token: _Token = None) -> None:
    """Throw the other model away."""
    _ask(to, token, "DELETE", "/v1/model/shadow")
    typer.echo("discarded")
