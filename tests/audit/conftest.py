"""One measurement of the table for all tests that read it, on one thread."""

import pytest
import torch

from onlinecde import audit


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Audits work on many small tensors, which threads only slow down on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def measured_table(one_thread):
    return audit.properties_table(seed=0)
