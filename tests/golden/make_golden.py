"""Makes the golden copies of 0.1.0, with the code of one commit only: `python tests/golden/make_golden.py`.

What it makes is read by later code for as long as later code promises to read it. Run with any other code it
would make a test that proves nothing, so it refuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from golden_answers import (
    CHANNELS,
    GOLDEN,
    HERE,
    STATIC,
    machine,
    model_answers,
    series,
    store_answers,
    stream_answers,
)
from safetensors.torch import save_file

import onlinecde as oc
from onlinecde.models import MODELS, OnlineModel
from onlinecde.serving import TokenBook
from onlinecde.serving.tokens import Token
from onlinecde.streaming import Engine, Event, SQLiteStore

COMMIT = "48e954b328e782e3868a75bec5e484c606d0a43f"
SOURCES = "469e3f3ae2b4aa85856bb1208609b3d3bf31cd5f"
"""`git rev-parse COMMIT:src`"""

CDE = {"channels": 3, "hidden": 4, "width": 5, "outputs": 2}
GRU = {"channels": 3, "hidden": 4, "outputs": 2}
SEEN = {"static": 2, "static_in_path": True, "field_sees_path": True, "readout_sees_path": True}
RAMPS = {"readout_sees_path": True, "readout_ramps": 3, "readout_width": 4}
BINARY = {"outputs": 1, "kind": "binary"}
CONTROLS = ("rectilinear", "linear", "hermite", "natural_cubic")
MODEL_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{c}-counts": ("NeuralCDE", {**CDE, "control": c}) for c in CONTROLS},
    **{f"{c}-plain": ("NeuralCDE", {**CDE, "control": c, "counts": False}) for c in CONTROLS},
    **{f"{c}-seen": ("NeuralCDE", {**CDE, "control": c, **SEEN}) for c in CONTROLS},
    "static": ("NeuralCDE", {**CDE, "static": 2, "depth": 1, "activation": "tanh"}),
    "field-sees-path": ("NeuralCDE", {**CDE, "field_sees_path": True}),
    "low-rank": ("NeuralCDE", {**CDE, **SEEN, "rank": 3}),
    "restoring": ("NeuralCDE", {**CDE, "width": 8, "restoring": 0.5, "count_gain": 0.2}),
    "ramps": ("NeuralCDE", {**CDE, **SEEN, **RAMPS}),
    "ramps-hermite": ("NeuralCDE", {**CDE, **RAMPS, "control": "hermite"}),
    "members": ("NeuralCDE", {**CDE, **RAMPS, "readout_members": 3, "readout_dropout": 0.2}),
    "steps": ("NeuralCDE", {**CDE, **BINARY, **RAMPS, "readout_members": 2, "readout_steps": 5}),
    "readout-width": ("NeuralCDE", {**CDE, "readout_width": 4, "channel_dropout": 0.2}),
    "log-counts": (
        "NeuralCDE",
        {**CDE, "count_scale": "log", "count_gain": 0.7, "clip": 1.5, "gain": 0.4, "steps": 2},
    ),
    "binary": ("NeuralCDE", {**CDE, **BINARY, **SEEN, "activation": "silu"}),
    "multiclass": ("NeuralCDE", {**CDE, "outputs": 3, "kind": "multiclass"}),
    "multilabel": ("NeuralCDE", {**CDE, "kind": "multilabel"}),
    "max-step": ("NeuralCDE", {**CDE, "max_step": 0.4, "method": "heun"}),
    "adaptive": ("NeuralCDE", {**CDE, "method": "dopri5", "rtol": 1e-3, "atol": 1e-4}),
    "adaptive-batch": (
        "NeuralCDE",
        {**CDE, "method": "bosh3", "rtol": 1e-2, "atol": 1e-3, "step_control": "batch"},
    ),
    "torch-backend": ("NeuralCDE", {**CDE, **SEEN, "backend": "torch", "gradient": "backprop"}),
    "adjoint": ("NeuralCDE", {**CDE, "gradient": "adjoint", "method": "midpoint"}),
    "float64": ("NeuralCDE", {**CDE, **SEEN, **RAMPS}),
    "float64-linear": ("NeuralCDE", {**CDE, "control": "linear"}),
    "bfloat16": ("NeuralCDE", {**CDE, **SEEN}),
    "gru": ("GRU", {**GRU, "layers": 2, "static": 2, "clip": 2.0}),
    "gru-dt": ("GRUdt", {**GRU, "kind": "multiclass", "outputs": 3}),
    "gru-dt-intensity": ("GRUdtIntensity", {**GRU, "readout_width": 4}),
    "gru-d": ("GRUD", {**GRU, **BINARY, "static": 2}),
    "gru-d-float64": ("GRUD", GRU),
    "ode-rnn": ("ODERNN", {**GRU, "width": 6, "max_step": 0.4, "static": 2}),
    "ode-rnn-adaptive": (
        "ODERNN",
        {**GRU, "width": 6, "method": "dopri5", "rtol": 1e-3, "atol": 1e-4},
    ),
}


def main() -> None:
    """Make everything anew."""
    _check_code()
    torch.set_num_threads(1)
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    _write_json(GOLDEN / "machine.json", machine())
    for part in (make_models, make_runs, make_stores):
        started = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - started:.1f} s", flush=True)


def _check_code() -> None:
    home = Path(oc.__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(home), *words], capture_output=True, text=True)
        return done.stdout.strip()

    if git("rev-parse", "HEAD:src") != SOURCES or git("status", "--porcelain", "--", "."):
        sys.exit(f"golden copies are made with the code of commit {COMMIT} and no other.")


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


# Models


def make_models() -> None:
    """A folder of each class and option, and what each says of one stored batch of series."""
    home = GOLDEN / "models"
    home.mkdir()
    save_file(_made_series(), home / "series.safetensors")
    for number, (name, (kind, settings)) in enumerate(MODEL_CASES.items()):
        torch.manual_seed(number)
        model = _fitted(MODELS[kind](**settings), name)
        dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}
        model = model.to(next((d for n, d in dtype.items() if n in name), torch.float32)).eval()
        extra: dict[str, Any] = {"time_unit": "hours", "kind": settings.get("kind", "regression")}
        if model.static:
            extra["static"] = list(STATIC)
        units = ("1/min", "mmol/l", "%")
        folder = oc.save(model, home / name, channels=CHANNELS, units=units, extra=extra)
        save_file(model_answers(oc.load(folder), folder), home / f"{name}.safetensors")


def _made_series() -> dict[str, torch.Tensor]:
    """Five streams with clocks far from 0 and values in units of their own."""
    random = np.random.default_rng(24)
    rows = np.array([1, 3, 5, 7, 6])
    times = 1000.0 + 50 * np.arange(5)[:, None] + np.cumsum(random.uniform(0.1, 1.9, (5, 7)), 1)
    values = random.normal([80.0, 1.5, 96.0], [12.0, 0.7, 2.0], (5, 7, 3))
    real = np.arange(7) < rows[:, None]
    times = np.where(real, times, np.take_along_axis(times, rows[:, None] - 1, 1))
    values[~real] = np.nan
    gaps = np.where(random.random(values.shape) < 0.4, np.nan, values)
    gaps[:, 0, 0] = values[:, 0, 0]
    gaps[3, :4, 1] = np.nan
    empty = np.isnan(gaps).all(2) & real
    gaps[empty, 2] = values[empty, 2]
    static = np.stack([random.uniform(20, 90, 5), np.arange(5) % 2], 1)
    arrays = {"times": times, "complete": values, "gaps": gaps, "rows": rows, "static": static}
    return {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in arrays.items()}


def _fitted(model: OnlineModel, name: str) -> OnlineModel:
    """A model whose numbers are of its own: scales learned, steps laid, no weight or bias 0."""
    encoding: Any = model.encoding
    whole = getattr(model, "control", "rectilinear") != "rectilinear"
    encoding.fit(series(whole, model.static > 0).to(torch.float32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    if isinstance(model, oc.NeuralCDE) and model.steps is not None:
        model.steps.put(
            -0.7, [0, 1, 4, 9], [-0.5, 0.0, -1.0, 0.2], [0.5, 0.3, 1.0, 1.4], [0.4, -0.9, 1.3, 0.6]
        )
    return model


# Runs

FIT = [sys.executable, "-c", "from onlinecde.cli import main; main()"]
EVERY_BATCH = """
import onlinecde.training.fitting as fitting
fitting.SAVE_SECONDS = 0.0
from onlinecde.cli import main
main()
"""
SMALL = ["readout_width=8", "readout_ramps=3", "rank=4"]
WARD = ["--task", "simulated-ward", "--task-setting", "streams=60", "--task-setting", "hours=24"]


def make_runs() -> None:
    """Finished runs and their evaluations, one killed in the middle of an epoch, a search, a cell."""
    home = GOLDEN / "runs"
    home.mkdir()
    tables = home / "tables"
    tables.mkdir()
    _made_tables(tables)
    long = [
        "--events", tables / "events.csv", "--labels", tables / "labels.csv",
        "--static", tables / "static.csv", "--stream", "stay", "--time", "hours",
        "--channel", "name", "--value", "value", "--label", "died",
    ]  # fmt: skip
    wide = [
        "--events", tables / "wide.csv", "--stream", "machine", "--time", "when", "--label", "wear",
        "--label-per", "row", "--time-unit", "minutes", "--model", "gru-d", "--hidden", "4",
    ]  # fmt: skip
    small = ["--hidden", "4", "--width", "8", *_each("--model-setting", SMALL)]
    boosted = _each("--model-setting", ["readout_members=2", "readout_steps=12"])
    _fit(home / "ward-neural-cde", [*WARD, *small, *boosted, "--epochs", "3"])
    _fit(home / "ward-gru-d", [*WARD, "--model", "gru-d", "--hidden", "4", "--epochs", "2"])
    _fit(home / "own-tables", [*long, *small, "--epochs", "3"])
    _fit(home / "own-wide", [*wide, "--epochs", "2"])
    for name in ("ward-neural-cde", "ward-gru-d", "own-tables", "own-wide"):
        file = home / f"{name}.json"
        words = ["evaluate", home / name, "--bootstrap", "40", "--json", file]
        _run([*FIT, *words])
        _write_json(file, json.loads(file.read_text())["evaluation"])
    interrupted = [*long, *small, "--epochs", "4", "--batch-size", "4", "--lr", "0.01"]
    _interrupt(home / "interrupted", interrupted)
    _search(home / "search", tables)
    _cell(home / "cells")
    _hide_places(home)


def _made_tables(home: Path) -> None:
    """Long events with gaps, labels a stream, static columns with text and missing entries; a wide table."""
    random = np.random.default_rng(8)
    events, labels, static = [], [], []
    for number in range(72):
        stay, ill = f"stay {number:02d}", bool(random.random() < 0.4)
        hour = 0.0
        for _ in range(int(random.integers(3, 9))):
            hour = round(hour + float(random.exponential(2.0)) + 0.1, 2)
            for name, mean, spread in (("pulse", 80, 12), ("lactate", 1.2, 0.4), ("pH", 7.4, 0.05)):
                if random.random() < (0.9 if name == "pulse" else 0.4):
                    value = round(float(random.normal(mean, spread)) + ill * spread / 2, 3)
                    events.append({"stay": stay, "hours": hour, "name": name, "value": value})
        labels.append({"stay": stay, "died": int(ill != (random.random() < 0.2))})
        static.append(
            {
                "stay": stay,
                "age": None if number % 7 == 3 else int(random.integers(20, 90)),
                "unit": None if number % 11 == 5 else ("surgery", "cardiology", "A&E")[number % 3],
                "female": int(random.integers(2)),
            }
        )
    for name, lines in (("events", events), ("labels", labels), ("static", static)):
        pl.DataFrame(lines).write_csv(home / f"{name}.csv")
    wide = []
    for number in range(36):
        level, minute = float(random.normal()), 0
        for _ in range(int(random.integers(4, 8))):
            minute += int(random.integers(1, 20))
            when = f"2024-03-{1 + number % 9:02d} 10:{minute % 60:02d}:00+00:00"
            if minute >= 60:
                break
            wide.append(
                {
                    "machine": f"m{number}",
                    "when": when,
                    "oil": round(50 + 4 * level + float(random.normal()), 2),
                    "load": None if random.random() < 0.3 else round(float(random.normal()), 3),
                    "wear": round(100 + 10 * level + minute / 10, 2),
                }
            )
    pl.DataFrame(wide).write_csv(home / "wide.csv")


def _each(option: str, entries: list[str]) -> list[str]:
    return [word for entry in entries for word in (option, entry)]


def _run(words: list[Any], **more: Any) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, **more)


def _fit(folder: Path, options: list[Any]) -> None:
    _run([*FIT, "fit", *options, "--device", "cpu", "--out", folder])


def _interrupt(folder: Path, options: list[Any]) -> None:
    """A run killed with -9 between two batches of its second epoch; what it would have come to is kept."""
    words = [
        *(sys.executable, "-c", EVERY_BATCH, "fit"),
        *(*options, "--device", "cpu", "--out", folder),
    ]
    file = folder / "checkpoint"
    process = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError, KeyError, ValueError):
            facts = _facts(file)
            if facts["epoch"] == 3 and facts["batch"] >= 3:
                process.send_signal(signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL
    facts = _facts(file)
    assert facts["epoch"] == 3
    assert facts["batch"] >= 3
    assert not (folder / "model").exists()
    with tempfile.TemporaryDirectory() as place:
        calm, resumed = Path(place) / "calm", Path(place) / "resumed"
        _fit(calm, options)
        shutil.copytree(folder, resumed)
        _fit(resumed, options)
        weights = [(one / "model" / "model.safetensors").read_bytes() for one in (calm, resumed)]
        assert weights[0] == weights[1]
        (folder.parent / "interrupted.safetensors").write_bytes(weights[0])
        shutil.copy(calm / "log.jsonl", folder.parent / "interrupted.log.jsonl")


def _facts(checkpoint: Path) -> dict[str, Any]:
    data = checkpoint.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["facts"])


SEARCH = """
import sys
import onlinecde.training.fitting as fitting
from onlinecde.training import SearchSpace, Span, tune
from onlinecde.training.task_source import load_task, table_source
folder, tables, trials = sys.argv[1:]
fitting.SAVE_SECONDS = 0.0
source = table_source(
    f"{tables}/events.csv", labels=f"{tables}/labels.csv", label=["died"], label_per="stream",
    stream="stay", time="hours", channel="name", value="value", seed=0,
)
space = SearchSpace({"hidden": Span(2, 5), "lr": Span(1e-3, 1e-1, log=True)})
class Watch:
    def begin(self, number, settings, again): print("begin", number, flush=True)
    def epoch(self, number, entry): print("epoch", number, entry["epoch"], flush=True)
    def end(self, trial): pass
