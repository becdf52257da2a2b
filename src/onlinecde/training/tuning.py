"""`tune`: a search for settings that goes on after being killed, by as many processes as wanted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onlinecde.data import Task
from onlinecde.training.batches import seed_for
from onlinecde.training.claims import Claim, claim, held
from onlinecde.training.fitting import fit
from onlinecde.training.loop import Unwatched
from onlinecde.training.metrics import better
from onlinecde.training.search_spaces import SearchSpace, TuneError, paper_space, write_best
from onlinecde.training.settings import FitSettings
from onlinecde.training.task_source import load_task, registry_source

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

DATABASE, LOCK, BEST = "study.db", ".lock", "best.json"
ATTEMPTS = 3
"""A trial whose process died this often is given up as failed."""
_STUDY = "search"
_BUSY_SECONDS = 120
_POLL_SECONDS = 0.5


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


@dataclass(frozen=True)
class TrialReport:
    """One trial: what was tried, and what came of it."""

    number: int
    state: str
    """"complete", "pruned", "failed" or "running"."""
    settings: dict[str, Any]
    value: float | None
    """The validation metric of its best epoch."""
    epochs: int
    seconds: float | None
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Tuned:
    """A search as it stands."""

    folder: Path
    metric: str
    trials: tuple[TrialReport, ...]
    best: dict[str, Any] | None
    """As `best.json` has it; None while no trial is complete."""


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
    with contextlib.closing(_Search(Path(out), about, seed, trials)) as search:
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
    with contextlib.closing(_Search(home, None, 0, 0)) as search:
        return search.state()


def _run(
    search: _Search,
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

    def __init__(self, search: _Search, trial: FrozenTrial, metric: str, watch: TuneWatch) -> None:
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


class _Search:
    """The study of a folder, and who may work on which of its trials."""

    def __init__(self, folder: Path, about: dict[str, Any] | None, seed: int, trials: int) -> None:
        self.folder, self.seed, self.wanted = folder, seed, trials
        folder.mkdir(parents=True, exist_ok=True)
        with self.locked():
            self.storage = _storage(folder / DATABASE)
            self.study = _study(self.storage, about)
            known = self.study.user_attrs.get("about")
            if known is None:
                if about is None:
                    raise TuneError(f"{folder} holds a search without a beginning: delete it.")
                self.study.set_user_attr("about", about)
                known = json.loads(json.dumps(about))
        _check_same(folder, known, about)
        self.about: dict[str, Any] = known

    def close(self) -> None:
        """Let go of the database."""
        self.storage.remove_session()
        self.storage.engine.dispose()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time deals out trials or settles them."""
        with held(self.folder / LOCK):
            yield

    def run_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def take(self) -> tuple[FrozenTrial, Claim, bool] | None:
        """A trial to run: one whose process died, or a new one; None when all are settled.

        While others are still running theirs, it waits: one of them may die.
        """
        while True:
            with self.locked():
                trials = self.study.get_trials(deepcopy=False)
                running = [t for t in trials if t.state.name == "RUNNING"]
                for trial in running:
                    mine = claim(self._claim_file(trial.number))
                    if mine is not None and self._may_try_again(trial):
                        return trial, mine, True
                    if mine is not None:
                        mine.release()
                if any(t.state.name == "WAITING" for t in trials) or len(trials) < self.wanted:
                    trial = self._ask(trials)
                    mine = claim(self._claim_file(trial.number))
                    assert mine is not None
                    self._attempt(trial, 1)
                    return trial, mine, False
            if not running:
                return None
            time.sleep(_POLL_SECONDS)

    def _ask(self, trials: Sequence[FrozenTrial]) -> FrozenTrial:
        """A new trial; the same for the same seed and the same trials before it."""
        spans = _distributions(self.about["space"]["spans"])
        if not any(trial.state.name == "WAITING" for trial in trials):
            self.study.enqueue_trial(self._suggest(trials, spans))
        asked = self.study.ask(spans)
        return self.study.get_trials(deepcopy=False)[asked.number]

    def _suggest(self, trials: Sequence[FrozenTrial], spans: dict[str, Any]) -> dict[str, Any]:
        """What the Gaussian process would try next.

        Left to itself it knows of complete trials alone, and would try what was pruned or failed
        again and again. So it is shown a copy of the study in which a pruned trial has the best
        value it came to, and one that failed the worst of all.
        """
        from optuna import create_study
        from optuna.samplers import GPSampler
        from optuna.trial import TrialState, create_trial

        most = better(self.about["metric"]) == "max"
        # A sampler of its own for each trial: a search taken up again goes on as it would have.
        sampler = GPSampler(
            seed=seed_for("trial", self.seed, len(trials)) % 2**32,
            n_startup_trials=max(4, self.wanted // 3),
        )
        shown = create_study(direction="maximize" if most else "minimize", sampler=sampler)
        values = {trial.number: _worth(trial, most) for trial in trials}
        known = [value for value in values.values() if value is not None]
        worst = (min(known) if most else max(known)) if known else None
        for trial in trials:
            value = values[trial.number]
            running = trial.state.name == "RUNNING"
            if trial.params and (running or value is not None or worst is not None):
                shown.add_trial(
                    create_trial(
                        state=TrialState.RUNNING if running else TrialState.COMPLETE,
                        value=None if running else worst if value is None else value,
                        params=trial.params,
                        distributions=spans,
                    )
                )
        return shown.ask(spans).params

    def _may_try_again(self, trial: FrozenTrial) -> bool:
        """Count one more attempt; a trial that keeps ending its process is given up."""
        tried = trial.user_attrs.get("attempts", 0)
        if tried < ATTEMPTS:
            self._attempt(trial, tried + 1)
            return True
        self._settle(trial, "failed", reason=f"its process died {tried} times while it ran")
        return False

    def _attempt(self, trial: FrozenTrial, number: int) -> None:
        self.study._storage.set_trial_user_attr(trial._trial_id, "attempts", number)

    def _claim_file(self, number: int) -> Path:
        return self.folder / "trials" / f".{number:04d}.claim"

    def tell(
        self, trial: FrozenTrial, state: str, value: float | None = None, reason: str = ""
    ) -> None:
        """Settle a trial, keep the best model and the best settings, let the others' models go."""
        with self.locked():
            self._settle(trial, state, value, reason)
            best = self._best()
            if best is not None:
                write_best(self.folder / BEST, best)
            self._let_go(trial.number, None if best is None else best["trial"])

    def _settle(
        self, trial: FrozenTrial, state: str, value: float | None = None, reason: str = ""
    ) -> None:
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
        if reason:
            self.study._storage.set_trial_user_attr(trial._trial_id, "reason", reason[:2000])
        self.study.tell(trial.number, value, state=states.get(state, TrialState.FAIL))

    def _best(self) -> dict[str, Any] | None:
        complete = [t for t in self.study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        if not complete:
            return None
        # The study's own best trial leaves ties to chance; the first of them is always the same.
        sign = -1 if better(self.about["metric"]) == "max" else 1
        best = min(complete, key=lambda t: (sign * (t.value or 0.0), t.number))
        told = self.about["space"]
        space = SearchSpace({}, told["fixed"], told["final_lr"])
        of_model, of_fit = space.divided(best.params)
        settings = {**self.about["settings"], **of_fit}
        settings["lr"] *= space.final_lr
        del settings["seed"]
        return {
            "task": self.about["task"],
            "model": self.about["model"],
            "model_settings": {**self.about["model_settings"], **of_model},
            "settings": settings,
            "metric": self.about["metric"],
            "validation": best.value,
            "trial": best.number,
            "model_folder": str(self.run_folder(best.number).relative_to(self.folder) / "model"),
        }

    def _let_go(self, number: int, best: int | None) -> None:
        """Delete what is no longer needed: checkpoints, and the models of all but the best."""
        (self.run_folder(number) / "checkpoint").unlink(missing_ok=True)
        for trial in self.study.get_trials(deepcopy=False):
            if trial.number != best and trial.state.is_finished():
                shutil.rmtree(self.run_folder(trial.number) / "model", ignore_errors=True)

    def state(self) -> Tuned:
        trials = tuple(report(trial) for trial in self.study.get_trials(deepcopy=False))
        return Tuned(self.folder, self.about["metric"], trials, self._best())


def report(trial: FrozenTrial) -> TrialReport:
    """A trial of the study in plain words."""
    names = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    values = trial.intermediate_values
    return TrialReport(
        number=trial.number,
        state=names.get(trial.state.name, "running"),
        settings=dict(trial.params),
        value=trial.value if trial.state.name == "COMPLETE" else None,
        epochs=max(values, default=0),
        seconds=trial.duration.total_seconds() if trial.duration else None,
        reason=trial.user_attrs.get("reason", ""),
    )


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


def _storage(file: Path) -> RDBStorage:
    import sqlite3

    from optuna.storages import RDBStorage

    with contextlib.closing(sqlite3.connect(file, timeout=_BUSY_SECONDS)) as connection:
        # Readers and a writer do not wait for each other; it stays so in the file.
        connection.execute("pragma journal_mode=wal")
    return RDBStorage(
        f"sqlite:///{file.resolve()}",
        engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}},
    )


