"""`tune` on a cluster: one study, kept by the process that was started, its trials run by workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.data import Task
from onlinecde.files import Claim
from onlinecde.scale.ray_cluster import (
    ClusterError,
    Room,
    check_address,
    check_nodes,
    connected,
    died,
    first_line,
    room_for,
    wait_until_free,
    worker,
)
from onlinecde.scale.ray_news import Telling, hear, open_desk
from onlinecde.training.fitting import fit
from onlinecde.training.journal import LOCK
from onlinecde.tuning.search import NotWorthIt, Search, TrialCallback, value_of
from onlinecde.tuning.search import tune as tune_alone
from onlinecde.tuning.study import Tuned

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_PAUSE = 0.2


def tune(
    task: Task | str,
    model: str = "neural-cde",
    out: str | os.PathLike[str] = "out/tune",
    *,
    workers: int | None = None,
    address: str = "",
    **more: Any,
) -> Tuned:
    """Search as `onlinecde.tuning.tune` does, the trials spread over a Ray cluster.

    At most `workers` trials run at once; default, one for each GPU or processor. The study is in
    this process alone, so its database may be on a local disk; the runs of the trials are in
    `out`, too, which all nodes must see. A trial whose worker died is run again, at its last
    checkpoint; a search whose own process died goes on when it is called again. Other arguments are
    those of `tune`.
    """
    check_address(address)
    run = partial(_on_cluster, workers=workers, address=address)
    return tune_alone(task, model, out, run=run, **more)


@dataclass(frozen=True, eq=False)
class _Running:
    """A trial that is with a worker."""

    trial: FrozenTrial
    mine: Claim
    callback: TrialCallback
    hopeless: list[bool]


def _on_cluster(search: Search, *, workers: int | None, address: str) -> None:
    with connected(address):
        room = room_for(workers, search.device)
        check_nodes(search.study.folder)
        _spread(search, room)


def _spread(search: Search, room: Room) -> None:
    """Keep the workers busy until no trial is left."""
    import ray

    desk, task = open_desk(), ray.put(search.task)
    train = worker(_train, room)
    running: dict[Any, _Running] = {}
    try:
        while True:
            while len(running) < room.workers and (taken := search.study.take(wait=False)):
                trial, mine = taken
                search.begin(trial)
                folder = str(search.study.run_folder(trial.number).resolve())
                arguments = search.arguments(trial)
                ref = train.remote(task, search.model, folder, arguments, room, desk, trial.number)
                running[ref] = _Running(trial, mine, TrialCallback(search, trial), [])
            if not running:
                return
            ended, _ = ray.wait(list(running), timeout=_PAUSE)
            _listen(desk, running)
            for ref in ended:
                _settle(search, ref, running.pop(ref))
    finally:
        for one in running.values():
            one.mine.release()


def _listen(desk: Any, running: dict[Any, _Running]) -> None:
    """Report what workers tell to the study, and stop those that are not worth it."""
    import ray

    by_number = {one.trial.number: (ref, one) for ref, one in running.items()}
    for number, what, *words in hear(desk):
        if what != "epoch" or number not in by_number:
            continue
        ref, one = by_number[number]
        if not one.hopeless and _is_hopeless(one, words[0]):
            ray.cancel(ref)


def _is_hopeless(one: _Running, entry: dict[str, Any]) -> bool:
    try:
        one.callback.epoch(entry, False)
    except NotWorthIt:
        one.hopeless.append(True)
    return bool(one.hopeless)


def _settle(search: Search, ref: Any, one: _Running) -> None:
    """Tell the study what came of a trial."""
    import ray
    from ray import exceptions

    study, trial = search.study, one.trial
    try:
        try:
            history, value, reason = ray.get(ref)
        except exceptions.TaskCancelledError:
            history, value, reason = [], None, "it was cancelled"
        except exceptions.RayError as error:
            if not died(error):
                raise ClusterError(f"a worker could not begin: {first_line(error)}") from None
            # Once released, the trial is resumed by the next worker, and its attempts are counted.
            return
        for entry in history:
            # What was told while nobody listened.
            if not one.hopeless and entry["epoch"] not in one.callback.known:
                _is_hopeless(one, entry)
        if one.hopeless:
            study.tell(trial, "pruned")
        elif value is None:
            study.tell(trial, "failed", reason=reason)
        else:
            study.tell(trial, "complete", value)
        search.end(trial)
    finally:
        one.mine.release()


def _train(
    task: Task,
    model: str,
    folder: str,
    arguments: dict[str, Any],
    room: Room,
    desk: Any,
    number: int,
) -> tuple[list[dict[str, Any]], float | None, str]:
    """What a worker runs: the epochs of a trial and its value, or why it has none."""
    import torch

    torch.set_num_threads(room.cpus)
    wait_until_free(Path(folder) / LOCK)
    try:
        done = fit(
            task, model, folder, device=room.device, callback=Telling(desk, number), **arguments
        )
        return list(done.history), value_of(done.best, task.metric), ""
    except Exception as error:  # it is the study that records it
        return [], None, f"{type(error).__name__}: {error}"
