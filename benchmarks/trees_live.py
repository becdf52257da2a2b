"""What trees beside the readout cost a live row: a row and a prediction of `fit`'s recipe without and with them.

    python -m benchmarks.trees_live

37 channels, 5 of them observed in a row, 11 static features: the sizes of PhysioNet 2012. Trees of 16 leaves. CPU
seconds of one thread, best of several rounds.
"""

from __future__ import annotations

import time

import numpy as np
import torch

import onlinecde as oc
from onlinecde.models.flat_settings import neural_cde
from onlinecde.models.forest import Forest
from onlinecde.models.frozen import FrozenCDE

CHANNELS, STATIC, TREES, DEPTH = 37, 11, 700, 4


def recipe(*, members: int, steps: int, trees: int) -> FrozenCDE:
    """A model of the sizes of `fit`'s recipe, its scales fitted to noise."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = neural_cde(
        CHANNELS, 32, 64, 1, static=STATIC, kind="binary", activation="silu", field_sees_path=True, rank=16,
        readout_sees_path=True, static_in_path=True, readout_ramps=6, readout_width=256 if members > 1 else 128,
        readout_members=members, readout_steps=steps, gain=0.3, count_gain=0.1, clip=5.0, bounded=True, restoring=0.75,
    ).eval()  # fmt: skip
    values = random.normal(size=(40, 30, CHANNELS))
    values[random.random(values.shape) > 0.2] = np.nan
    static = random.normal(size=(40, STATIC))
    model.fit_scales(oc.SeriesBatch.from_arrays([np.arange(30.0)] * 40, list(values), static=static))  # fmt: skip
    if trees:
        model.plant(forest(trees, model.told, random))
    return model.frozen()


def forest(trees: int, numbers: int, random: np.random.Generator) -> Forest:
    """Complete trees with thresholds drawn by lot."""
    nodes = 2 ** (DEPTH + 1) - 1
    at, first = np.arange(nodes), nodes * np.arange(trees)[:, None]
    leaf = at >= nodes // 2
    left, right = (np.where(leaf, at, 2 * at + side) + first for side in (1, 2))
    size = trees * nodes
    return Forest(trees, size, DEPTH).put(
        root=first[:, 0], output=np.zeros(trees), number=random.integers(0, numbers, size), base=[0.0], share=0.5,
        threshold=random.normal(size=size), missing_left=random.random(size) < 0.5, left=left.ravel(),
        right=right.ravel(), value=random.normal(size=size),
    )  # fmt: skip


@torch.no_grad()
def seconds_a_row(model: FrozenCDE, streams: int) -> float:
    """CPU seconds of one row of one stream, observed and predicted."""
    state = model.init_state(streams, torch.randn(streams, STATIC))
    row = torch.full((streams, CHANNELS), torch.nan)
    row[:, :5] = 1.0
    best, calls = float("inf"), max(2, 30 // streams)
    for number in range(5):
        began = time.process_time()
        for call in range(calls):
            state = model.observe(state, float(number * calls + call), row)
            model.predict(state)
        if number:
            best = min(best, (time.process_time() - began) / calls / streams)
    return best


def main() -> None:
    torch.set_num_threads(1)
    for what, members, steps in (("one MLP", 1, 0), ("16 members, 256 steps", 16, 256)):
        without, grown = (
            recipe(members=members, steps=0 if trees else steps, trees=trees)
            for trees in (0, TREES)
        )
        for streams in (1, 256):
            before, after = seconds_a_row(without, streams), seconds_a_row(grown, streams)
            print(
                f"{what}, {streams} streams at once: {before * 1e6:.1f} us a row, with {TREES} trees "
                f"{after * 1e6:.1f} us: {after / before:.2f} times"
            )


if __name__ == "__main__":
    main()
