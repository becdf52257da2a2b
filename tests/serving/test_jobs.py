"""Jobs: long work beside the service, asked for by its number."""

import asyncio

import pytest

from onlinecde.serving.jobs import Jobs
from onlinecde.serving.problems import Problem
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
