"""The utility score of the PhysioNet/CinC Challenge 2019 (Reyna et al. 2020), from its definition.

An alarm is worth most six hours before sepsis, something from twelve hours before to three hours
after it, and costs a little anywhere else; silence costs the more the later, up to three hours
after. The sum over all patients and hours is scaled so that no alarm at all scores 0 and the best
possible alarms score 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EARLY, OPTIMAL, LATE = -12.0, -6.0, 3.0
"""Hours from the onset of sepsis: when an alarm begins to be worth something, is worth most, ends."""
TRUE_POSITIVE, FALSE_NEGATIVE, FALSE_POSITIVE = 1.0, -2.0, -0.05


@dataclass(frozen=True, eq=False)
class Utility:
    """What an alarm and silence are worth at every row, (stream, row); 0 where there is no row."""

    alarm: np.ndarray
    silence: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """The most each row can be worth."""
        return np.maximum(self.alarm, self.silence)


def utility(labels: np.ndarray, times: np.ndarray) -> Utility:
    """The worth of each row, from labels and times (stream, row) in hours; NaN labels are no rows.

    Labels are the challenge's: 1 from six hours before the onset on.

    >>> worth = utility(np.array([[0.0, 1.0]]), np.array([[1.0, 2.0]]))
    >>> worth.alarm.round(3).tolist(), worth.silence.round(3).tolist()
    ([[0.833, 1.0]], [[0.0, 0.0]])
    """
    positive, real = labels == 1, ~np.isnan(labels)
    septic = positive.any(1)
    onset = times[np.arange(len(times)), positive.argmax(1)] - OPTIMAL
    hours = times - onset[:, None]
    rising = TRUE_POSITIVE * (hours - EARLY) / (OPTIMAL - EARLY)
    falling = TRUE_POSITIVE * (LATE - hours) / (LATE - OPTIMAL)
    alarm = np.where(hours <= OPTIMAL, np.maximum(rising, FALSE_POSITIVE), falling)
    silence = np.where(hours <= OPTIMAL, 0.0, FALSE_NEGATIVE * (hours - OPTIMAL) / (LATE - OPTIMAL))
    over = hours > LATE
    alarm = np.where(septic[:, None], np.where(over, 0.0, alarm), FALSE_POSITIVE)
    silence = np.where(septic[:, None] & ~over, silence, 0.0)
    return Utility(np.where(real, alarm, 0.0), np.where(real, silence, 0.0))


def normalised(observed: np.ndarray, silent: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Scaled so that silence scores 0 and the best possible alarms score 1."""
    return (observed - silent) / (best - silent)


def score(alarms: np.ndarray, labels: np.ndarray, times: np.ndarray) -> float:
    """The normalised utility of alarms (stream, row), bool; NaN where no patient has sepsis."""
    worth = utility(labels, times)
    observed = np.where(alarms, worth.alarm, worth.silence).sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(normalised(observed, worth.silence.sum(), worth.best.sum()))


def best_threshold(scores: np.ndarray, labels: np.ndarray, times: np.ndarray) -> float:
    """The threshold whose alarms (`scores >= threshold`) are worth most; for a split not tested on."""
    worth, real = utility(labels, times), ~np.isnan(labels)
    order = np.argsort(-scores[real], kind="stable")
    ranked = scores[real][order]
    gain = np.cumsum((worth.alarm - worth.silence)[real][order])
    last = np.append(ranked[1:] != ranked[:-1], True)  # alarms come for all equal scores at once
    at = int(np.argmax(np.where(last, gain, -np.inf)))
    return float(ranked[at]) if gain[at] > 0 else float(np.inf)
