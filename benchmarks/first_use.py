"""The first forward, training step and live row of a process, with nothing compiled and with everything kept.

Seconds by the clock; imports and the making of task and model are listed apart. Each run is a fresh process, a
"cold" one with an empty cache. `--against FOLDER` takes the package of another checkout beside it, in turn.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import machine

PROGRAM = """
import json, time
start = time.perf_counter()
import torch, onlinecde as oc
from onlinecde.data import simulate_ward
from onlinecde.training.defaults import build_model
times = {"import": time.perf_counter() - start}
def lap(name, since=[start]):
    now = time.perf_counter()
    times[name], since[0] = now - since[0], now
series = simulate_ward(64, seed=0).task
model = build_model(series, "neural-cde")
series = series.series
model.fit_scales(series)
lap("imports, task and model")
model(series).float().square().mean().backward()
lap("first training step")
with torch.no_grad():
    frozen = model.eval().frozen()
    state = frozen.init_state(streams=1, static=series.static[:1])
    state = frozen.observe(state, t=0.5, x=series.values[:1, 0])
    frozen.predict(state, t=2.0)
lap("first live row")
print(json.dumps(times))
"""


def once(package: Path, cache: str) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": str(package / "src"), "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    packages = {"this": Path(__file__).parents[1]}
    if arguments.against:
        packages["against"] = arguments.against.resolve()
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.runs):
        for name, package in packages.items():
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    runs.setdefault(f"{name}, {state}", []).append(once(package, cache))
    best = {
        name: {what: round(min(run[what] for run in of), 3) for what in of[0]}
        for name, of in runs.items()
    }
    print(json.dumps(best, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), "best": best}, indent=1) + "\n")


if __name__ == "__main__":
    main()
