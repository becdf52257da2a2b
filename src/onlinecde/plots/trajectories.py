"""One stream as time goes: what models say of it, what came of it, and what was observed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from onlinecde.plots.evaluation_curves import line_look
from onlinecde.plots.inline_svg import page_style
from onlinecde.plots.look import FAINT, INK, VERMILLION


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What is drawn of one stream."""

    title: str
    says: str
    """What the curves are: "risk", "P(class)", ..."""
    unit: str
    curves: Mapping[str, tuple[np.ndarray, np.ndarray, bool]]
    """By model: times and values (point,), and whether it stands still between rows."""
    channels: tuple[tuple[str, np.ndarray, np.ndarray], ...]
    """Name, times and values (observation,) of what is shown beneath."""
    positive: tuple[tuple[float, float], ...] = ()
    """Stretches of time in which the label is the class whose probability is drawn."""
    event: float | None = None
    truth: float | None = None
    """The true number, for regression."""
    limits: tuple[float, float] = field(default=(0.0, 1.0))
    """Label of the axis of outputs"""
    stream: str = ""
    """Its name"""
    places: Mapping[str, int] = field(default_factory=dict)
    """Of the models among all that are told of, some of which may have no curve: their colours"""


def trajectory_figure(trajectory: Trajectory) -> Figure:
    """What the models say above, observations of some channels beneath, on one clock."""
    shown = len(trajectory.channels)
    figure = Figure(figsize=(5.2, 2.5 + 0.7 * shown), layout="constrained")
    with page_style():
        grid = np.atleast_1d(
            figure.subplots(1 + shown, 1, sharex=True, height_ratios=[3.4] + [1] * shown)
        )
        top = grid[0]
        for start, end in trajectory.positive:
            top.axvspan(start, end, color=VERMILLION, alpha=0.12, linewidth=0, zorder=0)
        for number, (name, (times, values, stepped)) in enumerate(trajectory.curves.items()):
            look = line_look(name, trajectory.places.get(name, number))
            if len(times) == 1:
                look |= {"marker": "o", "markersize": 4}
            style = "steps-post" if stepped else "default"
            top.plot(times, values, drawstyle=style, label=name, **look)
        if trajectory.truth is not None:
            top.axhline(trajectory.truth, color=FAINT, linewidth=1, linestyle=(0, (2, 2)))
        top.set(title=trajectory.title, ylabel=trajectory.says, ylim=trajectory.limits)
        if len(trajectory.curves) > 1:
            top.legend(
                loc="upper left",
                ncols=min(3, len(trajectory.curves)),
                fontsize=8.5,
                columnspacing=1.2,
                handlelength=1.4,
            )
        for axis, (name, times, values) in zip(grid[1:], trajectory.channels, strict=True):
            axis.plot(times, values, "o", color=INK, markersize=2.6, markeredgewidth=0)
            axis.set_title(name, fontsize=8.5, fontweight="normal", color=FAINT, pad=2)
            axis.margins(y=0.25)
            axis.tick_params(labelsize=7.5, length=2)
            axis.yaxis.get_major_locator().set_params(nbins=2)
        if trajectory.event is not None:
            for axis in grid:
                axis.axvline(trajectory.event, color=VERMILLION, linewidth=1.2)
        grid[-1].set_xlabel(trajectory.unit)
    return figure
