"""Intervals around the numbers of a regression: as wide as it was wrong on streams it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np


class IntervalsError(ValueError):
    """Intervals that cannot be, or that a model does not have; the message names what is wrong."""


@dataclass(frozen=True)
class Intervals:
    """Split-conformal intervals: predicted number plus and minus a factor times the usual error of such numbers.

    Args:
        levels: shares of labels that intervals hold, such as .8 and .9.
        factors: (level, output).
        numbers: (output, point) predicted numbers, rising, at which the usual error is known.
        errors: (output, point) the usual error there; between points a straight line, beyond them that of the last.
        subjects: on how many the factors were measured.

    Raises:
        IntervalsError: a field that no intervals can have.

    >>> intervals = Intervals((0.8,), ((2.0,),), ((0.0, 10.0),), ((1.0, 3.0),), subjects=50)
    >>> lower, upper = intervals.bounds([[5.0], [20.0]], 0.8)
    >>> lower.tolist(), upper.tolist()
    ([[1.0], [14.0]], [[9.0], [26.0]])
    """

    levels: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...]
    numbers: tuple[tuple[float, ...], ...]
    errors: tuple[tuple[float, ...], ...]
    subjects: int

    def __post_init__(self) -> None:
        if not self.levels or not all(0 < level < 1 for level in self.levels):
            raise IntervalsError(f"levels are {self.levels}: give shares between 0 and 1.")
        shapes = [len(row) for row in self.numbers], [len(row) for row in self.errors]
        if len(self.factors) != len(self.levels) or shapes[0] != shapes[1] or 0 in shapes[0]:
            raise IntervalsError(
                "give a factor for each level, and as many errors as numbers of each output."
            )
        if any(len(row) != len(self.numbers) for row in self.factors):
            raise IntervalsError("give each level a factor for each output.")
        rows = (*self.factors, *self.numbers, *self.errors)
        if not all(np.isfinite(row).all() for row in rows):
            raise IntervalsError("factors, numbers and errors must be finite.")
        if any((np.asarray(row) < 0).any() for row in (*self.factors, *self.errors)):
            raise IntervalsError("factors and errors must be 0 or more.")
        if any((np.diff(row) <= 0).any() for row in self.numbers):
            raise IntervalsError("the numbers of an output must rise.")

    @property
    def outputs(self) -> int:
        return len(self.numbers)

    @property
    def widest(self) -> float:
        """The highest level."""
        return max(self.levels)

    def usual_errors(self, predicted: Any) -> np.ndarray:
        """The usual error of predicted numbers (..., output)."""
        predicted = np.asarray(predicted, np.float64)
        columns = [
            np.interp(predicted[..., output], self.numbers[output], self.errors[output])
            for output in range(self.outputs)
        ]
        return np.stack(columns, -1)

    def bounds(self, predicted: Any, level: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (..., output) around predicted numbers (..., output); level: default the widest.

        Raises:
            IntervalsError: there are none of this level.
        """
        level = self.widest if level is None else level
        if level not in self.levels:
            shown = ", ".join(f"{each:g}" for each in self.levels)
            raise IntervalsError(f"there are no intervals of level {level:g}: choose {shown}.")
        predicted = np.asarray(predicted, np.float64)
        half = self.usual_errors(predicted) * np.array(self.factors[self.levels.index(level)])
        return predicted - half, predicted + half

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `as_json` gave; IntervalsError says what is missing, unknown or wrong."""
        names = {one.name for one in fields(cls)}
        if not isinstance(content, Mapping) or content.keys() != names:
            raise IntervalsError(f"intervals have the fields {', '.join(sorted(names))}.")
        try:
            tables = {
                name: tuple(tuple(float(one) for one in row) for row in content[name])
                for name in ("factors", "numbers", "errors")
            }
            levels = tuple(float(level) for level in content["levels"])
            subjects = int(content["subjects"])
        except (TypeError, ValueError) as error:
            raise IntervalsError(f"intervals must be lists of numbers ({error}).") from error
        return cls(levels=levels, subjects=subjects, **tables)
