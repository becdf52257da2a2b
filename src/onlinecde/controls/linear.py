"""Linear control: straight lines from row to row, all channels at once."""

from onlinecde.controls.encoding import Encoding
from onlinecde.controls.fill import interpolate_linearly
from onlinecde.controls.path import PolynomialPath
from onlinecde.controls.rows import encode, join_channels, measurability_at_rows
from onlinecde.series import SeriesBatch


def linear(
    batch: SeriesBatch, counts: bool = False, *, encoding: Encoding | None = None
) -> PolynomialPath:
    """The piecewise linear control: discretely online where nothing is missing.

    Missing values are interpolated across, which looks into the future: the path then says so.
    Arguments as for `rectilinear`.
    """
    series = encode(batch, counts, encoding)
    return PolynomialPath(
        scheme="linear",
        rows=join_channels(series, interpolate_linearly(series.values)),
        times=series.times,
        lengths=series.lengths,
        streams=series.streams,
        measurability=measurability_at_rows(series),
    )
