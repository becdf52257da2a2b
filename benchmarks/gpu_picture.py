"""Training steps of the committed GPU results as a picture: `python -m benchmarks.gpu_picture`."""

import math
from typing import Any

from matplotlib.figure import Figure

from benchmarks.tables import ROOT, read
from onlinecde.plots.look import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    VERMILLION,
    house_style,
    plain_decades,
    save_figure,
)

COLOURS = {
    "torchcde": VERMILLION,
    "plain torch": AMBER,
    "onlinecde highest": BLUE,
    "onlinecde high": GREEN,
}


def picture() -> Figure:
    """Milliseconds of a step, on a log scale, by shape and library."""
    content = read("gpu")
    wanted = [one for one in content["results"] if one["group"] in ("reference", "paper")]
    names = list(dict.fromkeys(one["name"] for one in wanted))
    with house_style():
        figure = Figure(figsize=(9, 5.5))
        axis: Any = figure.subplots()
        for number, (library, colour) in enumerate(COLOURS.items()):
            found = {one["name"]: one["train"] for one in wanted if one["library"] == library}
            places = [names.index(name) - 0.3 + 0.2 * number for name in found]
            axis.barh(places, list(found.values()), 0.18, color=colour, label=library)
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xscale("log")
        plain_decades(axis, math.log10(3000))
        axis.set_xlabel("training step, ms")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper center", ncols=4, bbox_to_anchor=(0.5, 1.1))
        figure.text(0.02, 0.01, content["hardware"]["gpu"][0], fontsize=9, color=FAINT)
        figure.subplots_adjust(left=0.22, right=0.97, top=0.9, bottom=0.13)
    return figure


if __name__ == "__main__":
    save_figure(picture(), ROOT / "docs" / "images", "gpu")
