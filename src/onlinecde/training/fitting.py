"""`fit`: from a task to a trained model, on CPU or GPU, and on again after being killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.artifacts import load as load_model
from onlinecde.artifacts import save as save_model
from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Cohort
from onlinecde.evaluation.calibration import calibration_line
from onlinecde.evaluation.metrics import questions
from onlinecde.evaluation.naive import beside_naive
from onlinecde.evaluation.predictions import as_probabilities, at_edges, predict_split
from onlinecde.models import OnlineModel
from onlinecde.models.asking import check_asking
from onlinecde.models.flat_settings import flat_of
from onlinecde.models.readout import Readout
from onlinecde.training.boosting import fit_steps
from onlinecde.training.callbacks import Callback
from onlinecde.training.card import model_card
from onlinecde.training.defaults import Resolved, build, resolve
from onlinecde.training.forecasting import settle_forecasts, start_at_last_values
from onlinecde.training.growing import grow
from onlinecde.training.intervals import fit_intervals
from onlinecde.training.journal import (
    Journal,
)
from onlinecde.training.linear_start import settle, start_at_linear
from onlinecde.training.loop import Training
from onlinecde.training.objectives import (
    check_horizons,
    check_learnable,
    fold,
    lay_bins,
    learn_scales,
    start_at_base_rate,
    unfold,
)
from onlinecde.training.query_times import asked_task, check_queries
from onlinecde.training.recalibration import recalibrate
from onlinecde.training.settings import FitError, FitSettings, seed_for
from onlinecde.training.task_source import (
    content_of,
    load_task,
    registry_source,
    task_of_run,
)
from onlinecde.training.utility_objective import Worth, check_objective, start_at_balance
from onlinecde.version import __version__

SAVE_SECONDS = 20.0
"""Within an epoch, the training is put down about this often; at the end of an epoch, always."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model and how it came about."""

    model: OnlineModel
    history: tuple[dict[str, Any], ...]
    """One entry an epoch: losses, the validation metric, learning rate, nfe, seconds"""
    best: dict[str, Any]
    """The entry of the epoch whose weights the model has"""
    ended: str
    folder: Path | None
    """The run's folder; the model itself is in `folder / "model"`"""
    still_improving: bool = False
    """Whether training was ended though its last epochs were its best"""


def fit(
    task: Task | str,
    model: OnlineModel | str = "neural-cde",
    out: str | os.PathLike[str] | None = None,
    *,
    model_settings: Mapping[str, Any] | None = None,
    settings: FitSettings | Resolved | None = None,
    source: Mapping[str, Any] | None = None,
    device: str = "auto",
    fresh: bool = False,
    max_seconds: float | None = None,
    callback: Callback | None = None,
    loop: type[Training] = Training,
    before_saving: Callable[[OnlineModel], Mapping[str, Any]] | None = None,
    goes_on: bool = False,
    **changes: Any,
) -> Fitted:
    """Train a model on a task, keep the weights of the best validation point, and save it.

    `task`: a `Task`, or the name of a prepared one ("simulated-ward", "mimic-iv/sepsis"). `model`:
    a name (its sizes come from the task, other arguments from `model_settings`; its readout starts
    at the base rates of the labels), or a model with a `Readout` as `readout`, trained from where it
    stands. Any field of `FitSettings` may be given by name, such as `epochs` or `lr`; for a model by
    name, what is not given fits the task, unless `settings` says all (`defaults.resolve`; the run's
    `settings.json` has each setting, who set it and why).

    With `out`, the run lives in that folder: started again after any end, `kill -9` included, it
    goes on and ends with the same weights as if it had never stopped (same machine, CPU); a run
    that is finished is loaded, or goes on where it may train longer now: more `epochs`, more `max_seconds`.
    `fresh` starts anew. `loop` is what trains; another one is for a process that has a part in a training only.
    `before_saving` sees the finished model and says more for its manifest, or raises where it is not to be saved.
    `goes_on`: of a model that was fitted before, whose scales stay (`update`).

    `max_seconds` ends training in time, all sessions of a run together, with the best weights until then.

    The test split is never looked at.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(40, seed=0).task
    >>> done = fit(task, "gru", epochs=2, model_settings={"hidden": 8})
    >>> len(done.history), done.best["epoch"] in (1, 2)
    (2, True)
    """
    if isinstance(task, str):
        source = source or registry_source(task)
        task = load_task(source)
    run = None if fresh else out
    task = task_of_run(task, run, getattr(model, "schema", None))
    if not isinstance(settings, Resolved):
        settings = resolve(task, model, model_settings, settings, changes, run=run)
    elif model_settings or changes:
        raise FitError("these settings are resolved already: change them before.")
    how, callback = settings.training, callback or Callback()
    asked = _asked(task, how)
    where = device_for(device)
    # The caller's own random numbers go on as if nothing had been drawn.
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(seed_for("weights", how.seed))
        ready = _model(asked, model, settings).to(where, getattr(torch, how.dtype))
        if out is None:
            training = _prepare(loop, ready, asked, how, where, callback, goes_on=goes_on)
            training.run(lambda _: None, callback, max_seconds)
            fold(ready, training.scales)
            _finish(ready.eval(), asked, how, callback)
            return _fitted(ready, training, None)
        about = _about(ready, task, how, source)
        journal = Journal(Path(out), about, fresh=fresh)
        try:
            journal.explain(settings.as_json())
            parts = ready, task, asked, how, where, about, callback, max_seconds
            return _in_folder(journal, loop, *parts, before_saving, goes_on)
        finally:
            journal.close()


