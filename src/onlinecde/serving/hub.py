"""Who listens: predictions go to each socket once a commit, and no one who is slow holds up the others."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import orjson

from onlinecde.serving.shapes import Shapes
from onlinecde.streaming import Alarm, Answers


class Listener:
    """What waits to be sent on one socket: whole messages, already as JSON, in bounded number."""

    def __init__(self, most: int) -> None:
        self.streams: set[str] | None = set()
        """Names subscribed to; None: all"""
        self.ticks = False
        self.too_slow = asyncio.Event()
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._some = asyncio.Event()

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

    def __init__(self, shapes: Shapes) -> None:
        self.listeners: set[Listener] = set()
        self.shapes = shapes

    def publish(self, reason: str, answers: Answers, alarms: tuple[Alarm, ...] = ()) -> None:
        """Tell everyone what they subscribed to; serialised once for those who want everything."""
        whole: bytes | None = None
        for listener in self.listeners:
            if reason == "tick" and not listener.ticks:
                continue
            if listener.streams is None:
                if whole is None:
                    whole = self._message(reason, answers, alarms)
                listener.put(whole)
            elif listener.streams:
                some = _of(answers, listener.streams)
                heard = tuple(one for one in alarms if one.stream in listener.streams)
                if len(some) or heard:
                    listener.put(self._message(reason, some, heard))

    def ticked(self) -> tuple[bool, set[str]]:
        """Whether anyone wants ticks of all streams, and of which streams others do."""
        every, some = False, set()
        for listener in self.listeners:
            if listener.ticks:
                every = every or listener.streams is None
                some |= listener.streams or set()
        return every, some

    def _message(self, reason: str, answers: Answers, alarms: tuple[Alarm, ...]) -> bytes:
        told = self.shapes.predictions(answers)
        message: dict[str, Any] = {"type": "predictions", "reason": reason, "predictions": told}
        if alarms:
            message["alarms"] = [self.shapes.alarm(one) for one in alarms]
        return orjson.dumps(message)


def _of(answers: Answers, wanted: set[str]) -> Answers:
    at = [place for place, name in enumerate(answers.streams) if name in wanted]
    return Answers(
        tuple(answers.streams[place] for place in at),
        answers.times[at],
        answers.outputs[at],
        answers.probabilities[at],
    )
