"""Pictures: control paths and what they know, for docs and talks. Needs matplotlib."""

from onlinecde.plots.control_curves import controls_figure
from onlinecde.plots.edited_future import measurability_figure
from onlinecde.plots.look import save_figure

__all__ = ["controls_figure", "measurability_figure", "save_figure"]
