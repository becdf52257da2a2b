"""A Ray cluster to work on: found or started, looked over, and what is wrong with it in plain words."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onlinecde.files import claim
from onlinecde.version import __version__

DEATHS = 3
"""What ended its process this often is given up."""
_ANSWER_SECONDS = 5.0
_START_SECONDS = 120.0
_HEALTH_SECONDS = 15.0
_LET_GO_SECONDS = 20.0
_STORE_BYTES = 256 << 20
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Said once more and shorter by whoever runs the work again.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed",
}


class ClusterError(ValueError):
    """A cluster that cannot be used, or work it could not do; the message says what to do."""


@dataclass(frozen=True)
class Room:
    """What a cluster has for some workers: how many at once, and the processors and GPUs of each."""

    workers: int
    cpus: int
    gpus: float

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


def check_address(address: str) -> str:
    """The address to connect to; refused where Ray is not installed or nobody answers there."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(
            "Ray is not installed: install it with `pip install 'onlinecde[ray]'`, or leave out --ray."
        )
    address = address or os.environ.get("RAY_ADDRESS", "") or "local"
    if not _is_running():
        _check_answer(address)
    return address


@contextmanager
def connected(address: str = "", *, cpus: int | None = None) -> Iterator[None]:
    """A connection to a Ray cluster for the length of the block.

    `address`: "" takes that of `RAY_ADDRESS`, or starts a cluster of this machine's cores, which
    ends with it; "local" always starts one; "auto" finds the one that runs on this machine;
    "host:port" is that of a cluster's head. A program that has called `ray.init` keeps its own.
    `cpus`: how many processors a cluster that is started may use; default, all.
    """
    address = check_address(address)
    if _is_running():
        yield
        return
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    own: dict[str, Any] = {}
    if address == "local":
        # Ray listens on all of a machine's addresses otherwise, and runs what anyone sends.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        own = {
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "num_cpus": cpus,
        }
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # each of its parts has its own
        raise ClusterError(
            f"Ray {ray.__version__} cannot use the cluster at '{address}': {first_line(error)}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def room_for(workers: int | None, device: str, *, together: bool = False) -> Room:
    """Share a cluster's processors and GPUs out; workers may wait for each other unless `together`.

    Without a number of workers there is one for each GPU; without GPUs one for each processor, or,
    `together`, for each machine.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if device.startswith("cuda") and not gpus:
        raise ClusterError("device is 'cuda', but the cluster has no GPU: choose 'cpu' or 'auto'.")
    use_gpus = gpus > 0 and device != "cpu"
    if workers is None:
        each = sum(1 for cores in cpus if cores) if together else sum(cpus)
        workers = gpus if use_gpus else each
    most = gpus if use_gpus else sum(cpus)
    if workers < 1 or (together and workers > most):
        what = "GPUs" if use_gpus else "processors"
        raise ClusterError(
            f"{workers} workers need {workers} {what} at once, and the cluster has {most}: give "
            "fewer --workers."
        )
    share = 0.0 if not use_gpus else 1.0 if workers <= gpus else 1 / -(-workers // gpus)
    return Room(workers, processors_each(cpus, workers), share)


def processors_each(nodes: Sequence[int], workers: int) -> int:
    """The largest number of processors that each worker can have on the nodes, at least 1.

    >>> processors_each([8, 4], 3), processors_each([8, 4], 2), processors_each([2], 5)
    (4, 4, 1)
    """
    for each in range(max(nodes, default=1), 1, -1):
        if sum(node // each for node in nodes) >= workers:
            return each
    return 1


def check_nodes(folder: Path) -> None:
    """Refuse a cluster with a node that has another version of this package, or not this folder."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".ray-{secrets.token_hex(8)}"
    mark.touch()
    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    try:
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            name = node["NodeManagerHostname"]
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked = look.options(scheduling_strategy=there).remote(str(mark.resolve()))
            try:
                version, seen = ray.get(asked, timeout=_START_SECONDS)
            except Exception as error:  # not there, not installed, not reachable
                raise ClusterError(
                    f"node {name} cannot work for onlinecde ({first_line(error)}): install "
                    f"onlinecde {__version__} there, or take the node out of the cluster."
                ) from error
            if version != __version__:
                raise ClusterError(
                    f"node {name} has onlinecde {version}, here it is {__version__}: install the "
                    "same on all nodes."
                )
            if not seen:
                raise ClusterError(
                    f"node {name} does not see {folder.resolve()}: give a folder on a file system "
                    "that all nodes share."
                )
    finally:
        mark.unlink(missing_ok=True)


def _look(mark: str) -> tuple[str, bool]:
    return __version__, Path(mark).exists()


def worker(function: Callable[..., Any], room: Room) -> Any:
    """A function that runs on the cluster, once each time it is called, with a worker's share."""
    import ray

    return ray.remote(num_cpus=room.cpus, num_gpus=room.gpus, max_retries=0)(function)


def wait_until_free(file: Path) -> None:
    """Give a process that is being ended a while to let go of a file; another one keeps it."""
    until = time.monotonic() + _LET_GO_SECONDS
    while file.exists() and time.monotonic() < until:
        mine = claim(file)
        if mine is not None:
            mine.release()
            return
        time.sleep(0.1)


def died(error: BaseException) -> bool:
    """Whether a process or machine was lost, and not the work itself in error."""
    from ray import exceptions

    lost = (
        exceptions.WorkerCrashedError,
        exceptions.RayActorError,
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
    )
    return isinstance(error, lost)


def first_line(error: BaseException) -> str:
    """What an error says, without the stacks of other processes."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return first_line(cause)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Ray puts a remote stack into the message; its last line is the error itself.
    stack = any(line.startswith(("Traceback", "ray::", "File ")) for line in lines)
    said = (lines[-1] if stack else lines[0]) if lines else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _is_running() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _check_answer(address: str) -> None:
    """Refuse what is no address, and one at which nobody answers."""
    if address in ("local", "auto"):
        return
    if address.startswith("ray://"):
        raise ClusterError(
            f"{address} is for Ray's client: run the command on a machine of the cluster, with "
            "--ray auto, or send it there with `ray job submit`."
        )
    parts = re.fullmatch(r"\[?([^\s/\[\]]+?)\]?:(\d{1,5})", address)
    if parts is None:
        raise ClusterError(
            f"--ray {address}: give HOST:PORT of a cluster's head, auto or local, or nothing."
        )
    try:
        socket.create_connection((parts[1], int(parts[2])), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address} ({error}): start one there with `ray start --head`, "
            "or leave the address out to use the cores of this machine."
        ) from error
    _check_health(address)


def _check_health(address: str) -> None:
    """Ask the cluster how it is in a process of its own: connecting itself may hang for minutes."""
    asking = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(asking, capture_output=True, text=True, timeout=_HEALTH_SECONDS)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"what answers at {address} is no Ray cluster that this machine can talk to: give the "
            "address that `ray start --head` named, and its port."
        ) from None
    if "AuthenticationError" in done.stderr:
        raise ClusterError(
            f"the Ray cluster at {address} wants its token: set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN_PATH to the file that has it."
        )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ClusterError(f"the Ray cluster at {address} is not well: {(said or ['no word'])[-1]}")
