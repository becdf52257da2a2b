"""The best possible online risk on the simulated ward: exact filtering of its hidden chain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onlinecde.data import ward_model as model


@dataclass(frozen=True)
class Filtered:
    """What filtering gives, each (stream, cell) float64; a cell is a quarter of an hour."""

    after: np.ndarray
    """P(event within the horizon | all observed up to and with this cell)."""
    level: np.ndarray
    """The same at the start of a cell, before its observations."""
    slope: np.ndarray
    """With `weight`: where a share x of the cell's time for a row has gone by without one, the risk is
    (level + slope x) / (1 + weight x)."""
    weight: np.ndarray


def online_risk(values: np.ndarray, band: np.ndarray, seen: np.ndarray, ahead: int) -> Filtered:
    """The risk of the event within `ahead` cells by exact filtering, for streams without it so far.

    `values` (stream, cell, channel) as simulated, `band` (stream,), `seen` (stream,) the cells
    watched; `after` is NaN from there on, the others behind the start of that cell. What was not measured tells
    as much as what was: a quiet hour makes the stable states likelier.
    """
    streams, cells = values.shape[:2]
    step, risk = model.transition(), model.event_probability(ahead)[:, : model.EVENT]
    result = Filtered(*(np.full((streams, cells + more), np.nan) for more in (0, 1, 1, 1)))
    visible = 1 - quiet_probability()
    for which in range(model.BANDS):
        mine = np.flatnonzero(band == which)
        belief = np.tile(model.start()[which, : model.EVENT], (len(mine), 1))
        for cell in range(cells + 1):
            if cell:
                # To be watched at all is to know that the event has not come.
                belief = belief @ step[which, : model.EVENT, : model.EVENT]
                belief /= belief.sum(1, keepdims=True)
            watched = cell <= seen[mine]
            if not watched.any():
                break
            at = mine[watched], cell
            result.level[at] = belief[watched] @ risk[which]
            result.slope[at] = -belief[watched] @ (risk[which] * visible)
            result.weight[at] = -belief[watched] @ visible
            if cell == cells:
                break
            belief = belief * _likelihood(values[mine, cell], first=cell == 0)
            belief /= belief.sum(1, keepdims=True)
            watched = cell < seen[mine]
            result.after[mine[watched], cell] = belief[watched] @ risk[which]
    return result


def quiet_probability() -> np.ndarray:
    """P(nothing is measured in a cell after the first | state) (state,)."""
    rounds, recorded = model.round_probability(), model.record_probability()
    quiet = np.ones(model.EVENT)
    for visit, group in zip(rounds, model.GROUPS, strict=True):
        quiet *= 1 - visit * (1 - np.prod(1 - recorded[list(group)], 0))
    return quiet


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
