"""Every method has the order it claims: in its coefficients, and on problems with known solutions."""

import math
from fractions import Fraction

import pytest
import torch
from solver_problems import D

from onlinecde import SeriesBatch, controls
from onlinecde.solvers import TABLEAUS, solve

METHODS = sorted(TABLEAUS)
EMBEDDED = [name for name in METHODS if TABLEAUS[name].error is not None]
CLAIMED = {
    "euler": 1, "midpoint": 2, "heun": 2, "bosh3": 3, "rk4": 4, "rk4_classic": 4, "dopri5": 5,
    "tsit5": 5,
}  # fmt: skip


def square(table):
    a = torch.zeros(table.stages, table.stages, dtype=D)
    for stage, row in enumerate(table.a):
        a[stage, : len(row)] = torch.tensor(row, dtype=D)
    return a, torch.tensor(table.c, dtype=D)


def rooted_trees(order):
    """All rooted trees with `order` nodes, each a sorted tuple of its subtrees."""
    if order == 1:
        return [()]
    found = set()
    for small in range(1, order):
        for branch in rooted_trees(small):
            for rest in rooted_trees(order - small):
                found.add(tuple(sorted((branch, *rest))))
    return sorted(found)


def size(tree):
    return 1 + sum(size(branch) for branch in tree)


def density(tree):
    return size(tree) * math.prod(density(branch) for branch in tree)


def weights_of(tree, a):
    """The elementary weight of each stage: product over branches of A times theirs."""
    total = torch.ones(a.shape[0], dtype=D)
    for branch in tree:
        total = total * (a @ weights_of(branch, a))
    return total


def residuals(b, a, order):
    """b . Phi(tree) - 1 / gamma(tree) for all trees of an order (Butcher's conditions)."""
    return [
        float(b @ weights_of(tree, a)) - float(Fraction(1, density(tree)))
        for tree in rooted_trees(order)
    ]


def test_the_trees_are_those_of_butcher():
    """1, 1, 2, 4, 9, 20 rooted trees; the densities of order 4 are 4, 8, 12 and 24."""
    assert [len(rooted_trees(n)) for n in range(1, 7)] == [1, 1, 2, 4, 9, 20]
    assert sorted(density(tree) for tree in rooted_trees(4)) == [4, 8, 12, 24]


def test_all_methods_of_the_design_are_there():
    assert {name: table.order for name, table in TABLEAUS.items()} == CLAIMED
    assert all(name == table.name for name, table in TABLEAUS.items())


@pytest.mark.parametrize("method", METHODS)
def test_stages_are_explicit_and_stand_where_they_say(method):
    table = TABLEAUS[method]
    assert [len(row) for row in table.a] == list(range(table.stages))
    assert len(table.c) == table.stages
    a, c = square(table)
    torch.testing.assert_close(a.sum(1), c, rtol=0, atol=2e-14)


@pytest.mark.parametrize("method", METHODS)
def test_order_conditions_hold_up_to_the_claimed_order_and_no_further(method):
    table = TABLEAUS[method]
    a, _ = square(table)
    b = torch.tensor(table.b, dtype=D)
    for order in range(1, table.order + 1):
        assert max(map(abs, residuals(b, a, order))) < 5e-14, order
    assert max(map(abs, residuals(b, a, table.order + 1))) > 1e-5


@pytest.mark.parametrize("method", EMBEDDED)
def test_the_error_estimate_has_the_embedded_order(method):
    table = TABLEAUS[method]
    a, _ = square(table)
    embedded = torch.tensor(table.b, dtype=D) - torch.tensor(table.error, dtype=D)
    assert table.embedded_order == table.order - 1
    for order in range(1, table.embedded_order + 1):
        assert max(map(abs, residuals(embedded, a, order))) < 5e-14, order
    assert max(map(abs, residuals(embedded, a, table.order))) > 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_first_same_as_last_is_said_where_it_holds(method):
    table = TABLEAUS[method]
    b = (*table.a[-1], 0.0)
    holds = table.stages > 1 and table.c[-1] == 1 and b == table.b
    assert table.reuses_last == holds


def test_unknown_methods_are_refused_with_the_known_ones():
    path = controls.linear(SeriesBatch.from_arrays([[0.0, 1.0]], [torch.zeros(2, 1, dtype=D)]))
    with pytest.raises(ValueError, match=r"'rk5' is not known.*dopri5.*tsit5"):
        solve(path, lambda z: z[:, :, None].expand(-1, -1, 2), torch.zeros(1, 1, dtype=D), "rk5")


STREAMS = 8
"""Several starts, so that no method looks better than it is where its leading error vanishes."""


def path_through(scheme, times, values):
    """The same path for all streams."""
    times = torch.tensor(times, dtype=D).expand(STREAMS, -1)
    values = torch.tensor(values, dtype=D).expand(STREAMS, -1, -1)
    return getattr(controls, scheme)(SeriesBatch.from_padded(times, values))


def along_a_path(scheme):
    path = path_through(scheme, [0.0, 0.6, 1.5], [[0.3, -0.4], [-0.5, 0.2], [0.2, 0.6]])
    return path, torch.randn(STREAMS, 3, dtype=D, generator=torch.Generator().manual_seed(7))


