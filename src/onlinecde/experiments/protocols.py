"""Two ways to run a table, never mixed: what the paper's code did, and done right. And budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onlinecde.training import PAPER, FitSettings

PLAIN: Mapping[str, Any] = {
    "field_sees_path": False,
    "readout_sees_path": False,
    "readout_ramps": 0,
    "readout_width": None,
    "readout_members": 1,
    "static_in_path": False,
    "rank": None,
    "restoring": 0.0,
    "channel_dropout": 0.0,
    "gain": 1.0,
    "count_gain": 1.0,
}
"""The paper's Neural CDE, whatever `fit` would choose by itself for series with gaps."""


@dataclass(frozen=True)
class Protocol:
    """How every cell of a table is run."""

    name: str
    what: str
    fit: FitSettings
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of a model by its name; "other" for those not named."""
    adaptive: bool = False
    """Train with a table's adaptive steps. Otherwise training takes rk4, and the adaptive solver
    counts the evaluations of one epoch of the trained model."""
    batch_rmse: bool = False
    """RMSE as the mean over batches, not over the set."""

    def model(self, name: str) -> dict[str, Any]:
        """The settings that the protocol gives a model."""
        return dict(self.models.get(name, self.models.get("other", {})))


PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="paper",
            what="what the paper's code did: scaled before the split, chosen by validation loss, "
            "mean of the batches' RMSEs, and each column's slips",
            fit=PAPER,
            models={
                "neural-cde": {
                    **PLAIN,
                    "activation": "relu",
                    "clip": None,
                    "count_scale": "linear",
                },
                "other": {"clip": None},
            },
            adaptive=True,
            batch_rmse=True,
        ),
        Protocol(
            name="clean",
            what="done right: scaled by the training split, chosen by the validation metric, one "
            "RMSE over the set, static features and true times for every model",
            fit=FitSettings(epochs=60, plateau=5, stop=12, monitor="metric"),
            models={
                "neural-cde": {**PLAIN, "activation": "silu", "clip": 5.0},
                "other": {"clip": 5.0},
            },
        ),
    )
}


@dataclass(frozen=True)
class Budget:
    """How much of a table is run; None: all of it."""

    name: str
    what: str
    epochs: int | None = None
    streams: int | None = None
    rows: int | None = None
    size: int | None = None
    """The most `hidden` and `width` may be."""
    seeds: int | None = None
    """How many of the table's seeds."""


BUDGETS: Mapping[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke",
            "60 streams, 40 rows, 2 epochs, one seed: shows that everything runs",
            epochs=2,
            streams=60,
            rows=40,
            size=8,
            seeds=1,
        ),
        Budget(
            "small",
            "600 streams, 12 epochs, one seed: a first impression",
            epochs=12,
            streams=600,
            size=64,
            seeds=1,
        ),
        Budget("full", "the table as it stands"),
    )
}
