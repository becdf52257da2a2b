"""Series, paths and fields for the tests of the solvers, and an oracle that shares no code with them."""

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicHermiteSpline, CubicSpline

from onlinecde import MLPField, SeriesBatch, controls

SCHEMES = ("natural_cubic", "linear", "hermite", "rectilinear")
D = torch.float64


def build(scheme, batch, counts=False, **keywords):
    return getattr(controls, scheme)(batch, counts, **keywords)


def random_batch(lengths=(5, 3, 1, 4), channels=2, seed=0, observed=1.0, row_0=True, dtype=D):
    """Series of some lengths; a share `observed` of the values is there, with row_0 all of row 0."""
    numbers = np.random.default_rng(seed)
    times, values = [], []
    for rows in lengths:
        times.append(numbers.uniform(-1, 1) + numbers.uniform(0.2, 1.2, rows).cumsum())
        table = numbers.normal(size=(rows, channels))
        gone = numbers.random(table.shape) >= observed
        gone[0] &= not row_0
        table[gone] = np.nan
        values.append(torch.tensor(table, dtype=dtype))
    return SeriesBatch.from_arrays(times, values)


def mlp(path, hidden=3, width=5, depth=2, activation="tanh", seed=0, **keywords):
    """A field for a path, with biases and weights large enough to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        field = MLPField(hidden, path.channels, width, depth, activation, **keywords)
    return field.to(path.rows.dtype)


def start(path, hidden=3, seed=1):
    made = torch.randn(
        path.rows.shape[0], hidden, dtype=D, generator=torch.Generator().manual_seed(seed)
    )
    return made.to(path.rows.dtype)


def gradients(loss, *inputs):
    """Gradients of a loss, 0 where it does not depend on an input."""
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def assert_all_close(found, wanted, **tolerance):
    assert len(found) == len(wanted)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, **tolerance)


def numpy_field(field):
    """f(z): (hidden,) -> (hidden, channel), written out from the weights of an MLPField."""
    act = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "silu": lambda x: x / (1 + np.exp(-x)),
        "softplus": lambda x: np.log1p(np.exp(x)),
    }[field.activation]
    weights = {name: p.detach().double().numpy() for name, p in field.named_parameters()}

    def f(z, x):
        h = z
        for layer in range(field.depth):
            h = weights[f"inner.{layer}.weight"] @ h + weights[f"inner.{layer}.bias"]
            if layer == 0 and field.sees_path:
                h = h + weights["path_weight"] @ x
            h = act(h)
        columns = weights["weight"] @ h + weights["bias"]
        return (np.tanh(columns) if field.final == "tanh" else columns).T

    return f


def pieces_of(scheme, times, values, counts):
    """X and dX/ds on each piece of one stream, from its rows (no padding), without onlinecde."""
    rows = len(times)
    if rows == 1:
        return []
    seen = ~np.isnan(values)
    parts = [times[:, None]]
    parts.append(np.stack([_filled(scheme, column) for column in values.T], 1))
    if counts:
        parts.append(seen.cumsum(0).astype(float))
    x = np.concatenate(parts, 1)
    row = np.arange(rows)
    if scheme == "rectilinear":
        knots = np.repeat(x, 2, 0)[:-1]
        knots[1::2, 0] = times[1:]
        return [_line(knots[i], knots[i + 1]) for i in range(2 * rows - 2)]
    if scheme == "linear":
        return [_line(x[i], x[i + 1]) for i in range(rows - 1)]
    if scheme == "hermite":
        slopes = np.diff(x, axis=0, prepend=2 * x[:1] - x[1:2])
        splines = CubicHermiteSpline(row, x, slopes)
        return [_curve(lambda s: splines(s), lambda s: splines(s, 1), i) for i in range(rows - 1)]
    columns = [CubicSpline(row[~np.isnan(c)], c[~np.isnan(c)], bc_type="natural") for c in x.T]
    return [
        _curve(
            lambda s: np.array([c(s) for c in columns]),
            lambda s: np.array([c(s, 1) for c in columns]),
            i,
        )
        for i in range(rows - 1)
    ]


def _line(a, b):
    return lambda u: a + u * (b - a), lambda u: b - a


def _curve(value, slope, i):
    return lambda u: value(i + u), lambda u: slope(i + u)


def _filled(scheme, column):
    """One channel as its scheme fills it; natural cubic leaves NaN between observations."""
    seen = np.flatnonzero(~np.isnan(column))
    row = np.arange(len(column))
    if not len(seen):
        return np.zeros(len(column))
    if scheme == "rectilinear":
        last = np.maximum.accumulate(np.where(np.isnan(column), -1, row))
        return np.where(last >= 0, column[last], 0.0)
    inside = np.where(row < seen[0], 0.0, np.where(row > seen[-1], column[seen[-1]], column))
    if scheme == "natural_cubic":
        return inside
    known = ~np.isnan(inside)
    return np.interp(row, row[known], inside[known])


def scipy_rows(scheme, batch, counts, field, z0):
    """z at every row of every stream, (stream, row, hidden), by DOP853 from piece to piece."""
    f = numpy_field(field)
    result = np.empty((*batch.times.shape, z0.shape[1]))
    for stream, rows in enumerate(batch.rows.tolist()):
        z = z0[stream].detach().double().numpy()
        times = batch.times[stream, :rows].numpy()
        values = batch.values[stream, :rows].double().numpy()
        pieces = pieces_of(scheme, times, values, counts)
        every = len(pieces) // max(rows - 1, 1)
        result[stream, :] = z
        for piece, (x, dx) in enumerate(pieces):
            z = solve_ivp(
                lambda u, z, x=x, dx=dx: f(z, x(u)) @ dx(u),
                (0, 1),
                z,
                "DOP853",
                rtol=1e-11,
                atol=1e-12,
            ).y[:, -1]
            if (piece + 1) % every == 0:
                result[stream, (piece + 1) // every :] = z
    return torch.from_numpy(result)
