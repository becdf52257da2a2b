"""Models under one contract: series in, predictions out, and the same numbers row by row."""

from onlinecde.models.contract import OnlineModel, StateError, StreamState
from onlinecde.models.explain import Explanation
from onlinecde.models.gru import GRU, GRUdt, GRUdtIntensity
from onlinecde.models.gru_d import GRUD
from onlinecde.models.heads import Head
from onlinecde.models.neural_cde import CDEState, NeuralCDE
from onlinecde.models.ode_rnn import ODERNN
from onlinecde.models.recurrent import RecurrentModel, RecurrentState

MODELS = {model.__name__: model for model in (GRU, GRUD, ODERNN, GRUdt, GRUdtIntensity, NeuralCDE)}
"""The models by name: what a saved model may be."""

__all__ = [
    "GRU",
    "GRUD",
    "MODELS",
    "ODERNN",
    "CDEState",
    "Explanation",
    "GRUdt",
    "GRUdtIntensity",
    "Head",
    "NeuralCDE",
    "OnlineModel",
    "RecurrentModel",
    "RecurrentState",
    "StateError",
    "StreamState",
]
