"""Bodies of answers and of requests: plain or gzip, JSON or NDJSON, read piece by piece, never beyond their limit."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from onlinecde.serving.problems import Problem

if TYPE_CHECKING:
    from onlinecde.serving.service import Service

SMALL = 64 * 1024
"""Limit for bodies that hold no events"""
QUICK_BYTES = 32 * 1024
"""Bodies that are parsed in the loop; larger ones hold up nobody"""
QUICK = 1024
"""Bytes of gzip that are unpacked at once: they hold at most a thousand times as many"""
MOST_MEMBERS = 64
"""Parts that a body in gzip may be joined of: each costs a copy of the rest"""


@asynccontextmanager
async def body_of(
    request: Request, service: Service, most: int | None = None
) -> AsyncIterator[bytes]:
    """A request's body, unpacked; what all bodies being read take together is bounded too."""
    limits = service.settings.limits
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip"):
        raise Problem(
            415, "content_encoding", "send the body as it is, or as gzip.", field="content-encoding"
        )  # fmt: skip
    most = limits.body_bytes if most is None else most
    details = request.headers.get("content-length")
    if details is not None and details.isdigit() and int(details) > most:
        raise _too_large(most)
    pieces = []
    with service.bodies.growing(request.state.client.name) as reading:
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for piece in request.stream():
                    if reading.amount + len(piece) > most:
                        raise _too_large(most)
                    if not reading.take(len(piece)):
                        raise _too_many()
                    pieces.append(piece)
        except TimeoutError as error:
            raise Problem(408, "body_slow", "the body did not come in time.") from error
        except ClientDisconnect as error:
            raise Problem(400, "body_cut", "the body was cut short.") from error
        body = b"".join(pieces)
        if coding != "identity":
            if len(body) <= QUICK:
                body = unzipped(body, most)
            else:
                body = await asyncio.to_thread(unzipped, body, most)
            if not reading.take(len(body)):
                raise _too_many()
        yield body


def unzipped(body: bytes, most: int) -> bytes:
    """What a body in gzip holds; raises `Problem` where it is more than allowed, after having unpacked no more.

    >>> import gzip
    >>> unzipped(gzip.compress(b"{}") + gzip.compress(b" "), 10)
    b'{} '
    """
    pieces, left = [], most + 1
    while body:
        if len(pieces) == MOST_MEMBERS:
            raise Problem(400, "gzip_bad", f"at most {MOST_MEMBERS} parts of gzip.", field="body")
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            pieces.append(member.decompress(body, left))
        except zlib.error as error:
            raise Problem(400, "gzip_bad", "the body is not gzip.", field="body") from error
        left -= len(pieces[-1])
        if left <= 0:
            raise _too_large(most)
        if not member.eof:
            raise Problem(400, "gzip_bad", "the body in gzip was cut short.", field="body")
        body = member.unused_data
    return b"".join(pieces)


async def json_object(request: Request, service: Service, known: set[str]) -> dict[str, Any]:
    """A small JSON object with no fields but the known ones."""
    async with body_of(request, service, SMALL) as body:
        details = read_json(body)
    if not isinstance(details, dict):
        raise Problem(422, "body_type", "give a JSON object.", field="body")
    if strange := details.keys() - known:
        name = min(strange)[:40]
        raise Problem(422, "field_unknown", f"there is no field {name!r} here.", field=name)
    return details


def read_json(body: bytes) -> Any:
    """JSON as RFC 8259 has it; NaN and Infinity are let through for the engine to name and refuse."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise Problem(400, "body_empty", "the body is empty.", field="body") from error
        try:
            text = body.decode()
        except UnicodeDecodeError as wrong:
            raise Problem(
                400, "utf8_bad", f"the body is not UTF-8 at byte {wrong.start}.", field="body"
            ) from error
        if "depth limit" in str(error):
            raise Problem(
                400, "json_depth", "the body is nested too deep.", field="body"
            ) from error
        try:
            # Python's reader takes what Python's writer writes for numbers that are not finite.
            content = json.loads(text)
            json.dumps(content, ensure_ascii=False).encode()  # an escape such as \ud800 is no text
            return content
        except UnicodeEncodeError:
            raise Problem(
                400, "utf8_bad", "the body has half of a surrogate pair, which is no text.", field="body"
            ) from error  # fmt: skip
        except (ValueError, RecursionError):
            raise Problem(
                400, "json_bad", f"the body is not JSON: {error.msg} (line {error.lineno}, "
                f"column {error.colno}).", field="body"
            ) from error  # fmt: skip


def read_lines(body: bytes) -> list[Any]:
    """NDJSON: one event or row a line."""
    lines = [line.strip() for line in body.split(b"\n")]
    whole = [line for line in lines if line]
    # All at once where every line looks like an object of its own; else one by one, to name the bad one.
    if all(line[:1] == b"{" and line[-1:] == b"}" for line in whole):
        try:
            content = orjson.loads(b"[%b]" % b",".join(whole))
            if len(content) == len(whole) > 0:
                return content
        except orjson.JSONDecodeError:
            pass
    content = []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                content.append(read_json(line))
        except Problem as problem:
            problem.field = f"line {number}"
            raise
    if not content:
        raise Problem(400, "body_empty", "the body is empty.", field="body")
    return content


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer as JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def _too_many() -> Problem:
    return Problem(429, "overloaded", "too many bodies at once: send again later.", retry_after=1)


def _too_large(most: int) -> Problem:
    return Problem(413, "body_too_large", f"a body here has at most {most} bytes.", field="body")
