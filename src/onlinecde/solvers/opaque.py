"""A solve as `torch.compile` sees it: one call, not hundreds of unrolled stages."""

import torch

from onlinecde.solvers.backends.base import Problem
from onlinecde.solvers.solve import solve_problem
from onlinecde.solvers.solver import Solution


@torch.compiler.disable
def solve_uncompiled(problem: Problem) -> Solution:
    """`solve_problem`, outside of the compiled program."""
    return solve_problem(problem)
