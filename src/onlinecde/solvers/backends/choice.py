"""Which backend takes a problem, and why."""

from onlinecde.solvers.backends.base import Backend, Problem
from onlinecde.solvers.backends.gpu import GPU
from onlinecde.solvers.backends.numba import Numba
from onlinecde.solvers.backends.torch_reference import TorchReference
from onlinecde.solvers.backends.torch_sparse import TorchSparse

BACKENDS: tuple[Backend, ...] = (GPU(), Numba(), TorchSparse(), TorchReference())
"""In the order in which they are asked; the last one takes every problem."""


def choose(problem: Problem) -> tuple[Backend, str]:
    """The first backend that supports a problem, and why the kernels for its device do not; "" if they do.

    Raises:
        ValueError: the backend that was asked for by name does not.
    """
    reason = ""
    for backend in BACKENDS:
        unsupported = backend.unsupported(problem)
        if unsupported is None:
            return backend, reason
        if backend.device is not None and problem.backend == backend.name:
            raise ValueError(f"backend='{backend.name}' cannot solve this: {unsupported}.")
        if problem.capture and backend.device == "cuda":
            raise ValueError(f"this solve cannot be captured: {unsupported}.")
        if backend.device == problem.z0.device.type:
            reason = unsupported
    raise AssertionError("the reference takes every problem")
