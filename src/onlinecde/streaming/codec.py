"""States as bytes: versioned, bound to their model by its hash, checksummed; the same bytes everywhere.

    magic "OCDS" | version u16 | model hash 32 bytes | class name | fields | data | crc32 u32

A name is a byte for its length and UTF-8. `fields` is a byte for their number, then for each its name,
a byte for its type (0: none) and, where there is one, a byte for its dimensions and a u32 for each.
`data` are the fields' numbers in that order, in C order. All little-endian; one stream each.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from onlinecde.models import StreamState
from onlinecde.streaming.errors import CodecError, ModelMismatch

MAGIC = b"OCDS"
VERSION = 1
_TYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("?"), 4: np.dtype("<i8")}
_CODES = {torch.float32: 1, torch.float64: 2, torch.bool: 3, torch.int64: 4}

State = TypeVar("State", bound=StreamState)


class StateCodec(Generic[State]):
    """States of one model to bytes and back; `like` is any state of it, `model_hash` its content hash.

    >>> import onlinecde as oc
    >>> state = oc.NeuralCDE(channels=2, hidden=3, width=4).init_state(streams=2)
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
        many, begin = len(state), len(self._head)
        width = begin + self._width + 4
        table = np.empty((many, width), np.uint8)
        table[:, :begin] = np.frombuffer(self._head, np.uint8)
        place = begin
        for name, kind, _ in self._fields:
            if kind is None:
                continue
            numbers = np.ascontiguousarray(getattr(state, name).numpy()).astype(kind, copy=False)
            part = numbers.reshape(many, -1).view(np.uint8)
            table[:, place : place + part.shape[1]] = part
            place += part.shape[1]
        view, crc = memoryview(table.data).cast("B"), zlib.crc32
        sums = [crc(view[at : at + width - 4]) for at in range(0, many * width, width)]
        table[:, -4:] = np.array(sums, "<u4").view(np.uint8).reshape(many, 4)
        data = table.tobytes()
        return [data[at : at + width] for at in range(0, many * width, width)]

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
        held: dict[str, Any] = {}
        place = begin
        for name, kind, tensor in self._fields:
            held[name] = None
            if kind is None or tensor is None:
                continue
            size = kind.itemsize * tensor.shape[1:].numel()
            numbers = np.ascontiguousarray(table[:, place : place + size]).view(kind)
            native = numbers.astype(kind.newbyteorder("="), copy=True)
            held[name] = torch.from_numpy(native.reshape(len(bodies), *tensor.shape[1:]))
            place += size
        return replace(self._like, **held)

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
        found = body[6:38].hex()
        if found != self._hash:
            raise ModelMismatch(
                f"the state belongs to model {found[:12]}, this is {self._hash[:12]}: serve that model, "
                "or rebuild the states from the stored events."
            )
        raise CodecError(
            f"the state's fields are not those of this model's {type(self._like).__name__}."
        )


def _tensors(state: StreamState) -> list[tuple[str, Tensor | None]]:
    """Fields and what they hold; one that has a default and nothing to hold came later, and is left out.

    So the bytes of a state without it are those that were written before there was such a field.
    """
    held = [(f, getattr(state, f.name)) for f in fields(state)]
    return [(f.name, one) for f, one in held if one is not None or f.default is MISSING]


def _named(name: str) -> bytes:
    told = name.encode()
    return bytes([len(told)]) + told


def _header(state: StreamState, model_hash: str) -> bytes:
    parts = [MAGIC, struct.pack("<H", VERSION), bytes.fromhex(model_hash)]
    held = _tensors(state)
    parts += [_named(type(state).__name__), bytes([len(held)])]
    for name, tensor in held:
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
