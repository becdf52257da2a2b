"""A model for a task by name: sizes from the task, the rest from defaults or from the caller."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import torch

from onlinecde.controls import recommend
from onlinecde.data import Task
from onlinecde.models import MODELS, NeuralCDE, OnlineModel
from onlinecde.models.flat_settings import maker
from onlinecde.series import SeriesBatch
from onlinecde.training.setting_types import remedy
from onlinecde.training.settings import FitError

ALIASES = {"ncde": "NeuralCDE", "cde": "NeuralCDE"}

RESTORING, PULL = 0.75, 1.25
"""Where z is to forget: the rate at which it is pulled back at first, and how far at most by one row;
counts move by as little as that asks for. What a field sees of X raises the rate up to 2.2 times, for so
much are silu'(a) + silu'(b) at most, and a step of rk4 is stable up to 2.78."""

ROUGH = 2_000
"""How far complete series may move, as `_roughness` has it, before z is to forget. A plain field's z moves by
as much as its root, and so do gradients grow along it."""

TOGETHER = 40
"""Channels that may be observed in one row before values are made to move by less: a step of the optimiser
changes all columns of the field at once, and z by what they move together."""

LOOKED_AT = 100
"""Streams, evenly spaced, that `_roughness` looks at."""

READ = 1_200
"""Numbers that a readout may see before it is taught more slowly: a step of the optimiser changes all their weights
at once, and outputs by what those add up to. With 10,000 one step took them 9 deviations too far."""

MANY = 200_000
"""From so many labels at training rows on, the readout is the mean of several members. They learn more
slowly than one and go further: better with the 550,000 of PhysioNet 2019, worse with one label for each
of PhysioNet 2012's 5,600 patients; in between nothing was tried."""


def model_class(name: str) -> type[OnlineModel]:
    """Look a model up by name; case and hyphens do not matter.

    >>> model_class("gru-d").__name__
    'GRUD'
    """
    plain = name.lower().replace("-", "").replace("_", "")
    found = {known.lower(): cls for known, cls in MODELS.items()}
    found |= {alias: MODELS[known] for alias, known in ALIASES.items()}
    if plain not in found:
        raise FitError(f"there is no model {name!r}: choose one of {', '.join(MODEL_NAMES)}.")
    return found[plain]


MODEL_NAMES = ("neural-cde", "gru", "gru-dt", "gru-dt-intensity", "gru-d", "ode-rnn")


def check_names(name: str, settings: Iterable[str]) -> None:
    """Refuse settings a model does not have, with those it has."""
    cls = model_class(name)
    allowed = inspect.signature(maker(cls.__name__)).parameters
    for setting in settings:
        if setting not in allowed:
            near = difflib.get_close_matches(setting, allowed, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(allowed)}."
            raise FitError(f"{cls.__name__} has no setting {setting!r}: {hint}")


