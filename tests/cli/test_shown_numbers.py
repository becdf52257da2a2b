"""Small and large numbers can be read, on a terminal and on a page."""

import io
import re

import numpy as np
import pytest
import torch
from rich.console import Console

import onlinecde as oc
from onlinecde.cli.displays import FitDisplay
from onlinecde.cli.terminal_tables import estimate_cell, evaluation_table
from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Difference, Estimate, shown
from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.report import report
from onlinecde.evaluation.results import compare
from onlinecde.evaluation.runs import JudgedRuns


@pytest.mark.parametrize("value", [1.234e-9, 0.0051, 0.25, 7.5, 432.1, 99_999.0, 4.56e12])
def test_at_least_three_figures_are_shown_and_never_more_than_a_column(value):
    for one in (value, -value):
        text = shown(one)
        assert float(text.replace(",", "")) == pytest.approx(one, rel=5e-3)
        assert len(text) <= 10


def test_lines_of_epochs_stand_under_their_heads_whatever_the_unit():
    text = io.StringIO()
    with FitDisplay("rmse", 100, 3, Console(file=text, width=120)) as display:
        for number, size in enumerate((1.06e-6, 0.7, 2.345e9), 1):
            display.epoch(
                {"epoch": number, "train_loss": size, "validation_loss": 2 * size, "nfe": 12,
                 "validation_rmse": -size, "seconds": 1.0},
                best=False,
            )  # fmt: skip
    lines = text.getvalue().splitlines()
    ends = [[word.end() for word in re.finditer(r"\S+( loss)?", line)] for line in lines]
    assert all(each == ends[0] for each in ends)
    assert "1.06e-06" in lines[1]


def regression(size):
    random = np.random.default_rng(0)
    values = random.normal(size=(40, 3, 2)).astype(np.float32)
    series = oc.SeriesBatch.from_padded(np.arange(3.0)[None].repeat(40, 0), values)
    return Task.build("made", series, size * random.normal(size=40), kind="regression")


@pytest.mark.parametrize("size", [1e-6, 1e9])
def test_a_regression_in_small_or_large_units_is_shown_in_figures(size):
    task = regression(size)
    torch.manual_seed(0)
    model = oc.GRU(channels=2, hidden=4)
    with torch.no_grad():
        model.readout.layers.weight.mul_(size)
        model.readout.layers.bias.mul_(size)
    found = evaluate(model, task, bootstrap=20)
    rmse = found.metrics["rmse"]
    assert f"{rmse.value:.4g}".replace("-", "\N{MINUS SIGN}") in report(found)
    assert f"{rmse.value:.4g} ({rmse.low:.4g} to {rmse.high:.4g})" in str(found)
    runs = [JudgedRuns(name, (found,), found) for name in ("a", "b")]
    table = evaluation_table(runs, [found.metrics] * 2, [compare(found, found)], None)
    text = io.StringIO()
    Console(file=text, width=100).print(table)
    assert text.getvalue().count(f"{rmse.value:.4g}") == 2


def test_a_small_difference_of_metrics_is_shown_as_they_are():
    assert (
        estimate_cell(Difference(0.0004, -0.001, 0.002), 0.8)
        == "0.0004\n[dim]-0.001 to 0.002[/dim]"
    )
    assert str(Estimate(0.8, 0.75, 0.85)) == "0.8000 (0.7500 to 0.8500)"
