"""Where streams, rows, states and answers are kept: in memory, in SQLite, in PostgreSQL."""

from onlinecde.streaming.stores.base import Store
from onlinecde.streaming.stores.memory import MemoryStore
from onlinecde.streaming.stores.postgres import PostgresStore
from onlinecde.streaming.stores.sqlite import SQLiteStore

__all__ = ["MemoryStore", "PostgresStore", "SQLiteStore", "Store"]
