"""Pages: the parcels of some streams in one value of Spark's state, so that one read fetches many.

number of parcels u32 | their lengths u32 each | parcels
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from onlinecde.streaming.transfer import stream_name


def read_page(body: bytes) -> dict[str, bytes]:
    """Parcels by the names of their streams.

    >>> read_page(write_page([]))
    {}
    """
    count = struct.unpack_from("<I", body)[0]
    at, result = 4 + 4 * count, {}
    for size in struct.unpack_from(f"<{count}I", body, 4):
        parcel = body[at : at + size]
        result[stream_name(parcel)] = parcel
        at += size
    return result


def write_page(parcels: Iterable[bytes]) -> bytes:
    """Parcels as one page."""
    kept = list(parcels)
    return struct.pack(f"<{1 + len(kept)}I", len(kept), *map(len, kept)) + b"".join(kept)
