"""What may be given as the labels of a table of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamLabels:
    """One label a stream: `column` (or several, for several outputs) of `table`.

    `table` is a path or a frame with the stream column; None means the series' own table, where
    the label must be the same on all lines of a stream that have one.
    """

    column: str | Sequence[str]
    table: Any = None


@dataclass(frozen=True)
class RowLabels:
    """A label at rows: `column` of `table`, which has the stream and time columns too.

    None means the series' own table. Rows without a label, or with an empty one, have none. Between rows a label
    is known for as long as it `stands`: a length of time as "90min", or a number in the task's unit.
    """

    column: str
    table: Any = None
    stands: float | str = 0.0


@dataclass(frozen=True)
class TimeLabels:
    """Labels at any times, with rows there or not: columns `time` and `column` (or several) of `table`, or of the
    series' own where that is None.

    Labels before a stream's first row, and after it is followed, are left out and counted. `stands` as in `RowLabels`.
    """

    table: Any
    time: str
    column: str | Sequence[str]
    stands: float | str = 0.0


@dataclass(frozen=True)
class IntervalLabels:
    """Times from `start` to `end`, both included, of the intervals in `table` are 1, others 0.

    With `label`, a column of the table, the label is what stands there, and outside of all intervals nothing is
    known. Intervals of a stream that overlap are joined and counted where their labels agree, and refused otherwise.
    """

    table: Any
    start: str = "start"
    end: str = "end"
    label: str | None = None


@dataclass(frozen=True)
class EventLabels:
    """Whether an event comes within `horizon`: columns of one line a stream of `table`, or of the series' own.

    `event` has the event's time, `censored` until when one would be known of where none came; both may be empty.
    Without `censored`, or where both are empty, a stream is followed as long as `task_from_table(followed_until=)`
    says, or until its last row. `horizon` is a length of time as "12h", or a number in the task's unit; without one
    the task is "time-to-event".
    """

    table: Any
    event: str
    censored: str | None = None
    horizon: float | str | None = None


@dataclass(frozen=True)
class ForecastLabels:
    """What `channels` of the events themselves read `horizons` later; see `data.forecasting.forecast_of`.

    >>> ForecastLabels(["creatinine"], ["12h", "1d"]).horizons
    ['12h', '1d']
    """

    channels: Sequence[str]
    horizons: Sequence[float | str]
    within: float | str | Sequence[float | str] | None = None
    table: None = None


Labels = StreamLabels | RowLabels | TimeLabels | IntervalLabels | EventLabels | ForecastLabels
