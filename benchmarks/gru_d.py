"""GRU-D's training step, beside PyPOTS's in one run.

    python -m benchmarks.gru_d
    python -m benchmarks.gru_d --out benchmarks/results/gru_d.json

Both train a linear readout of every row's state: forward, mean square, backward, Adam. Ours starts from
the raw `SeriesBatch`; PyPOTS's is given its masks, time gaps and filled values, computed beforehand.
PyPOTS's update is not quite that of Che et al. (its cell takes the decayed state twice), so the two
do the same kind of work without giving the same numbers; ours is held to the paper's equations in
tests/models/test_gru_d.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import onlinecde as oc
from benchmarks.timing import (
    Comparison,
    describe,
    machine,
    print_ratios,
    side_by_side,
    versions,
    write_results,
)


def peer_backbone() -> Any:
    """PyPOTS's `BackboneGRUD`, loaded by itself: it needs torch alone, all of PyPOTS forty packages."""
    found = importlib.util.find_spec("pypots")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("PyPOTS is not installed: pip install --no-deps pypots==1.5")
    folder = Path(found.submodule_search_locations[0]) / "nn" / "modules" / "grud"
    package = types.ModuleType("pypots_grud")
    package.__path__ = [str(folder)]
    sys.modules["pypots_grud"] = package
    return importlib.import_module("pypots_grud.backbone").BackboneGRUD


def made_batch(streams: int, rows: int, channels: int, missing: float) -> oc.SeriesBatch:
    numbers = torch.Generator().manual_seed(0)
    times = torch.rand(streams, rows, generator=numbers, dtype=torch.float64).add(0.1).cumsum(1)
    values = torch.randn(streams, rows, channels, generator=numbers)
    gone = torch.rand(values.shape, generator=numbers) < missing
    return oc.SeriesBatch.from_padded(times, values.masked_fill(gone, torch.nan))


def training_step(
    parameters: list[torch.Tensor], predict: Callable[[], torch.Tensor]
) -> Callable[[], None]:
    descent = torch.optim.Adam(parameters, lr=1e-3)

    def step() -> None:
        descent.zero_grad()
        predict().square().mean().backward()
        descent.step()

    return step


def ours(batch: oc.SeriesBatch, hidden: int) -> Callable[[], None]:
    model = oc.GRUD(channels=batch.values.shape[2], hidden=hidden, outputs=1).to(batch.device)
    return training_step(list(model.parameters()), lambda: model(batch))


def theirs(batch: oc.SeriesBatch, hidden: int) -> Callable[[], None]:
    channels = batch.values.shape[2]
    backbone = peer_backbone()(batch.times.shape[1], channels, hidden).to(batch.device)
    head = torch.nn.Linear(hidden, 1).to(batch.device)
    reader = oc.GRUD(channels=channels, hidden=1).to(batch.device)
    rows = reader.rows(batch)
    given = [part.transpose(0, 1).contiguous() for part in (rows.values, rows.mask, rows.elapsed)]
    values = batch.values.nan_to_num(0.0)
    mean = torch.zeros(channels, device=batch.device)

    def predict() -> torch.Tensor:
        return head(backbone(values, given[1], given[2], mean, given[0])[0])

    return training_step([*backbone.parameters(), *head.parameters()], predict)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="GRU-D's training step, beside PyPOTS's.")
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--rows", type=int, default=72)
    parser.add_argument("--channels", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--missing", type=float, default=0.85, help="share of values missing")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each")
    parser.add_argument("--threads", type=int, help="for both; torch's own number unless given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    asked = parser.parse_args(arguments)

    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    batch = made_batch(asked.streams, asked.rows, asked.channels, asked.missing).to(asked.device)
    steps = ours(batch, asked.hidden), theirs(batch, asked.hidden)
    shape = f"{asked.streams} streams x {asked.rows} rows x {asked.channels} channels"
    comparison = Comparison(
        f"training step, hidden {asked.hidden}",
        *side_by_side(*steps, seconds=asked.seconds, rounds=6),
        at_least=2,
    )
    hardware, installed = machine(), versions("onlinecde", "torch", "pypots")
    print_ratios(
        "GRU-D",
        "PyPOTS",
        [comparison],
        [
            f"{shape}, {asked.missing:.0%} missing, float32, {asked.device}; best of runs in turn",
            *describe(hardware, installed),
        ],
    )
    if asked.out:
        write_results(
            asked.out,
            command=["python", "-m", "benchmarks.gru_d", *(arguments or sys.argv[1:])],
            settings={key: value for key, value in vars(asked).items() if key != "out"},
            hardware=hardware,
            installed=installed,
            results=[comparison.as_json()],
        )
    return 0 if comparison.holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
