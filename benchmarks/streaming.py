"""The streaming engine: rows a second in micro-batches, and one row at a time whatever the history.

    python -m benchmarks.streaming
    python -m benchmarks.streaming --out benchmarks/results/streaming.json
    python -m benchmarks.streaming --postgres postgresql://user@host/database

A model of 30 channels with counts, hidden 64, width 64, depth 2, float32; 3 channels observed at each row;
10,000 streams, an allowed lateness of one row. Events come as columns of Python lists, names and all. One
thread. Each figure is the best of several rounds: the one least disturbed by others on the machine. What
does not wait for a disk is measured in CPU time, too: that is what it costs of one core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.live import resolve_history
from benchmarks.timing import best_of, describe, machine, shown, versions, write_results
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import (
    Engine,
    EventBatch,
    MemoryStore,
    PostgresStore,
    SQLiteStore,
    StreamClock,
)

CHANNELS, STREAMS, ROWS = 30, 10_000, 1_000
NAMES = [f"stream {number}" for number in range(STREAMS)]


def made_model() -> oc.NeuralCDE:
    torch.manual_seed(0)
    return oc.NeuralCDE(CHANNELS, 64, outputs=1, field={"width": 64, "depth": 2}).eval()


class Sender:
    """Micro-batches of rows, stream after stream in turn, the clock going on by 1 each time round."""

    def __init__(self, streams: int = STREAMS) -> None:
        self.streams, self.sent = streams, 0
        self.random = np.random.default_rng(0)

    def rows(self, many: int) -> EventBatch:
        number = np.arange(self.sent, self.sent + many)
        self.sent += many
        channel = np.argsort(self.random.random((many, CHANNELS)), 1)[:, :3]
        names = [NAMES[n] for n in np.repeat(number % self.streams, 3)]
        times = np.repeat(number // self.streams, 3).astype(float)
        values = 0.3 * self.random.standard_normal(3 * many)
        return EventBatch(names, times.tolist(), [str(c) for c in channel.ravel()], values.tolist())


@contextmanager
def stored(kind: str) -> Iterator[Any]:
    """A store in memory, on disk, or in a new schema of the PostgreSQL database at a URL."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "memory":
            yield MemoryStore()
            return
        if kind.startswith("postgresql://"):
            store = PostgresStore(kind, schema=f"bench_{time.time_ns()}")
        else:
            store = SQLiteStore(Path(folder) / "live.db", synchronous=kind)  # pyright: ignore[reportArgumentType]
        try:
            yield store
        finally:
            store.close()


