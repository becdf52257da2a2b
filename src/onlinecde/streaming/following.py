"""What an engine holds: a model, a store, the streams in memory, and totals that are as durable as they are."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from onlinecde.models import NeuralCDE, OnlineModel, StreamState
from onlinecde.series import SeriesError
from onlinecde.streaming.codec import StateCodec
from onlinecde.streaming.errors import (
    CodecError,
    ModelMismatch,
    StoreBusy,
    StoreFull,
    StreamingError,
)
from onlinecde.streaming.events import Outcome, Refusal
from onlinecde.streaming.identity import ServedModel
from onlinecde.streaming.intake import Limits, numbers_of
from onlinecde.streaming.residents import BEFORE, Residents
from onlinecde.streaming.rounds import Live
from onlinecde.streaming.store import StateRecord, Store, StreamRecord

ASK_AGAIN = 2.0
"""Seconds after which a store that could not be reached is asked again where memory knows the answer"""
HORIZON = 1e5
"""Time scales (of the training times) from their mean beyond which a time is absurd"""


@dataclass(frozen=True)
class Settings:
    """What an engine was told; see `Engine`."""

    lateness: float
    ahead: float
    recent: int
    checkpoint_rows: int
    resident: int
    most_streams: int
    threshold: float | None
    output: int


@dataclass
class Totals:
    """Durable counts."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    alarms: int = 0
    streams: int = 0
    next_stream: int = 1
    channels: tuple[str, ...] = ()
    """Names of the channels that stored rows point to"""
    features: tuple[str, ...] = ()
    """Names of the static features streams were opened with; empty where they are not known"""

    def text(self) -> str:
        """As a store keeps them."""
        return json.dumps(
            {**vars(self), "outcomes": dict(self.outcomes), "refused": dict(self.refused)}
        )

    @classmethod
    def read(cls, text: str | None) -> Totals:
        """What `text` wrote."""
        if text is None:
            return cls()
        told = json.loads(text)
        counts = {name: Counter(told[name]) for name in ("outcomes", "refused")}
        names = {name: tuple(told.get(name, ())) for name in ("channels", "features")}
        return cls(**{**told, **counts, **names})

    def count(self, outcomes: np.ndarray, refusals: Mapping[int, Refusal], rows: int) -> Totals:
        """The totals after another micro-batch."""
        found = replace(self, outcomes=Counter(self.outcomes), refused=Counter(self.refused))
        found.rows += rows
        ended = np.bincount(outcomes, minlength=len(Outcome))
        found.outcomes.update({one.name.lower(): int(ended[one]) for one in Outcome})
        found.refused.update(refusal.code for refusal in refusals.values())
        return found


