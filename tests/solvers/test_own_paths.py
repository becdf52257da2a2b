"""A path of one's own, by no more than `piece(i)`: solved as torchcde, scipy and our schemes are, with gradients."""

import numpy as np
import pytest
import torch
import torchcde
from scipy.integrate import solve_ivp
from solver_problems import SCHEMES, D, assert_all_close, build, gradients, mlp, random_batch, start

import onlinecde as oc
from onlinecde.audit import measurability
from onlinecde.controls.fill import forward_fill
from onlinecde.controls.path import Measurability, Path, Piece


class Bare:
    """Of a path of ours no more than solve asks for."""

    def __init__(self, path):
        self.path, self.channels, self.pieces = path, path.channels, path.pieces
        self.pieces_per_stream, self.streams = path.pieces_per_stream, path.streams
        self.evaluate = path.evaluate

    def piece(self, index):
        return self.path.piece(index)


class Polynomials:
    """Pieces by their coefficients, (piece, stream, degree + 1, channel)."""

    def __init__(self, coefficients):
        self.coefficients = coefficients
        self.pieces, self.channels = coefficients.shape[0], coefficients.shape[3]

    def piece(self, index):
        return Piece(self.coefficients[index], slice(0, self.channels))


class Smoothed(Path):
    """A parabola on each piece from row to row; its bend looks at the row after the next where it `looks`."""

    scheme, pieces_per_row, smooth = "smoothed", 1, False

    def __init__(self, batch, looks):
        self.rows = torch.cat([batch.times[:, :, None], forward_fill(batch.values)], 2)
        self.times, self.lengths, self.streams = batch.times, batch.rows, batch.streams
        self.measurability = Measurability.OFFLINE if looks else Measurability.DISCRETE
        self.looks = looks

    def piece(self, index):
        start, stop = self.rows[:, index], self.rows[:, index + 1]
        other = min(index + 2, self.rows.shape[1] - 1) if self.looks else max(index - 1, 0)
        bend = 0.3 * (self.rows[:, other] - start)
        real = (index + 1 < self.lengths)[:, None]
        rise = torch.where(real, stop - start, 0.0)
        bend = torch.where(real, bend, 0.0)
        return Piece(torch.stack([start, rise - bend, bend], 1), slice(0, self.channels))

    def _at(self, piece, u, derivative):
        pieces = [self.piece(index) for index in range(self.pieces)]
        coefficients = torch.stack([one.coefficients for one in pieces], 1)
        index = piece[:, :, None, None].expand(-1, -1, *coefficients.shape[2:])
        a, b, c = coefficients.gather(1, index).unbind(2)
        return b + 2 * u * c if derivative else a + u * (b + u * c)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("sees_path", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_path_by_its_pieces_alone_is_the_path(scheme, sees_path, backend):
    path = build(scheme, random_batch(observed=0.6 if scheme == "rectilinear" else 1.0), True)
    field, z0 = mlp(path, sees_path=sees_path), start(path).requires_grad_()
    inputs, found = [z0, *field.parameters()], []
    for one in (path, Bare(path)):
        solved = oc.solve(one, field, z0, outputs="knots", backend=backend)
        assert solved.backend == backend
        weight = torch.linspace(-1, 1, solved.z.numel(), dtype=D).view_as(solved.z)
        found.append([solved.z, *gradients((solved.z * weight).sum(), *inputs), solved.nfe])
    assert_all_close(found[1], found[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gradient", ["exact", "backprop", "adjoint"])
def test_splines_of_torchcde_are_solved_as_torchcde_does(gradient):
    batch = random_batch((6, 6, 6))
    x = torch.cat([batch.times[:, :, None], batch.values], 2).requires_grad_()
    coefficients = torchcde.natural_cubic_coeffs(x)
    a, b, c, d = coefficients.unflatten(2, (4, -1)).transpose(0, 1).unbind(2)
    # torchcde keeps twice the second coefficient and three times the third.
    own = Polynomials(torch.stack([a, b, c / 2, d / 3], 2))
    field = oc.MLPField(3, x.shape[2], 5, 2, "tanh").double()
    z0 = torch.randn(3, 3, dtype=D)
    steps = 24 if gradient == "adjoint" else 2
    solved = oc.solve(own, field, z0, steps=steps, gradient=gradient)
    spline = torchcde.CubicSpline(coefficients)
    wanted = torchcde.cdeint(
        spline, lambda t, z: field.matrix(z), z0, spline.grid_points, adjoint=False,
        method="rk4", options={"step_size": 1 / steps},
    )  # fmt: skip
    torch.testing.assert_close(solved.z, wanted, rtol=1e-9, atol=1e-9)
    mine, others = (
        torch.autograd.grad(z.square().sum(), [x, *field.parameters()], retain_graph=True)
        for z in (solved.z, wanted)
    )
    loose = {"rtol": 1e-4, "atol": 1e-5} if gradient == "adjoint" else {"rtol": 1e-8, "atol": 1e-9}
    assert_all_close(mine, others, **loose)


@pytest.mark.parametrize("settings", [{"steps": 40}, {"rtol": 1e-10, "atol": 1e-11}])
def test_pieces_of_degree_five_are_solved_as_scipy_does(settings):
    numbers = np.random.default_rng(0)
    coefficients = numbers.normal(size=(3, 2, 6, 2))
    field = oc.MLPField(3, 2, 5, 2, "silu").double()
    z0 = torch.randn(2, 3, dtype=D)
    method = "rk4" if "steps" in settings else "dopri5"
    solved = oc.solve(Polynomials(torch.tensor(coefficients)), field, z0, method, **settings)
    powers = np.arange(1, 6)
    for stream in range(2):
        z = z0[stream].numpy()
        for piece in range(3):
            own = coefficients[piece, stream]

            def rate(u, z, own=own):
                slope = (powers[:, None] * own[1:] * u ** (powers - 1)[:, None]).sum(0)
                with torch.no_grad():
                    return field.matrix(torch.tensor(z)[None])[0].numpy() @ slope

            z = solve_ivp(rate, (0, 1), z, "DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
            at = solved.z[stream, piece + 1].detach().numpy()
            np.testing.assert_allclose(at, z, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sees_path", [False, True])
def test_gradients_along_an_own_path_are_those_of_finite_differences(sees_path):
    batch = random_batch((4, 3, 1))
    rows = torch.cat([batch.times[:, :, None], batch.values], 2).requires_grad_()
    field = oc.MLPField(3, rows.shape[2], 4, 1, "tanh", sees_path=sees_path).double()
    z0 = torch.randn(3, 3, dtype=D, requires_grad=True)

    def end(rows, z0):
        path = Smoothed(batch, looks=False)
        path.rows = rows
        return oc.solve(path, field, z0).z

    assert torch.autograd.gradcheck(end, (rows, z0))


def test_an_own_path_answers_at_query_times_and_stands_still_after_its_last_row():
    batch = random_batch((5, 3))
    path = Smoothed(batch, looks=False)
    field, z0 = mlp(path), start(path)
    rows = oc.solve(path, field, z0, steps=3).z
    at_rows = oc.solve(path, field, z0, steps=3, at=batch.times.nan_to_num(1e3)).z
    last = (batch.rows - 1)[:, None]
    row = torch.arange(5).minimum(last)
    torch.testing.assert_close(at_rows, rows.gather(1, row[:, :, None].expand(-1, -1, 3)))
    # Between rows, z is that of a path that ends there.
    half = (batch.times[:, :1] + batch.times[:, 1:2]) / 2
    found = oc.solve(path, field, z0, steps=3, at=half).z[:, 0]
    piece = path.piece(0)
    share = torch.tensor([1.0, 0.5, 0.25], dtype=D)[:, None]
    wanted = oc.solve(Polynomials((piece.coefficients * share)[None]), field, z0, steps=3).z[:, -1]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="knows its times"):
        oc.solve(Bare(path), field, z0, at=[9.0])


@pytest.mark.parametrize("looks", [False, True])
def test_what_an_own_path_depends_on_is_measured(looks):
    batch = random_batch((7, 6, 7, 5))
    field = oc.MLPField(3, 3, 5, 2, "tanh").double()

    def model(series):
        z0 = torch.ones(len(series), 3, dtype=D)
        with torch.no_grad():
            return oc.solve(Smoothed(series, looks), field, z0).z

    assert measurability(model, batch).measurability is Smoothed(batch, looks).measurability


def test_what_is_no_path_is_refused_and_errors_name_the_stream():
    field = oc.MLPField(3, 2, 4)
    with pytest.raises(TypeError, match=r"a Tensor is no control path.*piece\(i\)"):
        oc.solve(torch.zeros(2, 3), field, torch.zeros(2, 3))
    empty = Polynomials(torch.zeros(0, 2, 2, 2))
    with pytest.raises(ValueError, match="has no piece"):
        oc.solve(empty, field, torch.zeros(2, 3))
    wild = Polynomials(torch.full((2, 2, 2, 2), torch.inf))
    with pytest.raises(oc.SolverError, match=r"stream \d at knot 1: the state is no longer finite"):
        oc.solve(wild, field, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"max_step is for .* not for Polynomials"):
        oc.solve(wild, field, torch.zeros(2, 3), max_step=0.1)
