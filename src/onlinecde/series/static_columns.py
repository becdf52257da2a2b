"""Static features: raw columns of numbers and categories, and how they become the numbers a model takes in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onlinecde.series.checks import SeriesError

MISSING = "_missing"
"""What the feature that marks a missing number is called, after the number's own name"""


@dataclass(frozen=True)
class StaticColumn:
    """How one raw column becomes static features.

    A number is one feature, `fill` where it is missing; with `indicator` a second one, `NAME_missing`, is 1
    there. A category is a feature `NAME=CATEGORY` for each of `categories`, all 0 where missing or unknown.

    >>> StaticColumn("sex", categories=("f", "m")).features
    ('sex=f', 'sex=m')
    """

    name: str
    categories: tuple[str, ...] | None = None
    """None for a number"""
    fill: float | None = None
    """Mean of the training split; None where it is not known, and then no number may be missing"""
    indicator: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it becomes."""
        if self.categories is not None:
            return tuple(f"{self.name}={category}" for category in self.categories)
        return (self.name, self.name + MISSING) if self.indicator else (self.name,)

    def encode(
        self, given: Mapping[str, np.ndarray], streams: Sequence[Hashable]
    ) -> tuple[np.ndarray, list[str]]:
        """Its features (stream, feature), and what is worth saying of them.

        `given`: columns (stream,) by name, raw as `as_column` makes them, or features encoded before.
        """
        if self.categories is None:
            return self._numbers(given, streams)
        if self.name in given:
            return self._categories(given[self.name], self.categories, streams)
        start = f"{self.name}="
        nothing = np.zeros(len(streams))
        table = np.stack([given.get(f, nothing) for f in self.features] or [nothing], 1)
        table = table[:, : len(self.categories)].astype(float)
        if not any(name.startswith(start) for name in given):
            return table, [f"static feature '{self.name}' is absent: taken as missing"]
        others = [name for name in given if name.startswith(start) and name not in self.features]
        notes = []
        for name in others:
            which = np.flatnonzero(given[name].astype(float))
            if len(which):
                notes.append(self._unknown(name.removeprefix(start), which, streams))
        return table, notes

    def _numbers(
        self, given: Mapping[str, np.ndarray], streams: Sequence[Hashable]
    ) -> tuple[np.ndarray, list[str]]:
        notes = []
        if self.name in given:
            column = given[self.name]
            if column.dtype == object:
                column = np.array([self._number(*one) for one in zip(column, streams, strict=True)])
            missing = np.isnan(column)
            if self.name + MISSING in given:
                missing = missing | (given[self.name + MISSING] != 0)
        else:
            column, missing = np.zeros(len(streams)), np.ones(len(streams), bool)
            notes.append(f"static feature '{self.name}' is absent: taken as missing")
        if (wild := np.isinf(column)).any():
            stream = streams[int(np.flatnonzero(wild)[0])]
            raise SeriesError(
                f"stream {stream!r}, static feature '{self.name}' is infinite: leave it empty."
            )
        if missing.any() and self.fill is None:
            stream = streams[int(np.flatnonzero(missing)[0])]
            raise SeriesError(
                f"stream {stream!r}: static feature '{self.name}' is missing, and the model was saved "
                "without a value to use instead: give one."
            )
        filled = np.where(missing, 0.0 if self.fill is None else self.fill, column)
        return np.stack([filled, missing.astype(float)][: len(self.features)], 1), notes

    def _number(self, entry: Any, stream: Hashable) -> float:
        if is_missing(entry):
            return float("nan")
        if isinstance(entry, str):
            raise SeriesError(
                f"stream {stream!r}, static feature '{self.name}' is {entry[:40]!r}: the model takes a number."
            )
        return float(entry)

    def _categories(
        self, column: np.ndarray, categories: tuple[str, ...], streams: Sequence[Hashable]
    ) -> tuple[np.ndarray, list[str]]:
        texts = [None if is_missing(entry) else as_category(entry) for entry in column.tolist()]
        place = {category: number for number, category in enumerate(categories)}
        table, unknown = np.zeros((len(texts), len(categories))), {}
        for number, text in enumerate(texts):
            if text in place:
                table[number, place[text]] = 1.0
            elif text is not None:
                unknown.setdefault(text, []).append(number)
        return table, [self._unknown(t, np.array(w), streams) for t, w in unknown.items()]

    def _unknown(self, category: str, which: np.ndarray, streams: Sequence[Hashable]) -> str:
        count = f" in {len(which)} streams, first" if len(which) > 1 else " in stream"
        known = ", ".join((self.categories or ())[:10]) or "none"
        return (
            f"static feature '{self.name}' is {category[:40]!r}{count} {streams[int(which[0])]!r}, and the "
            f"model knows {known}: taken as missing"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values for a manifest."""
        if self.categories is not None:
            return {"name": self.name, "kind": "category", "categories": list(self.categories)}
        facts = {"name": self.name, "kind": "number", "fill": self.fill}
        return {**facts, "missing_indicator": self.indicator}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> StaticColumn:
        """What `as_json` gave."""
        if content["kind"] == "category":
            return cls(str(content["name"]), tuple(str(one) for one in content["categories"]))
        if content["kind"] != "number":
            raise ValueError(f"a static feature has kind {content['kind']!r}")
        fill = None if content["fill"] is None else float(content["fill"])
        return cls(str(content["name"]), None, fill, bool(content["missing_indicator"]))


