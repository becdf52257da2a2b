"""A plain float64 solver for the fused kernels to be judged by, and random problems for both."""

import numpy as np
import torch

from onlinecde.kernels import cpu

THIRD = 1 / 3
METHODS = {
    "euler": ([[0]], [1], [0]),
    "midpoint": ([[0, 0], [0.5, 0]], [0, 1], [0, 0.5]),
    "heun": ([[0, 0], [1, 0]], [0.5, 0.5], [0, 1]),
    "rk4": (
        [[0, 0, 0, 0], [THIRD, 0, 0, 0], [-THIRD, 1, 0, 0], [1, -1, 1, 0]],
        [1 / 8, 3 / 8, 3 / 8, 1 / 8],
        [0, THIRD, 2 * THIRD, 1],
    ),
    "dopri5": (
        [
            [0] * 7,
            [1 / 5] + [0] * 6,
            [3 / 40, 9 / 40] + [0] * 5,
            [44 / 45, -56 / 15, 32 / 9] + [0] * 4,
            [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729] + [0] * 3,
            [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656, 0, 0],
            [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0],
        ],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0],
        [0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1],
    ),
}
ACTIVATIONS = {
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "softplus": torch.nn.functional.softplus,
}
REAL = ("dt", "dx", "slopes", "drive")
"""The arguments of a path that are numbers to differentiate."""


def uniform(rng, *shape, scale=1.0):
    return rng.uniform(-scale, scale, shape)


def random_field(rng, channels, hidden, width, depth):
    """Weights as float64: [(weight, bias), ...], columns, column_biases."""
    layers = [
        (uniform(rng, width, inputs, scale=1.5 / inputs**0.5), uniform(rng, width))
        for inputs in [hidden] + [width] * (depth - 1)
    ]
    return (
        layers,
        uniform(rng, channels, hidden, width, scale=1.5 / width**0.5),
        uniform(rng, channels, hidden),
    )


def random_rectilinear(rng, pieces, channels, *, width=None, rate=0.5, most_steps=1):
    """Arguments of `cpu.rectilinear` as float64; a drive when width is given."""
    rows, streams = (max(pieces) + 1) // 2, len(pieces)
    moved = rng.random((rows, channels - 1, streams)) < rate
    return {
        "pieces": np.array(pieces),
        "dt": rng.exponential(0.4, (rows, streams)),
        "dx": np.where(moved, rng.normal(size=moved.shape), 0) * (rng.random(moved.shape) < 0.9),
        "moved": moved,
        "time_steps": rng.integers(0, most_steps + 1, (rows, streams)) if most_steps > 1 else None,
        "drive": None if width is None else rng.normal(size=(max(pieces) + 1, streams, width)),
    }


def random_dense(rng, pieces, channels, degree, *, width=None, drive_degree=0):
    """Arguments of `cpu.dense` as float64."""
    shape = (max(pieces), channels, len(pieces))
    moved = rng.random(shape) < 0.8
    drive = None
    if width is not None:
        knots = (max(pieces) + 1,) if drive_degree == 0 else (drive_degree + 1, max(pieces))
        drive = rng.normal(size=(*knots, len(pieces), width))
    return {
        "pieces": np.array(pieces),
        "slopes": np.where(moved, rng.normal(size=(degree + 1, *shape)) * 0.5, 0),
        "moved": moved,
        "drive": drive,
    }


def reference(weights, path, z0, method, steps, activation, final="tanh", record=None):
    """Plain float64: every stream alone, every piece, every step, every stage. Tensors in and out."""
    layers, columns, column_biases = weights
    a, b, c = (torch.tensor(x, dtype=torch.float64) for x in METHODS[method])
    act = ACTIVATIONS[activation]
    knots = int(path["pieces"].max()) + 1
    out = []
    for n in range(len(path["pieces"])):
        z, states = z0[n], [z0[n]]
        for p in range(int(path["pieces"][n])):
            if "dt" in path and p % 2 == 0:
                slopes, moved = {0: [path["dt"][p // 2, n]]}, [0]
                count = 1 if path["time_steps"] is None else int(path["time_steps"][p // 2, n])
            elif "dt" in path:
                moved = [j + 1 for j in range(columns.shape[0] - 1) if path["moved"][p // 2, j, n]]
                slopes, count = {j: [path["dx"][p // 2, j - 1, n]] for j in moved}, steps
            else:
                moved = [j for j in range(columns.shape[0]) if path["moved"][p, j, n]]
                slopes, count = {j: list(path["slopes"][:, p, j, n]) for j in moved}, steps
            for number in range(count):
                increments = []
                for s in range(len(b)):
                    u = (number + c[s]) / count
                    y = z + sum((a[s, r] * increments[r] for r in range(s)), torch.zeros_like(z))
                    x = layers[0][0] @ y + layers[0][1]
                    drive = path["drive"]
                    if drive is not None and drive.ndim == 3:
                        x = x + (1 - u) * drive[p, n] + u * drive[p + 1, n]
                    elif drive is not None:
                        x = x + sum(drive[d, p, n] * u**d for d in range(drive.shape[0]))
                    h = act(x)
                    for weight, bias in layers[1:]:
                        h = act(weight @ h + bias)
                    k = torch.zeros_like(z)
                    for j in moved:
                        f = columns[j] @ h + column_biases[j]
                        f = torch.tanh(f) if final == "tanh" else f
                        part = sum(q * u**d for d, q in enumerate(slopes[j])) / count * f
                        k = k + part
                        if record is not None:
                            record[p, n, j] = record.get((p, n, j), 0) + b[s] * part
                    increments.append(k)
                z = z + sum(b[s] * increments[s] for s in range(len(b)))
            states.append(z)
        out.append(torch.stack(states + [z] * (knots - len(states))))
    return torch.stack(out, 1)


def as_tensors(tree):
    """The same nest of lists, tuples and dicts with float64 leaves that require gradients."""
    if isinstance(tree, dict):
        return {key: as_tensors(value) if key in REAL else value for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(as_tensors(value) for value in tree)
    return None if tree is None else torch.tensor(tree, dtype=torch.float64, requires_grad=True)


def make_path(path, dtype):
    """The kernel's path from the reference's arguments."""
    numbers = {
        key: value.astype(dtype) for key, value in path.items() if key in REAL and value is not None
    }
    return (cpu.rectilinear if "dt" in path else cpu.dense)(**(path | numbers))


def pack(weights, dtype, **options):
    layers, columns, biases = weights
    layers = [(weight.astype(dtype), bias.astype(dtype)) for weight, bias in layers]
    return cpu.pack_field(layers, columns.astype(dtype), biases.astype(dtype), **options)


def method_for(name, dtype):
    return cpu.tableau(*METHODS[name], dtype)
