"""A field that draws random numbers or changes its buffers has the gradients of what it did, or none."""

import numpy as np
import pytest
import torch
from solver_problems import SCHEMES, build, random_batch, start
from torch import nn
from torch.nn.utils import parametrizations

import onlinecde as oc

ADAPTIVE = {"method": "bosh3", "rtol": 1e-2, "atol": 1e-2}


class Net(nn.Module):
    """Layers between z and f(z)."""

    def __init__(self, hidden, channels, between, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.last = nn.Linear(hidden, 6), nn.Linear(6, hidden * channels)
        self.between, self.shape = between, (hidden, channels)

    def forward(self, z):
        return self.last(self.between(self.first(z).tanh())).tanh().unflatten(1, self.shape)


def net(path, kind):
    between = {"dropout": nn.Dropout(0.4), "batch norm": nn.BatchNorm1d(6)}
    made = Net(3, path.channels, between.get(kind, nn.Identity()))
    if kind == "spectral norm":
        with torch.random.fork_rng():  # it begins with vectors drawn at random
            torch.manual_seed(1)
            parametrizations.spectral_norm(made.first)
    return made.double().train()


KINDS = ("dropout", "batch norm", "spectral norm")


def state_of(field):
    """Its buffers and torch's random numbers, copied."""
    return [torch.get_rng_state(), *(buffer.clone() for buffer in field.buffers())]


def loss_and_gradients(field, z0, path, **settings):
    torch.manual_seed(5)
    z = oc.solve(path, field, z0, **settings).z
    weights = [weight for weight in field.parameters() if weight.requires_grad]
    after = state_of(field)
    found = torch.autograd.grad(z.square().sum(), [z0, *weights])
    assert all(map(torch.equal, state_of(field), after)), "the way back leaves all as it was"
    return z.detach(), found, after


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_exact_gradients_are_those_of_the_masks_and_buffers_of_the_forward_sweep(scheme, kind):
    path = build(scheme, random_batch((4, 4, 3), observed=1.0), counts=True)
    z0 = start(path).requires_grad_()
    wanted, found = (
        loss_and_gradients(net(path, kind), z0, path, gradient=gradient, steps=2)
        for gradient in ("backprop", "exact")
    )
    for mine, other in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)
    assert all(map(torch.equal, found[2], wanted[2])), "evaluations count once"
    still = oc.solve(path, net(path, kind).eval(), z0).z
    assert kind == "spectral norm" or (still - found[0]).abs().amax() > 1e-3


def test_dropout_in_the_field_has_the_gradient_of_finite_differences():
    path = build("linear", random_batch((3, 3)))
    field, z0 = net(path, "dropout"), start(path)

    def loss(z0):
        torch.manual_seed(3)
        return oc.solve(path, field, z0).z.square().sum()

    z0.requires_grad_()
    (g,) = torch.autograd.grad(loss(z0), z0)
    with torch.no_grad():
        nudge = torch.zeros_like(z0)
        nudge[1, 2] = 1e-5
        assert float(g[1, 2]) == pytest.approx(
            float(loss(z0 + nudge) - loss(z0 - nudge)) / 2e-5, rel=1e-6
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gradient": "adjoint"}, "the adjoint equation"),
        (ADAPTIVE, "adaptive steps"),
        ({**ADAPTIVE, "gradient": "backprop"}, "adaptive steps"),
        ({**ADAPTIVE, "gradient": "adjoint"}, "adaptive steps"),
    ],
    ids=["adjoint", "adaptive", "adaptive backprop", "adaptive adjoint"],
)
def test_what_cannot_be_right_is_refused_before_anything_changes(settings, why, kind):
    path = build("linear", random_batch((3, 3)))
    field, z0 = net(path, kind), start(path)
    before = state_of(field)
    said = "draws random numbers" if kind == "dropout" else "changes its buffer"
    with pytest.raises(ValueError, match=rf"{said}.*{why}.*field\.eval\(\)"):
        oc.solve(path, field, z0, **settings)
    assert all(map(torch.equal, state_of(field), before))
    with torch.no_grad():
        oc.solve(path, field, z0, **settings)
    oc.solve(path, field.eval(), z0, **settings)


@pytest.mark.parametrize("settings", [{}, ADAPTIVE], ids=["fixed", "adaptive"])
def test_chance_that_cannot_be_repeated_is_noticed_on_the_way_back(settings):
    path = build("linear", random_batch((3, 3)))
    numbers = np.random.default_rng(0)

    class Shaken(Net):
        def forward(self, z):
            return super().forward(z) * (1 + 0.01 * numbers.random())

    z0 = start(path).requires_grad_()
    loss = oc.solve(path, Shaken(3, path.channels, nn.Identity()).double(), z0, **settings).z.sum()
    with pytest.raises(RuntimeError, match=r"other values when it was evaluated again.*backprop"):
        loss.backward()


class Pull(oc.VectorField):
    """Pulls z back along every channel."""

    def __init__(self, path):
        super().__init__()
        self.hidden, self.channels = 3, path.channels
        self.rate = nn.Parameter(torch.linspace(0.1, 1.0, 3, dtype=torch.float64))

    def matrix(self, z, drive=None):
        return (-self.rate * z)[:, :, None].expand(-1, -1, self.channels)


@pytest.mark.parametrize("settings", [{}, {"gradient": "adjoint"}, ADAPTIVE])
def test_hooks_on_a_field_are_called_wherever_it_is_evaluated(settings):
    path = build("linear", random_batch((3, 3)))
    field, halved = Pull(path), Pull(path)
    torch.testing.assert_close(field(start(path)), field.matrix(start(path)))
    field.register_forward_hook(lambda module, inputs, out: 0.5 * out)
    with torch.no_grad():
        halved.rate.mul_(0.5)
    found, wanted = (oc.solve(path, one, start(path), **settings).z for one in (field, halved))
    torch.testing.assert_close(found, wanted)
    (g,), (halves,) = (
        torch.autograd.grad(z.sum(), [one.rate]) for z, one in ((found, field), (wanted, halved))
    )
    torch.testing.assert_close(g, 0.5 * halves)


def test_hooks_that_would_never_be_called_are_refused():
    path = build("linear", random_batch((3, 3)))
    field = oc.MLPField(3, path.channels).double()
    field.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"has hooks, which would never be called"):
        oc.solve(path, field, start(path))
