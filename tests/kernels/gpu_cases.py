"""Problems for the GPU kernels, and their errors against plain torch in float64.

Run as a program, with TRITON_INTERPRET=1 set, it prints the errors of the named cases as JSON.
"""

import contextlib
import copy
import json
import sys
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from made_problems import by_torch

from onlinecde import MLPField, SeriesBatch, controls
from onlinecde.kernels import gpu
from onlinecde.solvers.backends.gpu import legs_of, pack, weights_of
from onlinecde.solvers.runge_kutta import tableau
from onlinecde.solvers.segments import segments_of

# Tiles as small as tensor cores allow, so that small problems have several of each kind.
TINY = {
    "rows": 16, "entries": 16, "entries_back": 16, "block": 16, "columns": 16, "columns_back": 16,
    "shares": 1, "shares_back": 1, "deep": 16, "dense": None, "dense_back": None,
}  # fmt: skip
# Legs on which most channels move: few groups of channels, and blocks of units smaller than there are.
DENSE = TINY | {"dense": gpu.Dense(16, 16, 2, 1), "dense_back": gpu.Dense(16, 16, 2, 1)}
# Rows of 32 as a whole, where what a layer takes in is read in two blocks.
WHOLE = TINY | {"block": 32}


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...] = (3, 2, 1)
    channels: int = 2
    observed: float | tuple[float, ...] = 0.6
    """Share of values observed; if several, row by row in turn"""
    counts: bool = True
    scheme: str = "rectilinear"
    hidden: int = 5
    width: int = 7
    depth: int = 2
    activation: str = "silu"
    final: str = "tanh"
    method: str = "heun"
    sees_path: bool = False
    steps: int = 1
    max_step: float | None = None
    alone: bool = False
    precision: str = "highest"
    data: bool = False
    """Whether gradients of the path are asked for"""
    every: int = 1
    """Of the knots, one of so many has gradients"""
    shape: dict = field(default_factory=lambda: TINY)


