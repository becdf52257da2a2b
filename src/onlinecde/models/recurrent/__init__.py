"""The recurrent baselines: a hidden state that is updated at rows."""

from onlinecde.models.recurrent.gru import GRU, GRUdt, GRUdtIntensity
from onlinecde.models.recurrent.gru_d import GRUD
from onlinecde.models.recurrent.ode_rnn import ODERNN
from onlinecde.models.recurrent.recurrent_model import RecurrentModel, RecurrentState

__all__ = [
    "GRU",
    "GRUD",
    "ODERNN",
    "GRUdt",
    "GRUdtIntensity",
    "RecurrentModel",
    "RecurrentState",
]
