"""The audit log: who changed what, when, by which request; a file of JSON lines that is only ever appended to."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from onlinecde.serving.problems import Problem, ServingError
from onlinecde.serving.request_log import note

SUMMARY_SECONDS = 10.0
"""Of the events each client sent within so many seconds there is one line"""


class AuditLog:
    """Appends lines to a file that its owner alone can read. A change that cannot be written down is refused.

    A line is there before the change is made, and a second one, with the status of the answer, after it. Events are
    summed up by client. None for a file: nothing is written.
    """

    def __init__(self, file: str | os.PathLike[str] | None) -> None:
        self.file = None if file is None else Path(file)
        self._lock = threading.Lock()
        self._descriptor = -1
        self._events: dict[str, dict[str, Any]] = {}
        self.reopen()

    def reopen(self) -> None:
        """Open the file anew, after it was moved away."""
        if self.file is None:
            return
        try:
            opened = os.open(
                self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ServingError(
                f"the audit log {self.file} cannot be opened ({error.strerror}): give another file by --audit."
            ) from error
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = opened

    def write(self, what: str, who: str, request: str | None, **more: Any) -> None:
        """Append one line."""
        if self.file is None:
            return
        line = {"at": time.time(), "who": who, "what": what, "request": request, **more}
        with self._lock:
            try:
                text = json.dumps(line).encode() + b"\n"
                if os.write(self._descriptor, text) != len(text):
                    raise OSError("only a part was written")
            except OSError as error:
                note("audit failed", logging.ERROR, reason=str(error))
                raise Problem(
                    503,
                    "audit_failed",
                    "the audit log cannot be written: nothing was changed.",
                    retry_after=30,
                ) from error

    def sent(self, who: str, request: str | None, counts: dict[str, int], sequence: int) -> None:
        """Note events that were committed; `summarise` writes them down."""
        if self.file is None:
            return
        line = self._events.get(who)
        if line is None:
            line = self._events[who] = {
                "since": time.time(), "requests": 0, "first_request": request, "first_commit": sequence,
                "counts": dict.fromkeys(counts, 0),
            }  # fmt: skip
        line["requests"] += 1
        line["last_request"], line["last_commit"] = request, sequence
        for name, count in counts.items():
            line["counts"][name] += count

    def summarise(self) -> None:
        """Write a line for each client that has sent events since this was called last."""
        lines, self._events = self._events, {}
        for who, line in lines.items():
            self.write("events", who, line["last_request"], **line)

    def newest(self, most: int) -> list[dict[str, Any]]:
        """The last lines, newest first."""
        if self.file is None:
            return []
        with self.file.open("rb") as lines:
            start = max(0, lines.seek(0, os.SEEK_END) - 1024 * most)
            lines.seek(start)
            whole = lines.read().split(b"\n")[1 if start else 0 : -1]
        return [json.loads(line) for line in reversed(whole[-most:])]

    def close(self) -> None:
        """Write what is left, and let go of the file."""
        self.summarise()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
