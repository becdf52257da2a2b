"""Looking through a whole store, mending it, and writing its events to files, while no engine is on it."""

from __future__ import annotations

import csv
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onlinecde.streaming.codec import decode_row
from onlinecde.streaming.errors import CodecError, StoreError, StreamingError
from onlinecde.streaming.state import Totals
from onlinecde.streaming.stores.base import CheckpointRecord
from onlinecde.streaming.stores.checksums import mended_body
from onlinecde.streaming.stores.relational import RelationalStore
from onlinecde.streaming.stores.tables import CHECKSUMS, FIELDS

COLUMNS = ("stream", "time", "channel", "value")
_PLACES = {
    table: {name: n for n, name in enumerate(fields.split(", "))}
    for table, fields in FIELDS.items()
}


@dataclass(frozen=True)
class Fault:
    """Something in a store that is not as it was written."""

    table: str
    what: str
    stream: str | None = None
    """Name of the stream, or its number where the name cannot be read; None where it is of none"""
    time: float | None = None
    """of the row, the state or the alarm"""

    def __str__(self) -> str:
        of = "" if self.stream is None else f"stream {self.stream!r}: "
        at = "" if self.time is None else f" at {self.time!r}"
        return f"{of}{self.table}{at}: {self.what}"


@dataclass
class Report:
    """What a look through a store came to."""

    faults: list[Fault] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    """How many there are of each table"""
    without_checksum: int = 0
    """Records of an earlier version, which cannot be checked"""


@dataclass
class Repaired:
    """What a repair came to."""

    done: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    """Streams whose states are to be integrated again from their rows, which needs the model"""


def check_store(store: RelationalStore) -> Report:
    """Read everything in a store; each damaged record is named."""
    report = Report([Fault("store", what) for what in store.integrity()])
    names = _names(store)
    for table in CHECKSUMS:
        for _, record, why in _records(store, table, report):
            if why is not None:
                report.faults.append(_fault(table, record, names, why))
    torn = {one.stream for one in report.faults if one.table == "rows"}
    for number, name in names.items():
        if name not in torn and (why := _torn(store, number)) is not None:
            report.faults.append(Fault("rows", why, name))
        if _state_lost(store, number):
            report.faults.append(Fault("states", "it has rows and no state", name))
    return report


def _names(store: RelationalStore) -> dict[int, str]:
    return dict(store.read("SELECT number, name FROM streams ORDER BY number"))  # pyright: ignore


def _torn(store: RelationalStore, number: int) -> str | None:
    """Why the rows of a stream cannot all be read."""
    try:
        store.rows(number)
    except (CodecError, StoreError) as error:
        return str(error).partition(": ")[2]
    return None


def _state_lost(store: RelationalStore, number: int) -> bool:
    state = store.read("SELECT 1 FROM states WHERE stream = ?", number)
    return not state and bool(store.read("SELECT 1 FROM rows WHERE stream = ? LIMIT 1", number))


def _records(
    store: RelationalStore, table: str, report: Report
) -> Iterator[tuple[Any, tuple, str | None]]:
    """All records of a table: its place, itself, and what is wrong with it."""
    body = _PLACES[table].get("body")
    for some in store.scan(table):
        if isinstance(some, str):
            report.faults.append(Fault(table, some))
            continue
        records = [one[1:] for one in some]
        report.records[table] = report.records.get(table, 0) + len(records)
        for one, record, fine in zip(some, records, CHECKSUMS[table].sound(records), strict=True):
            old = not fine and record[-1] is None and store.unchecked
            report.without_checksum += old
            why = None if fine or old else "damaged"
            if why is None and body is not None and not _whole(record[body]):
                why = "its state is damaged"
            yield one[0], record, why


def _whole(body: Any) -> bool:
    """Whether the bytes of a state are as they were written."""
    whole = isinstance(body, bytes) and len(body) > 4
    return whole and zlib.crc32(body[:-4]) == int.from_bytes(body[-4:], "little")


def _fault(table: str, record: tuple, names: dict[int, str], what: str) -> Fault:
    places = _PLACES[table]
    owner = (
        record[0]
        if table == "streams"
        else record[places["stream"]]
        if "stream" in places
        else None
    )
    name = None if owner is None else str(names.get(owner, owner))
    time = record[places["time"]] if "time" in places and table != "refused" else None
    return Fault(table, what, name, time)


