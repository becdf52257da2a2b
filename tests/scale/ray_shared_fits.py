"""One process of a few trainings that share their batches: RANK PROCESSES FOLDER SEED."""

import json
import sys
from dataclasses import replace

import torch
import torch.distributed as dist

from onlinecde.data import simulate_ward
from onlinecde.scale.ray_training import SharedTraining
from onlinecde.training import fit

SIZES = {"hidden": 5, "width": 5, "depth": 1, "channel_dropout": 0.3, "readout_dropout": 0.0}


def cases(seed):
    """Tasks whose labels are many in some streams and none in others."""
    ward = simulate_ward(40, seed=seed % 1000, hours=10).task
    rare = torch.rand(ward.labels.shape, generator=torch.Generator().manual_seed(seed))
    streams = torch.arange(len(ward.series))
    rows = ward.labels.clone()
    # Of the training split alone, and never an event: either class is there to learn and to judge by.
    learned = torch.zeros(len(streams), dtype=torch.bool)
    learned[ward.splits["train"]] = True
    learned &= streams % 5 > 0
    rows[learned & ~(rows == 1).any(1)] = torch.nan
    rows = torch.where((rare < 0.7) & (rows == 0) & learned[:, None], torch.nan, rows)
    classes = torch.where(streams % 3 == 0, streams % 4 // 2, torch.where(streams % 5 == 0, 2, -1))
    numbers = torch.stack([streams / 10.0, 3.0 - streams % 7], 1)
    numbers[::2, 1] = torch.nan
    numbers[::4, 0] = torch.nan
    numbers[streams % 3 > 0] = torch.nan
    how = {"epochs": 3, "batch_size": 3, "lr": 0.01, "dtype": "float64", "device": "cpu"}
    # Other labels than the ward's own: its truth is not theirs.
    ward = replace(ward, truth=None, known_risk=None)
    binary = replace(ward, labels=rows)
    several = replace(
        ward, labels=classes, kind="multiclass", per="stream", metric="accuracy",
        classes=("a", "b", "c"),
    )  # fmt: skip
    regression = replace(ward, labels=numbers, kind="regression", per="stream", metric="rmse")
    return {
        "rows": (binary, "neural-cde", {"model_settings": SIZES, **how}),
        "classes": (
            several, "neural-cde",
            {"model_settings": SIZES, **how, "class_weights": "balanced", "batch_size": 4},
        ),
        "numbers": (regression, "gru-d", {"model_settings": {"hidden": 5}, **how, "average": 0.0}),
        "ahead": (
            binary, "neural-cde",
            {"model_settings": SIZES, **how, "horizons": (2.0, float("inf")), "horizon_weight": 1.0},
        ),
        "rounded": (binary, "neural-cde", {"model_settings": SIZES, **how, "dtype": "float32"}),
    }  # fmt: skip


class Counted(SharedTraining):
    """Remembers how many labels of each batch every process had."""

    shares: list = []

    def _gradients(self, batch, labels, *more):
        known = labels >= 0 if self.kind == "multiclass" else ~labels.isnan()
        many = [int(known[rank :: self.processes].sum()) for rank in range(self.processes)]
        self.shares.append(many)
        return super()._gradients(batch, labels, *more)


def flat(model):
    with torch.no_grad():
        return torch.cat([weight.flatten().double() for weight in model.parameters()]).tolist()


def all_fits(seed, **more):
    """History, weights and shares of every case."""
    found = {}
    for name, (task, model, how) in cases(seed).items():
        Counted.shares = []
        done = fit(task, model, **how, **more)
        found[name] = {
            "history": done.history,
            "weights": flat(done.model),
            "shares": Counted.shares,
        }
    return found


def main(rank, processes, home, seed):
    torch.set_num_threads(1)
    where = f"file://{home}/{processes}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=processes)
    found = all_fits(seed, loop=Counted)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
