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

Form = Literal["rows", "end", "grid", "random"]

ABBREVIATIONS = {
    "ms": "milliseconds", "s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days", "w": "weeks",
}  # fmt: skip


@dataclass(frozen=True)
class Queries:
    """Which times are asked about: after each row, at the end, on a grid, or drawn at random.

    >>> Queries.parse("every=30min", "hours")
    Queries(form='grid', every=0.5, number=0)
    >>> series = SeriesBatch.from_arrays([[0.0, 2.0], [1.0]], [[[1.0], [2.0]], [[3.0]]])
    >>> Queries.parse("every=1h", "hours").times(series, torch.tensor([2.0, 1.5]))
    tensor([[0., 1., 2.],
            [1., nan, nan]], dtype=torch.float64)
    """

    form: Form
    every: float = 0.0
    """Of a grid: from each stream's first row on, in the series' unit"""
    number: int = 0
    """At random: how many a stream"""

    @classmethod
    def parse(cls, text: str, time_unit: str) -> Queries:
        """Read "rows", "end", "every=1h", "every=0.5" (in the task's unit) or "random=16"."""
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
            f"query times are {text!r}: give rows, end, every=1h (any unit of time), or random=16."
        )

    def __str__(self) -> str:
        return {
            "grid": f"every={self.every:g}",
            "random": f"random={self.number}",
        }.get(self.form, self.form)

    def times(
        self, series: SeriesBatch, until: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Query times (stream, query) float64, rising, NaN behind a stream's last.

        Args:
            series: the streams.
            until: (stream,) how long each is followed.
            generator: of what is drawn at random, on the CPU.
        """
        times = series.times
        if self.form == "rows":
            return times.masked_fill(~series.real, torch.nan)
        last = times.gather(1, series.rows[:, None] - 1)
        if self.form == "end":
            return last
        first, span = times[:, :1], (until.to(times)[:, None] - times[:, :1]).clamp(min=0)
        if self.form == "random":
            drawn = torch.rand(len(series), self.number, dtype=torch.float64, generator=generator)
            return first + (drawn.to(times.device) * span).sort(1).values
        # A hair of tolerance: 3 times 0.1 is no more than 0.3.
        steps = (span / self.every * (1 + 1e-12)).floor()
        most = int(steps.max()) + 1
        if most * len(series) > 1e9:
            raise DataError(
                f"every={self.every:g} asks about {most:,} times of a stream: give a longer step."
            )
        place = torch.arange(most, dtype=torch.float64, device=times.device)
        grid = (first + self.every * place).minimum(until.to(times)[:, None].maximum(first))
        return grid.masked_fill(place > steps, torch.nan)


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
