"""What `evaluate` finds is what scikit-learn finds; bad input is refused; comparisons are paired."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.cli import main
from onlinecde.data import DataError, Task, simulate_ward
from onlinecde.data.sets.physionet_2019 import challenge_utility
from onlinecde.evaluation.bootstrap import Cohort
from onlinecde.evaluation.evaluating import check_fit, evaluate
from onlinecde.evaluation.event_time import before_event, event_times, first_alarms
from onlinecde.evaluation.following import follow
from onlinecde.evaluation.metrics import METRICS, Metric, MetricError
from onlinecde.evaluation.predictions import as_probabilities, predict_task
from onlinecde.evaluation.report import report
from onlinecde.evaluation.results import compare, mean_metrics
from onlinecde.evaluation.utility import best_threshold, utility_of
from onlinecde.models.flat_settings import maker
from onlinecde.series import Schema
from onlinecde.training.task_source import check_content, content_of, load_task


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(240, seed=11)


def small(task, cls=oc.GRU, *, seed=1, **settings):
    torch.manual_seed(seed)
    series = task.series
    model = maker(cls.__name__)(
        channels=len(series.channels),
        hidden=6,
        outputs=task.outputs,
        static=len(series.features),
        kind=task.kind,
        **settings,
    )
    model.fit_scales(series)
    return model.eval()


@pytest.fixture(scope="module")
def found(ward):
    return evaluate(
        small(ward.task),
        ward.task,
        bootstrap=60,
        reference=ward.online_risk,
        event_at=ward.event_hours,
    )


def made_task(kind, **more):
    random = np.random.default_rng(3)
    n = 60
    series = oc.SeriesBatch.from_padded(
        np.arange(4.0)[None].repeat(n, 0), random.normal(size=(n, 4, 2)).astype(np.float32)
    )
    labels = {
        "multiclass": random.integers(0, 3, n),
        "regression": random.normal(size=n),
        "binary": random.integers(0, 2, n),
        "multilabel": random.integers(0, 2, (n, 2)),
    }[kind]
    classes = ("a", "b", "c") if kind == "multiclass" else ()
    return Task.build(f"made {kind}", series, labels, kind=kind, classes=classes, **more)


def test_a_metric_is_one_row_of_its_table(ward, monkeypatch):
    """Its value, its interval, the report, training by it: all from one definition."""
    definition = Metric(
        "misses", "Misses at one half", "min", ("binary",), METRICS["accuracy"].define
    )
    monkeypatch.setitem(METRICS, "misses", definition)
    task = replace(ward.task, metric="misses")
    evaluation = evaluate(small(task), task, bootstrap=20)
    estimate = evaluation.metrics["misses"]
    assert (evaluation.metric, estimate) == ("misses", evaluation.metrics["accuracy"])
    assert estimate.low < estimate.high
    assert "Misses at one half" in report(evaluation)
    done = oc.fit(
        task, "gru", epochs=2, model_settings={"hidden": 4}, device="cpu", monitor="metric"
    )
    assert done.best["validation_misses"] == min(one["validation_misses"] for one in done.history)


def test_metrics_along_time_pool_all_rows_of_the_split(ward, found):
    at = ward.task.splits["test"]
    series, labels = ward.task.split("test")
    known = ~labels.isnan()
    model = small(ward.task)
    said = as_probabilities(model.readout, predict_task(model, series, "row"))[..., 0]
    y, p = labels[known].numpy(), said[known].numpy()
    assert found.metrics["auc"].value == pytest.approx(oracle.roc_auc_score(y, p), abs=1e-6)
    assert found.metrics["brier"].value == pytest.approx(oracle.brier_score_loss(y, p), abs=1e-6)
    assert (found.streams, found.labels_given, found.positive) == (len(at), len(y), y.sum())
    for name, estimate in found.metrics.items():
        if name != "ece":
            assert estimate.low <= estimate.value <= estimate.high, name


def test_the_known_risk_is_judged_beside_the_model(ward, found):
    _, labels = ward.task.split("test")
    known = ~labels.isnan()
    risk = ward.online_risk[ward.task.splits["test"]][:, : labels.shape[1]]
    expected = oracle.roc_auc_score(labels[known].numpy(), risk[known].numpy())
    assert found.reference.metrics["auc"].value == pytest.approx(expected, abs=1e-6)
    assert found.reference.value > found.value
    with pytest.raises(ValueError, match="reference has shape"):
        evaluate(small(ward.task), ward.task, reference=ward.online_risk[:, :3])


def test_everything_but_arrays_goes_to_json_and_comes_back(found):
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["metrics"]["auc"]["value"] == found.value
    assert told["reference"]["model"] == "known risk"
    assert len(told["before_event"]) == 6
    assert "probabilities" not in told
    assert "AUROC" in str(found)


def test_the_same_seed_gives_the_same_numbers(ward, found):
    model = small(ward.task)
    again = evaluate(model, ward.task, bootstrap=60, event_at=ward.event_hours)
    assert again.metrics == found.metrics
    other = evaluate(model, ward.task, bootstrap=60, event_at=ward.event_hours, seed=1)
    assert other.metrics["auc"] != found.metrics["auc"]
    assert evaluate(model, ward.task, bootstrap=0).metrics["auc"].low is None


def test_streams_of_one_subject_are_drawn_together(ward):
    task = replace(ward.task, subjects=tuple(i // 10 for i in range(len(ward.task.series))))
    task = replace(task, splits={"test": torch.arange(len(task.series))})
    few = evaluate(small(task), task, bootstrap=100)
    assert few.subjects == 24
    many = evaluate(
        small(task), replace(task, subjects=ward.task.subjects), bootstrap=100, metrics=["auc"]
    )
    assert many.subjects == 240
    assert many.value == few.value
    assert list(many.metrics) == ["auc"]


@pytest.mark.parametrize("kind", ["multiclass", "regression", "binary", "multilabel"])
def test_every_kind_of_task_with_one_label_a_stream(kind):
    task = made_task(kind)
    found = evaluate(small(task), task, "train", bootstrap=30)
    assert found.metrics[task.metric].low <= found.value <= found.metrics[task.metric].high
    assert (found.calibration is not None) == (kind == "binary")
    if kind == "multiclass":
        labels = task.split("train")[1].numpy()
        guess = found.probabilities.argmax(1).numpy()
        assert np.array_equal(oracle.confusion_matrix(labels, guess), found.confusion)
        precise, recall, _, _ = oracle.precision_recall_fscore_support(
            labels, guess, zero_division=0
        )
        assert [one.recall for one in found.per_class] == pytest.approx(recall)
        assert [one.precision or 0 for one in found.per_class] == pytest.approx(precise)


def test_one_class_has_no_auc_but_a_reason():
    task = made_task("binary")
    only = torch.nonzero(task.labels == 0)[:, 0]
    task = replace(task, splits={**task.splits, "test": only})
    found = evaluate(small(task), task, bootstrap=20)
    assert found.value is None
    assert "both classes" in found.metrics["auc"].reason
    assert found.metrics["brier"].value is not None
    assert "undefined: every label is 0" in str(found)


def test_what_cannot_be_evaluated_is_refused(ward):
    task, model = ward.task, small(ward.task)
    with pytest.raises(DataError, match="no split 'final'"):
        evaluate(model, task, "final")
    empty = replace(task, splits={**task.splits, "test": torch.empty(0, dtype=torch.int64)})
    with pytest.raises(DataError, match=r"split 'test' .* is empty"):
        evaluate(model, empty)
    with pytest.raises(MetricError, match="no metric 'f1'"):
        evaluate(model, task, metrics=["auc", "f1"])
    with pytest.raises(MetricError, match="name at least one"):
        evaluate(model, task, metrics=[])
    with pytest.raises(ValueError, match="made for 3"):
        evaluate(oc.GRU(channels=3, hidden=2, kind="binary", static=2), task)
    with pytest.raises(
        ValueError, match="binary with 1 outputs, the model was made for regression"
    ):
        evaluate(oc.GRU(channels=12, hidden=2, static=2), task)
    headless = small(task)
    headless.readout = torch.nn.Linear(6, 1)
    with pytest.raises(ValueError, match="GRU has no `Readout`"):
        evaluate(headless, task)
    with pytest.raises(ValueError, match="bootstrap is -1"):
        evaluate(model, task, bootstrap=-1)
    with pytest.raises(ValueError, match="one for each of the 240 streams"):
        evaluate(model, task, bootstrap=0, event_at=np.zeros(3))
    with pytest.raises(ValueError, match="each above the last"):
        evaluate(model, task, bootstrap=0, hours=[4, 2])
    model.schema = Schema(("heart", "kidneys", *map(str, range(10))))
    with pytest.raises(ValueError, match="none of the model's channels"):
        check_fit(model, task)


def test_a_model_that_puts_out_nan_has_no_metrics(ward):
    model = small(ward.task)
    with torch.no_grad():
        model.readout.layers.bias.fill_(torch.nan)
    found = evaluate(model, ward.task, bootstrap=10)
    assert all(estimate.value is None for estimate in found.metrics.values())
    assert "not finite" in found.metrics["auc"].reason
    assert found.calibration is None


def test_differences_are_on_the_same_subjects(ward, found):
    same = compare(found, found)
    assert all(one.value == 0 for one in same.values())
    assert (same["auc"].low, same["auc"].high, same["auc"].above_zero) == (0, 0, 0)
    best = compare(found.reference, found)["auc"]
    assert best.value == pytest.approx(found.reference.value - found.value)
    drawn = found.reference.drawn["auc"] - found.drawn["auc"]
    assert best.above_zero == (drawn > 0).mean()
    assert (best.low, best.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    with pytest.raises(ValueError, match="seed is 0 in the first evaluation, 5 in the second"):
        compare(found, replace(found, seed=5))
    with pytest.raises(ValueError, match="other labels"):
        compare(found, replace(found, labels=1 - found.labels))


def test_event_times_come_from_the_first_positive_row(ward):
    told, true = event_times(ward.task), ward.event_hours.numpy()
    labels, times = ward.task.labels.numpy(), ward.task.series.times.numpy()
    ever = (labels == 1).any(1)
    assert np.array_equal(np.isinf(told), ~ever)
    assert np.array_equal(np.isnan(told), labels[:, 0] == 1)
    some = np.isfinite(told)
    # A label turns to 1 at the first row within 12 hours: at most one gap between rows late.
    gap = np.diff(times[some], axis=1).max(1)
    late = told[some] - true[some]
    assert some.sum() > 5
    assert (late >= -0.26).all()
    assert (late <= gap).all()
    assert event_times(ward.task, 0.0)[some] == pytest.approx(told[some] - 12)


def test_rows_before_the_event_are_ranked_against_event_free_streams():
    random = np.random.default_rng(8)
    scores, times = random.random((40, 20)).round(1), np.arange(20.0)[None].repeat(40, 0)
    events = np.where(np.arange(40) < 15, random.uniform(5, 20, 40), np.inf)
    events[0] = np.nan
    labelled = random.random((40, 20)) < 0.8
    cohort = Cohort.of(range(40), resamples=20, seed=0)
    table = before_event(scores, labelled, times, events, cohort, edges=(0, 3, 8))
    for one in table:
        ahead = events[:, None] - times
        here = labelled & (ahead >= one.start) & (ahead < one.end)
        free = labelled & np.isinf(events)[:, None]
        y = np.r_[np.ones(here.sum()), np.zeros(free.sum())]
        expected = oracle.roc_auc_score(y, np.r_[scores[here], scores[free]])
        assert one.auc.value == pytest.approx(expected)
        assert (one.rows, one.streams) == (here.sum(), here.any(1).sum())
        assert one.auc.low <= one.auc.value <= one.auc.high
    far = before_event(scores, labelled, times, events, cohort, edges=(90, 99))[0]
    assert far.auc.value is None
    assert "no row so long" in far.auc.reason


def test_first_alarms_worked_out_by_hand():
    times = np.arange(4.0)[None].repeat(13, 0)
    events = np.array([3.0, 2.0, np.nan] + [np.inf] * 10)
    scores = np.zeros((13, 4))
    scores[3:, 1] = np.arange(10) / 10  # the highest of event-free streams: 0 to 0.9
    scores[0, 1], scores[0, 2] = 0.85, 0.95  # one of ten may alarm, so alarms are above 0.8
    scores[1, 3] = 1.0  # after the event
    found = first_alarms(scores, np.ones((13, 4), bool), times, events)
    assert found.threshold == pytest.approx(0.8)
    assert (found.alarmed, found.events, found.caught) == (0.1, 2, 1)
    assert found.lead == (2.0, 2.0, 2.0)
    assert first_alarms(scores, np.ones((13, 4), bool), times, np.full(13, np.inf)) is None


def slow_utility(alarm, hours):
    """The published worth of one hour of a patient with sepsis; `hours` from its onset."""
    if hours > 3:
        return 0.0
    if alarm and hours <= -6:
        return max((hours + 12) / 6, -0.05)
    if alarm:
        return 1 - (hours + 6) / 9
    return 0.0 if hours <= -6 else -2 * (hours + 6) / 9


def test_utility_is_as_published():
    random = np.random.default_rng(4)
    times = np.arange(1.0, 41)[None].repeat(30, 0)
    labels = np.zeros((30, 40))
    for stream in range(12):
        labels[stream, random.integers(0, 40) :] = 1
    labels[20, 30:] = np.nan
    scores = random.random((30, 40)).round(2)

    def slow(alarms):
        total = 0.0
        for stream, row in np.argwhere(~np.isnan(labels)):
            if (labels[stream] == 1).any():
                onset = times[stream, np.argmax(labels[stream] == 1)] + 6
                total += slow_utility(alarms[stream, row], times[stream, row] - onset)
            else:
                total += -0.05 * alarms[stream, row]
        return total

    onset = np.where((labels == 1).any(1), np.argmax(labels == 1, 1) + 7.0, np.inf)
    ideal = (times >= onset[:, None] - 12) & (times <= onset[:, None] + 3)
    silent = slow(np.zeros_like(scores, bool))

    def normalised(alarms):
        return (slow(alarms) - silent) / (slow(ideal) - silent)

    worth = challenge_utility(labels, times)
    for threshold in (0.1, 0.5, 0.9):
        alarms = scores >= threshold
        assert utility_of(alarms, worth) == pytest.approx(normalised(alarms))
    assert utility_of(ideal, worth) == pytest.approx(1)
    assert utility_of(ideal & False, worth) == 0
    best = best_threshold(scores, ~np.isnan(labels), worth)
    tried = {t: normalised(scores >= t) for t in np.unique(scores)}
    assert normalised(scores >= best) == pytest.approx(max(tried.values()))


def test_utility_worked_out_by_hand():
    labels, times = np.array([[0.0] * 7 + [1.0] * 10]), np.arange(17.0)[None]
    worth = challenge_utility(labels, times)  # sepsis at 13: best at 7, over at 16
    assert worth.alarm[0, [0, 1, 4, 7, 13, 16]] == pytest.approx([-0.05, 0, 0.5, 1, 1 / 3, 0])
    assert worth.silence[0, [0, 7, 10, 13, 16]] == pytest.approx([0, 0, -2 / 3, -4 / 3, -2])
    free = challenge_utility(np.zeros((1, 2)), np.arange(2.0)[None])
    assert (free.alarm == -0.05).all()
    assert not free.silence.any()


def test_the_challenge_gets_its_utility_at_a_threshold_from_validation(ward):
    series = ward.task.series
    worth = challenge_utility(ward.task.labels.numpy(), series.times.numpy())
    task = replace(ward.task, utility=worth)
    found = evaluate(small(task), task, bootstrap=30)
    chosen, labelled = task.splits["validation"], task.labelled.numpy()
    model = small(task)
    risk = as_probabilities(model.readout, predict_task(model, series, "row"))[..., 0].numpy()
    threshold = best_threshold(risk[chosen], labelled[chosen], worth.select(chosen))
    at = task.splits["test"]
    expected = utility_of(risk[at] >= found.utility_threshold, worth.select(at))
    assert found.utility_threshold == pytest.approx(threshold, rel=1e-5)
    estimate = found.metrics["utility"]
    assert estimate.value == pytest.approx(expected)
    assert estimate.low <= estimate.value <= estimate.high
    alone = evaluate(small(task), task, bootstrap=30, metrics=["utility"])
    assert alone.metrics == {"utility": estimate}


def test_streams_are_followed_between_rows_only_by_models_that_can(ward):
    task = ward.task
    models = {
        "cde": small(task, oc.NeuralCDE),
        "gru": small(task),
        "cubic": small(task, oc.NeuralCDE, control="natural_cubic"),
    }
    events = ward.event_hours[task.splits["test"]].numpy()
    found = follow(models, task, reference=ward.online_risk, events=events)
    assert len(found) == 4
    assert sum(bool(one.positive) for one in found) == 2
    for one in found:
        assert set(one.curves) == {"cde", "gru", "best possible"}
        stream = int(one.title.split()[1].rstrip(":"))
        series = task.series[stream]
        rows = int(series.rows)
        times, values, stepped = one.curves["cde"]
        assert not stepped
        assert len(times) > rows
        with torch.no_grad():
            said = models["cde"](series)[0, :rows, 0].sigmoid().numpy()
        at_rows = np.isin(times, series.times[0].numpy())
        assert values[at_rows] == pytest.approx(said, abs=1e-5)
        assert one.curves["gru"][2]
        for name, seen_at, seen in one.channels:
            column = series.values[0, :, series.channels.index(name)].numpy()
            assert np.array_equal(seen, column[~np.isnan(column)])
            assert len(seen_at) == len(seen)
    assert follow({"cubic": models["cubic"]}, task) == ()


@pytest.fixture(scope="module")
def saved(tmp_path_factory, ward):
    home = tmp_path_factory.mktemp("models")
    task = {"source": "registry", "name": "simulated-ward"}
    extra = {"task": task | {"arguments": {"streams": 240, "simulation_seed": 11}}}
    names = ward.task.series.channels
    oc.save(small(ward.task), home / "one", extra=extra, channels=names)
    oc.save(small(ward.task, oc.GRUdt), home / "two", extra=extra, channels=names)
    oc.save(small(ward.task), home / "bare")
    oc.save(small(ward.task), home / "wrong", extra=extra, channels=[n.upper() for n in names])
    return home


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, arguments)])
    out = capsys.readouterr()
    return ended.value.code, out.out + out.err


def test_the_command_measures_compares_and_writes(saved, found, capsys, tmp_path):
    (tmp_path / "run").mkdir()
    code, text = run(
        capsys,
        *(saved / "one", "--against", saved / "two", "--bootstrap", 60),
        *("--json", tmp_path / "a" / "found.json", "--report", tmp_path / "page.html"),
    )
    assert code == 0, text
    assert "AUROC" in text
    assert "best possible" in text
    told = json.loads((tmp_path / "a" / "found.json").read_text())
    assert told["evaluation"]["metrics"]["auc"]["value"] == pytest.approx(found.value)
    assert told["evaluation"]["reference"]["metrics"]["auc"]["value"] == found.reference.value
    assert told["differences"][0]["auc"]["value"] == pytest.approx(
        found.value - told["against"][0]["metrics"]["auc"]["value"]
    )
    page = (tmp_path / "page.html").read_text()
    assert "GRUdt" in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "page.html", "run"]


def test_several_models_are_judged_by_the_mean_of_their_probabilities(ward):
    models = [small(ward.task), small(ward.task, oc.GRUdt)]
    together = evaluate(models, ward.task, bootstrap=30)
    each = [evaluate(model, ward.task, bootstrap=30) for model in models]
    mean = (each[0].probabilities + each[1].probabilities) / 2
    assert torch.allclose(together.probabilities, mean)
    known = ~together.labels.isnan()
    y, p = together.labels[known].numpy(), mean[..., 0][known].numpy()
    assert together.value == pytest.approx(oracle.roc_auc_score(y, p), abs=1e-6)
    assert together.model == "mean of 2 GRU and GRUdt"
    with pytest.raises(ValueError, match="no model to evaluate"):
        evaluate([], ward.task)


def test_the_mean_over_runs_is_compared_on_the_same_subjects(ward):
    made = [small(ward.task, seed=seed) for seed in range(3)]
    runs = [evaluate(model, ward.task, bootstrap=50) for model in made]
    other = evaluate(small(ward.task, oc.GRUdt), ward.task, bootstrap=50)
    mean = mean_metrics(runs)["auc"]
    assert mean.value == pytest.approx(np.mean([run.value for run in runs]))
    assert mean.low <= mean.value <= mean.high
    gap = compare(runs, other)["auc"]
    single = [compare(run, other)["auc"].value for run in runs]
    assert gap.value == pytest.approx(np.mean(single))
    drawn = np.mean([run.drawn["auc"] for run in runs], axis=0) - other.drawn["auc"]
    assert (gap.low, gap.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert compare(runs[:1], [other]) == compare(runs[0], other)
    with pytest.raises(ValueError, match="evaluations made alike"):
        mean_metrics([runs[0], evaluate(made[0], ward.task, bootstrap=20)])


def test_the_task_of_a_table_s_cell_is_found_again(ward):
    told = {"source": "experiment", "name": "simulated-ward", "content": content_of(ward.task)}
    whole = {"name": "simulated-ward", "streams": 240, "simulation_seed": 11}
    task = load_task(told | {"arguments": whole})
    check_content(task, told)
    fewer = load_task(told | {"arguments": whole | {"streams": 60}})
    with pytest.raises(ValueError, match="is not what the model was fitted on"):
        check_content(fewer, told)
    with pytest.raises(ValueError, match="given in memory"):
        load_task(told | {"arguments": whole | {"demo": True}})


def test_a_folder_of_runs_is_judged_run_by_run_and_together(saved, ward, capsys, tmp_path):
    shutil.copytree(saved / "one", tmp_path / "cell" / "seed-0" / "run" / "model")
    other = small(ward.task, seed=5)
    extra = read_manifest(saved / "one").extra
    names = ward.task.series.channels
    oc.save(other, tmp_path / "cell" / "seed-1" / "run" / "model", extra=extra, channels=names)
    told = {"cell": {"column": "My GRU"}}
    (tmp_path / "cell" / "seed-0" / "result.json").write_text(json.dumps(told))
    file = tmp_path / "found.json"
    arguments = (tmp_path / "cell", "--against", saved / "two", "--bootstrap", 40, "--json", file)
    code, text = run(capsys, *arguments)
    assert code == 0, text
    assert "My GRU, 2 runs" in text
    found = json.loads(file.read_text())
    each = [evaluate(m, ward.task, bootstrap=0).value for m in (small(ward.task), other)]
    first = found["runs"][0]
    assert first["model"] == "My GRU"
    assert [one["auc"] for one in first["each"]] == pytest.approx(each)
    assert first["mean"]["auc"]["value"] == pytest.approx(np.mean(each))
    gap = np.mean(each) - found["against"][0]["metrics"]["auc"]["value"]
    assert found["mean_differences"][0]["auc"]["value"] == pytest.approx(gap)
    assert found["command"].startswith("onlinecde evaluate ")
    assert {"commit", "versions", "hardware"} <= set(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not a folder"),
        (["bare"], "does not say what it was fitted on"),
        (["wrong"], "none of the model's channels"),
        (["one", "--split", "final"], "no split 'final'"),
        (["one", "--metric", "f1"], "no metric 'f1'"),
        (["one", "--task", "nonesuch"], "nonesuch"),
        (["one", "--task-setting", "streams=3"], "belongs to --task"),
        (["one", "--against", "one"], "given twice"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(saved, arguments, message, capsys):
    named = [saved / a if a in ("nowhere", "bare", "wrong", "one") else a for a in arguments]
    code, text = run(capsys, *named, "--bootstrap", 5)
    assert code == 2
    assert message in text


@pytest.mark.parametrize("unit", ["seconds", "hours"])
def test_how_early_is_told_in_any_unit_of_time(unit):
    random = np.random.default_rng(1)
    times = np.cumsum(random.uniform(20, 60, (60, 12)), 1)
    labels = np.zeros((60, 12))
    labels[::2, 8:] = 1
    values = random.normal(size=(60, 12, 2)).astype(np.float32)
    series = oc.SeriesBatch.from_padded(times, values)
    task = Task.build("made", series, labels, kind="binary", per="row", time_unit=unit)
    task = replace(task, splits={"test": torch.arange(60)})
    found = evaluate(small(task), task, bootstrap=20)
    assert found.alarms.events == 30
    assert len(found.before_event) == 6
    page = report(found)
    assert "By time before the event" in page
    assert "First alarms" in page
    widths = {row.end - row.start for row in found.before_event}
    if unit == "hours":
        assert widths == {2.0}
    else:
        # Events come some 320 seconds after the first row.
        assert widths == {50.0}
        assert sum(row.rows for row in found.before_event) > 100


def test_without_an_event_the_page_says_so():
    task = made_task("binary")
    labels = torch.zeros(task.series.times.shape)
    quiet = replace(task, labels=labels, per="row", time_unit="days")
    found = evaluate(small(quiet), quiet, bootstrap=0)
    assert (found.before_event, found.alarms) == ((), None)
    assert "No stream of the split has an event after its first row." in report(found)


def test_the_class_that_is_drawn_is_the_one_that_is_shaded():
    ward = simulate_ward(40, seed=4, hours=8).task
    labels = torch.where(ward.series.real, torch.arange(ward.series.times.shape[1]) % 3, -1)
    task = Task.build(
        "phases", ward.series, labels, kind="multiclass", per="row", classes=("calm", "rising", "late")
    )  # fmt: skip
    drawn = follow({"gru": small(task)}, task, streams=2)
    assert drawn[0].says == "P(calm)"
    for one in drawn:
        at = list(map(str, ward.series.streams)).index(one.stream)
        times = ward.series.times[at, : int(ward.series.rows[at])].numpy()
        calm = np.flatnonzero(np.arange(len(times)) % 3 == 0)
        calm = calm[calm + 1 < len(times)]
        shaded = [stretch for stretch in one.positive if stretch[0] < stretch[1]]
        assert shaded == [(times[row], times[row + 1]) for row in calm]
    page = report(evaluate(small(task), task, bootstrap=0), trajectories=drawn)
    assert "Shaded: the label is calm." in page


def test_numbers_at_rows_shade_nothing():
    ward = simulate_ward(40, seed=4, hours=8).task
    task = Task.build(
        "ones", ward.series, torch.ones_like(ward.labels), kind="regression", per="row"
    )
    assert all(one.positive == () for one in follow({"gru": small(task)}, task, streams=2))
