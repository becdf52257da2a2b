"""In bfloat16, and under autocast, models work and stay close to what they are in float32."""

from dataclasses import replace

import pytest
import torch

import onlinecde as oc
from onlinecde.models import MODELS, online
from onlinecde.models.flat_settings import maker

PLAIN = {"backend": "torch"}
ADAPTIVE = {"method": "dopri5", "rtol": 0.01, "atol": 0.01}
CASES = [
    *((name, {}) for name in MODELS),
    ("NeuralCDE", PLAIN),
    ("NeuralCDE", ADAPTIVE),
    ("NeuralCDE", {"gradient": "adjoint"}),
    ("NeuralCDE", {"field_sees_path": True}),
    ("NeuralCDE", {"field_sees_path": True, **PLAIN}),
    ("NeuralCDE", {"control": "hermite", **PLAIN}),
    ("ODERNN", PLAIN),
    ("ODERNN", ADAPTIVE),
]
every_case = pytest.mark.parametrize(("name", "settings"), CASES, ids=str)


def made(name, settings):
    torch.manual_seed(0)
    model = maker(name)(channels=3, hidden=8, **settings)
    return model, oc.audit.trial_batch(streams=4, rows=6, channels=3, missing=0.4).to(torch.float32)


def gradients_of(model):
    return torch.cat([weight.grad.float().flatten() for weight in model.parameters()])


@every_case
@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_under_autocast(name, settings, inside):
    model, batch = made(name, settings)
    wanted = model(batch)
    wanted.sum().backward()
    exact = gradients_of(model)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch)
        if inside:
            found.float().sum().backward()
    if not inside:
        found.float().sum().backward()
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)
    assert (gradients_of(model) - exact).norm() < 0.05 * exact.norm()


@every_case
def test_in_bfloat16(name, settings):
    model, batch = made(name, settings)
    with torch.no_grad():
        wanted = model(batch)
    small = model.bfloat16()
    found = small(batch)
    found.sum().backward()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)
    with torch.no_grad():
        x = batch.values[:, 0].nan_to_num()
        state = small.observe(small.init_state(4), batch.times[:, 0], x)
        assert small.predict(state, batch.times[:, 0] + 1).isfinite().all()


HALVES = {torch.bfloat16: 256, torch.float16: 2048}
"""Where counts that are kept in a half stop: one more is the same number"""


@pytest.mark.parametrize(("dtype", "stop"), HALVES.items(), ids=str)
@pytest.mark.parametrize("count_scale", ["linear", "log"])
def test_live_counts_go_on_as_those_of_a_whole_series_do(dtype, stop, count_scale):
    rows = stop + 20
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        1, hidden=2, field={"width": 2}, encoding={"count_scale": count_scale, "count_gain": 0.01}
    ).to(dtype)
    times = torch.arange(float(rows), dtype=torch.float64)[None] / 64
    batch = oc.SeriesBatch.from_padded(times, torch.ones(1, rows, 1)).to(dtype=dtype)
    path = model.path(batch)
    with torch.no_grad():
        state = model.observe(model.init_state(), times[:, stop - 6], [[1.0]])
        state = replace(state, counts=torch.full_like(state.counts, stop - 5.0))
        for row in range(stop - 5, rows):
            state = model.observe(state, times[:, row], [[1.0]])
            again = model.observe(state, times[:, row], [[1.0]])
            assert torch.equal(again.counts, state.counts), "the same instant counts once"
            assert state.counts.item() == row + 1
            x = online.row(model, state.time, state.values, state.counts)
            assert torch.equal(x, path.rows[:, row]), f"row {row}"


def test_a_long_stream_in_bfloat16_comes_to_what_its_batch_comes_to():
    torch.manual_seed(0)
    model = (
        oc.NeuralCDE(1, hidden=4, field={"width": 4}, encoding={"count_gain": 0.1})
        .bfloat16()
        .eval()
    )
    rows = 330
    times = torch.arange(float(rows), dtype=torch.float64)[None] / 64
    values = torch.randn(1, rows, 1).cumsum(1) / 10
    with torch.no_grad():
        state = model.init_state()
        for row in range(rows):
            state = model.observe(state, times[:, row], values[:, row])
        wanted = model(oc.SeriesBatch.from_padded(times, values), final=True)
        torch.testing.assert_close(model.predict(state), wanted, rtol=0.01, atol=0.01)
