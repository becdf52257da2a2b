"""A figure as SVG for the middle of a web page: its colours are the page's, light or dark."""

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from onlinecde.plots.look import AMBER, BLUE, FAINT, GREEN, INK, RULE, VERMILLION, house_style

SERIES = (BLUE, VERMILLION, GREEN, AMBER)
"""Colours of models, in their order; a known truth is drawn in `FAINT`."""

_VARIABLES = {
    BLUE: "--blue",
    VERMILLION: "--vermillion",
    GREEN: "--green",
    AMBER: "--amber",
    INK: "--ink",
    FAINT: "--faint",
    RULE: "--rule",
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, sharp, and read aloud
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@contextmanager
def page_style() -> Iterator[None]:
    """Draw figures for a page inside."""
    with house_style():
        matplotlib.rcParams.update(_STYLE)
        yield


def inline_svg(figure: Figure, label: str) -> str:
    """The figure as an `<svg>` element whose colours are CSS variables, `label` for who cannot see it."""
    text = io.StringIO()
    with page_style(), warnings.catch_warnings():
        # Text stays text, and the reader's fonts have what ours may lack.
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(
            text, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # numbered anew in every figure: they would clash
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", _FONT, svg)
    for colour, variable in _VARIABLES.items():
        svg = re.sub(colour, f"var({variable})", svg, flags=re.IGNORECASE)
    title = html.escape(label, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
