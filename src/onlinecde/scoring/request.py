"""What is to be scored: the model, the tables and their columns, the query times, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onlinecde.data import DataError
from onlinecde.data.table_chunks import TableSource, table_source
from onlinecde.data.table_ids import look_of
from onlinecde.data.table_times import check_form
from onlinecde.models import OnlineModel
from onlinecde.scoring.answers import Scorer
from onlinecde.scoring.chunks import ChunkReader, Facts
from onlinecde.scoring.columns import Columns, columns_for
from onlinecde.scoring.fitted import FittedModel
from onlinecde.scoring.query import Query

if TYPE_CHECKING:
    import polars as pl

NAMES = {
    "events": "table of events",
    "static": "table of static features",
    "asked": "table of query times",
}
"""What the tables are called, by role"""


@dataclass(frozen=True, eq=False)
class Request:
    """A model, what it is asked, and the tables."""

    fitted: FittedModel
    columns: Columns
    query: Query
    sources: Mapping[str, TableSource]
    """By role: events; static and asked, where there are any"""
    said: tuple[str, ...]
    """What is worth saying before anything is read"""

    @classmethod
    def build(
        cls,
        model: OnlineModel | str | os.PathLike[str],
        events: Any,
        *,
        at: Any = None,
        until: str | None = None,
        static: Any = None,
        horizon: str | float | None = None,
        device: str = "cpu",
        **given: Any,
    ) -> Request:
        """Open the tables and find their columns; `given` are columns by role, and `duplicates`."""
        static_stream = given.pop("static_stream", None)
        fitted = FittedModel.of(model, device).within(horizon)
        query = Query.parse(fitted.default_at if at is None else at, until, fitted.time_unit)
        tables = {"events": events, "static": static, "asked": query.table}
        sources = {
            role: table_source(table, what=NAMES[role])
            for role, table in tables.items()
            if table is not None
        }
        own = sources["events"]
        columns, said = columns_for(own.origin, own.columns, fitted.schema, given, fitted.columns)
        if "static" in sources:
            known = sources["static"].columns
            run = fitted.columns.get("static_stream")
            called = static_stream or (run if run in known else None)
            if called is not None and called != columns.stream:
                renamed = {called: columns.stream}
                sources["static"] = table_source(static, what=NAMES["static"], called=renamed)
        said += [fitted.answers_between()] if query.between_rows else []
        said += [fitted.answers_early()] if query.form != "end" else []
        return cls(fitted, columns, query, sources, tuple(filter(None, said)))

    def readers(self, facts: Mapping[str, Facts] | None = None) -> dict[str, ChunkReader]:
        """What reads the tables; facts: what is known of them already."""
        readers = {
            role: ChunkReader(
                source, self.columns, self.fitted.schema, role, (facts or {}).get(role) or Facts()
            )
            for role, source in self.sources.items()
        }
        readers["static" if "static" in readers else "events"].with_static()
        return readers

    def check_read(self, readers: Mapping[str, ChunkReader]) -> None:
        """Refuse tables that do not go together, when all of them were read."""
        readers["events"].check_channels()
        form = readers["events"].facts.form
        for role, column in (("static", self.columns.origin), ("asked", self.columns.time)):
            own = readers[role].facts.form if role in readers else None
            if own is not None and form is not None and column is not None:
                check_form(self.sources[role].origin, column, NAMES[role], own, form)

    def check_ids(self, parts: Iterator[Mapping[str, pl.DataFrame]]) -> None:
        """Refuse a table that shares no stream with the events; parts of all tables, by role, in turn."""
        stream = self.columns.stream
        apart = {role: "" for role in self.sources if role != "events"}
        for lines in parts:
            for role in list(apart):
                own, events = lines[role][stream], lines["events"][stream]
                if own.is_in(events.implode()).any():
                    del apart[role]
                elif len(own) and len(events) and not apart[role]:
                    apart[role] = (
                        f"ids look like {look_of(own.to_list())} there, like {look_of(events.to_list())} in"
                    )
            if not apart:
                return
        for role, looks in apart.items():
            raise DataError(
                f"{self.sources[role].origin}, column '{stream}': it has no line of any stream of "
                f"{self.sources['events'].origin}: {looks or 'ids are others than in'} the events. Write them alike."
            )

    def whole_ids(self, readers: Mapping[str, ChunkReader]) -> bool:
        """Whether all streams that have scores are called by whole numbers."""
        return all(one.facts.whole_ids for role, one in readers.items() if role != "static")

    def scorer(self, counts: Mapping[str, Any] | None = None) -> Scorer:
        """What asks the model; counts: of one that was stopped, as it had them."""
        origins = {role: source.origin for role, source in self.sources.items()}
        scorer = Scorer(self.fitted, self.columns, self.query, origins)
        if counts is not None:
            scorer.count_on(counts)
        return scorer

    def notes(self, readers: Mapping[str, ChunkReader], scorer: Scorer) -> list[str]:
        """All that is worth saying when everything was read."""
        there = {feature for reader in readers.values() for feature in reader.features}
        absent = [c.name for c in self.fitted.schema.static if c.name not in there]
        return [
            *readers["events"].notes(),
            *(f"static feature '{name}' is absent: taken as missing" for name in absent),
            *scorer.notes(),
        ]
