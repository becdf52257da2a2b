"""Numbers that float32 cannot tell apart are refused, before they become one number in silence."""

from __future__ import annotations

import numpy as np

from onlinecde.data.errors import DataError

LOSS = 0.05
"""The most that rounding to float32 may be, as a share of how much the numbers vary."""
NOISE = 1e-12
"""Numbers that differ by less than this share of their size are one number in float64 too."""


def check_resolved(numbers: np.ndarray, where: str) -> None:
    """Refuse float64 numbers, NaN where missing, whose differences do not survive in float32."""
    known = numbers[np.isfinite(numbers)]
    if not known.size or np.ptp(known) <= NOISE * np.abs(known).max():
        return
    with np.errstate(over="ignore", under="ignore"):
        error = float(np.sqrt(np.mean((known.astype(np.float32) - known) ** 2)))
    deviation = float(known.std())
    # Too large for float32 is infinite there, which is refused by name elsewhere.
    if np.isfinite(error) and error > LOSS * deviation:
        raise DataError(
            f"{where}: the numbers lie near {known.mean():.6g} and deviate by {deviation:.3g}, which "
            f"float32 cannot hold: subtract an offset, such as {known.min():.6g}, or change the unit."
        )
