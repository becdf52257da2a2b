"""The picture of accuracy against cost shows every point, ours filled and the published hollow."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from onlinecde.plots import save_figure
from onlinecde.plots.accuracy_cost import CostPanel, CostPoint, accuracy_cost_figure


def panel(title, points):
    return CostPanel(title, "AUC", "higher", points)


def test_every_panel_has_its_points_on_a_logarithmic_axis(tmp_path):
    points = [
        CostPoint("linear", (2.0, 0.9), 0.01, published=(3.0, 0.91)),
        CostPoint("rectilinear", (8.0, 0.95)),
    ]
    figure = accuracy_cost_figure([panel("A", points), panel("B", points[:1])], "evaluations")
    first, second = (axis for axis in figure.axes if axis.get_visible())
    assert first.get_xscale() == "log"
    drawn = {
        (float(x), float(y))
        for line in first.get_lines()
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert {(2.0, 0.9), (3.0, 0.91), (8.0, 0.95)} <= drawn
    hollow = [line for line in first.get_lines() if line.get_markerfacecolor() == "white"]
    assert [(float(h.get_xdata()[0]), float(h.get_ydata()[0])) for h in hollow] == [(3.0, 0.91)]
    assert len(second.get_lines()) < len(first.get_lines())
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["linear", "rectilinear", "published"]
    assert all(file.stat().st_size > 1000 for file in save_figure(figure, tmp_path, "cost"))


def test_points_of_one_cost_have_room_around_them():
    same = [CostPoint("a", (7.9, 0.9), published=(7.9, 0.8)), CostPoint("b", (7.9, 0.7))]
    (axis,) = accuracy_cost_figure([panel("A", same)], "evaluations").axes
    low, high = axis.get_xlim()
    assert low < 7 < 7.9 < 9 < high


def test_seven_panels_leave_no_empty_frame():
    figure = accuracy_cost_figure([panel(str(i), [CostPoint("a", (1, i))]) for i in range(7)], "s")
    assert sum(axis.get_visible() for axis in figure.axes) == 7


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="no panel"):
        accuracy_cost_figure([], "seconds")


def test_logarithmic_axes_have_plain_numbers():
    from benchmarks.gpu_picture import picture

    axis = picture().axes[0]
    FigureCanvasAgg(axis.figure).draw()
    shown = [label.get_text() for label in axis.get_xticklabels(which="both")]
    assert {"10", "100", "1000"} <= set(shown)
    assert not any("$" in text for text in shown)
