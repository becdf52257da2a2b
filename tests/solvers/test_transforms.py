"""`torch.func`: ensembles, samples' own gradients and Jacobians with gradient="backprop"; refused elsewhere."""

import pytest
import torch
from solver_problems import SCHEMES, D, build, mlp, random_batch, start
from torch import nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

import onlinecde as oc


class Solve(nn.Module):
    """z at the rows, by a field that is a part of it."""

    def __init__(self, path, field, **settings):
        super().__init__()
        self.path, self.field, self.settings = path, field, {"gradient": "backprop"} | settings

    def forward(self, z0):
        return oc.solve(self.path, self.field, z0, **self.settings).z


def ensemble(scheme, sees_path=False, **settings):
    path = build(scheme, random_batch(observed=0.6 if scheme == "rectilinear" else 1.0), True)
    members = [Solve(path, mlp(path, seed=n, sees_path=sees_path), **settings) for n in range(3)]
    return members, start(path)


@pytest.mark.parametrize("sees_path", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_ensemble_is_solved_at_once(scheme, sees_path):
    members, z0 = ensemble(scheme, sees_path)
    parameters, buffers = stack_module_state(members)
    found = vmap(lambda p, b: functional_call(members[0], (p, b), (z0,)))(parameters, buffers)
    wanted = torch.stack([member(z0) for member in members])
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_stream_has_gradients_of_its_own(scheme):
    members, z0 = ensemble(scheme)
    own = dict(members[0].named_parameters())

    def losses(parameters):
        return functional_call(members[0], parameters, (z0,)).square().sum((1, 2))

    found = jacrev(losses)(own)
    for stream in range(len(z0)):
        wanted = torch.autograd.grad(losses(own)[stream], list(own.values()))
        for name, g in zip(own, wanted, strict=True):
            torch.testing.assert_close(found[name][stream], g, rtol=1e-9, atol=1e-12)


def test_gradients_of_many_starts_at_once():
    members, z0 = ensemble("rectilinear")
    starts = torch.stack([z0, 2 * z0, -z0])

    def loss(z):
        return members[0](z).square().sum()

    found = vmap(grad(loss))(starts)
    for one, g in zip(starts, found, strict=True):
        leaf = one.clone().requires_grad_()
        torch.testing.assert_close(g, torch.autograd.grad(loss(leaf), leaf)[0])


def test_an_ensemble_of_models_answers_at_once():
    batch = random_batch((4, 2, 5), observed=0.7)
    members = []
    for seed in range(3):
        torch.manual_seed(seed)
        member = oc.NeuralCDE(
            channels=2, hidden=3, outputs=2, field={"width": 5}, solver={"gradient": "backprop"}
        )
        members.append(member.double().eval())
    # Scales are those of the training series, and so of all members.
    parameters, _ = stack_module_state(members)
    found = vmap(lambda p: functional_call(members[0], p, (batch,)))(parameters)
    wanted = torch.stack([member(batch) for member in members])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"gradient": "exact"}, "gradient='exact'"),
        ({"gradient": "adjoint"}, "gradient='adjoint'"),
        ({"method": "dopri5", "rtol": 1e-3, "atol": 1e-4}, "adaptive steps"),
    ],
)
def test_what_it_cannot_look_into_is_refused(settings, named):
    (member, *_), z0 = ensemble("linear", **settings)
    for transformed in (vmap(member), jacrev(member), grad(lambda z: member(z).sum())):
        with pytest.raises(ValueError, match=rf"torch\.func.*{named}: use gradient='backprop'"):
            transformed(torch.stack([z0, z0]).to(D) if transformed is not jacrev else z0)
