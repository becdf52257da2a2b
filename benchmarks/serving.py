"""The server: durable rows a second by HTTP and WebSocket, and how long one row takes among 10,000 streams.

    python -m benchmarks.serving
    python -m benchmarks.serving --out benchmarks/results/serving.json
    chrt -r 1 python -m benchmarks.serving    # on a machine with other work: the results file says so

A model of 30 channels with counts, hidden 64, width 64, depth 2, float32; 3 channels observed at each row.
`onlinecde serve` runs in a process of its own with a SQLite file (WAL, synchronous FULL), the client in this
one. An answer is counted when it has come back: the row is then on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
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
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.timing import describe, machine, shown, versions, write_results

CHANNELS, OBSERVED, STREAMS = 30, 3, 10_000
NAMES = [f"channel {i}" for i in range(CHANNELS)]


def saved_model(folder: Path) -> Path:
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        CHANNELS, 64, outputs=1, field={"width": 64, "depth": 2}, readout={"kind": "binary"}
    )
    return oc.save(model, folder, channels=NAMES, extra={"time_unit": "hours"})


@contextlib.contextmanager
def served(model: Path, folder: Path, port: int, *options: str) -> Iterator[str]:
    """The address of `onlinecde serve`, in a process of its own."""
    start = "from onlinecde.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", str(model), "--port", str(port)]
    command += ["--store", str(folder / "live.db"), "--threshold", "0.9", *options]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz"):
                break
            if process.poll() is not None:
                sys.exit((folder / "server.log").read_text())
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Rows:
    """Rows of many streams, each later than the one before it."""

    def __init__(self, streams: int, prefix: str) -> None:
        self.names = [f"{prefix} {i}" for i in range(streams)]
        self.clock = np.zeros(streams)
        self.random = np.random.default_rng(0)

    def next(self, stream: int) -> dict[str, Any]:
        self.clock[stream] = round(self.clock[stream] + 0.05 + 0.1 * self.random.random(), 4)
        where = self.random.permutation(CHANNELS)[:OBSERVED].tolist()
        values = self.random.normal(size=OBSERVED).round(3).tolist()
        return {
            "stream": self.names[stream],
            "time": float(self.clock[stream]),
            "values": dict(zip([NAMES[i] for i in where], values, strict=True)),
        }

    def batches(self, rows: int, size: int) -> list[bytes]:
        told = [self.next(i % len(self.names)) for i in range(rows)]
        return [orjson.dumps(told[i : i + size]) for i in range(0, rows, size)]


class Http:
    """The least an HTTP client needs: one connection, one request at a time."""

    def __init__(self, url: str, token: str = "") -> None:
        self.host, self.port = url.removeprefix("http://").split(":")
        self.token = f"authorization: Bearer {token}\r\n".encode() if token else b""

    async def open(self) -> Http:
        self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port))
        return self

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.writer.write(
            b"POST /v1/events HTTP/1.1\r\nhost: %b:%b\r\ncontent-type: application/json\r\n"
            b"%bcontent-length: %d\r\n\r\n%b"
            % (self.host.encode(), self.port.encode(), self.token, len(body), body)
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return status, await self.reader.readexactly(size)


def _all_applied(told: dict[str, Any]) -> None:
    if told["counts"]["applied"] != told["events"]:
        sys.exit(f"not every event was applied: {told['counts']}")


async def http_batches(url: str, rows: int, size: int, connections: int) -> float:
    """Rows a second, durable, in batches over some connections, each with streams of its own."""
    share = rows // connections
    bodies = [Rows(1000, f"http {size} {i}").batches(share, size) for i in range(connections)]

    async def client(own: list[bytes]) -> None:
        http = await Http(url).open()
        for body in own:
            status, answer = await http.post(body)
            if status != 200:
                sys.exit(f"{status}: {answer[:300]!r}")
            _all_applied(orjson.loads(answer))

    began = time.perf_counter()
    await asyncio.gather(*(client(own) for own in bodies))
    return rows / (time.perf_counter() - began)


async def socket_batches(url: str, rows: int, size: int) -> float:
    """Rows a second, durable, over one WebSocket."""
    from websockets.asyncio.client import connect

    bodies = Rows(1000, f"socket {size}").batches(rows, size)
    async with connect(url.replace("http", "ws") + "/v1/live", compression=None) as socket:

        async def send() -> None:
            for body in bodies:
                await socket.send(body, text=True)

        began, sending, answered = time.perf_counter(), asyncio.create_task(send()), 0
        while answered < len(bodies):
            for message in orjson.loads(await socket.recv(decode=False)):
                if message["type"] != "receipt":
                    sys.exit(f"{message}")
                _all_applied(message)
                answered += 1
        spent = time.perf_counter() - began
        await sending
    return rows / spent


async def fill(url: str, rows: Rows) -> None:
    """A first row for every stream."""
    http = await Http(url).open()
    for body in rows.batches(len(rows.names), 2000):
        _all_applied(orjson.loads((await http.post(body))[1]))


async def single_rows(url: str, rows: Rows, per_second: float, seconds: float) -> list[float]:
    """Seconds from request to durable answer, at a steady rate, whatever the answers do."""
    # One after the other: two rows of one stream under way on two connections have no order.
    turns = [i % STREAMS for i in range(int(per_second * seconds))]
    bodies = [orjson.dumps(rows.next(stream)) for stream in turns]
    free = [await Http(url).open() for _ in range(64)]
    taken: list[float] = []

    async def one(body: bytes, due: float) -> None:
        client = free.pop() if free else await Http(url).open()
        status, answer = await client.post(body)
        taken.append(time.perf_counter() - due)
        free.append(client)
        if status != 200:
            sys.exit(f"{status}: {answer[:300]!r}")

    gc.collect()
    gc.disable()
    start, tasks = time.perf_counter() + 0.1, []
    for number, body in enumerate(bodies):
        due = start + number / per_second
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        # Counted from when the request was due: a client that is late does not make the server look fast.
        tasks.append(asyncio.create_task(one(body, due)))
    await asyncio.gather(*tasks)
    gc.enable()
    return taken


async def page_open(url: str, stop: asyncio.Event) -> int:
    """What an open overview asks for, once a second."""
    asked = 0
    while not stop.is_set():
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(
            b"GET /v1/streams?limit=200 HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        )
        await reader.read()
        writer.close()
        asked += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
    return asked


async def with_page(url: str, rows: Rows, per_second: float, seconds: float) -> list[float]:
    stop = asyncio.Event()
    looking = asyncio.create_task(page_open(url, stop))
    taken = await single_rows(url, rows, per_second, seconds)
    stop.set()
    await looking
    return taken


def scheduler() -> str:
    """Whether this run had to share its cores as everyone does."""
    if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        return "real time: other work on the machine waited"
    return "usual"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="for the steady rate")
    parser.add_argument("--rows", type=int, default=100_000, help="for each way in")
    parser.add_argument(
        "--folder", type=Path, help="where the store goes; default: a temporary one"
    )
    asked = parser.parse_args()
    import uvloop

    found: list[dict[str, Any]] = []

    def note(
        what: str, value: float, unit: str, least: float | None = None, most: float | None = None
    ) -> None:
        holds = (least is None or value >= least) and (most is None or value <= most)
        found.append(
            {
                "what": what,
                "value": value,
                "unit": unit,
                "at_least": least,
                "at_most": most,
                "holds": holds,
            }
        )
        print(f"{what}: {shown(value)} {unit}", flush=True)

    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        home = Path(folder)
        (home / "second").mkdir()
        model = saved_model(home / "model")
        with served(model, home, 8911) as url:
            uvloop.run(http_batches(url, 10_000, 500, 2))  # compiles what runs live
            for size in (100, 1000):
                note(f"HTTP, batches of {size} rows, 4 connections",
                     uvloop.run(http_batches(url, asked.rows, size, 4)), "rows/s",
                     least=20_000 if size == 1000 else None)  # fmt: skip
            for size in (100, 1000):
                note(f"WebSocket, messages of {size} rows",
                     uvloop.run(socket_batches(url, asked.rows, size)), "rows/s",
                     least=20_000 if size == 1000 else None)  # fmt: skip
        with served(model, home / "second", 8912) as url:
            rows = Rows(STREAMS, "one of many")
            uvloop.run(fill(url, rows))
            for what, run in (("", single_rows), (", page open", with_page)):
                taken = np.array(uvloop.run(run(url, rows, 500.0, asked.seconds)))
                for share in (50, 99, 99.9):
                    note(f"one row at 500/s, {STREAMS:,} streams{what}: p{share}",
                         float(np.percentile(taken, share)) * 1e3, "ms",
                         most=20.0 if share == 99 else None)  # fmt: skip
    table = Table(title="The server, durable", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("what", "measured", "must hold"):
        table.add_column(column)
    for one in found:
        bar = ""
        if one["at_least"] is not None:
            bar = f">= {one['at_least']:,.0f}: {'yes' if one['holds'] else 'NO'}"
        elif one["at_most"] is not None:
            bar = f"<= {one['at_most']:g}: {'yes' if one['holds'] else 'NO'}"
        table.add_row(one["what"], f"{shown(one['value'])} {one['unit']}", bar)
    console = Console(width=120)
    console.print(table)
    hardware = machine()
    installed = versions(
        "onlinecde",
        "torch",
        "numba",
        "fastapi",
        "uvicorn",
        "uvloop",
        "httptools",
        "websockets",
        "orjson",
    )
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    before = [] if scheduler() == "usual" else ["chrt", "-r", "1"]
    if asked.out:
        write_results(asked.out, command=[*before, "python", "-m", "benchmarks.serving", *sys.argv[1:]],
                      settings={"channels": CHANNELS, "observed": OBSERVED, "hidden": 64, "width": 64, "depth": 2,
                                "streams": STREAMS, "scheduler": scheduler(), "rows": asked.rows,
                                "seconds": asked.seconds},
                      hardware=hardware, installed=installed, results=found)  # fmt: skip
    sys.exit(0 if all(one["holds"] for one in found) else 1)


if __name__ == "__main__":
    main()
