"""What can be read of the streams an engine follows: one frozen record for each question."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Alarm:
    """A stream's probability rose to the threshold at one of its rows."""

    number: int
    stream: str
    time: float
    """of the row, in the model's unit of time"""
    probability: float
    threshold: float
    raised: float
    """Wall clock, seconds, when it was raised"""
    acknowledged: float | None = None
    """Wall clock, seconds; None while it is open"""
    by: str | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream, without asking the model anything."""

    stream: str
    rows: int
    first_time: float | None
    """of its first row; None before it"""
    last_time: float | None
    """of its newest row; what may be asked starts here"""
    outputs: tuple[float, ...] | None
    """What the model said after the newest row"""
    probabilities: tuple[float, ...] | None
    static: tuple[float, ...] | None
    origin: float | None
    """Wall clock (seconds) at the stream's time 0, where it was given"""
    received: float | None
    """Wall clock (seconds) of the last commit that changed it"""
    resident: bool
    """Whether its state is in memory now; where not, the first question or event brings it back"""
    notes: tuple[str, ...] = ()
    """What is worth saying of the static features it was opened with just now"""


@dataclass(frozen=True, eq=False)
class Overview:
    """All streams that have a row, as columns, by name."""

    streams: tuple[str, ...]
    rows: np.ndarray
    """(stream,) int64"""
    last_times: np.ndarray
    """(stream,): time of the newest row"""
    outputs: np.ndarray
    """(stream, output) after the newest row"""
    probabilities: np.ndarray
    """(stream, output)"""
    previous: np.ndarray
    """(stream,): the watched probability after the row before the newest, NaN where there is none: the trend"""
    received: np.ndarray
    """(stream,): wall clock (seconds) of the last commit that changed it"""
    origins: np.ndarray
    """(stream,): wall clock at the stream's time 0, NaN where not given"""

    def __len__(self) -> int:
        return len(self.streams)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row as received and what was answered after it."""

    time: float
    events: dict[str, float]
    """Channel -> value, as received; the last correction counts"""
    superseded: tuple[tuple[str, float], ...]
    """(channel, value) that corrections replaced, oldest first"""
    outputs: tuple[float, ...]
    probabilities: tuple[float, ...]
    sequence: int
    """Number of the commit that gave this answer"""
    received: float
    """Wall clock (seconds) of that commit"""
    revised: tuple[RevisedAnswer, ...] = ()
    """Earlier answers after this row, from before a late or corrected event changed them; oldest first"""


@dataclass(frozen=True, slots=True)
class RevisedAnswer:
    """An answer that was given and later changed."""

    outputs: tuple[float, ...]
    sequence: int


@dataclass(frozen=True, eq=False)
class Curve:
    """The model's answer in continuous time."""

    times: np.ndarray
    """(point,) increasing"""
    outputs: np.ndarray
    """(point, output)"""
    probabilities: np.ndarray
    """(point, output)"""
    row_times: np.ndarray
    """(row,): the rows that lie in the span asked for"""
    row_probabilities: np.ndarray
    """(row, output): the answer after each of them"""
    row_before: np.ndarray
    """(row, output): the probability just before each of them: the curve jumps at a row"""


@dataclass(frozen=True, eq=False)
class RowExplanation:
    """What a row added to the outputs: `start + time + sum of events` is the output after it."""

    row_time: float
    start: np.ndarray
    """(output,): the output after the row before; for a stream's first row, the output after it"""
    time: np.ndarray
    """(output,): what the passing of time added"""
    events: dict[str, np.ndarray]
    """channel -> (output,): what each channel observed at the row added"""
    values: dict[str, float]
    """channel -> the value observed"""
