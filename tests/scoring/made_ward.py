"""A small ward as tables, and models with names for it."""

import numpy as np
import polars as pl
import torch

import onlinecde as oc
from onlinecde.series.static_columns import StaticColumn

CHANNELS = ("hr", "bp", "temp")
LONG = {"stream": "stay", "time": "hours", "channel": "name", "value": "value"}
WIDE = {"stream": "stay", "time": "hours"}
STATIC = (StaticColumn("age", fill=61.0, indicator=True), StaticColumn("sex", ("f", "m")))


def named(model, static=STATIC):
    """A model with the names of the ward's channels."""
    model.schema = oc.Schema(CHANNELS, static, "hours")
    model.encoding.time_scale.fill_(10.0)
    return model.eval()


def made_cde():
    """A Neural CDE with weights as they were drawn."""
    torch.manual_seed(0)
    readout = {"kind": "binary", "sees_path": True}
    return named(oc.NeuralCDE(3, 8, static=4, field={"width": 8}, readout=readout))


def made_vitals(stays=60):
    """Events of some stays, long, in no order at all."""
    random = np.random.default_rng(0)
    lines = [
        (f"bed {stay}", float(t), name, float(random.normal()))
        for stay in range(stays)
        for t in np.cumsum(0.01 + random.exponential(1.0, random.integers(1, 25))).round(4)
        for name in CHANNELS
        if random.random() < 0.6
    ]
    frame = pl.DataFrame(lines, schema=["stay", "hours", "name", "value"], orient="row")
    return frame.sample(fraction=1.0, shuffle=True, seed=1)


def made_stays(vitals):
    """Static features, with gaps and a category that the model does not know."""
    ids = vitals["stay"].unique().sort()
    return pl.DataFrame(
        {
            "stay": ids,
            "age": [None if place % 7 == 3 else 40.0 + place for place in range(len(ids))],
            "sex": ["x" if place == 5 else "fm"[place % 2] for place in range(len(ids))],
        }
    )