def check_run(
    task: Task,
    model: OnlineModel | str,
    out: str | os.PathLike[str],
    *,
    settings: Resolved,
    source: Mapping[str, Any] | None = None,
    fresh: bool = False,
) -> OnlineModel:
    """Refuse what `fit` with the same arguments would refuse; the model it would begin with.

    The folder is then this run's; with `fresh` it has forgotten what it held.
    """
    how = settings.training
    asked = _asked(task, how)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", how.seed))
        ready = _model(asked, model, settings)
    check_learnable(asked, *asked.split("train"), Callback())
    Journal(Path(out), _about(ready, task, how, source), fresh=fresh).close()
    return ready


def _in_folder(
    journal: Journal,
    loop: type[Training],
    model: OnlineModel,
    task: Task,
    asked: Task,
    how: FitSettings,
    device: torch.device,
    about: dict[str, Any],
    callback: Callback,
    max_seconds: float | None,
    before_saving: Callable[[OnlineModel], Mapping[str, Any]] | None,
    goes_on: bool,
) -> Fitted:
    journal.keep_splits(task)
    before = journal.read()
    begins = before is None
    training = _prepare(loop, model, asked, how, device, callback, begins, goes_on)
    if before is not None:
        training.take_up(*before)
        at = training.at
        if not at.ended:
            callback.note(f"going on in {journal.folder} at epoch {at.epoch}, batch {at.batch + 1}")
    journal.begin(training.at.history)
    saved = [time.monotonic()]
    logged = [len(training.at.history)]

    def save(now: Training) -> None:
        ended_epoch = len(now.at.history) > logged[0]
        if ended_epoch or now.at.ended or time.monotonic() - saved[0] >= SAVE_SECONDS:
            # Checkpoint first: a line of the log that is lost is written again from it.
            journal.write(*now.put_down())
            saved[0] = time.monotonic()
        if ended_epoch:
            journal.epoch(now.at.history[-1])
            logged[0] = len(now.at.history)

    training.run(save, callback, max_seconds)
    fold(model, training.scales)
    done = _fitted(model.eval(), training, journal.folder)
    if journal.epochs_of_model() == len(done.history):
        return Fitted(
            load_model(journal.model_folder).to(device),
            done.history,
            done.best,
            done.ended,
            done.folder,
            done.still_improving,
        )
    after = _finish(model, asked, how, callback)
    if before_saving is not None:
        after |= before_saving(model)
    summary = {
        "epochs": len(done.history),
        "seconds": sum(entry["seconds"] for entry in done.history),
        "device": str(device),
        "ended": done.ended,
    }
    save_model(
        model,
        journal.model_folder,
        channels=task.series.channels,
        extra={
            "task": about["task"],
            "kind": task.kind,
            "per": task.per,
            "metric": task.metric,
            "classes": list(task.classes),
            **({} if task.forecast is None else {"forecast": task.forecast.as_json()}),
            **({"edges": list(task.edges), "horizon": task.horizon} if task.edges else {}),
            "time_unit": task.time_unit,
            "static": list(task.series.features),
            "settings": how.as_json(),
            "validation": {k: v for k, v in done.best.items() if v is not None},
            "training": summary,
            **after,
        },
        card=model_card(model, task, how, done.best, summary, after),
        overwrite=True,
    )
    return done


def _finish(model: OnlineModel, task: Task, how: FitSettings, callback: Callback) -> dict[str, Any]:
    """Steps or trees beside the readout, recalibration, intervals, and how the model does beside naive predictions.

    Returns what a manifest says of each, by name, without what was not done.
    """
    done: dict[str, Any] = {
        "beside_linear": settle(model, task, how, callback),
        "with_steps": fit_steps(model, task, how, callback),
        "with_trees": grow(model, task, how, callback),
        "recalibrated": recalibrate(model, task, how, callback),
        "settled": settle_forecasts(model, task, callback),
    }
    outputs = predict_split(model, task, "validation")
    if how.objective == "utility":
        moved = done["recalibrated"]
        shift = 0.0 if moved is None else moved["shift"][0]
        model.boundary = float(torch.tensor(shift, dtype=torch.float64).sigmoid())
        callback.note(f"an alarm is worth more than silence from {model.boundary:.4g} on")
    model.intervals = fit_intervals(model, task, outputs, callback)
    said = at_edges(model.readout, as_probabilities(model.readout, outputs), task)
    if task.kind == "binary":
        done["calibration"] = _line(task, said)
    beside = beside_naive(task, "validation", said)
    for one in beside:
        if not one.beaten:
            balanced = how.class_weights == "balanced" and one.metric == "log_loss"
            why = " (balanced class weights move them away from how often a class comes)"
            callback.note(f"warning: on validation {one.warning}{why * balanced}")
    done["naive"] = [{**asdict(one), "beaten": one.beaten} for one in beside]
    return {name: found for name, found in done.items() if found is not None}