INTERPRETED = {
    "moved_rk4": Case(method="rk4", activation="relu", every=2),
    "alone_deep": Case(alone=True, depth=3, activation="tanh", counts=False, every=3),
    "several_blocks": Case(hidden=19, width=18, depth=2, method="euler", observed=0.9),
    "units_first": Case(hidden=70, width=9, depth=1, method="euler", lengths=(3, 2)),
    "row_of_192": Case(hidden=5, width=130, depth=1, method="euler", lengths=(3, 2)),
    "hidden_of_192": Case(hidden=131, width=6, depth=1, method="euler", lengths=(2,)),
    "shared_units": Case(
        hidden=33, width=20, method="heun", shape=TINY | {"shares": 4, "shares_back": 2}
    ),
    "shared_units_and_entries": Case(
        hidden=20,
        width=18,
        lengths=(2,) * 21,
        depth=1,
        method="euler",
        shape=TINY | {"rows": 32, "entries": 32, "shares": 2, "shares_back": 2},
    ),
    "shared_units_data": Case(
        hidden=18, width=20, method="euler", data=True, shape=TINY | {"shares": 2, "shares_back": 2}
    ),
    "whole_rows": Case(hidden=20, width=19, method="midpoint", data=True, shape=WHOLE),
    "whole_rows_alone": Case(hidden=19, width=20, alone=True, shape=WHOLE),
    "whole_wide_rows": Case(
        hidden=20, width=130, depth=1, method="euler", data=True, lengths=(3, 2),
        shape=TINY | {"block": 256},
    ),
    "whole_rows_driven": Case(
        scheme="hermite", observed=1.0, hidden=18, width=17, sees_path=True, method="euler",
        lengths=(3, 2), shape=WHOLE,
    ),
    "fine_rows": Case(
        scheme="linear", observed=1.0, channels=3, hidden=70, width=66, method="euler",
        lengths=(3, 2, 2), shape=DENSE | {"dense": gpu.Dense(16, 32, 2, 1), "deep": 128},
    ),
    "fine_rows_cubic": Case(
        scheme="natural_cubic", observed=1.0, counts=False, channels=4, hidden=90, width=81, depth=1,
        method="euler", lengths=(3, 2), shape=DENSE | {"dense_back": gpu.Dense(16, 32, 3, 1)},
    ),
    "fine_rows_not_dense": Case(
        scheme="linear", observed=1.0, channels=3, hidden=66, width=70, method="euler",
        lengths=(3, 2), shape=TINY | {"columns": 64, "columns_back": 128, "block": 128},
    ),
    "fine_rows_alone": Case(
        scheme="linear", observed=1.0, counts=False, hidden=70, width=90, depth=1, method="euler",
        lengths=(3, 2), alone=True, shape=TINY | {"columns_back": 64, "block": 128},
    ),
    "fine_rows_deep": Case(
        scheme="natural_cubic", observed=1.0, counts=False, hidden=70, width=90, method="euler",
        lengths=(3, 2), shape=DENSE | {"block": 128, "deep": 64},
    ),
    "wide_columns": Case(hidden=5, width=70, depth=1, method="euler", lengths=(3, 2)),
    "alone_several_blocks": Case(alone=True, hidden=18, width=20, depth=2, method="euler"),
    "many_streams": Case(lengths=(2,) * 19, depth=1, method="euler", shape=TINY | {"rows": 32}),
    "more_than_fit": Case(lengths=(2,) * 18, depth=1, method="euler"),
    "many_alone": Case(lengths=(2,) * 19, depth=2, width=17, method="euler", alone=True),
    "driven_own_steps": Case(sees_path=True, max_step=0.5, data=True, lengths=(3, 2)),
    "alone_driven": Case(sees_path=True, max_step=0.5, data=True, alone=True, lengths=(3, 2)),
    # Two tiles whose streams take different numbers of steps.
    "own_steps_in_tiles": Case(
        sees_path=True, max_step=0.2, data=True, alone=True, lengths=(2,) * 18, depth=1, method="euler"
    ),
    "softplus_midpoint": Case(activation="softplus", method="midpoint", final="identity"),
    "linear": Case(scheme="linear", observed=1.0, data=True, method="midpoint"),
    "alone_cubic": Case(scheme="natural_cubic", alone=True, observed=1.0, data=True, steps=2),
    "driven_cubic": Case(scheme="hermite", observed=1.0, sees_path=True, data=True, lengths=(3, 2)),
    "high": Case(precision="high", method="rk4"),
    "dense_linear": Case(scheme="linear", observed=1.0, hidden=20, method="midpoint", shape=DENSE),
    "dense_cubic": Case(
        scheme="natural_cubic", observed=1.0, counts=False, channels=5, steps=2, sees_path=True,
        lengths=(4, 2), method="midpoint", shape=DENSE | {"dense_back": gpu.Dense(16, 16, 3, 1)},
    ),
    "dense_counts": Case(observed=1.0, hidden=18, lengths=(3, 2, 2, 1), shape=DENSE),
    "dense_alike": Case(
        observed=1.0, counts=False, channels=3, width=130, depth=1, hidden=33, method="euler",
        lengths=(3, 2), final="identity", shape=DENSE | {"dense": gpu.Dense(16, 32, 3, 1)},
    ),
    "dense_some_legs": Case(
        observed=(1.0, 0.2), channels=3, lengths=(5, 4, 4, 2), method="heun", depth=1, shape=DENSE
    ),
    "dense_many_streams": Case(
        observed=0.9, channels=3, lengths=(3,) * 17 + (2,) * 18, depth=1, method="euler",
        shape=DENSE | {"rows": 64, "dense_back": gpu.Dense(32, 16, 1, 1)},
    ),
    "dense_data": Case(observed=0.9, hidden=18, method="euler", data=True, shape=DENSE),
    "dense_nodes": Case(
        scheme="natural_cubic", observed=1.0, counts=False, channels=4, hidden=81, width=65, depth=1,
        lengths=(3, 2), shape=DENSE | {
            "block": 128, "deep": 128, "dense": gpu.Dense(16, 32, 2, 1), "dense_back": gpu.Dense(16, 32, 3, 1),
        },
    ),
    "dense_wide_cubic": Case(
        scheme="hermite", observed=1.0, counts=False, channels=4, hidden=20, width=130, depth=1,
        method="midpoint", lengths=(3, 2), shape=DENSE | {"block": 256, "deep": 64},
    ),
    "dense_cubic_data": Case(
        scheme="hermite", observed=1.0, hidden=20, data=True, steps=2, sees_path=True, shape=DENSE,
    ),
    "dense_linear_data": Case(
        scheme="linear", observed=1.0, hidden=20, data=True, method="midpoint", shape=DENSE,
    ),
    "dense_cubic_lots": Case(
        lengths=(3,) * 17 + (2,), scheme="natural_cubic", observed=1.0, counts=False, hidden=18,
        depth=1, sees_path=True, shape=DENSE,
    ),
    "dense_own_steps": Case(
        lengths=(3, 2, 1), observed=(1.0, 0.2, 1.0), counts=False, channels=3, hidden=18, depth=2,
        method="rk4_classic", steps=2, max_step=0.5, final="identity", activation="softplus", shape=DENSE,
    ),
    "ones": Case(hidden=1, width=1, channels=1, counts=False, lengths=(3,), method="bosh3"),
    "more_groups_than_channels": Case(
        scheme="natural_cubic", observed=1.0, counts=False, lengths=(3, 2), channels=4, hidden=20,
        method="midpoint", shape=DENSE | {"dense": gpu.Dense(16, 16, 5, 1), "dense_back": gpu.Dense(16, 16, 4, 1)},
    ),
    "dense_high": Case(scheme="linear", observed=1.0, precision="high", shape=DENSE),
    "dense_by_itself": Case(
        scheme="linear", observed=1.0, channels=5, hidden=70, width=20, method="euler",
        lengths=(3, 2), shape={},
    ),
}  # fmt: skip
ON_A_GPU = {
    "reference": Case(tuple(range(1, 40)) * 5, 40, 0.15, hidden=64, width=64, activation="relu"),
    "reference_high": Case(
        tuple(range(1, 40)) * 5, 40, 0.15, hidden=64, width=64, precision="high"
    ),
    "reference_rows": Case(
        tuple(range(1, 40)) * 5, 40, 0.15, hidden=64, width=64, precision="high", every=2
    ),
    "characters": Case((41, 17, 30) * 11, 3, 1.0, False, hidden=148, width=89, alone=True),
    "beijing": Case((24, 23) * 17, 9, 0.9, False, hidden=249, width=170, depth=1, data=True),
    "sepsis": Case((20, 7, 1) * 30, 37, 0.2, hidden=82, width=65, sees_path=True, data=True),
    "los": Case((12, 5) * 40, 37, 0.2, hidden=32, width=126, depth=4, activation="relu"),
    "speech": Case((9,) * 50, 10, 1.0, False, "linear", 113, 124, 3),
    "speech_cubic": Case((9,) * 50, 10, 1.0, False, "hermite", 113, 124, 3, alone=True),
    "one_stream": Case((5,), 4, 0.5, hidden=33, width=31, max_step=0.3),
    "own_steps": Case((3,) * 100, 9, 0.3, hidden=33, width=31, max_step=0.2),
    "driven": Case((20, 7, 7, 1) * 60, 40, 0.15, hidden=32, width=64, depth=1, sees_path=True),
    "driven_cubic_deep": Case(
        (7, 5) * 40, 12, 1.0, False, "natural_cubic", 65, 82, 2, sees_path=True, data=True
    ),
    "beijing_dense": Case((24, 23) * 17, 9, 0.95, False, hidden=256, width=171, depth=1),
    "beijing_wide": Case((9, 7) * 512, 9, 0.95, False, hidden=249, width=196, depth=1),
    "dense_and_not": Case((20, 7, 1) * 30, 37, (0.9, 0.3), False, hidden=82, width=65),
    "linear_fine": Case((7, 5) * 70, 37, 1.0, True, "linear", 65, 119, 2),
    "cubic_fine": Case((7, 5) * 70, 20, 1.0, False, "natural_cubic", 90, 82, 1),
    "few_wide": Case((9, 5) * 70, 3, 1.0, False, "linear", 249, 170, 1),
    "few_wide_high": Case((9,) * 70, 3, 1.0, False, "linear", 249, 170, 1, precision="high"),
    "beijing_many": Case((3, 2) * 1100, 9, 0.95, False, hidden=256, width=171, depth=1),
    "linear_many": Case((9, 5) * 100, 37, 1.0, True, "linear", 82, 65, 2),
    "linear_narrow": Case((20, 11) * 40, 37, 1.0, True, "linear", 33, 91, 2),
    "cubic_many": Case((9, 5) * 70, 37, 1.0, True, "natural_cubic", 65, 256, 2),
    "linear_high": Case((9,) * 100, 20, 1.0, False, "linear", 128, 128, precision="high"),
    "thousands": Case((3,) * 4100, 5, 0.5, hidden=16, width=16, depth=1),
    "tens_of_thousands": Case((2,) * 10_000, 5, 0.5, hidden=16, width=16, depth=1),
}
ON_A_GPU = {name: replace(case, method="rk4", steps=1, shape={}) for name, case in ON_A_GPU.items()}


