"""Fused solvers: the functions of `onlinecde.solvers` as kernels, each optional at run time.

`onlinecde.kernels.cpu` holds the numba ones, `onlinecde.kernels.gpu` the Triton ones; they import
numba and triton, this package does not.
"""

from onlinecde.kernels.availability import cpu_unavailable, gpu_unavailable

__all__ = ["cpu_unavailable", "gpu_unavailable"]
