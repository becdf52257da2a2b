"""Judged by the clock: at query times, beside the best possible, by time since the last row, both ways of asking."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.cli import main
from onlinecde.data import simulate_ward
from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.following import follow
from onlinecde.evaluation.report import report
from onlinecde.evaluation.results import compare
from onlinecde.evaluation.since_row import elapsed_edges
from onlinecde.models.asking import ask
from onlinecde.plots.evaluation_curves import KNOWN
from sklearn import metrics as oracle


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(240, seed=11)


def small(task, kind=oc.GRU, seed=0, **more):
    torch.manual_seed(seed)
    sizes = {"channels": 12, "hidden": 4, "outputs": 1, "static": 2}
    sizes |= {"readout": {"kind": "binary"}} if kind is oc.NeuralCDE else {"kind": "binary"}
    return kind(**sizes, **more).fit_scales(task.split("train")[0]).eval()


@pytest.fixture(scope="module")
def found(ward):
    model = small(ward.task, oc.ODERNN)
    return evaluate(model, ward.task, bootstrap=60, at="every=1h", event_at=ward.event_hours)


def test_metrics_are_those_of_all_query_times(ward, found):
    asked = ward.task.asked("every=1h")
    series, labels = asked.split("test")
    times = asked.split_times("test")
    known = ~labels.isnan()
    with torch.no_grad():
        risk = ask(small(ward.task, oc.ODERNN), series, times)[..., 0].sigmoid()[known].double()
    y, p = labels[known].numpy(), risk.numpy()
    assert found.labels_given == len(y)
    assert found.metrics["auc"].value == pytest.approx(oracle.roc_auc_score(y, p), abs=1e-6)
    assert found.metrics["log_loss"].value == pytest.approx(oracle.log_loss(y, p), abs=1e-6)
    assert (found.per, found.asked_when) == ("time", "asked every hour")
    assert found.before_event
    assert found.alarms is not None


def test_the_excess_is_the_log_loss_less_that_of_the_best_possible(ward, found):
    asked = ward.task.asked("every=1h")
    at = ward.task.splits["test"]
    labels, best = asked.labels[at], asked.known_risk.risk[at]
    known = ~labels.isnan()
    y, p = labels[known].numpy(), best[known].numpy()
    assert found.reference.metrics["log_loss"].value == pytest.approx(oracle.log_loss(y, p))
    gap = compare(found, found.reference)["log_loss"]
    excess = found.metrics["excess"]
    assert (excess.value, excess.low, excess.high) == (gap.value, gap.low, gap.high)
    other = evaluate(
        small(ward.task), ward.task, bootstrap=60, at="every=1h", reference=found.reference
    )
    between = compare(found, other)
    assert between["excess"].value == pytest.approx(between["log_loss"].value)
    assert other.reference is found.reference


def test_by_time_since_the_last_row_is_counted_line_by_line(ward, found):
    asked = ward.task.asked("every=1h")
    series, labels = asked.split("test")
    times, risk = asked.split_times("test"), found.probabilities[..., 0]
    lines = []
    for stream in range(len(series)):
        rows = series.times[stream, : int(series.rows[stream])]
        for query in range(times.shape[1]):
            if not bool(labels[stream, query].isnan()):
                last = float(rows[rows <= times[stream, query]].max())
                since = float(times[stream, query]) - last
                lines.append((since, float(labels[stream, query]), float(risk[stream, query])))
    since, y, p = np.array(lines).T
    assert sum(one.labels for one in found.since_row) == len(lines)
    for one in found.since_row:
        here = (since >= one.start) & (since < (one.end or np.inf))
        assert one.labels == here.sum()
        assert one.loss.value == pytest.approx(oracle.log_loss(y[here], p[here], labels=[0, 1]))
    assert found.since_row[-1].end is None
    assert elapsed_edges(torch.zeros(3, 2)) == ()


def test_at_the_rows_the_clock_says_what_the_rows_say(ward):
    model = small(ward.task, oc.NeuralCDE, field={"width": 6})
    rows = evaluate(model, ward.task, bootstrap=0)
    asked = evaluate(model, ward.task, bootstrap=0, at="rows")
    for name in ("auc", "log_loss", "brier"):
        assert asked.metrics[name].value == pytest.approx(rows.metrics[name].value, abs=1e-6)
    assert asked.labels_given == rows.labels_given


def test_a_model_that_is_online_at_rows_is_named_by_how_it_is_asked(ward):
    model = small(ward.task, oc.GRUD)
    held, moved = (
        evaluate(model, ward.task, bootstrap=0, at="clock", asking=asking)
        for asking in ("hold", "empty-rows")
    )
    assert (held.model, moved.model) == ("GRUD, holds its last answer", "GRUD, given empty rows")
    assert held.metrics["log_loss"].value != moved.metrics["log_loss"].value
    model.asking = "empty-rows"
    again = evaluate(model, ward.task, bootstrap=0, at="clock")
    assert again.metrics == moved.metrics
    with pytest.raises(ValueError, match="ODERNN answers at any time"):
        evaluate(small(ward.task, oc.ODERNN), ward.task, at="clock", asking="empty-rows")


def test_the_best_possible_is_drawn_between_rows(ward):
    one = follow({"GRU": small(ward.task)}, ward.task, streams=1)[0]
    times, risk, stepped = one.curves[KNOWN]
    place = [str(name) for name in ward.task.series.streams].index(one.stream)
    assert not stepped
    assert len(times) > 2 * int(ward.task.series.rows[place])
    at = torch.from_numpy(times)[None]
    known = ward.task.known_risk.select(torch.tensor([place])).at(at).risk[0]
    assert np.array_equal(risk, known.numpy(), equal_nan=True)
    assert times[-1] == pytest.approx(float(ward.task.truth.until[place]))


def test_the_page_has_the_clock_first_and_rows_second(ward, found):
    rows = evaluate(small(ward.task, oc.ODERNN), ward.task, bootstrap=20)
    page = report(found, at_rows=[rows])
    assert "asked every hour" in page
    order = [
        page.index(f"<h2>{head}</h2>")
        for head in ("Metrics", "By time since the last row", "At rows")
    ]
    assert order == sorted(order)
    assert "Log loss above the best possible" in page
    assert "<h2>At rows</h2>" not in report(found)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, ward):
    home = tmp_path_factory.mktemp("models")
    task = {"source": "registry", "name": "simulated-ward"}
    extra = {"task": task | {"arguments": {"streams": 240, "simulation_seed": 11}}}
    names = ward.task.series.channels
    oc.save(small(ward.task, oc.ODERNN), home / "one", extra=extra, channels=names)
    oc.save(small(ward.task, oc.GRUD), home / "two", extra=extra, channels=names)
    return home


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, arguments)])
    out = capsys.readouterr()
    return ended.value.code, out.out + out.err


def test_the_command_judges_by_the_clock_first_and_at_rows_second(saved, ward, capsys, tmp_path):
    file = tmp_path / "found.json"
    code, text = run(
        capsys,
        saved / "one",
        "--against",
        saved / "two",
        "--asking",
        "both",
        "--bootstrap",
        20,
        "--json",
        file,
    )
    assert code == 0, text
    text = " ".join(text.split())
    assert text.index("asked every hour") < text.index("a label at every row")
    told = json.loads(file.read_text())
    clock = evaluate(small(ward.task, oc.ODERNN), ward.task, bootstrap=20, at="every=1h")
    assert told["clock"]["evaluation"]["metrics"]["excess"]["value"] == pytest.approx(
        clock.metrics["excess"].value
    )
    named = [one["model"] for one in told["clock"]["against"]]
    assert named == ["GRUD, holds its last answer", "GRUD, given empty rows"]
    assert [one["model"] for one in told["against"]] == ["GRUD"]
    assert told["evaluation"]["per"] == "row"
    assert told["clock"]["evaluation"]["since_row"][0]["labels"] > 0


def test_the_command_asks_at_the_times_of_a_table(saved, ward, capsys, tmp_path):
    table, file = tmp_path / "asked.csv", tmp_path / "found.json"
    series, labels = ward.task.split("test")
    names = [
        name for name, own in zip(series.streams, labels, strict=True) if bool((own == 1).any())
    ][:5]
    names += [
        name for name, own in zip(series.streams, labels, strict=True) if not bool((own == 1).any())
    ][:5]
    table.write_text(
        "stream,time\n" + "".join(f"{name},{t}\n" for name in names for t in (1.5, 0.25))
    )
    code, text = run(capsys, saved / "one", "--at", table, "--bootstrap", 0, "--json", file)
    assert code == 0, text
    assert json.loads(file.read_text())["evaluation"]["labels_given"] <= 20
    assert "asked at given times" in text
    code, text = run(capsys, saved / "one", "--at", "sometimes")
    assert code == 2
    assert "every=1h" in text
    assert "there is no such file" in text


def test_a_clock_that_rows_come_with_is_no_clock_of_its_own(ward):
    task = ward.task
    assert str(task.clock) == "every=1"
    assert task.asked("rows").clock is None
    assert replace(task, truth=None).clock is None
    times = torch.arange(0.0, 40.0).expand(4, -1)
    hourly = oc.SeriesBatch.from_padded(times, torch.zeros(4, 40, 12))
    truth = task.truth.select(torch.arange(4))
    hourly = replace(
        task, series=hourly, truth=replace(truth, until=torch.full((4,), 39.0).double())
    )
    assert hourly.clock is None
