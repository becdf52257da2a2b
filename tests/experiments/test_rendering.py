"""What is written: Markdown, CSV and LaTeX with ours beside the published, and the picture."""

import csv
import io
import statistics
from dataclasses import replace

from made_tables import ward_table

from onlinecde.experiments import cells_of, load_table, summarise
from onlinecde.experiments.rendering import (
    as_csv,
    as_latex,
    as_markdown,
    cost,
    cost_panels,
    write_tables,
)
from onlinecde.experiments.running import write_result

TESTS = {0: 0.75, 1: 0.78, 2: 0.71}


def made_summary(tmp_path, *, table=None, scale=1.0):
    """A summary of made results: three seeds of two columns, one failed, the third not run."""
    table = load_table(table or ward_table(tmp_path))
    cells = cells_of(table, seeds=list(TESTS))
    for cell in cells:
        result = {
            "cell": {},
            "status": "done",
            "digest": cell.digest,
            "test": TESTS[cell.seed] * scale,
            "validation": 0.8,
            "nfe_per_epoch": 0 if cell.column.model == "gru" else 1234 + cell.seed,
            "nfe_counted": "in training",
            "seconds_per_epoch": 2.0,
            "epochs": 5,
            "peak_memory_bytes": 3 * 2**20,
            "commit": "0123456789abcdef",
            "versions": {"onlinecde": "1", "torch": "2"},
            "hardware": {"processor": "one", "threads": 2},
        }
        if cell.column.name == "GRU-D":
            result = {"status": "failed", "digest": cell.digest, "reason": "ValueError: no & more"}
        if cell.column.name != "GRU-D" or cell.seed == 0:
            write_result(tmp_path / "out" / cell.place, result)
    return summarise(table, cells, tmp_path / "out")


def test_mean_and_deviation_stand_beside_the_published(tmp_path):
    summary = made_summary(tmp_path)
    text = as_markdown(summary)
    mean, deviation = statistics.fmean(TESTS.values()), statistics.stdev(TESTS.values())
    assert f"{mean:.3f} ± {deviation:.3f} (0.800 ± 0.020)" in text
    assert "| 1.24 (1.5) |" in text or "1.24 (1.5)" in text
    assert "2 s on a CPU, 3 MiB" in text
    assert "Failed: Deterioration/GRU-D: ValueError: no & more" in text
    assert "Commit 0123456789ab" in text
    assert "Protocol `clean`, budget `full`" in text


def test_the_cost_of_runs_on_two_kinds_of_machines_is_that_of_one(tmp_path):
    entry = made_summary(tmp_path).entry("Deterioration", "GRU")
    first, *others = entry.results
    fast = {**first, "seconds_per_epoch": 0.5, "hardware": {"gpu": "a GPU"}}
    assert cost(replace(entry, results=(fast, *others))) == "0.5 s on a GPU, 3 MiB"


def test_csv_has_one_line_for_each_place(tmp_path):
    summary = made_summary(tmp_path)
    rows = list(csv.DictReader(io.StringIO(as_csv(summary))))
    assert [row["column"] for row in rows] == ["GRU", "Online NCDE", "GRU-D"]
    assert float(rows[1]["test_mean"]) == 0.746667
    assert rows[1]["published_nfe_thousands"] == "1.5"
    assert (rows[1]["runs"], rows[1]["state"], rows[2]["state"]) == ("3", "done", "failed")
    assert rows[2]["test_mean"] == ""


def test_latex_is_balanced_and_escaped(tmp_path):
    text = as_latex(made_summary(tmp_path))
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    assert r"$0.747 \pm 0.035$" in text
    assert r"\scriptsize ($0.800 \pm 0.020$)" in text
    percent = made_summary(tmp_path / "b", table="slip-padding")
    assert r"(accuracy, \%)" in as_latex(percent)


def test_accuracy_is_in_per_cent_and_rows_may_stand_across(tmp_path):
    summary = made_summary(tmp_path, table="slip-padding")
    entry = summary.entry("CharacterTrajectories", "goes on")
    assert entry.mean() == 100 * statistics.fmean(TESTS.values())
    assert "| CharacterTrajectories (accuracy, %) | 74.7 ± 3.5 (83.6 ± 6.1) |" in as_markdown(
        summary
    )
    across = made_summary(tmp_path / "b", table="mimic-iv")
    lines = as_markdown(across).splitlines()
    assert "| model | Mortality (AUC) | LOS (RMSE) | Sepsis (AUC) |" in lines
    assert any(line.startswith("| GRU-dt-intensity | ") for line in lines)


def test_the_cost_is_evaluations_where_all_are_counted_and_seconds_otherwise(tmp_path):
    panels, axis = cost_panels(made_summary(tmp_path))
    assert axis == "seconds an epoch"  # a GRU has no evaluations
    (panel,) = panels
    assert {point.name: point.published for point in panel.points} == {
        "GRU": None,
        "Online NCDE": None,
    }
    panels, axis = cost_panels(made_summary(tmp_path / "b", table="controls"))
    assert axis.startswith("evaluations")
    assert len(panels) == 7
    assert panels[0].better == "lower"
    assert panels[2].points[0].published == (1.0, 83.6)


def test_all_files_are_written(tmp_path):
    files = write_tables(made_summary(tmp_path))
    assert sorted(file.name for file in files) == [
        "ward-cost.png",
        "ward-cost.svg",
        "ward.csv",
        "ward.md",
        "ward.tex",
    ]
    assert all(file.stat().st_size > 100 for file in files)
