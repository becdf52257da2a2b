"""`OnlineCDEClassifier` and `OnlineCDERegressor`: one label a stream, by scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
except ImportError as error:
    raise ImportError(
        f"onlinecde.sklearn needs scikit-learn ({error}): pip install 'onlinecde[sklearn]'."
    ) from error
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    assert_all_finite,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from onlinecde.artifacts import pack, unpack
from onlinecde.data import Task
from onlinecde.data.task import Kind
from onlinecde.evaluation.predictions import as_probabilities, predict_task
from onlinecde.models import OnlineModel
from onlinecde.series import SeriesBatch
from onlinecde.series.checks import default_names
from onlinecde.sklearn.followed import Followed, follow
from onlinecde.sklearn.panels import Columns, Panel, labels_of, read_panel
from onlinecde.training import fit
from onlinecde.training.callbacks import Callback


class _Notes(Callback):
    """Keeps what a fit has to say."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def note(self, text: str) -> None:
        self.heard.append(text)


class _OnlineCDE(BaseEstimator):
    """What both estimators share: parameters, series, training, states."""

    def __init__(
        self,
        model: str = "neural-cde",
        *,
        hidden: int | None = None,
        epochs: int = 30,
        batch_size: int | None = None,
        lr: float | None = None,
        model_settings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        validation_fraction: float = 0.15,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        stream: str | None = None,
        time: str | None = None,
        channel: str | None = None,
        value: str | None = None,
        channels: Sequence[str] | None = None,
        static: Sequence[str] | None = None,
        time_unit: str = "hours",
        times: Sequence[float] | None = None,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.model_settings = model_settings
        self.settings = settings
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.stream = stream
        self.time = time
        self.channel = channel
        self.value = value
        self.channels = channels
        self.static = static
        self.time_unit = time_unit
        self.times = times

    def series(self, X: Any) -> SeriesBatch:
        """X as a `SeriesBatch`, which cross-validation can index by stream; its `streams` give the order of labels."""
        return self._read(X, None).series

    def fit(self, X: Any, y: Any, *, subjects: Sequence[Hashable] | None = None) -> Self:
        """Train on one label a stream.

        Args:
            X: a data frame (polars, pandas, Arrow) whose columns the parameters name; an array (case, channel,
                timepoint), or (case, timepoint) of one channel, NaN where missing; a list of tuples (times,
                values), or of arrays (channel, timepoint); a `SeriesBatch`.
            y: (stream,) in the order of `series(X).streams`, or {stream: label}; several columns for several
                outputs or labels that do not exclude each other.
            subjects: (stream,) whose each stream is; streams of one subject are held back together.

        Returns:
            The estimator.

        Raises:
            ValueError: X, y or a setting cannot be used; the message says which, where, and what to do.
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        panel = self._read(X, None)
        series = panel.series
        y = labels_of(panel, y)
        check_consistent_length(series, y)
        labels, kind, classes = self._targets(y)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        notes = _Notes()
        done = fit(
            self._task(series, labels, kind, classes, subjects, seed),
            self.model,
            model_settings=self._given("hidden", **self.model_settings or {}),
            device=self.device,
            callback=notes,
            **self._given("epochs", "batch_size", "lr", **{"seed": seed, **(self.settings or {})}),
        )
        self.model_ = done.model.eval()
        self.history_ = list(done.history)
        self.notes_ = notes.heard
        if classes is not None:
            self.classes_ = classes
        self.n_features_in_ = len(series.channels)
        vars(self).pop("feature_names_in_", None)
        if not default_names(series.channels, "x"):
            self.feature_names_in_ = np.array(series.channels, object)
        return self

    def start(self, X: Any) -> Followed:
        """Follow the streams of X from their first row to their last; see `partial_update`."""
        return self._follow(X, None)

    def partial_update(self, states: Followed, X: Any) -> Followed:
        """Take later rows into streams that are followed; streams not among them begin.

        The model stays as it is, and so do `states`. Rows at the time of a stream's last one are part of it. In data
        frames and series with names, streams go by name; in arrays and lists, which are of all streams, by position,
        and timepoints of arrays go on after a stream's last row.

        Args:
            states: what `start` or this method gave.
            X: the new rows, in any form `fit` takes.

        Returns:
            New states: what `predict` and `predict_proba` take in place of X.

        Raises:
            ValueError: times go back, or two values of one channel at one instant.
        """
        if not isinstance(states, Followed):
            raise TypeError(
                f"states is a {type(states).__name__}: give what `start` or `partial_update` gave."
            )
        return self._follow(X, states)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The model travels as the files of a saved one: safetensors and JSON."""
        state: Any = super().__getstate__()
        return state | ({"model_": pack(state["model_"])} if "model_" in state else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            state = {**state, "model_": unpack(state["model_"])}
        super().__setstate__(state)

    def _read(self, X: Any, model: OnlineModel | None) -> Panel:
        columns = Columns(
            self.stream,
            self.time,
            self.channel,
            self.value,
            self.channels,
            self.static,
            self.time_unit,
        )
        panel = read_panel(X, columns, self.times, None if model is None else model.schema)
        count = len(panel.series.channels)
        if model is not None and panel.counted and count != model.channels:
            raise ValueError(
                f"X has {count} features, but {type(self).__name__} is expecting {model.channels} features as input: "
                "of series these are the channels."
            )
        return panel

    def _targets(self, y: Any) -> tuple[np.ndarray, Kind, np.ndarray | None]:
        """Labels as a task has them, of which kind they are, and the classes, where they are classes."""
        raise NotImplementedError

    def _task(
        self,
        series: SeriesBatch,
        labels: np.ndarray,
        kind: Kind,
        classes: np.ndarray | None,
        subjects: Sequence[Hashable] | None,
        seed: int,
    ) -> Task:
        share = self.validation_fraction
        if not 0 < share < 1:
            raise ValueError(f"validation_fraction is {share!r}: give a share above 0 and below 1.")
        if len(series) < 2:
            raise ValueError(
                f"n_samples={len(series)}: give 2 streams or more, one at least to train on and one to hold back."
            )
        return Task.build(
            type(self).__name__,
            series,
            labels,
            kind=kind,
            subjects=subjects,
            seed=seed,
            fractions={"train": 1 - share, "validation": share},
            time_unit=self.time_unit,
            classes=() if classes is None else [str(each) for each in classes],
            source="given to the estimator",
        )

    def _given(self, *names: str, **others: Any) -> dict[str, Any]:
        """Parameters that are not None, by name, and others, which count more."""
        own = {name: getattr(self, name) for name in names}
        return {name: value for name, value in own.items() if value is not None} | others

    def _follow(self, X: Any, states: Followed | None) -> Followed:
        check_is_fitted(self, "model_")
        return follow(self.model_, self._read(X, self.model_), states, self.time_unit)

    def _answers(self, X: Any, at: Any) -> np.ndarray:
        """Probabilities or numbers (stream, output) after the last row of each stream, or at a time after it."""
        check_is_fitted(self, "model_")
        if at is not None and not isinstance(X, Followed):
            X = self.start(X)
        if isinstance(X, Followed):
            with torch.no_grad():
                outputs = self.model_.predict(X.state, at).cpu()
        else:
            outputs = predict_task(self.model_, self._read(X, self.model_).series, "stream")
        return as_probabilities(self.model_.readout, outputs).numpy()


class OnlineCDEClassifier(ClassifierMixin, _OnlineCDE):
    """Classifies irregular, partly observed series, and goes on as they go on.

    One label a stream: of two classes, of several, or several of 0 and 1 that do not exclude each other, (stream,
    label). `fit` also takes validation streams from X and keeps the epoch that is best on them.

    Args:
        model: "neural-cde", "gru", "gru-dt", "gru-dt-intensity", "gru-d" or "ode-rnn".
        hidden: size of the state; None: the model's default for the data.
        epochs: largest number of epochs; training ends earlier where validation no longer improves.
        batch_size, lr: of training; None: what fits the data.
        model_settings: other arguments of the model, by name.
        settings: other training settings (fields of `onlinecde.training.FitSettings`), by name.
        validation_fraction: share of the streams held back to choose the epoch and to calibrate.
        random_state: of weights, batches and of which streams are held back.
        device: "cpu", "cuda" or "auto".
        stream, time: columns of a data frame that name the stream and its time (numbers or timestamps).
        channel, value: of a long data frame, with one event a line; a wide one has a column a channel.
        channels: columns of a wide frame, or names in a long one, that are channels; default: all without a role.
        static: columns that are the same throughout a stream (numbers or texts).
        time_unit: what timestamps are turned into.
        times: (timepoint,) of arrays; default: 0, 1, 2, ...

    Attributes:
        classes_: the classes, sorted; of several labels 0, 1, ...
        n_features_in_, feature_names_in_: how many channels there are, and their names, where they have names.
        model_: the trained `OnlineModel`.
        history_, notes_: one entry an epoch, and what was worth knowing of the training.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(40, 2, 5))  # (case, channel, timepoint)
    >>> y = np.where(X[:, 0].mean(1) > 0, "up", "down")
    >>> model = OnlineCDEClassifier("gru", hidden=4, epochs=3, random_state=0).fit(X, y)
    >>> states = model.start(X[:2, :, :3])
    >>> states = model.partial_update(states, X[:2, :, 3:])
    >>> bool(np.allclose(model.predict_proba(states), model.predict_proba(X[:2]), atol=1e-5))
    True
    """

    classes_: np.ndarray

    def predict_proba(self, X: Any, *, at: Any = None) -> np.ndarray:
        """The probability of each class after the last row of each stream, (stream, class); of each label 1.

        Args:
            X: series, or what `start` and `partial_update` gave.
            at: a time, or one for each stream, not before its last row; None: that row's own time.
        """
        answers = self._answers(X, at)
        return (
            np.hstack([1 - answers, answers]) if self.model_.readout.kind == "binary" else answers
        )

    def predict(self, X: Any, *, at: Any = None) -> np.ndarray:
        """The likeliest class, (stream,); (stream, label) of 0 and 1 where labels do not exclude each other."""
        probabilities = self.predict_proba(X, at=at)
        if self.model_.readout.kind == "multilabel":
            return (probabilities > 0.5).astype(int)
        return self.classes_[probabilities.argmax(1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy on series and their labels, in any form `fit` takes."""
        panel = self._read(X, getattr(self, "model_", None))
        return super().score(panel.series, labels_of(panel, y), sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _targets(self, y: Any) -> tuple[np.ndarray, Kind, np.ndarray | None]:
        assert_all_finite(np.asarray(y), input_name="y")
        check_classification_targets(y)
        if type_of_target(y, input_name="y") == "multilabel-indicator":
            labels = check_array(y, input_name="y")
            return labels, "multilabel", np.arange(labels.shape[1])
        names, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(names) < 2:
            raise ValueError(
                f"y has one class alone, {names[0]!r}: give labels of at least 2 classes."
            )
        return labels, "binary" if len(names) == 2 else "multiclass", names


class OnlineCDERegressor(RegressorMixin, _OnlineCDE):
    """Predicts a number, or several, of irregular, partly observed series, and goes on as they go on.

    Arguments, attributes and forms of X are those of `OnlineCDEClassifier`; y is (stream,) or (stream, output).

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(40, 2, 5))
    >>> model = OnlineCDERegressor("gru", hidden=4, epochs=3, random_state=0).fit(X, X[:, 0].mean(1))
    >>> model.predict(X[:3]).shape
    (3,)
    """

    def predict(self, X: Any, *, at: Any = None) -> np.ndarray:
        """The number after the last row of each stream, (stream,), or several, (stream, output).

        Args:
            X: series, or what `start` and `partial_update` gave.
            at: a time, or one for each stream, not before its last row; None: that row's own time.
        """
        answers = self._answers(X, at)
        return answers[:, 0] if answers.shape[1] == 1 else answers

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² on series and their labels, in any form `fit` takes."""
        panel = self._read(X, getattr(self, "model_", None))
        return super().score(panel.series, labels_of(panel, y), sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, y: Any) -> tuple[np.ndarray, Kind, np.ndarray | None]:
        checked: Any = check_array  # whose parameters have no types
        labels = checked(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        return labels, "regression", None
