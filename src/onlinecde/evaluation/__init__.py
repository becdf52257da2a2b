"""How good a model is: metrics with intervals, calibration, time before an event, a page of them, `evaluate`."""

from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.results import Evaluation, compare

__all__ = ["Evaluation", "compare", "evaluate"]
