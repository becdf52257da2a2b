"""Tables, tasks and the data sets: whatever the source, a `Task` of series, labels and splits."""

from onlinecde.data.alarm_utility import Utility
from onlinecde.data.errors import DataError
from onlinecde.data.folds import fold_of, fold_task
from onlinecde.data.forecasting import Forecast, ForecastTruth, forecast_task
from onlinecde.data.known_risk import KnownRisk
from onlinecde.data.label_specs import (
    EventLabels,
    ForecastLabels,
    IntervalLabels,
    RowLabels,
    StreamLabels,
    TimeLabels,
)
from onlinecde.data.loading import load
from onlinecde.data.queries import Queries
from onlinecde.data.registry import DATA_SETS, DataSet
from onlinecde.data.splits import split_streams
from onlinecde.data.static_features import with_static
from onlinecde.data.table_queries import asked_at_table
from onlinecde.data.tables import task_from_table
from onlinecde.data.task import Task
from onlinecde.data.truth import EndLabels, EventTruth, IntervalTruth, ListedLabels, Truth
from onlinecde.data.ward import Ward, simulate_ward

__all__ = [
    "DATA_SETS",
    "DataError",
    "DataSet",
    "EndLabels",
    "EventLabels",
    "EventTruth",
    "Forecast",
    "ForecastLabels",
    "ForecastTruth",
    "IntervalLabels",
    "IntervalTruth",
    "KnownRisk",
    "ListedLabels",
    "Queries",
    "RowLabels",
    "StreamLabels",
    "Task",
    "TimeLabels",
    "Truth",
    "Utility",
    "Ward",
    "asked_at_table",
    "fold_of",
    "fold_task",
    "forecast_task",
    "load",
    "simulate_ward",
    "split_streams",
    "task_from_table",
    "with_static",
]
