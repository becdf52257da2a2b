"""A model that is asked, with what its folder says of the run it comes from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from onlinecde.artifacts import load, read_manifest
from onlinecde.controls import Measurability
from onlinecde.data import DataError
from onlinecde.data.forecasting import forecast_name
from onlinecde.data.queries import duration
from onlinecde.evaluation.predictions import as_probabilities
from onlinecde.models import OnlineModel
from onlinecde.models.forecasts import LEVELS
from onlinecde.series import Schema
from onlinecde.training.journal import model_folder
from onlinecde.training.task_source import table_of

EARLY = (
    "the model learned one label a stream, asked at its end: in mid-stream it answers as if the stream ended there; "
    "fit --setting at=rows+end teaches it along the way"
)
"""What is worth saying where a model of one label a stream is asked before its end"""


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A model, the names of its outputs, and the columns it was fitted with."""

    model: OnlineModel
    schema: Schema
    identity: str
    """Changes with its weights"""
    classes: tuple[str, ...] = ()
    per: str = "row"
    """What a label was for: stream, row or time"""
    taught_at: str = "task"
    """When it was asked in training, as `FitSettings.at` says it"""
    columns: Mapping[str, Any] = field(default_factory=dict)
    time_unit: str = "hours"
    horizon: float | None = None
    """Of a model of time to an event, in `time_unit`: how far ahead it is asked"""

    def within(self, horizon: str | float | None) -> FittedModel:
        """The same, asked for the risk within a horizon: a number, or a length of time such as "12h"."""
        bins = self.model.readout.bins
        if bins is None:
            if horizon is not None:
                raise DataError(
                    f"a horizon is for models of the time to an event, and this one is of kind {self.kind!r}: "
                    "leave it out."
                )
            return self
        if isinstance(horizon, str):
            horizon = duration(horizon, self.time_unit)
        return replace(self, horizon=bins.check_horizon(horizon))

    @classmethod
    def of(cls, model: OnlineModel | str | os.PathLike[str], device: str = "cpu") -> FittedModel:
        """The model of a run's folder, of a model's folder, or one that is there already."""
        if isinstance(model, OnlineModel):
            digest = hashlib.sha256()
            for name, tensor in model.state_dict().items():
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
            return cls(model, _schema(model, "the model"), digest.hexdigest())
        home = model_folder(model)
        manifest, ready = read_manifest(home), load(home).to(device)
        schema, extra = _schema(ready, str(home)), manifest.extra
        source = extra.get("task")
        source = table_of(source) if isinstance(source, dict) else {}
        run = dict(source["arguments"]) if source.get("source") == "table" else {}
        return cls(
            ready,
            schema,
            manifest.sha256,
            tuple(map(str, extra.get("classes") or ())),
            str(extra.get("per", "row")),
            str((extra.get("settings") or {}).get("at", "task")),
            run,
            time_unit=schema.time_unit or str(extra.get("time_unit") or "hours"),
        )

    @property
    def kind(self) -> str:
        """What its outputs are."""
        return self.model.readout.kind

    @property
    def default_at(self) -> str:
        """When it is asked unless somebody says otherwise: once a stream where it had one label a stream."""
        return "end" if self.per == "stream" else "rows"

    @property
    def score_columns(self) -> list[str]:
        """Names of the columns that its answers fill, as `scores` gives them."""
        if self.kind == "forecast":
            return [f"{name} q{level:g}" for name in self._forecast_names for level in LEVELS]
        stem = "prediction" if self.kind == "regression" else "probability"
        if self.model.outputs == 1 or self.horizon is not None:
            ends = [""]
        else:
            named = len(self.classes) == self.model.outputs
            ends = [f"_{name}" for name in (self.classes if named else range(self.model.outputs))]
        stems = [stem, "lower", "upper"] if self._has_intervals else [stem]
        return [f"{one}{end}" for one in stems for end in ends]

    @property
    def _forecast_names(self) -> tuple[str, ...]:
        """Channel and horizon of each forecast."""
        own: Any = self.model.readout.forecasts
        each = zip(own.channel.tolist(), own.horizon.tolist(), strict=True)
        pairs = [(self.schema.channels[place], horizon) for place, horizon in each]
        return tuple(forecast_name(*pair, self.time_unit) for pair in pairs)

    @property
    def _has_intervals(self) -> bool:
        return self.kind == "regression" and getattr(self.model, "intervals", None) is not None

    def scores(self, outputs: Tensor) -> Tensor:
        """Raw outputs (..., output) as what stands in `score_columns`, float64."""
        model: Any = self.model
        if self.horizon is not None:
            return model.readout.bins.risk_within(outputs.double(), self.horizon)[..., None]
        scores = as_probabilities(model.readout, outputs)
        if self._has_intervals:
            scores = torch.cat([scores, *model.interval(scores)], -1)
        return scores

    def answers_early(self) -> str | None:
        """What is worth saying of answers before the end of a stream; None where it was taught there."""
        if self.per != "stream" or self.taught_at not in ("task", "end"):
            return None
        return EARLY

    def answers_between(self) -> str | None:
        """What is worth saying of its answers at times without a row; None where they are as good as any."""
        match self.model.measurability:
            case Measurability.CONTINUOUS:
                return None
            case Measurability.DISCRETE if self.model.asking == "empty-rows":
                return "the model answers at rows: at times without one it is given an empty row, which stays"
            case Measurability.DISCRETE:
                return "the model answers at rows: between them, and after the last, its last answer stands"
            case _:
                return "the model uses the whole of a stream: its answers know what came later"


def _schema(model: OnlineModel, where: str) -> Schema:
    if model.schema is None:
        raise DataError(
            f"{where} does not name its channels, so that no column can be found: set model.schema = "
            "Schema(channels=(...)), and save it again."
        )
    return model.schema
