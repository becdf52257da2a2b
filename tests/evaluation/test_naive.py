"""What needs no model stands beside every model, and a model that is not better says so."""

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.data import Task, simulate_ward
from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.metrics import score
from onlinecde.evaluation.naive import NaiveScore, naive_predictions
from onlinecde.evaluation.report import report
from onlinecde.series import SeriesBatch
from onlinecde.training import fit
from onlinecde.training.callbacks import Callback


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(100, seed=5, hours=12).task


class Notes(Callback):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def numbers_task(labels, per="stream", classes=()):
    """60 streams of two channels, the second with gaps; labels from (values (stream, row, channel), random)."""
    random = np.random.default_rng(4)
    values = random.normal(10.0, 3.0, (60, 6, 2)).astype(np.float32)
    values[random.random((60, 6)) < 0.4, 1] = np.nan
    times = np.tile(np.arange(6.0), (60, 1))
    series = SeriesBatch.from_arrays(list(times), list(values), channels=["a", "b"])
    return Task.build(
        "numbers", series, labels(values, random), kind="regression", per=per, classes=classes
    )


def test_the_base_rate_of_training_is_judged_on_the_split(ward):
    model = fit(ward, "gru", epochs=1, model_settings={"hidden": 4}).model
    found = evaluate(model, ward, bootstrap=0)
    train, test = (ward.split(name)[1] for name in ("train", "test"))
    rate, test = float(train.nanmean()), test[~test.isnan()].numpy()
    [one] = found.naive
    assert (one.name, one.metric) == ("base rate", "log_loss")
    assert one.naive == pytest.approx(
        oracle.log_loss(test, np.full(len(test), rate), labels=[0, 1]), abs=2e-3
    )
    assert one.model == pytest.approx(found.metrics["log_loss"].value, abs=1e-9)


def test_classes_have_their_shares_and_another_ward_its_own(ward):
    classes = torch.arange(len(ward.series)) % 7 % 3
    task = Task.build(
        "classes", ward.series, classes, kind="multiclass", classes=("x", "y", "z"),
        splits={"test": range(len(classes))},
    )  # fmt: skip
    [(name, found)] = naive_predictions(task, "test").items()
    assert name == "base rate of these labels"
    shares = torch.bincount(classes).double() / len(classes)
    torch.testing.assert_close(found[0], shares, atol=0.01, rtol=0)
    assert found.shape == (len(classes), 3)


def test_the_last_value_is_that_of_the_channel_that_tells_most():
    def newest_of_b(values, random):
        return np.array([([10.0] + [b for b in one if b == b])[-1] for one in values[..., 1]])

    task = numbers_task(newest_of_b)
    found = naive_predictions(task, "test")
    assert list(found) == ["training mean", "last value of b"]
    series, _labels = task.split("test")
    for stream in range(len(series)):
        seen = series.values[stream, :, 1]
        seen = seen[~seen.isnan()]
        assert float(found["last value of b"][stream, 0]) == pytest.approx(float(seen[-1]))
    mean = float(task.split("train")[1].mean())
    assert float(found["training mean"][0, 0]) == pytest.approx(mean, rel=1e-6)


def test_no_last_value_is_shown_where_none_is_better_than_the_mean():
    task = numbers_task(lambda values, random: random.normal(500.0, 1.0, 60))
    assert list(naive_predictions(task, "test")) == ["training mean"]


def test_labels_at_rows_have_the_label_before_and_never_their_own():
    def labels(values, random):
        made = random.normal(0.0, 1.0, (60, 6)).cumsum(1).astype(np.float32)
        made[random.random(made.shape) < 0.3] = np.nan
        return made

    task = numbers_task(labels, per="row")
    found = naive_predictions(task, "test")["label before"][..., 0]
    wanted, mean = task.split("test")[1], float(task.split("train")[1].nanmean())
    for stream in range(len(wanted)):
        newest = mean
        for row in range(wanted.shape[1]):
            assert float(found[stream, row]) == pytest.approx(newest, rel=1e-5)
            if not wanted[stream, row].isnan():
                newest = float(wanted[stream, row])


def test_fit_and_evaluate_warn_of_a_model_that_is_worse_than_nothing(ward, tmp_path):
    notes = Notes()
    made = numbers_task(lambda values, random: np.nan_to_num(values[:, -1, 0]))
    done = fit(
        made,
        "gru",
        tmp_path / "run",
        epochs=1,
        lr=1e-9,
        model_settings={"hidden": 4},
        callback=notes,
    )
    warned = [text for text in notes.texts if text.startswith("warning")]
    assert any("does not beat the last value of a's" in text for text in warned), notes.texts
    beside = read_manifest(tmp_path / "run" / "model").extra["naive"]
    assert {one["name"]: one["beaten"] for one in beside}["last value of a"] is False
    assert "**Warning:**" in (tmp_path / "run" / "model" / "README.md").read_text()
    found = evaluate(done.model, made, bootstrap=0)
    assert "does not beat the last value of a's" in " ".join(found.warnings)
    assert "warning" in str(found)
    page = report(found)
    assert "Beside naive predictions" in page
    assert "does not beat" in page
    assert found.to_json()["naive"][-1]["name"] == "last value of a"


def test_a_model_that_beats_them_is_not_warned_of():
    assert NaiveScore("base rate", "", "log_loss", 0.4, 0.39).beaten
    assert not NaiveScore("base rate", "", "log_loss", 0.4, 0.4).beaten


def test_several_numbers_are_judged_each_in_its_own_unit():
    random = np.random.default_rng(7)
    labels = random.normal([0.0, 500.0], [1.0, 200.0], (40, 2))
    outputs = labels + random.normal(0.0, [0.5, 20.0], (40, 2))
    head = oc.models.Readout(1, 2, "regression")
    found = score("regression", "rmse", torch.tensor(outputs), torch.tensor(labels), head)
    each = [oracle.root_mean_squared_error(labels[:, i], outputs[:, i]) for i in range(2)]
    assert found == pytest.approx(np.mean(np.array(each) / labels.std(0)), rel=1e-9)
    # In another unit it is the same number, so that no output drowns the others.
    scaled = [torch.tensor(one * [1000.0, 1.0]) for one in (outputs, labels)]
    assert score("regression", "rmse", *scaled, head) == pytest.approx(found, rel=1e-9)


def test_every_output_of_a_regression_has_a_line_of_its_own():
    task = numbers_task(
        lambda values, random: random.normal([0.0, 500.0], [1.0, 200.0], (60, 2)),
        classes=("lactate", "platelets"),
    )
    model = fit(task, "gru", epochs=1, model_settings={"hidden": 4}).model
    found = evaluate(model, task, bootstrap=20)
    assert [one.name for one in found.per_output] == ["lactate", "platelets"]
    for place, one in enumerate(found.per_output):
        wanted = task.split("test")[1][:, place].numpy()
        said = found.probabilities[:, place].numpy()
        assert one.rmse == pytest.approx(oracle.root_mean_squared_error(wanted, said), rel=1e-6)
    assert found.title_of("rmse") == "RMSE in deviations"
    assert found.metrics["rmse"].low is not None
    assert {one.output for one in found.naive} == {"lactate", "platelets"}
    page = report(found)
    assert "By output" in page
    assert "lactate" in page
