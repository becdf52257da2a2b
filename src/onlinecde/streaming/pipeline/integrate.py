"""Fourth step: rows of many streams, integrated together: round r advances every stream by its r-th row.

The engine asks its model here and nowhere else, but for explanations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onlinecde.models import FrozenCDE, OnlineModel, StateError, StreamState
from onlinecde.solvers import SolverError

Live = OnlineModel | FrozenCDE
"""What `OnlineModel.frozen` gives"""


@dataclass(frozen=True, eq=False)
class Integrated:
    """What became of some rows, numbered as they were given."""

    order: np.ndarray
    """The rows in the order of `states`: round by round, in a round by number"""
    rounds: np.ndarray
    """(round,): how many rows each round advanced"""
    states: StreamState
    """The state after each row; of no meaning from a stream's first bad row on"""
    outputs: np.ndarray
    """(row, output): the model's outputs after each row"""
    bad: dict[int, str]
    """First row of a stream without a finite state or answer -> the model's complaint, or \"\" """

    def states_of(self, rows: np.ndarray) -> StreamState:
        """The states after some rows."""
        if len(self.rounds) == 1:
            if len(rows) == len(self.order):
                return self.states  # rows are asked for in their order, each once
            place = rows
        else:
            where = np.empty(len(self.outputs), np.int64)
            where[self.order] = np.arange(len(self.order))
            place = where[rows]
        index = torch.from_numpy(place)
        return self.states._map(lambda tensor: tensor.index_select(0, index))


def at_model(model: Live, state: StreamState) -> Any:
    """A state where the model is; states themselves stay in main memory."""
    return state if model.device.type == "cpu" else state.to(model.device)


def observe(
    model: Live, state: StreamState, times: np.ndarray, rows: np.ndarray, largest: float
) -> tuple[StreamState, dict[int, str]]:
    """One row (stream, channel) for each stream: the new states, and why some cannot be used.

    A stream's bits never depend on its company: kernels see to that themselves; where they do not
    apply, streams are taken one by one, because a matrix product may round differently by its size.
    A state that holds a number beyond `largest` cannot be used either.
    """
    if isinstance(model, FrozenCDE):
        fused = model.observe_each(state, times, rows, largest)  # pyright: ignore[reportArgumentType]
        if fused is not None:
            after, finite = fused
            return after, dict.fromkeys(np.flatnonzero(~finite).tolist(), "")
        if (on_gpu := _observe_on_gpu(model, state, times, rows, largest)) is not None:
            return on_gpu
    bad: dict[int, str] = {}
    after = []
    for stream in range(len(state)):
        alone: Any = state[stream]
        try:
            new = model.observe(
                at_model(model, alone), float(times[stream]), rows[stream : stream + 1]
            ).to("cpu")
            if not _sound(new, largest):
                bad[stream], new = "", alone
        except SolverError:
            bad[stream], new = "", alone
        except StateError as error:
            bad[stream], new = str(error), alone
        after.append(new)
    return type(state).concatenate(after), bad


def _observe_on_gpu(
    model: FrozenCDE, state: StreamState, times: np.ndarray, rows: np.ndarray, largest: float
) -> tuple[StreamState, dict[int, str]] | None:
    """`observe` on a GPU, all streams at once; None where there is none, or a stream's row is refused."""
    if model.device.type == "cpu":
        return None
    try:
        after = model.observe(at_model(model, state), torch.from_numpy(times), rows).to("cpu")
    except (SolverError, StateError):
        return None
    fine = (after.z.abs().amax(1) <= largest) & (after.values.abs().amax(1) <= largest)
    return after, dict.fromkeys(torch.nonzero(~fine)[:, 0].tolist(), "")


def _sound(state: StreamState, largest: float) -> bool:
    """Whether a state can be gone on from; times alone may be NaN, before there is a row they belong to."""
    for name, tensor in state.__getstate__().items():
        if tensor is None or not tensor.is_floating_point():
            continue
        fine = tensor.abs() <= largest
        if name.endswith("time") or name == "stamps":
            fine |= tensor.isnan()
        if not bool(fine.all()):
            return False
    return True


def predict(model: Live, states: StreamState, at: np.ndarray) -> np.ndarray:
    """Outputs (state, output) at times (state,); NaN where the model has no finite answer."""
    if not len(at):
        return np.empty((0, model.outputs))
    with torch.no_grad():
        try:
            outputs = model.predict(at_model(model, states), torch.from_numpy(at))
            return outputs.double().cpu().numpy()
        except SolverError:
            if len(at) == 1:
                return np.full((1, model.outputs), np.nan)
            return np.concatenate(
                [predict(model, states[n], at[n : n + 1]) for n in range(len(at))]
            )


def integrate(
    model: Live, start: StreamState, lengths: np.ndarray, times: np.ndarray, rows: np.ndarray
) -> Integrated:
    """Rows (row, channel) at times (row,): stream n's next `lengths[n]` of them, from state n of `start`."""
    taken = np.arange(len(lengths))
    if (lengths == 1).all():  # one round
        stream = by_round = taken
        sizes = np.array([len(taken)])
    else:
        stream = np.repeat(taken, lengths)
        rank = np.arange(len(times)) - (np.cumsum(lengths) - lengths)[stream]
        by_round = np.argsort(rank, kind="stable")
        sizes = np.bincount(rank)
    # Beyond the root of the largest number, time alone could carry a state beyond all bounds.
    largest = float(torch.finfo(model.dtype).max) ** 0.5
    state, order, states, bad = start, [], [], {}
    dead = np.zeros(len(lengths), bool)
    begin = 0
    with torch.no_grad():
        for number, size in enumerate(sizes.tolist()):
            which = by_round[begin : begin + size]
            begin += size
            if bad:
                which = which[~dead[stream[which]]]
                if not len(which):
                    break
            owner = stream[which]
            if number and len(owner) != len(taken):
                state = state[torch.from_numpy(np.searchsorted(taken, owner))]
            taken = owner
            state, wrong = observe(model, state, times[which], rows[which], largest)
            for place, why in wrong.items():
                bad[int(which[place])] = why
                dead[owner[place]] = True
            order.append(which)
            states.append(state)
    ordered = order[0] if len(order) == 1 else np.concatenate(order)
    every = states[0] if len(states) == 1 else type(start).concatenate(states)
    outputs = np.full((len(times), model.outputs), np.nan)
    _answer(model, every, ordered, stream, outputs, bad)
    return Integrated(ordered, np.array([len(one) for one in order]), every, outputs, bad)


def _answer(
    model: Live,
    states: StreamState,
    order: np.ndarray,
    stream: np.ndarray,
    outputs: np.ndarray,
    bad: dict[int, str],
) -> None:
    """Fill `outputs` (row, output) where states are sound; an answer that is not finite makes its row bad."""
    if bad:
        sound = ~np.isin(order, list(bad))
        if not sound.any():
            return
        order = order[sound]
        states = states[torch.from_numpy(np.flatnonzero(sound))]
    with torch.no_grad():
        outputs[order] = model.predict(at_model(model, states)).double().cpu().numpy()
    for row in order[~np.isfinite(outputs[order]).all(1)].tolist():
        earlier = [one for one in bad if stream[one] == stream[row]]
        if not earlier or row < earlier[0]:
            for one in earlier:
                del bad[one]
            bad[row] = ""
