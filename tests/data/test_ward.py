"""The simulated ward: its risks are true, and it rewards what we claim it rewards."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from onlinecde.data import DataError, simulate_ward
from onlinecde.data import ward_model as model


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(2500, seed=11)


def test_the_same_seed_gives_the_same_ward_and_another_gives_another():
    first, again, other = (simulate_ward(20, seed=s) for s in (5, 5, 6))
    torch.testing.assert_close(first.task.series.values, again.task.series.values, equal_nan=True)
    torch.testing.assert_close(first.grid_risk, again.grid_risk, equal_nan=True)
    assert first.task.series.values.shape != other.task.series.values.shape or not torch.equal(
        first.task.series.times, other.task.series.times
    )


def test_it_looks_like_a_ward(ward):
    series = ward.task.series
    assert len(series.channels) == 12
    assert 0.2 < float(series.observed[series.real].float().mean()) < 0.6
    gaps = series.times.diff(dim=1)[series.real[:, 1:]]
    assert float(gaps.std() / gaps.mean()) > 0.8
    pulse = series.values[:, :, series.channels.index("heart_rate")]
    assert 70 < float(pulse.nanmean()) < 110
    positive = (ward.task.labels == 1).any(1).float().mean()
    assert 0.1 < float(positive) < 0.5
    assert ward.task.labels[series.real].isfinite().all()


def test_the_task_carries_what_is_known_of_it(ward):
    assert ward.task.label_lead == 12
    assert ward.task.known_risk.risk is ward.online_risk
    assert ward.task.known_risk.event_times is ward.event_hours


def test_chain_and_start_are_probabilities():
    assert np.allclose(model.transition().sum(2), 1)
    assert (model.transition() >= -1e-12).all()
    assert np.allclose(model.start().sum(1), 1)
    assert np.allclose(model.event_probability(10)[:, model.EVENT], 1)


@pytest.mark.parametrize("which", ["hidden_risk", "online_risk"])
def test_the_risks_are_true_overall_and_at_every_height(which, ward):
    real = ward.task.series.real
    risk, label = getattr(ward, which), ward.task.labels
    for low, high in ((0.0, 1.0), (0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        chosen = real & (risk >= low) & (risk <= high)
        # Rows of a stream share their fate, so the error is counted by stream.
        error = torch.where(chosen, label - risk, 0.0).sum(1).double()
        assert abs(float(error.mean() / (error.std() / len(error) ** 0.5))) < 4


def test_the_online_risk_is_exact_where_it_can_be_worked_out_by_hand():
    """One cell, one patient: Bayes' rule with all states written out."""
    from onlinecde.data.ward_filter import online_risk

    values = np.full((1, 1, len(model.CHANNELS)), np.nan)
    values[0, 0, 0] = 101.0
    found = online_risk(values, np.array([2]), np.array([1]), ahead=8).after
    weights = []
    for state in range(model.EVENT):
        weight = model.start()[2, state]
        z = (101.0 - model.channel_mean()[0, state]) / model.channel_deviation()[0]
        weight *= np.exp(-0.5 * z**2)
        for channel in model.GROUPS[0][1:]:
            weight *= 1 - model.record_probability()[channel, state]
        blood = model.round_probability()[1, state]
        empty = np.prod([1 - model.record_probability()[c, state] for c in model.GROUPS[1]])
        weights.append(weight * (1 - blood + blood * empty))
    posterior = np.array(weights) / np.sum(weights)
    expected = posterior @ model.event_probability(8)[2, : model.EVENT]
    assert found[0, 0] == pytest.approx(expected, rel=1e-10)


def test_between_rows_the_risk_is_exact_where_all_paths_of_the_chain_can_be_counted(ward):
    """Every path of hidden states up to t, and the chance of what was seen along it."""
    task, queries = ward.task, torch.tensor([0.0, 0.1, 0.25, 0.3, 0.42, 0.5, 0.51, 0.6, 0.74])
    for stream in range(12):
        series = task.series[stream]
        band = int(model.age_band(series.static[:, 0].numpy())[0])
        hours = [float(t) for t in queries if t < task.truth.until[stream]]
        asked = torch.tensor([hours], dtype=torch.float64)
        curve = task.known_risk.select(torch.tensor([stream])).at(asked)
        for number, hour in enumerate(hours):
            expected = risk_by_enumeration(series, band, hour, ahead=48)
            assert float(curve.risk[0, number]) == pytest.approx(
                expected, rel=1e-6
            )  # of float32 values


def risk_by_enumeration(series, band, hour, ahead):
    """P(event within `ahead` cells | rows up to `hour`, and none besides) by counting paths."""
    rows = {
        int(t / model.CELL): x.numpy()
        for t, x in zip(series.times[0], series.values[0], strict=True)
        if float(t) <= hour
    }
    last = int(hour / model.CELL)
    share = min(max((hour / model.CELL - last - 0.02) / 0.96, 0.0), 1.0)
    seen = [
        [
            chance_of(rows.get(cell), cell == 0, share if cell == last else 1.0, state)
            for state in range(24)
        ]
        for cell in range(last + 1)
    ]
    joint = model.start()[band, :24] * seen[0]  # one axis a cell: every path there is
    for chances in seen[1:]:
        joint = joint[..., None] * model.transition()[band, :24, :24] * chances
    risk = model.event_probability(ahead)[band, :24]
    return float((joint * risk).sum() / joint.sum())


