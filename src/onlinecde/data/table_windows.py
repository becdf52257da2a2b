"""Long streams cut into windows of one length, each a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onlinecde.data.errors import DataError
from onlinecde.data.label_specs import Labels, RowLabels, StreamLabels, TimeLabels
from onlinecde.data.queries import duration
from onlinecde.data.table_files import Table, read_table
from onlinecde.data.table_times import raw_times
from onlinecde.series import TIME_UNITS

if TYPE_CHECKING:
    import polars as pl

START = "__start__"
"""Column of the events of windows: when each starts, in seconds or, of times that are numbers, in their unit"""

WINDOW = "{}, window {}"
"""What a window is called: its stream and its number, from 1 on."""


@dataclass(frozen=True)
class Windows:
    """How the streams of a table are cut: from each stream's first event on."""

    stream: str
    size: float
    """In seconds where times are timestamps, else in the table's unit"""
    starts: pl.DataFrame
    """`stream` as text, and `start`, its first event"""
    numbers: bool

    @classmethod
    def of(cls, own: Table, stream: str, time: str, size: str, time_unit: str) -> Windows:
        """Windows of a length such as "7d" along a table of events."""
        import polars as pl

        raw, form = raw_times(own, time, "time")
        length = duration(size, time_unit)
        seconds = 1.0 if form == "numbers" else TIME_UNITS[time_unit]
        names = own.keys(stream, "stream").cast(pl.String)
        starts = pl.DataFrame({"stream": names, "start": raw}).group_by("stream").min()
        return cls(stream, length * seconds, starts, form == "numbers")

    def cut(self, table: Table, time: str) -> Table:
        """A table with a time in each line: its streams are windows, and numbers count from their window's start."""
        import polars as pl

        raw, _ = raw_times(table, time, "time")
        names = table.keys(self.stream, "stream").cast(pl.String)
        lines = pl.DataFrame({"stream": names, "at": raw}).join(
            self.starts, on="stream", how="left", maintain_order="left"
        )
        passed = lines["at"] - lines["start"].fill_null(lines["at"])
        number = (passed / self.size + 1e-9).floor().cast(pl.Int64)
        lines = lines.with_columns(number=number + 1)
        named = pl.format(WINDOW, pl.col("stream"), pl.col("number"))
        frame = table.frame.with_columns(lines.select(named.alias(self.stream)).to_series())
        if self.numbers:
            frame = frame.with_columns((passed - number * self.size).clip(0.0).alias(time))
        return replace(table, frame=frame)

    def spread(self, table: Table, windows: pl.Series) -> Table:
        """A table with a line a stream: a line for each of its windows, by their names."""
        import polars as pl

        of = pl.DataFrame({"window": windows.unique(maintain_order=True)})
        of = of.with_columns(
            pl.col("window").str.replace(r", window -?\d+$", "").alias(self.stream)
        )
        names = table.keys(self.stream, "stream").cast(pl.String)
        frame = table.frame.with_columns(names).join(of, on=self.stream, how="inner")
        return replace(table, frame=frame.drop(self.stream).rename({"window": self.stream}))


def in_windows(
    own: Table, static: Table | None, labels: Labels, stream: str, time: str, size: str, unit: str
) -> tuple[Table, Table | None, Labels]:
    """The tables of a task with windows of their streams in place of these."""
    if not isinstance(labels, StreamLabels | RowLabels | TimeLabels):
        raise DataError(
            "windows are for labels per stream, row or time: an interval, or the wait for an event, may lie in two."
        )
    import polars as pl

    windows = Windows.of(own, stream, time, size, unit)
    raw, _ = raw_times(own, time, "time")
    cut = windows.cut(own, time)
    first = pl.DataFrame({"window": cut.frame[stream], "at": raw}).select(
        pl.col("at").min().over("window").alias(START)
    )
    cut = replace(cut, frame=cut.frame.hstack(first))
    names = cut.frame[stream]
    static = None if static is None else windows.spread(static, names)
    given: Any = labels.table
    if given is None:
        if isinstance(labels, TimeLabels) and labels.time != time:
            raise DataError(
                f"windows: label times in column '{labels.time}' of the events: give them a table of their own."
            )
        return cut, static, labels
    table = read_table(given, what="table of labels")
    if isinstance(labels, StreamLabels):
        return cut, static, replace(labels, table=windows.spread(table, names))
    at = labels.time if isinstance(labels, TimeLabels) else time
    return cut, static, replace(labels, table=windows.cut(table, at))
