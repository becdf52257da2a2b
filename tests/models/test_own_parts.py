"""A part of one's own, a hook, a parametrization: they count everywhere a model is asked, or are refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.models import MODELS
from onlinecde.models.flat_settings import maker, neural_cde
from onlinecde.training import graphs

SEED = 0


def made(**settings):
    torch.manual_seed(SEED)
    settings = {"channels": 2, "hidden": 3, "width": 6, "outputs": 2, "activation": "tanh", **settings}  # fmt: skip
    model = neural_cde(**settings).double().eval()
    return model, oc.audit.trial_batch_for(model, 1, streams=3, rows=5, missing=0.3)


def online(model, batch):
    """What a model says after each row, row by row."""
    state, said = model.init_state(len(batch), batch.static), []
    for row in range(batch.times.shape[1]):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
        said.append(model.predict(state))
    return torch.stack(said, 1)


def asked_everywhere(model, batch):
    """Outputs of a batch in which every stream has all rows, the same however they are asked for."""
    batch = oc.SeriesBatch.from_padded(batch.times[:1], batch.values[:1])
    wanted = model(batch)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(model(batch, final=True), wanted[:, -1], **close)
    torch.testing.assert_close(model(batch, at=batch.times), wanted, **close)
    later = batch.times[:, -1] + 0.3
    state = model.init_state(1)
    for row in range(batch.times.shape[1]):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
    torch.testing.assert_close(
        model.predict(state, later), model(batch, at=later[:, None])[:, 0], **close
    )
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(online(model, batch), wanted, **close)
    torch.testing.assert_close(model.explain(batch).outputs(), wanted, rtol=1e-6, atol=1e-6)
    return wanted.detach()


class Matrix(nn.Module):
    """A field as researchers write it: z (stream, hidden) -> (stream, hidden, channel)."""

    def __init__(self, hidden, channels):
        super().__init__()
        self.layer, self.shape = nn.Linear(hidden, hidden * channels), (hidden, channels)

    def forward(self, z):
        return self.layer(z).tanh().unflatten(1, self.shape)


def plain_field(model):
    model.field = Matrix(3, model.encoding.path_channels).double()


def initial_mlp(model):
    inputs = model.initial.in_features
    model.initial = nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def initial_without_bias(model):
    model.initial = nn.Linear(model.initial.in_features, 3, bias=False).double()


def initial_hook(model):
    model.initial.register_forward_hook(lambda layer, inputs, z: -z)


def initial_patched(model):
    plain = model.initial.forward
    model.initial.forward = lambda x: plain(x) + 1


def initial_weight_norm(model):
    parametrizations.weight_norm(model.initial)
    with torch.no_grad():
        model.initial.parametrizations.weight.original0.mul_(2)


def readout_hook(model):
    model.readout.register_forward_hook(lambda head, inputs, y: 2 * y)


def readout_layer_hook(model):
    model.readout.layers.register_forward_hook(lambda head, inputs, y: y.sinh())


def readout_spectral_norm(model):
    with torch.no_grad():
        model.readout.layers.weight.mul_(9)
    parametrizations.spectral_norm(model.readout.layers).eval()


def own_readout(model):
    model.readout = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


class Loud(oc.controls.Encoding):
    def scale_values(self, values):
        return 3 * super().scale_values(values)


def own_encoding(model):
    model.encoding = Loud(2, counts=True).double()


def encoding_patched(model):
    plain = model.encoding.scale_counts
    model.encoding.scale_counts = lambda counts: 0.5 * plain(counts)


CHANGES = [
    plain_field,
    initial_mlp,
    initial_without_bias,
    initial_hook,
    initial_patched,
    initial_weight_norm,
    readout_hook,
    readout_layer_hook,
    readout_spectral_norm,
    own_readout,
    own_encoding,
    encoding_patched,
]
every_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@every_change
def test_it_counts_wherever_the_model_is_asked(change):
    model, batch = made()
    with torch.no_grad():
        before = asked_everywhere(model, batch)
    change(model)
    after = asked_everywhere(model, batch)
    assert (after - before).abs().amax() > 1e-3


@every_change
def test_a_captured_step_leaves_it_to_the_plain_one(change):
    model, _ = made()
    assert graphs.why_not(model) == "the model is on cpu"
    change(model)
    told = graphs.why_not(model)
    # A field without kernels is refused by the solver, where there is a GPU; the others are captured well.
    fine = (plain_field, initial_without_bias, readout_spectral_norm)
    assert (told == "the model is on cpu") == (change in fine), told


@every_change
def test_a_model_that_load_would_make_another_is_not_saved(change, tmp_path):
    model, _ = made()
    change(model)
    with pytest.raises(
        ArtifactError, match=r"`(field|initial|readout|encoding)[\w.]*` .*: load would"
    ):
        oc.save(model, tmp_path / "model")
    assert not any(tmp_path.iterdir()), "refused before anything was written"


def test_nor_is_one_whose_settings_were_changed_or_whose_name_is_taken(tmp_path):
    model, _ = made()
    model.solver = oc.solvers.Solver("euler")
    with pytest.raises(ArtifactError, match=r"the model has solver = .*: load would lose that"):
        oc.save(model, tmp_path / "model")
    model, _ = made()
    model.field = oc.MLPField(3, 5, 6, activation="relu").double()
    with pytest.raises(ArtifactError, match=r"`field` has activation = 'relu' in place of 'tanh'"):
        oc.save(model, tmp_path / "model")
    model, _ = made()
    model.extra = nn.Identity()
    with pytest.raises(ArtifactError, match=r"`extra` was added after the model was built"):
        oc.save(model, tmp_path / "model")
    other = type("NeuralCDE", (oc.NeuralCDE,), {})
    with pytest.raises(ArtifactError, match=r"the name of this library's NeuralCDE.*rename it"):
        oc.save(other(channels=2), tmp_path / "model")
    assert not any(tmp_path.iterdir())


class WithField(oc.NeuralCDE):
    """A model whose own class builds its part."""

    def __init__(self, **settings):
        super().__init__(**settings)
        plain_field(self)
        self.to(torch.get_default_dtype())


def test_a_class_of_ones_own_that_builds_its_part_is_saved_and_loaded(tmp_path):
    model, batch = WithField(channels=2, hidden=3).double().eval(), made()[1]
    folder = oc.save(model, tmp_path / "model")
    again = oc.artifacts.load(folder, classes=[WithField])
    assert torch.equal(again(batch), model(batch))


def test_a_plain_field_is_trained_live_too():
    model, batch = made()
    plain_field(model)
    batch = oc.SeriesBatch.from_padded(batch.times[:1], batch.values[:1])  # without padding
    online(model, batch).sum().backward()
    mine = model.field.layer.weight.grad.clone()
    model.zero_grad()
    model(batch).sum().backward()
    torch.testing.assert_close(mine, model.field.layer.weight.grad)
    assert mine.any()


def test_a_field_of_another_size_is_refused_live_as_it_is_offline():
    model, batch = made()
    model.field = oc.MLPField(4, 5).double()
    for ask in (lambda: model(batch), lambda: online(model, batch)):
        with pytest.raises(ValueError, match=r"the field is made for hidden 4 and 5 channels"):
            ask()


def test_an_initial_map_of_the_wrong_size_is_refused():
    model, batch = made()
    model.initial = nn.Linear(5, 4, bias=False).double()
    model.initial.register_forward_hook(lambda *_: None)
    for ask in (lambda: model(batch), lambda: online(model, batch)):
        with pytest.raises(ValueError, match=r"initial map returned shape \(\d, 4\).*\(\d, 3\)"):
            ask()


PARTS = {
    "NeuralCDE": ["encoding"],
    "GRU": ["encoding", "cells"],
    "GRUdt": ["encoding", "cells"],
    "GRUdtIntensity": ["encoding", "cells"],
    "GRUD": ["encoding", "inward", "hidden_decay"],
    "ODERNN": ["encoding"],
}


@pytest.mark.parametrize(("name", "part"), [(n, part) for n in MODELS for part in PARTS[n]])
def test_hooks_on_parts_that_are_not_called_everywhere_are_refused(name, part):
    model = maker(name)(channels=2, hidden=3)
    batch = oc.audit.trial_batch(channels=2).to(torch.float32)
    handle = getattr(model, part).register_forward_hook(lambda *_: None)
    asks = [model.init_state]
    if not (
        part == "encoding" and model.encodes_by_call
    ):  # there a whole series goes through the hook
        asks.append(lambda: model(batch))
    for ask in asks:
        with pytest.raises(ValueError, match=rf"`{part}` has hooks.*remove them"):
            ask()
    handle.remove()
    model(batch)


def test_an_ode_rnn_takes_a_plain_field():
    torch.manual_seed(SEED)
    model = oc.ODERNN(channels=2, hidden=3).double().eval()
    model.field = Matrix(3, 1).double()
    batch = oc.audit.trial_batch_for(model, 1, streams=1, rows=4, missing=0.3)
    torch.testing.assert_close(online(model, batch), model(batch), rtol=1e-10, atol=1e-10)
    assert "Matrix" in model.legs_alike()
