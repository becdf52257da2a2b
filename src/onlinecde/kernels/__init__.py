"""Fused solvers: the functions of `onlinecde.solvers` as kernels, each optional at run time.

`onlinecde.kernels.cpu` holds the numba ones; it imports numba, this package does not.
"""

from onlinecde.kernels.availability import cpu_unavailable

__all__ = ["cpu_unavailable"]
