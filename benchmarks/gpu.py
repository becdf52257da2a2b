"""The GPU engine beside torchcde, diffrax and plain torch, in one run on one GPU.

    python -m benchmarks.gpu --out benchmarks/results/gpu.json
    python -m benchmarks.gpu --groups reference --seconds 1

Every library gets the same series, weights and method (rk4, the 3/8 rule, one step a piece) and gives
z at the rows. A training step is the forward pass, the mean of z squared and all gradients of the
weights. Ours is replayed from a CUDA graph that holds everything but the laying out of the path
(data only), as are its move lists; the peers are handed finished paths. torchcde runs with
`perturb=True` and backpropagates through the solver; diffrax is compiled by jit, with its direct
adjoint, its products as XLA chooses them (tf32) and again in float32. With `--keep`, results of
other cases stay in the file, with when they were measured. Memory is the most a training
step holds beyond what was held before it. Errors are relative L2 of z at the rows against float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

import onlinecde as oc
from benchmarks.epoch import STAYS, made_batch, our_cde, our_gru_d
from benchmarks.timing import machine, versions, write_results
from onlinecde.solvers.backends import BACKENDS, Problem
from onlinecde.solvers.backends.base import Precision
from onlinecde.solvers.backends.gpu import GPU, legs_of, pack, weights_of
from onlinecde.solvers.gradients import trajectory
from onlinecde.solvers.runge_kutta import tableau
from onlinecde.solvers.segments import PathSegments, segments_of


@dataclass(frozen=True)
class Case:
    group: str
    name: str
    rows: int
    values: int
    observed: float
    hidden: int
    width: int
    depth: int = 2
    counts: bool = True
    control: str = "rectilinear"
    streams: int = 1024
    peers: tuple[str, ...] = ("plain torch",)


ALL = ("plain torch", "torchcde")
REFERENCE = Case(
    "reference", "reference", 72, 40, 0.15, 64, 64, peers=(*ALL, "diffrax", "diffrax float32")
)
PAPER = {
    # rows, values, observed, counts; then hidden / width / depth by control, as the paper found them
    "BeijingPM10": (24, 9, 0.95, False, (249, 170, 1), (252, 120, 1), (256, 168, 1)),
    "BeijingPM2.5": (24, 9, 0.95, False, (256, 171, 1), (256, 196, 1), (180, 32, 3)),
    "CharacterTrajectories": (182, 3, 1.0, False, (148, 89, 2), (249, 170, 1), (238, 194, 1)),
    "LOS": (24, 37, 0.15, True, (32, 126, 4), (65, 119, 2), (108, 40, 4)),
    "Mortality": (72, 37, 0.15, True, (70, 55, 2), (33, 91, 2), (41, 55, 4)),
    "Sepsis": (72, 37, 0.15, True, (82, 65, 2), (82, 65, 2), (82, 65, 2)),
    "SpeechCommands": (89, 10, 1.0, False, (113, 124, 3), (77, 118, 3), (56, 125, 3)),
}


def cases(groups: set[str]) -> list[Case]:
    made = [REFERENCE]
    for name, (rows, values, observed, counts, *found) in PAPER.items():
        for control, sizes in zip(("rectilinear", "linear", "natural_cubic"), found, strict=True):
            group = "paper" if control == "rectilinear" else control
            # The other controls interpolate across gaps, so every channel moves on every piece.
            share = observed if control == "rectilinear" else 1.0
            made.append(Case(group, name, rows, values, share, *sizes, counts, control, peers=ALL))
    for share in (0.05, 0.3, 0.5, 1.0):
        made.append(
            replace(
                REFERENCE,
                group="density",
                name=f"{share:.0%}",
                observed=share,
                peers=("plain torch",),
            )
        )
    for streams in (32, 256, 4096):
        made.append(
            replace(
                REFERENCE, group="batch", name=str(streams), streams=streams, peers=("plain torch",)
            )
        )
    for width in (32, 100, 128, 256):
        made.append(
            replace(
                REFERENCE,
                group="width",
                name=str(width),
                rows=36,
                hidden=width,
                width=width,
                peers=("plain torch",),
            )
        )
    return [case for case in made if case.group in groups]


def problem(case: Case, device: str = "cuda") -> tuple[Any, oc.MLPField, torch.Tensor]:
    """A path, a field and starting states, the same in every process."""
    numbers = torch.Generator().manual_seed(0)
    shape = (case.streams, case.rows, case.values)
    times = torch.rand(shape[:2], generator=numbers, dtype=torch.float64).cumsum(1)
    values = 0.3 * torch.randn(shape, generator=numbers)
    values[torch.rand(shape, generator=numbers) >= case.observed] = torch.nan
    batch = oc.SeriesBatch.from_padded(times, values).to(device)
    path = getattr(oc.controls, case.control)(batch, case.counts)
    torch.manual_seed(0)
    field = oc.MLPField(case.hidden, path.channels, case.width, case.depth)
    with torch.no_grad():
        field.weight.mul_(0.3)  # counts reach 70: keep states in a range where float32 is fair
    return path, field.to(device), torch.randn(case.streams, case.hidden).to(device)


def milliseconds(call: Callable[[], Any], seconds: float) -> float:
    """Median over runs for about `seconds`, at least 3, after one that is not counted."""
    call()
    torch.cuda.synchronize()
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < seconds * 1e3 and len(taken) < 50):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return statistics.median(taken)


def memory_of(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def captured(call: Callable[[], Any]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def by_torch(segments: PathSegments, field: oc.MLPField, z0: torch.Tensor) -> torch.Tensor:
    """z at the knots by plain torch over the columns that move."""
    problem = Problem(segments, field, z0, tableau("rk4"), lambda place, knot: "").prepared()
    sparse = next(b for b in BACKENDS if b.device is None and b.unsupported(problem) is None)
    return trajectory(problem, sparse)[0]


def by_gpu(
    segments: PathSegments,
    field: oc.MLPField,
    z0: torch.Tensor,
    precision: Precision,
    legs: Any = None,
    moves: Any = None,
) -> torch.Tensor:
    """z at the rows by the kernels, as what goes into a CUDA graph is found."""
    problem = Problem(
        segments, field, z0, tableau("rk4"), lambda place, knot: "", returns="rows",
        precision=precision, capture=True,
    )  # fmt: skip
    return trajectory(problem.prepared(), GPU(legs, moves))[0]


def exact_knots(laid: PathSegments, field: oc.MLPField, z0: torch.Tensor) -> torch.Tensor:
    time_legs = None if laid.time is None else laid.time.double()
    double = replace(laid, time=time_legs, slopes=laid.slopes.double())
    with torch.no_grad():
        return by_torch(double, copy.deepcopy(field).double(), z0.double())


def loss_of(shape: torch.Size) -> Callable[[torch.Tensor], torch.Tensor]:
    """The mean of z squared at the rows, with as few kernels as torch has for it."""
    nothing = torch.zeros(shape, device="cuda")
    return lambda z: torch.nn.functional.mse_loss(z, nothing)


def ours(case: Case, seconds: float) -> list[dict[str, Any]]:
    """Both precisions; forward, step and memory, with the error of z."""
    from onlinecde.kernels import gpu

    path, field, z0 = problem(case)
    laid = segments_of(path)
    legs = legs_of(laid)
    exact = exact_knots(laid, field, z0)[:: path.pieces_per_row]
    loss = loss_of(exact.shape)
    results = []
    for precision in get_args(Precision):
        split = precision == "highest"
        packed = pack(field, weights_of(field))
        shape = gpu.shape_for(packed, legs, split=split)
        moves = None if shape.alone else gpu.plan_moves(legs, shape.entries)

        def solve(precision: Any = precision, moves: Any = moves) -> torch.Tensor:
            return by_gpu(laid, field, z0, precision, legs, moves)

        def forward(solve: Any = solve) -> torch.Tensor:
            with torch.no_grad():
                return solve()

        def train(solve: Any = solve) -> None:
            torch.autograd.grad(loss(solve()), list(field.parameters()))

        started = time.perf_counter()
        z = forward()
        train()
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        memory = memory_of(train)
        found = {
            "forward": milliseconds(captured(forward), seconds),
            "train": milliseconds(captured(train), seconds),
            "memory": memory,
            "error": float((z.double() - exact).norm() / exact.norm()),
            "first_call_s": first,
        }
        if moves is not None:
            found["lists"] = milliseconds(
                lambda n=shape.entries: gpu.plan_moves(legs, n), seconds / 4
            )
        results.append({"library": f"onlinecde {precision}", **found})
    return results


def plain(case: Case, seconds: float) -> dict[str, Any]:
    path, field, z0 = problem(case)
    laid = segments_of(path)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return by_torch(laid, field, z0)

    loss = loss_of(forward()[:: path.pieces_per_row].shape)

    def train() -> None:
        z = by_torch(laid, field, z0)
        torch.autograd.grad(loss(z[:: path.pieces_per_row]), list(field.parameters()))

    return {
        "forward": milliseconds(forward, seconds),
        "train": milliseconds(train, seconds),
        "memory": memory_of(train),
    }


def torchcde_field(case: Case, field: oc.MLPField) -> torch.nn.Module:
    """The same network as one would write it for torchcde: a matrix from a plain MLP."""

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            last = torch.nn.Linear(case.width, case.hidden * field.channels)
            with torch.no_grad():
                last.weight.copy_(field.weight.transpose(0, 1).reshape(-1, case.width))
                last.bias.copy_(field.bias.T.reshape(-1))
            inner = [part for layer in field.inner for part in (layer, torch.nn.ReLU())]
            self.layers = torch.nn.Sequential(*inner, last, torch.nn.Tanh())

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.layers(z).view(-1, case.hidden, field.channels)

    return Field().cuda()


def with_torchcde(case: Case, seconds: float) -> dict[str, Any]:
    import torchcde

    path, field, z0 = problem(case)
    knots = path.evaluate(path.knots)
    if case.control == "natural_cubic":
        control = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(knots))
    else:
        control = torchcde.LinearInterpolation(knots)
    func = torchcde_field(case, field)
    at = control.grid_points[:: path.pieces_per_row]

    def solve() -> torch.Tensor:
        return torchcde.cdeint(
            control, func, z0, at, adjoint=False, method="rk4",
            options={"step_size": 1.0, "perturb": True},
        )  # fmt: skip

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return solve()

    loss = loss_of(forward().shape)

    def train() -> None:
        torch.autograd.grad(loss(solve()), list(func.parameters()))

    return {
        "forward": milliseconds(forward, seconds),
        "train": milliseconds(train, seconds),
        "memory": memory_of(train),
    }


def with_diffrax(case: Case, seconds: float, products: str = "default") -> dict[str, Any]:
    """In a process of its own, so that two libraries do not share one GPU's memory."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--diffrax",
        json.dumps(asdict(case)),
        "--seconds",
        str(seconds),
    ]
    env = os.environ | {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_DEFAULT_MATMUL_PRECISION": products,
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        return {"failed": done.stderr[-500:]}
    return json.loads(done.stdout.splitlines()[-1])


def diffrax_alone(case: Case, seconds: float) -> dict[str, Any]:
    import diffrax
    import jax
    import jax.numpy as jnp
    import numpy as np

    path, field, z0 = problem(case, "cpu")
    knots = jnp.asarray(path.evaluate(path.knots).numpy())
    ts = jnp.arange(path.pieces + 1, dtype=jnp.float32)
    weights = [
        *((jnp.asarray(p.weight.detach().numpy()), jnp.asarray(p.bias.detach().numpy())) for p in field.inner),
        (jnp.asarray(field.weight.detach().numpy()), jnp.asarray(field.bias.detach().numpy())),
    ]  # fmt: skip

    class ThreeEighths(diffrax.AbstractERK):
        tableau = diffrax.ButcherTableau(
            c=np.array([1 / 3, 2 / 3, 1.0]),
            b_sol=np.array([1 / 8, 3 / 8, 3 / 8, 1 / 8]),
            b_error=np.zeros(4),
            a_lower=(np.array([1 / 3]), np.array([-1 / 3, 1.0]), np.array([1.0, -1.0, 1.0])),
        )
        interpolation_cls = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

        def order(self, terms: Any) -> int:
            return 4

    def vector_field(t: Any, z: Any, weights: Any) -> Any:
        for weight, bias in weights[:-1]:
            z = jax.nn.relu(weight @ z + bias)
        weight, bias = weights[-1]
        return jnp.tanh(jnp.einsum("chw,w->hc", weight, z) + bias.T)

    def one(weights: Any, rows: Any, z: Any) -> Any:
        control = diffrax.LinearInterpolation(ts, rows)
        return diffrax.diffeqsolve(
            diffrax.ControlTerm(vector_field, control), ThreeEighths(), ts[0], ts[-1], None, z,
            args=weights, saveat=diffrax.SaveAt(steps=True),
            stepsize_controller=diffrax.StepTo(ts=ts), adjoint=diffrax.DirectAdjoint(),
            max_steps=len(ts) - 1,
        ).ys[1::2]  # fmt: skip

    z_start = jnp.asarray(z0.numpy())

    @jax.jit
    def solve(weights: Any) -> Any:
        return jax.vmap(one, (None, 0, 0))(weights, knots, z_start)

    gradient = jax.jit(jax.grad(lambda weights: jnp.mean(solve(weights) ** 2)))

    def timed(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())
        taken = []
        while len(taken) < 3 or (sum(taken) < seconds and len(taken) < 50):
            start = time.perf_counter()
            jax.block_until_ready(call())
            taken.append(time.perf_counter() - start)
        return statistics.median(taken) * 1e3

    found = {"forward": timed(lambda: solve(weights))}
    stats = jax.devices()[0].memory_stats() or {}
    held = stats.get("bytes_in_use", 0)
    found["train"] = timed(lambda: gradient(weights))
    found["memory"] = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) - held
    return found


