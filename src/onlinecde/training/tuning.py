"""`tune`: a search for settings that goes on after being killed, by as many processes as wanted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onlinecde.data import Task
from onlinecde.training.fitting import fit
from onlinecde.training.loop import Unwatched
from onlinecde.training.search_spaces import SearchSpace, TuneError, paper_space
from onlinecde.training.settings import FitSettings
from onlinecde.training.study import DATABASE, SharedStudy, TrialReport, Tuned, report
from onlinecde.training.task_source import load_task, registry_source

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class TuneWatch(Protocol):
    """Whoever wants to see a search as it goes."""

    def begin(self, number: int, settings: Mapping[str, Any], again: bool) -> None:
        """Before a trial; `again`: one that a dead process left behind."""

    def epoch(self, number: int, entry: Mapping[str, Any]) -> None:
        """After each epoch of a trial."""

    def end(self, trial: TrialReport) -> None:
        """After a trial."""


class UnwatchedSearch:
    """Nobody looks."""

    def begin(self, number: int, settings: Mapping[str, Any], again: bool) -> None:
        pass

    def epoch(self, number: int, entry: Mapping[str, Any]) -> None:
        pass

    def end(self, trial: TrialReport) -> None:
        pass


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
    watch: TuneWatch | None = None,
    **changes: Any,
) -> Tuned:
    """Search a model's settings on the validation split, by Optuna's Gaussian process.

    `space`: default, the paper's for the model. `model_settings`, `settings` and `changes` hold for
    every trial. The folder has the study (`study.db`), a run for each trial, and `best.json` with
    the best settings so far, whose model is kept. Called again on the folder, by the same or by
    other processes at the same time, the search goes on; a trial left behind by a process that
    died is taken up where it was. A trial that fails is recorded with its reason.

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
    how = (settings or FitSettings()).changed({"seed": seed, **changes})
    about = {
        "task": name,
        "model": model,
        "space": space.as_json(),
        "model_settings": dict(model_settings or {}),
        "settings": how.as_json(),
        "metric": task.metric,
        "pruned": prune,
    }
    watch = watch or UnwatchedSearch()
    with contextlib.closing(SharedStudy(Path(out), about, seed, trials)) as search:
        while (taken := search.take()) is not None:
            trial, mine, again = taken
            try:
                watch.begin(trial.number, trial.params, again)
                _run(search, trial, task, model, space, how, source, device, watch)
                watch.end(report(search.study.trials[trial.number]))
            finally:
                mine.release()
        return search.state()


def read_study(folder: str | os.PathLike[str]) -> Tuned:
    """A search as it stands now, without taking part in it."""
    _optuna()
    home = Path(folder)
    if not (home / DATABASE).is_file():
        raise TuneError(f"{home} holds no search: there is no {DATABASE}.")
    with contextlib.closing(SharedStudy(home, None, 0, 0)) as search:
        return search.state()


def _run(
    search: SharedStudy,
    trial: FrozenTrial,
    task: Task,
    model: str,
    space: SearchSpace,
    how: FitSettings,
    source: Mapping[str, Any] | None,
    device: str,
    watch: TuneWatch,
) -> None:
    """Train one trial and tell the study what came of it."""
    of_model, of_fit = space.divided(trial.params)
    metric = f"validation_{task.metric}"
    try:
        done = fit(
            task,
            model,
            search.run_folder(trial.number),
            model_settings={**search.about["model_settings"], **of_model},
            settings=how.changed(of_fit),
            source=source,
            device=device,
            watch=_TrialWatch(search, trial, metric, watch),
        )
        value = done.best[metric]
        if value is None:
            raise TuneError(
                f"{task.metric} has no value on the validation split: it needs both classes."
            )
    except _NotWorthIt:
        search.tell(trial, "pruned")
    except Exception as error:  # recorded, and the search goes on
        search.tell(trial, "failed", reason=f"{type(error).__name__}: {error}")
    else:
        search.tell(trial, "complete", value)


class _NotWorthIt(Exception):  # noqa: N818 - a decision, not a fault
    """A trial that is worse than most were at the same epoch."""


class _TrialWatch(Unwatched):
    """Reports each epoch to the study, and ends a trial that is not worth going on with."""

    def __init__(
        self, search: SharedStudy, trial: FrozenTrial, metric: str, watch: TuneWatch
    ) -> None:
        from optuna.trial import Trial

        self.search, self.metric, self.watch, self.number = search, metric, watch, trial.number
        self.trial = Trial(search.study, trial._trial_id)
        self.known = set(trial.intermediate_values)

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        self.watch.epoch(self.number, entry)
        value = entry[self.metric]
        if value is None:
            return
        if entry["epoch"] not in self.known:
            self.trial.report(value, entry["epoch"])
        if self.search.about["pruned"] and self.trial.should_prune():
            raise _NotWorthIt


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
