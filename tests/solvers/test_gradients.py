"""Gradients: finite differences, plain autograd, the fused kernels and the adjoint tell one story."""

import math

import pytest
import torch
from solver_problems import (
    SCHEMES,
    D,
    assert_all_close,
    build,
    gradients,
    mlp,
    random_batch,
    start,
)
from torch import nn
from torch.autograd import gradcheck

from onlinecde import MLPField, NeuralCDE, SeriesBatch, SolverError, solve
from onlinecde.kernels import cpu_unavailable
from onlinecde.solvers import MatrixField, VectorField

EXACT = {"rtol": 1e-10, "atol": 1e-10}
ADAPTIVE = {"method": "dopri5", "rtol": 1e-4, "atol": 1e-4}
needs_kernels = pytest.mark.skipif(cpu_unavailable() is not None, reason="no CPU kernels")


def problem(
    scheme, lengths=(5, 3, 1, 4), observed=1.0, counts=False, seed=0, encoding=None, **keywords
):
    """A function (z0, values, times, weights, **solver settings) -> z, and its inputs."""
    batch = random_batch(lengths, observed=observed, row_0=False, seed=seed)
    there = ~batch.values.isnan()
    times = batch.times.clone().requires_grad_()
    values = batch.values.nan_to_num(0.3).requires_grad_()
    path = build(scheme, batch, counts)
    field = mlp(path, **keywords)
    z0 = start(path, field.hidden).requires_grad_()

    def z(**settings):
        rows = torch.where(there, values, torch.nan)
        moved = build(scheme, SeriesBatch.from_padded(times, rows, batch.rows), counts)
        return solve(moved, field, z0, **settings).z

    return z, field, [z0, values, times, *field.parameters()]


def weighed(z, seed=9):
    """A loss in which every entry of z counts for something else."""
    return (
        z * torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(seed))
    ).sum()


def compare(z, inputs, one, other, **tolerance):
    with_one, with_other = z(**one), z(**other)
    torch.testing.assert_close(with_one, with_other, **(tolerance or EXACT))
    assert_all_close(
        gradients(weighed(with_one), *inputs),
        gradients(weighed(with_other), *inputs),
        **(tolerance or EXACT),
    )


