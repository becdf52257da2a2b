"""What a running server reads again when it is asked to: by SIGHUP, or by `POST /v1/admin/reload`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from onlinecde.serving.problems import ServingError
from onlinecde.serving.request_log import note
from onlinecde.serving.tokens import TokenBook


class Reload:
    """Steps that each read something again; one that fails leaves what it had, and keeps no other from its turn."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self.steps = list(steps)

    def __call__(self) -> list[str]:
        """Read everything again; what went wrong."""
        wrong = []
        for step in self.steps:
            try:
                step()
            except ServingError as error:
                wrong.append(str(error))
        return wrong


def reload_tokens(book: TokenBook | None, file: Path | None) -> None:
    """Read the tokens anew; where that fails, those known stay."""
    if book is None or file is None:
        note("no tokens to reload")
        return
    try:
        book.reload(file)
    except ServingError as error:
        note("tokens not reloaded", logging.ERROR, reason=str(error))
        raise
    else:
        note("tokens reloaded", tokens=len(book))