def repair_store(store: RelationalStore, quarantine: Path) -> Repaired:
    """Mend what can be mended, and set aside what cannot, so that the rest can be gone on from.

    A record in which one bit was flipped is put right by its checksum. A stream with another damaged or missing row
    goes on from the first sound state after it; what lies before is set aside, as if retention had deleted it. A
    state that is damaged is integrated again from the rows, where all of them are there. A stream of which neither is
    left whole is set aside as a whole. What is set aside is in the quarantine file, a JSON line for each record,
    before it is deleted.
    """
    result, names = Repaired(), _names(store)
    with quarantine.open("a", encoding="utf-8") as out:

        def aside(table: str, record: tuple, why: str) -> None:
            fields = dict(zip(_PLACES[table], map(_shown, record), strict=True))
            out.write(json.dumps({"table": table, "why": why, "record": fields}) + "\n")
            out.flush()
            os.fsync(out.fileno())

        damaged: dict[str, set[int]] = {"streams": set(), "states": set()}
        for table in CHECKSUMS:
            bad = [one for one in _records(store, table, Report()) if one[2] is not None]
            for place, record, why in bad:
                fault = _fault(table, record, names, why or "")
                if (right := _mended(table, record)) is not None:
                    store.replace_record(table, place, right)
                    result.done.append(f"{fault}; one bit was flipped, and is put right")
                    continue
                aside(table, record, why or "")
                if table in damaged:
                    damaged[table].add(record[0])
                if table != "streams":
                    store.replace_record(table, place, None)
                result.done.append(f"{fault}; set aside")
        for number, name in _names(store).items():
            if number in damaged["streams"]:
                _all_aside(store, number, aside)
                result.done.append(
                    f"stream number {number}: its record is damaged; set aside with all that belongs to it"
                )
                continue
            lost = number in damaged["states"] or _state_lost(store, number)
            if lost and _refill(store, number):
                result.again.append(name)
                result.done.append(
                    f"stream {name!r}: its state is to be integrated again from its rows"
                )
            elif lost:
                _all_aside(store, number, aside)
                result.done.append(
                    f"stream {name!r}: neither its rows nor its state are whole; set aside as a whole"
                )
            elif _torn(store, number) is not None:
                floor, rows = _next_state(store, number)
                for one in rows:
                    aside("rows", one, "before the cut")
                store.cut_at(floor)
                result.done.append(
                    f"stream {name!r}: a row is lost; it goes on from its state at {floor.time!r}, and the {len(rows)} "
                    "rows that are left from before are set aside"
                )
    if count := store.seal_old():
        result.done.append(f"{count} records of an earlier version have checksums now")
    return result


def _mended(table: str, record: tuple) -> tuple | None:
    if (right := CHECKSUMS[table].mended(record)) is None:
        return None
    body = _PLACES[table].get("body")
    if body is None or _whole(right[body]):
        return right
    whole = mended_body(right[body])
    if whole is None:
        return None
    return CHECKSUMS[table].sealed([(*right[:body], whole, *right[body + 1 : -1])])[0]


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value


def _all_aside(store: RelationalStore, number: int, aside: Any) -> None:
    for table in ("rows", "states", "checkpoints", "revised", "alarms"):
        for one in store.read(f"SELECT {FIELDS[table]} FROM {table} WHERE stream = ?", number):
            aside(table, one, "of a stream that is set aside")
    store.set_aside(number)


def _refill(store: RelationalStore, number: int) -> bool:
    """Whether all rows of a stream are there; then a state stands for it until it is integrated again."""
    try:
        rows = store.rows(number)
    except (CodecError, StoreError):
        return False
    if not rows or rows[0].before != float("-inf"):
        return False
    received = store.read("SELECT max(received) FROM commits")[0][0] or 0.0
    nothing = b"\0" * len(rows[-1].outputs)
    record = (number, rows[-1].time, len(rows), 0, rows[0].time, None, received, nothing, b"", 0)
    with store._transaction():
        store._insert("states", [record])
    return True


def _next_state(store: RelationalStore, number: int) -> tuple[CheckpointRecord, list[tuple]]:
    """The first sound state after the last gap in a stream's rows, and the rows up to it."""
    rows = store.read(f"SELECT {FIELDS['rows']} FROM rows WHERE stream = ? ORDER BY time", number)
    time, _, body = store.read("SELECT time, rows, body FROM states WHERE stream = ?", number)[0]
    before, gap = float("-inf"), float("-inf")
    for row in rows:
        if row[6] is not None and row[6] != before:
            gap = row[6]
        before = row[1]
    if not rows or before < time:
        gap = time
    kept = store.read(
        f"SELECT {FIELDS['checkpoints']} FROM checkpoints WHERE stream = ? AND time >= ? ORDER BY time",
        number,
        gap,
    )
    sound = [one for one in kept if _whole(one[2])]
    floor = CheckpointRecord(*sound[0][:3]) if sound else CheckpointRecord(number, time, body)
    return floor, [row for row in rows if row[1] <= floor.time]


def export_events(store: RelationalStore, file: Path) -> tuple[int, int, Path | None]:
    """Write all events, as they count now, to a table that `replay` and `fit` read; how many streams, how many events.

    Columns stream, time, channel and value, in a `.csv` or `.parquet`. Static features go to a table beside it, whose
    name is the last of the answer.
    """
    if file.suffix not in (".csv", ".parquet"):
        raise StreamingError(f"{file}: give a file that ends in .csv or .parquet.")
    totals = Totals.read(store.head().totals)
    names, count, streams = totals.channels, 0, store.streams()
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        table = Path(folder) / "events.csv"
        with table.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(COLUMNS)
            for stream in streams:
                for row in map(decode_row, store.rows(stream.number)):
                    count += len(row.values)
                    writer.writerows(
                        (
                            stream.name,
                            repr(row.time),
                            names[channel] if names else channel,
                            repr(value),
                        )
                        for channel, value in row.values.items()
                    )
        if file.suffix == ".parquet":
            import polars

            kinds = {
                "stream": polars.String,
                "time": polars.Float64,
                "channel": polars.String,
                "value": polars.Float64,
            }
            whole = Path(folder) / "events.parquet"
            polars.scan_csv(table, schema=kinds).sink_parquet(whole)
            table = whole
        table.replace(file)
    static = None
    if totals.features and any(one.static for one in streams):
        static = file.with_name(f"{file.stem}-static.csv")
        with static.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(["stream", *totals.features])
            for one in streams:
                writer.writerow([one.name, *np.frombuffer(one.static or b"", "<f8").tolist()])
    return len(streams), count, static
