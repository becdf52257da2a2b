"""Streams side by side: the risk as time goes, and beneath it what each event added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from onlinecde.plots.look import BLUE, FAINT, INK, RULE, VERMILLION, house_style, shortened

_LARGEST = 14.0
"""Diameter of the largest circle, in points."""


@dataclass(frozen=True)
class ExplainedStream:
    """One stream: the model's outputs, and what each channel's events and the passing of time added to them."""

    stream: str
    title: str
    unit: str
    """Of time"""
    times: list[float]
    """(point,) of the curve"""
    risk: list[float]
    """(point,)"""
    start: float
    """Log-odds after the first row"""
    added: dict[str, list[tuple[float, float]]]
    """By channel, and for "time" and "others": (time, log-odds added), rows at which any was"""
    positive: list[tuple[float, float]]
    """Stretches of time in which the label is 1"""
    event: float | None = None
    best_times: list[float] = field(default_factory=list)
    """(point,) of the best possible, where it is known"""
    best: list[float] = field(default_factory=list)
    """(point,)"""

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not known is left out."""
        content = asdict(self)
        return {
            name: value for name, value in content.items() if value or not name.startswith("best")
        }


def contributions_figure(streams: Sequence[ExplainedStream]) -> Figure:
    """Draw a column for each stream: the risk above, the contributions of its channels below.

    A circle is what the events of a channel at one time added to the log-odds, its area the size:
    up in one colour, down in another. The start and all circles of a stream add up to its curve.

    >>> one = ExplainedStream("a", "Stream a", "hours", [0, 1], [0.1, 0.2], -2.2,
    ...                       {"heart rate": [(1.0, 0.8)]}, [])
    >>> len(contributions_figure([one]).axes)
    2
    """
    if not streams:
        raise ValueError("there is no stream to draw: give at least one.")
    most = max((abs(v) for s in streams for line in s.added.values() for _, v in line), default=1.0)
    lines = max(len(stream.added) for stream in streams)
    width, height = 4.4 * len(streams) + 0.4, 2.9 + 0.27 * lines
    with house_style():
        figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.subplots(
            2, len(streams), squeeze=False, sharex="col", height_ratios=[1.9, 0.27 * lines]
        )
        top = 1.12 * max(max(*stream.risk, *stream.best, 0.0) for stream in streams)
        for number, stream in enumerate(streams):
            _risk(grid[0, number], stream, top, first=number == 0)
            _added(grid[1, number], stream, lines, most)
        keys = _keys(most, streams)
        figure.legend(
            handles=keys, loc="lower center", ncols=len(keys), frameon=False, fontsize=9.5
        )
        figure.subplots_adjust(top=1 - 0.5 / height, bottom=0.95 / height, hspace=0.12)
        _make_room(figure, list(grid[1]))
    return figure


def _make_room(figure: Figure, named: Sequence[Axes]) -> None:
    """Lay the columns side by side, with room for the longest name of a channel left of each.

    named (stream,): the axes with the names. With short names all columns are of one width; long ones make the
    picture wider, not its panels narrower.
    """
    width, height = figure.get_size_inches()
    count = len(named)
    first, *others = (_name_inches(axis) for axis in named)
    between = 1.15 / (width / count - 1.15)  # in panels
    panel = (width - 1.4) / (count + (count - 1) * between)
    left, gap = max(1.25, first + 0.2), max(between * panel, max(others, default=0.0) + 0.25)
    width = left + count * panel + (count - 1) * gap + 0.15
    figure.set_size_inches(width, height)
    figure.subplots_adjust(left=left / width, right=1 - 0.15 / width, wspace=gap / panel)


def _name_inches(axis: Axes) -> float:
    """How wide the longest name on the upright axis is."""
    labels = axis.get_yticklabels()
    return max((label.get_window_extent().width for label in labels), default=0.0) / axis.figure.dpi