def _study(storage: RDBStorage, about: Mapping[str, Any] | None) -> Study:
    from optuna import create_study, load_study
    from optuna.pruners import MedianPruner
    from optuna.samplers import RandomSampler

    epochs = 1 if about is None else about["settings"]["epochs"]
    how: dict[str, Any] = {
        "study_name": _STUDY,
        "storage": storage,
        "sampler": RandomSampler(),  # what to try is decided in `_suggest`
        "pruner": MedianPruner(n_startup_trials=4, n_warmup_steps=max(2, epochs // 10)),
    }
    if about is None:
        return load_study(**how)
    direction = "maximize" if better(about["metric"]) == "max" else "minimize"
    return create_study(**how, direction=direction, load_if_exists=True)


def _distributions(spans: Mapping[str, Any]) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution, IntDistribution

    return {
        name: (
            IntDistribution if isinstance(low, int) and isinstance(high, int) else FloatDistribution
        )(low, high, log=log)
        for name, (low, high, log) in spans.items()
    }


def _worth(trial: FrozenTrial, most: bool) -> float | None:
    """The best value a trial is known to have come to; None where it failed or still runs."""
    if trial.state.name == "COMPLETE":
        return trial.value
    values = trial.intermediate_values.values()
    if trial.state.name != "PRUNED" or not values:
        return None
    return max(values) if most else min(values)


def _name_of(task: Task, source: Mapping[str, Any] | None) -> str:
    if source is None or source.get("source") != "registry":
        return task.name
    part = source.get("arguments", {}).get("task")
    return source["name"] + (f"/{part}" if part else "")


def _check_same(folder: Path, known: Mapping[str, Any], about: Mapping[str, Any] | None) -> None:
    now = None if about is None else json.loads(json.dumps(about))
    for name in known if now is not None else ():
        if now is not None and known[name] != now[name]:
            raise TuneError(
                f"{folder} holds a search with another `{name}` ({known[name]}, now {now[name]}): "
                "give another folder."
            )
