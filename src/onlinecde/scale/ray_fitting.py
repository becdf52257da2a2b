"""`fit` on a cluster: batches cut over workers, losses and weights those of one process."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onlinecde.artifacts import load as load_model
from onlinecde.artifacts import read_manifest
from onlinecde.data import Task
from onlinecde.models import OnlineModel
from onlinecde.scale.ray_cluster import (
    DEATHS,
    ClusterError,
    Room,
    check_address,
    check_nodes,
    connected,
    died,
    first_line,
    room_for,
    wait_until_free,
)
from onlinecde.scale.ray_news import Telling, hear, open_desk
from onlinecde.scale.ray_training import SharedTraining
from onlinecde.training.callbacks import Callback
from onlinecde.training.defaults import Resolved, resolve
from onlinecde.training.fitting import Fitted, check_run
from onlinecde.training.fitting import fit as fit_alone
from onlinecde.training.journal import LOCK, model_folder, read_log
from onlinecde.training.settings import FitError, FitSettings
from onlinecde.training.task_source import load_task, registry_source, task_of_run

_STORAGE = ".ray"
_WATCHDOG = "PlacementGroupCleanerCallback"
_PAUSE = 0.2
_HUNG_UP = ("Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe")


def fit(
    task: Task | str,
    model: OnlineModel | str = "neural-cde",
    out: str | os.PathLike[str] = "out/fit",
    *,
    workers: int | None = None,
    address: str = "",
    model_settings: Mapping[str, Any] | None = None,
    settings: FitSettings | Resolved | None = None,
    source: Mapping[str, Any] | None = None,
    device: str = "auto",
    fresh: bool = False,
    callback: Callback | None = None,
    **changes: Any,
) -> Fitted:
    """Train as `onlinecde.fit` does, each batch cut over `workers` processes of a Ray cluster.

    `batch_size` is that of all workers together: losses, weights and the run's folder are
    those of one process, to rounding. A run begun by one process may go on by several, and the
    other way round. When a worker dies, all begin again at the last checkpoint. `out` must be on a
    file system that all nodes share. `address`: see `connected`.
    """
    check_address(address)
    if isinstance(task, str):
        source = source or registry_source(task)
        task = load_task(source)
    run = None if fresh else out
    task = task_of_run(task, run, getattr(model, "schema", None))
    if not isinstance(settings, Resolved):
        settings = resolve(task, model, model_settings, settings, changes, run=run)
    folder = Path(out).resolve()
    wait_until_free(folder / LOCK)
    first = check_run(
        task,
        model,
        folder,
        settings=settings,
        source=source,
        fresh=fresh,
    )
    _check_divisible(first)
    callback = callback or Callback()
    arguments = {"settings": settings, "source": source}
    with connected(address):
        room = room_for(workers, device, together=True)
        check_nodes(folder)
        _train(task, _Work(model, folder, arguments, room), callback)
    manifest, history = read_manifest(model_folder(folder)), tuple(read_log(folder))
    best = history[manifest.extra["validation"]["epoch"] - 1]
    ended = manifest.extra["training"]["ended"]
    return Fitted(load_model(model_folder(folder)), history, best, ended, folder)


@dataclass(frozen=True, eq=False)
class _Work:
    """What each worker needs to know."""

    model: OnlineModel | str
    folder: Path
    arguments: dict[str, Any]
    room: Room


def _train(task: Task, work: _Work, callback: Callback) -> None:
    """Train to the end, with new workers where some were lost."""
    import ray

    shared, desk = ray.put(task), open_desk()
    deaths, epochs = 0, -1
    while (error := _attempt(work, shared, desk, callback)) is not None:
        lost = _lost(error)
        if lost is None:
            raise _plain(error) from None
        deaths = 1 if len(read_log(work.folder)) > epochs else deaths + 1
        epochs = len(read_log(work.folder))
        if deaths >= DEATHS:
            raise FitError(
                f"workers died {deaths} times without an epoch in between ({first_line(lost)}): is "
                "there memory enough? The same command goes on from the last checkpoint."
            ) from None
        callback.note("a worker died: all begin again at the last checkpoint")
        wait_until_free(work.folder / LOCK)


def _attempt(work: _Work, task: Any, desk: Any, callback: Callback) -> Exception | None:
    """One group of workers until it ends; its error, if there is one."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    class Trainer(TorchTrainer):
        """Without a watchdog that needs Ray's dashboard, and waits for it 12 seconds in the end."""

        def _create_default_callbacks(self) -> list[Any]:
            # What it would clean up after goes when this process disconnects.
            all_of_them = super()._create_default_callbacks()
            return [one for one in all_of_them if type(one).__name__ != _WATCHDOG]

    room, storage = work.room, work.folder / _STORAGE
    trainer = Trainer(
        _take_part,
        train_loop_config={"work": work, "task": [task], "desk": desk},
        scaling_config=ScalingConfig(
            num_workers=room.workers,
            use_gpu=room.gpus > 0,
            resources_per_worker={"CPU": room.cpus, **({"GPU": 1} if room.gpus else {})},
        ),
        run_config=RunConfig(
            name=_STORAGE, storage_path=str(storage), failure_config=FailureConfig(max_failures=0)
        ),
    )
    errors: list[Exception] = []

    def run() -> None:
        try:
            trainer.fit()
        except Exception as error:  # judged by the caller
            errors.append(error)

    # In a thread of its own, for in the main one it would take Ctrl-C for itself.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            time.sleep(_PAUSE)
            _pass_on(desk, callback)
        _pass_on(desk, callback)
    finally:
        shutil.rmtree(storage, ignore_errors=True)
    return errors[0] if errors else None


