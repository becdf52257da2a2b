"""The API's answers, each defined once: its fields are in the OpenAPI document, and `of` fills them in for JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel, ConfigDict

from onlinecde.models import AlarmPolicy as EnginePolicy
from onlinecde.models import Intervals
from onlinecde.models.forecasts import LEVELS, QuantileIntervals
from onlinecde.models.readout import RULES
from onlinecde.models.readout import watched as numbers_watched
from onlinecde.series import TIME_UNITS
from onlinecde.serving import problems
from onlinecde.serving.settings import ServeSettings
from onlinecde.streaming import Alarm as RaisedAlarm
from onlinecde.streaming import Answers, Engine, Receipts, StreamInfo
from onlinecde.streaming import Curve as EngineCurve
from onlinecde.streaming import HistoryRow as EngineRow
from onlinecde.streaming import RowExplanation as EngineExplanation
from onlinecde.streaming.shadow import ShadowStatus

if TYPE_CHECKING:
    from onlinecde.serving.jobs import Job as RunningJob
    from onlinecde.serving.overview import Snapshot
    from onlinecde.serving.webhooks import Webhooks as Deliverer


class _Body(BaseModel):
    """An answer. Plain values are filled in under the names of its fields; those with a default may be left out."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    @cache
    def _fields(cls) -> tuple[tuple[str, bool], ...]:
        """(name, whether it must be there) of each field."""
        return tuple((name, field.is_required()) for name, field in cls.model_fields.items())

    @classmethod
    def fill(cls, source: object = None, /, **given: Any) -> dict[str, Any]:
        """One answer: each field from `given`, or, where it must be there, from `source`'s attribute of its name."""
        answer: dict[str, Any] = {}
        for name, required in cls._fields():
            if name in given:
                answer[name] = given.pop(name)
            elif required:
                answer[name] = getattr(source, name)
        if given:
            raise TypeError(f"{cls.__name__} has no field {min(given)!r}")
        return answer

    @classmethod
    def table(cls, **columns: Iterable[Any]) -> list[dict[str, Any]]:
        """Many answers at once: a column for each field."""
        names = [name for name, required in cls._fields() if required or name in columns]
        if len(names) != len(columns):
            raise TypeError(f"{cls.__name__} has fields {names}, not {list(columns)}")
        rows = zip(*(columns[name] for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]


@dataclass(frozen=True)
class OutputNames:
    """Under which key outputs are answered: a classifier's as `probabilities`, a regression's as `predicted` by name.

    >>> OutputNames.of("regression", ["SOFA"], 1).each([1.5]), OutputNames.of("binary", [], 1).each([0.5])
    ({'predicted': {'SOFA': 1.5}}, {'probabilities': [0.5]})
    """

    names: tuple[str, ...] | None
    """Of the outputs of a regression, or of forecasts; None for a classifier"""
    risks: Callable[[np.ndarray], np.ndarray] | None = None
    """Of time to an event: from the risks by the end of each bin (..., bin) to that within a horizon (..., 1); of
    forecasts from quantiles (..., forecast * level) to the middle ones (..., forecast)"""
    watched: bool = True
    """Whether that is the horizon of the risk that is watched"""
    intervals: Intervals | QuantileIntervals | None = None
    """Of a regression that has some, and of forecasts: answers have `lower` and `upper` too, of the widest, by name"""

    @classmethod
    def of(
        cls,
        kind: str,
        classes: Sequence[str],
        outputs: int,
        intervals: Intervals | QuantileIntervals | None = None,
    ) -> OutputNames:
        """For a model of this kind; outputs without names of their own are "output 1" and so on."""
        if not RULES[kind].numbers:
            return cls(None)
        outputs = numbers_watched(kind, outputs)
        numbered = tuple(f"output {number}" for number in range(1, outputs + 1))
        names = tuple(classes) if len(classes) == outputs else numbered
        return cls(names, intervals=intervals)

    def answered(self, numbers: np.ndarray) -> np.ndarray:
        """What is answered, (..., output), of probabilities or numbers as the engine has them."""
        return numbers if self.risks is None else self.risks(numbers)

    def each(self, numbers: Sequence[float] | None) -> dict[str, Any]:
        """One answer, (output,), under its key."""
        if self.names is None:
            if numbers is not None and self.risks is not None:
                numbers = self.risks(np.array(numbers)).tolist()
            return {"probabilities": numbers}
        if numbers is None:
            return {"predicted": None}
        return {key: one[0] for key, one in self.column(np.array([numbers])).items()}

    def column(self, numbers: np.ndarray) -> dict[str, Any]:
        """Answers (stream, output), under their key, as a column."""
        if self.names is None:
            return {"probabilities": self.answered(numbers).tolist()}
        return {
            key: [dict(zip(self.names, row, strict=True)) for row in ends.tolist()]
            for key, ends in self._ends(numbers).items()
        }

    def over_time(self, numbers: np.ndarray, prefix: str = "") -> dict[str, Any]:
        """Answers as time goes, (time, output), under their key."""
        if self.names is None:
            return {f"{prefix}probabilities": self.answered(numbers).tolist()}
        return {
            f"{prefix}{key}": dict(zip(self.names, ends.T.tolist(), strict=True))
            for key, ends in self._ends(numbers).items()
        }

    def _ends(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Predicted numbers (..., output), and the ends of their intervals, by key."""
        said = self.answered(numbers)
        if self.intervals is None:
            return {"predicted": said}
        lower, upper = self.intervals.bounds(numbers)
        return {"predicted": said, "lower": lower, "upper": upper}


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

    Here and below, a classifier's answers have `probabilities`, those of a regression `predicted`, by name, and, where
    the model has intervals, `lower` and `upper` (`About.interval_level` says of which level). Of time to
    an event, `probabilities` has one: that it comes within the horizon asked for. Forecasts are answered as a
    regression's numbers are; their quantiles are `outputs`, forecast by forecast (`About.forecasts`), level by level.
    """

    stream: str
    time: float
    outputs: list[float | None]
    probabilities: list[float | None] | None = None
    predicted: dict[str, float | None] | None = None
    lower: dict[str, float | None] | None = None
    upper: dict[str, float | None] | None = None

    @classmethod
    def of(cls, answers: Answers, names: OutputNames) -> list[dict[str, Any]]:
        """One entry a stream."""
        return cls.table(
            stream=answers.streams,
            time=answers.times.tolist(),
            outputs=answers.outputs.tolist(),
            **names.column(answers.probabilities),
        )


class Receipt(_Body):
    """What became of the events of a request; they are durable. Without the scope `read`, `sequence` is left out."""

    sequence: int | None = None
    events: int
    counts: dict[str, int]
    refusals: list[RefusedEvent]
    refusals_left_out: int
    answers: list[Prediction] | None = None
    notes: list[str] | None = None
    """Of static features of streams that were opened: a category the model does not know is taken as missing"""

    @classmethod
    def of(
        cls, receipts: Receipts, notes: list[str], refusals: list[dict[str, Any]], **given: Any
    ) -> dict[str, Any]:
        """What became of a part of a micro-batch."""
        if notes:
            given["notes"] = notes
        return cls.fill(receipts, refusals=refusals, **given)


class RefusedReceipt(_Body):
    """Every event was refused, or the request had not the form of any; `error` says why (the first)."""

    error: Error
    sequence: int | None = None
    events: int | None = None
    counts: dict[str, int] | None = None
    refusals: list[RefusedEvent] | None = None
    refusals_left_out: int | None = None
    notes: list[str] | None = None


class AlarmRule(_Body):
    """When an alarm is raised, in the model's unit of time; `every` is null where rows alone are looked at."""

    threshold: float
    rearm: float
    quiet: float
    every: float | None
    output: int
    horizon: float | None = None
    """Of time to an event: how far ahead the risk looks; where it is not given, as the model's first answer"""


class AlarmPolicy(AlarmRule):
    """The rule that holds now, in words too, and how it was chosen."""

    words: str
    chosen: dict[str, Any]

    @classmethod
    def of(cls, policy: EnginePolicy | None, time_unit: str) -> dict[str, Any] | None:
        """A policy of the engine."""
        if policy is None:
            return None
        ahead = {} if policy.horizon is None else {"horizon": policy.horizon}
        return cls.fill(policy, words=policy.words(time_unit), chosen=dict(policy.chosen), **ahead)


class Alarm(_Body):
    """A stream's probability, or number (`value`), rose to the threshold; wall clock in seconds since 1970.

    `rose`: "at a row" or "between rows"; `policy`: that raised it; `rearmed`: from when on the stream could be alarmed
    again. Alarms of 0.1 do not say.
    """

    number: int
    stream: str
    time: float
    probability: float | None = None
    value: float | None = None
    threshold: float
    raised: float
    acknowledged: float | None
    by: str | None
    rose: str | None = None
    policy: AlarmRule | None = None
    rearmed: float | None = None

    @classmethod
    def of(cls, alarm: RaisedAlarm[str], names: OutputNames) -> dict[str, Any]:
        """An alarm of the engine."""
        given: dict[str, Any] = {
            "probability" if names.names is None else "value": alarm.probability
        }
        if alarm.policy is not None:
            rule = json.loads(alarm.policy)
            given |= {"rose": alarm.rose, "policy": rule, "rearmed": alarm.rearmed}
        return cls.fill(alarm, **given)


class BoardRow(_Body):
    """A stream in the overview; what is said is at `now`, `trend` since the row before the newest.

    Null where the stream cannot be asked, because its stored state is damaged; the trend also where the risk within
    another horizon is asked for than the one that is watched.
    """

    stream: str
    rows: int
    last_time: float
    now: float
    probabilities: list[float | None] | None = None
    predicted: dict[str, float | None] | None = None
    lower: dict[str, float | None] | None = None
    upper: dict[str, float | None] | None = None
    trend: float | None
    received: float
    alarm: Alarm | None

    @classmethod
    def of(
        cls, snapshot: Snapshot, places: list[int], output: int, names: OutputNames
    ) -> list[dict[str, Any]]:
        """The streams at these places; output: the one that is watched."""
        overview = snapshot.overview
        streams = [overview.streams[place] for place in places]
        watched = names.answered(snapshot.probabilities[places])[:, output]
        rise = (watched - overview.previous[places]).tolist()
        fresh = (np.isnan(overview.previous[places]) | (not names.watched)).tolist()
        alarms = [snapshot.alarms.get(stream) for stream in streams]
        return cls.table(
            stream=streams,
            rows=overview.rows[places].tolist(),
            last_time=overview.last_times[places].tolist(),
            now=snapshot.now[places].tolist(),
            **names.column(snapshot.probabilities[places]),
            trend=[None if new else one for one, new in zip(rise, fresh, strict=True)],
            received=overview.received[places].tolist(),
            alarm=[None if one is None else Alarm.of(one, names) for one in alarms],
        )


class Job(_Body):
    """Work that goes on after its request was answered: for events, `result` is the receipt, and nothing is
    acknowledged before it is there.
    """

    job: str
    kind: str
    state: Literal["running", "done", "failed"]
    begun: float
    ended: float | None
    progress: float | None
    result: dict[str, Any] | None
    error: Error | None

    @classmethod
    def of(cls, job: RunningJob) -> dict[str, Any]:
        """How far a job is."""
        progress = None if job.progress is None else job.progress.done / max(1, job.progress.total)
        return cls.fill(
            job,
            job=job.number,
            progress=1.0 if job.result is not None else progress,
            error=None if job.problem is None else job.problem.as_json()["error"],
        )


class Shadow(_Body):
    """Another model beside the one that serves, and how its answers differ.

    Differences are of the number that alarms watch, after the newest row of each stream compared; `alarms_disagree`
    counts the streams at or above one model's threshold alone.
    """

    state: Literal["none", "clearing", "building", "following"]
    model: str | None
    folder: str | None
    streams: int
    built: int
    from_cut: int
    failed: list[str]
    compared: int
    mean_difference: float | None
    largest_difference: float | None
    alarms_disagree: int
    row_seconds: float | None
    live_row_seconds: float | None

    @classmethod
    def of(cls, status: ShadowStatus) -> dict[str, Any]:
        """How far it is."""
        return cls.fill(status, failed=list(status.failed))


class ShadowDifference(_Body):
    """What two models say of a stream after its newest row."""

    stream: str
    time: float
    live: list[float]
    shadow: list[float]


class Jobs(_Body):
    """Jobs, newest first."""

    jobs: list[Job]


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
    lower: dict[str, float] | None = None
    upper: dict[str, float] | None = None
    static: list[float] | None
    origin: float | None
    received: float | None
    looked: float | None
    """Up to when it was looked at for alarms; null before its first row, and where there are none"""
    now: Prediction | None
    alarms: list[Alarm]
    notes: list[str] | None = None
    """Of the static features it was opened with just now"""

    @classmethod
    def of(
        cls,
        info: StreamInfo,
        now: Answers | None,
        alarms: Sequence[RaisedAlarm[str]],
        names: OutputNames,
    ) -> dict[str, Any]:
        """A stream of the engine."""
        return cls.fill(
            info,
            **names.each(info.probabilities),
            now=None if now is None else Prediction.of(now, names)[0],
            alarms=[Alarm.of(one, names) for one in alarms],
            **({"notes": list(info.notes)} if info.notes else {}),
        )


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
    lower: dict[str, float] | None = None
    upper: dict[str, float] | None = None
    sequence: int
    received: float
    revised: list[Revised]
    implausible: list[str] | None = None
    """Channels whose values lie outside of what is plausible"""

    @classmethod
    def of(
        cls,
        row: EngineRow,
        names: OutputNames,
        plausible: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """A row of the engine; plausible: channel -> least and largest value, NaN for no bound."""
        wild = [
            name
            for name, value in row.events.items()
            if (span := plausible.get(name)) is not None and (value < span[0] or value > span[1])
        ]
        return cls.fill(
            row,
            values=row.events,
            superseded=[Superseded.fill(channel=c, value=v) for c, v in row.superseded],
            **names.each(row.probabilities),
            revised=[Revised.fill(one) for one in row.revised],
            **({"implausible": wild} if wild else {}),
        )


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
    lower: dict[str, list[float]] | None = None
    upper: dict[str, list[float]] | None = None
    outputs: list[list[float]]
    row_times: list[float]
    row_probabilities: list[list[float]] | None = None
    row_predicted: dict[str, list[float]] | None = None
    row_lower: dict[str, list[float]] | None = None
    row_upper: dict[str, list[float]] | None = None
    row_before: list[list[float | None]]

    @classmethod
    def of(cls, stream: str, curve: EngineCurve, names: OutputNames) -> dict[str, Any]:
        """A curve of the engine."""
        return cls.fill(
            stream=stream,
            times=curve.times.tolist(),
            **names.over_time(curve.probabilities),
            outputs=curve.outputs.tolist(),
            row_times=curve.row_times.tolist(),
            **names.over_time(curve.row_probabilities, "row_"),
            row_before=names.answered(curve.row_before).tolist(),
        )


class RowExplanation(_Body):
    """What moved the outputs: `start + passing_of_time + sum of channels` is the output after the row."""

    time: float
    start: list[float]
    passing_of_time: list[float]
    channels: dict[str, list[float]]
    values: dict[str, float]

    @classmethod
    def of(cls, row: EngineExplanation) -> dict[str, Any]:
        """An explanation of the engine."""
        return cls.fill(
            row,
            time=row.row_time,
            start=row.start.tolist(),
            passing_of_time=row.time.tolist(),
            channels={name: part.tolist() for name, part in row.events.items()},
        )


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


class ForecastOf(_Body):
    """One thing that is forecast: a channel, so far ahead."""

    channel: str
    horizon: float


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
    horizon: float | None = None
    """Of time to an event: how far ahead the risk looks that is watched, and answered where no other is asked for"""
    horizons: list[float] | None = None
    """Horizons to choose from; any up to the last of `edges` may be asked for"""
    edges: list[float] | None = None
    """Where the bins of time ahead end, to which outputs belong"""
    forecasts: list[ForecastOf] | None = None
    """What is forecast, in the order of `classes`; `outputs` are the quantiles of each, at `levels`"""
    levels: list[float] | None = None
    interval_level: float | None = None
    """The share of labels that lie between `lower` and `upper`, measured on validation; a regression with intervals, or
    forecasts"""
    threshold: float | None
    alarm_policy: AlarmPolicy | None
    look_every: float | None
    """Seconds between two rounds of looks between rows; null where there are none"""
    time_unit: str
    unit_seconds: float
    """Seconds in a unit of time"""
    clock_speed: float
    tick: float
    silent_after: float
    lateness: float
    guarded: bool
    """Whether one needs a token here"""

    @classmethod
    def of(
        cls, engine: Engine, settings: ServeSettings, names: OutputNames, *, guarded: bool
    ) -> dict[str, Any]:
        """The model of an engine, and the settings a client must know."""
        units = settings.units or engine.units or [None] * len(engine.channels)
        ahead: dict[str, Any] = {}
        if engine.bins is not None and engine.horizon is not None:
            ahead = {
                "horizon": engine.horizon,
                "horizons": sorted({*engine.bins.usual_horizons, engine.horizon}),
                "edges": engine.bins.edges.tolist(),
            }
        if engine.forecasts is not None:
            ahead["forecasts"] = ForecastOf.table(
                channel=[channel for channel, _ in engine.forecasts],
                horizon=[horizon for _, horizon in engine.forecasts],
            )
            ahead["levels"] = list(LEVELS)
        if names.intervals is not None:
            ahead["interval_level"] = names.intervals.widest
        return cls.fill(
            settings,
            model=engine.model_hash,
            kind=engine.kind,
            channels=Channel.table(name=engine.channels, unit=units),
            static=list(engine.schema.features or settings.features),
            static_features=[
                StaticFeature.fill(
                    name=column.name,
                    kind="number" if column.categories is None else "category",
                    categories=None if column.categories is None else list(column.categories),
                )
                for column in engine.schema.static
            ],
            outputs=engine.outputs,
            classes=list(names.names or settings.classes),
            watched_output=engine.watched_output,
            threshold=None if engine.policy is None else engine.policy.threshold,
            alarm_policy=AlarmPolicy.of(engine.policy, settings.time_unit),
            look_every=settings.looks_every(engine.policy),
            silent_after=settings.silence,
            unit_seconds=TIME_UNITS[settings.time_unit],
            lateness=engine.settings.lateness,
            guarded=guarded,
            **ahead,
        )


class GivenUp(_Body):
    """An alarm that a target has not taken, and why; wall clock in seconds since 1970."""

    number: int
    attempts: int
    first: float
    error: str


class Webhook(_Body):
    """A target of alarms; `waiting` counts those it has not taken yet, `dead` are the newest that were given up."""

    name: str
    host: str
    waiting: int
    failing: list[GivenUp]
    dead: list[GivenUp]

    @classmethod
    def of(cls, webhooks: Deliverer, name: str) -> dict[str, Any]:
        """A target; of its address the host alone, for the rest may be a secret."""
        state = webhooks.deliveries[name]
        lists = {
            kind: [GivenUp.fill(one, number=number) for number, one in sorted(table.items())[-100:]]
            for kind, table in (("failing", state.failing), ("dead", state.dead))
        }
        host = urlsplit(webhooks.targets[name].url).hostname
        return cls.fill(name=name, host=host, waiting=webhooks.waiting(name), **lists)


class Webhooks(_Body):
    """Where alarms are sent."""

    targets: list[Webhook]


class Retried(_Body):
    """How many alarms are sent again."""

    alarms: int


class Reloaded(_Body):
    """What was wrong with files that were read again; nothing of these changed."""

    wrong: list[str]


class AuditLines(_Body):
    """Who changed what, when, by which request; `what` is "events" for the sum of what a client sent for a while."""

    lines: list[dict[str, Any]]


class Health(_Body):
    """It runs, or it is ready."""

    status: str


class NotReady(_Body):
    """Events cannot be taken, and why; `progress` from 0 to 1 while states are rebuilt."""

    status: str
    progress: float | None = None
    error: Error

    @classmethod
    def of(cls, problem: problems.Problem, **progress: float) -> dict[str, Any]:
        """Why events cannot be taken."""
        return cls.fill(status="not ready", **progress, **problem.as_json())
