"""The pictures show what the paths do, look the same every time, and stay small."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest

from onlinecde import audit
from onlinecde.plots import controls_figure, measurability_figure, save_figure

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FIGURES = {"controls": controls_figure, "measurability": measurability_figure}


def panel(figure, name):
    return next(
        axis for axis in figure.axes if any(text.get_text().startswith(name) for text in axis.texts)
    )


def test_the_rectilinear_panel_shows_steps():
    time, value = panel(controls_figure(), "Rectilinear").lines[9].get_data()
    moves = (np.diff(time) != 0) & (np.diff(value) != 0)
    assert not moves.any()
    assert (np.diff(value) != 0).sum() > 0


def test_the_linear_panel_shows_no_steps():
    time, _ = panel(controls_figure(), "Linear").lines[9].get_data()
    assert (np.diff(time) > 0).all()


@pytest.mark.parametrize(
    ("name", "since"),
    [("Natural", 0.0), ("Linear", 5.1), ("Hermite", 5.1), ("Rectilinear", None)],
)
def test_shade_begins_where_the_path_begins_to_change(name, since):
    axis = panel(measurability_figure(), name)
    if since is None:
        assert not axis.patches
    else:
        assert axis.patches[0].get_x() == pytest.approx(since, abs=0.1)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_bytes_every_time_whatever_the_users_settings(name, tmp_path):
    first = save_figure(FIGURES[name](), tmp_path / "a", name)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        second = save_figure(FIGURES[name](), tmp_path / "b", name)
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert "<dc:date>" not in first[1].read_text()


@pytest.mark.parametrize("name", FIGURES)
def test_the_committed_pictures_are_small_and_current(name, tmp_path):
    assert (IMAGES / f"{name}.png").stat().st_size < 150_000
    _, svg = save_figure(FIGURES[name](), tmp_path, name)
    committed = (IMAGES / f"{name}.svg").read_text()
    # Another matplotlib may round a coordinate otherwise; the same parts must be there.
    assert committed.count("<path") == svg.read_text().count("<path")
    assert committed.count("<use") == svg.read_text().count("<use")


def test_one_stream_at_a_time():
    with pytest.raises(ValueError, match="choose one"):
        controls_figure(audit.trial_batch())
    figure = controls_figure(audit.trial_batch(channels=3, missing=0.3)[0])
    assert len(figure.axes) == 4
