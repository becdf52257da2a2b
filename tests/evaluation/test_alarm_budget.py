"""A budget of false alarms holds on new streams, on average and for most validation streams, or it is refused."""

from dataclasses import replace

import numpy as np
import pytest

from onlinecde.evaluation.alarm_budget import (
    BudgetError,
    Sweeps,
    allowed,
    choose_policy,
    most_alarms,
    subjects_needed,
)
from onlinecde.evaluation.alarms import Looks, Sweep, score_alarms, sweep
from onlinecde.evaluation.bootstrap import Cohort


def ward(streams, seed, rate=0.3):
    """Streams looked at every hour for up to two days, whose log-odds drift up before an event, at times."""
    random = np.random.default_rng(seed)
    times = np.arange(48.0)[None].repeat(streams, 0)
    stay = random.integers(8, 48, streams)
    coming = random.random(streams) < rate
    event = np.where(coming, stay, np.inf)
    ahead = event[:, None] - times
    drift = np.where(ahead < 14, 0.25 * (14 - ahead), 0.0)
    own = random.normal(size=(streams, 1))
    odds = 0.8 * random.normal(size=times.shape).cumsum(1) / np.sqrt(times + 1) + own + drift - 2.5
    real = times < stay[:, None]
    label = np.where(real, (ahead <= 12).astype(float), np.nan)
    number = np.where(coming, coming.cumsum() - 1, -1)[:, None]
    return Looks(
        times=times,
        real=real,
        answers=1 / (1 + np.exp(-odds)),
        labels=label,
        ahead=np.where(label == 1, ahead, np.nan),
        events=np.where(label == 1, number, -1),
        spans=stay.astype(float),
        owners=np.arange(streams),
        unit="hours",
    )


@pytest.fixture(scope="module")
def training():
    return Sweeps(ward(150, 1))


@pytest.fixture(scope="module")
def chosen(training):
    return choose_policy(ward(200, 2), training, 0.5, lead=12.0, every=1.0)


def test_what_is_allowed_is_the_rule_of_conformal_risk_control_written_out():
    random = np.random.default_rng(0)
    days, most, budget = random.uniform(0.2, 2.0, 40), 4, 0.8
    false = random.poisson(np.linspace(3, 0, 9), (40, 9)).astype(float)
    fine = allowed(Sweep(np.arange(9.0), false, np.zeros(9)), days, budget, most, 0.0)
    for place in range(9):
        holds = []
        for higher in range(place, 9):
            worst = [min(max(row[higher:]), most) for row in false]
            excess = sum(f - budget * d for f, d in zip(worst, days, strict=True))
            holds.append(excess + most <= 0)
        assert fine[place] == all(holds)
    assert 0 < fine.sum() < 9


def test_on_average_the_budget_holds_exactly_and_is_used():
    """Over draws of few subjects, with a heavy tail below C, the mean of the rate chosen stays within the budget."""
    random = np.random.default_rng(5)
    levels, budget, most, subjects = np.arange(40.0), 0.6, 6, 60
    rates, excess = np.exp(-levels / 12) * 2, []
    for _ in range(400):
        # Thinning: false alarms of a subject fall as the threshold rises, as repeated ones do.
        days = random.uniform(0.3, 2.5, subjects + 1)
        frail = random.gamma(0.5, 2.0, subjects + 1)
        total = np.minimum(random.poisson(rates[0] * frail * days), most)
        marks = random.random((subjects + 1, most))
        kept = (marks[:, :, None] < (rates / rates[0])) & (np.arange(most) < total[:, None])[
            :, :, None
        ]
        false = kept.sum(1).astype(float)
        fine = allowed(Sweep(levels, false[:-1], levels), days[:-1], budget, most, 0.0)
        new = false[-1, int(np.argmax(fine))] if fine.any() else 0.0
        excess.append((new, days[-1]))
    new, days = np.array(excess).T
    error = (new - budget * days).std() / np.sqrt(len(new))
    assert (new - budget * days).mean() <= 2 * error
    assert new.sum() / days.sum() > 0.6 * budget


