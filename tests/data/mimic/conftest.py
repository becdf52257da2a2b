import os
from pathlib import Path

import pytest
from made_mimic import MadeMimic

from onlinecde.data.mimic import Mimic, MimicSettings, open_mimic


@pytest.fixture(scope="session")
def made_folder(tmp_path_factory) -> Path:
    return MadeMimic().write(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def clean(made_folder):
    with open_mimic(made_folder) as mimic:
        yield mimic


@pytest.fixture(scope="session")
def paper(made_folder):
    with open_mimic(made_folder, MimicSettings.paper()) as mimic:
        yield mimic


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    data = os.environ.get("ONLINECDE_DATA")
    if not data:
        pytest.skip("the MIMIC-IV demo is looked for in $ONLINECDE_DATA, which is not set")
    folder = Path(data) / "mimic-iv-demo"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}: it is open at physionet.org/content/mimic-iv-demo")
    return folder


@pytest.fixture(scope="session")
def demo(demo_folder):
    with open_mimic(demo_folder) as mimic:
        yield mimic


@pytest.fixture
def ask():
    """Ask an open MIMIC-IV for rows."""

    def rows(mimic: Mimic, sql: str) -> list[tuple]:
        return mimic.connection.execute(sql).fetchall()

    return rows
