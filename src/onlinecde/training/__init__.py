"""From a task to a trained, saved, measured model: `fit`, `evaluate`, `tune`."""

from onlinecde.training.building import MODEL_NAMES, build_model
from onlinecde.training.evaluating import evaluate
from onlinecde.training.evaluation import Evaluation, compare
from onlinecde.training.fitting import Fitted, fit
from onlinecde.training.journal import model_folder, read_log
from onlinecde.training.settings import PAPER, FitError, FitSettings

__all__ = [
    "MODEL_NAMES",
    "PAPER",
    "Evaluation",
    "FitError",
    "FitSettings",
    "Fitted",
    "build_model",
    "compare",
    "evaluate",
    "fit",
    "model_folder",
    "read_log",
]
