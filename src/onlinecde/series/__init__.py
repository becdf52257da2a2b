"""What was observed: `SeriesBatch`, its validation, and its constructors from arrays and tables."""

from onlinecde.series.batch import SeriesBatch
from onlinecde.series.checks import SeriesError

__all__ = ["SeriesBatch", "SeriesError"]
