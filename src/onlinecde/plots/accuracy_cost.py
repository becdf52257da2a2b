"""The paper's figure of accuracy against cost: a panel a data set, a point a control or model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from onlinecde.plots.look import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    INK,
    RULE,
    VERMILLION,
    house_style,
    plain_decades,
)

_COLOURS = (BLUE, AMBER, GREEN, VERMILLION, "#CC79A7", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


@dataclass(frozen=True)
class CostPoint:
    """What one control or model costs and is worth, and the same as published."""

    name: str
    at: tuple[float, float]
    """(cost, metric)"""
    deviation: float = 0.0
    """of the metric"""
    published: tuple[float, float] | None = None


@dataclass(frozen=True)
class CostPanel:
    """One data set."""

    title: str
    metric: str
    better: Literal["higher", "lower"]
    points: Sequence[CostPoint]


def accuracy_cost_figure(panels: Sequence[CostPanel], cost: str) -> Figure:
    """Draw the panels, cost (in words) on a logarithmic axis; hollow points are the published ones.

    >>> point = CostPoint("rectilinear", (7.9, 98.6), 0.5, published=(7.9, 98.6))
    >>> figure = accuracy_cost_figure([CostPanel("Characters", "%", "higher", [point])], "NFE")
    >>> len(figure.axes)
    1
    """
    if not panels:
        raise ValueError("there is no panel to draw: give at least one with a point.")
    across = min(len(panels), 4 if len(panels) in (4, 7, 8) else 3)
    down = math.ceil(len(panels) / across)
    names = list(dict.fromkeys(point.name for panel in panels for point in panel.points))
    looks = {
        name: (_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(names)
    }
    with house_style():
        figure = Figure(figsize=(max(6.4, 3.6 * across), 2.9 * down + 1.5), facecolor="white")
        grid = figure.subplots(down, across, squeeze=False)
        axes = [axis for line in grid for axis in line]
        for axis, panel in zip(axes, panels, strict=False):
            _draw(axis, panel, looks)
            axis.set_xlabel(cost, fontsize=9)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        hollow = any(point.published for panel in panels for point in panel.points)
        width, height = figure.get_size_inches()
        keys = min(len(looks) + hollow, int(width / 1.9))
        figure.legend(
            handles=_keys(looks, hollow),
            loc="lower center",
            ncols=keys,
            frameon=False,
            fontsize=9.5,
        )
        lines = math.ceil((len(looks) + hollow) / keys)
        figure.subplots_adjust(
            left=0.75 / width,
            right=0.985,
            top=1 - 0.62 / height,
            bottom=(0.62 + 0.26 * lines) / height,
            wspace=0.34,
            hspace=0.62,
        )
    return figure


def _draw(axis: Axes, panel: CostPanel, looks: dict[str, tuple[str, str]]) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(which="both", length=0)
    axis.grid(color=RULE, linewidth=0.6, alpha=0.7)
    axis.set_axisbelow(True)
    axis.set_xscale("log")
    # Before anything is drawn: left to itself, matplotlib warns where all costs are the same.
    costs = [place[0] for point in panel.points for place in (point.at, point.published) if place]
    _limits(axis, min(costs), max(costs))
    for point in panel.points:
        colour, marker = looks[point.name]
        if point.published is not None:
            pair = zip(point.at, point.published, strict=True)
            axis.plot(*pair, color=colour, linewidth=0.8, alpha=0.45, zorder=2)
            axis.plot(
                *point.published,
                marker=marker,
                color=colour,
                markerfacecolor="white",
                markersize=7,
                linestyle="none",
                zorder=3,
            )
        axis.errorbar(
            *point.at,
            yerr=point.deviation or None,
            marker=marker,
            color=colour,
            markersize=7,
            capsize=2.5,
            linewidth=1.2,
            zorder=4,
        )
    arrow = "↑" if panel.better == "higher" else "↓"
    axis.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=16)
    axis.annotate(
        f"{panel.metric}, {panel.better} is better {arrow}",
        (0, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8.5,
        color=FAINT,
    )
    axis.margins(y=0.18)
    axis.yaxis.set_major_locator(MaxNLocator(5))


def _limits(axis: Axes, low: float, high: float) -> None:
    """Room on both sides, and plain numbers."""
    room = max(0.16 * math.log10(high / low), 0.1)
    axis.set_xlim(low / 10**room, high * 10**room)
    plain_decades(axis, math.log10(high / low) + 2 * room)


def _keys(looks: dict[str, tuple[str, str]], hollow: bool) -> list[Line2D]:
    keys = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=7, label=name)
        for name, (colour, marker) in looks.items()
    ]
    if hollow:
        keys.append(
            Line2D(
                [],
                [],
                color=FAINT,
                marker="o",
                linestyle="none",
                markersize=7,
                markerfacecolor="white",
                label="published",
            )
        )
    return keys