def made(case: Case, device: str, seed: int):
    """Segments, a field and starting states in float32, their numbers from the seed."""
    numbers = np.random.default_rng(seed)
    times, values = [], []
    for rows in case.lengths:
        times.append(numbers.uniform(0.2, 1.2, rows).cumsum())
        table = numbers.normal(size=(rows, case.channels)) * 0.5
        share = np.resize(case.observed, rows)[:, None]
        table[numbers.random(table.shape) >= share] = np.nan
        values.append(torch.tensor(table, dtype=torch.float32))
    batch = SeriesBatch.from_arrays(times, values).to(device)
    path = getattr(controls, case.scheme)(batch, case.counts)
    torch.manual_seed(seed)
    made_field = MLPField(
        case.hidden, path.channels, case.width, case.depth, case.activation, case.final,
        sees_path=case.sees_path,
    ).to(device)  # fmt: skip
    z0 = torch.randn(len(case.lengths), case.hidden).to(device)
    laid = segments_of(path, case.steps, case.max_step).shown_to(made_field)
    return laid, made_field, z0[laid.order]


@contextlib.contextmanager
def _unwritten_is_nan():
    """What is read before it was written, or beyond it, is found out: empty tensors are full of NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class HalfOperands(MLPField):
    """Plain torch with what goes into products rounded to half precision, as "high" does, and nothing else."""

    def features(self, z, drive=None):
        assert drive is None
        assert self.activation == "relu"
        for layer in self.inner:
            z = torch.nn.functional.linear(_half(z), _half(layer.weight), layer.bias).relu()
        return _half(z)


def _half(x):
    return x + (x.detach().half().to(x.dtype) - x.detach())


def plain_errors(case: Case, device: str, seed: int) -> dict[str, float]:
    """What `errors` gives for weights where operands are rounded in plain torch: kinks cost so much by themselves."""
    laid, own_field, z0 = made(case, device, seed)
    found = []
    for kind in (MLPField, HalfOperands):
        own = copy.deepcopy(own_field).double()
        own.__class__ = kind
        z = by_torch(
            replace(laid, time=laid.time.double(), slopes=laid.slopes.double()), own,
            tableau(case.method), z0.double(), exact=False,
        )  # fmt: skip
        weight = torch.randn(
            z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        found.append(torch.autograd.grad((z * weight.to(device)).sum(), weights_of(own)))
    return {
        f"g weight {number}": float((a - b).norm() / a.norm())
        for number, (a, b) in enumerate(zip(*found, strict=True))
    }


def float32_errors(case: Case, device: str, seed: int) -> dict[str, float]:
    """What `errors` gives for z, z0 and weights where plain torch computes in float32.

    So much a long path costs by itself.
    """
    laid, own_field, z0 = made(case, device, seed)
    found = []
    for dtype in (torch.float64, torch.float32):
        own, start = copy.deepcopy(own_field).to(dtype), z0.to(dtype).requires_grad_()
        path = replace(laid, slopes=laid.slopes.to(dtype))
        z = by_torch(path, own, tableau(case.method), start, exact=False)
        weight = torch.randn(
            z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        weight[torch.arange(len(weight)) % case.every > 0] = 0
        total = (z * weight.to(device, dtype)).sum()
        gradients = torch.autograd.grad(total, [start, *weights_of(own)])
        found.append([z.detach(), *gradients])
    names = ["z", "g z0", *(f"g weight {number}" for number in range(len(found[0]) - 2))]
    return {
        name: float((a - b.double()).norm() / a.norm())
        for name, a, b in zip(names, *found, strict=True)
    }


def errors(case: Case, device: str, seed: int) -> dict[str, float]:
    """Relative errors (L2) of z and of every gradient against float64."""
    laid, own_field, z0 = made(case, device, seed)
    inputs = {"z0": z0, "slopes": laid.slopes, "time": laid.time, "drive": laid.drive}
    inputs = {name: x.detach() for name, x in inputs.items() if x is not None}
    table = tableau(case.method)
    exact = {name: x.double().requires_grad_() for name, x in inputs.items()}
    exact_field = copy.deepcopy(own_field).double()
    names = [name for name in exact if name != "z0"]
    reference = replace(laid, **{name: exact[name] for name in names})
    # Recorded by autograd: code the kernels share nothing with.
    want = by_torch(reference, exact_field, table, exact["z0"], exact=False)
    weight = torch.randn(
        want.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    weight = weight.to(device)
    if case.every > 1:
        weight[torch.arange(len(weight)) % case.every > 0] = 0
    wanted = [*exact.values(), *weights_of(exact_field)]
    want_g = torch.autograd.grad((want * weight).sum(), wanted, allow_unused=True)

    legs = legs_of(replace(laid, **{name: inputs[name] for name in names}))
    packed = pack(own_field, weights_of(own_field))
    shape = replace(gpu.shape_for(packed, legs, case.alone), **case.shape)
    method = gpu.pack_table(table.a, table.b, table.c, torch.device(device))
    split = case.precision == "highest"
    how = {"split": split, "shape": shape, "every": case.every}
    with _unwritten_is_nan():
        quiet, _ = gpu.forward(packed, legs, z0, method, save=False, **how)
        z, tapes = gpu.forward(packed, legs, z0, method, save=True, **how)
        found = gpu.backward(
            weight.float()[:: case.every], tapes, every=case.every,
            want_time=case.data, want_slopes=case.data, want_drive=case.data or case.sees_path,
        )  # fmt: skip
    got = dict(zip([*exact, *range(len(wanted))], want_g, strict=False))
    want = want[:: case.every]
    pairs = {"z": (z, want), "z without gradients": (quiet, want)}
    pairs["g z0"] = (found.z0, got["z0"])
    if case.data:
        mask = 1.0
        if laid.observed is not None:
            mask = torch.cat([laid.observed] * legs.parts, 2)[:, :, None]
        pairs["g slopes"] = (found.slopes * mask, got["slopes"] * mask)
        if found.time is not None:
            pairs["g time"] = (found.time, got["time"])
    if found.drive is not None:
        pairs["g drive"] = (found.drive, got["drive"])
    mine = [part for layer in found.inner for part in layer] + [found.weight, found.bias]
    for number, (a, b) in enumerate(zip(mine, want_g[len(exact) :], strict=True)):
        pairs[f"g weight {number}"] = (a, torch.zeros_like(a) if b is None else b)
    result = {}
    for name, (a, b) in pairs.items():
        assert a.shape == b.shape, (name, a.shape, b.shape)
        off, size = (a.double() - b.detach()).norm(), b.detach().norm()
        result[name] = float(off / size) if size > 0 else float(off)
    return result


def solved(seed: int) -> dict[str, float]:
    """The same through `solve`, asked for the GPU: relative errors of z and of the field's gradients."""
    import onlinecde as oc

    case = Case(sees_path=True)
    batch = SeriesBatch.from_arrays(
        [[0.0, 0.6, 1.0], [0.2]], [[[1.0, 0.2], [np.nan, 1.0], [0.1, 0.3]], [[2.0, 0.0]]]
    )
    path = controls.rectilinear(batch, True)
    torch.manual_seed(seed)
    own = MLPField(case.hidden, path.channels, case.width, sees_path=True)
    z0 = torch.randn(2, case.hidden)
    found, want = {}, {}
    for backend, results in (("gpu", found), ("torch", want)):
        done = oc.solve(path, own, z0, at=[0.2, 0.7, 1.5], backend=backend)
        assert done.backend == backend, done.reason
        own.zero_grad()
        done.z.square().mean().backward()
        results |= {"z": done.z.detach()} | {
            f"g {n}": p.grad.clone() for n, p in own.named_parameters()
        }
    return {name: float((x - want[name]).norm() / want[name].norm()) for name, x in found.items()}