def _take_part(orders: dict[str, Any]) -> None:
    """What each worker runs."""
    import ray
    import ray.train
    import ray.train.torch
    import torch

    work: _Work = orders["work"]
    first = ray.train.get_context().get_world_rank() == 0
    torch.set_num_threads(work.room.cpus)
    fit_alone(
        ray.get(orders["task"][0]),
        work.model,
        work.folder if first else None,
        # Workers on one machine see all its GPUs, and each has one of them.
        device=str(ray.train.torch.get_device()) if work.room.gpus else "cpu",
        callback=Telling(orders["desk"], 0) if first else None,
        loop=SharedTraining,
        **work.arguments,
    )


def _pass_on(desk: Any, callback: Callback) -> None:
    for _, what, *words in hear(desk):
        getattr(callback, what)(*words)


def _failures(error: Exception) -> list[BaseException]:
    """What each worker that failed came to, by rank."""
    failures: dict[int, BaseException] = getattr(error, "worker_failures", {})
    return [failures[rank] for rank in sorted(failures)]


def _lost(error: Exception) -> BaseException | None:
    """What tells that a worker died; None where one of them found something wrong."""
    failures = _failures(error)
    if any(isinstance(failure, ValueError) for failure in failures):
        return None
    return next((failure for failure in failures if _tells_of_death(failure)), None)


def _tells_of_death(failure: BaseException) -> bool:
    # Ray Train has a name of its own for a worker that does not answer any more; its neighbours may
    # be the first to notice.
    if died(failure) or type(failure).__name__.startswith("WorkerHealthCheck"):
        return True
    return isinstance(failure, RuntimeError) and any(sign in str(failure) for sign in _HUNG_UP)


def _plain(error: Exception) -> Exception:
    """The error of a group of workers as one process would have raised it."""
    failures = _failures(error)
    # One that refuses says why; its neighbours only that it is gone.
    for failure in failures:
        if isinstance(failure, ValueError):
            return failure
    if failures:
        return FitError(f"a worker failed: {first_line(failures[0])}")
    return ClusterError(f"Ray could not train: {first_line(error)}")


def _check_divisible(model: OnlineModel) -> None:
    tolerance = getattr(getattr(model, "solver", None), "tolerance", None)
    if tolerance is not None and tolerance.joint:
        raise FitError(
            "step_control is 'batch': the streams of a batch share their steps, so it cannot be cut "
            "over workers; take step_control='stream', or one process."
        )