def _line(task: Task, probabilities: Tensor) -> dict[str, Any] | None:
    """Slope and intercept of the calibration on validation; None where no line can be fitted."""
    found, wanted, known = questions("binary", probabilities, task.split("validation")[1].cpu())[0]
    if not len(wanted):
        return None
    subjects = [task.subjects[at] for at in task.splits["validation"].tolist()]
    cohort = Cohort.of(subjects, resamples=0, seed=0)
    owners = cohort.owners(known.numpy())
    once = np.ones(len(wanted))
    slope, intercept = calibration_line(found.numpy(), wanted.numpy(), once, owners, cohort)
    if slope.value is None:
        return None
    return {"slope": asdict(slope), "intercept": asdict(intercept)}


def _asked(task: Task, how: FitSettings) -> Task:
    """The task with its labels at the times they are learned and validated at; refused where it has none there."""
    check_queries(task, how)
    asked = asked_task(task, how)
    check_horizons(asked, how)
    check_objective(asked, how)
    return asked


def _prepare(
    loop: type[Training],
    model: OnlineModel,
    task: Task,
    how: FitSettings,
    device: torch.device,
    callback: Callback,
    begins: bool = True,
    goes_on: bool = False,
) -> Training:
    series, labels = task.split("train")
    check_learnable(task, series, labels, callback)
    encoding = getattr(model, "encoding", None)
    if encoding is not None and not goes_on:
        _fit_scales(model, task, how)
        model.to(device)
    scales = learn_scales(model, series, labels, target=how.scale_target)
    if goes_on:
        unfold(model, scales)
    elif begins:
        start_at_linear(model, task, scales, how, callback)
    return loop(model, task, scales, how, device)


def _fit_scales(model: OnlineModel, task: Task, how: FitSettings) -> None:
    """Learn the model's scales, and where its readout is to bend, of the series and times it is taught at."""
    series, times = task.split("train")[0], task.split_times("train")
    if how.scaling == "all":
        series, times = task.series, task.queries
    # A model of one's own may know of no times.
    _ = model.fit_scales(series) if task.per != "time" else model.fit_scales(series, times)


def _fitted(model: OnlineModel, training: Training, folder: Path | None) -> Fitted:
    history = tuple(training.at.history)
    best, ended = history[training.at.best_epoch - 1], training.at.ended
    return Fitted(model, history, best, ended, folder, training.still_improving)


def _model(task: Task, model: OnlineModel | str, settings: Resolved) -> OnlineModel:
    how = settings.training
    if isinstance(model, str):
        assert settings.model is not None
        built = build(model, settings.model)
        start_at_base_rate(built, task, balanced=how.class_weights == "balanced")
        if task.forecast is not None:
            start_at_last_values(built, task)
        if how.objective == "utility":
            start_at_balance(built, Worth(task).of("train"))
        built.schema = task.schema
        return _asking(built, how)
    if not isinstance(getattr(model, "readout", None), Readout):
        raise FitError(
            f"{type(model).__name__} has no `Readout` as `readout`: give it one, which knows loss and probabilities."
        )
    head = model.readout
    if head.kind != task.kind or (model.outputs != task.outputs and head.bins is None):
        raise FitError(
            f"the model puts out {model.outputs} numbers of kind {head.kind!r}; the task '{task.name}' "
            f"needs {task.outputs} of kind {task.kind!r}."
        )
    if head.bins is not None and not head.bins.laid and model.outputs == task.outputs:
        lay_bins(model, task)
    if head.forecasts is not None and not head.forecasts.laid:
        start_at_last_values(model, task)
    model.prepare(task.series[:1])
    model.schema = replace(model.schema or task.schema, time_unit=task.time_unit)
    return _asking(model, how)


def _asking(model: OnlineModel, how: FitSettings) -> OnlineModel:
    """The model, to be asked between rows as it is taught."""
    try:
        check_asking(model, how.asking)
    except ValueError as error:
        raise FitError(str(error)) from error
    model.asking = how.asking
    return model


def device_for(name: str) -> torch.device:
    """The device of a name; "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise FitError(f"device is {name!r}: choose 'auto', 'cpu' or 'cuda'.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FitError("device is 'cuda', but torch sees no GPU here: choose 'cpu' or 'auto'.")
    return device


def _about(
    model: OnlineModel, task: Task, how: FitSettings, source: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What makes this run this run: started again, all of it must be the same."""
    return {
        "task": {
            **(source or {"source": "memory", "name": task.name}),
            "content": content_of(task),
        },
        "model": {"name": type(model).__name__, **flat_of(getattr(model, "config", {}))},
        "settings": how.as_json(),
        "version": __version__,
    }
