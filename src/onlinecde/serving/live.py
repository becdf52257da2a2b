"""What is live: the answers of each commit go to whoever listens, by the WebSocket `/v1/live`.

In, each message a JSON object or list: events in any form `POST /v1/events` takes, or
`{"subscribe": "all" | ["bed 7", ...], "ticks": true, "changes": false}` (of time to an event `"horizon": 24`, too), or
`{"unsubscribe": true}`. Events may be wrapped as `{"ref": 17, "events": [...]}`; the receipt then carries the `ref`.
Out, each frame a JSON list of messages: `receipt`, `predictions`, `changed`, `subscribed`, `error`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect

from onlinecde.serving.bodies import QUICK_BYTES, read_json
from onlinecde.serving.ingest import Committed
from onlinecde.serving.models import Alarm as AlarmAnswer
from onlinecde.serving.models import OutputNames, Prediction
from onlinecde.serving.problems import Problem
from onlinecde.serving.security import Client
from onlinecde.streaming import Alarm, Answers

if TYPE_CHECKING:
    from onlinecde.serving.service import Service

TRANSPORT = "onlinecde.transport"
"""The extension of a socket's ASGI scope that holds its transport"""
TOO_SLOW, TOO_MANY, REVOKED = 4408, 4429, 4401
_MOST_NAMES = 10_000


class Listener:
    """What waits to be sent on one socket: whole messages, already as JSON, in bounded number."""

    def __init__(self, most: int, client: Client) -> None:
        self.client = client
        self.streams: set[str] | None = set()
        """Names subscribed to; None: all"""
        self.horizon: float | None = None
        """Of time to an event: how far ahead the risk looks that is sent; None: as far as the one that is watched"""
        self.ticks = False
        self.changes = False
        """Whether to hear of which streams an alarm was raised or acknowledged, or that they were deleted"""
        self.too_slow = asyncio.Event()
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._some = asyncio.Event()

    def wanted(self, streams: Iterable[str]) -> set[str]:
        """Those of some streams that it subscribed to and may see."""
        if self.streams is not None:
            return self.streams.intersection(streams)
        return set(filter(self.client.may_touch, streams))

    def put(self, message: bytes) -> None:
        """Queue a message; a listener with too many waiting is marked as too slow."""
        if len(self._waiting) >= self._most:
            self.too_slow.set()
        else:
            self._waiting.append(message)
            self._some.set()

    async def frame(self) -> bytes:
        """All that waits as one frame, a JSON list."""
        await self._some.wait()
        self._some.clear()
        frame = b"[%b]" % b",".join(self._waiting)
        self._waiting.clear()
        return frame


class Hub:
    """All listeners."""

    def __init__(self, names: Callable[[float | None], OutputNames]) -> None:
        self.listeners: set[Listener] = set()
        self._names = names
        self.on_alarms: Callable[[int], None] = lambda newest: None
        """Hears the number of the newest alarm"""

    def publish(self, reason: str, answers: Answers, alarms: tuple[Alarm, ...] = ()) -> None:
        """Send all listeners what they subscribed to; serialised once a horizon for those who want everything."""
        if alarms:
            self.on_alarms(max(alarm.number for alarm in alarms))
            self.changed([alarm.stream for alarm in alarms])
        whole: dict[float | None, bytes] = {}
        for listener in self.listeners:
            if reason == "tick" and not listener.ticks:
                continue
            if listener.streams is None and listener.client.all_streams:
                if listener.horizon not in whole:
                    whole[listener.horizon] = self._message(
                        reason, answers, alarms, listener.horizon
                    )
                listener.put(whole[listener.horizon])
            elif listener.streams or listener.streams is None:
                wanted = listener.wanted(answers.streams)
                some = answers.of(wanted)
                heard = tuple(one for one in alarms if listener.wanted((one.stream,)))
                if len(some) or heard:
                    listener.put(self._message(reason, some, heard, listener.horizon))

    def changed(self, streams: Iterable[str]) -> None:
        """Say whose alarms are others now, or who was deleted, to those who asked for it."""
        names = sorted(set(streams))
        for listener in self.listeners:
            known = [name for name in names if listener.client.may_touch(name)]
            if listener.changes and known:
                listener.put(orjson.dumps({"type": "changed", "streams": known}))

    def ticked(self) -> tuple[bool, set[str]]:
        """Whether anyone wants ticks of all streams, and of which streams others do."""
        every, some = False, set()
        for listener in self.listeners:
            if listener.ticks:
                every = every or listener.streams is None
                some |= listener.streams or set()
        return every, some

    def _message(
        self, reason: str, answers: Answers, alarms: tuple[Alarm, ...], horizon: float | None
    ) -> bytes:
        names = self._names(horizon)
        message: dict[str, Any] = {"type": "predictions", "reason": reason}
        message["predictions"] = Prediction.of(answers, names)
        if alarms:
            message["alarms"] = [AlarmAnswer.of(one, names) for one in alarms]
        return orjson.dumps(message)


