"""A field that is more than its weights is called; no kernel passes by what was added to it."""

import pytest
import torch
from solver_problems import build, mlp, random_batch, start
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

import onlinecde as oc
from onlinecde.solvers import TABLEAUS
from onlinecde.solvers.backends.gpu import unsupported_settings
from onlinecde.training import graphs


class Halved(oc.MLPField):
    def matrix(self, z, drive=None):
        return 0.5 * super().matrix(z, drive)


class HalvedColumns(oc.MLPField):
    def columns(self, features, channels):
        return 0.5 * super().columns(features, channels)


class HalvedFeatures(oc.MLPField):
    def features(self, z, drive=None):
        return 0.5 * super().features(z, drive)


class HalvedContraction(oc.MLPField):
    def contract(self, z, dx, channels, drive=None):
        return 0.5 * super().contract(z, dx, channels, drive)


class Layer(nn.Linear):
    def forward(self, x):
        return 0.5 * super().forward(x)


def become(kind):
    def change(field):
        sizes = field.hidden, field.channels, field.width, field.depth, field.activation
        other = kind(*sizes).double()
        other.load_state_dict(field.state_dict())
        return other

    return change


def heavier(field, module, name="weight"):
    """Weight norm, and twice the size."""
    parametrizations.weight_norm(module(field), name)
    with torch.no_grad():
        module(field).parametrizations[name].original0.mul_(2)


def hooked(field):
    field.inner[1].register_forward_hook(lambda layer, inputs, out: 0.5 * out)


def another_layer(field):
    field.inner[0] = Layer(field.hidden, field.width).double()


def no_bias(field):
    field.inner[1] = nn.Linear(field.width, field.width, bias=False).double()


def fewer_layers(field):
    field.inner = field.inner[:1]


def patched(field):
    plain = field.contract
    field.contract = lambda *inputs: 0.5 * plain(*inputs)


def layer_patched(field):
    plain = field.inner[0].forward
    field.inner[0].forward = lambda x: 0.5 * plain(x)


CHANGES = {
    "a matrix of its own": (become(Halved), "type Halved"),
    "columns of its own": (become(HalvedColumns), "type HalvedColumns"),
    "features of its own": (become(HalvedFeatures), "type HalvedFeatures"),
    "a contraction of its own": (become(HalvedContraction), "type HalvedContraction"),
    "a hook": (hooked, "inner layer 1 has hooks"),
    "another layer": (another_layer, "inner layer 0 is a Layer"),
    "a layer without bias": (no_bias, "inner layer 1 has no bias"),
    "fewer layers": (fewer_layers, "1 inner layers"),
    "a method patched": (patched, "method of the field was replaced"),
    "a layer patched": (layer_patched, "inner layer 0"),
    "spectral norm": (lambda f: parametrizations.spectral_norm(f.inner[0]), "inner layer 0"),
    "weight norm": (lambda f: heavier(f, lambda f: f.inner[0]), "inner layer 0"),
    "spectral norm by a hook": (lambda f: old_spectral_norm(f.inner[0]), "inner layer 0"),
    "pruning": (lambda f: prune.l1_unstructured(f.inner[0], "weight", 0.5), "inner layer 0"),
    "its last layer in weight norm": (lambda f: heavier(f, lambda f: f), "type Parametrized"),
}
every_change = pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)


def unusual(change, field):
    """The field with a change made to it, or what stands in its place."""
    other = change(field)
    return (other if isinstance(other, oc.MLPField) else field).eval()


@every_change
@pytest.mark.parametrize("scheme", ["rectilinear", "hermite"])
def test_the_solve_calls_it_and_says_why(scheme, change, told):
    path = build(
        scheme, random_batch(observed=0.6 if scheme == "rectilinear" else 1.0), counts=True
    )
    field, z0 = unusual(change, mlp(path)), start(path)
    found, wanted = oc.solve(path, field, z0), oc.solve(path, field, z0, gradient="backprop")
    assert (found.backend, told in found.reason) == ("torch", True), found.reason
    torch.testing.assert_close(found.z, wanted.z, rtol=1e-12, atol=1e-12)
    assert (found.z - oc.solve(path, mlp(path), z0).z).abs().amax() > 1e-3
    weights = [weight for weight in field.parameters() if weight.requires_grad]
    mine, theirs = (torch.autograd.grad(z.square().sum(), weights) for z in (found.z, wanted.z))
    for g, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(g, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="backend='cpu' cannot solve this"):
        oc.solve(path, field, z0, backend="cpu")


