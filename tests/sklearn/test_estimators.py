"""The estimators among scikit-learn's tools: cross-validation, search, pipelines, pickles, and streams that go on."""

import io
import pickle
import sys

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.sklearn.conftest import LONG

from onlinecde.models.state import StateError
from onlinecde.series import SeriesError
from onlinecde.sklearn import OnlineCDEClassifier, OnlineCDERegressor

TINY = {"model": "gru-d", "hidden": 4, "epochs": 6, "lr": 0.05, "random_state": 0}


@pytest.fixture(scope="module")
def fitted(ward):
    return OnlineCDEClassifier(**{**TINY, "model": "neural-cde"}, **LONG).fit(
        ward.long, ward.labels
    )


@pytest.mark.parametrize("form", ["cube", "pairs", "series"])
def test_cross_validation_goes_by_streams(ward, form):
    X = getattr(ward, form)
    found = cross_val_score(OnlineCDEClassifier(**TINY), X, ward.labels, cv=2, scoring="roc_auc")
    assert found.min() > 0.7


def test_a_search_chooses_in_a_pipeline(ward):
    pipeline = make_pipeline(FunctionTransformer(np.negative), OnlineCDEClassifier(**TINY))
    grid = {"onlinecdeclassifier__hidden": [2, 4]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(ward.cube, ward.labels)
    assert search.score(ward.cube, ward.labels) > 0.7
    assert search.classes_.tolist() == ["high", "low"]


def test_estimators_are_fitted_by_two_processes(ward):
    how = {"cv": 2, "return_estimator": True}
    alone, shared = (
        cross_validate(OnlineCDEClassifier(**TINY), ward.series, ward.labels, n_jobs=jobs, **how)
        for jobs in (1, 2)
    )
    for one, other in zip(alone["estimator"], shared["estimator"], strict=True):
        np.testing.assert_array_equal(one.predict_proba(ward.cube), other.predict_proba(ward.cube))


def test_the_same_random_state_gives_the_same_model(ward, fitted):
    again = clone(fitted).fit(ward.long, ward.labels)
    other = clone(fitted).set_params(random_state=1).fit(ward.long, ward.labels)
    probabilities = [model.predict_proba(ward.series) for model in (fitted, again, other)]
    np.testing.assert_array_equal(probabilities[0], probabilities[1])
    assert not np.array_equal(probabilities[0], probabilities[2])


def test_a_fitted_estimator_travels_as_a_saved_model(ward, fitted):
    class Seen(pickle.Unpickler):
        modules = set()

        def find_class(self, module, name):
            self.modules.add(module.partition(".")[0])
            return super().find_class(module, name)

    carried = Seen(io.BytesIO(pickle.dumps(fitted))).load()
    assert "torch" not in Seen.modules
    np.testing.assert_array_equal(
        carried.predict_proba(ward.series), fitted.predict_proba(ward.series)
    )
    assert carried.predict(ward.long).tolist() == fitted.predict(ward.long).tolist()


def test_streams_that_go_on_are_answered_as_if_they_were_whole(ward, fitted):
    early, late = pl.col("hours") < 4, pl.col("hours") >= 4
    states = fitted.start(ward.long.filter(early))
    before = fitted.predict_proba(states)
    whole = fitted.partial_update(states, ward.long.filter(late))
    assert set(whole.streams) == set(ward.names)
    order = [ward.names.index(name) for name in whole.streams]
    np.testing.assert_allclose(
        fitted.predict_proba(whole), fitted.predict_proba(ward.series)[order], atol=1e-5
    )
    np.testing.assert_array_equal(fitted.predict_proba(states), before)
    # And between rows.
    np.testing.assert_allclose(
        fitted.predict_proba(whole, at=12.0),
        fitted.predict_proba(ward.series, at=12.0)[order],
        atol=1e-5,
    )


def test_arrays_go_on_by_position(ward, fitted):
    cube = np.nan_to_num(ward.cube)
    states = fitted.partial_update(fitted.start(cube[:, :, :4]), cube[:, :, 4:])
    assert states.times.tolist() == [8.0] * 40
    np.testing.assert_allclose(fitted.predict_proba(states), fitted.predict_proba(cube), atol=1e-5)
    with pytest.raises(SeriesError, match="3 streams without names, 40 are followed"):
        fitted.partial_update(states, cube[:3])


def test_timestamps_go_on_from_the_first_one_of_a_stream(ward):
    stamped = ward.long.with_columns(
        hours=pl.datetime(2030, 1, 1) + pl.duration(hours=pl.col("hours")) + pl.duration(minutes=7)
    )
    model = OnlineCDEClassifier(**TINY, **LONG).fit(stamped, ward.labels)
    early = pl.col("hours") < pl.datetime(2030, 1, 1, 5)
    states = model.partial_update(model.start(stamped.filter(early)), stamped.filter(~early))
    whole = model.start(stamped)
    order = [states.streams.index(name) for name in whole.streams]
    np.testing.assert_allclose(states.times[order], whole.times, atol=1e-9)
    with pytest.raises(
        SeriesError, match=r"times of X are numbers, those of the streams .* timestamps"
    ):
        model.partial_update(states, ward.long)


def test_rows_that_cannot_follow_are_refused_by_name(ward, fitted):
    states = fitted.start(ward.long)
    with pytest.raises(
        SeriesError, match=r"stream 'bed \d+': time \d.0 lies before its last row at"
    ):
        fitted.partial_update(states, ward.long)
    last = dict(zip(states.streams, states.times, strict=True))["bed 3"]
    row = {"bed": ["bed 3"], "hours": [last + 1], "name": ["hr"], "value": [1.0]}
    states = fitted.partial_update(states, pl.DataFrame(row))
    with pytest.raises(
        StateError, match=rf"stream 'bed 3', time {last + 1}, channel .: .*another value"
    ):
        fitted.partial_update(states, pl.DataFrame(row | {"value": [2.0]}))
    with pytest.raises(TypeError, match="give what `start` or `partial_update` gave"):
        fitted.partial_update(ward.cube, ward.cube)


def test_labels_that_do_not_exclude_each_other(ward):
    y = np.stack([ward.labels == "high", np.arange(40) % 3 == 0], 1).astype(int)
    model = OnlineCDEClassifier(**TINY).fit(ward.cube, y)
    assert model.predict_proba(ward.cube).shape == model.predict(ward.cube).shape == (40, 2)
    assert model.classes_.tolist() == [0, 1]


def test_several_numbers_are_predicted_together(ward):
    y = np.stack([np.nanmean(ward.cube[:, 0], 1), np.arange(40.0)], 1)
    model = OnlineCDERegressor(**TINY).fit(ward.cube, y)
    assert model.predict(ward.cube).shape == (40, 2)
    assert np.isfinite(model.score(ward.cube, y))


def test_a_fit_that_fails_leaves_nothing_behind(ward):
    model = OnlineCDEClassifier(**{**TINY, "model": "lstm"})
    with pytest.raises(ValueError, match="there is no model 'lstm'"):
        model.fit(ward.cube, ward.labels)
    with pytest.raises(NotFittedError):
        model.predict(ward.cube)


def test_subjects_are_held_back_as_wholes(ward, monkeypatch):
    from onlinecde.sklearn import estimators

    given = []
    monkeypatch.setattr(estimators, "fit", lambda task, *rest, **more: given.append(task) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        OnlineCDEClassifier().fit(ward.cube, ward.labels, subjects=np.arange(40) // 4)
    trained, kept = (given[0].splits[name] // 4 for name in ("train", "validation"))
    assert not set(trained.tolist()) & set(kept.tolist())
    assert len(kept)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("onlinecde.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r"pip install 'onlinecde\[sklearn\]'"):
        import onlinecde.sklearn  # noqa: F401