def edited(seed: int) -> dict[str, list[float]]:
    """How far z is off at each knot after an edit of what was observed from the fourth row on."""
    case = INTERPRETED["dense_some_legs"]
    found, crowds = [], []
    for observed in ((1.0, 0.1, 1.0, 1.0, 0.1), (1.0, 0.1, 1.0, 0.1, 1.0)):
        laid, own, z0 = made(replace(case, observed=observed), "cpu", seed)
        legs = legs_of(laid)
        packed = pack(own, weights_of(own))
        shape = replace(gpu.shape_for(packed, legs, False), **case.shape)
        rows = tableau(case.method)
        table = gpu.pack_table(rows.a, rows.b, rows.c, torch.device("cpu"))
        found.append(gpu.forward(packed, legs, z0, table, save=False, shape=shape)[0])
        crowds.append(gpu.plan_moves(legs, shape.entries).leg_crowd.tolist())
    off = (found[1] - found[0]).abs().amax((1, 2)).tolist()
    return {"off": off, "before": crowds[0], "after": crowds[1]}


def sums(seed: int) -> dict[str, float]:
    """How far sums of many parts are off, one of which goes into the first rows of another."""
    from onlinecde.kernels.gpu.sums import Part, Sums

    parts = (Part(70, 5, 13), Part(3, 4, 7, into=2), Part(33, 9, 7, skip=4), Part(1, 65, 3))
    room = Sums(parts, torch.empty(0))
    numbers = torch.Generator().manual_seed(seed)
    drawn = []
    for which in range(len(parts)):
        for place in room.parts(which):
            place.copy_(torch.randn(place.shape, generator=numbers))
            drawn.append(place.double().sum(0))
    drawn[4][:4], drawn[5][:4] = drawn[2], drawn[3]
    want = [*drawn[:2], *drawn[4:]]
    got = [x for pair in room.added() for x in pair]
    return {
        str(n): float((a - b).abs().max()) for n, (a, b) in enumerate(zip(got, want, strict=True))
    }


