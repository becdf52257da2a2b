"""Parts given to the constructor: settings of ours, or modules of one's own, everywhere a model is asked."""

import pytest
import torch
from tests.models.test_own_parts import Matrix, asked_everywhere, online
from torch import nn

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.models.flat_settings import PLACES, flat_of, neural_cde, parts_of
from onlinecde.training import graphs

WIDE = {"channels": 2, "hidden": 3, "outputs": 2}


class Field(nn.Module):
    """f(z) of one's own, whose constructor takes arguments."""

    def __init__(self, hidden, channels):
        super().__init__()
        self.config = {"hidden": hidden, "channels": channels}
        self.layer = nn.Linear(hidden, hidden * channels)

    def forward(self, z):
        return self.layer(z).tanh().unflatten(1, tuple(self.config.values()))


class SeeingField(Field):
    """f(z, X) of one's own."""

    sees_path = True

    def __init__(self, hidden, channels):
        super().__init__(hidden, channels)
        self.path = nn.Linear(channels, hidden)

    def forward(self, z, x):
        return super().forward(z + self.path(x).tanh())


class Bent(nn.Module):
    """A readout of one's own."""

    def __init__(self, inputs=3):
        super().__init__()
        self.config = {"inputs": inputs}
        self.first, self.last = nn.Linear(inputs, 4), nn.Linear(4, 2)

    def forward(self, features):
        return self.last(self.first(features).tanh())


class SeeingBent(Bent):
    """A readout of one's own that sees X, of binary outputs."""

    sees_path, kind = True, "binary"

    def __init__(self):
        super().__init__(3 + 5)
        self.config = {}


class Doubled(oc.models.Readout):
    """A readout of ours, made another."""

    def forward(self, z, seen=None):
        return 2 * super().forward(z, seen)


class Start(nn.Module):
    """An initial map of one's own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.layer(inputs).sin()


class Loud(oc.Encoding):
    """An encoding of one's own."""

    def scale_values(self, values):
        return 3 * super().scale_values(values)


PARTS = {
    "field": lambda: {"field": Field(3, 5)},
    "field that sees X": lambda: {"field": SeeingField(3, 5)},
    "readout": lambda: {"readout": Bent()},
    "readout that sees X": lambda: {"readout": SeeingBent()},
    "layers of a readout with ramps": lambda: {
        "readout": {"layers": Bent(3 + 7 * 3), "sees_path": True, "ramps": 2, "kind": "multilabel"}
    },
    "readout of a subclass": lambda: {"readout": Doubled(3, 2, path_channels=5)},
    "initial": lambda: {"initial": Start()},
    "encoding": lambda: {"encoding": Loud(2, counts=True)},
    "all": lambda: {
        "field": SeeingField(3, 5),
        "readout": SeeingBent(),
        "initial": Start(),
        "encoding": Loud(2, counts=True, clip=4.0),
        "solver": oc.Solver("heun", steps=2),
    },
}
CLASSES = [Field, SeeingField, Bent, SeeingBent, Doubled, Start, Loud]
every_part = pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())


def made(parts, dtype=torch.float64):
    torch.manual_seed(0)
    model = oc.NeuralCDE(**WIDE, **{"field": {"width": 6}, **parts()}).to(dtype).eval()
    batch = oc.audit.trial_batch_for(model, 1, streams=3, rows=5, missing=0.3)
    return model.fit_scales(batch), batch


@every_part
def test_a_part_of_ones_own_is_asked_wherever_the_model_is(parts):
    model, batch = made(parts)
    asked_everywhere(model, batch)
    if not isinstance(model.field, oc.MLPField):
        calls = []
        model.field.register_forward_hook(lambda *_: calls.append(1))
        model(batch)
        assert calls


@every_part
def test_it_is_trained_and_hidden_channels_and_hooks_count(parts):
    model, batch = made(parts)
    model.train()
    model(batch).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    told = graphs.why_not(model)
    assert told == "the model is on cpu" or "may not be captured" in told or "own kind" in told


@every_part
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_frozen_it_says_the_same_and_goes_its_own_way_afterwards(parts, dtype):
    model, batch = made(parts, dtype)
    live = model.frozen()
    with torch.no_grad():
        wanted, found = online(model, batch), online(live, batch)
        assert torch.equal(found, wanted)
        step = live.explain_observation(live.init_state(3), batch.times[:, 0], batch.values[:, 0])
        assert torch.equal(step.start, wanted[:, 0])
        for parameter in model.parameters():
            parameter.mul_(-1.5)
        model.encoding.scale.mul_(2)
        assert torch.equal(online(live, batch), wanted)
        assert not torch.allclose(online(model, batch), wanted)


