"""A field whose columns are mixtures of a few: the same field as a plain one with that weight, everywhere."""

import copy
import pickle

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.kernels import cpu_unavailable
from onlinecde.models.export import export_online
from onlinecde.models.flat_settings import flat_of, neural_cde
from onlinecde.solvers import MLPField

LOW = {"hidden": 4, "width": 8, "activation": "silu", "rank": 2}


def series(streams=3, channels=3, seed=0):
    random = np.random.default_rng(seed)
    times = [np.cumsum(random.uniform(0.2, 1.0, random.integers(3, 6))) for _ in range(streams)]
    values = [random.normal(size=(len(t), channels)) for t in times]
    for rows in values:
        rows[1:][random.random(rows[1:].shape) < 0.4] = np.nan
    return oc.SeriesBatch.from_arrays(times, values).to(dtype=torch.float64)


def twins(channels, rank=2):
    """A field of low rank, and a plain one with the same weights."""
    low = MLPField(4, channels, 8, 2, "silu", sees_path=True, rank=rank).double()
    plain = MLPField(4, channels, 8, 2, "silu", sees_path=True).double()
    told = {k: v for k, v in low.state_dict().items() if k not in ("mixing", "basis")}
    plain.load_state_dict({**told, "weight": low.weight.detach()})
    return low, plain


def test_the_weight_is_the_nearest_one_of_its_rank():
    torch.manual_seed(3)
    full = MLPField(4, 9, 8).weight.detach().reshape(9, -1)
    torch.manual_seed(3)
    low = MLPField(4, 9, 8, rank=3)
    left = np.linalg.svd(full.double().numpy(), compute_uv=False)[3:]
    weight = low.weight.detach().reshape(9, -1)
    assert int(torch.linalg.matrix_rank(weight.double(), atol=1e-4)) == 3
    assert float((full - weight).norm()) == pytest.approx(np.linalg.norm(left), rel=1e-5)
    sizes = {name: tuple(p.shape) for name, p in low.named_parameters()}
    assert sizes["mixing"] == (9, 3)
    assert sizes["basis"] == (3, 32)
    assert "weight" not in sizes


@pytest.mark.parametrize(("sizes", "rank"), [((4, 9, 8), 9), ((4, 9, 8), 20), ((1, 9, 2), 2)])
def test_a_rank_that_leaves_nothing_out_is_a_plain_field(sizes, rank):
    torch.manual_seed(3)
    full = MLPField(*sizes).state_dict()
    torch.manual_seed(3)
    same = MLPField(*sizes, rank=rank).state_dict()
    assert full.keys() == same.keys()
    assert all(torch.equal(full[name], same[name]) for name in full)


@pytest.mark.parametrize("rank", [0, -2])
def test_a_rank_below_one_is_refused(rank):
    with pytest.raises(ValueError, match=f"rank is {rank}: give at least 1"):
        oc.NeuralCDE(2, 4, field={"width": 8, "rank": rank})


@pytest.mark.parametrize(
    ("control", "how"),
    [
        ("rectilinear", {"backend": "cpu"}),
        ("rectilinear", {"backend": "torch"}),
        ("rectilinear", {"gradient": "backprop"}),
        ("rectilinear", {"gradient": "adjoint", "steps": 2}),
        ("rectilinear", {"method": "dopri5", "rtol": 1e-6, "atol": 1e-8}),
        ("hermite", {"backend": "cpu"}),
        ("hermite", {"backend": "torch"}),
    ],
)
def test_gradients_reach_the_factors_as_the_chain_rule_says(control, how):
    if how.get("backend") == "cpu" and cpu_unavailable() is not None:
        pytest.skip(str(cpu_unavailable()))
    batch = series()
    if control == "hermite":
        batch = oc.SeriesBatch.from_padded(batch.times, batch.values.nan_to_num(0.3), batch.rows)
    path = getattr(oc.controls, control)(batch)
    low, plain = twins(path.channels)
    z0 = torch.randn(len(batch), 4, dtype=torch.float64)
    pull = torch.randn(len(batch), batch.times.shape[1], 4, dtype=torch.float64)
    for field in (low, plain):
        (oc.solve(path, field, z0, **how).z * pull).sum().backward()
    g = plain.weight.grad.reshape(path.channels, -1)
    assert float(g.abs().max()) > 1e-3
    torch.testing.assert_close(low.mixing.grad, g @ low.basis.detach().T)
    torch.testing.assert_close(low.basis.grad, low.mixing.detach().T @ g)
    torch.testing.assert_close(low.bias.grad, plain.bias.grad)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_restoring_start_keeps_its_pull(rank):
    field = MLPField(3, 7, width=8, activation="silu", rank=rank).double()
    field.start_restoring([0, 5, 6], rate=0.7, spread=0.0)
    z = torch.randn(6, 3, dtype=torch.float64)
    found = field.matrix(z).detach()
    torch.testing.assert_close(found[:, :, 5], torch.tanh(-0.7 * z))
    torch.testing.assert_close(found[:, :, 2], torch.zeros_like(z), atol=1e-6, rtol=0)


def test_a_model_of_low_rank_keeps_the_contract():
    model = neural_cde(3, outputs=2, restoring=0.5, field_sees_path=True, **LOW)
    report = oc.audit.check_model(model)
    assert report.ok, report


def test_a_live_stream_notices_factors_that_were_changed():
    model = neural_cde(3, **LOW).eval()
    row = [[0.4, float("nan"), 1.0]]
    with torch.no_grad():
        first = model.observe(model.init_state(), 0.0, row)
        said = [model.observe(first, 1.0, row).z]
        for name in ("mixing", "basis"):
            getattr(model.field, name).mul_(1.5)
            said.append(model.observe(first, 1.0, row).z)
            plain = neural_cde(**{**flat_of(model.config), "backend": "torch"}).eval()
            plain.load_state_dict(model.state_dict())
            torch.testing.assert_close(said[-1], plain.observe(first, 1.0, row).z)
    assert not torch.equal(said[0], said[1])
    assert not torch.equal(said[1], said[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_say_the_same(dtype, tmp_path):
    model = neural_cde(3, **LOW).to(dtype).eval()
    batch = series().to(dtype=dtype)
    oc.save(model, tmp_path / "m")
    copies = oc.load(tmp_path / "m"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        wanted = model(batch)
        assert wanted.dtype == dtype
        for one in copies:
            assert torch.equal(one(batch), wanted)
        copies[1].field.mixing.zero_()
        assert not torch.equal(copies[1](batch), wanted)
        assert torch.equal(model(batch), wanted)


def test_the_exported_step_is_the_models():
    model = neural_cde(3, **LOW).eval()
    programs = export_online(model)
    row = torch.tensor([[0.4, torch.nan, 1.0]])
    with torch.no_grad():
        state = model.observe(model.init_state(), 0.0, row)
        held = [t for t in vars(state).values() if t is not None]
        clock = torch.tensor([1.5], dtype=torch.float64)
        after = programs.observe.module()(*held, clock, row)
        torch.testing.assert_close(after[0], model.observe(state, 1.5, row).z)
