"""The paper's four conditions of a path, measured together and as a table."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onlinecde import controls
from onlinecde.audit.adaptedness import PathMeasurability, path_measurability
from onlinecde.audit.boundedness import PathBoundedness, path_boundedness
from onlinecde.audit.paths import PathBuilder
from onlinecde.audit.quadratic import quadratic
from onlinecde.audit.smoothness import PathSmoothness, path_smoothness
from onlinecde.audit.trial_series import trial_batch
from onlinecde.audit.uniqueness import PathUniqueness, path_uniqueness

_MISSING = 0.4


@dataclass(frozen=True)
class PathProperties:
    """What was found of a path; each part has its verdict and, as `reason`, what showed it."""

    complete: PathMeasurability
    """Measurability where nothing is missing."""
    missing: PathMeasurability
    """Measurability where values are missing."""
    smoothness: PathSmoothness
    boundedness: PathBoundedness
    uniqueness: PathUniqueness

    def verdicts(self) -> dict[str, str]:
        """Each condition's verdict in a word or two, by the column of the table."""
        return {
            "nothing missing": self.complete.measurability.value,
            "values missing": self.missing.measurability.value,
            "smoothness": self.smoothness.smoothness.value,
            "bounded": "yes" if self.boundedness.bounded else "no",
            "unique": self.uniqueness.uniqueness.value,
        }

    def reasons(self) -> dict[str, str]:
        """What showed each verdict, by the same names."""
        parts = (self.complete, self.missing, self.smoothness, self.boundedness, self.uniqueness)
        return {name: part.reason for name, part in zip(self.verdicts(), parts, strict=True)}


def path_properties(
    build: PathBuilder,
    build_with_counts: PathBuilder | None = None,
    *,
    seed: int = 0,
    tolerance: float = 0.0,
) -> PathProperties:
    """Measure measurability, smoothness, boundedness and uniqueness of any path class.

    `build` makes a path of a `SeriesBatch`; `build_with_counts` makes the same with observation
    counts among its channels, where there is such a thing. `tolerance` is how far the past may
    move and still count as the same; 0 asks for the same bits.

    >>> path_properties(controls.linear).verdicts()["nothing missing"]
    'discrete'
    """
    complete = trial_batch(seed)
    partial_ = trial_batch(seed, missing=_MISSING)
    return PathProperties(
        complete=path_measurability(build, complete, seed=seed, tolerance=tolerance),
        missing=path_measurability(build, partial_, seed=seed, tolerance=tolerance),
        smoothness=path_smoothness(build, complete),
        boundedness=path_boundedness(build, seed=seed),
        uniqueness=path_uniqueness(build, build_with_counts, seed=seed),
    )


@dataclass(frozen=True)
class PropertiesRow:
    """One control of the table: what was measured beside what the paper says."""

    control: str
    measured: PathProperties
    paper: dict[str, str]
    """The paper's claims, by the names of `PathProperties.verdicts`, where it makes any."""

    def agrees(self, condition: str) -> bool:
        """Whether the measurement is compatible with the claim; a claim not made, or open, is."""
        claim = self.paper.get(condition, "unknown")
        measured = self.measured.verdicts()[condition]
        return claim in ("unknown", measured) or (claim == "smooth" and measured in ("C1", "C2"))


def properties_table(seed: int = 0) -> tuple[PropertiesRow, ...]:
    """Measure the paper's four controls, and quadratic splines as the one that must fail."""
    return tuple(
        PropertiesRow(name, path_properties(build, partial(build, counts=True), seed=seed), claims)
        for name, build, claims in _CLAIMS
    )


def _claims(*claims: str) -> dict[str, str]:
    names = ("nothing missing", "values missing", "smoothness", "bounded", "unique")
    return dict(zip(names, claims, strict=True))


_CLAIMS: tuple[tuple[str, Callable[..., controls.Path], dict[str, str]], ...] = (
    (
        "natural cubic",
        controls.natural_cubic,
        _claims("offline", "offline", "smooth", "yes", "unknown"),
    ),
    (
        "linear",
        controls.linear,
        _claims("discrete", "offline", "piecewise", "yes", "with counts"),
    ),
    (
        "Hermite",
        controls.hermite,
        _claims("discrete", "offline", "smooth", "yes", "with counts"),
    ),
    (
        "rectilinear",
        controls.rectilinear,
        _claims("continuous", "continuous", "piecewise", "yes", "with counts"),
    ),
    ("quadratic spline", quadratic, {"bounded": "no"}),
)
