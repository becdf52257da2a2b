"""Hypothesis profiles, seeds that repeat a failure, one thread for each worker, a disk to fill, the log.

`quick` is the default; `ONLINECDE_HYPOTHESIS=thorough make test` looks much longer.

Each test begins with random numbers of its own, others in each run of the suite, the same where `CI=true`:
torch's, numpy's and Python's global ones, and the generator `rng`. A test that fails says how the same numbers
are drawn again: `ONLINECDE_TEST_SEED=... pytest TEST`. What is shared by several tests is seeded by its own name,
so that a test alone sees what it saw among others.
"""

import hashlib
import logging
import os
import random
import secrets
import subprocess
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    max_examples=25,
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1000)
settings.load_profile(os.environ.get("ONLINECDE_HYPOTHESIS", "quick"))

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", default="1/1", help="2/8: of eight parts of the tests, only the second"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = (int(number) for number in config.getoption("--part").split("/"))
    if parts > 1:
        own = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in own])
        items[:] = own


# Set before the workers of xdist start, so that they have it too.
FRESH = "0" if os.environ.get("CI") == "true" else str(secrets.randbits(32))
SEED = os.environ.setdefault("ONLINECDE_TEST_SEED", FRESH)


def seed_for(name):
    """A seed that is the same wherever and in whatever order a test or fixture is run."""
    return int.from_bytes(hashlib.sha256(f"{SEED} {name}".encode()).digest()[:4])


def seed_all(name):
    """Seed every global source of random numbers."""
    number = seed_for(name)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    seed_all(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_all(f"{fixturedef.baseid} {fixturedef.argname} {request.node.nodeid}")
    try:
        return (yield)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        again = f"ONLINECDE_TEST_SEED={SEED} pytest '{item.nodeid}'"
        report.sections.append(("random numbers", f"the same again: {again}"))
    return report


@pytest.fixture
def rng(request):
    """Random numbers of this test, as a numpy generator."""
    return np.random.default_rng(seed_for(request.node.nodeid))


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, of 12 MiB, that a test may fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a disk in memory cannot be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def logged():
    """The records that this package logs, wherever its log goes."""
    records, logger = [], logging.getLogger("onlinecde")
    handler, level = logging.Handler(), logger.level
    handler.emit = records.append
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(level)
