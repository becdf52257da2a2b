"""From the bytes of a request to columns: single events, rows, lists of them, NDJSON.

An event: `{"stream": "bed 7", "time": 0.5, "channel": "heart_rate", "value": 92}`. A row: `{"stream":
"bed 7", "time": 0.5, "values": {"heart_rate": 92, "lactate": 1.4}}`. Both may carry an `id`, a row the
`static` features of a new stream. What is wrong with the form of a request refuses all of it; what is
wrong with an event (its time, channel, value or static features) is the engine's to refuse, that event alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from onlinecde.serving.problems import Problem
from onlinecde.streaming import Refusal
from onlinecde.streaming.pipeline.validate import LONGEST_NAME

EVENT_KEYS = frozenset(("stream", "time", "channel", "value", "id"))
ROW_KEYS = frozenset(("stream", "time", "values", "id", "static"))
_NUMBERS = {float, int}


@dataclass(slots=True)
class Columns:
    """The events of one request; entry i of `of`, `times`, ... is event i."""

    names: list[Any]
    """Of the stream of each item"""
    of: list[int]
    """(event,): the item it came in"""
    times: Any
    channels: Any
    values: Any
    ids: list[Any] | None = None
    static: list[tuple[int, str, Any]] = field(default_factory=list)
    """(item, stream, features): of the items that give any; a `Refusal` where they have no form at all"""
    rows: list[bool] = field(default_factory=list)
    """(item,): whether it is a row, so that a refusal must name the channel"""

    def __len__(self) -> int:
        return len(self.of)


def read_events(
    body: bytes,
    ndjson: bool,
    *,
    positions: Mapping[str, int],
    features: Sequence[str] = (),
    most: int = 50_000,
) -> Columns:
    """The events in a body; raises `Problem` where it has not the form of any.

    >>> found = read_events(b'{"stream": "a", "time": 0, "values": {"hr": 80}}', False, positions={"hr": 0})
    >>> len(found), found.names, found.channels
    (1, ['a'], array([0], dtype=int32))
    """
    told = read_lines(body) if ndjson else read_json(body)
    return columns_of(told, positions=positions, features=features, most=most)


def columns_of(
    told: Any, *, positions: Mapping[str, int], features: Sequence[str] = (), most: int = 50_000
) -> Columns:
    """The events in what was parsed: one, a list, or `{"events": [...]}`."""
    if type(told) is dict:
        if "events" in told:
            if len(told) > 1:
                raise _wrong("field_unknown", "beside `events` there is another field.", "events")
            told = told["events"]
            if type(told) is not list:
                raise _wrong("events_type", "`events` is not a list.", "events")
        else:
            told = [told]
    elif type(told) is not list:
        raise _wrong("body_type", "give an event, a list of events, or {'events': [...]}.", "body")
    found = Columns([], [], [], [], [])
    for index, item in enumerate(told):
        if type(item) is not dict:
            raise _wrong("event_type", "an event is an object with names and values.", f"[{index}]")
        if "values" in item:
            _add_row(found, index, item, features)
        else:
            if not item.keys() <= EVENT_KEYS:
                raise _unknown(item, EVENT_KEYS, index)
            found.names.append(item.get("stream"))
            found.rows.append(False)
            found.of.append(index)
            found.times.append(item.get("time"))
            found.channels.append(item.get("channel"))
            found.values.append(item.get("value"))
            if found.ids is not None or "id" in item:
                _add_ids(found, [item.get("id")])
        if len(found.of) > most:
            raise Problem(
                413, "too_many_events", f"there are more than {most} events: send fewer at a time.", field="events"
            )  # fmt: skip
    if not found.of:
        raise _wrong("no_events", "there is no event in it.", "events")
    found.times, found.values = _numbers(found.times), _numbers(found.values)
    found.channels = _positions(found.channels, positions)
    return found


def _add_row(found: Columns, index: int, item: dict[str, Any], features: Sequence[str]) -> None:
    held = item["values"]
    if type(held) is not dict:
        raise _wrong("values_type", "`values` is not an object of channels.", f"[{index}].values")
    if not item.keys() <= ROW_KEYS:
        raise _unknown(item, ROW_KEYS, index)
    if None in held.values():  # null: not observed, which is no event
        held = {channel: value for channel, value in held.items() if value is not None}
    many = len(held)
    found.rows.append(True)
    found.names.append(item.get("stream"))
    found.of += [index] * many
    found.times += [item.get("time")] * many
    found.channels += held
    found.values += held.values()
    if found.ids is not None or "id" in item:
        own = item.get("id")
        _add_ids(found, [_id_in_row(own, channel) for channel in held])
    if item.get("static") is not None and type(item.get("stream")) is str:
        try:
            told = static_of(item["static"], features)
        except Problem as problem:
            told = Refusal(problem.code, "static", problem.message)
        found.static.append((index, item["stream"], told))


def static_of(told: Any, features: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Static features as the engine takes them: by name, or, with `features`, in their order; None stays None."""
    if told is None:
        return None
    if type(told) is dict and not features:
        return told
    if type(told) is dict:
        strange = told.keys() - set(features)
        if strange:
            raise _wrong(
                "static_bad", f"the model has no static feature {min(strange)[:40]!r}.", "static"
            )
        return [told.get(name) for name in features]
    if type(told) is list:
        return told
    raise _wrong("static_bad", "it is neither an object nor a list.", "static")


