"""A table or figure of the paper as data: read from a TOML file, checked, nothing run."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

SEEDS = (0, 111, 222)
"""The paper's."""


class ExperimentError(ValueError):
    """A table that cannot be read or run; the message says why and what to do."""


@dataclass(frozen=True)
class Published:
    """What the paper reports: mean and deviation over three runs, NFE in thousands an epoch."""

    mean: float
    std: float
    nfe: float | None = None


@dataclass(frozen=True)
class Column:
    """What is compared: a model, how it is built and trained, and which slips it repeats."""

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model."""
    fit: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    slips: tuple[str, ...] = ()
    """Names in `slips.SLIPS`."""
    paper: dict[str, Any] = field(default_factory=dict)
    """`settings`, `fit`, `data` and `slips` that are added under the paper's protocol."""
    clean: dict[str, Any] = field(default_factory=dict)
    """The same under the clean one."""


@dataclass(frozen=True)
class Row:
    """What they are compared on: a data set, its metric, sizes found, numbers published."""

    name: str
    data: str
    """`set` or `set/task`."""
    metric: str
    data_settings: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    """Under the paper's protocol: its learning rates go with its batches of 1024."""
    clean_fit: dict[str, Any] = field(default_factory=dict)
    """Under the clean one."""
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By column: what the paper's search found. Sizes count under both protocols, `lr` under the
    paper's alone."""
    clean_found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By column: how to fit it under the clean protocol, as trials on validation found."""
    published: dict[str, Published] = field(default_factory=dict)
    """By column."""

    @property
    def data_set(self) -> str:
        return self.data.partition("/")[0]

    @property
    def task(self) -> str | None:
        return self.data.partition("/")[2] or None

    @property
    def percent(self) -> bool:
        """Whether the metric is written in per cent."""
        return self.metric == "accuracy"


@dataclass(frozen=True)
class Table:
    """One table (`grid`), a figure of another one's cells, or a command that makes it."""

    name: str
    title: str
    about: str
    kind: Literal["grid", "figure", "command"] = "grid"
    down: str = ""
    across: str = ""
    transposed: bool = False
    """Columns are printed down and rows across."""
    solver: dict[str, Any] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    folds: int = 0
    """Number of folds into which `fold_task` divides the streams, each tested once; 0: the data set's own split."""
    of: str = ""
    """The table whose cells a figure shows."""
    command: str = ""

    @property
    def data_sets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.data_set for row in self.rows))


def table_names() -> tuple[str, ...]:
    """The tables that come with the package.

    >>> "controls" in table_names()
    True
    """
    folder = resources.files("onlinecde.experiments") / "tables"
    files = [p.name for p in folder.iterdir() if p.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in files))


def load_table(name: str | os.PathLike[str]) -> Table:
    """A table by name, or from a TOML file of one's own.

    >>> load_table("controls").columns[0].name
    'natural cubic'
    """
    text = str(name)
    if text.endswith(".toml"):
        file = Path(text)
        if not file.is_file():
            raise ExperimentError(f"there is no file {file}.")
        return parse_table(file.stem, file.read_text(encoding="utf-8"))
    return parse_table(text, _packaged(text))


def _packaged(text: str) -> str:
    """The TOML of a table that comes with the package."""
    if text not in table_names():
        near = difflib.get_close_matches(text, table_names(), 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ExperimentError(
            f"there is no table '{text}': choose one of {', '.join(table_names())}.{hint}"
        )
    file = resources.files("onlinecde.experiments") / "tables" / f"{text}.toml"
    return file.read_text(encoding="utf-8")


def parse_table(name: str, text: str) -> Table:
    """Read a table from TOML; an unknown word, or a name of no column, is refused.

    `like` names a table of the package from which entries that are missing here are taken.

    >>> parse_table("mine", 'like = "controls"\\nfolds = 5').rows == load_table("controls").rows
    True
    """
    content = _read(name, text)
    if "like" in content:
        model = str(content.pop("like"))
        content = {**_read(model, _packaged(model)), **content}
    columns = tuple(
        _column(name, number, entry) for number, entry in enumerate(content.pop("columns", []), 1)
    )
    rows = tuple(
        _row(name, number, entry) for number, entry in enumerate(content.pop("rows", []), 1)
    )
    if "seeds" in content:
        content["seeds"] = tuple(content["seeds"])
    table = _made(Table, f"table '{name}'", {"name": name, **content}, columns=columns, rows=rows)
    if not isinstance(table.folds, int) or table.folds == 1 or table.folds < 0:
        raise ExperimentError(f"table '{name}': folds is {table.folds!r}: give 2 or more, or none.")
    if table.kind == "grid" and not (table.rows and table.columns):
        raise ExperimentError(f"table '{name}' has no rows or no columns: give [[rows]].")
    known = {column.name for column in table.columns}
    for row in table.rows:
        for told_of in {*row.found, *row.clean_found, *row.published} - known:
            raise ExperimentError(
                f"table '{name}', row '{row.name}' tells of a column '{told_of}': there are "
                f"{', '.join(sorted(known))}."
            )
    return table


def _read(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"table '{name}' is not TOML: {error}.") from error


def _column(table: str, number: int, entry: Mapping[str, Any]) -> Column:
    from onlinecde.experiments.slips import SLIPS

    where = f"table '{table}', column {number}"
    column = _made(Column, where, {**entry, "slips": tuple(entry.get("slips", ()))})
    for protocol, more in (("paper", column.paper), ("clean", column.clean)):
        for word in set(more) - {"settings", "fit", "data", "slips"}:
            raise ExperimentError(f"{where}: under `{protocol}` there is no '{word}'.")
        for slip in (*column.slips, *more.get("slips", ())):
            if slip not in SLIPS:
                raise ExperimentError(f"{where}: there is no slip '{slip}': {', '.join(SLIPS)}.")
    return column


def _row(table: str, number: int, entry: Mapping[str, Any]) -> Row:
    where = f"table '{table}', row {number}"
    published = {
        column: _made(Published, f"{where}, published of '{column}'", numbers)
        for column, numbers in entry.get("published", {}).items()
    }
    return _made(Row, where, {**entry, "published": published})


def _made(cls: type, where: str, content: Mapping[str, Any], **more: Any) -> Any:
    known = [f.name for f in fields(cls)]
    for word in content:
        if word not in known:
            near = difflib.get_close_matches(word, known, 1)
            hint = f": did you mean '{near[0]}'?" if near else f": choose from {', '.join(known)}."
            raise ExperimentError(f"{where}: there is no '{word}'{hint}")
    try:
        return cls(**content, **more)
    except TypeError as error:
        raise ExperimentError(f"{where} is not complete: {error}.") from error
