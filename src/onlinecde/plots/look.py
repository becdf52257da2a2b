"""One look for all pictures: colours anyone can tell apart, no clutter, the same bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Okabe and Ito's palette, which readers with any colour vision can tell apart.
BLUE, VERMILLION, GREEN, AMBER = "#0072B2", "#D55E00", "#009E73", "#E69F00"
INK, FAINT, RULE = "#1f2933", "#6b7785", "#d5dae0"

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": FAINT,
    "axes.linewidth": 1.0,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "text.parse_math": False,  # a channel may be called $x$
    "svg.hashsalt": "onlinecde",
    "svg.fonttype": "path",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style inside, whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def shortened(name: str, most: int = 36) -> str:
    """A name that leaves room for a picture beside it: its beginning, where it is longer than `most` letters.

    >>> shortened("heart rate"), shortened("a" * 9, most=5)
    ('heart rate', 'aaaa…')
    """
    return name if len(name) <= most else name[: most - 1] + "…"


def plain_decades(axis: Axes, decades: float) -> None:
    """Plain numbers along a logarithmic axis: at 1, 2 and 5 of each decade, or fewer where there are many decades."""
    subs = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 2.6 else (1,)
    axis.xaxis.set_major_locator(LogLocator(subs=subs))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def panels(figure: Figure) -> list[Axes]:
    """Four bare panels, two by two, that share their axes."""
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    axes = [axis for line in grid for axis in line]
    for axis in axes:
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(length=0)
        axis.set_yticks([])
    return axes


def title(axis: Axes, name: str, remark: str) -> None:
    """A panel's name in bold, and a remark below it."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axis.annotate(name, (0, 1), (0, 24), fontsize=13, fontweight="bold", **place)
    axis.annotate(remark, (0, 1), (0, 8), fontsize=10.5, color=FAINT, **place)


def end_label(axis: Axes, name: str, point: tuple[float, float], colour: str) -> None:
    """The name of a curve beside its end, in its colour."""
    axis.annotate(
        name,
        point,
        (10, 0),
        textcoords="offset points",
        color=colour,
        va="center",
        fontsize=10.5,
        fontweight="bold",
        annotation_clip=False,
    )


def finish(figure: Figure, axes: list[Axes], times: list[float], note: str) -> None:
    """Ticks at the rows, room for titles and labels, and a note on how to read the picture."""
    for axis in axes:
        axis.set_xlim(times[0] - 0.15, times[-1] + 0.05)
        axis.margins(y=0.1)
        axis.set_xticks(times, [f"{time:g}" for time in times])
    for axis in axes[2:]:
        axis.set_xlabel("time")
    figure.subplots_adjust(left=0.03, right=0.9, top=0.9, bottom=0.13, wspace=0.26, hspace=0.36)
    figure.text(0.03, 0.025, note, fontsize=9.5, color=FAINT)


def save_figure(figure: Figure, folder: str | Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg into a folder, made if need be; returns the two files.

    Drawn by Agg and with neither date nor random names inside: the same figure gives the same
    bytes wherever matplotlib is the same.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    with house_style():
        figure.savefig(
            files[0], dpi=136, metadata={"Software": None}, pil_kwargs={"optimize": True}
        )
        figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
