"""A cluster that is not there, not Ray, or too small is refused in plain words and within seconds."""

import importlib.util
import socket
import subprocess
import sys
import threading
import time

import pytest
from ray_here import need_ray

from onlinecde.cli.app import main
from onlinecde.cli.command_line import address_of, with_addresses
from onlinecde.scale import ray_cluster
from onlinecde.scale.ray_cluster import ClusterError, check_address, processors_each

COMMANDS = [
    ["fit", "--task", "simulated-ward"],
    ["tune", "--task", "simulated-ward"],
    ["reproduce", "simulated-ward"],
]


def refused(words, capsys):
    """What a command says that ends with 2, in one line of words."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return " ".join(told.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_without_ray_the_extra_is_named(command, tmp_path, monkeypatch, capsys):
    real = importlib.util.find_spec

    def without(name, *more):
        return None if name == "ray" else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    told = refused([*command, "--out", str(tmp_path / "a"), "--ray"], capsys)
    assert "pip install 'onlinecde[ray]'" in told
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_an_address_at_which_nobody_answers_is_said_at_once(command, tmp_path, capsys):
    need_ray()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    begun = time.monotonic()
    told = refused([*command, "--out", str(tmp_path / "a"), "--ray", address], capsys)
    assert time.monotonic() - begun < 30
    assert f"no Ray cluster answers at {address}" in told
    assert "ray start --head" in told
    assert not (tmp_path / "a").exists()


def test_something_else_at_the_address_is_not_waited_for(monkeypatch):
    need_ray()
    monkeypatch.setattr(ray_cluster, "_HEALTH_SECONDS", 3.0)
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: heard.append(server.accept()))
        thread.start()
        with pytest.raises(ClusterError, match="is no Ray cluster that this machine can talk to"):
            check_address(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    heard[0][0].close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ray.exceptions.AuthenticationError: InvalidAuthToken", "set RAY_AUTH_MODE=token"),
        ("RuntimeError: it burns", "is not well: RuntimeError: it burns"),
    ],
)
def test_what_a_cluster_answers_is_said_in_plain_words(monkeypatch, error, message):
    def answer(words, **_):
        return subprocess.CompletedProcess(words, 1, "", f"Traceback\n{error}\n")

    monkeypatch.setattr(subprocess, "run", answer)
    with pytest.raises(ClusterError, match=message):
        ray_cluster._check_health("head:6379")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", "give HOST:PORT"),
        ("http://head:6379", "give HOST:PORT"),
        ("head:port", "give HOST:PORT"),
        ("ray://head:10001", "ray job submit"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
    ],
)
def test_what_is_no_address_is_refused(address, message):
    need_ray()
    with pytest.raises(ClusterError, match=message):
        check_address(address)


def test_the_address_may_be_left_out():
    assert with_addresses(["a", "--ray"]) == ["a", "--ray", "here"]
    assert with_addresses(["--ray", "--workers", "2"]) == ["--ray", "here", "--workers", "2"]
    assert with_addresses(["--ray", "open", "x"]) == ["--ray", "here", "open", "x"]
    for given in ("local", "auto", "10.0.0.7:6379", "ray://head:10001"):
        assert with_addresses(["--ray", given, "x"]) == ["--ray", given, "x"]
        assert address_of(given) == given
    assert with_addresses(["--ray=head:1"]) == ["--ray=head:1"]
    assert address_of("here") == ""


def test_workers_without_a_cluster_are_refused(tmp_path, capsys):
    words = ["fit", "--task", "simulated-ward", "--workers", "2", "--out", str(tmp_path / "a")]
    assert "add --ray" in refused(words, capsys)


def test_each_worker_has_as_many_processors_as_fit():
    for nodes in ([1], [2], [8], [8, 8], [5, 3], [1, 64, 7]):
        for workers in range(1, sum(nodes) + 1):
            each = processors_each(nodes, workers)
            assert sum(node // each for node in nodes) >= workers
            assert sum(node // (each + 1) for node in nodes) < workers


def test_importing_the_package_imports_no_ray():
    code = "import sys, onlinecde.scale, onlinecde.scale.ray; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
