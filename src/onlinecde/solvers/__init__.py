"""Path + field -> z: Runge-Kutta along the segments of a path, fixed or adaptive, with exact gradients."""

from onlinecde.solvers.counting import counting_evaluations
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import MatrixField, MLPField, VectorField
from onlinecde.solvers.runge_kutta import TABLEAUS, Tableau
from onlinecde.solvers.solve import solve, solve_with
from onlinecde.solvers.solver import Solution, Solver

__all__ = [
    "TABLEAUS",
    "MLPField",
    "MatrixField",
    "Solution",
    "Solver",
    "SolverError",
    "Tableau",
    "VectorField",
    "counting_evaluations",
    "solve",
    "solve_with",
]
