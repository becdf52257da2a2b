"""MIMIC-IV, releases 1.0 to 3.1: SQL concepts on DuckDB -> mortality, length of stay, sepsis.

`sql/` holds one concept a file; docs/mimic.md explains each, and every setting.
"""

from onlinecde.data.mimic.prepare import Mimic, load, open_mimic, report, settings_of
from onlinecde.data.mimic.report import PAPER_FLOW, MimicReport, Step
from onlinecde.data.mimic.settings import LABORATORY, VITAL_SIGNS, MimicSettings

__all__ = [
    "LABORATORY",
    "PAPER_FLOW",
    "VITAL_SIGNS",
    "Mimic",
    "MimicReport",
    "MimicSettings",
    "Step",
    "load",
    "open_mimic",
    "report",
    "settings_of",
]
