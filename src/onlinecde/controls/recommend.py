"""The paper's advice on which control to use, with the reason in words."""

from dataclasses import dataclass
from typing import Literal

from onlinecde.series import SeriesBatch


@dataclass(frozen=True)
class Recommendation:
    """A control and why."""

    control: Literal["rectilinear", "hermite", "natural_cubic"]
    counts: bool
    reason: str


def recommend(
    batch: SeriesBatch | None = None,
    *,
    prediction: Literal["continuous", "discrete", "offline"] = "continuous",
    missing: bool | None = None,
    speed_first: bool = False,
) -> Recommendation:
    """Say which control to use, and why.

    Args:
        batch: series like those it is for, which show whether values are missing.
        prediction: "continuous" (asked at any time), "discrete" (at the rows) or "offline" (after the fact).
        missing: whether values are missing; None: as in `batch`, and without one, yes.
        speed_first: whether adaptive steps should be few at the cost of accuracy.

    >>> recommend(prediction="discrete", missing=False).control
    'hermite'
    """
    if prediction not in ("continuous", "discrete", "offline"):
        raise ValueError(
            f"prediction is {prediction!r}: choose 'continuous' (at any time), 'discrete' (at the "
            "rows) or 'offline' (after the fact)."
        )
    if missing is None:
        # Unknown data is taken to be incomplete: that is the safe choice online.
        missing = (
            True if batch is None else bool((batch.values.isnan() & batch.real[..., None]).any())
        )
    if prediction == "continuous":
        return Recommendation(
            "rectilinear",
            True,
            "Predictions at any time need a control that is continuously online, and the "
            "rectilinear one is the only one of the four. Counts make it tell a repeated value "
            "from an unobserved one.",
        )
    if prediction == "discrete" and missing:
        return Recommendation(
            "rectilinear",
            True,
            "Values are missing, and linear, Hermite and natural cubic controls fill a gap with "
            "what comes after it: online they would use the future. The rectilinear control does "
            "not, and counts tell it what was observed.",
        )
    if prediction == "offline" and speed_first:
        return Recommendation(
            "natural_cubic",
            missing,
            "Nothing is predicted online and speed comes first: the natural cubic control is the "
            "smoothest, so an adaptive solver takes the fewest steps along it.",
        )
    where = "at the rows, with nothing missing" if prediction == "discrete" else "after the fact"
    return Recommendation(
        "hermite",
        missing,
        f"Predictions {where}: the Hermite control with backward differences is smooth, so it "
        "solves faster than the linear one, and a row changes the path only next to it.",
    )