def alone() -> dict[str, bool]:
    """Which solves each thread block takes alone."""
    cases = {
        "characters": Case((3,), 3, 1.0, False, hidden=148, width=89),
        "linear characters": Case((3,), 3, 1.0, False, "linear", 249, 170, 1),
        "few and small": Case((3,), 3, 1.0, False, "linear", 64, 64),
        "many": Case((3,), 9, 1.0, False, hidden=16, width=16),
    }
    found = {}
    for name, case in cases.items():
        laid, own, _ = made(case, "cpu", 0)
        packed = pack(own, weights_of(own))
        found[name] = gpu.shape_for(packed, legs_of(laid)).alone
    return found


def kept() -> dict[str, bool]:
    """Whether a solve writes down what a way back would need, by the mode it is called in."""
    import onlinecde as oc

    saves, forward = [], gpu.forward

    def noted(*args, save: bool, **keywords):
        saves.append(save)
        return forward(*args, save=save, **keywords)

    gpu.forward = noted
    path = controls.rectilinear(SeriesBatch.from_arrays([[0.0, 0.6]], [[[1.0], [0.2]]]), True)
    own = MLPField(3, path.channels, 4)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            oc.solve(path, own, torch.zeros(1, 3), backend="gpu")
    return dict(zip(("no_grad", "inference_mode", "enable_grad"), saves, strict=True))


def one_for_all(name: str, seed: int) -> dict:
    """What a check that is no case prints."""
    seeded = {"sums": sums, "edited": edited}
    return seeded[name](seed) if name in seeded else {"alone": alone, "kept": kept}[name]()


if __name__ == "__main__":
    drawn, first = int(sys.argv[1]), sys.argv[2]
    if first in ("sums", "edited", "alone", "kept"):
        result = one_for_all(first, drawn)
    elif first == "solved":
        result = {"solved": solved(drawn)}
    else:
        result = {name: errors(INTERPRETED[name], "cpu", drawn) for name in sys.argv[2:]}
    print(json.dumps(result))
