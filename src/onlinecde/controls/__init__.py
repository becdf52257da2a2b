"""Series -> control path: four schemes, one file each, on one representation of pieces."""

from onlinecde.controls.encoding import EncodedSeries, Encoding
from onlinecde.controls.hermite import hermite
from onlinecde.controls.linear import linear
from onlinecde.controls.natural_cubic import natural_cubic
from onlinecde.controls.path import Measurability, Path, Piece, PolynomialPath
from onlinecde.controls.recommend import Recommendation, recommend
from onlinecde.controls.rectilinear import RectilinearPath, rectilinear

__all__ = [
    "EncodedSeries",
    "Encoding",
    "Measurability",
    "Path",
    "Piece",
    "PolynomialPath",
    "Recommendation",
    "RectilinearPath",
    "hermite",
    "linear",
    "natural_cubic",
    "recommend",
    "rectilinear",
]
