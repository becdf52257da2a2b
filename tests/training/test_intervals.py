"""Intervals of a regression hold what they say on new subjects, are as wide as errors, and travel with the model."""

import json

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.data import Task
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.report import report
from onlinecde.models import Intervals, IntervalsError
from onlinecde.training import fit
from onlinecde.training.callbacks import Callback
from onlinecde.training.intervals import conformal_factor, fit_intervals, usual_error

MADE = {
    "levels": (0.8, 0.9),
    "factors": ((1.0, 2.0), (1.5, 3.0)),
    "numbers": ((0.0, 10.0), (5.0,)),
    "errors": ((1.0, 3.0), (2.0,)),
    "subjects": 50,
}


class Notes(Callback):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def numbers_task(streams=300, seed=0, per="stream", subjects=None, fractions=None):
    """A number that is the last value, with noise that grows with it."""
    random = np.random.default_rng(seed)
    values = random.uniform(0, 10, (streams, 4, 1)).astype(np.float32)
    series = oc.SeriesBatch.from_padded(np.arange(4.0)[None].repeat(streams, 0), values)
    labels = values[:, :, 0] + random.normal(size=(streams, 4)) * (0.2 + 0.3 * values[:, :, 0])
    labels = labels if per == "row" else labels[:, -1]
    more = {} if fractions is None else {"fractions": fractions}
    return Task.build(
        "numbers", series, labels.astype(np.float32), kind="regression", per=per, subjects=subjects, **more
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    home = tmp_path_factory.mktemp("numbers") / "run"
    task = numbers_task(800, fractions={"train": 0.4, "validation": 0.3, "test": 0.3})
    return task, fit(task, "gru", home, epochs=8, lr=0.02, model_settings={"hidden": 8}), home


def test_the_factor_is_the_rule_of_split_conformal_written_out():
    random = np.random.default_rng(1)
    owners = np.sort(random.integers(0, 25, 200))
    scores = random.exponential(size=200) * (1 + owners / 10)
    for level in (0.5, 0.8, 0.9):
        factor = conformal_factor(scores, owners, level)
        subjects = np.unique(owners)

        def held(bound, subjects=subjects):
            return sum(np.mean(scores[owners == one] <= bound) for one in subjects)

        assert held(factor) >= level * (len(subjects) + 1) - 1e-9
        below = scores[scores < factor].max()
        assert held(below) < level * (len(subjects) + 1)


def test_new_subjects_are_covered_on_average_however_many_labels_each_has():
    """Over draws of subjects, some with many labels that are all alike: at least the level, and not much more."""
    random = np.random.default_rng(2)
    covered = []
    for _ in range(300):
        count = random.integers(1, 20, 41)
        owners = np.repeat(np.arange(41), count)
        own = np.exp(random.normal(size=41) + 0.05 * count)
        scores = np.abs(random.normal(size=len(owners))) * own[owners]
        known = owners < 40
        factor = conformal_factor(scores[known], owners[known], 0.9)
        covered.append(np.mean(scores[~known] <= factor))
    error = np.std(covered) / np.sqrt(len(covered))
    assert 0.9 - 2 * error <= np.mean(covered) <= 0.96


def test_the_usual_error_follows_the_predicted_number():
    random = np.random.default_rng(3)
    predicted = random.uniform(0, 10, 4000)
    labels = predicted + random.normal(size=4000) * (1 + predicted)
    numbers, errors = usual_error(np.arange(4000), predicted, labels)
    assert len(numbers) == 10
    assert errors == pytest.approx((1 + numbers) * np.sqrt(2 / np.pi), rel=0.15)
    numbers, errors = usual_error(np.arange(60), predicted[:60], labels[:60])
    assert (len(numbers), len(errors)) == (1, 1)
    numbers, errors = usual_error(np.arange(500), np.ones(500), labels[:500])
    assert len(numbers) == 1


def test_fit_measures_intervals_that_hold_on_unseen_streams(fitted):
    task, done, _ = fitted
    intervals = done.model.intervals
    assert (intervals.levels, intervals.subjects) == ((0.8, 0.9), 240)
    found = evaluate(done.model, task, bootstrap=200)
    assert [one.level for one in found.intervals] == [0.8, 0.9]
    for one in found.intervals:
        assert one.share.low <= one.level <= one.share.high
        assert one.warning is None
        assert (one.labels, one.subjects) == (240, 240)
    assert found.intervals[0].width.value < found.intervals[1].width.value
    assert "intervals for 90 % of labels hold" in str(found)
    page = report(found)
    assert "split conformal" in page
    assert found.to_json()["intervals"][1]["level"] == 0.9
    # Where errors are larger, so is the interval.
    lower, upper = done.model.interval(torch.tensor([[1.0], [9.0]]), 0.9)
    assert (upper - lower)[1] > 1.5 * (upper - lower)[0]


def test_streams_unlike_those_of_validation_are_warned_of(fitted):
    _, done, _ = fitted
    other = numbers_task(300, seed=9)
    other.labels.add_(6.0)
    found = evaluate(done.model, other, bootstrap=100)
    assert "these streams are not like those of validation" in found.warnings[-1]


def test_they_travel_with_the_model(fitted, tmp_path):
    _, done, home = fitted
    loaded = oc.load(home / "model")
    assert loaded.intervals == done.model.intervals
    assert (
        "Intervals for 80 % and 90 % of labels, measured on 240"
        in (home / "model" / "README.md").read_text()
    )
    manifest = home / "model" / "manifest.json"
    content = json.loads(manifest.read_text())
    for change, message in (
        ({"levels": [2]}, "levels are"),
        ({"errors": [["x"]]}, "must be lists of numbers"),
        ({"more": 1}, "intervals have the fields"),
        ({"numbers": [[1.0], [1.0]], "errors": [[1.0], [1.0]], "factors": [[1.0] * 2] * 2}, "are of 2 outputs"),
    ):  # fmt: skip
        broken = tmp_path / "model"
        broken.mkdir(exist_ok=True)
        (broken / "model.safetensors").write_bytes(
            (home / "model" / "model.safetensors").read_bytes()
        )
        wrong = {**content, "intervals": {**content["intervals"], **change}}
        (broken / "manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(ArtifactError, match=message):
            oc.load(broken)


@pytest.mark.parametrize("subjects", [8, 3])
def test_too_few_subjects_are_named_and_get_none(subjects):
    task = numbers_task(40, fractions={"train": 0.5, "validation": 0.25, "test": 0.25})
    task.splits["validation"] = task.splits["validation"][:subjects]
    model = oc.GRU(channels=1, hidden=2, outputs=1)
    notes, outputs = Notes(), torch.zeros(subjects, 1)
    intervals = fit_intervals(model, task, outputs, notes)
    assert intervals is None if subjects == 3 else intervals.levels == (0.8,)
    [text] = notes.texts
    assert f"{subjects} labelled validation subjects are too few" in text
    assert ("0.8 takes 4" if subjects == 3 else "0.9 takes 9") in text


def test_rows_of_a_subject_share_its_weight_and_classes_have_none():
    streams = 200
    task = numbers_task(streams, per="row", subjects=[n // 2 for n in range(streams)])
    done = fit(task, "gru", epochs=2, lr=0.02, model_settings={"hidden": 4})
    assert done.model.intervals.subjects == 15
    found = evaluate(done.model, task, bootstrap=50)
    assert (found.intervals[0].labels, found.intervals[0].subjects) == (120, 15)
    ward = oc.data.simulate_ward(60, seed=1).task
    assert fit_intervals(done.model, ward, torch.zeros(9, 1), Notes()) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": ()}, "give shares between 0 and 1"),
        ({"factors": ((1.0, 2.0),)}, "a factor for each level"),
        ({"factors": ((1.0,), (1.0,))}, "give each level a factor for each output"),
        ({"numbers": ((3.0, 1.0), (5.0,))}, "must rise"),
        ({"errors": ((1.0, -3.0), (2.0,))}, "0 or more"),
        ({"errors": ((1.0, float("inf")), (2.0,))}, "finite"),
    ],
)
def test_what_no_intervals_can_be_is_refused(changes, message):
    with pytest.raises(IntervalsError, match=message):
        Intervals(**{**MADE, **changes})


def test_each_output_has_its_own_and_an_unknown_level_is_refused():
    intervals = Intervals(**MADE)
    assert Intervals.from_json(json.loads(json.dumps(intervals.as_json()))) == intervals
    lower, upper = intervals.bounds(np.array([[5.0, 0.0], [np.nan, 1.0]]))
    assert (upper - lower)[0].tolist() == [2 * 2 * 1.5, 2 * 2 * 3.0]
    assert np.isnan(lower[1, 0])
    with pytest.raises(IntervalsError, match=r"no intervals of level 0\.5: choose 0\.8, 0\.9"):
        intervals.bounds([[1.0, 1.0]], 0.5)
    with pytest.raises(IntervalsError, match="the model has no intervals"):
        oc.GRU(channels=1, hidden=2, outputs=1).interval(torch.zeros(1, 1))
