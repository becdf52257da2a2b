"""The score of alarms that a task's data set defines: scaled so that silence scores 0, the best alarms 1."""

from __future__ import annotations

import numpy as np

from onlinecde.data import Utility


def normalised(observed: np.ndarray, silent: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Scaled so that silence scores 0 and the best possible alarms score 1."""
    return (observed - silent) / (best - silent)


def utility_of(alarms: np.ndarray, worth: Utility) -> float:
    """The normalised utility of alarms (stream, row), bool; NaN where no alarm is worth anything."""
    observed = np.where(alarms, worth.alarm, worth.silence).sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(normalised(observed, worth.silence.sum(), worth.best.sum()))


def best_threshold(scores: np.ndarray, labelled: np.ndarray, worth: Utility) -> float:
    """The threshold whose alarms (`scores >= threshold`) are worth most; for a split not tested on.

    scores and labelled (bool), (stream, row).
    """
    order = np.argsort(-scores[labelled], kind="stable")
    ranked = scores[labelled][order]
    gain = np.cumsum((worth.alarm - worth.silence)[labelled][order])
    last = np.append(ranked[1:] != ranked[:-1], True)  # alarms come for all equal scores at once
    at = int(np.argmax(np.where(last, gain, -np.inf)))
    return float(ranked[at]) if gain[at] > 0 else float(np.inf)