@every_change
def test_a_live_stream_notices_at_once_and_calls_it(change, told):
    torch.manual_seed(0)
    model = (
        oc.NeuralCDE(channels=2, hidden=3, field={"width": 5, "activation": "tanh"}).double().eval()
    )
    batch = random_batch((4, 4), observed=0.7)

    def live():
        with torch.no_grad():
            state = model.init_state(2)
            for row in range(4):
                state = model.observe(state, batch.times[:, row], batch.values[:, row])
            return model.predict(state)

    before = live()
    model.field = unusual(change, model.field)
    with torch.no_grad():
        torch.testing.assert_close(live(), model(batch)[:, -1], rtol=1e-10, atol=1e-10)
    assert (live() - before).abs().amax() > 1e-4


def test_shared_layers_keep_the_kernels():
    path = build("rectilinear", random_batch())
    field = mlp(path, depth=3)
    field.inner[2] = field.inner[1]
    assert oc.solve(path, field, start(path)).backend == "cpu"


@every_change
def test_gpu_kernels_leave_it_alone_too(change, told):
    path = build("rectilinear", random_batch(), counts=True)
    field = unusual(change, mlp(path))
    assert told in unsupported_settings(field, TABLEAUS["rk4"], start(path), "exact", "auto")


class Spring(oc.VectorField):
    """Pulls z back along every channel; without a weight to its name."""

    def __init__(self, hidden, channels):
        super().__init__()
        self.hidden, self.channels = hidden, channels
        self.rate = nn.Parameter(torch.linspace(0.1, 1.0, hidden, dtype=torch.float64))

    def matrix(self, z, drive=None):
        return (-self.rate * z)[:, :, None].expand(-1, -1, self.channels)


def test_a_model_may_have_a_field_of_any_kind():
    torch.manual_seed(0)
    model = oc.NeuralCDE(channels=2, hidden=3, field={"width": 5}).double().eval()
    model.field = Spring(3, model.field.channels)
    assert graphs.why_not(model) == "the model is on cpu"
    batch = random_batch((4, 4), observed=0.7)
    wanted = model(batch)
    wanted.sum().backward()
    assert model.field.rate.grad.any()
    with torch.no_grad():
        state = model.init_state(2)
        for row in range(4):
            state = model.observe(state, batch.times[:, row], batch.values[:, row])
        torch.testing.assert_close(model.predict(state), wanted[:, -1])


def test_a_pruned_field_of_low_rank_keeps_its_weight():
    path = build("rectilinear", random_batch(), counts=True)
    field = mlp(path, rank=2)
    prune.l1_unstructured(field, "mixing", 0.5)
    assert oc.solve(path, field, start(path)).reason == (
        "weight or bias of the field is not a parameter of it"
    )
    expected = (field.mixing @ field.basis).view_as(field.weight)
    torch.testing.assert_close(field.weight, expected)


def test_an_ode_rnn_goes_leg_by_leg_with_such_a_field():
    model = oc.ODERNN(channels=1, hidden=3)
    assert model.legs_alike() is None
    hooked(model.field)
    assert "has hooks" in model.legs_alike()


def test_weight_norm_by_a_hook_works_too():
    path = build("rectilinear", random_batch(), counts=True)
    field, z0 = mlp(path), start(path)
    before = oc.solve(path, field, z0).z
    with pytest.warns(FutureWarning, match="weight_norm"):
        old_weight_norm(field.inner[0])
    torch.testing.assert_close(oc.solve(path, field, z0).z, before)
