"""What workers tell while they work: a desk on the cluster, read by whoever started them."""

from __future__ import annotations

from typing import Any

from onlinecde.training.callbacks import Callback


class Desk:
    """Keeps messages until they are fetched."""

    def __init__(self) -> None:
        self._told: list[tuple[Any, ...]] = []

    def tell(self, *words: Any) -> None:
        self._told.append(words)

    def hear(self) -> list[tuple[Any, ...]]:
        news, self._told = self._told, []
        return news


def open_desk() -> Any:
    """A desk on the cluster; should it be lost, another takes its place and old news are gone."""
    import ray

    return ray.remote(num_cpus=0, max_restarts=-1)(Desk).remote()


def hear(desk: Any) -> list[tuple[Any, ...]]:
    """News since the last time, in the order in which each worker told them."""
    import ray
    from ray import exceptions

    try:
        return ray.get(desk.hear.remote())
    except exceptions.RayError:
        # No work depends on these messages.
        return []


class Telling(Callback):
    """A callback that tells a desk of epochs and notes, under a name."""

    def __init__(self, desk: Any, name: Any) -> None:
        self.desk, self.name = desk, name

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        self.desk.tell.remote(self.name, "epoch", entry, best)

    def note(self, text: str) -> None:
        self.desk.tell.remote(self.name, "note", text)
