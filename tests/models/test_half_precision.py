"""In bfloat16, and under autocast, models work and stay close to what they are in float32."""

import pytest
import torch

import onlinecde as oc
from onlinecde.models import MODELS

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
    model = MODELS[name](channels=3, hidden=8, **settings)
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
