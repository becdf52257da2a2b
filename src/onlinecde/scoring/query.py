"""When a model is asked about each stream: after its rows, at its end, on a grid, or at times of a table."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onlinecde.data import DataError, Queries
from onlinecde.data.queries import duration
from onlinecde.series import SeriesBatch


@dataclass(frozen=True)
class Query:
    """`queries`, or the times of a table where they are None; a grid ends at `until`.

    >>> query = Query.parse("every=1h", "+2h", "hours")
    >>> series = SeriesBatch.from_arrays([[0.0, 1.5]], [[[1.0], [2.0]]])
    >>> query.times(series).tolist()
    [[0.0, 1.0, 2.0, 3.0]]
    """

    queries: Queries | None
    table: Any = None
    until: float | None = None
    """Time of the grid's end, or with `beyond` how long after a stream's last row; None: that row"""
    beyond: bool = False

    @classmethod
    def parse(cls, at: Any, until: str | None, time_unit: str) -> Query:
        """Read "rows", "end", "every=1h", several with "+"; anything else is a table, as "table=FILE" or as it is."""
        text = at if isinstance(at, str) else None
        queries = None
        if text is not None and re.match(r"(rows|end|every=.*|random=.*)(\+[a-z].*)?$", text):
            queries = Queries.parse(text, time_unit)
            if "random" in {queries.form, *(part.form for part in queries.parts)}:
                raise DataError(
                    "random times are for training: give rows, end, every=1h, or a table."
                )
        if until is not None and (queries is None or queries.form != "grid"):
            raise DataError("--until is the end of a grid: give it with --at every=1h.")
        if queries is None:
            table = at
            if text is not None:
                table = Path(text.removeprefix("table="))
            if isinstance(table, (str, os.PathLike)) and not Path(table).exists():
                raise DataError(
                    f"query times are {str(at)!r}: give rows, end, every=1h (any unit of time), or a table that "
                    "has the stream and time columns."
                )
            return cls(None, table)
        if until is None:
            return cls(queries)
        after = until.strip().removeprefix("+")
        return cls(queries, until=duration(after, time_unit), beyond=after.strip() != until.strip())

    @property
    def form(self) -> str:
        """ "rows", "end", "grid", "several" of these, or "table"."""
        return "table" if self.queries is None else self.queries.form

    @property
    def between_rows(self) -> bool:
        """Whether it asks at times at which a stream need not have a row."""
        return self.form not in ("rows", "end")

    def times(self, series: SeriesBatch) -> Tensor:
        """Query times (stream, query) float64, rising, NaN behind a stream's last; not of a table."""
        assert self.queries is not None
        last = series.times.gather(1, series.rows[:, None] - 1)[:, 0]
        if self.until is None:
            until = last
        elif self.beyond:
            until = last + self.until
        else:
            until = torch.full_like(last, self.until)
        return self.queries.times(series, until)

    def as_json(self) -> dict[str, Any]:
        """Plain values that tell two queries apart; a table is known by its own fingerprint."""
        return {"at": str(self.queries or "table"), "until": self.until, "beyond": self.beyond}