async def live(socket: WebSocket, service: Service) -> None:
    """Serve one socket until either side ends it."""
    client: Client = socket.state.client
    await socket.accept()
    if not service.sockets.take(client.name, 1):
        await socket.close(TOO_MANY, "too many sockets are open")
        return
    service.metrics.sockets.inc()
    try:
        await _serve(socket, service, client)
    finally:
        service.sockets.give_back(client.name, 1)
        service.metrics.sockets.dec()


async def _serve(socket: WebSocket, service: Service, client: Client) -> None:
    listener = Listener(service.settings.limits.socket_messages, client)
    service.hub.listeners.add(listener)
    tasks = [
        asyncio.create_task(_read(socket, service, client, listener)),
        asyncio.create_task(_write(socket, service, client, listener)),
        asyncio.create_task(listener.too_slow.wait()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        service.hub.listeners.discard(listener)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    if listener.too_slow.is_set():
        service.metrics.dropped.inc()
        await _let_go(socket)
    elif _revoked(service, client):
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(REVOKED, "token_revoked")
    ended = (asyncio.CancelledError, WebSocketDisconnect, RuntimeError)
    for one in done:
        if isinstance(one, BaseException) and not isinstance(one, ended):
            raise one


async def _let_go(socket: WebSocket) -> None:
    """End a socket whose client does not read, and who may not read this either: what it was sent is dropped."""
    with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        await asyncio.wait_for(socket.close(TOO_SLOW, "too slow: messages were left waiting"), 2)
    transport = socket.scope.get("extensions", {}).get(TRANSPORT)
    if transport is not None and transport.get_write_buffer_size():
        transport.abort()


def _revoked(service: Service, client: Client) -> bool:
    """Whether the client's token was taken back or expired, or its session ended, since the socket was opened."""
    if client.session is not None:
        return service.sessions.whose(client.session) is None
    return client.token is not None and client.token not in (service.tokens or ())


async def _write(socket: WebSocket, service: Service, client: Client, listener: Listener) -> None:
    while True:
        frame = await listener.frame()
        if _revoked(service, client):
            return
        await socket.send_text(frame.decode())


async def _read(socket: WebSocket, service: Service, client: Client, listener: Listener) -> None:
    limits = service.settings.limits
    # Unanswered messages hold a place each: a client that sends faster than commits go is not read.
    places = asyncio.Semaphore(limits.unanswered)
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect" or _revoked(service, client):
            return
        body = message.get("bytes") or (message.get("text") or "").encode()
        ref = None
        while wait := service.rates.wait(client.name):
            await asyncio.sleep(wait)
        try:
            if len(body) > limits.body_bytes:
                raise Problem(413, "body_too_large", f"at most {limits.body_bytes} bytes.")
            if len(body) <= QUICK_BYTES:
                content = read_json(body)
            else:
                content = await asyncio.to_thread(read_json, body)
            asked = isinstance(content, dict)
            if asked and ("subscribe" in content or "unsubscribe" in content):
                _subscribe(content, client, listener, service)
                continue
            if asked and "ref" in content:
                ref = content.pop("ref")
                if not _is_ref(ref):
                    ref = None
                    raise Problem(
                        422, "ref_bad", "a `ref` is an integer of 64 bits or a text of at most 200 characters.",
                        field="ref",
                    )  # fmt: skip
            if "ingest" not in client.scopes:
                raise Problem(403, "scope_missing", "this needs a token with the scope 'ingest'.")
            if len(body) <= QUICK_BYTES:
                sent = service.reader.events_of(content)
            else:
                sent = await asyncio.to_thread(service.reader.events_of, content)
            await places.acquire()
            await service.commits.room()
            try:
                answer = service.take(sent, client)
            except BaseException:
                places.release()
                raise
        except Exception as error:
            listener.put(_error(service.problem_of(error), ref))
            continue
        answer.add_done_callback(
            lambda done, ref=ref: _receipt(done, ref, service, listener, places)
        )


def _receipt(
    done: asyncio.Future[Committed],
    ref: Any,
    service: Service,
    listener: Listener,
    places: asyncio.Semaphore,
) -> None:
    places.release()
    if done.cancelled():
        return
    try:
        content = done.result().as_json(
            service.engine.channels, full="read" in listener.client.scopes
        )
        listener.put(orjson.dumps({"type": "receipt", "ref": ref, **content}))
    except Exception as error:
        listener.put(_error(service.problem_of(error, events=True), ref))


def _is_ref(ref: Any) -> bool:
    if isinstance(ref, str):
        return len(ref) <= 200
    return isinstance(ref, int) and -(2**63) <= ref < 2**63


def _subscribe(asked: dict[str, Any], client: Client, listener: Listener, service: Service) -> None:
    if "read" not in client.scopes:
        raise Problem(403, "scope_missing", "this needs a token with the scope 'read'.")
    known = {"subscribe", "ticks", "changes", "horizon"}
    known = {"unsubscribe"} if "unsubscribe" in asked else known
    if strange := asked.keys() - known:
        name = min(strange)[:40]
        raise Problem(
            422, "field_unknown", f"beside {min(known)!r} there is no field {name!r}: send it by itself.",
            field=name,
        )  # fmt: skip
    if "unsubscribe" in asked:
        listener.streams, listener.ticks, listener.changes = set(), False, False
    else:
        wanted, ticks = asked["subscribe"], asked.get("ticks", True)
        names = isinstance(wanted, list) and len(wanted) <= _MOST_NAMES
        names = names and all(isinstance(name, str) and len(name) <= 200 for name in wanted)
        if wanted != "all" and not names:
            raise Problem(
                422, "subscribe_bad", f"subscribe to 'all' or to a list of at most {_MOST_NAMES} names.",
                field="subscribe",
            )  # fmt: skip
        changes = asked.get("changes", False)
        for name, flag in (("ticks", ticks), ("changes", changes)):
            if not isinstance(flag, bool):
                raise Problem(422, "subscribe_bad", f"`{name}` is true or false.", field=name)
        horizon = asked.get("horizon")
        if horizon is not None and (
            isinstance(horizon, bool) or not isinstance(horizon, int | float)
        ):
            raise Problem(422, "subscribe_bad", "`horizon` is a number.", field="horizon")
        _ = service.names_within(horizon)  # refuses one that the model has no answer for
        for name in () if wanted == "all" else wanted:
            client.check_stream(name)
        listener.horizon = horizon
        listener.streams = None if wanted == "all" else set(wanted)
        listener.ticks, listener.changes = ticks, changes
    every = listener.streams is None
    listener.put(
        orjson.dumps(
            {
                "type": "subscribed",
                "streams": "all" if every else sorted(listener.streams or ()),
                "ticks": listener.ticks,
                **({"changes": True} if listener.changes else {}),
                **({} if listener.horizon is None else {"horizon": listener.horizon}),
            }
        )
    )


def _error(problem: Problem, ref: Any) -> bytes:
    content = {"type": "error", "ref": ref, "status": problem.status, **problem.as_json()}
    if problem.retry_after is not None:
        content["retry_after"] = problem.retry_after
    return orjson.dumps(content)
