"""Solves by a backend of one's choice."""

from onlinecde.solvers import gradients
from onlinecde.solvers.backends import Problem
from onlinecde.solvers.backends.choice import choose
from onlinecde.solvers.backends.gpu import GPU
from onlinecde.solvers.backends.torch_reference import TorchReference


def made_problem(segments, field, table, z0, **settings):
    return Problem(segments, field, z0, table, lambda place, knot: "", **settings).prepared()


def by_gpu(segments, field, table, z0, precision="highest", *, moves=None, legs=None, **settings):
    """z at the knots, (knot, stream, hidden), by the GPU's kernels."""
    problem = made_problem(segments, field, table, z0, precision=precision, **settings)
    return gradients.trajectory(problem, GPU(legs, moves))[0]


def by_torch(segments, field, table, z0, exact):
    """z at the knots by plain torch: with exact gradients, or recorded by autograd."""
    gradient = "exact" if exact else "backprop"
    problem = made_problem(segments, field, table, z0, gradient=gradient, backend="torch")
    backend = choose(problem)[0] if exact else TorchReference()
    return gradients.trajectory(problem, backend)[0]
