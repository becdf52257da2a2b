"""Query times: when a model is asked about each stream, for training and for judging."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from onlinecde.data.errors import DataError
from onlinecde.series import TIME_UNITS, SeriesBatch

Form = Literal["rows", "end", "grid", "random", "several"]

ABBREVIATIONS = {
    "ms": "milliseconds", "s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days", "w": "weeks",
}  # fmt: skip

CLOCK_STEPS = 48
"""Times of the clock at which the median stream is judged, about."""


@dataclass(frozen=True)
class Queries:
    """Which times are asked about: after each row, at the end, on a grid, or drawn at random.

    >>> str(Queries.parse("every=30min", "hours"))
    'every=0.5'
    >>> series = SeriesBatch.from_arrays([[0.0, 2.0], [1.0]], [[[1.0], [2.0]], [[3.0]]])
    >>> Queries.parse("every=1h", "hours").times(series, torch.tensor([2.0, 1.5]))
    tensor([[0., 1., 2.],
            [1., nan, nan]], dtype=torch.float64)
    """

    form: Form
    every: float = 0.0
    """Of a grid: from each stream's first row on, in the series' unit"""
    number: int = 0
    """At random: how many a stream on average, in proportion to how long each is followed: every hour counts alike"""
    parts: tuple[Queries, ...] = ()
    """Of several: all times of each, once"""

    @classmethod
    def parse(cls, text: str, time_unit: str) -> Queries:
        """Read "rows", "end", "every=1h", "every=0.5" (in the task's unit), "random=16", or several with "+"."""
        # Behind a number's exponent, as in 1e+3, stands no name.
        names = re.split(r"\+(?=[a-z])", text)
        if len(names) > 1:
            return cls("several", parts=tuple(cls.parse(one, time_unit) for one in names))
        name, _, value = text.partition("=")
        if name in ("rows", "end") and not value:
            return cls(name)  # pyright: ignore[reportArgumentType]
        if name == "every":
            return cls("grid", every=duration(value, time_unit))
        if name == "random":
            if not value.isdigit() or int(value) < 1:
                raise DataError(
                    f"random={value}: give how many times are drawn a stream, 1 or more."
                )
            return cls("random", number=int(value))
        raise DataError(
            f"query times are {text!r}: give rows, end, every=1h (any unit of time), random=16, or several, as "
            "rows+random=16."
        )

    def __str__(self) -> str:
        return {
            "grid": f"every={self.every:g}",
            "random": f"random={self.number}",
            "several": "+".join(map(str, self.parts)),
        }.get(self.form, self.form)

    def in_words(self, time_unit: str) -> str:
        """The same for people.

        >>> Queries.parse("rows+every=1h", "hours").in_words("hours")
        'at rows and every hour'
        """
        if self.form == "several":
            return " and ".join(part.in_words(time_unit) for part in self.parts)
        step = time_unit.removesuffix("s") if self.every == 1 else f"{self.every:g} {time_unit}"
        return {
            "rows": "at rows",
            "end": "at the end",
            "grid": f"every {step}",
            "random": f"at {self.number} random times a stream",
        }[self.form]

    @property
    def drawn(self) -> bool:
        """Whether any of the times is drawn at random."""
        return self.form == "random" or any(part.drawn for part in self.parts)

    def times(
        self, series: SeriesBatch, until: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Query times (stream, query) float64, rising, NaN behind a stream's last.

        Args:
            series: the streams.
            until: (stream,) how long each is followed.
            generator: of what is drawn at random, on the CPU.
        """
        if self.form == "several":
            every = [part.times(series, until, generator) for part in self.parts]
            return rising(torch.cat(every, 1))
        times = series.times
        if self.form == "rows":
            return times.masked_fill(~series.real, torch.nan)
        last = times.gather(1, series.rows[:, None] - 1)
        if self.form == "end":
            return last
        first = times[:, :1]
        end = until.to(times)[:, None].maximum(first)
        span = end - first
        if self.form == "random":
            shares = _shares(self.number, span.cpu(), generator).to(times.device)
            return rising((first + shares * span).minimum(end))
        # A hair of tolerance: 3 times 0.1 is no more than 0.3.
        steps = (span / self.every * (1 + 1e-12)).floor()
        most = int(steps.max()) + 1
        if most * len(series) > 1e9:
            raise DataError(
                f"every={self.every:g} asks about {most:,} times of a stream: give a longer step."
            )
        place = torch.arange(most, dtype=torch.float64, device=times.device)
        grid = (first + self.every * place).minimum(end)
        return grid.masked_fill(place > steps, torch.nan)


def _shares(number: int, span: Tensor, generator: torch.Generator | None) -> Tensor:
    """Shares of the spans (stream, 1), (stream, query): `number` a stream on average, NaN behind a stream's last."""
    every = torch.isfinite(span).all() and bool(span.sum() > 0)
    mean = number * span / span.mean() if every else torch.full_like(span, number)
    # Rounded by lot, so that short streams are asked about neither more nor less often than they should be.
    lot = torch.rand(len(span), 1, dtype=torch.float64, generator=generator)
    count = (mean + lot).floor()
    drawn = torch.rand(
        len(span), max(1, int(count.max())), dtype=torch.float64, generator=generator
    )
    return drawn.masked_fill(torch.arange(drawn.shape[1]) >= count, torch.nan)


def rising(times: Tensor) -> Tensor:
    """Times (stream, query) in order, each once, NaN behind a stream's last.

    >>> rising(torch.tensor([[3.0, torch.nan, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]]))
    tensor([[1., 3.],
            [2., nan]])
    """
    times = times.sort(1).values
    times[:, 1:] = times[:, 1:].masked_fill(times.diff(dim=1) == 0, torch.nan)
    times = times.sort(1).values
    return times[:, : max(1, int((~times.isnan()).sum(1).max()))]


def clock_grid(series: SeriesBatch, until: Tensor) -> Queries:
    """The grid on which streams are judged by the clock where nobody names one: a plain step, about 48 a stream.

    The step is the least of 1, 2 and 5 times a power of ten that is at least a 48th of the time for which the
    median stream is followed.

    >>> series = SeriesBatch.from_arrays([[0.0, 40.0]], [[[1.0], [2.0]]])
    >>> str(clock_grid(series, torch.tensor([41.0])))
    'every=1'
    """
    spans = until.to(series.times) - series.times[:, 0]
    spans = spans[torch.isfinite(spans) & (spans > 0)]
    if not len(spans):
        raise DataError(
            "no stream is followed beyond its first row: there is no clock to judge by."
        )
    size = float(spans.median()) / CLOCK_STEPS
    tens = 10.0 ** math.floor(math.log10(size))
    step = min(plain * tens for plain in (1, 2, 5, 10) if plain * tens >= size * (1 - 1e-9))
    return Queries("grid", every=float(f"{step:.12g}"))


def duration(text: str, time_unit: str) -> float:
    """A length of time in a unit: "90min" in hours is 1.5; a bare number is in the unit already.

    >>> duration("90min", "hours")
    1.5
    """
    parts = re.fullmatch(r"\s*([0-9.eE+-]+)\s*([A-Za-z]*)\s*", text)
    try:
        size = float(parts[1]) if parts else math.nan
    except ValueError:
        size = math.nan
    if not (math.isfinite(size) and size > 0):
        raise DataError(f"{text!r} is no length of time: give one above 0, such as 1h or 30min.")
    assert parts is not None
    name = ABBREVIATIONS.get(parts[2], parts[2])
    if not name or name == time_unit:
        return size
    known: Any = TIME_UNITS
    if name not in known or time_unit not in known:
        raise DataError(
            f"{text!r}: the series are in {time_unit}, and {parts[2]!r} cannot be turned into it: give a bare "
            f"number of {time_unit}, or one of {', '.join(ABBREVIATIONS)}."
        )
    return size * known[name] / known[time_unit]