def _id_in_row(own: Any, channel: str) -> Any:
    """The engine's ids are of events: each channel of a row has its own, as long as the row's may be."""
    if type(own) is not str or not 0 < len(own) <= LONGEST_NAME:
        return own
    text = f"{own}/{channel}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


def _add_ids(found: Columns, ids: list[Any]) -> None:
    if found.ids is None:
        found.ids = [None] * (len(found.of) - len(ids))
    found.ids += ids


def _numbers(column: list[Any]) -> Any:
    if set(map(type, column)) <= _NUMBERS:
        try:
            return np.array(column, np.float64)
        except OverflowError:
            pass
    return column


def _positions(column: list[Any], positions: Mapping[str, int]) -> Any:
    try:
        return np.fromiter(map(positions.__getitem__, column), np.int32, len(column))
    except (KeyError, TypeError):
        return column


def read_json(body: bytes) -> Any:
    """JSON as RFC 8259 has it; NaN and Infinity are let through for the engine to name and refuse."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise Problem(400, "body_empty", "the body is empty.", field="body") from error
        try:
            text = body.decode()
        except UnicodeDecodeError as wrong:
            raise Problem(
                400, "utf8_bad", f"the body is not UTF-8 at byte {wrong.start}.", field="body"
            ) from error
        if "depth limit" in str(error):
            raise Problem(
                400, "json_depth", "the body is nested too deep.", field="body"
            ) from error
        try:
            # Python's reader takes what Python's writer writes for numbers that are not finite.
            told = json.loads(text)
            json.dumps(told, ensure_ascii=False).encode()  # an escape such as \ud800 is no text
            return told
        except UnicodeEncodeError:
            raise Problem(
                400, "utf8_bad", "the body has half of a surrogate pair, which is no text.", field="body"
            ) from error  # fmt: skip
        except (ValueError, RecursionError):
            raise Problem(
                400, "json_bad", f"the body is not JSON: {error.msg} (line {error.lineno}, "
                f"column {error.colno}).", field="body"
            ) from error  # fmt: skip


def read_lines(body: bytes) -> list[Any]:
    """NDJSON: one event or row a line."""
    lines = [line.strip() for line in body.split(b"\n")]
    whole = [line for line in lines if line]
    # All at once where every line looks like an object of its own; else one by one, to name the bad one.
    if all(line[:1] == b"{" and line[-1:] == b"}" for line in whole):
        try:
            told = orjson.loads(b"[%b]" % b",".join(whole))
            if len(told) == len(whole) > 0:
                return told
        except orjson.JSONDecodeError:
            pass
    found = []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                found.append(read_json(line))
        except Problem as problem:
            problem.field = f"line {number}"
            raise
    if not found:
        raise Problem(400, "body_empty", "the body is empty.", field="body")
    return found


def _wrong(code: str, message: str, field: str) -> Problem:
    return Problem(422, code, f"{field}: {message}", field=field)


def _unknown(item: dict[str, Any], known: frozenset[str], index: int) -> Problem:
    name = min(item.keys() - known)[:40]
    return _wrong("field_unknown", f"an event has no field {name!r}.", f"[{index}].{name}")