tune(load_task(source), "gru", folder, trials=int(trials), space=space, source=source, device="cpu",
     epochs=3, batch_size=8, watch=Watch())
"""


def _search(folder: Path, tables: Path) -> None:
    """A search killed with -9 in its third trial; the whole of it, as it would have been, is kept."""
    words = [sys.executable, "-c", SEARCH]
    process = subprocess.Popen(
        [*words, str(folder), str(tables), "3"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == ["epoch", "2", "1"]:
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    from onlinecde.training import read_study

    with tempfile.TemporaryDirectory() as place:
        _run([*words, Path(place) / "calm", tables, "3"])
        told = [
            {"state": one.state, "settings": one.settings, "value": one.value}
            for one in read_study(Path(place) / "calm").trials
        ]
    _write_json(folder.parent / "search.json", told)


def _cell(folder: Path) -> None:
    words = ["--budget", "smoke", "--only", "*/GRU", "--device", "cpu"]
    _run([*FIT, "reproduce", "simulated-ward", *words, "--out", folder])
    for file in folder.rglob("simulated-ward*"):
        if file.is_file():  # tables and pictures, made anew from the result
            file.unlink()


def _hide_places(home: Path) -> None:
    """Put a sign where texts name the folder of the tables: it is another one wherever they are read."""
    for file in list(home.rglob("*")):
        if file.is_file() and file.suffix in (".json", ".jsonl", ".md"):
            text = file.read_text()
            file.write_text(text.replace(str(home / "tables"), HERE))
        elif file.name.startswith("events.out."):  # named after the machine
            file.rename(file.with_suffix(".host"))
        elif file.name.endswith("-shm"):  # SQLite's own shared memory, made anew from the WAL
            file.unlink()
    left = [f for f in home.rglob("*") if f.is_file() and str(GOLDEN).encode() in f.read_bytes()]
    assert not left, left


# Stores


def make_stores() -> None:
    """Stores closed and killed, what their engines say, exported streams, a file of tokens."""
    home = GOLDEN / "stores"
    home.mkdir()
    models = GOLDEN / "models"
    _closed_store(models / "binary", home)
    _closed_store(models / "gru-d", home)
    _killed_store(models / "binary", home)
    book = TokenBook([_token("ward gateway", "write"), _token("board", "read", "write")])
    book.write(home / "tokens.json")
    for left in home.glob("*.lock"):
        left.unlink()


def _token(name: str, *scopes: str) -> Token:
    """A token whose text is no secret: it opens golden stores only."""
    book = TokenBook()
    book.add(name, scopes)
    import hashlib

    text = f"ocde_no-secret-of-{name.replace(' ', '-')}"
    return Token(name, hashlib.sha256(text.encode()).hexdigest(), book.tokens[0].scopes)


def _closed_store(model: Path, home: Path) -> None:
    """Everything a store can hold, then closed as it should be."""
    file = home / f"{model.name}.db"
    wall = iter(range(1_700_000_000, 1_800_000_000))
    engine = Engine(
        model, SQLiteStore(file), lateness=2.0, checkpoint_rows=3, recent=2, threshold=0.5,
        clock=lambda: float(next(wall)),
    )  # fmt: skip
    random = np.random.default_rng(5)
    for number, name in enumerate(("bed 1", "bed 2", "bett \u00fc", "bed gone", "bed pruned")):
        origin = 1_699_990_000.0 if number == 0 else None
        engine.open_stream(name, static=[40.0 + number, number % 2], origin=origin)
    engine.open_stream("bed empty", static=[70.0, 1.0])
    for hour in range(9):
        events = []
        for name in ("bed 1", "bed 2", "bett \u00fc", "bed gone"):
            for channel, mean in zip(CHANNELS, (80.0, 1.5, 96.0), strict=True):
                if random.random() < 0.7:
                    value = round(float(random.normal(mean, mean / 5)), 3)
                    events.append(Event(name, 1000.0 + hour * 0.75, channel, value))
        engine.apply(events)
    last = 1000.0 + 8 * 0.75
    told = [
        Event("bed 1", last - 0.4, "lactate", 4.25, "late one"),
        Event("bed 1", last - 0.4, "lactate", 4.25, "late one"),
        Event("bed 2", last, "heart_rate", 133.0),
        Event("bed 2", last, "heart_rate", 134.0),
        Event("bett \u00fc", 2.0, "heart_rate", 80.0),
        Event("bed 2", last + 1, "temperature", 37.0),
        Event("bed 2", last + 1, "oxygen", float("inf")),
        *(Event("bed pruned", 1000.0 + row, "oxygen", 90.0 + row) for row in range(14)),
    ]
    for event in told:
        engine.apply([event])
    engine.forget("bed gone")
    alarms = engine.alarms()
    assert len(alarms) >= 2, "no alarm was raised"
    engine.acknowledge(alarms[0].number, "nurse on call")
    if model.name == "gru-d":
        assert engine.prune(4.0) > 0
    answers = store_answers(engine)
    assert answers["counters"]["corrected"]
    assert answers["counters"]["late_applied"]
    assert answers["counters"]["duplicate"]
    parcels = home / f"{model.name}.parcels"
    parcels.mkdir()
    told = {}
    for number, name in enumerate(("bed 1", "bed 2")):
        (parcels / f"{number}.bin").write_bytes(engine.export(name))
        told[name] = stream_answers(engine, name, with_past=False)
    _write_json(parcels / "answers.json", told)
    engine.close()
    _write_json(home / f"{model.name}.json", answers)


def _killed_store(model: Path, home: Path) -> None:
    """What a real server leaves behind when it is killed with -9 between two requests: a WAL beside the file."""
    random = np.random.default_rng(6)
    with tempfile.TemporaryDirectory() as place, socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        store, url = Path(place) / "killed.db", f"http://127.0.0.1:{port}"
        words = [*FIT, "serve", model, "--store", store, "--port", port, "--lateness", "1"]
        words += ["--threshold", "0.5"]
        process = subprocess.Popen([str(word) for word in words])
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/healthz"):
                break
            time.sleep(0.1)
        for hour in range(6):
            events = [
                {
                    "stream": name,
                    "time": 1000.0 + hour,
                    "values": {
                        channel: round(float(random.normal(mean, mean / 5)), 3)
                        for channel, mean in zip(CHANNELS, (80.0, 1.5, 96.0), strict=True)
                    },
                    "static": {"age": 50 + number, "sex": number},
                }
                for number, name in enumerate(("ward/1", "ward/2"))
            ]
            _post(f"{url}/v1/events", {"events": events})
        _post(f"{url}/v1/alarms/1/acknowledge", {"by": "nurse"})
        process.send_signal(signal.SIGKILL)
        process.wait()
        wal = store.with_name("killed.db-wal")
        assert wal.stat().st_size > 10_000
        for file in (store, wal):
            shutil.copy(file, home / file.name)
        engine = Engine(model, SQLiteStore(store), lateness=1.0, threshold=0.5)
        answers = store_answers(engine)
        assert answers["counters"]["received"] == 36
        assert answers["alarms"][-1]["by"] == "nurse"
        _write_json(home / "killed.json", answers)
        engine.close()


def _post(url: str, content: Any) -> None:
    data = json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
