"""A Ray cluster of two processors for the tests of a module, and its processes."""

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

from onlinecde.scale.ray_cluster import connected


def need_ray():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install 'onlinecde[ray]')", allow_module_level=True)


def two_processors():
    """The body of a fixture: a cluster on the loopback interface, ended with the module."""
    with connected("local", cpus=2):
        yield


def workers(title):
    """Processes of this test's cluster at work on something, by the name Ray gives them."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::") and title.encode() in words and _is_ours(int(folder.name)):
            found.append(int(folder.name))
    return found


def _is_ours(pid):
    """Whether this process started it: other tests may have a cluster at the same time."""
    while pid > 1:
        pid = int(status(pid).split()[1])
        if pid == os.getpid():
            return True
    return False


def holder(file, title):
    """The worker that has a file open; None while there is none."""
    for pid in workers(title):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if link.samefile(file):
                    return pid
            except OSError:
                continue
    return None


def until(condition, seconds=150.0):
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)
    return found


def kill(pid):
    """End a process as the kernel would; it must have been alive."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in status(pid), 20)


def status(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return "Z 0"
