"""Lines of some streams, all that there are of each -> their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import DataError
from onlinecde.data.table_files import LINE, Table
from onlinecde.data.table_ids import places
from onlinecde.data.table_series import TableSeries, series_from_table
from onlinecde.data.table_times import Clock
from onlinecde.models.asking import ask
from onlinecde.models.explain import in_eval_mode
from onlinecde.scoring.columns import Columns
from onlinecde.scoring.fitted import FittedModel
from onlinecde.scoring.query import Query
from onlinecde.series import TIME_UNITS, Schema, SeriesBatch, SeriesError
from onlinecde.series.static_columns import as_category, is_missing

if TYPE_CHECKING:
    import polars as pl

POSITION = "__position__"
"""Where in the input a score belongs: the first line of its stream, or the line that asks for it"""
CELLS = 1 << 22
"""Cells (stream, line, channel) of streams that are made into series together"""
ROWS = 1 << 15
"""Rows, or query times, of streams that go through a model together, padding included"""
STREAMS = 256
"""and so many streams at most"""


_NUMBERS = ("streams", "without_static", "unanswered")


@dataclass(eq=False)
class Scorer:
    """Asks a model about streams, and counts what is worth saying of them."""

    fitted: FittedModel
    columns: Columns
    query: Query
    origins: Mapping[str, str]
    """What the tables are called, by role: events, static, asked"""
    strangers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """In how many streams a static feature has a category that the model does not know"""
    streams: int = 0
    without_static: int = 0
    """Streams without a line in the table of static features"""
    unanswered: int = 0
    """Query times of a table before which nothing was observed"""

    def scores(self, lines: Mapping[str, pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Scores of streams, a frame for some of them; lines by role, as `ChunkReader` makes them."""
        if self.query.form == "table":
            yield self._without_events(lines)
        if lines["events"].height:
            for group in self._groups(lines):
                yield from self._scores_of(group)

    @property
    def counts(self) -> dict[str, Any]:
        """What was counted, as plain values."""
        strangers = [[*key, count] for key, count in self.strangers.items()]
        return {"strangers": strangers} | {name: getattr(self, name) for name in _NUMBERS}

    def count_on(self, counts: Mapping[str, Any]) -> None:
        """Go on from what another one counted."""
        self.strangers = Counter({(name, text): n for name, text, n in counts["strangers"]})
        for name in _NUMBERS:
            setattr(self, name, counts[name])

    def notes(self) -> list[str]:
        """What was counted, in words."""
        notes = []
        known = {c.name: c.categories or () for c in self.fitted.schema.static}
        for (name, category), count in self.strangers.most_common(10):
            notes.append(
                f"static feature '{name}' is {category[:40]!r} in {count} stream{'s' * (count > 1)}, and the model "
                f"knows {', '.join(known[name][:10]) or 'none'}: taken as missing"
            )
        if self.without_static:
            notes.append(
                f"{self.without_static} of {self.streams} streams have no line in {self.origins['static']}"
            )
        if self.unanswered:
            notes.append(
                f"{self.unanswered} lines of {self.origins['asked']} ask before anything was observed of their "
                "stream: their scores are empty"
            )
        return notes

    def _groups(self, lines: Mapping[str, pl.DataFrame]) -> Iterator[dict[str, pl.DataFrame]]:
        """The same lines, those of some streams of like length at a time."""
        import polars as pl

        stream, events = self.columns.stream, lines["events"]
        counts = events.group_by(stream, maintain_order=True).len().sort("len", maintain_order=True)
        most = max(1, CELLS // len(self.fitted.schema.channels))
        group = _together(counts["len"].to_numpy(), most, len(counts))
        counts = counts.select(stream, pl.Series("__group__", group))
        parts = {
            role: frame.join(counts, on=stream, maintain_order="left").partition_by(
                "__group__", as_dict=True, include_key=False
            )
            for role, frame in lines.items()
        }
        for number in range(int(group[-1]) + 1):
            yield {role: parts[role].get((number,), lines[role].clear()) for role in lines}

    def _scores_of(self, lines: Mapping[str, pl.DataFrame]) -> Iterator[pl.DataFrame]:
        tables = {role: Table(frame, self.origins[role]) for role, frame in lines.items()}
        read = self._read(tables)
        series = self._under_schema(read)
        self.streams += len(series)
        if "static" in tables:
            known = places(tables["static"], self.columns.stream, series).drop_nulls().n_unique()
            self.without_static += len(series) - known
        if self.query.form == "table":
            asked, early = self._asked_lines(tables["asked"], read, series)
            yield self._unanswered(early)
        else:
            asked = None
        begins = self._first_lines(lines["events"], series)
        rows = series.rows.numpy()
        order = np.argsort(rows, kind="stable")
        batch = _together(rows[order], ROWS, STREAMS)
        for number in range(int(batch[-1]) + 1):
            at = order[batch == number]
            part = series[at.tolist()]
            if asked is None:
                times = self._times(part)
                positions = np.broadcast_to(begins[at][:, None], times.shape)
            else:
                times, positions = _padded(asked, at)
            yield from self._answered(part, read.clock, times, positions)

    def _read(self, tables: Mapping[str, Table]) -> TableSeries:
        c = self.columns
        return series_from_table(
            tables["events"],
            stream=c.stream,
            time=c.time,
            channel=c.channel,
            value=c.value,
            origin=c.origin,
            static=tables.get("static"),
            time_unit=self.fitted.time_unit,
            duplicates=c.duplicates,
            schema=self.fitted.schema,
            whole=False,
        )

    def _under_schema(self, read: TableSeries) -> SeriesBatch:
        """The series as the model takes them: each stream by itself, whoever else is there."""
        schema, count = self.fitted.schema, len(read.series)
        series, _ = Schema(schema.channels).align(read.series)
        if not schema.static:
            return series
        for column in schema.static:
            if column.categories is not None and column.name in read.static:
                texts = (as_category(c) for c in read.static[column.name] if not is_missing(c))
                strange = (text for text in texts if text not in column.categories)
                self.strangers.update((column.name, text) for text in strange)
        try:
            table, _ = schema.encode(read.static, series.streams)
        except SeriesError as error:
            raise DataError(f"{read.facts.origin}: {error}") from error
        static = torch.from_numpy(table.reshape(count, -1)).to(series.values)
        return replace(series, static=static, features=schema.features, raw_static=None)

    def _first_lines(self, events: pl.DataFrame, series: SeriesBatch) -> np.ndarray:
        """(stream,): the first line of each."""
        import polars as pl

        first = dict(events.group_by(self.columns.stream).agg(pl.col(LINE).min()).iter_rows())
        return np.array([first[str(name)] for name in series.streams])

    def _times(self, part: SeriesBatch) -> Tensor:
        """Query times (stream, query), NaN behind a stream's last."""
        if self.query.form == "rows":
            return part.times.masked_fill(~part.real, torch.nan)
        return self.query.times(part)

    def _answered(
        self, part: SeriesBatch, clock: Clock, times: Tensor, positions: np.ndarray
    ) -> Iterator[pl.DataFrame]:
        """Scores at query times (stream, query), of as many at a time as there is room for."""
        wide = max(1, times.shape[1])
        for start in range(0, len(part), size := max(1, ROWS // wide)):
            some = slice(start, start + size)
            for left in range(0, wide, ROWS):
                asked, where = times[some, left : left + ROWS], positions[some, left : left + ROWS]
                real = (~asked.isnan()).numpy()
                if not real.any():
                    continue
                streams = part[list(range(len(part))[some])]
                scores = self._scores_at(streams, asked)
                names = np.array([str(name) for name in streams.streams], object)[
                    np.nonzero(real)[0]
                ]
                shown = _on_clock(clock, names, asked.numpy()[real])
                yield self._frame(where[real], names, shown, scores[real], clock)

    def _scores_at(self, streams: SeriesBatch, times: Tensor) -> np.ndarray:
        """What the model says at query times (stream, query), (stream, query, column)."""
        model, form = self.fitted.model, self.query.form
        batch = model.prepare(streams.to(model.device))
        with torch.no_grad(), in_eval_mode(model):
            asked = times.to(model.device) if self.query.between_rows else None
            outputs = ask(model, batch, asked, final=form == "end")
        if form == "end":
            outputs = outputs[:, None]
        return self.fitted.scores(outputs.cpu()[:, : times.shape[1]]).numpy()

    def _asked_lines(
        self, table: Table, read: TableSeries, series: SeriesBatch
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Lines of a table of query times: those that have an answer, and those that come too early."""
        import polars as pl

        if not table.frame.height:
            return pl.DataFrame({"place": [], "t": [], LINE: []}), table.frame
        stream, time = self.columns.stream, self.columns.time
        place = places(table, stream, series)
        t = read.clock.read(table, time, table.keys(stream, "stream"), "query time")
        first = pl.Series(series.times[:, 0].numpy())[place]
        lines = table.frame.with_columns(place.alias("place"), t.alias("t"))
        return lines.filter(t >= first).sort("place", "t"), table.frame.filter(t < first)

    def _without_events(self, lines: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        stream = self.columns.stream
        return self._unanswered(lines["asked"].join(lines["events"], on=stream, how="anti"))

    def _unanswered(self, asked: pl.DataFrame) -> pl.DataFrame:
        """Empty scores for lines that ask about what is not known yet."""
        import polars as pl

        self.unanswered += asked.height
        return asked.select(
            pl.col(LINE).alias(POSITION),
            pl.col(self.columns.stream).alias("stream"),
            pl.col(self.columns.time).alias("time"),
            *(pl.lit(None, pl.Float64).alias(name) for name in self.fitted.score_columns),
        )

    def _frame(
        self,
        positions: np.ndarray,
        names: np.ndarray,
        times: np.ndarray,
        scores: np.ndarray,
        clock: Clock,
    ) -> pl.DataFrame:
        """Scores (line, column) of streams at times."""
        import polars as pl

        time = pl.Series(times)
        if clock.form == "durations":
            time = time.cast(pl.Duration("us"))
        elif clock.form != "numbers":
            zone = "UTC" if clock.form == "timestamps with a time zone" else None
            time = time.cast(pl.Datetime("us", zone))
        named = {name: scores[:, place] for place, name in enumerate(self.fitted.score_columns)}
        return pl.DataFrame(
            {POSITION: positions, "stream": names.tolist(), "time": time, **named},
            schema_overrides={"stream": pl.String},
        )


def _on_clock(clock: Clock, names: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Times as the tables have them, of streams' own times (line,); timestamps in microseconds."""
    begins = np.array([clock.origins.get(name, 0.0) for name in names.tolist()])
    if clock.form == "numbers":
        return times + begins if clock.origins else times
    # Each rounded by itself: seconds since 1970 leave no room for a sum.
    seconds = times * TIME_UNITS[clock.unit]
    return np.round(begins * 1e6).astype(np.int64) + np.round(seconds * 1e6).astype(np.int64)


def _padded(asked: pl.DataFrame, streams: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """Query times and the lines they stand in, (stream, query), of lines in order of place and time."""
    place = asked["place"].to_numpy()
    counts = np.searchsorted(place, streams, "right") - (begins := np.searchsorted(place, streams))
    column = np.arange(max(1, counts.max(initial=0)))
    real = column < counts[:, None]
    at = np.where(real, begins[:, None] + column, 0)
    if not asked.height:
        return torch.full(at.shape, torch.nan, dtype=torch.float64), at
    times = np.where(real, asked["t"].to_numpy()[at], np.nan)
    return torch.from_numpy(times), asked[LINE].to_numpy()[at]


def _together(lengths: np.ndarray, most: int, streams: int) -> np.ndarray:
    """(stream,) the group of each of streams in order of length, so that padded they have `most` rows or fewer.

    >>> _together(np.array([1, 2, 3, 9]), 6, 10).tolist()
    [0, 0, 1, 2]
    """
    group, number, begin = np.zeros(len(lengths), np.int64), 0, 0
    for place, length in enumerate(lengths.tolist()):
        if place > begin and (length * (place - begin + 1) > most or place - begin >= streams):
            number, begin = number + 1, place
        group[place] = number
    return group
