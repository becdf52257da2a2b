"""Live streams: events in, micro-batched integration, durable states and answers out."""

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.answers import Overview, StreamInfo
from onlinecde.streaming.engine import Engine
from onlinecde.streaming.errors import (
    CodecError,
    ModelMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StreamingError,
    UnknownStream,
)
from onlinecde.streaming.events import (
    Answers,
    Event,
    EventBatch,
    Outcome,
    Receipt,
    Receipts,
    Refusal,
)
from onlinecde.streaming.history import Curve, HistoryRow, RevisedAnswer, RowExplanation
from onlinecde.streaming.looks import Looked
from onlinecde.streaming.settings import EngineSettings
from onlinecde.streaming.stores import MemoryStore, PostgresStore, SQLiteStore, Store
from onlinecde.streaming.stream_clock import StreamClock

__all__ = [
    "Alarm",
    "Answers",
    "CodecError",
    "Curve",
    "Engine",
    "EngineSettings",
    "Event",
    "EventBatch",
    "HistoryRow",
    "Looked",
    "MemoryStore",
    "ModelMismatch",
    "Outcome",
    "Overview",
    "PostgresStore",
    "Receipt",
    "Receipts",
    "Refusal",
    "RevisedAnswer",
    "RowExplanation",
    "SQLiteStore",
    "Store",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StreamClock",
    "StreamInfo",
    "StreamingError",
    "UnknownStream",
]