def model_settings(task: Task, name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All constructor arguments of a model for a task; what is given wins over defaults.

    The control of a Neural CDE is the one recommended for predictions at any time; where no value
    is ever missing, counts would only repeat the row number and are left out, unless series are so long
    and rough that z has to forget.
    """
    cls = model_class(name)
    given = dict(given or {})
    check_names(name, given)
    build = maker(cls.__name__)
    hints = get_type_hints(build.__init__ if isinstance(build, type) else build)
    for setting, value in given.items():
        wanted = remedy(value, hints[setting])
        if wanted is not None:
            raise FitError(f"{setting} of {cls.__name__} is {value!r}: give {wanted}.")
    fixed = {
        "channels": len(task.series.channels),
        "static": len(task.series.features),
        "outputs": task.outputs,
        "kind": task.kind,
    }
    for setting, value in fixed.items():
        if given.get(setting, value) != value:
            raise FitError(
                f"{setting} is {given[setting]!r}, but the task '{task.name}' has {value!r}: leave it out."
            )
    chosen: dict[str, Any] = {"clip": 5.0}
    if cls is NeuralCDE:
        series = task.series
        gaps = bool((series.values.isnan() & series.real[..., None]).any())
        gain = round(min(1.0, TOGETHER / _together(series)), 4)
        forgets = gaps or _roughness(task) * gain**2 > ROUGH
        chosen |= {"control": recommend(missing=gaps).control, "counts": forgets}
        chosen |= {"activation": "silu", "gain": gain}
        # Whoever says how z forgets, as published tables do, gets what they say and nothing beside it.
        if given.get("control", "rectilinear") == "rectilinear" and "restoring" not in given:
            chosen["bounded"] = True
        if forgets:
            chosen |= _forgetting(series, given, fixed["static"], _labels_at_rows(task))
            several = {**chosen, **given}.get("readout_members", 1) > 1
            if several and (task.kind, task.outputs) == ("binary", 1):
                chosen["readout_steps"] = 256
    return {**chosen, **given, **fixed}


def usual_settings(task: Task, name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `fit` changes of its settings for a task and a model where nobody says otherwise.

    A readout that sees very many numbers learns more slowly (`READ`). A Neural CDE whose readout has several members
    also learns whether the label comes within a third of what a stream lasts, within all of it, and ever.
    """
    settings = model_settings(task, name, given)
    with torch.device("meta"):  # no weights are drawn, nor memory taken
        head: Any = _build(name, settings).readout
    slower = {"head_lr": round(READ / head.inputs, 3)} if head.inputs > READ else {}
    return {**slower, **_usual_horizons(task, head.members)}


def _usual_horizons(task: Task, members: int) -> dict[str, Any]:
    if task.kind != "binary" or task.per != "row" or members == 1:
        return {}
    series, _ = task.split("train")
    lasted = series.times.gather(1, series.rows[:, None] - 1)[:, 0] - series.times[:, 0]
    usual = float(lasted.median())
    if usual <= 0:
        return {}
    near = (float(f"{usual / 3:.3g}"), float(f"{usual:.3g}"))
    return {"horizons": (*near, float("inf")), "horizon_weight": 1.0}


def _labels_at_rows(task: Task) -> int:
    """How many labels the training split has at rows."""
    if task.per != "row":
        return 0
    known = task.labelled
    return int(known[task.splits["train"].to(known.device)].sum())


def _together(series: SeriesBatch) -> float:
    """How many channels are observed in one row, at most."""
    return max(1.0, float(series.observed[series.real].sum(1).max()))


def _roughness(task: Task) -> float:
    """Squared increments, in deviations, summed over channels and rows; the mean of training streams."""
    series, _ = task.split("train")
    some = series[:: -(-len(series) // LOOKED_AT)]
    total = 0.0
    for channel in range(some.values.shape[2]):
        values = some.values[:, :, channel].double()
        spread = float(values[some.real].var(correction=0))
        if spread > 0:
            total += float(values.diff(dim=1).square().nansum()) / spread / len(some)
    return total


def _forgetting(
    series: SeriesBatch, given: Mapping[str, Any], static: int, labels: int
) -> dict[str, Any]:
    """Defaults for series with gaps, or long and rough: small increments, a z that forgets, X seen by all.

    The field, of few shared columns, and the readout see X, in which static features stand; the
    readout, a small MLP or, with many `labels` at rows, several, sees it as ramps too. Found on the
    simulated ward and PhysioNet 2019 and 2012 (docs/tried.md); a size that is given is kept.
    """
    hidden = given.get("hidden", 32)
    most = _together(series)
    chosen = {
        "hidden": hidden,
        "width": 2 * hidden,
        "depth": 1,
        "field_sees_path": True,
        "readout_sees_path": True,
        "static_in_path": static > 0,
        "rank": 16,
        "gain": round(0.3 * min(1.0, TOGETHER / most), 4),
        "count_gain": round(min(0.3, PULL / (RESTORING * most)), 4),
        "channel_dropout": 0.1,
    }
    if given.get("readout_sees_path", True):
        several = labels >= MANY
        chosen |= {"readout_ramps": 6, "readout_width": 256 if several else 128}
        if given.get("readout_width", 128) is not None:
            chosen |= {"readout_dropout": 0.3, "readout_members": 16 if several else 1}
    if given.get("width", 2 * hidden) >= 2 * hidden and given.get("activation") != "tanh":
        gain = given.get("count_gain", chosen["count_gain"])
        chosen["restoring"] = round(min(RESTORING, PULL / (gain * most)), 4)
    return chosen


def build_model(task: Task, name: str, given: Mapping[str, Any] | None = None) -> OnlineModel:
    """A model for a task, with fresh weights from torch's random numbers."""
    return _build(name, model_settings(task, name, given))


def _build(name: str, settings: Mapping[str, Any]) -> OnlineModel:
    try:
        return maker(model_class(name).__name__)(**settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, FitError):
            raise
        raise FitError(f"the model cannot be built: {error}") from error
