"""From a task to a trained, saved model: `fit`, its settings and defaults, its run folder."""

from onlinecde.training.defaults import MODEL_NAMES, build_model
from onlinecde.training.fitting import Fitted, fit
from onlinecde.training.journal import model_folder, read_log
from onlinecde.training.settings import PAPER, FitError, FitSettings
from onlinecde.training.updating import update

__all__ = [
    "MODEL_NAMES",
    "PAPER",
    "FitError",
    "FitSettings",
    "Fitted",
    "build_model",
    "fit",
    "model_folder",
    "read_log",
    "update",
]
