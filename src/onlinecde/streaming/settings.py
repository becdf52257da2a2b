"""The settings of an engine, each defined and checked here."""

from __future__ import annotations

from dataclasses import dataclass

from onlinecde.streaming.alarms import AlarmRule
from onlinecde.streaming.errors import StreamingError


@dataclass(frozen=True)
class EngineSettings(AlarmRule):
    """Settings of an `Engine`, beside those of its alarms.

    lateness: how far behind its stream's newest row an event may lie, in the model's unit of time.
    horizon: how far from the training times an event's time may lie; default 1e5 time scales.
    ahead: how far an event may lie ahead of its stream's newest row; default `horizon`.
    recent: how many states a stream keeps in memory, so that late events are cheap.
    checkpoint_rows: a state is kept in the store for good every so many rows of a stream.
    resident: how many streams are kept in memory; those idle longest go first, and come back when needed.
    most_streams: events that would open more streams than this are refused.
    """

    lateness: float = 0.0
    horizon: float | None = None
    ahead: float | None = None
    recent: int = 8
    checkpoint_rows: int = 32
    resident: int = 100_000
    most_streams: int = 1_000_000

    def __post_init__(self) -> None:
        for name in ("recent", "checkpoint_rows", "resident", "most_streams"):
            size = getattr(self, name)
            if size < 1:
                raise StreamingError(f"{name} is {size}: give at least 1.", "setting_bad")
        for name in ("lateness", "ahead"):
            span = getattr(self, name)
            if span is not None and not 0 <= span < float("inf"):
                raise StreamingError(f"{name} is {span}: give a time of 0 or more.", "setting_bad")
