"""What a Neural CDE's captured step computes, without a GPU: the plain step, along all four controls."""

import copy
from pathlib import Path

import pytest
import torch
from recomputed import NoLook, Recomputing, assert_same_gradients, made_labels, plain_step
from tests.kernels.in_own_process import interpreted
from tests.models.test_gru import made_batch

from onlinecde.models.flat_settings import neural_cde
from onlinecde.solvers import counting_evaluations
from onlinecde.solvers import gradients as solver_gradients
from onlinecde.solvers.backends import choice
from onlinecde.solvers.segments import segments_of
from onlinecde.training import graphs
from onlinecde.training.objectives import HorizonReadout
from onlinecde.training.settings import FitSettings

pytest.importorskip("triton")

CONTROLS = ("rectilinear", "linear", "hermite", "natural_cubic")
MODELS = {
    "z alone": {},
    "counts": {"counts": True, "steps": 2},
    "sees path": {"field_sees_path": True, "readout_sees_path": True, "readout_width": 5},
    "static": {"static": 2, "field_sees_path": True},
    "static in path": {"static": 2, "static_in_path": True, "counts": True, "field_sees_path": True},
    "ramps": {"readout_sees_path": True, "readout_ramps": 3, "static": 2, "static_in_path": True},
    "low rank": {"rank": 2, "field_sees_path": True},
}  # fmt: skip


plain_trajectory = solver_gradients.trajectory


def unsupported(self, problem):
    return None if problem.capture else "there is no GPU"


class Recomputed(Recomputing, graphs.GraphedStep):
    pass


def trajectory(problem, backend):
    """What segments mean, written out with the field's whole matrix; streams move as their lengths say."""
    if not problem.capture:
        return plain_trajectory(problem, backend)
    legs, field, table, drive = (
        problem.segments,
        problem.field,
        problem.table,
        problem.segments.drive,
    )
    h, z, knots = 1 / legs.steps, problem.z0, [problem.z0]
    for piece in range(legs.count):
        going = (piece < legs.lengths)[:, None]
        for step in range(legs.steps):
            ks = []
            for weights, node in zip(table.a, table.c, strict=True):
                u = (step + node) * h
                y = z + h * sum((w * k for w, k in zip(weights, ks, strict=False)), start=0.0)
                matrix = field.matrix(y, seen(drive, piece, u))
                ks.append(torch.einsum("shc,sc->sh", matrix, moved(legs, piece, u)))
            ahead = z + h * sum(w * k for w, k in zip(table.b, ks, strict=True))
            z = torch.where(going, ahead, z)
        knots.append(z)
    return torch.stack(knots)[:: problem.every], ""


