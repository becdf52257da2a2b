"""All tests here are marked `scale`; one Spark session for all of a worker that need one."""

from pathlib import Path

import pytest
from spark_jobs import need_spark, new_session


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("scale")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    need_spark()
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
