"""A search for settings: the spaces, the study that processes share, `tune`."""

from onlinecde.tuning.search import read_study, tune
from onlinecde.tuning.spaces import SearchSpace, Span, TuneError, paper_space, read_best
from onlinecde.tuning.study import Tuned

__all__ = [
    "SearchSpace",
    "Span",
    "TuneError",
    "Tuned",
    "paper_space",
    "read_best",
    "read_study",
    "tune",
]
