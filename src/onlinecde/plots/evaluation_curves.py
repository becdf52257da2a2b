"""Pictures of an evaluation: ROC, precision and recall, calibration, by hours before the event."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onlinecde.plots.inline_svg import SERIES, page_style
from onlinecde.plots.look import FAINT, INK, RULE, shortened

KNOWN = "best possible"
"""The curve of this name is not a model's: it is drawn dashed."""

Curve = tuple[np.ndarray, np.ndarray]
Place = Literal["best", "upper left", "upper right", "lower right"]


_STROKES = ("solid", (0, (1, 1.3)), (0, (5, 1.2, 1, 1.2)))


def line_look(name: str, number: int) -> dict[str, Any]:
    """How the curve of a model is drawn, by its place among all models of a page, or that of what is known.

    There are as many looks as colours times strokes.
    """
    if name == KNOWN:
        return {"color": FAINT, "linestyle": (0, (4, 2)), "linewidth": 1.6}
    stroke = _STROKES[number // len(SERIES) % len(_STROKES)]
    return {"color": SERIES[number % len(SERIES)], "linestyle": stroke, "linewidth": 1.8}


def _looks(names: Iterable[str], models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The look of each curve; `models`: all of the page, for one without a curve here keeps its colour."""
    names = list(names)
    places = {name: number for number, name in enumerate(models or names)}
    return {name: line_look(name, places.get(name, number)) for number, name in enumerate(names)}


def roc_figure(curves: Mapping[str, Curve], models: Sequence[str] = ()) -> Figure:
    """False and true positive rates (point,) of each model; here and below, `models` are all of the page."""
    return _square(
        curves,
        models,
        "ROC",
        "false positive rate",
        "true positive rate",
        diagonal=True,
        legend="lower right",
    )


def precision_recall_figure(
    curves: Mapping[str, Curve], rate: float, models: Sequence[str] = ()
) -> Figure:
    """Recall and precision (point,) of each model; `rate` is the precision of alarms at random."""
    return _square(curves, models, "Precision and recall", "recall", "precision", level=rate)


def calibration_figure(
    bins: Mapping[str, Sequence[tuple[float, ...]]], models: Sequence[str] = ()
) -> Figure:
    """Bins (predicted, observed, low, high) of each model, low and high NaN where not known."""
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    with page_style():
        axis = figure.subplots()
        top, looks = 0.0, _looks(bins, models)
        for name, table in bins.items():
            points = np.asarray(table, np.float64)
            top = max(top, np.nanmax(points))
            look = looks[name]
            if name != KNOWN:
                axis.vlines(
                    points[:, 0],
                    points[:, 2],
                    points[:, 3],
                    color=look["color"],
                    linewidth=1,
                    alpha=0.6,
                )
                look |= {"marker": "o", "markersize": 4}
            axis.plot(points[:, 0], points[:, 1], label=name, **look)
        top = min(1.0, 1.06 * top) or 1.0
        axis.plot([0, top], [0, top], color=RULE, linewidth=1.2, zorder=0)
        axis.set(xlim=(0, top), ylim=(0, top), title="Calibration")
        axis.set(xlabel="predicted risk", ylabel="observed share")
        _legend(axis, len(bins), "upper left")
    return figure


def before_event_figure(
    tables: Mapping[str, Sequence[tuple[float, ...]]],
    unit: str,
    title: str = "By time before the event",
    models: Sequence[str] = (),
) -> Figure:
    """Bins (start, end, auc, low, high) of each model; time runs to the event on the right."""
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    with page_style():
        axis, looks = figure.subplots(), _looks(tables, models)
        for number, (name, table) in enumerate(tables.items()):
            points = np.asarray(table, np.float64)
            middle = points[:, :2].mean(1)
            shift = (number - (len(tables) - 1) / 2) * 0.06 * np.diff(points[:, :2], axis=1)[:, 0]
            look = looks[name] | {"marker": "o", "markersize": 4}
            axis.vlines(
                middle - shift,
                points[:, 3],
                points[:, 4],
                color=look["color"],
                linewidth=1,
                alpha=0.6,
            )
            axis.plot(middle - shift, points[:, 2], label=name, **look)
        edges = sorted({edge for table in tables.values() for row in table for edge in row[:2]})
        axis.axhline(0.5, color=RULE, linewidth=1.2, zorder=0)
        axis.set_xlim(edges[-1], edges[0])
        axis.set_xticks(edges)
        axis.set(title=title, xlabel=f"{unit} before the event", ylabel="AUROC")
        _legend(axis, len(tables), "best")
    return figure


def alarms_figure(curves: Mapping[str, Curve], models: Sequence[str] = ()) -> Figure:
    """False alarms per stream and day, and shares of events caught, (threshold,) of each model."""
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    with page_style():
        axis, looks = figure.subplots(), _looks(curves, models)
        for name, (false, caught) in curves.items():
            order = np.argsort(false, kind="stable")
            axis.plot(false[order], caught[order], label=name, **looks[name])
        widest = max(float(false.max()) for false, _ in curves.values()) or 1.0
        axis.set(xlim=(0, widest), ylim=(0, 1.01), title="Alarms")
        axis.set(xlabel="false alarms a stream and day", ylabel="events caught")
        _legend(axis, len(curves), "lower right")
    return figure


def training_figure(epochs: Sequence[Mapping[str, Any]], metric: str, title: str) -> Figure:
    """Losses and the validation metric, epoch by epoch, from the lines of a run's log."""
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    with page_style():
        grid = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        number = np.array([entry["epoch"] for entry in epochs], np.float64)

        def column(name: str) -> np.ndarray:
            return np.array([entry.get(name) for entry in epochs], np.float64)  # None: NaN

        dot = {"marker": "o", "markersize": 3} if len(epochs) < 4 else {}
        grid[0].plot(number, column("train_loss"), color=FAINT, label="training", **dot)
        grid[0].plot(number, column("validation_loss"), color=SERIES[0], label="validation", **dot)
        grid[0].set(title="Training", ylabel="loss")
        # Beside the title: inside, it would lie on one of the curves.
        grid[0].legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, ncols=2)
        grid[1].plot(number, column(f"validation_{metric}"), color=SERIES[0], **dot)
        grid[1].set(xlabel="epoch", ylabel=title)
        grid[1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def confusion_figure(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure:
    """How often each true class (row) was taken for each class (column)."""
    counts = np.asarray(matrix, np.float64)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = len(counts)
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    with page_style():
        axis = figure.subplots()
        for row in range(size):
            for column in range(size):
                if counts[row, column]:
                    # Cells are squares of one colour and their own alpha: they follow the page.
                    axis.fill_between(
                        [column - 0.48, column + 0.48],
                        row - 0.48,
                        row + 0.48,
                        color=SERIES[0] if row == column else SERIES[1],
                        alpha=0.12 + 0.6 * float(share[row, column]),
                        linewidth=0,
                    )
                    if size <= 12:
                        count = f"{int(counts[row, column])}"
                        axis.text(
                            column, row, count, ha="center", va="center", color=INK, fontsize=9
                        )
        small = 9 if size <= 12 else 7
        names = [shortened(name, 24) for name in classes]
        # A letter is some .6 of its height wide, the squares together some 3 inches.
        wide = max(map(len, names), default=0) * 0.6 * small / 72 > 2.9 / size
        axis.set_xticks(range(size), names, rotation=90 if wide else 0, fontsize=small)
        axis.set_yticks(range(size), names, fontsize=small)
        axis.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal")
        axis.set(title="Confusion", xlabel="predicted", ylabel="true")
        axis.tick_params(length=0)
    return figure


def predicted_figure(true: np.ndarray, predicted: np.ndarray, seed: int = 0) -> Figure:
    """Predicted against true numbers (label,); of more than 1,500, as many drawn at random."""
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    if len(true) > 1500:
        chosen = np.random.default_rng(seed).choice(len(true), 1500, replace=False)
        true, predicted = true[chosen], predicted[chosen]
    with page_style():
        axis = figure.subplots()
        axis.plot(
            true, predicted, "o", color=SERIES[0], markersize=3, alpha=0.35, markeredgewidth=0
        )
        low, high = min(true.min(), predicted.min()), max(true.max(), predicted.max())
        axis.plot([low, high], [low, high], color=RULE, linewidth=1.2, zorder=0)
        axis.set(title="Predicted and true", xlabel="true", ylabel="predicted")
    return figure


def _square(
    curves: Mapping[str, Curve],
    models: Sequence[str],
    title: str,
    x: str,
    y: str,
    *,
    diagonal: bool = False,
    level: float | None = None,
    legend: Place = "upper right",
) -> Figure:
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    with page_style():
        axis = figure.subplots()
        if diagonal:
            axis.plot([0, 1], [0, 1], color=RULE, linewidth=1.2, zorder=0)
        if level is not None:
            axis.axhline(level, color=RULE, linewidth=1.2, zorder=0)
        looks = _looks(curves, models)
        for name, (across, up) in curves.items():
            axis.plot(*_thinned(across, up), label=name, **looks[name])
        axis.set(xlim=(0, 1), ylim=(0, 1.01), title=title, xlabel=x, ylabel=y)
        _legend(axis, len(curves), legend)
    return figure


def _legend(axis: Axes, curves: int, place: Place) -> None:
    if curves > 1:
        axis.legend(loc=place)


def _thinned(x: np.ndarray, y: np.ndarray, most: int = 400) -> Curve:
    """At most `most` points, evenly along the curve: no eye sees more, and the page stays small."""
    if len(x) <= most:
        return x, y
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    at = np.unique(np.searchsorted(along, np.linspace(0, along[-1], most)).clip(max=len(x) - 1))
    return x[at], y[at]
