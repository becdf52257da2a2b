"""An engine whose model is on a GPU answers as the one on the CPU does, and keeps the same states."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.models.flat_settings import neural_cde
from onlinecde.streaming import Engine, Event, SQLiteStore

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
NAMES = ["a", "b", "c"]


def made(device, **keywords):
    torch.manual_seed(3)
    settings = {"hidden": 16, "width": 24, "activation": "silu", **keywords}
    return neural_cde(3, **settings).to(device).eval()


def events(seed, streams=300, rows=6):
    random = np.random.default_rng(seed)
    found = []
    for row in range(rows):
        for stream in range(streams):
            for name in NAMES:
                if random.random() < 0.6:
                    found.append(Event(f"s{stream}", row + 0.5, name, random.normal()))
    return found


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {
            "field_sees_path": True,
            "readout_sees_path": True,
            "readout_ramps": 3,
            "readout_width": 8,
        },
    ],
)
def test_it_answers_as_on_the_cpu_and_a_restart_on_either_goes_on(tmp_path, keywords):
    told = events(0)
    there = Engine(made("cuda", **keywords), SQLiteStore(tmp_path / "gpu.db"), channels=NAMES)
    here = Engine(made("cpu", **keywords), channels=NAMES)
    half = len(told) // 2
    for engine in (there, here):
        assert {receipt.outcome.name for receipt in engine.apply(told[:half])} == {"APPLIED"}
    there.close()
    # What the GPU began, the CPU can go on with: states are the model's, not the machine's.
    back = Engine(made("cpu", **keywords), SQLiteStore(tmp_path / "gpu.db"), channels=NAMES)
    for engine in (back, here):
        engine.apply(told[half:])
    for stream in ("s0", "s7", "s299"):
        found, wanted = (engine.predict(stream, at=7.25) for engine in (back, here))
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def test_a_row_the_model_cannot_take_does_not_harm_its_neighbours():
    engine = Engine(made("cuda"), channels=NAMES, horizon=1e30)
    told = [Event(f"s{n}", 0.0, "a", 1.0) for n in range(5)]
    told += [Event("s2", 1.0, "a", 3e38), Event("s3", 1.0, "a", 2.0)]
    outcomes = [receipt.outcome.name for receipt in engine.apply(told)]
    assert outcomes[5] != "APPLIED"
    assert outcomes[6] == "APPLIED"
    assert np.isfinite(engine.predict("s3", at=2.0)).all()


def test_other_models_are_sent_to_the_cpu():
    model = oc.GRUD(3, hidden=4).to("cuda")
    with pytest.raises(ValueError, match=r"give it model\.cpu"):
        Engine(model, channels=NAMES)
