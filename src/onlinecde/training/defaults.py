"""Every setting of a fit: its value, who set it, and why. All defaults are resolved here."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, get_type_hints

import torch

from onlinecde.controls import Measurability, recommend
from onlinecde.data import Task
from onlinecde.models import MODELS, NeuralCDE, OnlineModel
from onlinecde.models.flat_settings import maker
from onlinecde.series import SeriesBatch
from onlinecde.training.forecasting import start_at_last_values
from onlinecde.training.growing import KINDS, has_room
from onlinecde.training.journal import model_settings_of_then, settings_of_then
from onlinecde.training.objectives import lay_bins
from onlinecde.training.settings import FitError, FitSettings, remedy

By = Literal["user", "file", "recipe", "run", "task", "data", "default"]
Settings = Mapping[str, Any]

MODEL_NAMES = ("neural-cde", "gru", "gru-dt", "gru-dt-intensity", "gru-d", "ode-rnn")
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

TAUGHT_AT = "rows+random=16"
"""Where labels are known between rows, a model is taught them at its rows and at times drawn anew each epoch, as many
a stream. From rows alone it learns less of what a quiet time says, without them less of a row (docs/tried.md)."""

OUTLOOK = (1 / 12, 1 / 4, 1 / 2)
"""Shares of the time for which the median stream is followed, ahead of which a state also learns what is observed."""

PLAIN_READOUT = {"readout_ramps": 3, "readout_width": 32, "readout_dropout": 0.5}
"""A readout that learns less by heart: a state that also learns an outlook gains for longer than a larger one holds."""

BATCHES = 16
"""Batches an epoch is to have where there are few streams: with one or two it takes hundreds of epochs to learn, and
the mean of the weights lags behind."""

FEWEST = 8
"""Streams in such a batch, at least"""

MANY = 200_000
"""From so many labels at training rows on, the readout is the mean of several members. They learn more
slowly than one and go further: better with 550,000 labels at rows, worse with one label for each of
5,600 streams; in between nothing was tried."""

GROWN = 1_000
"""Training streams from which on trees are grown beside a Neural CDE's readout"""


@dataclass(frozen=True)
class Choice:
    """One setting: its value, who set it, and why."""

    value: Any
    by: By
    """"user"; "file": a file of settings; "recipe": settings given as a whole; "run": the run that goes on;
    "task": what is to be predicted; "data": measured on the training split; "default"."""
    why: str


class Choices(dict[str, Choice]):
    """Settings by name, each with who set it; what is set later counts."""

    def set(self, settings: Settings, by: By, why: str) -> None:
        """Give each of some settings its value."""
        self.update({name: Choice(value, by, why) for name, value in settings.items()})

    @property
    def values_alone(self) -> dict[str, Any]:
        """The settings without who set them."""
        return {name: one.value for name, one in self.items()}


@dataclass(frozen=True)
class Resolved:
    """All settings of a fit, and where each came from."""

    training: FitSettings
    model: dict[str, Any] | None
    """Constructor arguments; None where the model is built already."""
    chosen: Mapping[str, Mapping[str, Choice]] = field(default_factory=dict)
    """Of "model" and of "training": each setting by name."""

    def as_json(self) -> dict[str, Any]:
        """Each setting with its value, who set it and why, for `json.dumps`."""
        plain = self.training.as_json()
        return {
            part: {
                name: {"value": plain.get(name, one.value), "by": one.by, "why": one.why}
                for name, one in choices.items()
                if part == "model" or name in plain
            }
            for part, choices in self.chosen.items()
        }


