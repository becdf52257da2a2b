"""Log lines as JSON, without names of streams and without values."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Any

LOGGER = logging.getLogger("onlinecde.serving")
REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Id of the request that is being answered: in its log lines, its answer and the audit log"""
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}").fullmatch


def request_id(given: str | None) -> str:
    """The id a client gave its request, if it is a short plain word; else a new one.

    >>> request_id("call-17"), len(request_id("two words"))
    ('call-17', 16)
    """
    return given if given is not None and _SANE_ID(given) else secrets.token_hex(8)


class JsonLines(logging.Formatter):
    """One JSON object a line; what is said beside the message comes from `extra={"told": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": _said(record),
        }
        if (request := REQUEST.get()) is not None:
            line["request"] = request
        line |= getattr(record, "told", {})
        if record.exc_info and record.exc_info[0] is not None:
            # The message of an unforeseen error may quote what a client sent: only its kind and place.
            frame = record.exc_info[2]
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            place = f"{frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}" if frame else "?"
            line |= {"error": record.exc_info[0].__name__, "place": place}
        return json.dumps(line)


def _said(record: logging.LogRecord) -> str:
    """What a record says; asyncio adds what it was about in full, which may be what a client sent."""
    if record.name != "asyncio":
        return record.getMessage()
    return "failed" if record.exc_info else record.getMessage().split("\n", 1)[0]


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send this package's, uvicorn's and asyncio's log to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("onlinecde", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(level)
        logger.propagate = name == "uvicorn.error"


def note(event: str, level: int = logging.INFO, **content: Any) -> None:
    """Log an event with facts that are no one's data."""
    LOGGER.log(level, event, extra={"told": content})