@dataclass(frozen=True, eq=False)
class RawStatic:
    """Static features of some streams as they came, and the encoding a series' `static` was made by."""

    columns: Mapping[str, np.ndarray]
    """By name, each (stream,): float64 with NaN, or objects (texts, numbers, None), as `as_column` makes them"""
    fixed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categories that are known beforehand, whatever the training split has"""
    encoding: tuple[StaticColumn, ...] = ()

    def take(self, positions: np.ndarray) -> RawStatic:
        """The entries of some streams."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return RawStatic(columns, self.fixed, self.encoding)

    @staticmethod
    def concatenate(parts: Sequence[RawStatic]) -> RawStatic | None:
        """The streams of several; None where they have other columns or were encoded in another way."""
        first = parts[0]
        for part in parts[1:]:
            if part.encoding != first.encoding or [*part.columns] != [*first.columns]:
                return None
        columns = {
            name: as_column(np.concatenate([part.columns[name].astype(object) for part in parts]))
            for name in first.columns
        }
        return RawStatic(columns, first.fixed, first.encoding)

    def learned(self, training: np.ndarray | None, seen: np.ndarray | None) -> RawStatic:
        """The same columns with an encoding learned from streams, at positions; None: from all.

        Fills are means over `training`; categories, and whether missing numbers are marked, go by `seen`.
        """
        every = slice(None)
        mine, those = every if training is None else training, every if seen is None else seen
        encoding = []
        for name, column in self.columns.items():
            if name in self.fixed:
                encoding.append(StaticColumn(name, self.fixed[name]))
            elif column.dtype == object:
                known = {as_category(entry) for entry in column[those] if not is_missing(entry)}
                encoding.append(StaticColumn(name, tuple(sorted(known))))
            else:
                values = column[mine][~np.isnan(column[mine])]
                fill = float(values.mean()) if len(values) else 0.0
                encoding.append(StaticColumn(name, None, fill, bool(np.isnan(column[those]).any())))
        return RawStatic(self.columns, self.fixed, tuple(encoding))


def feature_names(encoding: Sequence[StaticColumn]) -> tuple[str, ...]:
    """Names of all features of an encoding; two of one name are refused."""
    names = tuple(name for column in encoding for name in column.features)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SeriesError(
            f"two static features are called '{twice}', one of them made from another column (a "
            "mark of what is missing, or a category): rename the column."
        )
    return names


def encode_columns(
    encoding: Sequence[StaticColumn],
    given: Mapping[str, np.ndarray],
    streams: Sequence[Hashable],
) -> tuple[np.ndarray, list[str]]:
    """All features (stream, feature) of an encoding, float64, and what is worth saying of them."""
    tables, notes = [np.zeros((len(streams), 0))], []
    own = {column.name for column in encoding}
    for column in encoding:
        mark = column.name + MISSING
        # A column of that name of its own is no mark of what is missing.
        seen = {n: c for n, c in given.items() if n != mark} if mark in own else given
        table, said = column.encode(seen, streams)
        tables.append(table)
        notes += said
    return np.concatenate(tables, 1), notes


def columns_of_features(features: Sequence[str]) -> tuple[StaticColumn, ...]:
    """The raw columns that features of these names came from, in their order; fills are not known.

    >>> [column.name for column in columns_of_features(["age", "age_missing", "sex=f", "sex=m"])]
    ['age', 'sex']
    """
    columns: list[StaticColumn] = []
    for feature in features:
        name, cut, category = feature.partition("=")
        last = columns[-1] if columns else None
        if cut:
            if last is not None and last.name == name and last.categories is not None:
                columns[-1] = StaticColumn(name, (*last.categories, category))
            else:
                columns.append(StaticColumn(name, (category,)))
        elif last is not None and last.categories is None and feature == last.name + MISSING:
            columns[-1] = StaticColumn(last.name, None, last.fill, True)
        else:
            columns.append(StaticColumn(feature))
    return tuple(columns)


def as_column(entries: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Entries as a raw column: float64 with NaN where all are numbers or missing, else objects."""
    if isinstance(entries, np.ndarray) and entries.dtype.kind in "fiub":
        return entries.astype(np.float64)
    entries = list(entries)
    if any(isinstance(entry, str) for entry in entries):
        column = np.empty(len(entries), object)
        column[:] = [None if is_missing(entry) else entry for entry in entries]
        return column
    return np.array([np.nan if is_missing(entry) else float(entry) for entry in entries])


def is_missing(entry: Any) -> bool:
    """Whether an entry says nothing: None or NaN."""
    return entry is None or (isinstance(entry, float | np.floating) and bool(np.isnan(entry)))


def as_category(entry: Any) -> str:
    """An entry as the name of a category: 1 and 1.0 are the same."""
    if isinstance(entry, float | np.floating) and float(entry).is_integer():
        return str(int(entry))
    return str(entry)
