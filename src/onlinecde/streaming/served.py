"""The served model: its weights, its channels by name, a hash of them all, and what a new stream must bring."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as write_tensors

from onlinecde.artifacts import load, read_manifest
from onlinecde.controls import Measurability
from onlinecde.models import NeuralCDE, OnlineModel, StreamState
from onlinecde.models.base import MOVED
from onlinecde.models.flat_settings import PLACES, flat_of
from onlinecde.models.forecasts import points
from onlinecde.models.time_bins import TimeBins, risk_at
from onlinecde.series import Schema, SeriesError
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.events import Refusal
from onlinecde.streaming.pipeline.integrate import Live
from onlinecde.streaming.pipeline.validate import numbers_of

USUAL: dict[tuple[str, str], Any] = {
    ("field", "final"): "tanh",
    ("readout", "layers"): None,
    ("readout", "trees"): None,
}
"""Settings that 0.1 did not have, as they were there"""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model ready to follow streams."""

    model: OnlineModel
    channels: tuple[str, ...]
    units: tuple[str, ...] | None
    hash: str
    schema: Schema
    """Names of its channels, as above, and of its static features"""

    @cached_property
    def live(self) -> Live:
        """The model as it is now, frozen: what follows streams."""
        return self.model.frozen()

    @cached_property
    def codes(self) -> dict[str, int]:
        """Channel name -> position."""
        return {name: position for position, name in enumerate(self.channels)}

    @property
    def kind(self) -> str:
        """What its outputs mean: binary, regression, ..."""
        return getattr(getattr(self.model, "readout", None), "kind", "regression")

    @property
    def bins(self) -> TimeBins | None:
        """Of a model of time to an event, its bins."""
        return getattr(getattr(self.model, "readout", None), "bins", None)

    @property
    def forecasts(self) -> tuple[tuple[str, float], ...] | None:
        """Channel and horizon of each forecast, of a model that forecasts."""
        own = getattr(getattr(self.model, "readout", None), "forecasts", None)
        if own is None:
            return None
        each = zip(own.channel.tolist(), own.horizon.tolist(), strict=True)
        return tuple((self.channels[place], horizon) for place, horizon in each)

    def horizon(self, given: float | None = None) -> float | None:
        """A horizon that the model answers for, default: its first; None for a model without horizons."""
        if self.bins is None:
            if given is None:
                return None
            raise StreamingError(
                f"a horizon is asked for, and the model is {self.kind}: ask for one of a time-to-event model.",
                "horizon_bad",
            )
        try:
            return self.bins.check_horizon(given)
        except ValueError as error:
            raise StreamingError(str(error), "horizon_bad") from error

    def risks(self, probabilities: np.ndarray, horizon: float | None = None) -> np.ndarray:
        """What is watched: P(event within the horizon), (..., 1), of risks by the end of each bin; the middle of each
        forecast, (..., forecast), of quantiles; others' probabilities as they are.
        """
        if self.forecasts is not None:
            return points(probabilities)
        if self.bins is None:
            return probabilities
        asked = torch.tensor([self.horizon(horizon)], dtype=torch.float64)
        given = torch.from_numpy(np.array(probabilities, np.float64))
        return risk_at(given, self.bins.edges.cpu(), asked).numpy()

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs (..., output) as probabilities, by the readout's kind."""
        readout = getattr(self.model, "readout", None)
        if readout is None:
            return np.asarray(outputs, np.float64)
        with torch.no_grad():
            return readout.probabilities(torch.from_numpy(np.array(outputs, np.float64))).numpy()

    def check_device(self) -> None:
        """Refuse a model on a device where live streams cannot be followed."""
        if self.model.device.type != "cpu" and not isinstance(self.model, NeuralCDE):
            raise StreamingError(
                f"the engine runs a {type(self.model).__name__} on the CPU: give it model.cpu().",
                "model_device",
            )

    def begin(self, static: Sequence[float] | None) -> StreamState:
        """The state of one stream before its first row, in main memory.

        One stream at a time: what static features come to may round differently in a batch.
        """
        with torch.no_grad():
            return self.model.init_state(1, None if static is None else [static]).to("cpu")

    def check_static(self, stream: str, static: Any) -> tuple[bytes | None, Refusal | None]:
        """Check the static features of a new stream.

        Args:
            stream: its name, for the message.
            static: raw values by name, or numbers in the model's order; None for none.

        Returns:
            The features as a store keeps them, or what is wrong with them.
        """
        expected = self.model.static
        if isinstance(static, Mapping) and self.schema.static:
            try:
                static = self._encode(stream, static)[0][0]
            except SeriesError as error:
                return None, Refusal("static_bad", "static", str(error))
        if static is None:
            if not expected:
                return None, None
            return None, Refusal(
                "static_needed",
                "static",
                f"stream {stream!r} is new and the model takes static features: {self.schema.ask_static(expected)}",
            )
        largest = float(torch.finfo(self.model.dtype).max)
        try:
            column = static if isinstance(static, list | tuple) else np.asarray(static)
            features, strange = numbers_of(column)
            sound = strange is None and features.shape == (expected,)
            sound = sound and bool(np.isfinite(features).all())
        except (TypeError, ValueError, OverflowError):
            sound, features = False, np.empty(0)
        remedy = ""
        if not sound or not expected:
            remedy = self.schema.ask_static(expected)
        elif float(np.abs(features).max()) > largest:
            remedy = f"a static feature is beyond {largest:.2g}, the most the model can hold."
        if remedy:
            return None, Refusal("static_bad", "static", f"stream {stream!r}: {remedy}")
        return features.astype("<f8").tobytes(), None

    def static_notes(self, stream: str, static: Any) -> tuple[str, ...]:
        """Remarks on static features that `check_static` accepted, such as an unknown category."""
        named = isinstance(static, Mapping) and self.schema.static
        return self._encode(stream, static)[1] if named else ()

    def _encode(self, stream: str, static: Mapping[str, Any]) -> tuple[np.ndarray, tuple[str, ...]]:
        """Raw values of one stream as numbers in the model's order (1, feature), and remarks."""
        return self.schema.encode({key: [one] for key, one in static.items()}, [stream])


