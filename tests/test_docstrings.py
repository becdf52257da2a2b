"""Every example in a docstring runs."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import onlinecde

MODULES = [found.name for found in pkgutil.walk_packages(onlinecde.__path__, "onlinecde.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    done = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert done.failed == 0


def test_there_are_examples():
    tried = sum(
        len(found.examples)
        for name in MODULES
        for found in doctest.DocTestFinder().find(import_module(name))
    )
    assert tried >= 20
