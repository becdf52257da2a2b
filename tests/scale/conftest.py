"""One Spark session for all tests of a worker that need one."""

import pytest
from spark_jobs import need_spark, new_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    need_spark()
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