def _risk(axis: Axes, stream: ExplainedStream, top: float, *, first: bool) -> None:
    _bare(axis)
    for start, end in stream.positive:
        axis.axvspan(start, end, color=VERMILLION, alpha=0.12, linewidth=0, zorder=0)
    if stream.event is not None:
        axis.axvline(stream.event, color=VERMILLION, linewidth=1.2)
    alone = {"marker": "o", "markersize": 5} if len(stream.times) == 1 else {}
    if stream.best:
        look = {"color": FAINT, "linestyle": (0, (4, 2)), "linewidth": 1.2}
        axis.plot(stream.best_times, np.asarray(stream.best) * 100, **look)
    axis.plot(stream.times, np.asarray(stream.risk) * 100, color=INK, linewidth=1.4, **alone)
    axis.set_ylim(0, top * 100)
    axis.set_title(stream.title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=8)
    if first:
        axis.set_ylabel("risk, %")
    axis.grid(axis="y", color=RULE, linewidth=0.6, alpha=0.7)


def _added(axis: Axes, stream: ExplainedStream, lines: int, most: float) -> None:
    _bare(axis)
    axis.spines["left"].set_visible(False)
    if stream.event is not None:
        axis.axvline(stream.event, color=VERMILLION, linewidth=1.2)
    for place, line in enumerate(stream.added.values()):
        axis.axhline(place, color=RULE, linewidth=0.6, zorder=0)
        for up, size, times in _circles(line, most):
            axis.plot(
                times,
                [place] * len(times),
                "o",
                markersize=size,
                color=VERMILLION if up else BLUE,
                alpha=0.75,
                markeredgewidth=0,
            )
    axis.set_ylim(lines - 0.4, -0.6)
    axis.set_yticks(range(len(stream.added)), [shortened(name) for name in stream.added])
    axis.set_xlabel(stream.unit)


def _bare(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(length=0)
    axis.margins(x=0.02)


def _circles(
    line: Sequence[tuple[float, float]], most: float
) -> list[tuple[bool, float, list[float]]]:
    """Up or down, diameter and times of what is large enough to be seen; the large ones first.

    Diameters go in half points: circles of one size are one shape in an SVG, and the file small.
    """
    sums: dict[tuple[bool, float], list[float]] = {}
    for time, value in line:
        size = round(2 * _diameter(value, most)) / 2
        if size:
            sums.setdefault((value > 0, size), []).append(time)
    order = sorted(sums.items(), key=lambda item: (-item[0][1], item[0][0]))
    return [(up, size, times) for (up, size), times in order]


def _diameter(value: float, most: float) -> float:
    """In points; the area is as large as the value."""
    return _LARGEST * (abs(value) / most) ** 0.5


def _keys(most: float, streams: Sequence[ExplainedStream]) -> list[Artist]:
    """What the colours and the areas are, of all that is drawn."""

    def circle(colour: str, size: float, label: str) -> Line2D:
        return Line2D(
            [],
            [],
            linestyle="none",
            marker="o",
            color=colour,
            markersize=size,
            markeredgewidth=0,
            label=label,
        )

    step = _plain(most / 2)
    large, small = _diameter(step, most), _diameter(step / 4, most)
    keys: list[Artist] = [
        circle(VERMILLION, small, "raised the log-odds"),
        circle(BLUE, small, "lowered them"),
        circle(FAINT, large, f"by {step:g}"),
        circle(FAINT, small, f"by {step / 4:g}"),
    ]
    if any(stream.positive for stream in streams):
        keys.append(Patch(color=VERMILLION, linewidth=0, alpha=0.15, label="label is 1"))
    if any(stream.best for stream in streams):
        keys.append(
            Line2D([], [], color=FAINT, linestyle=(0, (4, 2)), linewidth=1.2, label="best possible")
        )
    if any(stream.event is not None for stream in streams):
        keys.append(Line2D([], [], color=VERMILLION, linewidth=1.2, label="event"))
    return keys


def _plain(size: float) -> float:
    """The nearest of 1, 2 and 4 times a power of ten, at or below."""
    unit = 10.0 ** np.floor(np.log10(size))
    return float(max(times * unit for times in (1, 2, 4) if times * unit <= size))
