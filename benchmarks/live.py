"""One live observation, beside torchcde solving the whole history again.

    python -m benchmarks.live
    python -m benchmarks.live --out benchmarks/results/live.json

A model of 30 channels with counts (61 path channels), hidden 64, width 64, depth 2, float32; 3 of
30 channels are observed at each row. One thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchcde
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.timing import best_of, describe, machine, versions, write_results
from onlinecde.kernels.cpu import advance
from onlinecde.kernels.cpu.observation import Held, empty_plan, plan_observation
from onlinecde.models.frozen import packed

CHANNELS = 30


def rows(many: int, streams: int) -> torch.Tensor:
    """Rows (row, stream, channel) with 3 channels observed in each."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.full((many, streams, CHANNELS), torch.nan)
    which = torch.rand(x.shape, generator=numbers).topk(3, 2).indices
    return x.scatter(2, which, 0.3 * torch.randn(which.shape, generator=numbers))


def per_call(call: Callable[[int], Any], calls: int = 200, rounds: int = 40) -> float:
    """Seconds a call, best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for number in range(calls):
            call(number)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def after(model: oc.NeuralCDE, history: int, streams: int = 1) -> Any:
    state, x = model.init_state(streams), rows(50, streams)
    for row in range(history):
        state = model.observe(state, float(row), x[row % 50])
    return state


def kernel_call(model: oc.NeuralCDE, state: Any) -> Callable[[int], Any]:
    """The two legs of one observation and nothing else."""
    fast = packed(model)
    assert fast is not None
    x = rows(50, 1).numpy()
    clock, since = state.time.numpy() + 1.0, state.time.numpy().copy()
    held = Held(*(getattr(state, name).numpy() for name in Held._fields))
    plans = []
    for row in range(50):
        plan = empty_plan(1, CHANNELS, True, fast.dtype)
        assert plan_observation(clock, x[row], since, held, plan, fast.scaling)
        plans.append(plan)
    z = state.z.numpy()

    def call(number: int) -> Any:
        plan = plans[number % 50]
        return advance(fast.field, fast.table, z, plan.dt, plan.pointer, plan.channel, plan.dx)

    return call


def resolve_history(model: oc.NeuralCDE) -> Callable[[], Any]:
    """What torchcde does for one new row: solve the 72 rows of the history again."""
    x = rows(72, 1).transpose(0, 1)
    batch = oc.SeriesBatch.from_padded(torch.arange(72.0)[None], x)
    path = model.path(batch)
    control = torchcde.LinearInterpolation(path.evaluate(path.knots))
    z0 = model.begin(path.rows[:, 0], None)
    at = control.interval
    return lambda: torchcde.cdeint(
        control, lambda t, z: model.field.matrix(z), z0, at, adjoint=False, method="rk4",
        options={"step_size": 1.0, "perturb": True},
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = oc.NeuralCDE(CHANNELS, 64, outputs=1, field={"width": 64, "depth": 2})
    found: list[dict[str, Any]] = []

    def note(what: str, seconds: float, bar: float | None = None) -> None:
        found.append(
            {
                "what": what,
                "seconds": seconds,
                "at_most": bar,
                "holds": bar is None or seconds <= bar,
            }
        )

    with torch.no_grad():
        x = rows(50, 1)
        short, long = after(model, 10), after(model, 10_000)
        note("one observe, inside the kernel", per_call(kernel_call(model, short)), 20e-6)
        for history, state in ((10, short), (10_000, long)):
            t = float(state.time) + 1.0
            seconds = per_call(lambda n, s=state, t=t: model.observe(s, t, x[n % 50]))
            note(f"one observe, through Python, after {history:,} rows", seconds, 80e-6)
        t = float(short.time) + 1.0
        note(
            "one predict between rows, through Python", per_call(lambda n: model.predict(short, t))
        )
        many = after(model, 3, streams=1024)
        wide = rows(50, 1024)
        seconds = per_call(lambda n: model.observe(many, 10.0, wide[n % 50]), calls=10, rounds=10)
        note("1,024 streams advanced together, a row", seconds / 1024, 15e-6)
        peer = best_of(resolve_history(model), seconds=3).best
        note("torchcde, 72 rows of history solved again", peer)
    table = Table(title="One live observation", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("what", "time", "must hold"):
        table.add_column(column)
    for one in found:
        bar = one["at_most"]
        told = "" if bar is None else f"<= {bar * 1e6:.0f} us: {'yes' if one['holds'] else 'NO'}"
        table.add_row(one["what"], f"{one['seconds'] * 1e6:,.1f} us", told)
    console = Console(width=120)
    console.print(table)
    through = found[1]["seconds"]
    history_ratio = found[2]["seconds"] / through
    console.print(
        f"one observe is {peer / through:,.0f} times faster than torchcde's solving again"
    )
    console.print(f"after 10,000 rows it costs {history_ratio:.2f} times what it costs after 10")
    hardware, installed = (
        machine(),
        versions("onlinecde", "torch", "numba", "torchcde", "torchdiffeq"),
    )
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    if asked.out:
        write_results(asked.out, command=["python", "-m", "benchmarks.live", *sys.argv[1:]],
                      settings={"channels": CHANNELS, "observed": 3, "hidden": 64, "width": 64, "depth": 2,
                                "against_torchcde": peer / through, "long_against_short": history_ratio},
                      hardware=hardware, installed=installed, results=found)  # fmt: skip
    sys.exit(0 if all(one["holds"] for one in found) else 1)


if __name__ == "__main__":
    main()
