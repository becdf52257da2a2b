"""What is launched now, and what will be launched by a CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_captured: ContextVar[bool] = ContextVar("captured", default=False)


@contextlib.contextmanager
def to_be_captured() -> Iterator[None]:
    """What is computed herein goes into a CUDA graph, or prepares for that: a launch costs next to nothing."""
    before = _captured.set(True)
    try:
        yield
    finally:
        _captured.reset(before)


def launches_are_free() -> bool:
    """Whether this goes into a CUDA graph."""
    return _captured.get()
