"""`tune`: a search for settings that goes on after being killed, by as many processes as wanted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.data import Task
from onlinecde.training.callbacks import Callback
from onlinecde.training.fitting import fit
from onlinecde.training.settings import FitSettings
from onlinecde.training.task_source import load_task, registry_source
from onlinecde.tuning.spaces import SearchSpace, TuneError, check_space, paper_space
from onlinecde.tuning.study import DATABASE, SharedStudy, TrialReport, Tuned, report

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, eq=False)
class Search:
    """A search that is under way: its study, and what holds for every trial."""

    study: SharedStudy
    task: Task
    model: str
    space: SearchSpace
    settings: FitSettings
    source: Mapping[str, Any] | None
    device: str
    callback: Callback

    def begin(self, trial: FrozenTrial) -> None:
        """Say that a trial begins."""
        self.callback.begin(self._report(trial), trial.number + 1, self.study.wanted)

    def end(self, trial: FrozenTrial) -> None:
        """Say what came of a trial."""
        report = self._report(trial)
        self.callback.end(report, asdict(report))

    def _report(self, trial: FrozenTrial) -> TrialReport:
        return report(self.study.study.trials[trial.number])

    def arguments(self, trial: FrozenTrial) -> dict[str, Any]:
        """What `fit` is given for a trial, beside the task, the model and the folder."""
        of_model, of_fit = self.space.divided(trial.params)
        return {
            "model_settings": {**self.study.about["model_settings"], **of_model},
            "settings": self.settings.changed(of_fit),
            "source": self.source,
        }


def one_by_one(search: Search) -> None:
    """Run trials in this process until none is left."""
    while (taken := search.study.take()) is not None:
        trial, mine = taken
        try:
            search.begin(trial)
            _run(search, trial)
            search.end(trial)
        finally:
            mine.release()


def tune(
    task: Task | str,
    model: str = "neural-cde",
    out: str | os.PathLike[str] = "out/tune",
    *,
    trials: int = 20,
    space: SearchSpace | None = None,
    model_settings: Mapping[str, Any] | None = None,
    settings: FitSettings | None = None,
    source: Mapping[str, Any] | None = None,
    prune: bool = True,
    seed: int = 0,
    device: str = "auto",
    callback: Callback | None = None,
    run: Callable[[Search], None] = one_by_one,
    **changes: Any,
) -> Tuned:
    """Search a model's settings on the validation split, by Optuna's Gaussian process.

    `space`: default, the paper's for the model. `model_settings`, `settings` and `changes` hold for
    every trial. The folder has the study (`study.db`), a run for each trial, and `best.json` with
    the best settings so far, whose model is kept. Called again on the folder, by the same or by
    other processes at the same time, the search goes on; a trial left behind by a process that
    died is resumed. A trial that fails is recorded with its reason. `run` is who runs
    the trials.

    The test split is never looked at.
    """
    _optuna()
    if trials < 1:
        raise TuneError(f"trials is {trials}: give at least 1.")
    if isinstance(task, str):
        name = task
        source = source or registry_source(task)
        task = load_task(source)
    else:
        name = _name_of(task, source)
    space = space or paper_space(model, name)
    check_space(model, space, model_settings or {})
    fit_settings = (settings or FitSettings()).changed({"seed": seed, **changes})
    about = {
        "task": name,
        "model": model,
        "space": space.as_json(),
        "model_settings": dict(model_settings or {}),
        "settings": fit_settings.as_json(),
        "metric": task.metric,
        "pruned": prune,
    }
    callback = callback or Callback()
    with contextlib.closing(SharedStudy(Path(out), about, seed, trials)) as study:
        run(Search(study, task, model, space, fit_settings, source, device, callback))
        return study.state()


def read_study(folder: str | os.PathLike[str]) -> Tuned:
    """A search as it stands now, without taking part in it."""
    _optuna()
    home = Path(folder)
    if not (home / DATABASE).is_file():
        raise TuneError(f"{home} holds no search: there is no {DATABASE}.")
    with contextlib.closing(SharedStudy(home, None, 0, 0)) as search:
        return search.state()


def _run(search: Search, trial: FrozenTrial) -> None:
    """Train one trial and tell the study what came of it."""
    study = search.study
    try:
        done = fit(
            search.task,
            search.model,
            study.run_folder(trial.number),
            device=search.device,
            callback=TrialCallback(search, trial),
            **search.arguments(trial),
        )
        value = value_of(done.best, search.task.metric)
    except NotWorthIt:
        study.tell(trial, "pruned")
    except Exception as error:  # recorded, and the search goes on
        study.tell(trial, "failed", reason=f"{type(error).__name__}: {error}")
    else:
        study.tell(trial, "complete", value)


def value_of(best: Mapping[str, Any], metric: str) -> float:
    """What a trial came to, by the entry of its best epoch."""
    value = best[f"validation_{metric}"]
    if value is None:
        raise TuneError(f"{metric} has no value on the validation split: it needs both classes.")
    return value


class NotWorthIt(Exception):  # noqa: N818 - a decision, not a fault
    """A trial that is worse than most were at the same epoch."""


class TrialCallback(Callback):
    """Reports each epoch to the study, and ends a trial that is not worth going on with."""

    def __init__(self, search: Search, trial: FrozenTrial) -> None:
        from optuna.trial import Trial

        self.search, self.number = search, trial.number
        self.metric = f"validation_{search.task.metric}"
        self.trial = Trial(search.study.study, trial._trial_id)
        self.known = set(trial.intermediate_values)

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        self.search.callback.epoch(entry, best)
        value = entry[self.metric]
        if value is None:
            return
        if entry["epoch"] not in self.known:
            self.known.add(entry["epoch"])
            self.trial.report(value, entry["epoch"])
        if self.search.study.about["pruned"] and self.trial.should_prune():
            raise NotWorthIt


def _optuna() -> None:
    """Look for the optional parts a search needs, and keep them quiet."""
    try:
        import optuna
        import scipy  # noqa: F401 - the sampler needs it and looks for it late
    except ImportError as error:
        raise TuneError(
            f"a search needs Optuna and SciPy ({error}): install them with "
            "`pip install 'onlinecde[tune]'`."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _name_of(task: Task, source: Mapping[str, Any] | None) -> str:
    if source is None or source.get("source") != "registry":
        return task.name
    part = source.get("arguments", {}).get("task")
    return source["name"] + (f"/{part}" if part else "")
