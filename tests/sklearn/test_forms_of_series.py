"""X in every form is the same series; y goes by stream."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tests.sklearn.conftest import COLUMNS, LONG

from onlinecde.series import SeriesError
from onlinecde.sklearn import OnlineCDEClassifier, OnlineCDERegressor


@pytest.fixture(scope="module")
def fitted(ward):
    model = OnlineCDEClassifier("gru", hidden=4, epochs=15, lr=0.03, random_state=0, **LONG)
    return model.fit(ward.long, ward.labels)


def test_every_form_of_x_gives_the_same_answers(ward, fitted):
    wanted = fitted.predict_proba(ward.series)
    wide = OnlineCDEClassifier(**COLUMNS).series(ward.wide)
    aeon = [
        case[:, : int(times.max()) + 1]
        for case, (times, _) in zip(ward.cube, ward.pairs, strict=True)
    ]
    read = OnlineCDEClassifier().series
    forms = [ward.long, ward.long.to_pandas(), ward.long.to_arrow(), ward.long.lazy(), wide]
    forms += [read(ward.cube), read(ward.pairs), read(aeon), list(ward.series)]
    for X in forms:
        found = fitted.series(X)
        assert found.rows.tolist() == ward.series.rows.tolist()
        channels = [0, 1] if found.channels != ("bp", "hr") else [1, 0]
        np.testing.assert_array_equal(found.values[:, :, channels], ward.series.values)
        np.testing.assert_array_equal(found.times, ward.series.times)
    for X in (ward.long, ward.long.to_pandas(), list(ward.series), ward.series):
        np.testing.assert_allclose(fitted.predict_proba(X), wanted, atol=1e-6)
    assert fitted.score(ward.long, ward.labels) > 0.8
    assert fitted.feature_names_in_.tolist() == ["bp", "hr"]


def test_one_channel_may_be_an_array_of_cases_by_timepoints():
    series = OnlineCDEClassifier(times=[0.0, 0.5, 2.0]).series(
        np.array([[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]])
    )
    assert series.times.tolist() == [[0.0, 0.5, 2.0], [0.0, 2.0, 2.0]]
    assert series.values[0, :, 0].tolist() == [1.0, 2.0, 3.0]


def test_a_case_of_which_nothing_was_observed_is_one_empty_row():
    series = OnlineCDEClassifier().series(np.full((1, 2, 3), np.nan))
    assert series.rows.tolist() == [1]
    assert series.values.isnan().all()


def test_labels_go_by_the_name_of_the_stream(ward):
    labels = dict(zip(ward.names, ward.labels, strict=True))
    backwards = pd.Series(labels)[::-1]
    how = {"epochs": 2, "hidden": 4, "random_state": 0}
    models = [
        OnlineCDEClassifier("gru", **how, **LONG).fit(ward.long, y)
        for y in (ward.labels, labels, backwards)
    ]
    first, *others = [model.predict_proba(ward.long) for model in models]
    for other in others:
        np.testing.assert_array_equal(first, other)
    assert models[0].score(ward.long, labels) == models[0].score(ward.long, ward.labels)


def test_texts_and_gaps_may_be_static_features(ward):
    facts = pl.DataFrame({"bed": ward.names, "unit": ["a", "b"] * 20, "age": [None, *range(9)] * 4})
    frame = ward.wide.join(facts, on="bed")
    model = OnlineCDEClassifier(
        "gru", hidden=4, epochs=1, random_state=0, static=["unit", "age"], **COLUMNS
    )
    model.fit(frame, ward.labels)
    assert model.model_.static == 4
    assert model.feature_names_in_.tolist() == ["hr", "bp"]
    np.testing.assert_allclose(
        model.predict_proba(frame.filter(pl.col("bed") == "bed 3")),
        model.predict_proba(frame)[3:4],
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (lambda ward: ward.long, "say which columns name the stream and the time"),
        (
            lambda ward: np.zeros((2, 2, 2, 2)),
            r"shape \(2, 2, 2, 2\): give \(case, channel, timepoint\)",
        ),
        (lambda ward: np.full((2, 3), np.inf), "infinity"),
        (
            lambda ward: [*ward.pairs[:2], [[0.0], [1.0]]],
            r"stream 2 of X is a list: give every stream as a tuple",
        ),
        (
            lambda ward: [np.zeros((2, 3)), np.zeros((3, 3))],
            "stream 1 of X has 3 channels, the first has 2",
        ),
        (
            lambda ward: [([0.0, 0.0], [[1.0], [2.0]])],
            "stream 0, row 1: time 0.0 does not come after",
        ),
    ],
)
def test_what_is_wrong_with_x_is_named(ward, X, message):
    with pytest.raises(ValueError, match=message):
        OnlineCDEClassifier().fit(X(ward), [0, 1])


def test_what_is_wrong_with_y_is_named(ward):
    model = OnlineCDEClassifier(**LONG)
    with pytest.raises(SeriesError, match=r"y has no label for stream 'bed 0' .40 of 40"):
        model.fit(ward.long, {"bed 99": 1})
    with pytest.raises(
        SeriesError, match=r"one for each line of X, and X has 40 streams: .*task_from_table"
    ):
        model.fit(ward.long, np.zeros(len(ward.long)))
    with pytest.raises(ValueError, match="one class alone"):
        model.fit(ward.long, ["low"] * 40)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(ward.series, ward.labels[:7])
    with pytest.raises(ValueError, match="n_samples=1: give 2 streams"):
        OnlineCDERegressor().fit(np.zeros((1, 1, 2)), [1.0])


def test_channels_that_are_not_there_are_named(ward, fitted):
    with pytest.raises(
        ValueError, match="X has 3 features, but OnlineCDEClassifier is expecting 2"
    ):
        fitted.predict(np.zeros((4, 3, 5)))
    with pytest.raises(ValueError, match="none of the model's channels, bp, hr"):
        fitted.predict(ward.long.with_columns(name=ward.long["name"] + "2"))


def test_times_of_arrays_fit_their_timepoints():
    with pytest.raises(SeriesError, match=r"times has shape \(2,\), X has 3 timepoints"):
        OnlineCDEClassifier(times=[0.0, 1.0]).series(np.zeros((2, 3)))
