"""docs/results.md, the results on docs/index.md and their pictures: `python -m benchmarks.results_page`.

All numbers come from results/ and benchmarks/results/, the words from results/page.md.jinja. What has no
file yet is left out. Tests check that both documents hold what this makes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from benchmarks.epoch_picture import epoch_figure, epoch_table
from benchmarks.results_slips import slips_for
from benchmarks.results_steps import FORMAT as STEPS
from benchmarks.results_steps import steps_table
from benchmarks.results_tables import PublishedComparison, PublishedTable
from benchmarks.search import FORMAT as SEARCH
from benchmarks.search import by_model, search_table
from benchmarks.tables import ROOT, with_part
from onlinecde.experiments.rendering import cost_panels
from onlinecde.files import replace_file
from onlinecde.plots import save_figure
from onlinecde.plots.accuracy_cost import accuracy_cost_figure
from onlinecde.plots.contributions import ExplainedStream, contributions_figure

RESULTS = ROOT / "results"
TIMINGS = ROOT / "benchmarks" / "results" / "epoch.json"
PAGE = ROOT / "docs" / "results.md"
HOME = ROOT / "docs" / "index.md"
IMAGES = ROOT / "docs" / "images"


class Found(dict[str, Any]):
    """What there is, by name; None for what is not there yet."""

    def __missing__(self, name: str) -> None:
        return None


def read_all(folder: Path = RESULTS) -> Found:
    """Every file of results, by name with underscores: a table, a comparison, a search or drawn streams."""
    kinds = {
        "onlinecde results 1": lambda file, told: PublishedTable(file),
        "onlinecde evaluation 1": PublishedComparison,
        "onlinecde streams 1": lambda file, told: told,
        STEPS: lambda file, told: {**told, "table": steps_table(told)},
        SEARCH: lambda file, told: _search(told),
    }
    found = Found()
    for file in sorted(folder.glob("*.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        if told.get("format") not in kinds:
            raise SystemExit(f"{file} is none of: {', '.join(kinds)}. Write it with --publish.")
        found[file.stem.replace("-", "_")] = kinds[told["format"]](file, told)
    return found


def _search(told: dict[str, Any]) -> dict[str, Any]:
    many = [len(trials) for trials in by_model(told).values()]
    return {**told, "table": search_table(told), "fewest": min(many), "most": max(many)}


def page(folder: Path = RESULTS) -> str:
    """docs/results.md."""
    return _rendered("page.md.jinja", folder)


def with_results(text: str, folder: Path = RESULTS) -> str:
    """The home page with its results made anew."""
    return with_part(text, "results", lambda: _rendered("home.md.jinja", folder).strip())


def pictures(folder: Path = RESULTS) -> dict[str, Figure]:
    """The pictures of the page, by name."""
    found, drawn = read_all(folder), {}
    if "controls" in found:
        panels, axis = cost_panels(found["controls"].summary)
        drawn["results-controls"] = accuracy_cost_figure(panels, axis)
    if "patients" in found:
        streams = [ExplainedStream(**told) for told in found["patients"]["streams"]]
        drawn["results-patients"] = contributions_figure(streams)
    if TIMINGS.exists():
        drawn["results-epoch"] = epoch_figure(_timings())
    return drawn


def _rendered(template: str, folder: Path) -> str:
    words = Environment(
        loader=FileSystemLoader(RESULTS),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found = read_all(folder)
    timings = _timings() if TIMINGS.exists() else None
    more = {"timings": timings, "epoch_table": epoch_table(timings) if timings else ""}
    return words.get_template(template).render(found=found, **more, **slips_for(found))


def _timings() -> dict[str, Any]:
    return json.loads(TIMINGS.read_text())


if __name__ == "__main__":
    replace_file(PAGE, page())
    replace_file(HOME, with_results(HOME.read_text()))
    for name, figure in pictures().items():
        save_figure(figure, IMAGES, name)