def epoch(seconds: float) -> list[dict[str, Any]]:
    """One epoch of the paper's largest task, 50,538 stays in batches of 1,024: ours beside GRU-D."""
    streams = 1024
    batch, labels = made_batch(streams, 72, 37, 0.15, "cuda")
    steps = {
        "NeuralCDE highest": our_cde(batch, labels, "highest"),
        "NeuralCDE high": our_cde(batch, labels, "high"),
        "GRUD": our_gru_d(batch, labels),
    }
    batches = -(-STAYS // streams)
    results = []
    for name, step in steps.items():
        one = milliseconds(step, seconds)
        results.append(
            {
                "group": "epoch",
                "name": "Mortality",
                "library": name,
                "train": one,
                "epoch_s": one * batches / 1e3,
                "batches": batches,
            }
        )
    return results


def warm(case: Case) -> str:
    """Compile what a case needs, on a small problem of the same kind; returns what failed."""
    try:
        small = replace(case, streams=min(case.streams, 64), rows=3)
        path, field, z0 = problem(small)
        for precision in get_args(Precision):
            z = by_gpu(segments_of(path), field, z0, precision)
            torch.autograd.grad(z.square().mean(), list(field.parameters()))
            # Or a fault would be told of the case that comes next.
            torch.cuda.synchronize()
    except Exception as error:
        return f"{case.group} {case.name}: {error}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    every = "reference,paper,linear,natural_cubic,density,batch,width,epoch"
    parser.add_argument("--groups", default=every)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--names", default="", help="only these, of the groups asked for")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--diffrax", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.diffrax:
        kept = json.loads(asked.diffrax)
        print(
            json.dumps(diffrax_alone(Case(**kept | {"peers": tuple(kept["peers"])}), asked.seconds))
        )
        return
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device.")
    groups = set(asked.groups.split(","))
    names = set(filter(None, asked.names.split(",")))
    chosen = [case for case in cases(groups) if not names or case.name in names]
    hardware = machine()
    installed = versions("torch", "triton", "torchcde", "torchdiffeq", "diffrax", "jax")
    installed = {"onlinecde": oc.__version__} | installed
    results: list[dict[str, Any]] = []
    old: list[dict[str, Any]] = []
    if asked.keep and asked.out and asked.out.exists():
        kept = json.loads(asked.out.read_text())
        old = [{"measured": kept["date"]} | one for one in kept["results"]]

    order = [(case.group, case.name) for case in cases(set(every.split(",")))]

    def place(one: dict[str, Any]) -> int:
        return order.index((one["group"], one["name"])) if one["group"] != "epoch" else len(order)

    def keep() -> None:
        if asked.out:
            new = {(one["group"], one["name"]) for one in results}
            before = [one for one in old if (one["group"], one["name"]) not in new]
            write_results(
                asked.out, command=["python", "-m", "benchmarks.gpu", *sys.argv[1:]],
                settings={"seconds": asked.seconds, "method": "rk4"},
                hardware=hardware, installed=installed,
                results=sorted([*before, *results], key=place),
            )  # fmt: skip

    # Compiling takes a core some 10 to 40 s a case: done for all of them side by side beforehand.
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        for failed in filter(None, pool.imap_unordered(warm, chosen, 1)):
            print("failed:", failed, flush=True)
    if "epoch" in groups:
        results += epoch(asked.seconds)
        print(*results, sep="\n", flush=True)
        keep()
    peers: dict[str, Callable[[Case, float], dict[str, Any]]] = {
        "plain torch": plain,
        "torchcde": with_torchcde,
        "diffrax": with_diffrax,
        "diffrax float32": lambda case, seconds: with_diffrax(case, seconds, "highest"),
    }
    for case in chosen:
        described = {key: value for key, value in asdict(case).items() if key != "peers"}
        try:
            lines = ours(case, asked.seconds)
            torch.cuda.synchronize()
        except Exception as error:
            print(case.group, case.name, "failed:", error, flush=True)
            lines = [{"library": "onlinecde", "failed": str(error)[:300]}]
        for name in case.peers:
            torch.cuda.empty_cache()
            try:
                lines.append({"library": name, **peers[name](case, asked.seconds)})
            except torch.cuda.OutOfMemoryError:
                lines.append({"library": name, "failed": "out of memory"})
        results += [described | line for line in lines]
        told = [
            f"{line['library']} {line.get('forward', 0):.1f}/{line.get('train', 0):.1f}"
            for line in lines
        ]
        print(case.group, case.name, "; ".join(told), flush=True)
        keep()


if __name__ == "__main__":
    main()
