"""States and rows as bytes.

A state is versioned, bound to its model by the model's hash, and checksummed; the same bytes everywhere:

    magic "OCDS" | version u16 | model hash 32 bytes | class name | fields | data | crc32 u32

A name is a byte for its length and UTF-8. `fields` is a byte for their number, then for each its name,
a byte for its type (0: none) and, where there is one, a byte for its dimensions and a u32 for each.
`data` are the fields' numbers in that order, in C order. All little-endian; one stream each.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from onlinecde.models import StreamState
from onlinecde.streaming.errors import CodecError, ModelMismatch
from onlinecde.streaming.stores.base import RowRecord

MAGIC = b"OCDS"
VERSION = 1
_TYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("?"), 4: np.dtype("<i8")}
_CODES = {torch.float32: 1, torch.float64: 2, torch.bool: 3, torch.int64: 4}

State = TypeVar("State", bound=StreamState)


class StateCodec(Generic[State]):
    """States of one model to bytes and back; `like` is any state of it, `model_hash` its content hash.

    >>> import onlinecde as oc
    >>> state = oc.NeuralCDE(channels=2, hidden=3).init_state(streams=2)
    >>> codec = StateCodec(state, "00" * 32)
    >>> len(codec.decode(codec.encode(state)))
    2
    """

    def __init__(self, like: State, model_hash: str) -> None:
        self._like, self._hash = like, model_hash
        self._head = _header(like, model_hash)
        self._fields = [
            (name, None if tensor is None else _TYPES[_CODES[tensor.dtype]], tensor)
            for name, tensor in _tensors(like)
        ]
        self._width = sum(
            kind.itemsize * tensor.shape[1:].numel()
            for _, kind, tensor in self._fields
            if kind is not None and tensor is not None
        )

    def encode(self, state: State) -> list[bytes]:
        """Each stream's state as bytes; the same state gives the same bytes."""
        streams, begin = len(state), len(self._head)
        width = begin + self._width + 4
        table = np.empty((streams, width), np.uint8)
        table[:, :begin] = np.frombuffer(self._head, np.uint8)
        place = begin
        for name, kind, _ in self._fields:
            if kind is None:
                continue
            numbers = np.ascontiguousarray(getattr(state, name).numpy()).astype(kind, copy=False)
            part = numbers.reshape(streams, -1).view(np.uint8)
            table[:, place : place + part.shape[1]] = part
            place += part.shape[1]
        view, crc = memoryview(table.data).cast("B"), zlib.crc32
        sums = [crc(view[at : at + width - 4]) for at in range(0, streams * width, width)]
        table[:, -4:] = np.array(sums, "<u4").view(np.uint8).reshape(streams, 4)
        data = table.tobytes()
        return [data[at : at + width] for at in range(0, streams * width, width)]

    def decode(self, bodies: Sequence[bytes]) -> State:
        """The state of some streams from their bytes.

        Raises ModelMismatch for another model's bytes, CodecError for what is damaged or foreign.
        """
        begin = len(self._head)
        width = begin + self._width + 4
        for body in bodies:
            whole = len(body) == width and body.startswith(self._head)
            if not whole or zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little"):
                self._explain(body)
        table = np.frombuffer(b"".join(bodies), np.uint8).reshape(len(bodies), width)
        tensors: dict[str, Any] = {}
        place = begin
        for name, kind, tensor in self._fields:
            tensors[name] = None
            if kind is None or tensor is None:
                continue
            size = kind.itemsize * tensor.shape[1:].numel()
            numbers = np.ascontiguousarray(table[:, place : place + size]).view(kind)
            native = numbers.astype(kind.newbyteorder("="), copy=True)
            tensors[name] = torch.from_numpy(native.reshape(len(bodies), *tensor.shape[1:]))
            place += size
        return replace(self._like, **tensors)

    def _explain(self, body: bytes) -> None:
        """Raise the error that says what is wrong with these bytes."""
        if body[:4] != MAGIC or len(body) < 42:
            raise CodecError(
                "these bytes are not a state: they do not begin as one, or are cut short."
            )
        version = struct.unpack("<H", body[4:6])[0]
        if version != VERSION:
            raise CodecError(
                f"the state has version {version}, this onlinecde reads {VERSION}: use the onlinecde "
                "that wrote it, or rebuild the states from the stored events."
            )
        if zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little"):
            raise CodecError(
                "the state's checksum is wrong: it is damaged or cut short; rebuild it."
            )
        owner = body[6:38].hex()
        if owner != self._hash:
            raise ModelMismatch(
                f"the state belongs to model {owner[:12]}, this is {self._hash[:12]}: serve that model, "
                "or rebuild the states from the stored events."
            )
        raise CodecError(
            f"the state's fields are not those of this model's {type(self._like).__name__}."
        )


