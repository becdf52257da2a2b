"""The best possible online risk on the simulated ward: exact filtering of its hidden chain."""

from __future__ import annotations

import numpy as np

from onlinecde.data import ward_model as model


def online_risk(values: np.ndarray, band: np.ndarray, seen: np.ndarray, ahead: int) -> np.ndarray:
    """P(event within `ahead` cells | all observed up to and with this cell) (stream, cell).

    `values` (stream, cell, channel) as simulated, `band` (stream,), `seen` (stream,) the cells
    watched; NaN from there on. What was not measured tells as much as what was: a quiet hour makes
    the stable states likelier.
    """
    step, risk = model.transition(), model.event_probability(ahead)[:, : model.EVENT]
    result = np.full(values.shape[:2], np.nan, np.float64)
    for which in range(model.BANDS):
        mine = np.flatnonzero(band == which)
        if not len(mine):
            continue
        belief = np.tile(model.start()[which, : model.EVENT], (len(mine), 1))
        for cell in range(values.shape[1]):
            if cell:
                # To be watched at all is to know that the event has not come.
                belief = belief @ step[which, : model.EVENT, : model.EVENT]
            belief = belief * _likelihood(values[mine, cell], first=cell == 0)
            belief /= belief.sum(1, keepdims=True)
            watched = cell < seen[mine]
            result[mine[watched], cell] = belief[watched] @ risk[which]
            if not watched.any():
                break
    return result


def _likelihood(cells: np.ndarray, *, first: bool) -> np.ndarray:
    """p(what was measured in one cell, and what not | state) (stream, state), up to a factor."""
    rounds, recorded = model.round_probability(), model.record_probability()
    mean, deviation = model.channel_mean(), model.channel_deviation()
    logs = np.zeros((len(cells), model.EVENT))
    for number, group in enumerate(model.GROUPS):
        taken = ~np.isnan(cells[:, group])
        given = np.zeros_like(logs)
        for place, channel in enumerate(group):
            have = taken[:, place]
            chance = recorded[channel]
            if first and channel == model.ALWAYS_FIRST:
                chance = np.ones_like(chance)
            else:
                given[~have] += np.log1p(-chance)
            offset = (cells[have, channel, None] - mean[channel]) / deviation[channel]
            given[have] += np.log(chance) - 0.5 * offset**2
        visit = np.ones(model.EVENT) if first and number == 0 else rounds[number]
        # No record of a group: no round came, or one that recorded nothing.
        none = ~taken.any(1)
        logs[none] += np.log(1 - visit + visit * np.exp(given[none]))
        logs[~none] += np.log(visit) + given[~none]
    return np.exp(logs - logs.max(1, keepdims=True))
