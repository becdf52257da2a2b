"""What is known of a task besides its labels: the true risk of a simulated ward, and its events."""

from __future__ import annotations

from torch import Tensor

from onlinecde.data import Task, simulate_ward


def known_risk(task: Task) -> tuple[Tensor, Tensor] | None:
    """The best possible risk (stream, row) and the time of the event (stream,); None where not known.

    A simulated ward is simulated again from its settings, and must turn out the same.

    >>> known_risk(simulate_ward(20, seed=3).task)[1].shape
    torch.Size([20])
    """
    told = task.settings
    if task.name != "simulated-ward" or "simulation_seed" not in told:
        return None
    ward = simulate_ward(
        told["streams"],
        seed=told["simulation_seed"],
        hours=told["hours"],
        horizon=told["horizon"],
        split_seed=told["seed"],
    )
    same = ward.task.series.times.equal(task.series.times)
    return (ward.online_risk, ward.event_hours) if same else None
