"""Hypothesis profiles, and one thread for each worker where tests run side by side.

`quick` is the default; `ONLINECDE_HYPOTHESIS=thorough make test` looks much longer.
"""

import os

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
