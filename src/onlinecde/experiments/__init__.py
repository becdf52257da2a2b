"""The tables and figures of the paper as data, and what runs, tabulates and plots them."""

from onlinecde.experiments.cells import Cell, cells_of
from onlinecde.experiments.grid import reproduce
from onlinecde.experiments.protocols import BUDGETS, PROTOCOLS
from onlinecde.experiments.summary import Summary, summarise
from onlinecde.experiments.table import ExperimentError, Table, load_table, table_names

__all__ = [
    "BUDGETS",
    "PROTOCOLS",
    "Cell",
    "ExperimentError",
    "Summary",
    "Table",
    "cells_of",
    "load_table",
    "reproduce",
    "summarise",
    "table_names",
]