EXACT_TORCH = {"gradient": "exact", "backend": "torch"}
REFERENCE = {"gradient": "backprop", "backend": "torch"}
FUSED = {"gradient": "exact", "backend": "cpu"}


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("sees_path", [False, True], ids=["", "sees"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_exact_gradients_are_those_of_finite_differences(scheme, sees_path, backend):
    """With respect to z0, values, times and every weight, on gaps, ragged lengths and one row."""
    z, _, inputs = problem(
        scheme, (3, 2, 1), observed=0.6, counts=True, hidden=2, width=2, depth=1, seed=3,
        sees_path=sees_path,
    )  # fmt: skip
    assert gradcheck(lambda *_: z(backend=backend), inputs, fast_mode=backend == "auto")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_of_queries_are_those_of_finite_differences(scheme):
    """Between rows, at rows and after the last one; times get their share of where a query stands."""
    z, _, inputs = problem(scheme, (3, 2, 1), hidden=2, width=2, depth=1, seed=3)
    at = inputs[2].detach()[:, [0, 1, 2]] + torch.tensor([0.1, 0.07, 0.3])
    assert gradcheck(lambda *_: z(at=at), inputs, fast_mode=True)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_adaptive_gradients_are_those_of_finite_differences(scheme):
    """Steps are held by tolerances so loose that a nudge moves none of them."""
    z, _, inputs = problem(scheme, (3, 2, 1), hidden=2, width=2, depth=1, seed=3)
    loose = {"method": "dopri5", "rtol": 1.0, "atol": 1.0}
    assert gradcheck(lambda *_: z(**loose), inputs, fast_mode=True)


SETTINGS = [
    pytest.param({}, {}, id="plain"),
    pytest.param({"steps": 3}, {}, id="steps"),
    pytest.param({"outputs": "end"}, {}, id="end"),
    pytest.param({"outputs": "knots", "method": "euler"}, {}, id="euler-knots"),
    pytest.param({"method": "dopri5"}, {"depth": 1}, id="dopri5-depth1"),
    pytest.param({"method": "midpoint"}, {"depth": 3, "hidden": 7, "width": 9}, id="odd-depth3"),
    pytest.param({"method": "heun"}, {"depth": 4, "hidden": 17, "width": 3}, id="odd-depth4"),
    pytest.param({"method": "tsit5"}, {"hidden": 1, "width": 1}, id="ones"),
    pytest.param({}, {"activation": "relu"}, id="relu"),
    pytest.param({}, {"activation": "silu"}, id="silu"),
    pytest.param({}, {"activation": "softplus"}, id="softplus"),
    pytest.param({}, {"final": "identity"}, id="identity"),
    pytest.param({"steps": 2}, {"sees_path": True}, id="sees-path"),
    pytest.param({"method": "rk4_classic"}, {"lengths": (1, 1)}, id="one-row"),
    pytest.param({}, {"lengths": (1,)}, id="one-row-alone"),
    pytest.param({"method": "bosh3"}, {"observed": 0.3, "counts": True}, id="gaps-counts"),
    pytest.param({"steps": 2}, {"observed": 0.3, "sees_path": True}, id="gaps-sees-path"),
]


@pytest.mark.parametrize(("settings", "field"), SETTINGS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_exact_is_backprop(scheme, settings, field):
    z, _, inputs = problem(scheme, **{"lengths": (5, 3, 1, 4), **field})
    compare(z, inputs, {**settings, **EXACT_TORCH}, {**settings, **REFERENCE})


@needs_kernels
@pytest.mark.parametrize(("settings", "field"), SETTINGS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_fused_kernels_are_backprop(scheme, settings, field):
    z, _, inputs = problem(scheme, **{"lengths": (5, 3, 1, 4), **field})
    compare(z, inputs, {**settings, **FUSED}, {**settings, **REFERENCE})


@pytest.mark.parametrize("max_step", [0.05, 0.4, 100.0])
@pytest.mark.parametrize("sees_path", [False, True], ids=["", "sees"])
def test_time_legs_with_their_own_number_of_steps(max_step, sees_path):
    z, _, inputs = problem("rectilinear", observed=0.5, counts=True, sees_path=sees_path)
    settings = {"max_step": max_step, "steps": 2}
    compare(z, inputs, {**settings, **EXACT_TORCH}, {**settings, **REFERENCE})
    if cpu_unavailable() is None:
        compare(z, inputs, {**settings, **FUSED}, {**settings, **REFERENCE})


def test_max_step_is_steps_where_every_gap_asks_for_the_same():
    batch = SeriesBatch.from_arrays([[0.0, 1.0, 2.0]], [torch.randn(3, 2, dtype=D)])
    path = build("rectilinear", batch)
    field, z0 = mlp(path), start(path)
    by_time = solve(path, field, z0, max_step=0.25, steps=4)
    by_piece = solve(path, field, z0, steps=4)
    torch.testing.assert_close(by_time.z, by_piece.z, **EXACT)
    assert by_time.nfe.tolist() == by_piece.nfe.tolist() == [4 * 4 * 4]
    fewer = solve(path, field, z0, max_step=0.3, steps=1)
    assert fewer.steps.tolist() == [4 + 1 + 4 + 1]


@pytest.mark.parametrize("sees_path", [False, True], ids=["", "sees"])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    "settings", [{"steps": 2}, {"max_step": 0.3}, {"method": "dopri5"}], ids=str
)
def test_moved_channels_alone_are_all_channels(monkeypatch, settings, counts, sees_path):
    """Plain torch: gathered legs, whole legs, and either by what was observed, against the reference."""
    from onlinecde.solvers.backends import sparse_columns, torch_sparse

    z, _, inputs = problem(
        "rectilinear", (7, 4, 1, 6, 2), observed=0.55, counts=counts, sees_path=sees_path
    )

    def found(gradient):
        solved = z(gradient=gradient, backend="torch", **settings)
        return [solved, *gradients(weighed(solved), *inputs)]

    made = []
    build = torch_sparse.SparseColumns
    monkeypatch.setattr(
        torch_sparse, "SparseColumns", lambda *a: made.append(build(*a)) or made[-1]
    )
    wanted = found("backprop")
    for dense_above in (sparse_columns.DENSE_ABOVE, -1.0, 2.0):
        monkeypatch.setattr(sparse_columns, "DENSE_ABOVE", dense_above)
        assert_all_close(found("exact"), wanted, **EXACT)
    mixed, whole, gathered = ([leg is None for leg in field.legs] for field in made)
    assert any(mixed)
    assert not all(mixed)
    assert all(whole)
    assert not any(gathered)


def test_a_row_with_nothing_observed_moves_time_alone():
    values = torch.full((1, 3, 2), torch.nan, dtype=D)
    values[:, 0] = 1.0
    values[:, 2, 0] = 2.0
    path = build("rectilinear", SeriesBatch.from_padded(torch.tensor([[0.0, 1.0, 2.0]]), values))
    field, z0 = mlp(path), start(path)
    for settings in (EXACT_TORCH, REFERENCE, {}):
        knots = solve(path, field, z0, outputs="knots", **settings).z
        assert (knots[:, 1] == knots[:, 2]).all()
        assert (knots[:, 3] != knots[:, 4]).all()


class OwnModule(nn.Module):
    """What a user might bring: any module from z to a matrix."""

    def __init__(self, hidden, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden, 6), nn.Tanh(), nn.Linear(6, hidden * channels)
        )
        self.shape = (hidden, channels)

    def forward(self, z):
        return self.layers(z).tanh().unflatten(1, self.shape)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("settings", [{}, ADAPTIVE, {"steps": 2, "method": "bosh3"}])
def test_a_users_module_works_everywhere(scheme, settings):
    batch = random_batch(observed=0.5)
    path = build(scheme, batch)
    module, z0 = OwnModule(3, path.channels).double(), start(path).requires_grad_()
    inputs = [z0, *module.parameters()]
    found = []
    for gradient in ("exact", "backprop"):
        for field in (module, MatrixField(module, 3, path.channels)):
            solution = solve(path, field, z0, gradient=gradient, **settings)
            assert solution.backend == "torch"
            found.append([solution.z, *gradients(weighed(solution.z), *inputs)])
    for other in found[1:]:
        assert_all_close(other, found[0], **EXACT)


class OwnField(VectorField):
    """A field with its own contraction and its own image of the path."""

    sees_path = True

    def __init__(self, hidden, channels):
        super().__init__()
        self.hidden, self.channels = hidden, channels
        self.look = nn.Linear(channels, 2, bias=False)
        self.layer = nn.Linear(hidden + 2, hidden * channels)

    def drive(self, x):
        return self.look(x)

    def matrix(self, z, drive=None):
        return (
            self.layer(torch.cat([z, drive], 1)).tanh().unflatten(1, (self.hidden, self.channels))
        )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_users_field_may_see_the_path(scheme):
    path = build(scheme, random_batch(observed=0.7))
    own, z0 = OwnField(3, path.channels).double(), start(path).requires_grad_()
    for settings in ({}, ADAPTIVE):
        exact = solve(path, own, z0, **settings).z
        recorded = solve(path, own, z0, gradient="backprop", **settings).z
        inputs = [z0, *own.parameters()]
        assert_all_close(
            gradients(weighed(exact), *inputs), gradients(weighed(recorded), *inputs), **EXACT
        )
        assert gradients(weighed(solve(path, own, z0, **settings).z), own.look.weight)[0].all()


def test_a_function_of_outside_tensors_is_not_left_without_their_gradients():
    """Only autograd's own record reaches tensors that a plain function brings with it."""
    path = build("linear", random_batch())
    net, z0 = OwnModule(3, path.channels).double(), start(path)
    for gradient in ("exact", "adjoint"):
        with pytest.raises(ValueError, match=r"not its parameters.*nn\.Module.*backprop"):
            solve(path, lambda z: net(z), z0, gradient=gradient)
    loss = weighed(solve(path, lambda z: net(z), z0, gradient="backprop").z)
    wanted = gradients(loss, *net.parameters())
    assert_all_close(gradients(weighed(solve(path, net, z0).z), *net.parameters()), wanted, **EXACT)
    with torch.no_grad():
        solve(path, lambda z: net(z), z0)


class Leaning(VectorField):
    """A field that leans on a tensor it does not hold."""

    def __init__(self, hidden, channels, outside):
        super().__init__()
        self.hidden, self.channels, self.outside = hidden, channels, [outside]
        self.layer = nn.Linear(hidden, hidden * channels)

    def matrix(self, z, drive=None):
        found = self.layer(z).tanh().unflatten(1, (self.hidden, self.channels))
        return found * self.outside[0]


class LeaningMLP(MLPField):
    outside = torch.ones((), dtype=D, requires_grad=True)

    def columns(self, features, channels):
        return super().columns(features, channels) * self.outside


@pytest.mark.parametrize("settings", [{}, {"gradient": "adjoint"}, ADAPTIVE])
@pytest.mark.parametrize("kind", ["a VectorField", "a subclass"])
def test_no_field_is_left_without_gradients_of_outside_tensors(kind, settings):
    path = build("rectilinear", random_batch())
    outside = torch.ones((), dtype=D, requires_grad=True)
    field = Leaning(3, path.channels, outside).double()
    if kind == "a subclass":
        field = LeaningMLP(3, path.channels, 4).double()
    with pytest.raises(ValueError, match=r"not its parameters.*backprop"):
        solve(path, field, start(path), **settings)
    with torch.no_grad():
        solve(path, field, start(path), **settings)


def test_nor_is_it_in_a_model_that_is_asked_online():
    model = NeuralCDE(channels=2, hidden=3, field={"width": 4}).double()
    model.field = LeaningMLP(3, model.field.channels, 4).double()
    state = model.init_state()
    with pytest.raises(ValueError, match=r"not its parameters.*backprop"):
        model.observe(state, 0.0, [[1.0, 2.0]])


def test_a_matrix_of_the_wrong_shape_is_refused():
    path = build("linear", random_batch())
    with pytest.raises(ValueError, match=r"returned shape \(4, 3\).*\(4, 3, 3\).*one column"):
        solve(path, lambda z: z, start(path))
    with pytest.raises(ValueError, match=r"hidden 4 and 3 channels.*z0 has 3 and the path 3"):
        solve(path, MLPField(4, 3).double(), start(path))


@pytest.mark.parametrize("gradient", ["exact", "adjoint"])
def test_a_constant_field_has_gradients_too(gradient):
    """z = z0 + A (X(t) - X(0)): the gradient of z0 is 1, that of the last row's values A's columns."""
    batch = random_batch((4, 4), row_0=True)
    values = batch.values.clone().requires_grad_()
    matrix = torch.randn(3, 3, dtype=D)
    z0 = torch.zeros(2, 3, dtype=D, requires_grad=True)
    for scheme in SCHEMES:
        path = build(scheme, SeriesBatch.from_padded(batch.times, values))
        z = solve(path, lambda z: matrix.expand(z.shape[0], -1, -1), z0, gradient=gradient).z
        g_z0, g_values = gradients(z[:, -1].sum(), z0, values)
        torch.testing.assert_close(g_z0, torch.ones_like(z0), **EXACT)
        torch.testing.assert_close(g_values[:, -1], matrix[:, 1:].sum(0).expand(2, -1), **EXACT)
        torch.testing.assert_close(g_values[:, 0], -matrix[:, 1:].sum(0).expand(2, -1), **EXACT)


@pytest.mark.parametrize("outputs", ["rows", "end"])
@pytest.mark.parametrize("sees_path", [False, True], ids=["", "sees"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_adaptive_exact_is_adaptive_backprop(scheme, sees_path, outputs):
    z, _, inputs = problem(scheme, observed=0.7, counts=True, sees_path=sees_path)
    for method in ("dopri5", "bosh3"):
        settings = {**ADAPTIVE, "method": method, "outputs": outputs}
        compare(z, inputs, settings, {**settings, "gradient": "backprop"})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_adjoint_comes_to_the_exact_gradient_as_steps_grow(scheme):
    z, _, inputs = problem(scheme, observed=0.7, sees_path=True)

    def off(steps):
        found, exact = (
            gradients(weighed(z(steps=steps, gradient=gradient, backend="torch")), *inputs)
            for gradient in ("adjoint", "exact")
        )
        return max(float((a - b).abs().max()) for a, b in zip(found, exact, strict=True))

    coarse, fine = off(2), off(8)
    assert 1e-10 < coarse < 1e-1
    # Both are of fourth order: 256 times nearer, were they in their asymptotic range.
    assert fine < coarse / 30


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("step_control", ["stream", "batch"])
def test_the_adjoint_comes_to_the_exact_gradient_as_tolerances_tighten(scheme, step_control):
    z, _, inputs = problem(scheme, observed=0.7, counts=True)
    truth = gradients(weighed(z(method="dopri5", steps=12)), *inputs)

    def off(tolerance):
        settings = {"rtol": tolerance, "atol": tolerance, "step_control": step_control}
        found = gradients(weighed(z(method="dopri5", gradient="adjoint", **settings)), *inputs)
        return max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True))

    loose, tight = off(1e-3), off(1e-8)
    assert loose < 0.1
    assert tight < 1e-5
    assert tight < loose / 100


def test_the_adjoints_steps_do_not_depend_on_how_much_there_is_to_collect(monkeypatch):
    """The seminorm: parameters and the path are collected along steps chosen from z and a alone."""
    from onlinecde.solvers import adjoint

    calls = []
    rates = adjoint._Backwards.rates
    monkeypatch.setattr(
        adjoint._Backwards, "rates", lambda self, *a: calls.append(1) or rates(self, *a)
    )
    z, _, inputs = problem("hermite")
    settings = {"method": "dopri5", "rtol": 1e-6, "atol": 1e-6, "gradient": "adjoint"}
    gradients(weighed(z(**settings)), *inputs)
    with_all, calls[:] = len(calls), []
    gradients(weighed(z(**settings)), inputs[0])
    assert with_all == len(calls) > 0


def test_an_adjoint_that_cannot_go_on_names_stream_and_time():
    z, _, inputs = problem("linear", (3, 3))
    settings = {"method": "dopri5", "rtol": 1e-9, "atol": 1e-9, "gradient": "adjoint"}
    loss = weighed(z(**settings)) * math.inf
    with pytest.raises(SolverError, match=r"stream [01] at time .*adjoint.*gradient='exact'"):
        loss.backward()
    assert inputs[0].grad is None


@pytest.mark.parametrize("settings", [EXACT_TORCH, {}, ADAPTIVE], ids=["torch", "auto", "adaptive"])
def test_frozen_inputs_get_no_gradient_and_the_others_the_same(settings):
    z, field, inputs = problem("rectilinear", observed=0.4, counts=True)
    wanted = gradients(weighed(z(**settings)), *inputs)
    names = ["z0", "values", "times", *dict(field.named_parameters())]
    for frozen in ("z0", "values", "times", "weight", "inner.0.weight"):
        inputs[names.index(frozen)].requires_grad_(False)
        left = [i for i, name in enumerate(names) if name != frozen]
        found = gradients(weighed(z(**settings)), *(inputs[i] for i in left))
        inputs[names.index(frozen)].requires_grad_()
        assert_all_close(found, [wanted[i] for i in left], **EXACT)
    for tensor in inputs:
        tensor.requires_grad_(False)
    assert not z(**settings).requires_grad


@pytest.mark.parametrize("settings", [EXACT_TORCH, {}], ids=["torch", "auto"])
def test_a_state_changed_in_place_is_noticed(settings):
    path = build("rectilinear", random_batch((3, 3)))
    field, z0 = mlp(path), start(path).requires_grad_()
    z = solve(path, field, z0, at=path.times, **settings).z
    loss = z.sum()
    with torch.no_grad():
        z.mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


TWICE = {
    "torch": EXACT_TORCH,
    "auto": {},
    "adaptive": ADAPTIVE,
    "adjoint": {"gradient": "adjoint"},
    "adaptive adjoint": {**ADAPTIVE, "gradient": "adjoint"},
}


@pytest.mark.parametrize("settings", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("own", [False, True], ids=["mlp", "own field"])
def test_second_derivatives_are_refused_rather_than_wrong(settings, own):
    """At once: were the loss linear in z, a penalty on its gradient would silently have no gradient."""
    path = build("rectilinear", random_batch((3, 3), observed=0.7))
    field = OwnModule(3, path.channels).double() if own else mlp(path)
    z0 = start(path).requires_grad_()
    for loss in (torch.sum, lambda z: z.square().sum()):
        with pytest.raises(RuntimeError, match=r"second derivatives.*gradient='backprop'"):
            torch.autograd.grad(loss(solve(path, field, z0, **settings).z), z0, create_graph=True)
        torch.autograd.grad(loss(solve(path, field, z0, **settings).z), z0)


@pytest.mark.parametrize("settings", [{}, ADAPTIVE], ids=["fixed", "adaptive"])
def test_a_gradient_penalty_is_right_where_everything_is_recorded(settings):
    path = build("rectilinear", random_batch((3, 2), observed=0.7))
    field, z0 = mlp(path, hidden=2, width=3), start(path, 2).requires_grad_()

    def penalty(z0):
        z = solve(path, field, z0, gradient="backprop", **settings).z
        return torch.autograd.grad(z.sum(), z0, create_graph=True)[0].square().sum()

    assert gradcheck(penalty, [z0])


def test_memory_of_the_exact_gradient_does_not_grow_with_channels_or_stages():
    """What autograd keeps for the way back: z at the knots, not the stages."""

    def kept(gradient, steps):
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        path = build("linear", random_batch((9,) * 8, channels=20))
        field, z0 = mlp(path, hidden=4, width=4), start(path, 4).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            solve(path, field, z0, steps=steps, gradient=gradient, backend="torch")
        return sum(sizes)

    assert kept("exact", 1) == kept("exact", 5)
    assert kept("backprop", 5) > 20 * kept("exact", 5)


@pytest.mark.parametrize("settings", [EXACT_TORCH, {}, ADAPTIVE], ids=["torch", "auto", "adaptive"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_value_observed_anew_but_unchanged_has_its_gradient(scheme, settings):
    """Its channel moves by nothing, so it adds nothing to z; how z would change is another matter."""
    times = torch.tensor([[0.0, 1.0, 1.5]], dtype=D)
    values = torch.ones(1, 3, 2, dtype=D, requires_grad=True)
    found = []
    for gradient in ("exact", "backprop"):
        path = build(scheme, SeriesBatch.from_padded(times, values))
        z = solve(path, mlp(path), start(path), **{**settings, "gradient": gradient}).z
        found += gradients(weighed(z), values)
    torch.testing.assert_close(*found, **EXACT)
    assert found[1].all()
