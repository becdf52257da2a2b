"""A Neural CDE's captured step by the GPU's kernels in Triton's interpreter, and how far off the plain one it is.

Run with TRITON_INTERPRET=1 and controls, "driven" behind those of fields that see the path; it prints JSON.
"""

import copy
import json
import sys

import torch
from recomputed import NoLook, Recomputing, made_labels, plain_step

import onlinecde as oc
from onlinecde.training import graphs


class Recomputed(Recomputing, graphs.GraphedStep):
    def _compute(self, inputs):
        with NoLook():
            return super()._compute(inputs)


def made_batch(rows, seed):
    """Streams of so many rows, every third value missing."""
    numbers = torch.Generator().manual_seed(seed)
    times, values = [], []
    for many in rows:
        times.append(torch.rand(many, generator=numbers).double().add(0.1).cumsum(0))
        drawn = torch.randn(many, 2, generator=numbers)
        values.append(drawn.where(torch.rand(many, 2, generator=numbers) > 1 / 3, torch.nan))
    return oc.SeriesBatch.from_arrays(times, values)


def errors(control, driven):
    """The largest relative errors of loss and gradients over batches that follow each other, by name."""
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        2,
        hidden=4,
        control=control,
        field={"width": 5, "depth": 1, "activation": "silu", "sees_path": bool(driven)},
        readout={"kind": "binary", "sees_path": True},
        solver={"method": "midpoint"},
    )
    plain = copy.deepcopy(model).double()
    step, found = Recomputed(model, streams=4), {}
    for seed, rows in enumerate([(2, 4, 1, 3), (1, 3)]):
        batch = made_batch(rows, seed)
        labels = made_labels(batch, "binary", False, seed)
        loss = step(batch, labels.float())
        pairs = {"loss": (loss, plain_step(plain, batch.to(dtype=torch.float64), labels, False))}
        for (name, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            pairs[name] = mine.grad, other.grad
        for name, (mine, wanted) in pairs.items():
            off = float((mine - wanted).norm() / wanted.norm())
            found[name] = max(off, found.get(name, 0.0))
    return found


if __name__ == "__main__":
    graphs.why_not = lambda model: None
    torch.cuda.graph_pool_handle = lambda: None
    print(json.dumps({name: errors(*name.partition(" ")[::2]) for name in sys.argv[1:]}))
