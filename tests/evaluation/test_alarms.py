"""Alarms on streams whose truth is known: false, true, of what nobody knows; events caught, and how early."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import EventTruth, IntervalTruth, Task, simulate_ward
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.alarms import Looks, look, looks_of, score_alarms, sweep, within
from onlinecde.evaluation.bootstrap import Cohort
from onlinecde.evaluation.metrics import MetricError
from onlinecde.models import AlarmPolicy


def task_of(truth, hours=10, **more):
    """Streams with a row each hour, whatever the truth."""
    streams = len(truth.until)
    times = np.arange(float(hours))[None].repeat(streams, 0)
    series = oc.SeriesBatch.from_padded(times, np.zeros((streams, hours, 1), np.float32))
    labels = truth.at(series.times)
    given = {"time_unit": "hours", "splits": {"test": torch.arange(streams)}} | more
    return Task.build(
        "made", series, labels, kind="binary", per="row", truth=truth, stratify=False, **given
    )


def looks_at(task, answers, truth=None):
    """Looks at each row with given answers."""
    truth = task.label_truth if truth is None else truth
    times = task.series.times.numpy()
    until = torch.full((len(times),), 10.0, dtype=torch.float64)
    real = times <= truth.until.numpy()[:, None]
    return looks_of(task, "test", times, real, np.asarray(answers, float), 0, truth, until)


def events(*at, horizon=3.0, until=10.0):
    """The event comes at these hours; streams are followed for `until`."""
    event = torch.tensor(at, dtype=torch.float64)
    followed = torch.full_like(event, until)
    return EventTruth(torch.minimum(event, followed), event, horizon, followed)


def test_alarms_worked_out_by_hand():
    truth = events(8.0, torch.inf, 9.5)
    answers = np.zeros((3, 10))
    answers[0, [2, 6]] = 0.9  # six hours ahead is too early, two hours ahead is not
    answers[1, [4, 9]] = 0.9  # no event for as long as it is known; at 9 nobody knows
    answers[2, 1] = 0.9  # its event is missed
    looks = looks_at(task_of(truth), answers)
    score = score_alarms(looks, AlarmPolicy(0.5))
    assert (score.false, score.unknown) == (4, 1)
    assert (score.events, score.caught, score.share_caught.value) == (2, 1, 0.5)
    assert score.lead == (2.0, 2.0, 2.0)
    assert score.days == pytest.approx(30 / 24)
    assert score.false_a_day.value == pytest.approx(4 / (30 / 24))
    assert (score.streams, score.subjects) == (3, 3)


def test_only_the_first_true_alarm_of_an_event_counts_for_its_lead():
    answers = np.zeros((1, 10))
    answers[0, [5, 7]] = 0.9
    score = score_alarms(looks_at(task_of(events(8.0)), answers), AlarmPolicy(0.5))
    assert (score.caught, score.lead, score.false) == (1, (3.0, 3.0, 3.0), 0)


def test_each_run_of_labels_is_an_event():
    starts, ends = torch.tensor([[2.0, 6.0]]), torch.tensor([[3.0, 8.0]])
    truth = IntervalTruth(torch.tensor([9.0], dtype=torch.float64), starts.double(), ends.double())
    answers = np.zeros((1, 10))
    answers[0, 7] = 0.9
    score = score_alarms(looks_at(task_of(truth), answers), AlarmPolicy(0.5))
    assert (score.events, score.caught, score.false) == (2, 1, 0)


def test_listed_labels_stand_until_the_next_one():
    task = task_of(events(8.0, torch.inf))
    labels = task.labels.clone()
    labels[:, 1:5] = torch.nan
    labels[1, 0] = torch.nan
    rows = replace(task, truth=None, labels=labels)
    looks = looks_at(rows, np.zeros((2, 10)))
    assert looks.labels[0, :6].tolist() == [0, 0, 0, 0, 0, 1]
    assert np.isnan(looks.labels[1, :5]).all()  # before its first label nothing is known


def test_streams_of_one_subject_are_drawn_together():
    truth = events(8.0, torch.inf, torch.inf, torch.inf)
    task = task_of(truth, subjects=["ann", "bob", "ann", "bob"])
    looks = looks_at(task, np.random.default_rng(0).random((4, 10)))
    assert looks.subjects == 2
    assert looks.by_subject(looks.days) == pytest.approx([20 / 24, 20 / 24])
    chosen = looks.select(np.array([1, 3]))
    assert (chosen.subjects, chosen.event_count) == (1, 0)


def test_without_a_false_alarm_the_interval_is_that_of_a_poisson_number():
    looks = looks_at(task_of(events(*[torch.inf] * 4)), np.zeros((4, 10)))
    score = score_alarms(looks, AlarmPolicy(0.5), Cohort(looks.owners, 4, 50, 0))
    assert (score.false_a_day.value, score.false_a_day.low) == (0.0, 0.0)
    assert score.false_a_day.high == pytest.approx(3.6889 / (40 / 24), rel=1e-4)
    assert score.share_caught.value is None


@pytest.mark.parametrize("gap", [-np.inf, 0.0, 0.5])
@pytest.mark.parametrize("quiet", [1.5, 4.0])
def test_all_thresholds_at_once_are_each_by_itself(gap, quiet):
    random = np.random.default_rng(3)
    at = np.where(random.random(30) < 0.5, random.uniform(1, 10, 30), np.inf)
    task = task_of(events(*at), subjects=[n // 2 for n in range(30)])
    odds = random.normal(size=(30, 10)).cumsum(1)
    looks = looks_at(task, 1 / (1 + np.exp(-odds)))
    levels = np.linspace(-4, 4, 23)
    counted = sweep(looks, levels, gap=gap, quiet=quiet)
    for place, level in enumerate(levels):
        threshold = 1 / (1 + np.exp(-level))
        rearm = 1.0 if gap < 0 else 1 / (1 + np.exp(-(level - gap)))
        score = score_alarms(looks, AlarmPolicy(threshold, rearm, quiet))
        assert counted.false[:, place].sum() == score.false
        assert counted.caught[place] == score.caught
    assert counted.false.shape == (15, 23)


def test_a_model_is_looked_at_between_its_rows():
    ward = simulate_ward(30, seed=2).task
    model = oc.NeuralCDE(channels=12, hidden=4, outputs=1, static=2, readout={"kind": "binary"})
    policy = AlarmPolicy(0.5, every=0.5)
    looks = look(model, ward, "train", policy)
    series, _ = ward.split("train")
    assert looks.real.sum() > 2 * series.rows.sum()
    mine, row = 3, 1
    with torch.no_grad():
        asked = model(series[mine : mine + 1], at=series.times[mine : mine + 1, row])
    place = np.flatnonzero(looks.times[mine] == float(series.times[mine, row]))[0]
    assert looks.answers[mine, place] == pytest.approx(float(asked.sigmoid()), abs=1e-6)
    event = ward.truth.event[ward.splits["train"]].numpy()
    assert (looks.times < event[:, None])[looks.real].all()  # from its event on nobody looks


def test_a_stream_whose_event_came_before_its_first_row_is_never_looked_at():
    truth = EventTruth(
        torch.tensor([5.0, 9.0]).double(),
        torch.tensor([-1.0, torch.inf]).double(),
        3.0,
        torch.tensor([20.0, 20.0]).double(),
    )
    task = task_of(events(torch.inf, torch.inf))
    model = oc.GRU(channels=1, hidden=4, outputs=1, kind="binary")
    looks = look(model, replace(task, truth=truth), "test", AlarmPolicy(0.5, every=1.0))
    assert looks.real.any(1).tolist() == [False, True]
    assert looks.days.tolist() == [0.0, 9 / 24]


def test_what_has_no_false_alarms_is_refused():
    series = oc.SeriesBatch.from_arrays([[0.0, 1.0]] * 10, [[[1.0], [2.0]]] * 10)
    numbers = Task.build("numbers", series, torch.rand(10), kind="regression")
    model = oc.GRU(channels=1, hidden=4, outputs=1)
    with pytest.raises(MetricError, match="'numbers' is a regression"):
        look(model, numbers, "test", AlarmPolicy(0.5))
    steps = Task.build("steps", series, [0, 1] * 5, kind="binary", time_unit="steps")
    with pytest.raises(MetricError, match="counts 'steps': prepare it in one of"):
        look(model, steps, "test", AlarmPolicy(0.5))


def test_evaluate_shows_the_curve_and_the_policy_a_model_carries():
    task = simulate_ward(120, seed=4).task
    model = oc.GRU(channels=12, hidden=4, outputs=1, static=2, kind="binary")
    plain = evaluate(model, task, bootstrap=20)
    curve = plain.alarm_curve
    assert plain.policy is None
    assert np.all(np.diff(curve.false_a_day) <= 0)
    assert (curve.quiet, len(curve.caught)) == (12.0, len(curve.thresholds))
    assert all(s.false_a_day.value <= 2 for s in curve.scores)
    model.alarm_policy = AlarmPolicy(
        0.0, 1.0, 6.0, 1.0, chosen={"budget": 0.1, "guarantee": "none"}
    )
    found = evaluate(model, task, bootstrap=20)
    assert found.policy.score.false_a_day.value > 1
    assert "is for 0.1 false alarms" in found.warnings[-1]
    assert "of 0.1 allowed" in str(found)
    assert found.to_json()["policy"]["budget"] == 0.1
    assert plain.alarm_curve == found.alarm_curve


def test_looks_are_plain_arrays_of_one_shape():
    looks = looks_at(task_of(events(8.0, torch.inf)), np.full((2, 10), 0.5))
    assert isinstance(looks, Looks)
    assert {
        t.shape for t in (looks.times, looks.real, looks.answers, looks.labels, looks.ahead)
    } == {(2, 10)}
    assert np.allclose(looks.log_odds[looks.real], 0.0)


def test_of_time_to_an_event_the_risk_within_a_horizon_is_watched():
    task = simulate_ward(60, seed=2, kind="time-to-event").task
    model = oc.training.build_model(task, "gru")
    risk, binary = within(model, task, 6.0)
    looks = look(risk, binary, "train", AlarmPolicy(0.5, every=2.0))
    assert np.nanmax(looks.ahead) <= 6.0
    assert ((looks.answers >= 0) & (looks.answers <= 1))[looks.real].all()
    with pytest.raises(MetricError, match="horizons are for time-to-event tasks"):
        within(model, binary, 6.0)
    model.alarm_policy = AlarmPolicy(0.01, 1.0, 6.0, 2.0, horizon=6.0)
    found = evaluate(model, task, bootstrap=10).policy
    assert "within 6 hours" in found.words
    assert found.score.events > 0
