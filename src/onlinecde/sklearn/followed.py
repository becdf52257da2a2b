"""Streams followed row by row: what a model keeps of each, and how new rows are taken in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.models import OnlineModel
from onlinecde.models.state import StateError, StreamState
from onlinecde.series import TIME_UNITS, SeriesBatch, SeriesError
from onlinecde.sklearn.panels import Panel


@dataclass(frozen=True, eq=False)
class Followed:
    """Some streams, and everything kept of their past; never changed in place."""

    streams: tuple[Hashable, ...]
    state: StreamState
    origins: Mapping[str, float] = field(default_factory=dict)
    """Of timestamps: stream as text -> its time 0, in seconds since 1970"""

    def __len__(self) -> int:
        """The number of streams."""
        return len(self.streams)

    @property
    def times(self) -> np.ndarray:
        """When each stream's last row was, (stream,) float64."""
        clock: Any = self.state
        return clock.time.cpu().numpy()


@torch.no_grad()
def follow(model: OnlineModel, panel: Panel, before: Followed | None, time_unit: str) -> Followed:
    """Streams with the rows of a panel taken in; those not followed before begin.

    Series of arrays and lists have no names: they are those of `before`, in its order.

    Raises:
        SeriesError: other streams than are followed, or times that go back.
        StateError: two values of a channel at one instant.
    """
    batch = panel.series
    if model.schema is not None:
        # What new rows do not bring was not observed: nothing to warn of.
        batch, _ = model.schema.align(batch)
    batch = model.prepare(batch.to(model.device))
    if before is None:
        streams, state = batch.streams, _first(model, batch)
        return Followed(streams, _observed(model, state, batch), dict(panel.origins))
    if batch.numbered:
        batch = _continued(batch, before, panel.counted)
    batch, origins = _in_time_of(before, batch, panel.origins, time_unit)
    known = {stream: place for place, stream in enumerate(before.streams)}
    new = [place for place, stream in enumerate(batch.streams) if stream not in known]
    streams, state = before.streams, before.state
    if new:
        streams += tuple(batch.streams[place] for place in new)
        state = type(state).concatenate([state, _first(model, batch[new])])
        known = {stream: place for place, stream in enumerate(streams)}
    at = torch.tensor([known[stream] for stream in batch.streams])
    _check_order(batch, state[at])
    state = state.put(at.to(model.device), _observed(model, state[at], batch))
    return Followed(streams, state, origins)


def _first(model: OnlineModel, batch: SeriesBatch) -> StreamState:
    return model.init_state(len(batch), batch.static)


def _observed(model: OnlineModel, state: StreamState, batch: SeriesBatch) -> StreamState:
    """The state after all rows of a batch, (stream, row)."""
    for row in range(batch.times.shape[1]):
        at = (batch.rows > row).nonzero()[:, 0]
        times, values = batch.times[at, row], batch.values[at, row]
        try:
            later = model.observe(state[at], times, values)
        except StateError as error:
            raise _named(model, state[at], times, values, batch, at) or error from error
        state = state.put(at, later)
    return state


def _named(
    model: OnlineModel,
    state: StreamState,
    times: Tensor,
    values: Tensor,
    batch: SeriesBatch,
    at: Tensor,
) -> StateError | None:
    """The same refusal for the first stream it is true of, by its name."""
    for place, stream in enumerate(at.tolist()):
        try:
            model.observe(state[[place]], times[place : place + 1], values[place : place + 1])
        except StateError as error:
            name = f"stream {batch.streams[stream]!r}, time {float(times[place])!r}"
            return StateError(str(error).replace("stream 0", name, 1))
    return None


def _continued(batch: SeriesBatch, before: Followed, counted: bool) -> SeriesBatch:
    """Series without names as those that are followed; positions in an array go on after a stream's last row."""
    if len(batch) != len(before):
        raise SeriesError(
            f"X has {len(batch)} streams without names, {len(before)} are followed: give each its rows, in their "
            "order, or a data frame or SeriesBatch that names the streams."
        )
    batch = replace(batch, streams=before.streams, numbered=False)
    if not counted:
        return batch
    last = torch.from_numpy(before.times).to(batch.times)
    return replace(batch, times=batch.times + last[:, None] + 1)


def _in_time_of(
    before: Followed, batch: SeriesBatch, origins: Mapping[str, float], time_unit: str
) -> tuple[SeriesBatch, dict[str, float]]:
    """Timestamps count from where they did before."""
    if bool(origins) != bool(before.origins):
        kinds = ["numbers", "timestamps"]
        raise SeriesError(
            f"times of X are {kinds[bool(origins)]}, those of the streams that are followed {kinds[not origins]}: give "
            "the same."
        )
    shift = [
        (origins[str(stream)] - before.origins.get(str(stream), origins[str(stream)]))
        / TIME_UNITS[time_unit]
        if origins
        else 0.0
        for stream in batch.streams
    ]
    moved = batch.times + torch.tensor(shift, dtype=torch.float64, device=batch.device)[:, None]
    return replace(batch, times=moved), {**origins, **before.origins}


def _check_order(batch: SeriesBatch, state: Any) -> None:
    last = state.time.to(batch.times)
    if bool((back := batch.times[:, 0] < last).any()):
        stream = int(back.nonzero()[0])
        raise SeriesError(
            f"stream {batch.streams[stream]!r}: time {float(batch.times[stream, 0])!r} lies before its last row at "
            f"{float(last[stream])!r}: give later rows alone."
        )
