"""The paper's Figure 1: which part of each control changes when the last observation does."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onlinecde import controls
from onlinecde.controls import Path
from onlinecde.plots.look import (
    AMBER,
    BLUE,
    INK,
    VERMILLION,
    end_label,
    finish,
    house_style,
    panels,
    title,
)
from onlinecde.series import SeriesBatch

_TIMES = (0.0, 0.9, 2.1, 3.0, 4.2, 5.1, 6.6)
_VALUES = (0.20, 0.95, 0.35, 1.15, 0.70, 1.00, 0.55)
_EDITED = 2.05


def measurability_figure() -> Figure:
    """Draw each control before and after its last observation is edited; what moved is shaded."""
    with house_style():
        figure = Figure(figsize=(11, 6.2), facecolor="white")
        axes = panels(figure)
        for axis, (name, remark, build) in zip(axes, _PANELS, strict=True):
            before, after = build(_series(_VALUES[-1])), build(_series(_EDITED))
            _draw(axis, before, after)
            title(axis, name, remark)
        note = "Shaded: times at which the path changes when its last observation is edited."
        finish(figure, axes, list(_TIMES), note)
    return figure


_PANELS = (
    ("Natural cubic", "offline: the whole past moves, older parts less", controls.natural_cubic),
    ("Linear", "discretely online: fixed up to the last row, not since", controls.linear),
    (
        "Hermite, backward differences",
        "discretely online: fixed up to the last row, not since",
        controls.hermite,
    ),
    ("Rectilinear", "continuously online: nothing earlier moves", controls.rectilinear),
)


def _series(last: float) -> SeriesBatch:
    values = torch.tensor([*_VALUES[:-1], last], dtype=torch.float64)
    return SeriesBatch.from_arrays([_TIMES], [values[:, None]])


def _draw(axis: Axes, before: Path, after: Path) -> None:
    s = torch.linspace(0, float(before.knots[-1]), 40 * before.pieces + 1, dtype=torch.float64)
    old, new = before.evaluate(s)[0], after.evaluate(s)[0]
    moved = (old != new).any(1) & (old[:, 0] < _TIMES[-1])
    if bool(moved.any()):
        first = float(old[moved, 0].min())
        axis.axvspan(first, _TIMES[-1], color=AMBER, alpha=0.16, linewidth=0, zorder=0)
        axis.fill_between(old[:, 0], old[:, 1], new[:, 1], color=AMBER, alpha=0.55, linewidth=0)
    axis.plot(new[:, 0], new[:, 1], color=VERMILLION, linewidth=2.2, dashes=(3, 1.6))
    axis.plot(old[:, 0], old[:, 1], color=BLUE, linewidth=2.2)
    marks = {"markersize": 7, "markeredgewidth": 1.4, "clip_on": False, "zorder": 4}
    axis.plot(_TIMES[:-1], _VALUES[:-1], "o", color=INK, markeredgecolor="white", **marks)
    ends = ((_VALUES[-1], BLUE, "observed"), (_EDITED, VERMILLION, "edited"))
    for value, colour, name in ends:
        axis.plot(_TIMES[-1], value, "o", color=colour, markeredgecolor="white", **marks)
        end_label(axis, name, (_TIMES[-1], value), colour)
