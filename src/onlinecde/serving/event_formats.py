"""From parsed JSON to the batch an engine takes: single events, rows, lists of them.

An event: `{"stream": "bed 7", "time": 0.5, "channel": "heart_rate", "value": 92}`. A row: `{"stream":
"bed 7", "time": 0.5, "values": {"heart_rate": 92, "lactate": 1.4}}`. Both may carry an `id`, a row the
`static` features of a new stream. What is wrong with the form of a request refuses all of it; what is
wrong with an event (its time, channel, value or static features) refuses that event alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onlinecde.serving.bodies import read_json, read_lines
from onlinecde.serving.problems import Problem
from onlinecde.streaming import EventBatch, Refusal
from onlinecde.streaming.pipeline.validate import LONGEST_NAME

EVENT_KEYS = frozenset(("stream", "time", "channel", "value", "id"))
ROW_KEYS = frozenset(("stream", "time", "values", "id", "static"))
_NUMBERS = {float, int}


class Sent(NamedTuple):
    """The events of one request; entry i of `batch.streams` is the stream of its i-th item."""

    batch: EventBatch
    is_row: list[bool]
    """(item,): whether it is a row, so that a refusal must name the channel"""


class EventReader:
    """Reads the events of requests.

    Args:
        positions: channel -> position in the model.
        features: names of the static features, in the model's order, of a model without a schema of them.
        most: events that one request may hold.
        static_fault: what is wrong with static features for a stream, None where they would do.
    """

    def __init__(
        self,
        positions: Mapping[str, int],
        features: Sequence[str] = (),
        *,
        most: int = 50_000,
        static_fault: Callable[[str, Any], Refusal | None] = lambda stream, static: None,
    ) -> None:
        self._positions, self.features, self._most = positions, features, most
        self._static_fault = static_fault

    def read(self, body: bytes, ndjson: bool) -> Sent:
        """The events in a body; raises `Problem` where it has not the form of any.

        >>> sent = EventReader({"hr": 0}).read(b'{"stream": "a", "time": 0, "values": {"hr": 80}}', False)
        >>> len(sent.batch), sent.batch.streams, sent.batch.channels
        (1, ['a'], array([0], dtype=int32))
        """
        return self.events_of(read_lines(body) if ndjson else read_json(body))

    def events_of(self, content: Any) -> Sent:
        """The events in what was parsed: one, a list, or `{"events": [...]}`."""
        items = _items(content)
        columns = _Columns()
        for index, item in enumerate(items):
            if type(item) is not dict:
                raise _wrong(
                    "event_type", "an event is an object with names and values.", f"[{index}]"
                )
            if "values" in item:
                columns.add_row(index, item)
            else:
                columns.add_event(index, item)
            if item.get("static") is not None and type(item.get("stream")) is str:
                self._add_static(columns, index, item)
            if len(columns.of) > self._most:
                raise Problem(
                    413, "too_many_events", f"there are more than {self._most} events: send fewer at a time.",
                    field="events",
                )  # fmt: skip
        if not columns.of:
            raise _wrong("no_events", "there is no event in it.", "events")
        batch = EventBatch(
            columns.streams,
            _numbers(columns.times),
            _codes(columns.channels, self._positions),
            _numbers(columns.values),
            columns.ids,
            of=np.array(columns.of, np.int64),
            static=columns.static or None,
            refused=columns.refused or None,
        )
        return Sent(batch, columns.is_row)

    def _add_static(self, columns: _Columns, index: int, item: dict[str, Any]) -> None:
        """Note the static features of an item: the first sound ones of a stream count; wrong ones refuse the item."""
        stream = item["stream"]
        try:
            features = static_of(item["static"], self.features)
            wrong = self._static_fault(stream, features)
        except Problem as problem:
            features, wrong = None, Refusal(problem.code, "static", problem.message)
        if wrong is None:
            columns.static.setdefault(stream, features)
        else:
            events = range(bisect_left(columns.of, index), len(columns.of))
            columns.refused.update(dict.fromkeys(events, wrong))


class _Columns:
    """The events of one request while they are read."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        """Of each item"""
        self.is_row: list[bool] = []
        self.of: list[int] = []
        """(event,): the item it came in"""
        self.times: list[Any] = []
        self.channels: list[Any] = []
        self.values: list[Any] = []
        self.ids: list[Any] | None = None
        self.static: dict[str, Any] = {}
        self.refused: dict[int, Refusal] = {}

    def add_event(self, index: int, item: dict[str, Any]) -> None:
        if not item.keys() <= EVENT_KEYS:
            raise _unknown(item, EVENT_KEYS, index)
        self.streams.append(item.get("stream"))
        self.is_row.append(False)
        self.of.append(index)
        self.times.append(item.get("time"))
        self.channels.append(item.get("channel"))
        self.values.append(item.get("value"))
        if self.ids is not None or "id" in item:
            self._add_ids([item.get("id")])

    def add_row(self, index: int, item: dict[str, Any]) -> None:
        values = item["values"]
        if type(values) is not dict:
            raise _wrong(
                "values_type", "`values` is not an object of channels.", f"[{index}].values"
            )
        if not item.keys() <= ROW_KEYS:
            raise _unknown(item, ROW_KEYS, index)
        if None in values.values():  # null: not observed, which is no event
            values = {channel: value for channel, value in values.items() if value is not None}
        self.is_row.append(True)
        self.streams.append(item.get("stream"))
        self.of += [index] * len(values)
        self.times += [item.get("time")] * len(values)
        self.channels += values
        self.values += values.values()
        if self.ids is not None or "id" in item:
            own = item.get("id")
            self._add_ids([_id_in_row(own, channel) for channel in values])

    def _add_ids(self, ids: list[Any]) -> None:
        if self.ids is None:
            self.ids = [None] * (len(self.of) - len(ids))
        self.ids += ids


def _items(content: Any) -> list[Any]:
    if type(content) is list:
        return content
    if type(content) is not dict:
        raise _wrong("body_type", "give an event, a list of events, or {'events': [...]}.", "body")
    if "events" not in content:
        return [content]
    if len(content) > 1:
        raise _wrong("field_unknown", "beside `events` there is another field.", "events")
    if type(content["events"]) is not list:
        raise _wrong("events_type", "`events` is not a list.", "events")
    return content["events"]


def static_of(given: Any, features: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Static features as the engine takes them: by name, or, with `features`, in their order; None stays None."""
    if given is None:
        return None
    if type(given) is dict and not features:
        return given
    if type(given) is dict:
        strange = given.keys() - set(features)
        if strange:
            raise _wrong(
                "static_bad", f"the model has no static feature {min(strange)[:40]!r}.", "static"
            )
        return [given.get(name) for name in features]
    if type(given) is list:
        return given
    raise _wrong("static_bad", "it is neither an object nor a list.", "static")


def _id_in_row(own: Any, channel: str) -> Any:
    """The engine's ids are of events: each channel of a row has its own, as long as the row's may be."""
    if type(own) is not str or not 0 < len(own) <= LONGEST_NAME:
        return own
    text = f"{own}/{channel}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


def _numbers(column: list[Any]) -> Any:
    if set(map(type, column)) <= _NUMBERS:
        try:
            return np.array(column, np.float64)
        except OverflowError:
            pass
    return column


def _codes(column: list[Any], positions: Mapping[str, int]) -> Any:
    try:
        return np.fromiter(map(positions.__getitem__, column), np.int32, len(column))
    except (KeyError, TypeError):
        return column


def _wrong(code: str, message: str, field: str) -> Problem:
    return Problem(422, code, f"{field}: {message}", field=field)


def _unknown(item: dict[str, Any], known: frozenset[str], index: int) -> Problem:
    name = min(item.keys() - known)[:40]
    return _wrong("field_unknown", f"an event has no field {name!r}.", f"[{index}].{name}")