@pytest.mark.parametrize("budget", [0.2, 0.5, 2.0])
def test_budgets_hold_on_unseen_streams_of_twenty_wards(training, budget):
    rates = []
    for seed in range(20):
        found = choose_policy(ward(150, 100 + seed), training, budget, lead=12.0, every=1.0)
        unseen = ward(200, 500 + seed)
        cohort = Cohort(unseen.owners, unseen.subjects, 200, 0)
        score = score_alarms(unseen, found.policy, cohort)
        assert found.validation.false_a_day.value <= budget
        assert score.false_a_day.low <= budget
        rates.append(score.false_a_day.value)
    assert 0.4 * budget < np.mean(rates) < budget


def test_a_policy_says_how_it_was_chosen(chosen):
    policy = chosen.policy
    assert policy.every == 1.0
    assert policy.chosen["budget"] == 0.5
    assert "conformal risk control" in policy.chosen["guarantee"]
    assert "Nothing is guaranteed of a single stream" in policy.chosen["guarantee"]
    assert policy.chosen["validation"]["false"] == chosen.validation.false
    assert chosen.validation.caught > 0


def test_a_larger_budget_catches_no_fewer_events(training, chosen):
    more = choose_policy(ward(200, 2), training, 1.5, lead=12.0, every=1.0)
    assert more.validation.caught >= chosen.validation.caught
    assert more.policy.threshold <= chosen.policy.threshold


def test_confidence_asks_for_a_higher_threshold_than_the_average_alone(training):
    streams = ward(400, 3)
    plain, safe = (
        choose_policy(streams, training, 0.5, lead=12.0, quiet=12.0, confidence=c)
        for c in (0, 0.99)
    )
    assert safe.policy.threshold > plain.policy.threshold
    assert "90 %" not in plain.policy.chosen["guarantee"]
    assert "99 %" in safe.policy.chosen["guarantee"]


def test_a_quiet_period_that_is_given_is_kept(training):
    found = choose_policy(ward(200, 2), training, 1.0, lead=12.0, quiet=5.0)
    assert found.policy.quiet == 5.0
    assert found.policy.every is None


def test_no_more_alarms_than_the_quiet_period_allows():
    streams = ward(60, 4)
    most = most_alarms(streams, 12.0)
    counted = sweep(streams, np.array([-50.0]), gap=-np.inf, quiet=12.0)
    assert counted.false.max() <= most <= 4
    assert most_alarms(replace(streams, owners=np.arange(60) // 2), 12.0) > most


def test_too_few_streams_are_refused_and_how_many_it_takes_is_right(training):
    with pytest.raises(
        BudgetError, match=r"20 validation subjects are too few .* takes about"
    ) as said:
        choose_policy(ward(20, 5), training, 0.05, lead=12.0)
    needed = int(str(said.value).split("about ")[1].split(",")[0].replace(",", ""))
    streams = ward(needed, 5)
    most = min(most_alarms(streams, share * 12) for share in (1 / 3, 2 / 3, 1, 4 / 3))
    assert subjects_needed(streams, 0.05, most) == pytest.approx(needed, rel=0.5)


@pytest.mark.parametrize(
    ("budget", "more", "message"),
    [
        (-1.0, {}, "budget is -1.0: give a number"),
        (float("nan"), {}, "budget is nan"),
        (0.5, {"confidence": 0.2}, "confidence is 0.2: give one from 0.5"),
    ],
)
def test_settings_that_mean_nothing_are_refused(training, budget, more, message):
    with pytest.raises(BudgetError, match=message):
        choose_policy(ward(100, 6), training, budget, lead=12.0, **more)


def test_streams_without_an_event_and_budgets_nothing_meets_are_refused(training):
    with pytest.raises(BudgetError, match="no validation stream has the event"):
        choose_policy(ward(100, 7, rate=0.0), training, 0.5, lead=12.0)
    streams = ward(300, 8)
    # A model that is surest where no event comes.
    wrong = replace(streams, answers=np.where(streams.labels == 1, 0.01, streams.answers))
    with pytest.raises(BudgetError, match=r"cannot be met on validation: where a threshold begins"):
        choose_policy(wrong, training, 0.1, lead=12.0)