def rows_a_second(kind: str, rounds: int, policy: AlarmPolicy | None = None) -> float:
    """Rows a second in micro-batches of ROWS, every stream seen before; the best round."""
    with stored(kind) as store:
        engine, sender = Engine(made_model(), store, lateness=1.0, policy=policy), Sender()
        for _ in range(STREAMS // ROWS):
            engine.apply(sender.rows(ROWS))
        best = 0.0
        for _ in range(rounds):
            batches = [sender.rows(ROWS) for _ in range(STREAMS // ROWS)]
            start = time.perf_counter()
            for batch in batches:
                receipts = engine.apply(batch)
                assert receipts.counts["applied"] == 3 * ROWS
            best = max(best, STREAMS / (time.perf_counter() - start))
    return best


def per_call(call: Callable[[], Any], calls: int, rounds: int) -> float:
    """Seconds a call, best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def one_row(kind: str, history: int) -> float:
    """Seconds for a micro-batch of one row of a stream with so many rows behind it."""
    with stored(kind) as store:
        engine, sender = Engine(made_model(), store, lateness=1.0), Sender(streams=1)
        for _ in range(max(1, history // 100)):
            engine.apply(sender.rows(min(history, 100)))
        waiting = iter([sender.rows(1) for _ in range(2_000)])
        return per_call(lambda: engine.apply(next(waiting)), calls=50, rounds=40)


def one_late_row(behind: int) -> float:
    """Seconds for one event that comes so many rows late, once for each of 200 streams, in memory."""
    engine, sender = Engine(made_model(), lateness=float(behind + 1)), Sender(streams=200)
    for _ in range(60):
        engine.apply(sender.rows(200))
    names = iter(NAMES[:200])
    return per_call(
        lambda: engine.apply(EventBatch([next(names)], [59.5 - behind], ["0"], [0.5])),
        calls=20,
        rounds=10,
    )


def tick() -> float:
    """Seconds to ask all streams for an answer between rows."""
    engine, sender = Engine(made_model()), Sender()
    for _ in range(STREAMS // ROWS):
        engine.apply(sender.rows(ROWS))
    return per_call(lambda: engine.predict_many(NAMES, 1.5), calls=1, rounds=10)


def share_of_a_core(kind: str, seconds: float, rounds: int, resident: int = STREAMS) -> float:
    """CPU time of looking at all streams once, as a share of the seconds between two looks; the median round."""
    wall = [0.0]
    with stored(kind) as store:
        engine, sender = (
            Engine(
                made_model(), store, lateness=1.0, resident=resident, clock=lambda: wall[0],
                policy=AlarmPolicy(0.3, rearm=0.2, quiet=1.0, every=seconds / 3600),
                stream_clock=StreamClock(rate=1 / 3600, silent_after=24.0),
            ),
            Sender(),
        )  # fmt: skip
        for _ in range(STREAMS // ROWS):
            engine.apply(sender.rows(ROWS))
        spent = []
        for _ in range(rounds):
            wall[0] += seconds
            start = time.process_time()
            looks = sum(piece.looks for piece in engine.look_pieces())
            spent.append(time.process_time() - start)
            assert looks == STREAMS, looks
    return float(np.median(spent)) / seconds


def longest_piece() -> float:
    """Seconds that a writer waits at most for looks at all streams, a day of which was missed."""
    wall = [0.0]
    engine, sender = (
        Engine(
            made_model(), lateness=1.0, clock=lambda: wall[0],
            policy=AlarmPolicy(0.3, every=0.25),
            stream_clock=StreamClock(rate=1 / 3600, silent_after=24.0),
        ),
        Sender(),
    )  # fmt: skip
    for _ in range(STREAMS // ROWS):
        engine.apply(sender.rows(ROWS))
    wall[0] += 24 * 3600.0
    longest, pieces = 0.0, engine.look_pieces()
    while True:
        start = time.process_time()
        if next(pieces, None) is None:
            return longest
        longest = max(longest, time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--postgres", metavar="URL", help="also a store in this database; makes schemas bench_..."
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []

    def note(
        what: str, number: float, unit: str, least: float | None = None, most: float | None = None
    ) -> None:
        holds = (least is None or number >= least) and (most is None or number <= most)
        bound = {"at_least": least} if most is None else {"at_most": most}
        found.append({"what": what, "number": number, "unit": unit, **bound, "holds": holds})

    names = {"memory": "store in memory", "FULL": "SQLite, synced", "NORMAL": "SQLite, not synced"}
    for kind, least in (("memory", 60_000), ("FULL", 20_000), ("NORMAL", None)):
        number = rows_a_second(kind, asked.rounds)
        note(f"micro-batches of {ROWS:,} rows, {names[kind]}", number, "rows/s", least)
    single = {}
    for history in (10, 10_000):
        single[history] = one_row("memory", history)
        note(
            f"one row alone after {history:,} rows, {names['memory']}",
            1e6 * single[history],
            "us",
        )
    note("one row alone, SQLite, synced", 1e6 * one_row("FULL", 10), "us")
    if asked.postgres:
        number = rows_a_second(asked.postgres, asked.rounds)
        note(f"micro-batches of {ROWS:,} rows, PostgreSQL, synced", number, "rows/s")
        note("one row alone, PostgreSQL, synced", 1e6 * one_row(asked.postgres, 10), "us")
    for behind in (1, 6, 40):
        note(f"one event {behind} rows late, {names['memory']}", 1e6 * one_late_row(behind), "us")
    note(f"asking {STREAMS:,} streams between rows", 1e3 * tick(), "ms")
    for label, policy in (
        ("alarms at rows", AlarmPolicy(0.3)),
        ("and a look between rows before each", AlarmPolicy(0.3, rearm=0.2, quiet=1.0, every=0.5)),
    ):
        number = rows_a_second("memory", asked.rounds, policy)
        note(f"micro-batches of {ROWS:,} rows, {names['memory']}, {label}", number, "rows/s")
    what = f"{STREAMS:,} streams looked at every 15 s"
    for label, kind, resident in (
        ("in memory", "memory", STREAMS),
        ("all but 1 in 10 evicted, SQLite", "NORMAL", STREAMS // 10),
    ):
        share = share_of_a_core(kind, 15.0, asked.rounds, resident)
        note(f"{what}, {label}", share, "of a core", most=0.1)
    note("longest piece of looks, a day made up for", 1e3 * longest_piece(), "ms", most=100)
    with torch.no_grad():
        peer = best_of(resolve_history(made_model()), seconds=3).best
    note("torchcde, 72 rows of history solved again", 1e6 * peer, "us")
    ratio = peer * found[0]["number"]
    note("one row in a micro-batch against torchcde solving again", ratio, "times faster", 1_000)
    note(
        "one row after 10 rows against one after 10,000", single[10] / single[10_000], "times", 0.8
    )
    table = Table(title="The streaming engine", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("must hold")
    for one in found:
        sign, bound = (">=", one["at_least"]) if "at_least" in one else ("<=", one["at_most"])
        told = "" if bound is None else f"{sign} {bound:,g}: {'yes' if one['holds'] else 'NO'}"
        table.add_row(one["what"], f"{shown(one['number'])} {one['unit']}", told)
    console = Console(width=120)
    console.print(table)
    hardware, installed = machine(), versions("onlinecde", "torch", "numba", "torchcde")
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    if asked.out:
        settings = {
            "channels": CHANNELS, "observed": 3, "hidden": 64, "width": 64, "depth": 2,
            "streams": STREAMS, "rows": ROWS, "lateness": 1.0,
        }  # fmt: skip
        told = ["URL" if one == asked.postgres else one for one in sys.argv[1:]]
        write_results(
            asked.out,
            command=["python", "-m", "benchmarks.streaming", *told],
            settings=settings,
            hardware=hardware,
            installed=installed,
            results=found,
        )
    sys.exit(0 if all(one["holds"] for one in found) else 1)


if __name__ == "__main__":
    main()
