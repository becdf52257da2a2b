"""Channels of text -> a channel of 0 and 1 for each category, called `channel=category`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import Table

if TYPE_CHECKING:
    import polars as pl

MOST = 100
"""Categories that a channel may have"""


def known_categories(channels: Sequence[str], columns: Sequence[str]) -> dict[str, list[str]]:
    """Of a model's channels, those that are categories of one: by its name, which is no channel, the categories.

    >>> known_categories(["hr", "rhythm=AF", "rhythm=sinus"], ["hr", "rhythm"])
    {'rhythm': ['AF', 'sinus']}
    """
    found: dict[str, list[str]] = {}
    for name in channels:
        channel, sign, category = name.partition("=")
        if sign and channel in columns and channel not in channels:
            found.setdefault(channel, []).append(category)
    return found


def with_categories(
    own: Table,
    channel: str | None,
    value: str | None,
    named: Sequence[str],
    known: Sequence[str] | None,
) -> tuple[Table, list[str]]:
    """A table whose channels of text are channels of 0 and 1, and the names of those channels.

    Args:
        own: long, with its columns `channel` and `value`, or wide.
        channel: None of a wide table.
        value: likewise.
        named: channels of text, those of a table that a model is fitted on.
        known: a model's channels, where it is to judge the table: then `named` does not count.
    """
    import polars as pl

    there = own.frame.columns
    if channel is not None and value is not None:
        there = own.column(channel, "channel").cast(pl.String).unique().drop_nulls().to_list()
    given = dict.fromkeys(named) if known is None else known_categories(known, there)
    made = []
    for name, categories in given.items():
        if name not in there:
            raise DataError(
                f"{own.origin}: there is no channel '{name}' to take as categories; there are "
                f"{', '.join(map(str, there[:30]))}."
            )
        if channel is None or value is None:
            own, names = _wide(own, name, categories)
        else:
            own, names = _long(own, channel, value, name, categories)
        made += names
    return own, made


def _wide(own: Table, name: str, categories: list[str] | None) -> tuple[Table, list[str]]:
    import polars as pl

    cells = own.column(name, "channel").cast(pl.String).str.strip_chars()
    categories = categories or _categories(own, name, cells)
    frame = own.frame.drop(name).with_columns(
        (cells == category).cast(pl.Float64).alias(f"{name}={category}") for category in categories
    )
    return replace(own, frame=frame), [f"{name}={category}" for category in categories]


def _long(
    own: Table, channel: str, value: str, name: str, categories: list[str] | None
) -> tuple[Table, list[str]]:
    import polars as pl

    of_text = own.column(channel, "channel").cast(pl.String) == name
    lines = own.frame.filter(of_text)
    cells = lines[value].cast(pl.String).str.strip_chars()
    categories = categories or _categories(own, name, cells)
    dtype = own.frame[value].dtype
    pieces = [own.frame.filter(~of_text)]
    for category in categories:
        column = pl.lit(f"{name}={category}").cast(own.frame[channel].dtype)
        ones = (cells == category).cast(pl.Int8).cast(dtype)
        pieces.append(lines.with_columns(column.alias(channel), ones.alias(value)))
    return replace(own, frame=pl.concat(pieces)), [f"{name}={category}" for category in categories]


def _categories(own: Table, name: str, cells: pl.Series) -> list[str]:
    """The categories of a channel, in order; refused where they are very many."""
    found = cells.drop_nulls().unique().sort().to_list()
    if not found or len(found) > MOST:
        raise DataError(
            f"{own.origin}, channel '{name}' has {len(found)} categories: give 1 to {MOST}, joining rare ones before."
        )
    return found