def moved(legs, piece, u):
    """dX/du of all channels, (stream, channel)."""
    if legs.time is None:
        return sum(legs.slopes[piece, :, power] * u**power for power in range(legs.slopes.shape[2]))
    rise, here = legs.slopes[piece // 2, :, 0], legs.time[piece // 2, :, None]
    if piece % 2 == 0:
        return torch.cat([here, torch.zeros_like(rise)], 1)
    observed = torch.cat([legs.observed[piece // 2]] * (2 if legs.counts else 1), 1)
    return torch.cat([torch.zeros_like(here), torch.where(observed, rise, 0.0)], 1)


def seen(drive, piece, u):
    """What the field sees of the path at u, (stream, width)."""
    if drive is None:
        return None
    if drive.ndim == 3:
        return torch.lerp(drive[piece], drive[piece + 1], u)
    return sum(drive[piece, :, power] * u**power for power in range(4))


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(graphs, "why_not", lambda model: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(solver_gradients, "trajectory", trajectory)
    monkeypatch.setattr(choice.GPU, "unsupported", unsupported)


def made_model(control, **keywords):
    torch.manual_seed(0)
    settings = {
        "hidden": 4,
        "width": 6,
        "depth": 2,
        "counts": False,
        "activation": "silu",
    } | keywords
    model = neural_cde(3, control=control, backend="torch", method="midpoint", **settings)  # fmt: skip
    model.fit_scales(made_batch((30, 30), static=model.static, seed=5))
    return model.double().train()


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_plain_step_whatever_came_before(control, final, name):
    model = made_model(control, kind="binary", **MODELS[name])
    plain = copy.deepcopy(model)
    weight = torch.tensor(1.7).double()
    step = Recomputed(model, streams=5, final=final, weight=weight)
    # Full and with padding, in streams and in rows; later ones leave traces of earlier ones to trip over.
    for seed, rows in enumerate([(3, 8, 1, 6, 2), (2, 5), (1,), (4, 1, 9), (1, 1)]):
        batch = made_batch(rows, static=model.static, seed=seed)
        labels = made_labels(batch, "binary", final, seed)
        wanted = plain_step(plain, batch, labels, final, weight)
        torch.testing.assert_close(step(batch, labels), wanted, rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
    assert sorted(key[0] for key in step._graphs) == [8, 16]


@pytest.mark.parametrize("control", CONTROLS)
def test_what_the_field_sees_is_where_the_path_stands(control):
    model, batch = made_model(control, field_sees_path=True), made_batch((6, 4, 5))
    path = model.path(batch.to(dtype=torch.float64))
    laid = segments_of(path).shown_to(model.field)
    for piece, u in ((0, 0.0), (1, 0.3), (2, 0.8), (3, 1.0)):
        wanted = model.field.drive(path.evaluate(piece + u)[laid.order])
        going = piece + u <= laid.lengths
        torch.testing.assert_close(seen(laid.drive, piece, u)[going], wanted[going])


@pytest.mark.parametrize("control", CONTROLS)
def test_every_weight_has_a_gradient(control):
    model = made_model(control, kind="binary", **MODELS["sees path"])
    batch = made_batch((6, 4))
    Recomputed(model, streams=3)(batch, made_labels(batch, "binary", False, 0))
    assert all(bool((p.grad != 0).any()) for p in model.parameters())
    assert model.field.path_weight.grad is not None


@pytest.mark.parametrize("control", CONTROLS)
def test_nothing_of_an_earlier_batch_moves(control):
    """Not by a bit: what is laid out is this batch's, and beyond it there are zeros."""
    model = made_model(control, kind="binary", **MODELS["sees path"])
    small, large = made_batch((3, 5, 2), seed=1), made_batch((8, 7, 6, 8), seed=2)
    labels = made_labels(small, "binary", False, 1)
    step, fresh = (Recomputed(copy.deepcopy(model), streams=4) for _ in range(2))
    step(large, made_labels(large, "binary", False, 2))
    assert torch.equal(step(small, labels), fresh(small, labels))
    for one, other in zip(step.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    (mine,), (new,) = step._graphs.values(), fresh._graphs.values()
    assert mine.inputs.segments.lengths.tolist() == new.inputs.segments.lengths.tolist()
    assert torch.equal(mine.inputs.segments.slopes, new.inputs.segments.slopes)


@pytest.mark.parametrize("control", CONTROLS)
def test_evaluations_are_those_of_the_plain_step(control):
    model = made_model(control, kind="binary", steps=2)
    plain, step = copy.deepcopy(model), Recomputed(model, streams=4)
    pieces = 2 if control == "rectilinear" else 1
    for seed, rows in enumerate([(7, 3, 5), (5, 1), (1,)]):
        batch = made_batch(rows, seed=seed)
        labels = made_labels(batch, "binary", False, seed)
        with counting_evaluations() as wanted:
            plain_step(plain, batch, labels, False)
        with counting_evaluations() as found:
            step(batch, labels)
        assert found.total == wanted.total == pieces * (max(rows) - 1) * 2 * 2


@pytest.mark.parametrize("control", CONTROLS)
def test_it_hides_the_channels_that_the_plain_step_hides(control):
    model = made_model(control, kind="binary", channel_dropout=0.5)
    plain, batch = copy.deepcopy(model), made_batch((7, 3, 5))
    labels = made_labels(batch, "binary", False, 0)
    step, found = Recomputed(model, streams=4), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted = plain_step(plain, batch, labels, False)
        torch.manual_seed(seed)
        found.append(step(batch, labels))
        torch.testing.assert_close(found[-1], wanted, rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
    assert found[0] != found[1]


@pytest.mark.parametrize("control", CONTROLS)
def test_with_horizons_it_is_the_plain_step_too(control):
    model = made_model(control, kind="binary", readout_sees_path=True)
    batch = made_batch((7, 3, 5, 1))
    how = FitSettings(horizons=(1.0, float("inf")), horizon_weight=0.4)
    ahead = HorizonReadout(model, batch, made_labels(batch, "binary", False, 0), how)
    plain, plain_ahead = copy.deepcopy(model), copy.deepcopy(ahead)
    step = Recomputed(model, streams=5, ahead=ahead, horizon_weight=0.4)
    for seed, rows in enumerate([(7, 3, 5, 1), (2, 6)]):
        batch = made_batch(rows, seed=seed)
        labels = made_labels(batch, "binary", False, seed)
        labels[torch.arange(batch.times.shape[1]) >= batch.rows[:, None]] = torch.nan
        plain.zero_grad()
        plain_ahead.zero_grad()
        outputs, logits = plain_ahead.forward_with(plain, batch)
        loss = plain.readout.loss(outputs, labels)
        (loss + 0.4 * plain_ahead.loss(logits, batch.times, labels)).backward()
        torch.testing.assert_close(step(batch, labels), loss.detach(), rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
        assert_same_gradients(ahead, plain_ahead)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("final", [False, True])
def test_no_number_is_looked_at(control, final):
    model = made_model(control, kind="binary", **MODELS["sees path"])
    step, batch = Recomputed(model, streams=5, final=final), made_batch((7, 3, 5, 1))
    labels = made_labels(batch, "binary", final, 0)
    step(batch, labels)
    (captured,) = step._graphs.values()
    with NoLook():
        loss = step._compute(captured.inputs)
    assert torch.isfinite(loss)
    with pytest.raises(AssertionError, match="looks at numbers"), NoLook():
        step._fill(captured.inputs, batch, labels)


@pytest.mark.emulated
@pytest.mark.parametrize(
    "names", [("rectilinear", "linear driven"), ("hermite driven", "natural_cubic")]
)
def test_the_kernels_take_what_it_lays_out(names):
    """In Triton's interpreter, against float64: float32's class of errors, and none of them exact."""
    found = interpreted(str(Path(__file__).parent / "interpreted_step.py"), *names)
    assert set(found) == set(names)
    for name, errors in found.items():
        assert {"loss", "initial.weight", "field.weight", "readout.layers.weight"} <= set(errors)
        assert ("field.path_weight" in errors) == name.endswith("driven")
        assert all(error < 3e-5 for error in errors.values()), (name, errors)
        assert any(error > 0 for error in errors.values())
