"""`recommend` gives the paper's advice, and the reason."""

import pytest
import torch
from made_series import random_batch

from onlinecde import Measurability, SeriesBatch, controls, recommend


@pytest.mark.parametrize(
    ("asked", "control"),
    [
        ({}, "rectilinear"),
        ({"prediction": "continuous", "missing": False}, "rectilinear"),
        ({"prediction": "discrete", "missing": True}, "rectilinear"),
        ({"prediction": "discrete"}, "rectilinear"),
        ({"prediction": "discrete", "missing": False}, "hermite"),
        ({"prediction": "discrete", "missing": False, "speed_first": True}, "hermite"),
        ({"prediction": "offline", "missing": False}, "hermite"),
        ({"prediction": "offline", "missing": True}, "hermite"),
        ({"prediction": "offline", "speed_first": True}, "natural_cubic"),
    ],
)
def test_advice_is_that_of_the_paper(asked, control):
    advice = recommend(**asked)
    assert advice.control == control
    assert len(advice.reason.split()) > 10


def test_missing_values_are_seen_in_the_batch_and_padding_is_none():
    complete = random_batch([5, 2], 2, 0, "none")
    values = complete.values.clone()
    values[0, 3, 1] = torch.nan
    partial = SeriesBatch.from_padded(complete.times, values, complete.rows)
    assert recommend(complete, prediction="discrete").control == "hermite"
    assert recommend(partial, prediction="discrete").control == "rectilinear"
    assert recommend(partial, prediction="offline").counts
    assert not recommend(complete, prediction="offline").counts


@pytest.mark.parametrize("missing", ["none", "leading", "any"])
@pytest.mark.parametrize("prediction", ["continuous", "discrete"])
def test_what_is_advised_online_never_looks_ahead(prediction, missing):
    batch = random_batch([8, 5], 3, 1, missing)
    advice = recommend(batch, prediction=prediction)
    path = getattr(controls, advice.control)(batch, advice.counts)
    allowed = {Measurability.CONTINUOUS}
    if prediction == "discrete":
        allowed.add(Measurability.DISCRETE)
    assert path.measurability in allowed


def test_an_unknown_kind_of_prediction_is_refused():
    with pytest.raises(ValueError, match=r"prediction is 'live'.*'continuous'"):
        recommend(prediction="live")  # pyright: ignore[reportArgumentType]
