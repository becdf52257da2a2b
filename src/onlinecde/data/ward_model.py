"""The tables of the simulated ward: how patients move, what is measured when, and how it looks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

CELL = 0.25
"""Hours in a step of the chain."""
LEVELS = 8
MODES = ("stable", "deteriorating", "treated")
EVENT = LEVELS * len(MODES)
"""The state after the event; states before it are `mode * LEVELS + level`."""
NEVER = 1 << 40
BANDS = 5
_VITAL, _LAB = 0, 1


@dataclass(frozen=True)
class Channel:
    """A measurement: its mean goes from `well` to `ill`, and `treated` is added in treatment."""

    name: str
    unit: str
    group: int
    well: float
    ill: float
    treated: float
    deviation: float
    recorded: tuple[float, float]
    """Probability to be recorded on a round, for the well and for the ill."""


CHANNELS = (
    Channel("heart_rate", "1/min", _VITAL, 80, 108, -6, 18, (0.95, 0.98)),
    Channel("respiratory_rate", "1/min", _VITAL, 17, 23, -1, 4.5, (0.8, 0.95)),
    Channel("oxygen_saturation", "%", _VITAL, 96.5, 93, 3, 2.5, (0.9, 0.97)),
    Channel("systolic_pressure", "mmHg", _VITAL, 126, 104, 18, 20, (0.9, 0.95)),
    Channel("temperature", "C", _VITAL, 36.9, 37.7, -0.3, 0.7, (0.4, 0.6)),
    Channel("oxygen_flow", "l/min", _VITAL, 1, 3, 4, 2.5, (0.15, 0.6)),
    Channel("urine_output", "ml/h", _VITAL, 70, 40, 6, 35, (0.2, 0.5)),
    Channel("lactate", "mmol/l", _LAB, 1.5, 3.4, -0.5, 1.1, (0.15, 0.8)),
    Channel("creatinine", "umol/l", _LAB, 90, 135, 10, 50, (0.9, 0.9)),
    Channel("white_cells", "10^9/l", _LAB, 9, 13, -1, 4.5, (0.9, 0.9)),
    Channel("c_reactive_protein", "mg/l", _LAB, 40, 115, 0, 60, (0.5, 0.7)),
    Channel("platelets", "10^9/l", _LAB, 235, 185, 0, 75, (0.85, 0.9)),
)
GROUPS = tuple(
    tuple(i for i, c in enumerate(CHANNELS) if c.group == group) for group in (_VITAL, _LAB)
)
ALWAYS_FIRST = 0
"""The channel that is measured on admission whatever else is."""


def age_band(age: np.ndarray) -> np.ndarray:
    """Bands (stream,) of age, which sets how easily a patient deteriorates."""
    return np.digitize(age, [45.0, 58.0, 70.0, 82.0])


@cache
def transition() -> np.ndarray:
    """P(next state | state) (band, state, state) in one cell, the event absorbing."""
    rates = np.zeros((BANDS, EVENT + 1, EVENT + 1))
    for band in range(BANDS):
        for level in range(LEVELS):
            stable, worse, treated = (mode * LEVELS + level for mode in range(3))
            ill = level / (LEVELS - 1)
            for state, up, down in (
                (stable, 0.06, 0.12 * level),
                (worse, 0.75, 0.06),
                (treated, 0.12, 0.42),
            ):
                if level < LEVELS - 1:
                    rates[band, state, state + 1] = up
                if level > 0:
                    rates[band, state, state - 1] = down
            rates[band, stable, worse] = 0.006 * 1.5**band
            rates[band, worse, stable] = 0.02
            rates[band, worse, treated] = 0.02 + 0.22 * ill**2
            rates[band, treated, stable] = 0.25 if level <= 1 else 0.0
            rates[band, treated, worse] = 0.03
            hazard = 0.0004 * np.exp(6.4 * ill)
            rates[band, [stable, worse], EVENT] = hazard
            rates[band, treated, EVENT] = 0.4 * hazard
    rates -= np.eye(EVENT + 1) * rates.sum(2, keepdims=True)
    return torch.matrix_exp(torch.from_numpy(rates * CELL)).numpy()


@cache
def start() -> np.ndarray:
    """P(first state) (band, state)."""
    first = np.zeros((BANDS, EVENT + 1))
    fall = 0.55 ** np.arange(LEVELS)
    for band in range(BANDS):
        worse = 0.04 + 0.03 * band
        first[band, :LEVELS] = (1 - worse) * fall / fall.sum()
        first[band, LEVELS : 2 * LEVELS] = worse * np.full(LEVELS, 1 / LEVELS)
    return first


@cache
def event_probability(ahead: int) -> np.ndarray:
    """P(event within `ahead` cells | state) (band, state)."""
    return np.linalg.matrix_power(transition(), ahead)[:, :, EVENT]


@cache
def round_probability() -> np.ndarray:
    """P(a round in this cell | state) (group, state): the sicker, the more often."""
    ill, mode = _ill(), _mode()
    nurse = 0.2 * np.exp(3.0 * ill) * np.where(mode == 2, 1.4, 1.0)
    blood = 0.05 * np.exp(2.6 * ill) * np.where(mode == 2, 1.4, 1.0)
    return 1.0 - np.exp(-CELL * np.stack([nurse, blood]))


@cache
def record_probability() -> np.ndarray:
    """P(recorded | a round of its group, state) (channel, state)."""
    ill = _ill()
    return np.stack([c.recorded[0] + (c.recorded[1] - c.recorded[0]) * ill for c in CHANNELS])


@cache
def channel_mean() -> np.ndarray:
    """Mean (channel, state) of a measurement."""
    ill, mode = _ill(), _mode()
    return np.stack([c.well + (c.ill - c.well) * ill + c.treated * (mode == 2) for c in CHANNELS])


@cache
def channel_deviation() -> np.ndarray:
    """Standard deviation (channel,) of a measurement around its mean."""
    return np.array([c.deviation for c in CHANNELS])


def _ill() -> np.ndarray:
    return np.tile(np.arange(LEVELS) / (LEVELS - 1), len(MODES))


def _mode() -> np.ndarray:
    return np.repeat(np.arange(len(MODES)), LEVELS)
