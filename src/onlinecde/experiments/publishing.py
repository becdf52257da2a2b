"""Published results: all runs of a table in one small file, and the table read back from it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onlinecde.experiments.machine import commit, source
from onlinecde.experiments.protocols import BUDGETS, PROTOCOLS
from onlinecde.experiments.summary import Entry, Summary, notes_on
from onlinecde.experiments.table import Column, ExperimentError, Published, Row, Table
from onlinecde.files import replace_file

FORMAT = "onlinecde results 1"

_OF_A_TABLE = ("title", "about", "down", "across", "transposed", "solver")
_OF_A_RUN = (
    *("test", "validation", "test_metrics", "epochs", "best_epoch", "nfe_per_epoch", "nfe_counted"),
    *("seconds_per_epoch", "seconds", "seconds_this_start", "peak_memory_bytes", "finished"),
)
_MADE = ("commit", "source", "versions", "hardware")


def publish(summary: Summary, folder: str | os.PathLike[str], command: str) -> Path:
    """Write what is done of a table as one file, named after it; `command` makes the numbers again.

    Everything a reader needs is inside: each run's numbers, settings, versions, machine, commit,
    and the number published in the paper. The same results give the same bytes. Runs the file
    already holds, made elsewhere with the settings the table still has, are kept.
    """
    home = Path(folder)
    file = home / f"{published_name(summary)}.json"
    earlier = _places(read_results(file)) if file.exists() else {}
    models = {column.name: column.model for column in summary.table.columns}
    stored = [
        _place(entry, models[entry.column], earlier.get(name))
        for name, entry in summary.entries.items()
    ]
    places = [place for place in stored if place["runs"] or place["failures"]]
    if not any(place["runs"] for place in places):
        raise ExperimentError(
            f"no cell of '{summary.table.name}' is done in {summary.folder} with these settings: "
            f"run `{command}` first."
        )
    made: list[dict[str, Any]] = []
    for place in places:
        for run in place["runs"]:
            about = run.pop("made")
            if about not in made:
                made.append(about)
            run["made"] = made.index(about)
    content = {
        "format": FORMAT,
        "table": summary.table.name,
        "command": command,
        "protocol": summary.protocol,
        "budget": summary.budget,
        "demo": summary.demo,
        **{name: getattr(summary.table, name) for name in _OF_A_TABLE},
        **({"folds": summary.table.folds} if summary.table.folds else {}),
        "made": made,
        "places": places,
    }
    home.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return file


def published_name(summary: Summary) -> str:
    """The table's name; what is not the clean protocol at full budget says so."""
    usual = {"clean", "full"}
    more = [word for word in (summary.protocol, summary.budget) if word not in usual]
    return "-".join([summary.table.name, *more, *(["demo"] if summary.demo else [])])


def command_for(
    table: str,
    *,
    protocol: str = "clean",
    budget: str = "full",
    seeds: Sequence[int] = (),
    found: Iterable[str | os.PathLike[str]] = (),
    demo: bool = False,
) -> str:
    """The command that makes a table's numbers, with what is not the default.

    >>> command_for("controls", protocol="paper", seeds=[0, 1])
    'onlinecde reproduce controls --protocol paper --seeds 0,1'
    """
    words = ["onlinecde", "reproduce", table]
    words += ["--protocol", protocol] if protocol != "clean" else []
    words += ["--budget", budget] if budget != "full" else []
    words += ["--seeds", ",".join(map(str, seeds))] if seeds else []
    for file in found:
        words += ["--found", os.fspath(file)]
    return shlex.join([*words, *(["--demo"] if demo else [])])


def read_published(file: str | os.PathLike[str]) -> Summary:
    """A published file as the summary it was made from, ready to be tabulated and drawn."""
    content = read_results(file)
    places = content["places"]
    rows = {place["row"]: place for place in places}
    columns = {place["column"]: place["model"] for place in places}
    table = Table(
        name=content["table"],
        **{name: content[name] for name in _OF_A_TABLE},
        folds=content.get("folds", 0),
        columns=tuple(Column(name, model) for name, model in columns.items()),
        rows=tuple(Row(name, place["data"], place["metric"]) for name, place in rows.items()),
    )
    entries = {
        (row.name, column.name): Entry(row, column.name, None)
        for row in table.rows
        for column in table.columns
    }
    for name, place in _places(content).items():
        theirs = place["published"]
        entries[name] = Entry(
            row=entries[name].row,
            column=place["column"],
            published=None if theirs is None else Published(**theirs),
            results=tuple({**run, **run["made"]} for run in place["runs"]),
            failures=tuple(place["failures"]),
        )
    protocol, budget = PROTOCOLS[content["protocol"]], BUDGETS[content["budget"]]
    return Summary(
        table=table,
        protocol=protocol.name,
        budget=budget.name,
        demo=content["demo"],
        entries=entries,
        notes=notes_on(table, protocol, budget, content["demo"], entries, {}),
        folder=Path(file).parent,
    )


def read_results(file: str | os.PathLike[str]) -> dict[str, Any]:
    """A published file as it stands, known to be one."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(f"{file} cannot be read: {error}.") from error
    except ValueError as error:
        raise ExperimentError(f"{file} is not JSON ({error}): publish it again.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ExperimentError(f"{file} holds no published results: write it with --publish.")
    return content


def _places(content: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The places of a file by row and column, with each run's own circumstances in it."""
    made = content["made"]
    return {
        (place["row"], place["column"]): {
            **place,
            "runs": [{**run, "made": made[run["made"]]} for run in place["runs"]],
        }
        for place in content["places"]
    }


def _place(entry: Entry, model: str, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    settings = _settings_of_all(entry)
    runs = {_which(result["cell"]): _run(result) for result in entry.results}
    first = entry.results[0] if entry.results else {}
    if earlier is not None and earlier["settings"] == settings:
        runs = {_which(run): run for run in earlier["runs"]} | runs
        first = first or earlier
    theirs = entry.published
    asked = [(cell.fold, cell.seed) for cell in entry.cells]
    return {
        "row": entry.row.name,
        "column": entry.column,
        "metric": entry.row.metric,
        "data": entry.row.data,
        "model": model,
        "settings": settings,
        "streams": first.get("streams", {}),
        "weights": first.get("weights"),
        "published": None
        if theirs is None
        else {"mean": theirs.mean, "std": theirs.std, "nfe": theirs.nfe},
        "runs": [runs[which] for which in asked if which in runs],
        "failures": list(dict.fromkeys(entry.failures)),
    }


def _settings_of_all(entry: Entry) -> dict[str, Any]:
    """What all runs of a place have in common, as it reads back from a file."""
    if not entry.cells:
        return {}
    settings = json.loads(json.dumps(entry.cells[0].settings))
    settings["fit"].pop("seed")
    settings["data"].pop("fold", None)
    return settings


def _which(named: Mapping[str, Any]) -> tuple[int | None, int]:
    return named.get("fold"), named["seed"]


def _run(result: Mapping[str, Any]) -> dict[str, Any]:
    content = {name: _rounded(result.get(name)) for name in _OF_A_RUN}
    made = {name: result.get(name) for name in _MADE}
    if (made["commit"] or "+").endswith("+") and made["source"] == source():
        # Run from the very files of this checkout, in a copy without git or before they were committed.
        made["commit"] = commit() or made["commit"]
    which = {name: result["cell"][name] for name in ("fold", "seed") if name in result["cell"]}
    return {**which, **content, "made": made}


def _rounded(value: Any) -> Any:
    """Six digits that count: what is beyond them is not the same on two machines."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
