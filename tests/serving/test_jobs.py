"""Jobs: long work beside the service, asked for by its number."""

import asyncio
import time

import pytest

from conftest import CHANNELS
from onlinecde.serving import Limits
from onlinecde.serving.jobs import Jobs
from onlinecde.serving.problems import Problem
from onlinecde.streaming import Engine, MemoryStore
from onlinecde.streaming.pieces import Progress, result_of


def test_a_job_tells_its_progress_then_its_result_or_its_error():
    async def follow():
        jobs = Jobs(lambda error: Problem(500, "failed", str(error)))
        going = asyncio.Event()

        async def work(job):
            job.heard(Progress(1, 4))
            await going.wait()
            return {"rows": 4}

        async def fails(job):
            raise ValueError("no")

        job, bad = jobs.begin("events", "token a", work), jobs.begin("events", "token a", fails)
        await asyncio.sleep(0)
        assert (job.state, job.progress, job.result) == ("running", (1, 4), None)
        going.set()
        while job.ended is None or bad.ended is None:
            await asyncio.sleep(0)
        assert (job.state, job.result) == ("done", {"rows": 4})
        assert bad.state == "failed"
        assert bad.problem.message == "no"
        assert jobs.listed() == [bad, job]
        assert jobs.find(job.number) is job
        with pytest.raises(Problem) as unknown:
            jobs.find("0" * 16)
        assert unknown.value.status == 404

    asyncio.run(follow())


def test_the_result_of_pieces_is_what_the_last_one_gives():
    assert result_of(iter([None, Progress(1, 2), "all"])) == "all"


def test_a_late_event_far_back_is_a_job_while_others_are_answered(start, small_model):
    engine = Engine(
        small_model, MemoryStore(), channels=CHANNELS, lateness=1e4, piece_rows=16, threshold=0.9
    )
    client, *_ = start(engine=engine, limits=Limits(job_seconds=0.01))
    rows = [{"stream": "far", "time": n / 4, "values": {"lactate": n % 3}} for n in range(600)]
    assert client.post("/v1/events", json=rows).status_code in (200, 202)
    while engine.counters["rows"] < 600:
        time.sleep(0.01)
    late = client.post("/v1/events", json={"stream": "far", "time": 1.1, "values": {"oxygen": 2.0}})
    assert late.status_code == 202
    assert late.headers["location"] == f"/v1/jobs/{late.json()['job']}"
    # The same stream waits for it, others do not.
    row = {"stream": "other", "time": 0, "values": {"lactate": 1.0}}
    assert client.post("/v1/events", json=row).json()["counts"]["applied"] == 1
    assert client.get(late.headers["location"]).json()["state"] == "running"
    while (job := client.get(late.headers["location"]).json())["state"] == "running":
        assert 0 <= (job["progress"] or 0) <= 1
    assert job["result"]["counts"]["late_applied"] == 1
    assert [one["state"] for one in client.get("/v1/jobs").json()["jobs"]][:1] == ["done"]
    path = "/v1/streams/far/history?most=300&since=50&until=100"
    while not client.get(path).json()["rows"][0]["revised"]:
        time.sleep(0.01)
    assert client.get("/v1/jobs/0").status_code == 404
