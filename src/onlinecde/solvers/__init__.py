"""Path + field -> z: Runge-Kutta along the pieces of a path, fixed or adaptive, with exact gradients."""

from onlinecde.solvers.counting import counting_evaluations
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import MatrixField, MLPVectorField, VectorField
from onlinecde.solvers.integrator import Integrator, Solution, integrator
from onlinecde.solvers.solve import solve, solve_with
from onlinecde.solvers.tableau import TABLEAUS, Tableau

__all__ = [
    "TABLEAUS",
    "Integrator",
    "MLPVectorField",
    "MatrixField",
    "Solution",
    "SolverError",
    "Tableau",
    "VectorField",
    "counting_evaluations",
    "integrator",
    "solve",
    "solve_with",
]
