"""What can go wrong beside a refused event; every message says what, where and what to do."""

from __future__ import annotations


class StreamingError(ValueError):
    """A question or a setting that an engine cannot take; `code` is stable."""

    code = "streaming_error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class UnknownStream(StreamingError):  # noqa: N818
    """The engine has never heard of the stream."""

    code = "stream_unknown"


class StoreError(StreamingError):
    """The store cannot be read or written; what was not acknowledged was not applied."""

    code = "store_failed"


class StoreCorrupt(StoreError):  # noqa: N818
    """Part of a store's file is not what it should be."""


class StoreFull(StoreError):  # noqa: N818
    """There is no room left on the store's disk."""

    code = "store_full"


class StoreBusy(StoreError):  # noqa: N818
    """Another process holds the store's lock."""

    code = "store_busy"


class CodecError(StreamingError):
    """Bytes that are not the state they should be: foreign, cut short, damaged or of a later version."""

    code = "state_unreadable"


class StoreDamaged(CodecError):  # noqa: N818
    """A record of a store that is not as it was written; the message names its stream."""


class ModelMismatch(StreamingError):  # noqa: N818
    """A state or a store that belongs to another model."""

    code = "model_changed"
