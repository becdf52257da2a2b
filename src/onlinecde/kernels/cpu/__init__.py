"""Neural CDEs solved by fused numba kernels: explicit Runge-Kutta and its exact gradient.

Numpy arrays in and out: `pack_field`, a `tableau` and a path, then `forward` and `backward` (whole histories),
`advance` (one row, now) or `contributions` (what each channel added).
"""

from onlinecde.kernels.cpu.first_use import ready
from onlinecde.kernels.cpu.inputs import PathArrays, Tableau
from onlinecde.kernels.cpu.live import advance, advance_time
from onlinecde.kernels.cpu.packing import (
    FieldGradient,
    PackedField,
    dense,
    pack_field,
    rectilinear,
)
from onlinecde.kernels.cpu.solve import PathGradient, backward, contributions, forward, tableau

__all__ = [
    "FieldGradient",
    "PackedField",
    "PathArrays",
    "PathGradient",
    "Tableau",
    "advance",
    "advance_time",
    "backward",
    "contributions",
    "dense",
    "forward",
    "pack_field",
    "ready",
    "rectilinear",
    "tableau",
]
