"""scikit-learn's own checks of an estimator, where they apply to series."""

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from onlinecde.series import SeriesBatch
from onlinecde.sklearn import OnlineCDEClassifier, OnlineCDERegressor

ANY_LENGTH = "a prefix of a series is a series too, and n_features_in_ counts its channels"
NO_COLUMNS = "a data frame without `stream` and `time` is refused, not read as an array"
EXPECTED_FAILED = {
    "check_n_features_in": ANY_LENGTH,
    "check_n_features_in_after_fitting": ANY_LENGTH,
    "check_classifiers_train": ANY_LENGTH,
    "check_classifier_data_not_an_array": NO_COLUMNS,
    "check_regressor_data_not_an_array": NO_COLUMNS,
}
IN_FLOAT64 = {"dtype": "float64", "average": 0.9}
"""In float32 rounding depends on who is in a batch, by 1e-6; the checks allow 1e-7."""
CLASSIFIER = {"model": "gru", "hidden": 8, "epochs": 8, "lr": 0.02, "settings": IN_FLOAT64}
REGRESSOR = {**CLASSIFIER, "lr": 0.1, "batch_size": 16}


@parametrize_with_checks(
    [
        OnlineCDEClassifier(**CLASSIFIER),
        OnlineCDERegressor(**REGRESSOR),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED,
)
def test_the_estimators_pass_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


class OneRowClassifier(OnlineCDEClassifier):
    """Reads (case, feature) as one row of so many channels, as checks that count features mean it."""

    def _read(self, X, model):
        if isinstance(X, SeriesBatch):
            return super()._read(X, model)
        # (case, 1 channel, timepoint) -> (case, channel, 1 timepoint)
        series = super()._read(X, None).series
        return super()._read(series.values.numpy(), model)


@pytest.mark.parametrize("name", [n for n, why in EXPECTED_FAILED.items() if why is ANY_LENGTH])
def test_features_are_channels(name):
    getattr(estimator_checks, name)("OneRowClassifier", OneRowClassifier(**CLASSIFIER))