def served_model(
    model: OnlineModel | str | os.PathLike[str], channels: Sequence[str] | None = None
) -> ServedModel:
    """A model that can follow streams, as `named_model` finds it; one that cannot is refused."""
    named = named_model(model, channels)
    if named.model.measurability is Measurability.OFFLINE:
        raise StreamingError(
            "this model needs the whole series (its control is natural_cubic), so it cannot follow "
            "streams: train one with control='rectilinear'.",
            "model_offline",
        )
    return named


def named_model(
    model: OnlineModel | str | os.PathLike[str], channels: Sequence[str] | None = None
) -> ServedModel:
    """A folder that `save` wrote, or a model with names for its channels; the same model, the same hash.

    Channels without names are named by their positions: "0", "1", ...; static features then have no names.
    """
    units = None
    if isinstance(model, OnlineModel):
        loaded = model.eval()
    else:
        loaded, units = load(model), read_manifest(model).units
    schema = loaded.schema or Schema(())
    if channels is None and schema.channels:
        channels = schema.channels
    names = tuple(
        channels if channels is not None else (str(number) for number in range(loaded.channels))
    )
    if len(names) != loaded.channels or len(set(names)) != len(names):
        raise StreamingError(
            f"{len(set(names))} different names for {loaded.channels} channels: give one for each.",
            "channels_bad",
        )
    schema = replace(schema, channels=names)
    config, weights = _content(loaded)
    content_hash = _hash(type(loaded).__name__, config, weights, names)
    return ServedModel(loaded, names, units, content_hash, schema)


def _content(model: OnlineModel) -> tuple[dict[str, Any], str]:
    """A model's settings and a digest of its weights, in the form of 0.1: stores know their model by them."""
    config: dict[str, Any] = dict(getattr(model, "config", {}))
    known = set(PLACES.values())
    later = {
        (part, name): setting
        for part, settings in config.items()
        if isinstance(settings, Mapping) and "class" not in settings
        for name, setting in settings.items()
        if (part, name) not in known
    }
    if later.items() <= USUAL.items():
        config = flat_of(config)
    tensors = {
        _name_in_0_1(name): tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
    }
    return config, hashlib.sha256(write_tensors(tensors)).hexdigest()


def _name_in_0_1(name: str) -> str:
    """The name of a tensor in a file of 0.1."""
    for before, now in sorted(MOVED.items(), key=lambda moved: -len(moved[1])):
        if name.startswith(now):
            return before + name[len(now) :]
    return name


def _hash(kind: str, config: dict[str, Any], weights: str, channels: Sequence[str]) -> str:
    content = {"model": kind, "config": config, "weights": weights, "channels": list(channels)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
