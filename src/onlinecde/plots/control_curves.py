"""The paper's Figure 2: the four controls through one partly observed series."""

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onlinecde import controls
from onlinecde.controls import Path
from onlinecde.plots.look import (
    BLUE,
    RULE,
    VERMILLION,
    end_label,
    finish,
    house_style,
    panels,
    title,
)
from onlinecde.series import SeriesBatch

_NAN = math.nan
_NAMES = ("heart rate", "lactate")
_COLOURS = (BLUE, VERMILLION)


def example_series() -> SeriesBatch:
    """Nine rows of two channels, one dense, one observed now and then."""
    times = [0.0, 0.8, 2.2, 3.0, 4.1, 5.6, 6.3, 7.6, 8.6]
    dense = [1.50, 2.15, 1.80, _NAN, 2.60, 1.95, _NAN, 2.75, 2.35]
    sparse = [0.25, _NAN, 1.05, _NAN, _NAN, -0.15, 0.15, _NAN, 0.75]
    values = torch.tensor([dense, sparse], dtype=torch.float64).T
    return SeriesBatch.from_arrays([times], [values], channels=_NAMES)


def controls_figure(batch: SeriesBatch | None = None) -> Figure:
    """Draw each control's values against its own time, with the observations marked.

    `batch` may be any series of one stream; without it, a made one is drawn.
    """
    batch = example_series() if batch is None else batch
    if len(batch) != 1:
        raise ValueError(f"the batch has {len(batch)} streams: choose one, such as batch[0].")
    with house_style():
        figure = Figure(figsize=(11, 6.2), facecolor="white")
        axes = panels(figure)
        for axis, (name, remark, build) in zip(axes, _PANELS, strict=True):
            _draw(axis, build(batch), batch)
            title(axis, name, remark)
        note = "Grey lines mark rows. A curve has a dot where its channel was observed."
        finish(figure, axes, batch.times[0].tolist(), note)
    return figure


_PANELS = (
    ("Natural cubic", "smooth; every row bends the whole curve", controls.natural_cubic),
    ("Linear", "corners; a gap is filled with what comes after it", controls.linear),
    (
        "Hermite, backward differences",
        "smooth; a gap is filled with what comes after it",
        controls.hermite,
    ),
    ("Rectilinear", "time and values move in turn; only the past is used", controls.rectilinear),
)


def _draw(axis: Axes, path: Path, batch: SeriesBatch) -> None:
    s = torch.linspace(0, float(path.knots[-1]), 40 * path.pieces + 1, dtype=torch.float64)
    curve = path.evaluate(s)[0]
    for time in batch.times[0].tolist():
        axis.axvline(time, color=RULE, linewidth=0.8, zorder=0)
    for channel, name in enumerate(batch.channels):
        colour = _COLOURS[channel % len(_COLOURS)]
        line = curve[:, 1 + channel]
        axis.plot(curve[:, 0], line, color=colour, linewidth=2.2)
        axis.plot(
            batch.times[0],
            batch.values[0, :, channel],
            "o",
            color=colour,
            markersize=7,
            markeredgecolor="white",
            markeredgewidth=1.4,
            clip_on=False,
            zorder=3,
        )
        end_label(axis, name, (float(curve[-1, 0]), float(line[-1])), colour)
