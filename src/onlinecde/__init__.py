"""Online prediction from irregular, partly observed time series with Neural CDEs.

`import onlinecde as oc`: series (`oc.SeriesBatch`), control paths (`oc.controls`), the solver
(`oc.solve`), models (`oc.NeuralCDE` and the baselines), training (`oc.fit`, `oc.evaluate`), live
streams (`oc.streaming`), and promises that can be measured (`oc.audit`). Names are loaded when
first used, so that the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onlinecde import extras
from onlinecde.version import __version__

if TYPE_CHECKING:
    from onlinecde import audit, controls, data, evaluation, scale, streaming, training, tuning
    from onlinecde.artifacts import load, save
    from onlinecde.controls import Encoding, Measurability, recommend
    from onlinecde.evaluation import evaluate
    from onlinecde.models import GRU, GRUD, ODERNN, GRUdt, GRUdtIntensity, NeuralCDE
    from onlinecde.scoring import predict
    from onlinecde.series import Schema, SchemaWarning, SeriesBatch, SeriesError
    from onlinecde.solvers import MLPField, Solver, SolverError, VectorField, solve
    from onlinecde.training import fit

_HOMES = {
    "GRU": "models",
    "GRUD": "models",
    "GRUdt": "models",
    "GRUdtIntensity": "models",
    "ODERNN": "models",
    "Encoding": "controls",
    "MLPField": "solvers",
    "Measurability": "controls",
    "NeuralCDE": "models",
    "Schema": "series",
    "SchemaWarning": "series",
    "SeriesBatch": "series",
    "SeriesError": "series",
    "Solver": "solvers",
    "SolverError": "solvers",
    "VectorField": "solvers",
    "evaluate": "evaluation",
    "fit": "training",
    "load": "artifacts",
    "predict": "scoring",
    "recommend": "controls",
    "save": "artifacts",
    "solve": "solvers",
}
_MODULES = (
    "audit",
    "controls",
    "data",
    "evaluation",
    "kernels",
    "models",
    "scale",
    "series",
    "solvers",
    "streaming",
    "training",
    "tuning",
)

__all__ = [
    "GRU",
    "GRUD",
    "ODERNN",
    "Encoding",
    "GRUdt",
    "GRUdtIntensity",
    "MLPField",
    "Measurability",
    "NeuralCDE",
    "Schema",
    "SchemaWarning",
    "SeriesBatch",
    "SeriesError",
    "Solver",
    "SolverError",
    "VectorField",
    "__version__",
    "audit",
    "controls",
    "data",
    "evaluate",
    "evaluation",
    "fit",
    "load",
    "predict",
    "recommend",
    "save",
    "scale",
    "solve",
    "streaming",
    "training",
    "tuning",
]


extras.install()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"onlinecde.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"onlinecde.{name}")
    else:
        raise AttributeError(f"module 'onlinecde' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
