"""Solving a Neural CDE along the rectilinear control, beside torchcde and diffrax in one run.

    python -m benchmarks.solve
    python -m benchmarks.solve --cases ac --out benchmarks/results/solve.json

Every library gets the same series, weights and method (rk4, the 3/8 rule, one step a leg, float32)
and gives z at the rows. Each case of each library runs in a process of its own, so that memory is
its own. Ours is timed from the series on: building the path and planning which channels move are
inside; the peers are handed finished paths. torchcde runs with `perturb=True` (without it, its
answer is wrong at every knot) and backpropagates through the solver; diffrax steps to the knots
with its direct adjoint, compiled by jit. Memory is the most a training step holds beyond what was
held before it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.timing import best_of, describe, machine, versions, write_results


@dataclass(frozen=True)
class Case:
    streams: int
    rows: int
    values: int
    observed: float
    hidden: int
    width: int
    counts: bool


CASES = {
    "a": Case(128, 72, 30, 0.15, 64, 64, counts=True),
    "b": Case(1024, 72, 30, 0.15, 64, 64, counts=True),
    "c": Case(32, 182, 3, 1.0, 148, 89, counts=False),
    "d": Case(128, 72, 60, 0.05, 64, 64, counts=True),
}
BARS = {
    # (forward, training) at least so many times the peer; memory at most this share of torchcde's
    "a": {"torchcde": (10, 8), "diffrax": (4, 8), "memory": 0.1, "plain": (5, 4)},
    "b": {"torchcde": (10, 8), "diffrax": (4, 8), "memory": 0.1},
    "c": {"torchcde": (3, 3), "diffrax": (2, 2)},
    "d": {"torchcde": (10, 8), "diffrax": (4, 8), "memory": 0.1},
}
LIBRARIES = ("onlinecde", "plain torch", "torchcde", "diffrax")


def made(case: Case) -> tuple[oc.SeriesBatch, oc.MLPField, torch.Tensor]:
    """Random series, a field and starting states, the same in every process."""
    numbers = torch.Generator().manual_seed(0)
    shape = (case.streams, case.rows, case.values)
    times = torch.rand(shape[:2], generator=numbers, dtype=torch.float64).cumsum(1)
    values = 0.3 * torch.randn(shape, generator=numbers)
    values[torch.rand(shape, generator=numbers) >= case.observed] = torch.nan
    torch.manual_seed(0)
    channels = 1 + case.values * (2 if case.counts else 1)
    field = oc.MLPField(case.hidden, channels, case.width, 2)
    with torch.no_grad():
        field.weight.mul_(0.3)  # counts reach 70: keep states in a range where float32 is fair
    return oc.SeriesBatch.from_padded(times, values), field, torch.randn(case.streams, case.hidden)


Calls = tuple[Callable[[], Any], Callable[[], Any]]
"""A forward pass that returns z at the rows as an array, and a training step."""


def ours(case: Case, backend: str) -> Calls:
    batch, field, z0 = made(case)

    def solve() -> torch.Tensor:
        path = oc.controls.rectilinear(batch, case.counts)
        return oc.solve(path, field, z0, backend=backend).z

    def forward() -> np.ndarray:
        with torch.no_grad():
            return solve().numpy()

    def train() -> None:
        field.zero_grad()
        solve().square().mean().backward()

    return forward, train


def theirs(case: Case) -> Calls:
    import torchcde

    batch, field, z0 = made(case)
    path = oc.controls.rectilinear(batch, case.counts)
    control = torchcde.LinearInterpolation(path.evaluate(path.knots))

    class Field(torch.nn.Module):
        """The same network as one would write it for torchcde: a matrix from a plain MLP."""

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

    func = Field()
    at = control.grid_points[::2]

    def solve() -> torch.Tensor:
        return torchcde.cdeint(
            control, func, z0, at, adjoint=False, method="rk4",
            options={"step_size": 1.0, "perturb": True},
        )  # fmt: skip

    def forward() -> np.ndarray:
        with torch.no_grad():
            return solve().numpy()

    def train() -> None:
        func.zero_grad()
        solve().square().mean().backward()

    return forward, train


def with_diffrax(case: Case) -> Calls:
    import diffrax
    import jax
    import jax.numpy as jnp

    batch, field, z0 = made(case)
    path = oc.controls.rectilinear(batch, case.counts)
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
        after = jax.vmap(one, (None, 0, 0))(weights, knots, z_start)
        return jnp.concatenate([z_start[:, None], after], 1)

    gradient = jax.jit(jax.grad(lambda weights: jnp.mean(solve(weights) ** 2)))
    return (
        lambda: np.asarray(solve(weights).block_until_ready()),
        lambda: jax.block_until_ready(gradient(weights)),
    )


def memory_of(call: Callable[[], Any]) -> int:
    """The most bytes held during a call beyond those held before it."""
    process, most, done = psutil.Process(), 0, threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return max(most - before, 0)


def one(library: str, name: str, seconds: float, threads: int) -> None:
    """Time one case with one library; print the numbers as JSON and save z for comparison."""
    torch.set_num_threads(threads)
    case = CASES[name]
    builders = {
        "onlinecde": lambda case: ours(case, "cpu"),
        "plain torch": lambda case: ours(case, "torch"),
        "torchcde": theirs,
        "diffrax": with_diffrax,
    }
    forward, train = builders[library](case)
    small = replace(case, streams=2, rows=3)
    for warm_up in builders[library](small):
        warm_up()  # code is loaded and compiled outside of what is measured
    z = forward()
    # Memory first: later steps reuse what the first has allocated.
    memory = memory_of(train)
    found = {
        "forward": asdict(best_of(forward, seconds=seconds)),
        "training": asdict(best_of(train, seconds=seconds)),
        "memory": memory,
        "check": [float(np.abs(z).mean()), float(z[:, -1].sum()), float(np.abs(z[:, -1]).sum())],
    }
    print(json.dumps(found))


def run(names: str, seconds: float, threads: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        found[name] = {}
        for library in LIBRARIES:
            command = [sys.executable, "-m", "benchmarks.solve", "--one", library, name]
            command += ["--seconds", str(seconds), "--threads", str(threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{library} failed on case {name}:\n{done.stderr}")
            found[name][library] = json.loads(done.stdout.splitlines()[-1])
        check = np.array([found[name][library]["check"] for library in LIBRARIES])
        if np.abs(check[:, [0, 2]] / check[0, [0, 2]] - 1).max() > 1e-3:
            sys.exit(f"the libraries disagree on case {name}: {check.tolist()}")
    return found


def judge(
    found: dict[str, dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[tuple[str, ...]], bool]:
    """Ratios beside the bars, as JSON and as lines of a table."""
    results, lines, good = [], [], True
    for name, libraries in found.items():
        mine, case = libraries["onlinecde"], CASES[name]
        bars = BARS[name]
        channels = case.values * (2 if case.counts else 1)
        shape = f"{name}: {case.streams} streams, {case.rows} rows, {channels} channels, {case.observed:.0%}"
        for library in LIBRARIES:
            its = libraries[library]
            row = [shape if library == "onlinecde" else "", library]
            entry: dict[str, Any] = {"case": name, **asdict(case), "library": library, **its}
            for number, what in enumerate(("forward", "training")):
                text = f"{its[what]['best'] * 1e3:,.0f} ms"
                bar = bars.get(library, (None, None))[number] if library in bars else None
                if library != "onlinecde":
                    ratio = its[what]["best"] / mine[what]["best"]
                    entry[f"{what}_ratio"] = ratio
                    text += f"  {ratio:.1f}x"
                    if bar:
                        good &= ratio >= bar
                        entry[f"{what}_bar"] = bar
                        text += f" (>= {bar}: {'yes' if ratio >= bar else 'NO'})"
                row.append(text)
            memory = f"{its['memory'] / 2**20:,.0f} MiB"
            if library == "torchcde" and "memory" in bars:
                share = mine["memory"] / its["memory"]
                entry["memory_share"] = share
                good &= share <= bars["memory"]
                memory += f"  {share:.3f} (<= {bars['memory']}: {'yes' if share <= bars['memory'] else 'NO'})"
            row.append(memory)
            lines.append(tuple(row))
            results.append(entry)
        if "plain" in bars:
            plain, peer = libraries["plain torch"], libraries["torchcde"]
            ratios = [peer[what]["best"] / plain[what]["best"] for what in ("forward", "training")]
            ok = all(ratio >= bar for ratio, bar in zip(ratios, bars["plain"], strict=True))
            good &= ok
            lines.append((f"{name}: plain torch against torchcde", "",
                          f"{ratios[0]:.1f}x (>= {bars['plain'][0]})", f"{ratios[1]:.1f}x (>= {bars['plain'][1]})",
                          "yes" if ok else "NO"))  # fmt: skip
    return results, lines, good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", default="abcd")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "CASE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(*asked.one, asked.seconds, asked.threads)
        return
    torch.set_num_threads(asked.threads)
    hardware = machine()
    installed = versions("onlinecde", "torch", "numba", "torchcde", "torchdiffeq", "diffrax", "jax")
    results, lines, good = judge(run(asked.cases, asked.seconds, asked.threads))
    table = Table(
        title="rk4 along the rectilinear control", box=box.SIMPLE_HEAD, title_justify="left"
    )
    for column in ("case", "library", "forward", "training step", "memory of a step"):
        table.add_column(column)
    for line in lines:
        table.add_row(*line)
    console = Console(width=160)
    console.print(table)
    for note in describe(hardware, installed):
        console.print(note, highlight=False)
    if asked.out:
        write_results(asked.out, command=["python", "-m", "benchmarks.solve", *sys.argv[1:]],
                      settings={"seconds": asked.seconds, "method": "rk4", "dtype": "float32"},
                      hardware=hardware, installed=installed, results=results)  # fmt: skip
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
