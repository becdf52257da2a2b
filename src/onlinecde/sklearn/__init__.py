"""scikit-learn estimators for series: fit, predict, score, search and pipelines, over streams."""

from onlinecde.sklearn.estimators import OnlineCDEClassifier, OnlineCDERegressor
from onlinecde.sklearn.followed import Followed

__all__ = ["Followed", "OnlineCDEClassifier", "OnlineCDERegressor"]
