"""The API's bodies for its OpenAPI document; answers are built by `shapes`, and tests hold the two together."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(_Body):
    """Why: a stable code, the field at fault, and what to do."""

    code: str
    message: str
    field: str | None = None


class ErrorAnswer(_Body):
    """What every answer of 400 and above holds."""

    error: Error


class RefusedEvent(_Body):
    """An event that was refused: `index` counts the events or rows of the request."""

    index: int
    code: str
    field: str
    message: str


class Prediction(_Body):
    """What the model says of a stream at a time; null where it has no finite answer.

    Here and below, a classifier's answers have `probabilities`, those of a regression `predicted`, by name.
    """

    stream: str
    time: float
    outputs: list[float | None]
    probabilities: list[float | None] | None = None
    predicted: dict[str, float | None] | None = None


class Receipt(_Body):
    """What became of the events of a request; they are durable."""

    sequence: int
    events: int
    counts: dict[str, int]
    refusals: list[RefusedEvent]
    refusals_left_out: int
    answers: list[Prediction] | None = None
    notes: list[str] | None = None
    """Of static features of streams that were opened: a category the model does not know is taken as missing"""


class RefusedReceipt(_Body):
    """Every event was refused, or the request had not the form of any; `error` says why (the first)."""

    error: Error
    sequence: int | None = None
    events: int | None = None
    counts: dict[str, int] | None = None
    refusals: list[RefusedEvent] | None = None
    refusals_left_out: int | None = None
    notes: list[str] | None = None


class Alarm(_Body):
    """A stream's probability, or number (`value`), rose to the threshold; wall clock in seconds since 1970."""

    number: int
    stream: str
    time: float
    probability: float | None = None
    value: float | None = None
    threshold: float
    raised: float
    acknowledged: float | None
    by: str | None


class BoardRow(_Body):
    """A stream in the overview; what is said is at `now`, `trend` since the row before the newest.

    Null where the stream cannot be asked, because its stored state is damaged.
    """

    stream: str
    rows: int
    last_time: float
    now: float
    probabilities: list[float | None] | None = None
    predicted: dict[str, float | None] | None = None
    trend: float | None
    received: float
    alarm: Alarm | None


class Streams(_Body):
    """Streams in the order of who needs attention."""

    total: int
    found: int
    taken: float
    alarms: int
    streams: list[BoardRow]


class Stream(_Body):
    """One stream: `outputs` after its newest row, `now` at this moment."""

    stream: str
    rows: int
    first_time: float | None
    last_time: float | None
    outputs: list[float] | None
    probabilities: list[float] | None = None
    predicted: dict[str, float] | None = None
    static: list[float] | None
    origin: float | None
    received: float | None
    now: Prediction | None
    alarms: list[Alarm]
    notes: list[str] | None = None
    """Of the static features it was opened with just now"""


class Superseded(_Body):
    """A value that a correction replaced."""

    channel: str
    value: float


class Revised(_Body):
    """An answer that was given and later changed."""

    outputs: list[float]
    sequence: int


class HistoryRow(_Body):
    """A row as received and what was answered after it."""

    time: float
    values: dict[str, float]
    superseded: list[Superseded]
    outputs: list[float]
    probabilities: list[float] | None = None
    predicted: dict[str, float] | None = None
    sequence: int
    received: float
    revised: list[Revised]


class History(_Body):
    """Rows in order of time."""

    stream: str
    rows: list[HistoryRow]


class Curve(_Body):
    """The answer in continuous time; at a row it jumps from `row_before` (row, output) to `row_probabilities`."""

    stream: str
    times: list[float]
    probabilities: list[list[float]] | None = None
    predicted: dict[str, list[float]] | None = None
    outputs: list[list[float]]
    row_times: list[float]
    row_probabilities: list[list[float]] | None = None
    row_predicted: dict[str, list[float]] | None = None
    row_before: list[list[float | None]]


class RowExplanation(_Body):
    """What moved the outputs: `start + passing_of_time + sum of channels` is the output after the row."""

    time: float
    start: list[float]
    passing_of_time: list[float]
    channels: dict[str, list[float]]
    values: dict[str, float]


class Explanation(_Body):
    """Row by row, in order of time."""

    stream: str
    rows: list[RowExplanation]


class Alarms(_Body):
    """Alarms, newest first."""

    alarms: list[Alarm]


class Channel(_Body):
    """A channel and its unit, where it is known."""

    name: str
    unit: str | None


class StaticFeature(_Body):
    """A static feature as clients give it: a number, or one of the categories."""

    name: str
    kind: str
    categories: list[str] | None


class About(_Body):
    """The model and how it is served."""

    model: str
    title: str
    kind: str
    channels: list[Channel]
    static: list[str]
    """Static features as the model takes them in; `Stream.static` is in this order"""
    static_features: list[StaticFeature]
    outputs: int
    classes: list[str]
    watched_output: int
    threshold: float | None
    time_unit: str
    unit_seconds: float
    """Seconds in a unit of time"""
    clock_speed: float
    tick: float
    silent_after: float
    lateness: float
    guarded: bool
    """Whether one needs a token here"""


class Health(_Body):
    """It runs, or it is ready."""

    status: str


class NotReady(_Body):
    """Events cannot be taken, and why; `progress` from 0 to 1 while states are rebuilt."""

    status: str
    progress: float | None = None
    error: Error


_NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["stream", "time", "channel", "value"],
    "properties": {
        "stream": _NAME,
        "time": {"type": "number"},
        "channel": {"type": "string"},
        "value": {"type": "number"},
        "id": _NAME,
    },
    "additionalProperties": False,
}
_ROW: dict[str, Any] = {
    "type": "object",
    "required": ["stream", "time", "values"],
    "properties": {
        "stream": _NAME,
        "time": {"type": "number"},
        "values": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "id": _NAME,
        "static": {
            "oneOf": [
                {
                    "type": "object",
                    "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
                },
                {"type": "array", "items": {"type": "number"}},
            ]
        },
    },
    "additionalProperties": False,
}
_ONE: dict[str, Any] = {"oneOf": [_EVENT, _ROW]}
_LIST: dict[str, Any] = {"type": "array", "items": _ONE, "minItems": 1}
EVENTS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        _ONE,
                        _LIST,
                        {
                            "type": "object",
                            "required": ["events"],
                            "properties": {"events": _LIST},
                            "additionalProperties": False,
                        },
                    ]
                }
            },
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}
STREAM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "static": _ROW["properties"]["static"],
                        "origin": {"type": "number"},
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}
BY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["by"],
                    "properties": {"by": {"type": "string", "minLength": 1, "maxLength": 80}},
                    "additionalProperties": False,
                }
            }
        },
    }
}
