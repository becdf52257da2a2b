"""Models under one contract: series in, predictions out, and the same numbers row by row."""

from onlinecde.models.alarm_policy import AlarmPolicy, AlarmPolicyError
from onlinecde.models.base import OnlineModel
from onlinecde.models.explain import Explanation
from onlinecde.models.frozen import FrozenCDE
from onlinecde.models.intervals import Intervals, IntervalsError
from onlinecde.models.neural_cde import NeuralCDE
from onlinecde.models.readout import Readout
from onlinecde.models.recurrent import (
    GRU,
    GRUD,
    ODERNN,
    GRUdt,
    GRUdtIntensity,
    RecurrentModel,
    RecurrentState,
)
from onlinecde.models.state import CDEState, StateError, StreamState

MODELS = {model.__name__: model for model in (GRU, GRUD, ODERNN, GRUdt, GRUdtIntensity, NeuralCDE)}
"""The models by name: what a saved model may be."""

__all__ = [
    "GRU",
    "GRUD",
    "MODELS",
    "ODERNN",
    "AlarmPolicy",
    "AlarmPolicyError",
    "CDEState",
    "Explanation",
    "FrozenCDE",
    "GRUdt",
    "GRUdtIntensity",
    "Intervals",
    "IntervalsError",
    "NeuralCDE",
    "OnlineModel",
    "Readout",
    "RecurrentModel",
    "RecurrentState",
    "StateError",
    "StreamState",
]
