"""The streams in memory: a slot each, their newest states side by side in a few large tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from onlinecde.models import StreamState

BEFORE = float("-inf")
"""Time of the state before a stream's first row"""


class Residents:
    """A slot for each stream in memory; slot s keeps its newest states at places `s * recent` and on.

    The places of a slot are a ring: `at` is the newest, `kept` how many hold a state, `times` when.
    """

    def __init__(self, blank: StreamState, outputs: int, recent: int) -> None:
        self.recent = recent
        self.slot_of: dict[str, int] = {}
        self.names: list[str] = []
        self.free: list[int] = []
        self.capacity = 0
        """Slots there are; doubled when they run out"""
        self.states = blank
        """State of capacity * recent streams: field by field, written in place"""
        self.number = np.empty(0, np.int64)
        self.rows = np.empty(0, np.int64)
        self.since = np.empty(0, np.int64)
        self.first = np.empty(0)
        self.last = np.empty(0)
        self.previous = np.empty(0)
        self.watched = np.empty(0)
        self.received = np.empty(0)
        self.origin = np.empty(0)
        self.checkpointed = np.empty(0)
        self.touched = np.empty(0, np.int64)
        self.outputs = np.empty((0, outputs))
        self.times = np.empty((0, recent))
        self.at = np.empty(0, np.int64)
        self.kept = np.empty(0, np.int64)
        self._grow(64)

    def __len__(self) -> int:
        return len(self.slot_of)

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        for name in (
            "number",
            "rows",
            "since",
            "first",
            "last",
            "previous",
            "watched",
            "received",
            "origin",
            "checkpointed",
            "touched",
            "outputs",
            "times",
            "at",
            "kept",
        ):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((more, *old.shape[1:]), old.dtype)]))

        def wider(old: Tensor) -> Tensor:
            room = (capacity * self.recent, *old.shape[1:])
            new = torch.zeros(room, dtype=old.dtype, device=old.device)
            if self.capacity:
                new[: len(old)] = old
            return new

        self.states = self.states._map(wider)
        self.free += range(capacity - 1, self.capacity - 1, -1)
        self.names += [""] * more
        self.capacity = capacity

    def add(self, name: str, number: int, origin: float | None) -> int:
        """A slot for a stream, still without any state."""
        if not self.free:
            self._grow(2 * self.capacity)
        slot = self.free.pop()
        self.names[slot], self.slot_of[name] = name, slot
        self.number[slot], self.origin[slot] = number, np.nan if origin is None else origin
        self.rows[slot] = self.since[slot] = 0
        self.first[slot] = self.received[slot] = np.nan
        self.last[slot] = BEFORE
        self.previous[slot] = self.watched[slot] = np.nan
        self.outputs[slot] = np.nan
        self.checkpointed[slot] = BEFORE
        self.kept[slot], self.at[slot] = 0, self.recent - 1
        return slot

    def drop(self, slots: Sequence[int]) -> None:
        """Free slots."""
        for slot in slots:
            del self.slot_of[self.names[slot]]
            self.names[slot] = ""
            self.free.append(slot)

    def newest(self, slots: np.ndarray) -> StreamState:
        """The newest state of each of some streams."""
        return self.state_at(slots * self.recent + self.at[slots])

    def state_at(self, places: np.ndarray) -> StreamState:
        """States at some places."""
        index = torch.from_numpy(places)
        return self.states._map(lambda tensor: tensor.index_select(0, index))

    def push(self, slots: np.ndarray, times: np.ndarray, state: StreamState) -> None:
        """A newer state for each of some streams, none of them named twice."""
        at = (self.at[slots] + 1) % self.recent
        self.at[slots] = at
        self.kept[slots] = np.minimum(self.kept[slots] + 1, self.recent)
        self.times[slots, at] = times
        index = torch.from_numpy(slots * self.recent + at)
        for one in fields(self.states):
            held = getattr(self.states, one.name)
            if held is not None:
                held.index_copy_(0, index, getattr(state, one.name))

    def place_before(self, slot: int, time: float) -> int | None:
        """Place of the newest state kept that is from before a time; None where none is."""
        for back in range(int(self.kept[slot])):
            at = (int(self.at[slot]) - back) % self.recent
            if self.times[slot, at] < time:
                return slot * self.recent + at
        return None

    def cut(self, slot: int, time: float) -> None:
        """Drop the states from a time on."""
        while self.kept[slot] and self.times[slot, self.at[slot]] >= time:
            self.kept[slot] -= 1
            self.at[slot] = (self.at[slot] - 1) % self.recent

    def longest_idle(self, many: int) -> np.ndarray:
        """Slots of the streams that were touched longest ago."""
        slots = np.fromiter(self.slot_of.values(), np.int64, len(self.slot_of))
        return slots[np.argsort(self.touched[slots], kind="stable")[:many]]
