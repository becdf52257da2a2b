"""`Schema`: channels and static features by name, learned from a training split, and carried by a model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from onlinecde.series.batch import SeriesBatch
from onlinecde.series.checks import SeriesError, default_names
from onlinecde.series.static_columns import (
    StaticColumn,
    as_column,
    columns_of_features,
    encode_columns,
    feature_names,
    is_missing,
)

TIME_UNITS: Mapping[str, float] = {
    "milliseconds": 1e-3,
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 604800.0,
    "years": 31557600.0,
}
"""Seconds in each unit of time that timestamps can be turned into and a live clock can run in"""


class SchemaWarning(UserWarning):
    """A series lacks something its model knows, has something it does not, or an unknown category."""


@dataclass(frozen=True)
class Schema:
    """What a model was trained on, by name: its channels in order, its static features, its unit of time.

    `align` makes any series that has some of its channels the model's own. Names count only where both sides
    have them: channels called `x0, x1, ...` and features called `f0, f1, ...` were never named, and go by
    position.

    >>> schema = Schema(("hr", "bp"), (StaticColumn("sex", categories=("f", "m")),))
    >>> batch = SeriesBatch.from_arrays([[0.0]], [[[120.0, 80.0]]], channels=["bp", "hr"])
    >>> aligned, notes = schema.align(batch)
    >>> aligned.values.tolist(), notes
    ([[[80.0, 120.0]]], ("static feature 'sex' is absent: taken as missing",))
    """

    channels: tuple[str, ...]
    static: tuple[StaticColumn, ...] = ()
    time_unit: str | None = None
    ranges: tuple[tuple[float, float] | None, ...] | None = field(default=None, compare=False)
    """(channel,): the least and the largest value of the training split; None for one never observed there"""

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the static features as the model takes them in."""
        return feature_names(self.static)

    @classmethod
    def of(
        cls, series: SeriesBatch, training: np.ndarray | None = None, time_unit: str | None = None
    ) -> Schema:
        """The schema of a series; what fills missing numbers is learned at the positions `training`.

        Raw static features have been encoded already: by the encoding that the series has.
        """
        ranges = (
            None
            if training is None
            else _ranges(series.values[torch.as_tensor(training, device=series.values.device)])
        )
        if series.static is None:
            return cls(series.channels, (), time_unit, ranges)
        if series.raw_static is not None:
            return cls(series.channels, series.raw_static.encoding, time_unit, ranges)
        table = series.static.detach().double().cpu().numpy()
        table = table if training is None else table[training]
        given = dict(zip(series.features, table.T, strict=True))
        columns = []
        for column in columns_of_features(series.features):
            known = np.ones(len(table), bool)
            if column.indicator:
                known = given[column.features[1]] == 0
            if column.categories is None:
                fill = float(given[column.name][known].mean()) if known.any() else 0.0
                column = replace(column, fill=fill)
            columns.append(column)
        return cls(series.channels, tuple(columns), time_unit, ranges)

    @classmethod
    def of_names(
        cls, channels: Sequence[str], features: Sequence[str] = (), time_unit: str | None = None
    ) -> Schema:
        """The schema of a model of which only the names of channels and static features are known."""
        return cls(tuple(channels), columns_of_features(features), time_unit)

    def ask_static(self, count: int) -> str:
        """What to give a model that takes `count` static features, as a sentence.

        >>> Schema(("hr",), (StaticColumn("sex", categories=("f", "m")),)).ask_static(2)
        "give static features by name (sex; {} where none is known), or 2 finite numbers in the model's order."
        """
        if not count:
            return "the model takes no static features: leave them out."
        if not self.static:
            return f"give {count} finite numbers as static features."
        names = ", ".join(column.name for column in self.static)
        numbers = f"{count} finite numbers in the model's order"
        return f"give static features by name ({names}; {{}} where none is known), or {numbers}."

    def fits(self, batch: SeriesBatch) -> bool:
        """Whether a series is as the model takes it, name by name."""
        if batch.channels != self.channels:
            return False
        if batch.static is None:
            return not self.static
        raw = batch.raw_static
        return batch.features == self.features and (raw is None or raw.encoding == self.static)

    def align(self, batch: SeriesBatch) -> tuple[SeriesBatch, tuple[str, ...]]:
        """The series in the model's channels and static features, and what is worth saying of it.

        Channels go by name: absent ones were never observed, others are left out. Static features are encoded
        as they were in training. Raises SeriesError where no channel is the model's.
        """
        notes: list[str] = []
        if batch.channels != self.channels:
            batch = self._with_channels(batch, notes)
        if batch.static is not None or self.static:
            batch = self._with_static(batch, notes)
        return batch, tuple(notes)

    def _with_channels(self, batch: SeriesBatch, notes: list[str]) -> SeriesBatch:
        names, count = batch.channels, len(self.channels)
        unnamed = [default_names(names, "x"), default_names(self.channels, "x")]
        absent = [name for name in self.channels if name not in names]
        if all(unnamed) or (any(unnamed) and len(absent) == count):
            if len(names) != count:
                raise SeriesError(
                    f"the series has {len(names)} channels ({_few(names)}), the model was made for {count} "
                    f"({_few(self.channels)})."
                )
            return replace(batch, channels=self.channels)
        if len(absent) == count:
            raise SeriesError(
                f"the series has none of the model's channels: it has {_few(names)}, the model was made for "
                f"{_few(self.channels)}. Name its channels as the model's are named."
            )
        notes += [f"channel '{name}' is absent: taken as never observed" for name in absent]
        extra = [name for name in names if name not in self.channels]
        if extra:
            notes.append(f"the model does not know channel {_few(extra)}: left out")
        position = {name: place for place, name in enumerate(names)}
        values = batch.values
        if absent:
            values = torch.nn.functional.pad(values, (0, 1), value=torch.nan)
        order = [position.get(name, len(names)) for name in self.channels]
        values = values.index_select(2, torch.tensor(order, device=values.device))
        return replace(batch, values=values, channels=self.channels)

    def _with_static(self, batch: SeriesBatch, notes: list[str]) -> SeriesBatch:
        static, raw, names = batch.static, batch.raw_static, batch.features
        if static is None:
            raw, names = None, ()
        if (
            self.static
            and default_names(self.features, "f")
            and not set(names) & set(self.features)
        ):
            # The model's features were never named: those of the series go by position.
            if len(names) != len(self.features):
                raise SeriesError(
                    f"the series has {len(names)} static features, the model was made for "
                    f"{len(self.features)}."
                )
            return replace(batch, features=self.features, raw_static=None)
        encoding = self.static
        if raw is not None:
            # A model saved without fills takes those of the table itself, as it was trained.
            own = {column.name: column for column in raw.encoding}
            encoding = tuple(
                replace(column, fill=own[column.name].fill)
                if column.categories is None and column.fill is None and column.name in own
                else column
                for column in encoding
            )
            if raw.encoding == encoding:
                return batch
            given = dict(raw.columns)
        else:
            if static is not None and names == self.features:
                return batch
            unnamed = [default_names(one, "f") for one in (names, self.features) if one]
            shared = set(names) & set(self.features)
            if all(unnamed) or (any(unnamed) and not shared):
                if len(names) != len(self.features):
                    raise SeriesError(
                        f"the series has {len(names)} static features, the model was made for "
                        f"{len(self.features)}."
                    )
                return replace(batch, features=self.features)
            table = None if static is None else static.detach().double().cpu().numpy()
            given = {} if table is None else dict(zip(names, table.T, strict=True))
        self._note_extra(given, notes)
        if not self.static:
            return replace(batch, static=None, features=(), raw_static=None)
        table, said = encode_columns(encoding, given, batch.streams)
        notes += said
        told = torch.from_numpy(table).to(batch.values)
        if raw is not None:
            raw = replace(raw, encoding=encoding)
        return replace(batch, static=told, features=self.features, raw_static=raw)

    def _note_extra(self, given: Mapping[str, Any], notes: list[str]) -> None:
        own = {column.name for column in self.static}
        own |= {f"{column.name}_missing" for column in self.static if column.categories is None}
        extra = [n for n in given if n not in own and n.partition("=")[0] not in own]
        if extra:
            notes.append(f"the model does not know static feature {_few(extra)}: left out")

    def encode(
        self, facts: Mapping[str, Any], streams: Sequence[Hashable]
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """Static features (stream, feature), float64, of raw values by name, and what is worth saying of them.

        facts: name -> one entry for each stream; a text or a number is that of all. What is absent is missing.
        Names of encoded features (`sex=f`, `age_missing`) may stand in place of raw ones. Raises SeriesError
        for names of neither kind.

        >>> schema = Schema(("hr",), (StaticColumn("age", fill=61.0), StaticColumn("sex", ("f", "m"))))
        >>> schema.encode({"sex": "f"}, ["bed 7"])[0].tolist()
        [[61.0, 1.0, 0.0]]
        """
        known = {column.name for column in self.static} | {*self.features}
        if strange := [str(name) for name in facts if name not in known]:
            raise SeriesError(
                f"the model has no static feature {min(strange)[:40]!r}: it has "
                f"{', '.join(column.name for column in self.static) or 'none'}."
            )
        given = {}
        for name, entries in facts.items():
            if isinstance(entries, str) or not isinstance(entries, Sequence | np.ndarray):
                entries = [entries] * len(streams)
            if len(entries) != len(streams):
                raise SeriesError(
                    f"static feature '{name}' has {len(entries)} entries for {len(streams)} streams."
                )
            for stream, entry in zip(streams, entries, strict=True):
                if not (is_missing(entry) or isinstance(entry, str | int | float | np.number)):
                    raise SeriesError(
                        f"stream {stream!r}, static feature '{name}' is a {type(entry).__name__}: give a "
                        "number or a text."
                    )
            try:
                given[name] = as_column(entries)
            except OverflowError as error:
                raise SeriesError(f"static feature '{name}' is beyond any float.") from error
        for column in self.static:
            both = [one for one in column.features if one in given and one != column.name]
            if column.categories is not None and column.name in given and both:
                raise SeriesError(
                    f"static feature '{column.name}' is given twice, as itself and as '{both[0]}': leave one out."
                )
        for name in given.keys() - {column.name for column in self.static}:
            if given[name].dtype == object:
                raise SeriesError(f"static feature '{name}' is a text: give 0 or 1.")
            given[name] = np.nan_to_num(given[name], nan=0.0)
        # That it is absent is nothing to be said here: who gives facts one by one means it.
        table, notes = encode_columns(self.static, given, streams)
        return table, tuple(note for note in notes if "is absent" not in note)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a manifest."""
        return {
            "channels": list(self.channels),
            "static": [column.as_json() for column in self.static],
            "time_unit": self.time_unit,
            **(
                {}
                if self.ranges is None
                else {"ranges": [one and list(one) for one in self.ranges]}
            ),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Schema:
        """What `as_json` gave; raises SeriesError where it is something else."""
        try:
            unit = told["time_unit"]
            schema = cls(
                tuple(str(name) for name in told["channels"]),
                tuple(StaticColumn.from_json(column) for column in told["static"]),
                None if unit is None else str(unit),
                _ranges_from(told.get("ranges"), len(told["channels"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SeriesError(f"the schema cannot be read ({error!r}).") from error
        feature_names(schema.static)
        return schema


def _ranges(values: torch.Tensor) -> tuple[tuple[float, float] | None, ...]:
    """(channel,): least and largest of values (stream, row, channel), NaN where not observed."""
    missing = values.isnan()
    if not values.numel():
        return (None,) * values.shape[-1]
    least = values.masked_fill(missing, float("inf")).amin((0, 1)).tolist()
    most = values.masked_fill(missing, float("-inf")).amax((0, 1)).tolist()
    return tuple((a, b) if a <= b else None for a, b in zip(least, most, strict=True))


def _ranges_from(told: Any, channels: int) -> tuple[tuple[float, float] | None, ...] | None:
    if told is None:
        return None
    if len(told) != channels:
        raise ValueError(f"{len(told)} ranges for {channels} channels")
    return tuple(None if one is None else (float(one[0]), float(one[1])) for one in told)


def _few(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
