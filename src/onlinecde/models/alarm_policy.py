"""When a watched number raises an alarm: the rule, the times it is looked at, and the rule over a whole grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Self

import numpy as np

from onlinecde.models.readout import RULES
from onlinecde.models.readout import watched as numbers_watched
from onlinecde.series import TIME_UNITS


class AlarmPolicyError(ValueError):
    """A policy that cannot be, or cannot be read; the message names the field and what to give."""


@dataclass(frozen=True)
class AlarmPolicy:
    """A stream is alarmed when the number watched is at `threshold` or above, once until it fell below `rearm`.

    The number is looked at after each of the stream's rows and, where `every` is given, at the multiples of it in the
    stream's own time. An alarm that is due within `quiet` after the one before waits until that is over, and rises
    then if the number is still at the threshold.

    Args:
        threshold: a probability, or a number of a regression.
        rearm: the number must have been below this before another alarm; default: the threshold. Above the threshold,
            as 1 of a probability, an alarm is repeated after each quiet time as long as the number stays there.
        quiet: time after an alarm in which no other is raised for that stream, in the model's unit.
        every: time between looks between rows; None: at rows alone.
        output: the output that is watched.
        horizon: of time to an event, how far ahead the risk looks that is watched; default: as the first answer.
        chosen: how the policy was chosen: budget, guarantee in words, numbers of the validation; plain values.

    Raises:
        AlarmPolicyError: a field that no policy can have.

    >>> policy = AlarmPolicy(0.3, rearm=0.2, quiet=2.0, every=0.5)
    >>> times, real = policy.looks([[0.0, 0.7]], until=[2.0])
    >>> times.tolist()
    [[0.0, 0.5, 0.7, 1.0, 1.5, 2.0]]
    >>> policy.alarm_times([[0.1, 0.3, 0.1, 0.4, 0.4, 0.4]], times, real).tolist()
    [[False, True, False, False, False, False]]
    >>> policy.words("hours")
    'alarms at 0.3, again after falling below 0.2, at most one in 2 hours; looked at every 30 minutes'
    """

    threshold: float
    rearm: float = None  # pyright: ignore[reportAssignmentType]
    quiet: float = 0.0
    every: float | None = None
    output: int = 0
    horizon: float | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.rearm is None:
            object.__setattr__(self, "rearm", self.threshold)
        for name in ("threshold", "rearm", "quiet", "every", "horizon"):
            number = getattr(self, name)
            if number is None and name in ("every", "horizon"):
                continue
            plain = isinstance(number, int | float | np.integer | np.floating)
            if isinstance(number, bool) or not plain or not isfinite(number):
                more = ", for a classifier a probability from 0 to 1" if name == "threshold" else ""
                raise AlarmPolicyError(f"{name} is {number!r}: give a finite number{more}.")
            object.__setattr__(self, name, float(number))
        if self.quiet < 0:
            raise AlarmPolicyError(f"quiet is {self.quiet:g}: give a time of 0 or more.")
        if self.repeated and not self.quiet:
            raise AlarmPolicyError(
                f"rearm is {self.rearm:g}, above the threshold {self.threshold:g}, which repeats an alarm whenever the "
                "quiet time is over: give a quiet time too, or the threshold or less."
            )
        if self.every is not None and self.every <= 0:
            raise AlarmPolicyError(
                f"every is {self.every:g}: give a time above 0, or none for looks at rows alone."
            )
        if self.horizon is not None and self.horizon <= 0:
            raise AlarmPolicyError(f"horizon is {self.horizon:g}: give a time above 0, or none.")
        whole = isinstance(self.output, int | np.integer) and not isinstance(self.output, bool)
        if not whole or self.output < 0:
            raise AlarmPolicyError(
                f"output is {self.output!r}: give the position of an output, 0 or more."
            )
        if not isinstance(self.chosen, Mapping):
            raise AlarmPolicyError("chosen is not a mapping: give names and plain values.")
        object.__setattr__(self, "output", int(self.output))
        object.__setattr__(self, "chosen", dict(self.chosen))

    @property
    def repeated(self) -> bool:
        """Whether an alarm comes again after the quiet time though the number has not fallen."""
        return self.rearm > self.threshold

    def check_outputs(self, outputs: int, kind: str) -> None:
        """Raise AlarmPolicyError for a policy that a model of this kind can never meet, or never be below."""
        waiting = kind == "time-to-event"
        if self.horizon is not None and not waiting:
            raise AlarmPolicyError(
                f"horizon is {self.horizon:g}: that is for models of time to an event; leave it out."
            )
        outputs = numbers_watched(kind, outputs)
        if self.output >= outputs:
            raise AlarmPolicyError(
                f"output is {self.output}: the model has no such output; it has {outputs}."
            )
        if not RULES[kind].numbers and not 0 <= self.threshold <= 1:
            raise AlarmPolicyError(
                f"threshold is {self.threshold:g}: give a probability from 0 to 1, or none."
            )

    def raised(
        self, watched: Any, armed: Any, last_alarm: Any, times: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply the rule to one look at many streams. Looks at times before a stream's newest alarm change nothing.

        Args:
            watched: (stream,) the number now; NaN where there is none, which changes nothing.
            armed: (stream,) whether an alarm may be raised again; True before the first.
            last_alarm: (stream,) time of the newest alarm, -inf before the first.
            times: (stream,) of the look.

        Returns:
            Whether each stream is alarmed, and `armed` and `last_alarm` after the look; each (stream,).
        """
        watched, times = np.asarray(watched, np.float64), np.asarray(times, np.float64)
        last_alarm = np.asarray(last_alarm, np.float64)
        armed = np.asarray(armed, bool) | ((watched < self.rearm) & (times >= last_alarm))
        # Times on a grid lie a rounding apart from where the quiet time ends on it.
        over = times - last_alarm >= self.quiet - 4 * np.spacing(np.abs(times))
        mask = armed & (watched >= self.threshold) & over & (times > last_alarm)
        return mask, armed & ~mask, np.where(mask, times, last_alarm)

    def alarm_times(self, watched: Any, times: Any, real: Any) -> np.ndarray:
        """Which looks of whole streams raise an alarm; the same rule as live, look by look.

        Args:
            watched: (stream, look).
            times: (stream, look), each stream's in order.
            real: (stream, look), False for padding.

        Returns:
            (stream, look) bool.
        """
        watched = np.where(real, np.asarray(watched, np.float64), np.nan)
        times = np.asarray(times, np.float64)
        alarms = np.zeros(watched.shape, bool)
        armed, last_alarm = np.ones(len(watched), bool), np.full(len(watched), -np.inf)
        for look in range(watched.shape[1]):
            alarms[:, look], armed, last_alarm = self.raised(
                watched[:, look], armed, last_alarm, times[:, look]
            )
        return alarms

    def grid(self, after: Any, until: Any) -> tuple[np.ndarray, np.ndarray]:
        """Numbers k of the looks between rows, at times `k * every`: the first, and how many, (stream,) each.

        Args:
            after: (stream,) a look lies after this time.
            until: (stream,) and not after this one.
        """
        after, until = np.asarray(after, np.float64), np.asarray(until, np.float64)
        if self.every is None:
            return np.zeros(after.shape, np.int64), np.zeros(after.shape, np.int64)
        first, last = np.floor(after / self.every), np.ceil(until / self.every)
        for _ in range(2):  # a quotient may be rounded to the whole number beside
            first += first * self.every <= after
            last -= last * self.every > until
        count = np.maximum(last - first + 1, 0)
        return first.astype(np.int64), count.astype(np.int64)

    def looks(
        self, rows: Any, until: Any, *, real: Any = None, silent_after: float = np.inf
    ) -> tuple[np.ndarray, np.ndarray]:
        """All times at which streams are looked at: their rows and, from the first on, the grid between and after.

        Args:
            rows: (stream, row) times, in order.
            until: (stream,) the last time looked at where no row comes.
            real: (stream, row), False for padding; default: all.
            silent_after: a stream is not looked at longer than this after a row.

        Returns:
            Times (stream, look) in order, padded with the last, and (stream, look) whether they are real.
        """
        rows = np.asarray(rows, np.float64)
        real = np.ones(rows.shape, bool) if real is None else np.asarray(real, bool)
        until = np.asarray(until, np.float64)
        every: list[np.ndarray] = []
        for own, kept, end in zip(rows, real, until, strict=True):
            own = own[kept]
            parts = [own]
            if len(own) and self.every is not None:
                ends = np.append(own[1:], end)
                first, count = self.grid(own, np.minimum(ends, own + silent_after))
                stop = np.cumsum(count)
                number = np.arange(stop[-1]) - np.repeat(stop - count, count)
                parts.append((np.repeat(first, count) + number) * self.every)
            every.append(np.unique(np.concatenate(parts)))
        wide = max((len(one) for one in every), default=0)
        times, present = np.zeros((len(rows), wide)), np.zeros((len(rows), wide), bool)
        for place, one in enumerate(every):
            times[place, : len(one)], present[place, : len(one)] = one, True
            if len(one):
                times[place, len(one) :] = one[-1]
        return times, present

    def words(self, time_unit: str | None = None) -> str:
        """The policy in words; time_unit: the model's, one of `TIME_UNITS`."""
        ahead = "" if self.horizon is None else f" within {_span(self.horizon, time_unit)}"
        said = f"alarms at {self.threshold:.4g}{ahead}"
        if self.repeated:
            said += f", again every {_span(self.quiet, time_unit)} while there"
        elif self.rearm != self.threshold:
            said += f", again after falling below {self.rearm:.4g}"
        if self.quiet and not self.repeated:
            said += f", at most one in {_span(self.quiet, time_unit)}"
        if self.every is None:
            return f"{said}; looked at when a row comes"
        return f"{said}; looked at every {_span(self.every, time_unit)}"

    def as_json(self) -> dict[str, Any]:
        """The policy as plain values; `from_json` reads it."""
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.horizon is None:
            del content["horizon"]
        return content | {"chosen": dict(self.chosen)}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `as_json` gave; AlarmPolicyError names the field that is missing, unknown or wrong.

        >>> policy = AlarmPolicy(0.3, quiet=2.0, chosen={"budget": 0.5})
        >>> AlarmPolicy.from_json(policy.as_json()) == policy
        True
        """
        if not isinstance(content, Mapping):
            raise AlarmPolicyError(
                "an alarm policy is a mapping of fields: threshold, rearm, quiet, every, output, horizon, "
                "chosen."
            )
        known = [f.name for f in fields(cls)]
        if strange := [name for name in content if name not in known]:
            raise AlarmPolicyError(
                f"an alarm policy has no field {strange[0]!r}: it has {', '.join(known)}."
            )
        if "threshold" not in content:
            raise AlarmPolicyError("an alarm policy needs a threshold: give one.")
        return cls(**content)


_UNITS = ("days", "hours", "minutes", "seconds", "milliseconds")


def _span(span: float, time_unit: str | None) -> str:
    """A span of time in the largest unit in which it is a round number, as `4 hours`."""
    if time_unit is None:
        return f"{span:g} units of time"
    seconds = span * TIME_UNITS[time_unit]
    for unit in _UNITS:
        amount = seconds / TIME_UNITS[unit]
        if amount >= 1 and abs(amount - round(amount, 1)) < 1e-6 * amount:
            return f"{amount:g} {unit[:-1] if round(amount, 6) == 1 else unit}"
    return f"{span:g} {time_unit}"
