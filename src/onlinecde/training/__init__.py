"""From a task to a trained, saved, measured model: `fit`, `evaluate`, `tune`."""

from onlinecde.training.building import MODEL_NAMES, build_model
from onlinecde.training.evaluating import evaluate
from onlinecde.training.evaluation import Evaluation, compare
from onlinecde.training.fitting import Fitted, fit
from onlinecde.training.journal import model_folder, read_log
from onlinecde.training.search_spaces import SearchSpace, Span, TuneError, paper_space, read_best
from onlinecde.training.settings import PAPER, FitError, FitSettings
from onlinecde.training.study import Tuned
from onlinecde.training.tuning import read_study, tune

__all__ = [
    "MODEL_NAMES",
    "PAPER",
    "Evaluation",
    "FitError",
    "FitSettings",
    "Fitted",
    "SearchSpace",
    "Span",
    "TuneError",
    "Tuned",
    "build_model",
    "compare",
    "evaluate",
    "fit",
    "model_folder",
    "paper_space",
    "read_best",
    "read_log",
    "read_study",
    "tune",
]
