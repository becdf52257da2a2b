"""The study of a search: a folder with its database, and who may work on which of its trials."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.evaluation.metrics import better
from onlinecde.files import Claim, claim, held
from onlinecde.training.settings import seed_for
from onlinecde.tuning.spaces import SearchSpace, TuneError, write_best

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
_DRAWS = 50


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
    attempts: int = 1
    """How often it was begun: more than once where its process died."""


@dataclass(frozen=True)
class Tuned:
    """A search as it stands."""

    folder: Path
    metric: str
    trials: tuple[TrialReport, ...]
    best: dict[str, Any] | None
    """As `best.json` has it; None while no trial is complete."""


class SharedStudy:
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
        """Only one process at a time assigns trials or records their results."""
        with held(self.folder / LOCK):
            yield

    def run_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def take(self, *, wait: bool = True) -> tuple[FrozenTrial, Claim] | None:
        """A trial to run: one whose process died, or a new one; None when all are settled.

        While others are still running theirs, it waits: one of them may die. Without `wait` it is
        None then, too.
        """
        while True:
            with self.locked():
                trials = self.study.get_trials(deepcopy=False)
                running = [t for t in trials if t.state.name == "RUNNING"]
                for trial in running:
                    mine = claim(self._claim_file(trial.number))
                    if mine is not None and self._may_try_again(trial):
                        return trial, mine
                    if mine is not None:
                        mine.release()
                if any(t.state.name == "WAITING" for t in trials) or len(trials) < self.wanted:
                    trial = self._ask(trials)
                    mine = claim(self._claim_file(trial.number))
                    assert mine is not None
                    self._attempt(trial, 1)
                    return trial, mine
            if not running or not wait:
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
        value it came to, and one that failed the worst of all. The same settings give the same
        numbers, so that what was tried before is replaced by something at random.
        """
        from optuna import create_study
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import GPSampler, RandomSampler
        from optuna.trial import TrialState, create_trial

        most = better(self.about["metric"]) == "max"
        # A sampler of its own for each trial: a resumed search goes on as it would have.
        seed = seed_for("trial", self.seed, len(trials)) % 2**32
        with warnings.catch_warnings():
            # Optuna 4 calls this sampler experimental.
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = GPSampler(seed=seed, n_startup_trials=max(4, self.wanted // 3))
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
        tried = [trial.params for trial in trials]
        asked = shown.ask(spans).params
        shown.sampler = RandomSampler(seed=seed)
        for _ in range(_DRAWS):  # a small space may have been tried altogether
            if asked not in tried:
                break
            asked = shown.ask(spans).params
        return asked

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
        stated = self.about["space"]
        space = SearchSpace({}, stated["fixed"], stated["final_lr"])
        of_model, of_fit = space.divided(best.params)
        settings = {**self.about["settings"], **of_fit}
        settings["lr"] *= space.final_lr
        del settings["seed"]
        return {
            "task": self.about["task"],
            "model": self.about["model"],
            "model_settings": {**self.about["model_settings"], **of_model},
            "settings": settings,
            "searched": sorted({*space.fixed, *best.params}),
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
        attempts=trial.user_attrs.get("attempts", 1),
    )


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
    options: dict[str, Any] = {
        "study_name": _STUDY,
        "storage": storage,
        "sampler": RandomSampler(),  # what to try is decided in `_suggest`
        "pruner": MedianPruner(n_startup_trials=4, n_warmup_steps=max(2, epochs // 10)),
    }
    if about is None:
        return load_study(**options)
    direction = "maximize" if better(about["metric"]) == "max" else "minimize"
    return create_study(**options, direction=direction, load_if_exists=True)


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


def _check_same(folder: Path, known: Mapping[str, Any], about: Mapping[str, Any] | None) -> None:
    now = None if about is None else json.loads(json.dumps(about))
    for name in known if now is not None else ():
        if now is not None and known[name] != now[name]:
            raise TuneError(
                f"{folder} holds a search with another `{name}` ({known[name]}, now {now[name]}): "
                "give another folder."
            )
