"""The model and the tables that several tests ask about."""

import pytest
from made_ward import made_cde, made_stays, made_vitals


@pytest.fixture(scope="session")
def cde():
    return made_cde()


@pytest.fixture(scope="session")
def vitals():
    return made_vitals()


@pytest.fixture(scope="session")
def stays(vitals):
    return made_stays(vitals)