def chance_of(row, first, share, state):
    """The chance of a cell's row, up to a factor, or of there being none in this share of its time."""
    chances = []
    for number, group in enumerate(model.GROUPS):
        visit = 1.0 if first and number == 0 else model.round_probability()[number, state]
        chance, some = 1.0, False
        for channel in group:
            recorded = model.record_probability()[channel, state]
            recorded = 1.0 if first and channel == model.ALWAYS_FIRST else recorded
            if row is None or np.isnan(row[channel]):
                chance *= 1 - recorded
                continue
            some = True
            mean, deviation = (
                model.channel_mean()[channel, state],
                model.channel_deviation()[channel],
            )
            chance *= recorded * np.exp(-0.5 * ((row[channel] - mean) / deviation) ** 2)
        chances.append(visit * chance if some else 1 - visit + visit * chance)
    return np.prod(chances) if row is not None else 1 - share * (1 - np.prod(chances))


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2])
def test_the_risk_at_any_hour_is_true_overall_and_at_every_height(shift, ward):
    hours = (torch.arange(0.0, 48.0) + shift)[None].expand(len(ward.task.series), -1)
    label = ward.task.truth.at(hours)
    risk = ward.task.known_risk.at(hours).risk
    assert torch.equal(label.isnan(), risk.isnan())
    for low, high in ((0.0, 1.0), (0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        chosen = (risk >= low) & (risk <= high)
        error = torch.where(chosen, label - risk, 0.0).sum(1).double()
        assert abs(float(error.mean() / (error.std() / len(error) ** 0.5))) < 4


def test_at_rows_the_truth_says_what_the_labels_say_and_the_risk_what_it_is_after_the_row(ward):
    task, real = ward.task, ward.task.series.real
    times = task.series.times.masked_fill(~real, torch.nan)
    assert torch.equal(task.truth.at(times)[real], task.labels[real])
    assert torch.equal(task.known_risk.at(times).risk[real], ward.online_risk[real])


def test_asked_by_the_clock_every_patient_has_labels_and_risks_until_the_end_of_the_stay(ward):
    asked = ward.task.asked("every=1h")
    until = ward.task.truth.until
    assert bool((until <= ward.event_hours).all())
    assert torch.equal((~asked.queries.isnan()).sum(1), until.floor().long() + 1)
    eventful = asked.queries == ward.event_hours[:, None]
    assert torch.equal(asked.labelled, ~asked.queries.isnan() & ~eventful)
    assert torch.equal(asked.known_risk.risk.isnan(), asked.labels.isnan())


def test_sicker_patients_are_measured_more_often(ward):
    series = ward.task.series
    gap = series.times.diff(dim=1)
    real = series.real[:, 1:]
    risk = ward.hidden_risk[:, :-1]
    assert float(gap[real & (risk > 0.4)].mean()) < 0.6 * float(gap[real & (risk < 0.05)].mean())


def test_counts_help_time_helps_and_the_known_risk_bounds_them_all(ward):
    series, real = ward.task.series, ward.task.series.real.numpy()
    values = series.values.numpy()
    typical = np.nanmean(values[ward.task.splits["train"]], (0, 1))
    filled = np.empty_like(values)
    last = np.tile(typical, (len(values), 1))
    for row in range(values.shape[1]):
        last = np.where(np.isnan(values[:, row]), last, values[:, row])
        filled[:, row] = last
    counts = np.log1p(series.observed.numpy().cumsum(1))
    times = series.times.numpy()[..., None]
    since = np.diff(times, axis=1, prepend=times[:, :1])
    age = np.broadcast_to(series.static.numpy()[:, None], (*values.shape[:2], 2))
    blind = [filled, age]
    counting = [*blind, counts]
    timed = [*counting, np.log1p(times), np.log1p(since)]
    label = ward.task.labels.numpy()
    train = np.zeros(len(values), bool)
    train[ward.task.splits["train"].numpy()] = True
    fit, test = real & train[:, None], real & ~train[:, None]

    def score(parts):
        table = np.concatenate(parts, 2)
        table = (table - table[fit].mean(0)) / table[fit].std(0)
        regression = LogisticRegression(max_iter=200).fit(table[fit], label[fit])
        return roc_auc_score(label[test], regression.decision_function(table[test]))

    without, with_counts, with_time = score(blind), score(counting), score(timed)
    best = roc_auc_score(label[test], ward.online_risk.numpy()[test])
    ceiling = roc_auc_score(label[test], ward.hidden_risk.numpy()[test])
    assert without + 0.005 < with_counts
    assert with_counts < with_time
    assert with_time + 0.005 < best < ceiling


def test_the_risk_between_rows_moves_without_any_observation(ward):
    series = ward.task.series
    stream = int((series.times.diff(dim=1) * series.real[:, 1:]).max(1).values.argmax())
    gap = int(series.times[stream].diff().argmax())
    cells = [int(series.times[stream, gap + i] / model.CELL) for i in (0, 1)]
    quiet = ward.grid_risk[stream, cells[0] : cells[1]]
    assert len(quiet) > 8
    assert float(quiet.max() - quiet.min()) > 1e-3


def test_bad_sizes_are_refused():
    with pytest.raises(DataError, match="streams is 0"):
        simulate_ward(0)
    with pytest.raises(DataError, match="hours 1"):
        simulate_ward(10, hours=1)
