"""What was observed: `SeriesBatch`, its validation, its constructors, and `Schema`, its names as a model keeps them."""

from onlinecde.series.batch import SeriesBatch
from onlinecde.series.checks import SeriesError
from onlinecde.series.schema import TIME_UNITS, Schema, SchemaWarning
from onlinecde.series.static_columns import RawStatic, StaticColumn

__all__ = [
    "TIME_UNITS",
    "RawStatic",
    "Schema",
    "SchemaWarning",
    "SeriesBatch",
    "SeriesError",
    "StaticColumn",
]
