"""Live streams: events in, micro-batched integration, durable states and answers out."""

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
from onlinecde.streaming.memory_store import MemoryStore
from onlinecde.streaming.postgres_store import PostgresStore
from onlinecde.streaming.sqlite_store import SQLiteStore
from onlinecde.streaming.store import Store
from onlinecde.streaming.views import (
    Alarm,
    Curve,
    HistoryRow,
    Overview,
    RevisedAnswer,
    RowExplanation,
    StreamInfo,
)

__all__ = [
    "Alarm",
    "Answers",
    "CodecError",
    "Curve",
    "Engine",
    "Event",
    "EventBatch",
    "HistoryRow",
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
    "StreamInfo",
    "StreamingError",
    "UnknownStream",
]
