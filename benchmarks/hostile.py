"""Hostile clients: how long a quiet one waits while another token floods, and while thousands of connections hang.

    python -m benchmarks.hostile
    chrt -r 1 python -m benchmarks.hostile    # on a machine with other work

The server of `benchmarks.serving`, with two tokens. One sends batches of 1,000 rows on 8 connections without waiting,
whatever it is answered; the other one row every 50 ms. Then connections that send half a header are opened, up to
10,000 where this process may open so many files, while the quiet one goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.serving import Http, Rows, saved_model, scheduler, served
from benchmarks.timing import machine, versions, write_results
from onlinecde.serving import TokenBook


async def quiet(url: str, token: str, seconds: float, prefix: str) -> tuple[list[float], int]:
    """Milliseconds from when a row was due to its durable answer, and how often it was refused."""
    rows, start = Rows(50, prefix), time.perf_counter() + 0.1
    free, taken, statuses, tasks = [await Http(url, token).open() for _ in range(4)], [], [], []

    async def one(body: bytes, due: float) -> None:
        http = free.pop() if free else await Http(url, token).open()
        statuses.append((await http.post(body))[0])
        taken.append((time.perf_counter() - due) * 1e3)
        free.append(http)

    for number in range(int(seconds * 20)):
        due = start + number / 20
        body = orjson.dumps(rows.next(number % 50))
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(body, due)))
    await asyncio.gather(*tasks)
    return taken, sum(status != 200 for status in statuses)


async def flood(url: str, token: str, bodies: list[bytes], until: float) -> dict[int, int]:
    """Send without end; how often it was answered what."""
    http, answers = await Http(url, token).open(), {}
    while time.perf_counter() < until:
        status, _ = await http.post(bodies[sum(answers.values()) % len(bodies)])
        answers[status] = answers.get(status, 0) + 1
    return answers


async def flooded(
    url: str, noisy: str, calm: str, seconds: float
) -> tuple[list[float], int, dict[int, int]]:
    floods = [Rows(1000, f"flood {i}").batches(20_000, 1000) for i in range(8)]
    until = time.perf_counter() + seconds + 1
    tasks = [asyncio.create_task(flood(url, noisy, bodies, until)) for bodies in floods]
    await asyncio.sleep(1.0)
    taken, refused = await quiet(url, calm, seconds, "quiet")
    every: dict[int, int] = {}
    for answers in await asyncio.gather(*tasks):
        for status, count in answers.items():
            every[status] = every.get(status, 0) + count
    return taken, refused, every


async def hanging(url: str, calm: str, most: int, seconds: float) -> tuple[list[float], int, int]:
    """The quiet one among connections with half a header; how many were opened."""
    port, opened = int(url.rsplit(":", 1)[1]), []

    async def hang() -> None:
        for _ in range(most):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /v1/model HTTP/1.1\r\nhost: 127.0.0.1\r\nx-half: ")
                opened.append(writer)

    task = asyncio.create_task(hang())
    taken, refused = await quiet(url, calm, seconds, "among many")
    task.cancel()
    for writer in opened:
        writer.transport.abort()
    return taken, refused, len(opened)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    asked = parser.parse_args()
    import uvloop

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = min(10_000, hard - 500)
    results: list[dict[str, Any]] = []

    def note(what: str, value: float, unit: str, most: float | None = None) -> None:
        results.append({"what": what, "value": value, "unit": unit, "at_most": most})
        print(
            f"{what}: {value:,.1f} {unit}{'' if most is None else f' (at most {most:g})'}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        home, book = Path(folder), TokenBook()
        noisy, calm = (book.add(name, ["ingest"]) for name in ("flooding", "quiet"))
        book.write(home / "tokens.json")
        model = saved_model(home / "model")
        with served(model, home, 8913, "--tokens", str(home / "tokens.json")) as url:
            uvloop.run(quiet(url, calm, 3.0, "warm"))
            taken, _ = uvloop.run(quiet(url, calm, asked.seconds, "alone"))
            note("alone: p99", float(np.percentile(taken, 99)), "ms")
            taken, refused, every = uvloop.run(flooded(url, noisy, calm, asked.seconds))
            note("while another token floods: p50", float(np.percentile(taken, 50)), "ms")
            note("while another token floods: p99", float(np.percentile(taken, 99)), "ms", most=100)
            note("while another token floods: quiet one refused", refused, "times", most=0)
            for status, count in sorted(every.items()):
                note(f"while another token floods: flooding one answered {status}", count, "times")
            taken, refused, opened = uvloop.run(hanging(url, calm, most, asked.seconds))
            note("hanging connections opened", opened, "")
            note("among hanging connections: p99", float(np.percentile(taken, 99)), "ms")
            note("among hanging connections: quiet one refused", refused, "times", most=0)
    if asked.out:
        before = [] if scheduler() == "usual" else ["chrt", "-r", "1"]
        write_results(asked.out, command=[*before, "python", "-m", "benchmarks.hostile", *sys.argv[1:]],
                      settings={"scheduler": scheduler(), "seconds": asked.seconds, "cores": os.cpu_count()},
                      hardware=machine(), installed=versions("onlinecde", "uvicorn", "uvloop", "httptools"),
                      results=results)  # fmt: skip


if __name__ == "__main__":
    main()