class Following:
    """A model that follows the streams of a store; nothing here locks."""

    def __init__(
        self, served: ServedModel, store: Store, settings: Settings, horizon: float | None
    ):
        self.served, self.model, self.store, self.settings = served, served.model, store, settings
        self.live: Live = served.model.frozen()
        if self.model.device.type != "cpu" and not isinstance(self.model, NeuralCDE):
            raise StreamingError(
                f"the engine runs a {type(self.model).__name__} on the CPU: give it model.cpu().",
                "model_device",
            )
        self.limits = limits_of(self.model, horizon)
        self.codes = {name: number for number, name in enumerate(served.channels)}
        static = self.model.static
        with torch.no_grad():
            blank = self.model.init_state(1, torch.zeros(1, static) if static else None)
        self.blank: StreamState = blank.to("cpu")
        self.codec = StateCodec(self.blank, served.hash)
        self.residents = Residents(self.blank, self.model.outputs, settings.recent)
        self.static: dict[int, tuple[float, ...]] = {}
        self.sequence, self.totals = -1, Totals()
        self.doubtful = True
        """Whether what is in memory may not be what is in the store"""
        self.torn = False
        """Whether memory is being brought up to date; after a failure, that it is neither old nor new"""
        self._ask_again = 0.0

    def settle(self) -> None:
        """Begin from what is in the store, if a commit failed or none was made yet."""
        if not self.doubtful:
            return
        head = self.store.head()
        self._ask_again = 0.0
        if head.model is not None and head.model != self.served.hash:
            raise ModelMismatch(
                f"the store belongs to model {head.model[:12]}, this is {self.served.hash[:12]}: serve "
                "that model, or give rebuild=True (`onlinecde serve --rebuild`) to integrate its stored rows "
                "again under this one."
            )
        if head.model is None:
            self.store.adopt(self.served.hash)
        if head.sequence == self.sequence:
            # Nothing was committed, and memory changes only after that.
            self._drop_unopened()
            self.doubtful = False
            return
        self.sequence, self.totals = head.sequence, Totals.read(head.totals)
        self.totals.channels = self.served.channels
        self.totals.features = self.served.schema.features
        self.residents = Residents(self.blank, self.model.outputs, self.settings.recent)
        self.static = {}
        self.doubtful = self.torn = False

    def settle_to_read(self) -> None:
        """`settle`; but where the store is away for now, memory still has what was acknowledged last."""
        torn = self.torn or self.sequence < 0
        if not self.doubtful or (not torn and time.monotonic() < self._ask_again):
            return
        try:
            self.settle()
        except (StoreBusy, StoreFull):
            if torn:
                raise
            self._drop_unopened()
            self._ask_again = time.monotonic() + ASK_AGAIN

    def _drop_unopened(self) -> None:
        """Drop the streams that a commit was to open."""
        numbers, slots = self.residents.number, list(self.residents.slot_of.values())
        self.drop([slot for slot in slots if numbers[slot] >= self.totals.next_stream])

    def preload(self) -> None:
        """Bring the streams changed last into memory, as many as may be there."""
        self.load(self.store.streams(self.store.newest(self.settings.resident)))

    def load(self, streams: Sequence[StreamRecord]) -> dict[str, StreamingError]:
        """Bring streams of the store into memory, each as it was; by name, those that cannot be read."""
        stored = {state.stream: state for state in self.store.states([s.number for s in streams])}
        begun = [stream for stream in streams if stream.number in stored]
        unreadable: dict[str, StreamingError] = {}
        states = None
        try:
            if begun:
                states = self.codec.decode([stored[stream.number].body for stream in begun])
        except StreamingError as error:
            if len(streams) == 1:
                return {streams[0].name: error}
            for stream in streams:
                unreadable |= self.load([stream])
            return unreadable
        self.add(streams)
        if states is not None:
            self._show(begun, stored, states)
        return unreadable

    def _show(
        self, streams: list[StreamRecord], stored: dict[int, StateRecord], states: StreamState
    ) -> None:
        """Give streams in memory the states they have in the store."""
        held = self.residents
        slots = np.array([held.slot_of[stream.name] for stream in streams])
        found = [stored[stream.number] for stream in streams]
        held.rows[slots] = [state.rows for state in found]
        held.since[slots] = [state.since for state in found]
        held.first[slots] = [state.first for state in found]
        held.last[slots] = [state.time for state in found]
        held.received[slots] = [state.received for state in found]
        held.previous[slots] = np.array([state.previous for state in found], np.float64)
        said = np.frombuffer(b"".join(state.outputs for state in found), "<f8")
        held.outputs[slots] = said = said.reshape(len(found), self.model.outputs)
        held.watched[slots] = self.watched(said)
        held.checkpointed[slots] = np.inf  # not looked up: a cut is asked for in any case
        held.kept[slots] = 0
        held.push(slots, held.last[slots], states)

    def add(self, streams: Sequence[StreamRecord]) -> list[int]:
        """Slots for streams, each in the state before its first row."""
        held, slots = self.residents, []
        for stream in streams:
            slot = held.add(stream.name, stream.number, stream.origin)
            held.touched[slot] = self.sequence
            if stream.static is not None:
                self.static[slot] = tuple(np.frombuffer(stream.static, "<f8").tolist())
            slots.append(slot)
        if slots:
            chosen = np.array(slots)
            if self.model.static:
                # One by one: what static features come to may round differently in a batch.
                states = type(self.blank).concatenate([self.begin(slot) for slot in slots])
            else:
                states = self.blank[torch.zeros(len(slots), dtype=torch.int64)]
            held.push(chosen, np.full(len(slots), BEFORE), states)
        return slots

    def begin(self, slot: int) -> StreamState:
        """The state of a stream before its first row."""
        static = self.static.get(slot)
        with torch.no_grad():
            return self.model.init_state(1, None if static is None else [static]).to("cpu")

    def bring(self, names: Sequence[str]) -> dict[str, StreamingError]:
        """Bring streams into memory where the store has them; by name, those that cannot be read."""
        slot_of = self.residents.slot_of
        away = [name for name in dict.fromkeys(names) if name not in slot_of]
        if not away:
            return {}
        return self.load([stream for stream in self.store.find(away) if stream is not None])

    def slot(self, name: str) -> int:
        """The slot of a stream, brought into memory where the store has it; -1 for an unknown one."""
        unreadable = self.bring([name])
        if name in unreadable:
            raise CodecError(
                f"stream {name!r}: {unreadable[name]} `engine.repair(stream)` integrates its stored rows again; "
                "`forget` (DELETE) drops it."
            )
        return self.residents.slot_of.get(name, -1)

    def check_static(self, name: str, static: Any) -> tuple[bytes | None, Refusal | None]:
        """Static features of a new stream as stored, or what is wrong with them; raw values by name, or numbers."""
        wanted = self.model.static
        if isinstance(static, Mapping) and self.served.schema.static:
            try:
                static = self._encode(name, static)[0][0]
            except SeriesError as error:
                return None, Refusal("static_bad", "static", str(error))
        if static is None:
            if not wanted:
                return None, None
            return None, Refusal(
                "static_needed",
                "static",
                f"stream {name!r} is new and the model takes {wanted} static features: open it with them.",
            )
        try:
            told = static if isinstance(static, list | tuple) else np.asarray(static)
            features, strange = numbers_of(told)
            sound = strange is None and features.shape == (wanted,)
            sound = sound and bool(np.isfinite(features).all())
            sound = sound and bool((np.abs(features) <= self.limits.largest).all())
        except (TypeError, ValueError, OverflowError):
            sound, features = False, np.empty(0)
        if not sound or not wanted:
            return None, Refusal(
                "static_bad",
                "static",
                f"stream {name!r}: give {wanted} finite numbers as static features.",
            )
        return features.astype("<f8").tobytes(), None

    def static_notes(self, name: str, static: Any) -> tuple[str, ...]:
        """What is worth saying of static features that `check_static` took."""
        named = isinstance(static, Mapping) and self.served.schema.static
        return self._encode(name, static)[1] if named else ()

    def _encode(self, name: str, static: Mapping[str, Any]) -> tuple[np.ndarray, tuple[str, ...]]:
        """Raw values of one stream as numbers in the model's order (1, feature), and notes."""
        return self.served.schema.encode({key: [one] for key, one in static.items()}, [name])

    def drop(self, slots: Sequence[int]) -> None:
        """Drop streams from memory."""
        for slot in slots:
            self.static.pop(slot, None)
        self.residents.drop(slots)

    def make_room(self) -> None:
        """Drop the streams idle longest where there are too many in memory."""
        over = len(self.residents) - self.settings.resident
        if over > 0:
            self.drop(self.residents.longest_idle(over + self.settings.resident // 10).tolist())

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs (..., output) as probabilities, by the readout's kind."""
        head = getattr(self.model, "readout", None)
        if head is None:
            return np.asarray(outputs, np.float64)
        with torch.no_grad():
            return head.probabilities(torch.from_numpy(np.array(outputs, np.float64))).numpy()

    def watched(self, outputs: np.ndarray) -> np.ndarray:
        """The probability alarms look at, (...,) of outputs (..., output)."""
        return self.probabilities(outputs)[..., self.settings.output]


def limits_of(model: OnlineModel, horizon: float | None) -> Limits:
    """What times and values a model can take; horizon as in `Engine`."""
    encoding = getattr(model, "encoding", None)
    middle = 0.0 if encoding is None else float(encoding.time_shift)
    scale = 1.0 if encoding is None else float(encoding.time_scale)
    reach = HORIZON * scale if horizon is None else horizon
    if not reach > 0:
        raise StreamingError(f"horizon is {reach}: give a positive time.", "setting_bad")
    return Limits(middle - reach, middle + reach, float(torch.finfo(model.dtype).max))