def resolve(
    task: Task,
    model: OnlineModel | str = "neural-cde",
    model_settings: Settings | None = None,
    settings: FitSettings | None = None,
    changes: Settings | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    file: Settings | None = None,
) -> Resolved:
    """Every setting of a fit with these arguments: what is given, else what fits the task.

    Args:
        task: what is to be learned.
        model: a model, or the name of one.
        model_settings: of the model, given by the user.
        settings: training settings given as a whole; without, those not given fit the task.
        changes: training settings given one by one.
        run: the folder of a run that goes on with the defaults it began with.
        file: what `tune` found, as `read_best` gives it; what is given besides counts more.

    Returns:
        The settings, and for each who set it and why.

    Raises:
        FitError: a setting that there is not, or of a wrong type or value.

    >>> import onlinecde as oc
    >>> found = resolve(oc.data.simulate_ward(40, seed=0).task, "gru", {"hidden": 8})
    >>> found.model["hidden"], found.chosen["model"]["hidden"].by, found.training.epochs
    (8, 'user', 100)
    """
    changes, given = dict(changes or {}), Choices()
    named = isinstance(model, str)
    if model_settings and not named:
        raise FitError("model_settings are for a model given by name; this one is built already.")
    if file is not None:
        given.set(file["model_settings"], "file", "found by a search")
        settings = FitSettings().changed(file["settings"])
    if named and run is not None:
        # Defaults may have changed since: a run goes on with those it began with.
        then = model_settings_of_then(run, model_class(model).__name__)
        given.set(then, "run", "the run began with it")
    given.set(model_settings or {}, "user", "given")

    training = Choices()
    plain = FitSettings()
    training.set({n: getattr(plain, n) for n in _training_names()}, "default", "of every fit")
    if settings is not None:
        by: By = "recipe" if file is None else "file"
        why = "settings given as a whole" if file is None else "found by a search, or held in it"
        training.set({n: getattr(settings, n) for n in _training_names()}, by, why)
    else:
        if named:
            training |= usual_settings(task, model, given.values_alone)
        if run is not None:
            training.set(settings_of_then(run), "run", "the default when the run began")
    FitSettings().changed(changes)  # refuses names that there are not
    training.set(changes, "user", "given")
    resolved = FitSettings(**training.values_alone)

    if not named:
        return Resolved(resolved, None, {"training": training})
    chosen = _model_choices(task, model, given)
    values = chosen.values_alone
    for name, (_, default) in parameters_of(model).items():
        if name not in chosen and default is not inspect.Parameter.empty:
            chosen[name] = Choice(default, "default", f"of every {model_class(model).__name__}")
    return Resolved(resolved, values, {"model": chosen, "training": training})


def model_class(name: str) -> type[OnlineModel]:
    """Look a model up by name; case and hyphens do not matter.

    >>> model_class("gru-d").__name__
    'GRUD'
    """
    plain = name.lower().replace("-", "").replace("_", "")
    known = {one.lower(): cls for one, cls in MODELS.items()}
    known |= {alias: MODELS[one] for alias, one in ALIASES.items()}
    if plain not in known:
        raise FitError(f"there is no model {name!r}: choose one of {', '.join(MODEL_NAMES)}.")
    return known[plain]


def parameters_of(name: str) -> dict[str, tuple[Any, Any]]:
    """The settings a model has, by name: the type of each and its default."""
    return _parameters(model_class(name))