@every_part
def test_it_is_saved_by_the_names_of_its_classes_and_loaded_with_them(parts, tmp_path):
    model, batch = made(parts, torch.float32)
    folder = oc.save(model, tmp_path / "model")
    again = oc.load(folder, classes=CLASSES)
    assert torch.equal(again(batch), model(batch))
    assert torch.equal(online(again, batch), online(model, batch))
    assert again.config == model.config
    own = [
        part for part in CLASSES if f'"{part.__name__}"' in (folder / "manifest.json").read_text()
    ]
    with pytest.raises(ArtifactError, match=rf"{own[0].__name__}.*load\(folder, classes=\["):
        oc.load(folder, classes=[part for part in CLASSES if part is not own[0]])


def test_a_class_that_does_not_keep_its_arguments_is_not_saved(tmp_path):
    model = oc.NeuralCDE(**WIDE, field=Matrix(3, 5))
    with pytest.raises(ArtifactError, match=r"`field`, a Matrix, cannot be built.*`config`"):
        oc.save(model, tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_a_class_with_the_name_of_one_of_ours_is_not_saved(tmp_path):
    own = type("MLPField", (Field,), {})
    with pytest.raises(ArtifactError, match="the name of this library's MLPField"):
        oc.save(oc.NeuralCDE(**WIDE, field=own(3, 5)), tmp_path / "model")


class Adapted(nn.Module):
    """LoRA: a layer as it is, and a product of two small matrices beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(1, layer.in_features, dtype=layer.weight.dtype))
        self.up = nn.Parameter(torch.randn(layer.out_features, 1, dtype=layer.weight.dtype))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("where", ["field", "readout", "initial"])
def test_adapters_count_wherever_the_model_is_asked_and_are_not_lost_by_saving(where, tmp_path):
    model, batch = made(dict)
    before = asked_everywhere(model, batch)
    if where == "field":
        model.field.inner[1] = Adapted(model.field.inner[1])
    elif where == "readout":
        model.readout.layers = Adapted(model.readout.layers)
    else:
        model.initial = Adapted(model.initial)
    after = asked_everywhere(model, batch)
    assert (after - before).abs().amax() > 1e-3
    with torch.no_grad():
        assert torch.equal(online(model.frozen(), batch), online(model, batch))
    model(batch).sum().backward()
    assert all(
        p.grad is not None for n, p in model.named_parameters() if n.endswith(("up", "down"))
    )
    with pytest.raises(ArtifactError, match="load would lose that"):
        oc.save(model, tmp_path / "model")


def test_flat_settings_name_every_setting_of_every_part_once():
    flat = flat_of(oc.NeuralCDE(**WIDE).config)
    assert len(set(PLACES.values())) == len(PLACES)
    assert PLACES.keys() - flat.keys() == {"bounded", "readout_direct"}, (
        "written only where it is so, as in 0.1"
    )
    assert oc.NeuralCDE(**parts_of(flat)).config == neural_cde(**flat).config
    assert neural_cde(**flat).config == oc.NeuralCDE(**WIDE).config


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"field": {"wide": 3}}, "field has no setting 'wide': it has width, depth"),
        ({"readout": {"hidden": 3}}, "readout has no setting 'hidden'"),
        ({"encoding": {"channels": 2}}, "encoding has no setting 'channels'"),
        ({"encoding": nn.Linear(1, 1)}, "encoding is a Linear: give an `Encoding`"),
        ({"encoding": oc.Encoding(3, counts=True)}, "the encoding has 3 channels"),
        ({"encoding": oc.Encoding(2)}, "counts=False, the model 2 and counts=True"),
        ({"field": 3}, "field is a int: give a module, settings by name"),
        ({"field": {"restoring": -1.0}}, "restoring is -1.0"),
        ({"solver": {"steps": 0}}, "steps is 0"),
    ],
)
def test_what_a_part_does_not_take_is_said(parts, told):
    with pytest.raises((TypeError, ValueError), match=told):
        oc.NeuralCDE(**WIDE, **parts)
