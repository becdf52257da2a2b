"""The server with more streams than memory holds: opening them, rows mixed over all, a late event far back, a restart.

    python -m benchmarks.many_streams
    python -m benchmarks.many_streams --streams 200000 --resident 20000 --out benchmarks/results/many_streams.json

The model and the client are those of `benchmarks.serving`. Rows come in requests of ten at a steady rate, over all
streams at random, with an overview asked for each second; seconds count from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.serving import Http, Rows, page_open, saved_model, scheduler
from benchmarks.timing import describe, machine, shown, versions, write_results

TOGETHER = 10


@contextlib.contextmanager
def served(model: Path, folder: Path, port: int, resident: int) -> Iterator[tuple[str, Any, float]]:
    """The address of a server, its process, and the seconds to its first answer."""
    start = "from onlinecde.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", str(model), "--port", str(port)]
    command += ["--store", str(folder / "live.db"), "--threshold", "0.9", "--lateness", "1e6"]
    command += [
        "--resident",
        str(resident),
        "--set",
        "requests_per_second=100000",
        "--set",
        "burst=100000",
    ]
    began, url = time.perf_counter(), f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("a") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        for _ in range(3000):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{url}/v1/streams/x%200/prediction"),
            ):
                break
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz"):
                break
            if process.poll() is not None:
                sys.exit((folder / "server.log").read_text())
            time.sleep(0.02)
        yield url, process, time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(120)


def cpu(process: Any) -> float:
    """CPU seconds a process has taken."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(process: Any) -> float:
    """Memory a process takes, in MB."""
    return (
        int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 1e6
    )


async def opened(url: str, rows: Rows) -> None:
    """A first row for every stream, over two connections."""
    bodies = rows.batches(len(rows.names), 2_000)

    async def client(own: list[bytes]) -> None:
        http = await Http(url).open()
        for body in own:
            status, answer = await http.post(body)
            if status != 200:
                sys.exit(f"{status}: {answer[:300]!r}")

    await asyncio.gather(client(bodies[::2]), client(bodies[1::2]))


async def steady(url: str, rows: Rows, per_second: float, seconds: float) -> list[float]:
    """Seconds from when each request of ten rows was due to its durable answer, with a page open."""
    streams = np.random.default_rng(1).permutation(len(rows.names)).tolist()
    count = int(per_second / TOGETHER * seconds)
    chosen = [
        streams[(n * TOGETHER + k) % len(streams)] for n in range(count) for k in range(TOGETHER)
    ]
    told = [rows.next(stream) for stream in chosen]
    bodies = [orjson.dumps(told[n * TOGETHER : (n + 1) * TOGETHER]) for n in range(count)]
    free = [await Http(url).open() for _ in range(32)]
    taken: list[float] = []

    async def one(body: bytes, due: float) -> None:
        client = free.pop() if free else await Http(url).open()
        status, answer = await client.post(body)
        taken.append(time.perf_counter() - due)
        free.append(client)
        if status != 200:
            sys.exit(f"{status}: {answer[:300]!r}")

    stop = asyncio.Event()
    looking = asyncio.create_task(page_open(url, stop))
    start, tasks = time.perf_counter() + 0.1, []
    for number, body in enumerate(bodies):
        due = start + number * TOGETHER / per_second
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(body, due)))
    await asyncio.gather(*tasks)
    stop.set()
    await looking
    return taken


async def with_late_event(
    url: str, rows: Rows, back: int, seconds: float
) -> tuple[list[float], float]:
    """Latency of others while a stream has an event so many rows back, and seconds until that is acknowledged."""
    long, http = Rows(1, "long"), await Http(url).open()
    for body in long.batches(back, 500):
        await http.post(body)
    first = {"stream": "long 0", "time": 0.01, "values": {"channel 0": 1.0}}
    others = asyncio.create_task(steady(url, rows, 500.0, seconds))
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    status, answer = await http.post(orjson.dumps(first))
    while status == 202 or b'"state":"running"' in answer:
        number = orjson.loads(answer)["job"]
        await asyncio.sleep(0.2)
        http.writer.write(
            f"GET /v1/jobs/{number} HTTP/1.1\r\nhost: {http.host}:{http.port}\r\n\r\n".encode()
        )
        head = await http.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        answer = await http.reader.readexactly(size)
    spent = time.perf_counter() - began
    return await others, spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200_000)
    parser.add_argument("--resident", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=5_000.0, help="rows a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--back",
        type=int,
        default=30_000,
        help="rows between the late event and its stream's newest",
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    results: list[dict[str, Any]] = []

    def note(
        what: str, value: float, unit: str, least: float | None = None, most: float | None = None
    ) -> None:
        holds = (least is None or value >= least) and (most is None or value <= most)
        results.append(
            {
                "what": what,
                "value": value,
                "unit": unit,
                "at_least": least,
                "at_most": most,
                "holds": holds,
            }
        )
        print(f"{what}: {shown(value)} {unit}" + ("" if holds else "  (must hold: NO)"), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        home, rows = Path(folder), Rows(asked.streams, "x")
        model = saved_model(home / "model")
        with served(model, home, 8921, asked.resident) as (url, process, _):
            asyncio.run(opened(url, Rows(4_000, "warm")))
            before, began = cpu(process), time.perf_counter()
            asyncio.run(opened(url, rows))
            note(
                "opening streams",
                asked.streams / (time.perf_counter() - began),
                "streams/s",
                least=15_000,
            )
            note(
                "opening streams, by the server's CPU time",
                asked.streams / (cpu(process) - before),
                "streams/s",
            )
        with served(model, home, 8922, asked.resident) as (url, process, seconds):
            note("restart to the first answer", seconds, "s", most=5.0)
            note("restart, CPU time", cpu(process), "s")
            before = cpu(process)
            taken = np.array(asyncio.run(steady(url, rows, asked.rate, asked.seconds))) * 1e3
            what = f"{asked.rate:g} rows/s over {asked.streams:,} streams, {asked.resident:,} resident, page open"
            note(f"{what}: p50", float(np.percentile(taken, 50)), "ms")
            note(f"{what}: p99", float(np.percentile(taken, 99)), "ms", most=100.0)
            note(f"{what}: cores taken", (cpu(process) - before) / asked.seconds, "cores")
            note("memory", resident_mb(process), "MB")
            late, spent = asyncio.run(with_late_event(url, rows, asked.back, asked.seconds))
            p99 = float(np.percentile(np.array(late) * 1e3, 99))
            note(f"others while an event is {asked.back:,} rows late: p99", p99, "ms", most=50.0)
            note("until it is acknowledged", spent, "s")
    hardware, installed = machine(), versions("onlinecde", "torch", "numba", "uvicorn", "orjson")
    for line in describe(hardware, installed):
        print(line)
    if asked.out:
        settings = {**{name: getattr(asked, name) for name in ("streams", "resident", "rate", "seconds", "back")},
                    "scheduler": scheduler(), "load_before": os.getloadavg()[0]}  # fmt: skip
        command = ["python", "-m", "benchmarks.many_streams", *sys.argv[1:]]
        write_results(asked.out, command=command, settings=settings, hardware=hardware,
                      installed=installed, results=results)  # fmt: skip


if __name__ == "__main__":
    main()