@cache
def _parameters(cls: type[OnlineModel]) -> dict[str, tuple[Any, Any]]:
    build = maker(cls.__name__)
    hints = get_type_hints(build.__init__ if isinstance(build, type) else build)
    return {
        name: (hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(build).parameters.items()
    }


def check_names(name: str, settings: Iterable[str]) -> None:
    """Refuse settings a model does not have, with those it has."""
    allowed = parameters_of(name)
    for setting in settings:
        if setting not in allowed:
            near = difflib.get_close_matches(setting, allowed, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(allowed)}."
            raise FitError(f"{model_class(name).__name__} has no setting {setting!r}: {hint}")


def model_settings(task: Task, name: str, given: Settings | None = None) -> dict[str, Any]:
    """All constructor arguments of a model for a task; what is given wins over defaults.

    The control of a Neural CDE is the one recommended for predictions at any time; where no value
    is ever missing, counts would only repeat the row number and are left out, unless series are so long
    and rough that z has to forget.
    """
    by_user = Choices()
    by_user.set(given or {}, "user", "given")
    return _model_choices(task, name, by_user).values_alone


def build_model(task: Task, name: str, given: Settings | None = None) -> OnlineModel:
    """A model for a task, with fresh weights from torch's random numbers."""
    model = build(name, model_settings(task, name, given))
    lay_bins(model, task)
    if task.forecast is not None:
        start_at_last_values(model, task)
    return model


def build(name: str, settings: Settings) -> OnlineModel:
    """A model from all its constructor arguments."""
    try:
        return maker(model_class(name).__name__)(**settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, FitError):
            raise
        raise FitError(f"the model cannot be built: {error}") from error


def _training_names() -> list[str]:
    return [
        name for name in get_type_hints(FitSettings) if name in FitSettings.__dataclass_fields__
    ]


def _model_choices(task: Task, name: str, given: Mapping[str, Choice]) -> Choices:
    """The settings of a model, with who set each; constructors' own defaults are left out."""
    cls, allowed = model_class(name), parameters_of(name)
    check_names(name, given)
    for setting, one in given.items():
        wanted = remedy(one.value, allowed[setting][0])
        if wanted is not None:
            raise FitError(f"{setting} of {cls.__name__} is {one.value!r}: give {wanted}.")
    fixed = {
        "channels": len(task.series.channels),
        "static": len(task.series.features),
        "outputs": task.outputs,
        "kind": task.kind,
    }
    for setting, value in fixed.items():
        if setting in given and given[setting].value != value:
            raise FitError(
                f"{setting} is {given[setting].value!r}, but the task '{task.name}' has {value!r}: leave it out."
            )
    chosen = Choices()
    chosen.set({"clip": 5.0}, "default", "scaled values end at 5 deviations")
    if cls is NeuralCDE:
        _choose_for_cde(chosen, task, {setting: one.value for setting, one in given.items()})
    chosen |= given
    chosen.set(fixed, "task", f"the task '{task.name}' has it")
    return chosen


def _choose_for_cde(chosen: Choices, task: Task, given: Settings) -> None:
    series = task.series
    gaps = bool((series.values.isnan() & series.real[..., None]).any())
    most = _together(series)
    gain = round(min(1.0, TOGETHER / most), 4)
    forgets = gaps or _roughness(task) * gain**2 > ROUGH
    why = (
        "values are missing"
        if gaps
        else "series are long and rough"
        if forgets
        else "no value is missing"
    )
    chosen.set({"control": recommend(missing=gaps).control, "counts": forgets}, "data", why)
    chosen.set({"activation": "silu"}, "default", "of every fit")
    chosen.set({"gain": gain}, "data", f"up to {most:g} channels are observed in one row")
    # Whoever says how z forgets, as published tables do, gets what they say and nothing beside it.
    if given.get("control", "rectilinear") == "rectilinear" and "restoring" not in given:
        chosen.set({"bounded": True}, "default", "on rectilinear paths: live streams may be long")
    if forgets:
        labels = _labels_at_rows(task)
        recipe = _forgetting(most, given, len(series.features), labels)
        chosen.set(recipe, "recipe", f"recipe for a z that forgets: {why}")
        members = {n: v for n, v in recipe.items() if n in ("readout_width", "readout_members")}
        chosen.set(members, "data", f"{labels:,} labels at training rows")
        if recipe.get("readout_members") == 1 and task.clock is not None:
            plain = {n: v for n, v in PLAIN_READOUT.items() if n in recipe}
            chosen.set(
                plain, "task", "labels are known between rows, and a state may learn more of them"
            )
        several = {**recipe, **given}.get("readout_members", 1) > 1
        if several and (task.kind, task.outputs) == ("binary", 1) and not _trees_grow(task):
            chosen.set({"readout_steps": 256}, "task", "binary, with several readout members")


def _forgetting(most: float, given: Settings, static: int, labels: int) -> dict[str, Any]:
    """Defaults for series with gaps, or long and rough: small increments, a z that forgets, X seen by all.

    The field, of few shared columns, and the readout see X, in which static features stand; the
    readout, a small MLP or, with many `labels` at rows, several, sees it as ramps too (docs/tried.md);
    a size that is given is kept. `most`: channels observed in one row.
    """
    hidden = given.get("hidden", 32)
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
            chosen["readout_direct"] = given.get("readout_members", chosen["readout_members"]) == 1
    if given.get("width", 2 * hidden) >= 2 * hidden and given.get("activation") != "tanh":
        gain = given.get("count_gain", chosen["count_gain"])
        chosen["restoring"] = round(min(RESTORING, PULL / (gain * most)), 4)
    return chosen


def usual_settings(task: Task, name: str, given: Settings | None = None) -> Choices:
    """What `fit` changes of its settings for a task and a model where nobody says otherwise.

    A readout that sees very many numbers learns more slowly (`READ`); few streams come in small batches (`BATCHES`).
    Where labels are known between rows, they are taught there too (`TAUGHT_AT`), and validated on the task's clock; a
    Neural CDE has an `OUTLOOK` besides. One whose readout has several members also learns whether the label comes
    within a third of what a stream lasts, within all of it, and ever.
    """
    chosen = Choices()
    settings = model_settings(task, name, given)
    with torch.random.fork_rng(devices=[]):  # the meta device would import a compiler first
        model = build(name, settings)
    head: Any = model.readout
    clock = None if model.measurability is Measurability.OFFLINE else task.clock
    if clock is not None:
        why = f"labels are known between rows, and it is judged {clock.in_words(task.time_unit)}"
        chosen.set({"at": TAUGHT_AT, "validate_at": str(clock)}, "task", why)
        if isinstance(model, NeuralCDE):
            why = "a state that foresees values learns more of each stream"
            chosen.set({"outlook": _outlook(task), "weight_decay": 0.3}, "data", why)
    if isinstance(model, NeuralCDE) and has_room(model) and _trees_grow(task):
        why = f"{len(task.splits['train']):,} training streams, and LightGBM is installed"
        chosen.set({"trees": True}, "data", why)
    if head.inputs > READ:
        why = f"the readout sees {head.inputs:,} numbers"
        chosen.set({"head_lr": round(READ / head.inputs, 3)}, "data", why)
    streams = len(task.splits["train"])
    if streams < BATCHES * FitSettings().batch_size:
        size = max(FEWEST, -(-streams // BATCHES))
        chosen.set({"batch_size": size}, "data", f"{streams} streams to learn from")
    if task.kind != "binary" or task.per != "row" or head.members == 1:
        return chosen
    series, _ = task.split("train")
    lasted = series.times.gather(1, series.rows[:, None] - 1)[:, 0] - series.times[:, 0]
    usual = float(lasted.median())
    if usual > 0:
        near = (float(f"{usual / 3:.3g}"), float(f"{usual:.3g}"))
        why = f"several readout members; streams last {usual:.3g} {task.time_unit}"
        chosen.set({"horizons": (*near, float("inf")), "horizon_weight": 1.0}, "data", why)
    return chosen


def _outlook(task: Task) -> tuple[float, ...]:
    """Times ahead, in the task's unit, each a plain number."""
    spans = task.label_truth.until.to(task.series.times) - task.series.times[:, 0]
    usual = float(spans[spans.isfinite() & (spans > 0)].median())
    return tuple(float(f"{usual * share:.2g}") for share in OUTLOOK)


def _trees_grow(task: Task) -> bool:
    """Whether trees are grown beside a readout that has room for them: measured for one label a stream alone."""
    enough = len(task.splits.get("train", ())) >= GROWN and task.per == "stream"
    return enough and task.kind in KINDS and find_spec("lightgbm") is not None


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
