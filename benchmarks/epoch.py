"""Seconds of a training epoch: ours beside torchcde and PyPOTS's GRU-D, in one run.

    python -m benchmarks.epoch --out benchmarks/results/epoch.json
    python -m benchmarks.epoch --device cpu --streams 128 --seconds 2

Made series of the size of the paper's mortality task. A step is the forward pass, the loss on one label
a series, all gradients, and Adam; an epoch is the best step times the number of batches. Every Neural CDE is the
same network on the same rectilinear path with counts, rk4 (the 3/8 rule), one step a leg. Ours starts
from the raw series, and on a GPU replays a CUDA graph, as does our GRU-D; torchcde is handed the finished
path and PyPOTS its masks, time gaps and filled values, all computed beforehand. torchcde runs with
`perturb=True`, without which it solves another problem, and backpropagates through the solver.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import onlinecde as oc
from benchmarks.gru_d import peer_backbone
from benchmarks.timing import best_of, machine, versions, write_results
from onlinecde.models.flat_settings import neural_cde

STAYS = 50_538
SIZES: dict[str, Any] = {"hidden": 70, "width": 55, "depth": 2}
GRU_D_HIDDEN = 398

Step = Callable[[], None]


def made_batch(
    streams: int, rows: int, channels: int, observed: float, device: str
) -> tuple[oc.SeriesBatch, torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    times = torch.rand(streams, rows, generator=numbers, dtype=torch.float64).cumsum(1)
    values = torch.randn(streams, rows, channels, generator=numbers)
    values[torch.rand(values.shape, generator=numbers) >= observed] = torch.nan
    labels = torch.randint(0, 2, (streams,), generator=numbers).float()
    return oc.SeriesBatch.from_padded(times, values).to(device), labels.to(device)


def our_cde(batch: oc.SeriesBatch, labels: torch.Tensor, precision: str) -> Step:
    channels = batch.values.shape[2]
    # Counts reach 70: at a twentieth of their size states stay in a range where float32 is fair.
    model = neural_cde(channels, **SIZES, kind="binary", count_gain=0.05, precision=precision)
    return _as_fit_does(model.to(batch.device).train(), batch, labels)


def our_gru_d(batch: oc.SeriesBatch, labels: torch.Tensor) -> Step:
    model = oc.GRUD(batch.values.shape[2], GRU_D_HIDDEN, kind="binary").to(batch.device)
    return _as_fit_does(model.train(), batch, labels)


def _as_fit_does(model: Any, batch: oc.SeriesBatch, labels: torch.Tensor) -> Step:
    """A step from a CUDA graph where `fit` takes one."""
    from onlinecde.training.graphs import GraphedStep, why_not
    from onlinecde.training.recurrent_graphs import RecurrentStep

    if why_not(model):
        return _plain(model, batch, labels)
    descent = _adam(model)
    captured = GraphedStep if isinstance(model, oc.NeuralCDE) else RecurrentStep
    graphed = captured(model, streams=len(labels), final=True)

    def step() -> None:
        graphed(batch, labels)
        descent.step()

    return step


def torchcde_cde(batch: oc.SeriesBatch, labels: torch.Tensor) -> Step:
    import torchcde

    knots = neural_cde(batch.values.shape[2], **SIZES, count_gain=0.05).to(batch.device)
    with torch.no_grad():
        path = knots.path(batch)
        control = torchcde.LinearInterpolation(path.evaluate(path.knots).float())
        first = path.rows[:, 0].float()
    channels, hidden, width = first.shape[1], SIZES["hidden"], SIZES["width"]
    inner: list[torch.nn.Module] = []
    for place in range(SIZES["depth"]):
        inner += [torch.nn.Linear(width if place else hidden, width), torch.nn.ReLU()]

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            last = torch.nn.Linear(width, hidden * channels)
            self.layers = torch.nn.Sequential(*inner, last, torch.nn.Tanh())

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.layers(z).view(-1, hidden, channels)

    start, field, readout = torch.nn.Linear(channels, hidden), Field(), torch.nn.Linear(hidden, 1)
    model = torch.nn.ModuleList([start, field, readout]).to(batch.device)
    descent = _adam(model)

    def step() -> None:
        descent.zero_grad()
        z = torchcde.cdeint(
            control,
            field,
            start(first),
            control.interval,
            adjoint=False,
            method="rk4",
            options={"step_size": 1.0, "perturb": True},
        )
        _loss(readout(z[:, -1])[:, 0], labels).backward()
        descent.step()

    return step


def pypots_gru_d(batch: oc.SeriesBatch, labels: torch.Tensor) -> Step:
    channels = batch.values.shape[2]
    backbone = peer_backbone()(batch.times.shape[1], channels, GRU_D_HIDDEN)
    model = torch.nn.ModuleList([backbone, torch.nn.Linear(GRU_D_HIDDEN, 1)]).to(batch.device)
    rows = oc.GRUD(channels=channels, hidden=1).to(batch.device).rows(batch)
    filled, mask, elapsed = (
        part.transpose(0, 1).contiguous() for part in (rows.values, rows.mask, rows.elapsed)
    )
    values, mean = batch.values.nan_to_num(0.0), torch.zeros(channels, device=batch.device)
    descent = _adam(model)

    def step() -> None:
        descent.zero_grad()
        _, last = model[0](values, mask, elapsed, mean, filled)
        _loss(model[1](last)[:, 0], labels).backward()
        descent.step()

    return step


LIBRARIES: dict[str, Callable[[oc.SeriesBatch, torch.Tensor], Step]] = {
    "onlinecde NeuralCDE, high": lambda batch, labels: our_cde(batch, labels, "high"),
    "onlinecde NeuralCDE": lambda batch, labels: our_cde(batch, labels, "highest"),
    "onlinecde GRU-D": our_gru_d,
    "torchcde Neural CDE": torchcde_cde,
    "PyPOTS GRU-D": pypots_gru_d,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Seconds of a training epoch.")
    parser.add_argument("--streams", type=int, default=1024, help="series a batch")
    parser.add_argument("--rows", type=int, default=72)
    parser.add_argument("--channels", type=int, default=37)
    parser.add_argument("--observed", type=float, default=0.15)
    parser.add_argument("--stays", type=int, default=STAYS, help="series an epoch")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each library")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    asked = parser.parse_args(arguments)
    batches = -(-asked.stays // asked.streams)
    results = []
    for name, library in LIBRARIES.items():
        if asked.device == "cpu" and name.endswith("high"):
            continue  # precision is a choice of the GPU kernels
        torch.manual_seed(0)
        shape = asked.streams, asked.rows, asked.channels, asked.observed
        batch, labels = made_batch(*shape, asked.device)
        memory = _held(asked.device)
        step = library(batch, labels)
        step()  # compiles and captures, which may take longer than all that is timed
        timing = best_of(step, seconds=asked.seconds)
        results.append(
            {
                "library": name,
                "step_s": timing.median,
                "step_best_s": timing.best,
                "runs": timing.runs,
                "epoch_s": timing.best * batches,
                "memory": memory(),
            }
        )
        print(f"{name:28} {timing.best * 1e3:9.1f} ms a step, {timing.best * batches:8.2f} s")
        del step, batch, labels
    if asked.out:
        installed = versions("torch", "triton", "torchcde", "torchdiffeq", "pypots")
        write_results(
            asked.out,
            command=["python", "-m", "benchmarks.epoch", *(arguments or sys.argv[1:])],
            settings={**{k: v for k, v in vars(asked).items() if k != "out"}, "batches": batches},
            hardware=machine(),
            installed={"onlinecde": oc.__version__, **installed},
            results=results,
        )
    return 0


def _plain(model: Any, batch: oc.SeriesBatch, labels: torch.Tensor) -> Step:
    descent = _adam(model)

    def step() -> None:
        descent.zero_grad()
        model.readout.loss(model(batch, final=True), labels).backward()
        descent.step()

    return step


def _adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 1e-4, fused=True)


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


def _held(device: str) -> Callable[[], int | None]:
    """How much more the GPU held at its highest than it does now; not measured on a CPU."""
    if device == "cpu":
        return lambda: None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    return lambda: torch.cuda.max_memory_allocated() - before


if __name__ == "__main__":
    raise SystemExit(main())