def _tensors(state: StreamState) -> list[tuple[str, Tensor | None]]:
    """Fields and what they hold; one that has a default and nothing to hold came later, and is left out.

    So the bytes of a state without it are those that were written before there was such a field.
    """
    present = [(f, getattr(state, f.name)) for f in fields(state)]
    return [(f.name, one) for f, one in present if one is not None or f.default is MISSING]


def _named(name: str) -> bytes:
    data = name.encode()
    return bytes([len(data)]) + data


def _header(state: StreamState, model_hash: str) -> bytes:
    parts = [MAGIC, struct.pack("<H", VERSION), bytes.fromhex(model_hash)]
    present = _tensors(state)
    parts += [_named(type(state).__name__), bytes([len(present)])]
    for name, tensor in present:
        parts.append(_named(name))
        if tensor is None:
            parts.append(b"\0")
            continue
        if tensor.dtype not in _CODES:
            raise CodecError(f"field {name!r} is {tensor.dtype}, which states are not stored in.")
        shape = tensor.shape[1:]
        parts.append(bytes([_CODES[tensor.dtype], len(shape)]))
        parts.append(struct.pack(f"<{len(shape)}I", *shape))
    return b"".join(parts)


MOST_CORRECTIONS = 1_000
"""Corrections a row keeps, and ids beyond one for each value: it is written whole with each"""
PAIR = np.dtype([("channel", "<u2"), ("value", "<f8")])
"""One event in `RowRecord.events`: position of its channel, value as received; packed, little-endian"""


@dataclass
class Row:
    """A row as received."""

    time: float
    values: dict[int, float] = field(default_factory=dict)
    """channel -> value that counts"""
    superseded: list[tuple[int, float]] = field(default_factory=list)
    """(channel, value) that corrections replaced, oldest first"""
    ids: list[str] = field(default_factory=list)
    seen: set[tuple[int, float] | str] = field(init=False, compare=False, repr=False)
    """All of `superseded` and `ids`, to be looked up"""

    def __post_init__(self) -> None:
        self.seen = {*self.superseded, *self.ids}

    @property
    def full(self) -> bool:
        """Whether it has been corrected, or sent again with other ids, as often as a row may be."""
        return max(len(self.superseded), len(self.ids) - len(self.values)) >= MOST_CORRECTIONS

    def correct(self, channel: int, value: float) -> None:
        """Another value for a channel; the old one is superseded."""
        old = (channel, self.values[channel])
        self.superseded.append(old)
        self.seen.add(old)
        self.values[channel] = value

    def note(self, event_id: str) -> None:
        """Remember an event's id."""
        self.ids.append(event_id)
        self.seen.add(event_id)

    def copy(self) -> Row:
        """A row that may be changed."""
        return Row(self.time, dict(self.values), list(self.superseded), list(self.ids))

    def dense(self, channels: int) -> np.ndarray:
        """(channel,) float64, NaN = not observed."""
        x = np.full(channels, np.nan)
        x[list(self.values)] = list(self.values.values())
        return x


def encode_row(row: Row) -> tuple[bytes, str | None]:
    """`events` and `more` of a stored row."""
    events = np.array(list(row.values.items()), PAIR).tobytes()
    if not row.superseded and not row.ids:
        return events, None
    extra = {"superseded": [[c, v.hex()] for c, v in row.superseded], "ids": row.ids}
    return events, json.dumps({name: some for name, some in extra.items() if some})


def decode_row(record: RowRecord) -> Row:
    """A stored row as it was received."""
    pairs = np.frombuffer(record.events, PAIR)
    values = dict(zip(pairs["channel"].tolist(), pairs["value"].tolist(), strict=True))
    if record.more is None:
        return Row(record.time, values)
    extra = json.loads(record.more)
    superseded = [(c, float.fromhex(v)) for c, v in extra.get("superseded", ())]
    return Row(record.time, values, superseded, list(extra.get("ids", ())))


def dense_rows(records: list[RowRecord], channels: int) -> np.ndarray:
    """(row, channel) float64 of stored rows, NaN = not observed."""
    x = np.full((len(records), channels), np.nan)
    pairs = np.frombuffer(b"".join(record.events for record in records), PAIR)
    lengths = [len(record.events) // PAIR.itemsize for record in records]
    x[np.repeat(np.arange(len(records)), lengths), pairs["channel"]] = pairs["value"]
    return x
