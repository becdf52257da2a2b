"""When a watched number raises an alarm: the rule, judged by a loop over one stream, and what no policy can be."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onlinecde.models import AlarmPolicy, AlarmPolicyError


def slow_alarms(policy, watched, times):
    """The rule as a person would follow it, one stream, one look after the other."""
    armed, last, alarms = True, None, []
    for number, time in zip(watched, times, strict=True):
        if number < policy.rearm:
            armed = True
        quiet_over = last is None or (time > last and time - last >= policy.quiet)
        if armed and number >= policy.threshold and quiet_over:
            alarms.append(time)
            armed, last = False, time
    return alarms


@st.composite
def policies(draw):
    threshold = draw(st.sampled_from([0.3, 0.5, 0.8]))
    rearm = draw(st.sampled_from([None, 0.1, 0.25, threshold, 1.0]))
    quiet, every = draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([None, 1, 2]))
    highest = 1.0 if quiet else threshold
    return AlarmPolicy(threshold, min(highest, rearm or threshold), quiet, every)


@settings(max_examples=200, deadline=None)
@given(
    policies(),
    st.lists(
        st.lists(st.sampled_from([0.0, 0.2, 0.3, 0.5, 0.8, math.nan]), max_size=30), max_size=5
    ),
)
def test_many_streams_at_once_are_alarmed_as_each_alone(policy, streams):
    wide = max(map(len, streams), default=0)
    watched = np.full((len(streams), wide), 0.9)  # where it is not real, it would alarm
    real = np.zeros(watched.shape, bool)
    for place, own in enumerate(streams):
        watched[place, : len(own)], real[place, : len(own)] = own, True
    times = np.broadcast_to(np.arange(wide, dtype=float), watched.shape)
    alarms = policy.alarm_times(watched, times, real)
    for place, own in enumerate(streams):
        assert times[place, alarms[place]].tolist() == slow_alarms(policy, own, range(len(own)))


@settings(max_examples=100, deadline=None)
@given(policies(), st.lists(st.floats(0, 1), min_size=1, max_size=40), st.data())
def test_one_look_after_the_other_is_the_whole_grid(policy, watched, data):
    """However looks are grouped into calls, the alarms are the same."""
    times = np.cumsum(
        data.draw(
            st.lists(st.sampled_from([0.25, 1.0]), min_size=len(watched), max_size=len(watched))
        )
    )
    armed, last, alarms = np.array([True]), np.array([-np.inf]), []
    for number, time in zip(watched, times, strict=True):
        mask, armed, last = policy.raised([number], armed, last, [time])
        alarms.append(bool(mask[0]))
    whole = policy.alarm_times([watched], times[None], np.ones((1, len(watched)), bool))
    assert whole[0].tolist() == alarms


def test_threshold_alone_is_a_crossing_from_below():
    policy = AlarmPolicy(0.5)
    watched = np.random.default_rng(0).random((20, 50))
    times = np.broadcast_to(np.arange(50.0), watched.shape)
    below = np.concatenate([np.ones((20, 1), bool), watched[:, :-1] < 0.5], axis=1)
    alarms = policy.alarm_times(watched, times, np.ones(watched.shape, bool))
    assert (alarms == ((watched >= 0.5) & below)).all()


def test_an_alarm_due_in_the_quiet_time_waits_until_it_is_over():
    policy = AlarmPolicy(0.5, quiet=3.0)
    watched = [[0.6, 0.1, 0.6, 0.6, 0.6, 0.1, 0.1, 0.6]]
    alarms = policy.alarm_times(watched, [np.arange(8.0)], np.ones((1, 8), bool))
    assert np.flatnonzero(alarms[0]).tolist() == [0, 3, 7]


@pytest.mark.parametrize("every", [0.1, 0.25, 1 / 3, 15.0])
def test_a_quiet_time_of_some_looks_ends_at_a_look(every):
    """0.7 - 0.4 is less than 0.3 in binary: an alarm must not wait another look for that."""
    policy = AlarmPolicy(0.5, quiet=3 * every, every=every)
    times = np.arange(1, 4001) * every
    watched = np.full(4000, 0.9)
    watched[1::3] = 0.1
    alarms = policy.alarm_times(watched[None], times[None], np.ones((1, 4000), bool))
    assert np.diff(np.flatnonzero(alarms[0])).tolist() == [3] * 1333


def test_re_armed_above_the_threshold_an_alarm_is_repeated_while_the_number_stays():
    policy = AlarmPolicy(0.5, rearm=1.0, quiet=3.0)
    watched = [[0.6, 0.6, 0.6, 0.6, 0.6, 0.1, 0.1, 0.6, 0.6]]
    alarms = policy.alarm_times(watched, [np.arange(9.0)], np.ones((1, 9), bool))
    assert np.flatnonzero(alarms[0]).tolist() == [0, 3, 7]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7]), min_size=1, max_size=40),
    st.sampled_from([1.0, 2.0, 5.0]),
)
def test_repeated_alarms_are_never_more_at_a_higher_threshold(watched, quiet):
    times, real = np.arange(float(len(watched)))[None], np.ones((1, len(watched)), bool)
    counts = [
        AlarmPolicy(level, 1.0, quiet).alarm_times([watched], times, real).sum()
        for level in (0.1, 0.3, 0.5, 0.7)
    ]
    assert counts == sorted(counts, reverse=True)


def test_a_look_before_the_last_alarm_raises_none():
    mask, armed, last = AlarmPolicy(0.5).raised([0.9, 0.9], [True, True], [5.0, 4.0], [5.0, 5.0])
    assert mask.tolist() == [False, True]
    assert armed.tolist() == [True, False]
    assert last.tolist() == [5.0, 5.0]


def test_the_grid_lies_at_multiples_after_one_time_and_up_to_another():
    policy = AlarmPolicy(0.5, every=0.25)
    first, count = policy.grid([0.0, 0.1, 0.25, -0.6, 3.0], [1.0, 0.25, 0.3, 0.0, 2.0])
    assert first.tolist()[:4] == [1, 1, 2, -2]
    assert count.tolist() == [4, 1, 0, 3, 0]
    assert AlarmPolicy(0.5).grid([0.0], [9.0])[1].tolist() == [0]


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e6, 2e9), st.floats(0, 100), st.sampled_from([0.1, 0.25, 1 / 3, 15.0, 1e-3]))
def test_every_multiple_in_between_is_looked_at_and_no_other(after, span, every):
    until = after + min(span, 200 * every)
    (first,), (count,) = AlarmPolicy(0.5, every=every).grid([after], [until])
    times = (first + np.arange(-1, count + 1)) * every
    assert ((times[1:-1] > after) & (times[1:-1] <= until)).all()
    assert times[0] <= after
    assert times[-1] > until


def test_looks_are_rows_and_the_grid_until_silence():
    policy = AlarmPolicy(0.5, every=1.0)
    rows = [[0.5, 2.0, 9.2], [1.0, 1.5, 7.0], [3.0, 3.0, 3.0]]
    real = np.array([[True] * 3, [True, True, False], [False] * 3])
    times, present = policy.looks(rows, [10.0, 3.0, 9.0], real=real, silent_after=3.0)
    assert times[0, present[0]].tolist() == [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 9.2, 10.0]
    assert times[1, present[1]].tolist() == [1.0, 1.5, 2.0, 3.0]
    assert not present[2].any()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"threshold": math.nan}, "threshold is nan: give a finite number"),
        ({"threshold": "0.5"}, "threshold is '0.5'"),
        ({"threshold": True}, "threshold is True"),
        ({"rearm": 0.6}, "rearm is 0.6, above the threshold 0.5"),
        ({"quiet": -1}, "quiet is -1: give a time of 0 or more"),
        ({"every": 0}, "every is 0: give a time above 0"),
        ({"every": math.inf}, "every is inf: give a finite number"),
        ({"output": -1}, "output is -1: give the position"),
        ({"output": 0.5}, "output is 0.5"),
        ({"chosen": "by me"}, "chosen is not a mapping"),
    ],
)
def test_what_no_policy_can_be_is_refused_by_name(given, match):
    with pytest.raises(AlarmPolicyError, match=match):
        AlarmPolicy(**{"threshold": 0.5, **given})


def test_a_policy_for_another_kind_of_model_is_refused():
    AlarmPolicy(38.5).check_outputs(1, "regression")
    with pytest.raises(AlarmPolicyError, match=r"threshold is 38.5: give a probability"):
        AlarmPolicy(38.5).check_outputs(1, "binary")
    with pytest.raises(
        AlarmPolicyError, match="output is 2: the model has no such output; it has 2"
    ):
        AlarmPolicy(0.5, output=2).check_outputs(2, "multiclass")


def test_a_policy_is_copied_and_written_as_it_is():
    policy = AlarmPolicy(0.5, 0.4, 3, 0.25, chosen={"budget": 0.5, "guarantee": "..."})
    for again in (
        AlarmPolicy.from_json(policy.as_json()),
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy)),
    ):
        assert again == policy
        assert again.chosen["budget"] == 0.5
    for content, match in (
        ([], "a mapping of fields"),
        ({}, "needs a threshold"),
        ({"threshold": 0.5, "quite": 1}, "no field 'quite'"),
        ({"threshold": 0.5, "rearm": 0.7}, "rearm is 0.7"),
    ):
        with pytest.raises(AlarmPolicyError, match=match):
            AlarmPolicy.from_json(content)


@pytest.mark.parametrize(
    ("policy", "unit", "said"),
    [
        (AlarmPolicy(0.31), "hours", "alarms at 0.31; looked at when a row comes"),
        (
            AlarmPolicy(0.31, 0.25, 4, 0.25),
            "hours",
            "alarms at 0.31, again after falling below 0.25, at most one in 4 hours; looked at every 15 minutes",
        ),
        (
            AlarmPolicy(0.31, 1, 8, 1),
            "hours",
            "alarms at 0.31, again every 8 hours while there; looked at every 1 hour",
        ),
        (AlarmPolicy(38.5, every=1), "days", "alarms at 38.5; looked at every 1 day"),
        (AlarmPolicy(0.5, every=15), "seconds", "alarms at 0.5; looked at every 15 seconds"),
        (AlarmPolicy(0.5, every=2), None, "alarms at 0.5; looked at every 2 units of time"),
    ],
)  # fmt: skip
def test_a_policy_is_said_in_words(policy, unit, said):
    assert policy.words(unit) == said
