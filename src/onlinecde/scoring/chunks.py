"""Chunks of a table -> lines in one form, checked: whatever chunk a line came in, it reads the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from onlinecde.data import DataError
from onlinecde.data.table_categories import known_categories, with_categories
from onlinecde.data.table_chunks import BEGINNING, Place, TableSource
from onlinecde.data.table_events import no_known_channel
from onlinecde.data.table_files import LINE, Table
from onlinecde.data.table_times import Form, check_form, raw_times
from onlinecde.scoring.columns import Columns
from onlinecde.series import Schema

if TYPE_CHECKING:
    import polars as pl

STRANGERS = 1000
"""Names of channels unknown to the model that are kept, to be said"""


@dataclass
class Facts:
    """What was learned of a table, chunk by chunk."""

    lines: int = 0
    whole_ids: bool = True
    """Whether all ids are whole numbers"""
    form: Form | None = None
    """What its times are"""
    channels: set[str] = field(default_factory=set)
    """Those of the model that occur in a long table"""
    strange: set[str] = field(default_factory=set)
    """Channels and columns that the model does not know"""

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `Facts.from_json` makes the same."""
        return asdict(self) | {
            "channels": sorted(self.channels),
            "strange": sorted(self.strange),
        }

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Facts:
        """What `as_json` gave."""
        sets = {name: set(known[name]) for name in ("channels", "strange")}
        return cls(**{**known, **sets})


class ChunkReader:
    """A table, read chunk by chunk: ids as text, times as numbers or UTC timestamps, values as float64.

    What a model does not know is left out; of a channel it does not know, that there was a row.
    """

    def __init__(
        self, source: TableSource, columns: Columns, schema: Schema, role: str, facts: Facts
    ) -> None:
        self.source, self.columns, self.schema = source, columns, schema
        self.role, self.facts = role, facts
        there = set(source.columns)
        self.stream = columns.stream
        self._check_there(self.stream, "stream")
        self._times: dict[str, str] = {}
        self._numbers: Sequence[str] = ()
        self._texts: list[str] = []
        """Columns of a wide table whose texts are channels of the model, `column=text`"""
        if role in ("events", "asked"):
            self._check_there(columns.time, "time")
            self._times[columns.time] = "time"
        if columns.origin in there and role != "asked":
            self._times[columns.origin] = "origin of time"
        if role == "events" and columns.value is not None:
            self._numbers = (columns.value,)
        elif role == "events":
            free = there - columns.taken
            self._texts = list(known_categories(schema.channels, sorted(free)))
            made = tuple(f"{name}=" for name in self._texts)
            self._numbers = [
                c for c in schema.channels if c in free or (made and c.startswith(made))
            ]
        self.features: list[str] = []
        """Static features, as they came, that stand in it"""

    def with_static(self) -> ChunkReader:
        """The reader itself, which reads the static features too that the table has."""
        taken = {*self.columns.taken, *self._numbers}
        self.features = [
            c.name
            for c in self.schema.static
            if c.name in self.source.columns and c.name not in taken
        ]
        return self

    @property
    def wanted(self) -> list[str]:
        """The columns that are read."""
        named = [self.columns.channel] if self.role == "events" and self.columns.channel else []
        numbers = [name for name in self._numbers if name in self.source.columns]
        return [self.stream, *self._times, *named, *numbers, *self._texts, *self.features]

    def frames(self, size: int, place: Place = BEGINNING) -> Iterator[tuple[pl.DataFrame, Place]]:
        """Frames of about `size` bytes in the common form, each with the place behind it."""
        if self.role == "events" and self.columns.channel is None:
            rest = {*self.source.columns} - {*self.wanted, LINE}
            self.facts.strange |= set(sorted(rest)[:STRANGERS])
        for chunk, after in self.source.chunks(self.wanted, size, place):
            yield self._common_form(chunk), after

    def check_channels(self) -> None:
        """Refuse a long table in which no channel of the model occurs."""
        if self.columns.channel is not None and not self.facts.channels:
            raise no_known_channel(
                self.source.origin,
                self.columns.channel,
                self.schema.channels,
                sorted(self.facts.strange),
            )

    def notes(self) -> list[str]:
        """What the table of events lacks of the model's channels, and has besides."""
        there = self.facts.channels if self.columns.channel is not None else {*self._numbers}
        absent = [c for c in self.schema.channels if c not in there]
        notes = [f"channel '{name}' is absent: taken as never observed" for name in absent]
        if strange := sorted(self.facts.strange):
            shown = f"{', '.join(strange[:10])}{', ...' if len(strange) > 10 else ''}"
            notes.append(f"the model does not know {shown}: not read")
        return notes

    def _check_there(self, name: str, role: str) -> None:
        if name not in self.source.columns:
            raise DataError(
                f"{self.source.origin}: there is no column '{name}' for the {role}; there are "
                f"{', '.join(self.source.columns[:30])}. Call it as in the table of events."
            )

    def _common_form(self, chunk: Table) -> pl.DataFrame:
        import polars as pl

        facts = self.facts
        facts.lines += chunk.frame.height
        if self.role == "events":
            c = self.columns
            chunk, _ = with_categories(chunk, c.channel, c.value, (), self.schema.channels)
        ids = chunk.keys(self.stream, "stream")
        facts.whole_ids &= ids.dtype == pl.Int64
        made = [ids.cast(pl.String).alias(self.stream)]
        made += [self._time(chunk, name, role) for name, role in self._times.items()]
        if self.role == "events" and self.columns.channel is not None:
            known = self._known_channels(chunk)
            chunk = chunk.blank(self._numbers[0], ~known)
            names = chunk.column(self.columns.channel, "channel").cast(pl.String)
            # Of others, that there was a row: an event of a known channel without a value.
            made.append(pl.select(pl.when(known).then(names).otherwise(pl.lit(self.schema.channels[0])))
                        .to_series().alias(self.columns.channel))  # fmt: skip
        role = "value" if self.columns.channel is not None else "channel"
        made += [chunk.numbers(name, role).alias(name) for name in self._numbers]
        made += [chunk.frame[name] for name in (*self.features, LINE)]
        return pl.DataFrame(made)

    def _known_channels(self, chunk: Table) -> pl.Series:
        """(line,) bool: whether an event is of a channel of the model."""
        import polars as pl

        assert self.columns.channel is not None
        names = chunk.complete(self.columns.channel, "channel").cast(pl.String)
        known = names.is_in(list(self.schema.channels))
        self.facts.channels |= set(names.filter(known).unique())
        if len(self.facts.strange) < STRANGERS:
            self.facts.strange |= set(names.filter(~known).unique().sort()[:STRANGERS])
        return known

    def _time(self, chunk: Table, name: str, role: str) -> pl.Series:
        """A column of times: numbers, or timestamps and durations in microseconds."""
        import polars as pl

        raw, form = raw_times(chunk, name, role)
        self.facts.form = self.facts.form or form
        check_form(chunk.origin, name, role, form, self.facts.form)
        if form == "durations":
            raw = (raw * 1e6).round().cast(pl.Int64).cast(pl.Duration("us"))
        elif form != "numbers":
            zone = "UTC" if form == "timestamps with a time zone" else None
            raw = (raw * 1e6).round().cast(pl.Int64).cast(pl.Datetime("us", zone))
        return raw.alias(name)
