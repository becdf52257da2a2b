"""Small models and servers on loopback, each stopped by the test that started it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace

import httpx
import pytest
import torch

import onlinecde as oc
from onlinecde.serving import Limits, ServeSettings, create_app, in_background
from onlinecde.streaming import Engine, MemoryStore

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


@pytest.fixture(scope="session")
def small_model():
    """A model of four channels that moves between rows."""
    torch.manual_seed(3)
    return oc.NeuralCDE(
        len(CHANNELS), 8, outputs=1, field={"width": 8, "depth": 1}, readout={"kind": "binary"}
    ).eval()


@pytest.fixture(scope="session")
def model_folder(small_model, tmp_path_factory):
    units = ("1/min", "mmol/l", "%", "mmHg")
    return oc.save(
        small_model, tmp_path_factory.mktemp("served") / "model",
        channels=CHANNELS, units=units, extra={"time_unit": "hours"},
    )  # fmt: skip


@pytest.fixture
def start(small_model):
    """Starts servers in this process; each gives a client, its engine and its address."""
    with contextlib.ExitStack() as held:

        def begin(*, store=None, tokens=None, engine=None, limits=None, port=0, **changes):
            threshold = changes.pop("threshold", None)
            if engine is None:
                engine = Engine(
                    small_model, store or MemoryStore(), channels=CHANNELS, lateness=1.0, threshold=threshold
                )  # fmt: skip
            settings = ServeSettings(port=port, **changes)
            settings = replace(settings, limits=limits or Limits())
            url = held.enter_context(
                in_background(create_app(engine, settings, tokens=tokens), settings)
            )
            client = held.enter_context(httpx.Client(base_url=url, timeout=60))
            return client, engine, url

        yield begin


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Process:
    """`onlinecde serve` in a process of its own, with at most `files` open files, once it is ready."""

    def __init__(self, model, store, port, *options, files=None):
        start = "from onlinecde.cli import main; main()"
        if files is not None:
            limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files // 2}, {files}))"
            start = f"import resource; {limit}; {start}"
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.command = [sys.executable, "-c", start, "serve", str(model), "--store", str(store)]
        self.command += ["--port", str(port), *options]
        self.run()

    def run(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, env=environment)
        for _ in range(600):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/readyz") as answer,
            ):
                assert answer.status == 200
                return
            assert self.process.poll() is None, self.process.stderr.read().decode()
            time.sleep(0.05)
        raise AssertionError("the server did not start")

    def end(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        told = self.process.stderr.read().decode()
        self.process.wait(30)
        self.process.stderr.close()
        return self.process.returncode, told


@pytest.fixture
def serve_process(model_folder, tmp_path, free_port):
    held = []

    def begin(*options, model=model_folder, files=None):
        one = Process(model, tmp_path / "live.db", free_port, *options, files=files)
        held.append(one)
        return one

    yield begin
    for one in held:
        if one.process.poll() is None:
            one.end()
