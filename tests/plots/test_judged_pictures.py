"""Pictures of judged models: names have room, a model keeps its colour, one point is seen."""

import itertools
import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from onlinecde.plots.contributions import ExplainedStream, contributions_figure
from onlinecde.plots.evaluation_curves import (
    KNOWN,
    calibration_figure,
    confusion_figure,
    line_look,
    roc_figure,
    training_figure,
)
from onlinecde.plots.inline_svg import inline_svg
from onlinecde.plots.trajectories import Trajectory, trajectory_figure

LONG = "mean arterial blood pressure, invasive, of the left arm"


def explained(*channels, rows=3, positive=(), event=None):
    times = [float(row) for row in range(rows)]
    added = {name: [(time, 0.5) for time in times[1:]] for name in channels}
    return ExplainedStream(
        "a", "Stream a", "hours", times, [0.1] * rows, -2.2, added, list(positive), event
    )


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure


def words(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("names", [("hr",), ("respiratory rate", "hr"), (LONG,)])
@pytest.mark.parametrize("streams", [1, 3])
def test_names_of_channels_stand_inside_the_picture_and_beside_other_panels(names, streams):
    figure = drawn(contributions_figure([explained(*names) for _ in range(streams)]))
    panels = figure.axes[streams:]
    edge = 0.0
    for axis in panels:
        for label in axis.get_yticklabels():
            assert label.get_window_extent().x0 > edge
        edge = axis.get_window_extent().x1
    widths = {round(axis.get_window_extent().width) for axis in panels}
    assert len(widths) == 1
    (plain,) = {
        round(axis.get_window_extent().width)
        for axis in drawn(contributions_figure([explained("hr")] * streams)).axes
    }
    assert widths == {plain}, "long names make the picture wider, not its panels narrower"


def test_the_key_names_what_is_drawn_and_nothing_else():
    always = ["raised the log-odds", "lowered them", "by 0.2", "by 0.05"]
    assert words(contributions_figure([explained("hr")])) == always
    one = explained("hr", positive=[(0, 1)])
    assert words(contributions_figure([one])) == [*always, "label is 1"]
    both = explained("hr", event=1.0)
    assert words(contributions_figure([one, both])) == [*always, "label is 1", "event"]


def test_a_stream_of_one_row_is_a_point():
    risk = contributions_figure([explained("hr", rows=1)]).axes[0]
    assert [line.get_marker() for line in risk.lines] == ["o"]
    point = np.array([1.0])
    one = Trajectory("a", "risk", "hours", {"m": (point, point / 2, False)}, ())
    assert [line.get_marker() for line in trajectory_figure(one).axes[0].lines] == ["o"]


@pytest.mark.parametrize(
    ("classes", "upright"),
    [
        (["no", "yes"], False),
        (["sinus rhythm", "atrial fibrillation", "other"], True),
        ([f"class {i}" for i in range(5)], False),
        ([LONG, LONG + "!"], True),
        ([str(i) for i in range(10)], False),
    ],
)
def test_names_of_classes_do_not_run_into_each_other(classes, upright):
    figure = drawn(confusion_figure(np.eye(len(classes), dtype=int), classes))
    labels = figure.axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {90.0 if upright else 0.0}
    boxes = [label.get_window_extent() for label in labels]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_no_two_of_twelve_models_look_alike():
    looks = [str(line_look("model", number)) for number in range(12)]
    assert len(set(looks)) == 12


def colours(axis):
    return {
        line.get_label(): (line.get_color(), line.get_linestyle())
        for line in axis.lines
        if not line.get_label().startswith("_")
    }


def test_a_model_has_one_look_on_a_page_whichever_models_are_drawn_beside_it():
    models = [f"model {number}" for number in range(6)]
    line = np.linspace(0, 1, 5)
    whole = colours(roc_figure(dict.fromkeys(models, (line, line)), models).axes[0])
    some = dict.fromkeys(models[1::2], (line, line))
    assert colours(roc_figure(some, models).axes[0]).items() <= whole.items()
    bins = {name: [(0.1, 0.2, 0.1, 0.3)] for name in [*models[1::2], KNOWN]}
    found = colours(calibration_figure(bins, models).axes[0])
    assert {name: found[name] for name in models[1::2]}.items() <= whole.items()
    curves = {f"{name}, one of 3": (line, line, False) for name in models[1::2]}
    places = {f"{name}, one of 3": place for place, name in enumerate(models)}
    one = Trajectory("a", "risk", "hours", curves, (), places=places)
    for name, look in colours(trajectory_figure(one).axes[0]).items():
        assert look == whole[name.split(",")[0]]


def test_the_key_of_the_losses_lies_beside_the_title_not_on_a_curve():
    log = [{"epoch": e, "train_loss": 1 / e, "validation_loss": 1 / e} for e in range(1, 9)]
    axis = drawn(training_figure(log, "auc", "AUROC")).axes[0]
    key = axis.get_legend().get_window_extent()
    assert key.y0 >= axis.get_window_extent().y1
    assert key.x0 > axis._left_title.get_window_extent().x1


def test_names_in_any_script_stay_text_without_a_warning():
    point = np.array([0.0, 1.0])
    one = Trajectory(
        "患者 7", "risk", "hours", {"m": (point, point, False)}, (("心拍", point, point),)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = inline_svg(trajectory_figure(one), "a stream")
    assert "患者 7" in svg
    assert "心拍" in svg
