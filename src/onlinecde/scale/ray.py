"""Training, search and the paper's tables on a Ray cluster: `fit`, `tune`, `reproduce`.

Each takes what its namesake of one process takes, and leaves the same folder behind.
"""

from onlinecde.scale.ray_cluster import ClusterError
from onlinecde.scale.ray_fitting import fit
from onlinecde.scale.ray_grid import reproduce
from onlinecde.scale.ray_search import tune

__all__ = ["ClusterError", "fit", "reproduce", "tune"]
