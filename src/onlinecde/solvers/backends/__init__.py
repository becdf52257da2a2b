"""What solves with fixed steps: kernels for CPU and GPU, and plain torch, each one class."""

from onlinecde.solvers.backends.base import Backend, Gradients, Needs, Problem, Solved, Tolerance
from onlinecde.solvers.backends.choice import BACKENDS, choose

__all__ = ["BACKENDS", "Backend", "Gradients", "Needs", "Problem", "Solved", "Tolerance", "choose"]
