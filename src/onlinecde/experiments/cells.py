"""A cell: one data set, one column, one fold, one seed, with every setting worked out before anything runs."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onlinecde.data.registry import data_set
from onlinecde.experiments.protocols import BUDGETS, PROTOCOLS, Budget, Protocol
from onlinecde.experiments.table import Column, ExperimentError, Row, Table

_SOLVED = ("neural-cde", "ode-rnn")
_SIZES = ("hidden", "width")


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    table: str
    row: Row
    column: Column
    seed: int
    protocol: Protocol
    budget: Budget
    data: dict[str, Any]
    """Settings of the data set."""
    model: dict[str, Any]
    """Arguments of the model."""
    fit: dict[str, Any]
    """Every training setting."""
    slips: tuple[str, ...]
    counted_by: dict[str, Any] | None
    """The adaptive solver that counts evaluations after training; None: they are counted in it."""
    demo: bool = False
    fold: int | None = None
    """Which fold is tested, from 1; None: the data set's own split."""
    folds: int = 0

    @property
    def name(self) -> str:
        """`row/column`, as `--only` takes it."""
        return f"{self.row.name}/{self.column.name}"

    @property
    def title(self) -> str:
        """Its name, fold and seed, for people."""
        fold = "" if self.fold is None else f", fold {self.fold}"
        return f"{self.name}{fold}, seed {self.seed}"

    @property
    def place(self) -> Path:
        """Where it lives in the output folder; protocols and budgets never share one."""
        kind = f"{self.protocol.name}-{self.budget.name}" + ("-demo" if self.demo else "")
        fold = "" if self.fold is None else f"fold-{self.fold}-"
        run = f"{fold}seed-{self.seed}"
        return Path(kind, self.table, _plain(self.row.name), _plain(self.column.name), run)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides its numbers, as plain values."""
        data = {"name": self.row.data, **self.data, **({"demo": True} if self.demo else {})}
        if self.fold is not None:
            data |= {"fold": self.fold, "folds": self.folds}
        return {
            "data": data,
            "model": {"name": self.column.model, **self.model},
            "fit": self.fit,
            "slips": list(self.slips),
            "metric": self.row.metric,
            "batch_rmse": self.batch_rmse,
            "counted_by": self.counted_by,
            "streams": self.budget.streams,
            "rows": self.budget.rows,
        }

    @property
    def batch_rmse(self) -> bool:
        return self.protocol.batch_rmse and self.row.metric == "rmse"

    @cached_property
    def digest(self) -> str:
        """Changes when any setting does."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def cells_of(
    table: Table,
    *,
    protocol: str = "clean",
    budget: str = "full",
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    found: Sequence[Mapping[str, Any]] = (),
    demo: bool = False,
) -> list[Cell]:
    """The cells of a table, row by row, and where the split turns, fold by fold.

    `only` keeps cells whose `row/column`, or `row/column/fold-N`, matches one of these patterns.
    `found` are best settings as `tune` writes them: what was searched replaces what the cells on
    the same data set with that model have; all else stays the protocol's.

    >>> from onlinecde.experiments.table import load_table
    >>> len(cells_of(load_table("controls"), budget="full"))
    84
    """
    if protocol not in PROTOCOLS:
        raise ExperimentError(f"protocol is {protocol!r}: choose one of {', '.join(PROTOCOLS)}.")
    if budget not in BUDGETS:
        raise ExperimentError(f"budget is {budget!r}: choose one of {', '.join(BUDGETS)}.")
    rules, much = PROTOCOLS[protocol], BUDGETS[budget]
    chosen = tuple(seeds) if seeds else table.seeds[: much.seeds]
    demo = demo and "mimic-iv" in table.data_sets
    cells = [
        _cell(table, row, column, fold, seed, rules, much, found, demo)
        for row in table.rows
        for fold in range(1, table.folds + 1) or (None,)
        for column in table.columns
        for seed in chosen
    ]
    if not only:
        return cells
    kept = [c for c in cells if any(_matches(c, pattern) for pattern in only)]
    if not kept:
        names = list(dict.fromkeys(c.name for c in cells))
        raise ExperimentError(
            f"--only {', '.join(only)} matches no cell of '{table.name}': there are "
            f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''}."
        )
    return kept


def _cell(
    table: Table,
    row: Row,
    column: Column,
    fold: int | None,
    seed: int,
    protocol: Protocol,
    budget: Budget,
    found: Sequence[Mapping[str, Any]],
    demo: bool,
) -> Cell:
    as_paper = protocol.name == "paper"
    more = column.paper if as_paper else column.clean
    sizes = dict(row.found.get(column.name, {}))
    rate = sizes.pop("lr", None)
    model = {**protocol.model(column.model), **row.settings, **column.settings, **sizes}
    model |= more.get("settings", {})
    solver, counted_by = _solver(table, column, protocol)
    fit = {**(row.fit if as_paper else row.clean_fit), **column.fit, **more.get("fit", {})}
    if not as_paper:
        fit |= row.clean_found.get(column.name, {})
    elif rate is not None:
        fit["lr"] = rate
    for best in found:
        if _is_for(best, row, column, model):
            model |= best["model_settings"]
            fit |= {k: v for k, v in best["settings"].items() if k in best["searched"]}
    model |= solver
    fit["seed"] = seed
    if budget.epochs is not None:
        fit["epochs"] = budget.epochs
    if budget.size is not None:
        model |= {name: min(model[name], budget.size) for name in _SIZES if name in model}
        if model.get("restoring"):  # a start that no narrower field has
            model["width"] = max(model["width"], 2 * model["hidden"])
    return Cell(
        table=table.name,
        row=row,
        column=column,
        seed=seed,
        protocol=protocol,
        budget=budget,
        data={**_data_protocol(row, protocol), **row.data_settings, **column.data}
        | more.get("data", {}),
        model=model,
        fit=protocol.fit.changed(fit).as_json(),
        slips=tuple(dict.fromkeys((*column.slips, *more.get("slips", ())))),
        counted_by=counted_by,
        demo=demo,
        fold=fold,
        folds=table.folds,
    )


def _data_protocol(row: Row, protocol: Protocol) -> dict[str, Any]:
    """The loader's own protocol, where it has one."""
    known = data_set(row.data_set).settings()
    return {"protocol": protocol.name} if "protocol" in known else {}


def _solver(
    table: Table, column: Column, protocol: Protocol
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Arguments of the model for training, and the solver that counts afterwards."""
    if column.model not in _SOLVED or not table.solver:
        return {}, None
    if "rtol" not in table.solver:
        return dict(table.solver), None
    if protocol.adaptive:
        # torchdiffeq, which the paper's code used, steps a whole batch together.
        return {**table.solver, "step_control": "batch"}, None
    return {"method": "rk4"}, dict(table.solver)


def _is_for(best: Mapping[str, Any], row: Row, column: Column, model: Mapping[str, Any]) -> bool:
    if best["model"] != column.model or best["task"] != row.data:
        return False
    same = ("control", "counts")
    model_settings = best["model_settings"]
    return all(model_settings.get(name, model.get(name)) == model.get(name) for name in same)


def _matches(cell: Cell, pattern: str) -> bool:
    plain, wanted = cell.name.lower(), pattern.lower()
    names = [plain] if cell.fold is None else [plain, f"{plain}/fold-{cell.fold}"]
    forms = (wanted, f"{wanted}/*", f"*/{wanted}")
    return any(fnmatch.fnmatchcase(name, form) for name in names for form in forms)


def _plain(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in ".-" else "-" for c in name.lower())
    while "--" in kept:
        kept = kept.replace("--", "-")
    return kept.strip("-")