def linear_cde(scheme):
    """dz = sum_j A_j z dX_j with A_j that commute: z(t) = expm(sum_j A_j (X_j(t) - X_j(0))) z0."""
    path, z0 = along_a_path(scheme)
    one = torch.randn(3, 3, dtype=D, generator=torch.Generator().manual_seed(3))
    parts = torch.stack([0.7 * one, one @ one / 3 - one, 0.5 * torch.eye(3, dtype=D)])
    rise = torch.tensor([1.5 - 0.0, 0.2 - 0.3, 0.6 + 0.4], dtype=D)
    flow = torch.linalg.matrix_exp(torch.einsum("c,chk->hk", rise, parts))
    return path, lambda z: torch.einsum("chk,sk->shc", parts, z), z0, z0 @ flow.T


def ordered_exponential(scheme):
    """The same with A_j that do not commute, on straight pieces: one exponential after another."""
    path, z0 = along_a_path(scheme)
    parts = 0.7 * torch.randn(3, 3, 3, dtype=D, generator=torch.Generator().manual_seed(5))
    knots = {
        "linear": [[0.0, 0.3, -0.4], [0.6, -0.5, 0.2], [1.5, 0.2, 0.6]],
        "rectilinear": [
            [0.0, 0.3, -0.4], [0.6, 0.3, -0.4], [0.6, -0.5, 0.2], [1.5, -0.5, 0.2], [1.5, 0.2, 0.6]
        ],
    }[scheme]  # fmt: skip
    z = z0
    for rise in torch.tensor(knots, dtype=D).diff(dim=0):
        z = z @ torch.linalg.matrix_exp(torch.einsum("c,chk->hk", rise, parts)).T
    return path, lambda z: torch.einsum("chk,sk->shc", parts, z), z0, z


def nonlinear(scheme):
    """dz = (1 + z^2) dX: z = tan(X(t) - X(0) + atan z0), X the sum of time and value."""
    # X only grows: on the way back along the same line errors would cancel.
    path = path_through(scheme, [0.0, 0.3, 0.5, 0.8], [[0.0], [0.2], [0.5], [0.7]])
    z0 = torch.linspace(-1.5, -0.4, STREAMS, dtype=D)[:, None]
    return path, lambda z: (1 + z * z)[:, :, None].expand(-1, -1, 2), z0, torch.tan(1.5 + z0.atan())


def time_dependent(scheme):
    """dz_k = e^t cos(kt) dt with t part of the state: a pure integral, so stages must stand at c."""
    path = path_through(scheme, [0.0, 0.7, 1.9], [[0.0], [0.0], [0.0]])
    k = torch.arange(1.0, 5.0, dtype=D)
    z0 = torch.zeros(STREAMS, 5, dtype=D)

    def field(z):
        t = z[:, 4:]
        by_time = torch.cat([t.exp() * (k * t).cos(), torch.ones_like(t)], 1)
        return torch.stack([by_time, torch.zeros_like(by_time)], 2)

    t = torch.tensor([1.9], dtype=D)
    exact = (t.exp() * ((k * t).cos() + k * (k * t).sin()) - 1) / (1 + k * k)
    return path, field, z0, torch.cat([exact, t]).expand(STREAMS, -1)


PROBLEMS = {
    "linear CDE, linear path": (linear_cde, "linear"),
    "linear CDE, rectilinear path": (linear_cde, "rectilinear"),
    "linear CDE, Hermite path": (linear_cde, "hermite"),
    "linear CDE, natural cubic path": (linear_cde, "natural_cubic"),
    "ordered exponential, linear path": (ordered_exponential, "linear"),
    "ordered exponential, rectilinear path": (ordered_exponential, "rectilinear"),
    "tan, linear path": (nonlinear, "linear"),
    "tan, rectilinear path": (nonlinear, "rectilinear"),
    "tan, Hermite path": (nonlinear, "hermite"),
    "integral over time, rectilinear path": (time_dependent, "rectilinear"),
}
COARSE = {1: 16, 2: 8, 3: 4, 4: 3, 5: 2}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_the_error_falls_with_the_claimed_order(method, problem):
    """Eight times the steps, 8^order times less error. (That it falls no faster, the trees say.)"""
    make, scheme = PROBLEMS[problem]
    path, field, z0, exact = make(scheme)
    order = TABLEAUS[method].order
    errors = []
    with torch.no_grad():
        for steps in (COARSE[order], 8 * COARSE[order]):
            z = solve(path, field, z0, method, steps=steps, outputs="end").z
            errors.append(float((z - exact).norm() / exact.norm()))
    assert errors[0] < 0.7
    assert math.log(errors[0] / errors[1], 8) > order - 0.5


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", EMBEDDED)
def test_adaptive_steps_meet_known_solutions(method, problem):
    make, scheme = PROBLEMS[problem]
    path, field, z0, exact = make(scheme)
    tolerance = {"heun": 1e-4, "bosh3": 1e-6}.get(method, 1e-8)
    with torch.no_grad():
        found = solve(path, field, z0, method, rtol=tolerance, atol=tolerance)
    assert float((found.z[:, -1] - exact).abs().max() / exact.abs().max()) < 100 * tolerance
