"""Properties of paths and models, found by experiment instead of taken on trust; any class will do."""

from onlinecde.audit.adaptedness import PathMeasurability, path_measurability
from onlinecde.audit.boundedness import PathBoundedness, path_boundedness
from onlinecde.audit.contracts import ContractReport, ContractResult, check_model
from onlinecde.audit.leaks import Leak
from onlinecde.audit.model_measurability import ModelMeasurability, measurability
from onlinecde.audit.paths import ControlPath, PathBuilder
from onlinecde.audit.properties import (
    PathProperties,
    PropertiesRow,
    path_properties,
    properties_table,
)
from onlinecde.audit.quadratic import quadratic
from onlinecde.audit.signatures import path_signature, signature
from onlinecde.audit.smoothness import PathSmoothness, Smoothness, path_smoothness
from onlinecde.audit.trial_series import trial_batch, trial_batch_for
from onlinecde.audit.uniqueness import PathUniqueness, Uniqueness, path_uniqueness

__all__ = [
    "ContractReport",
    "ContractResult",
    "ControlPath",
    "Leak",
    "ModelMeasurability",
    "PathBoundedness",
    "PathBuilder",
    "PathMeasurability",
    "PathProperties",
    "PathSmoothness",
    "PathUniqueness",
    "PropertiesRow",
    "Smoothness",
    "Uniqueness",
    "check_model",
    "measurability",
    "path_boundedness",
    "path_measurability",
    "path_properties",
    "path_signature",
    "path_smoothness",
    "path_uniqueness",
    "properties_table",
    "quadratic",
    "signature",
    "trial_batch",
    "trial_batch_for",
]
