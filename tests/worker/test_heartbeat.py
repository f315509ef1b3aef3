"""A live worker never reaches the stale limit, however slow its handler; a lost claim ends the attempt's say."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import text

from jobqueue import Handlers, JobContext, JobStatus
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.worker import running
from tests.worker.conftest import Bench

STEAL = "UPDATE mdm.job SET claimed_by = 'another' WHERE status = 'running'"


@pytest.mark.parametrize("sort", ["plain", "async"])
@pytest.mark.parametrize(
    ("stale_after", "seconds"), [(1, 2.5), pytest.param(3, 8, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_handler_slower_than_the_stale_limit_runs_once(
    bench: Bench, sort: str, stale_after: float, seconds: float
) -> None:
    handlers = Handlers()
    runs: list[str] = []
    enough = threading.Event()

    if sort == "plain":

        @handlers.register("reindex")
        def plain(payload: dict[str, Any]) -> None:
            runs.append(sort)
            assert enough.wait(60)
    else:

        @handlers.register("reindex")
        async def asynchronous(payload: dict[str, Any]) -> None:
            runs.append(sort)
            while not enough.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    job_id = bench.enqueue()
    old = f"SELECT clock_timestamp() - started_at > interval '{seconds} s' AS enough FROM mdm.job"
    with running(handlers, bench.url, stale_after=stale_after), running(handlers, bench.url, stale_after=stale_after):
        bench.wait_for(job_id, JobStatus.RUNNING)
        wait_until(lambda: bench.execute(old)[0].enough, every=0.1)
        enough.set()
        bench.wait_for(job_id, JobStatus.DONE)
    assert runs == [sort]
    assert bench.job(job_id).attempts == 1


def test_jobs_that_wait_for_a_slot_are_renewed_too(bench: Bench) -> None:
    """Quick jobs let the worker claim ahead; then all slots are taken for long."""
    handlers = Handlers()
    enough = threading.Event()
    runs: list[Any] = []

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        runs.append(job.id)
        if payload:
            assert enough.wait(20)

    bench.enqueue_many(200)
    bench.enqueue({"slow": True})
    bench.enqueue_many(20)
    old = "SELECT clock_timestamp() - started_at > interval '1.5 s' AS enough FROM mdm.job WHERE payload <> '{}'"
    with running(handlers, bench.url, concurrency=1, stale_after=1):
        wait_until(lambda: bench.execute(old)[0].enough, every=0.1)
        enough.set()
        wait_until(lambda: bench.statuses() == {"done": 221})
    assert len(runs) == len(set(runs)) == 221


def test_a_row_that_somebody_has_locked_holds_up_no_renewal_and_loses_no_claim(bench: Bench) -> None:
    handlers = Handlers()
    enough = threading.Event()
    cancelled: list[bool] = []

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        assert enough.wait(20)
        cancelled.append(job.cancelled)

    held, other = bench.enqueue(), bench.enqueue()
    query = "SELECT claimed_at FROM mdm.job WHERE id = :id"
    with running(handlers, bench.url, stale_after=2):
        for job_id in (held, other):
            bench.wait_for(job_id, JobStatus.RUNNING)
        with bench.engine.connect() as operator, operator.begin():
            operator.execute(text("SELECT 1 FROM mdm.job WHERE id = :id FOR UPDATE"), {"id": held})
            before = {job_id: bench.execute(query, id=job_id) for job_id in (held, other)}
            wait_until(lambda: bench.execute(query, id=other) != before[other], what="the renewal of the other")
            assert bench.execute(query, id=held) == before[held]
        wait_until(lambda: bench.execute(query, id=held) != before[held], what="the renewal of the one")
        enough.set()
        wait_until(lambda: bench.statuses() == {"done": 2})
    assert cancelled == [False, False]


def test_a_locked_worker_row_holds_up_no_renewal(bench: Bench) -> None:
    handlers = Handlers()
    enough = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        assert enough.wait(20)

    job_id = bench.enqueue()
    query = "SELECT claimed_at FROM mdm.job"
    with running(handlers, bench.url, stale_after=1):
        bench.wait_for(job_id, JobStatus.RUNNING)
        wait_until(lambda: bench.execute("SELECT 1 FROM mdm.job_worker"))
        with bench.engine.connect() as operator, operator.begin():
            operator.execute(text("SELECT 1 FROM mdm.job_worker FOR UPDATE"))
            before = bench.execute(query)
            wait_until(lambda: bench.execute(query) != before, what="a renewal")
        enough.set()
        bench.wait_for(job_id, JobStatus.DONE)


def test_a_lost_claim_cancels_an_async_handler(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()
    seen: list[bool] = []

    @handlers.register("reindex")
    async def run(payload: dict[str, Any], job: JobContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(job.cancelled)

    job_id = bench.enqueue()
    with running(handlers, bench.url, stale_after=1):
        bench.wait_for(job_id, JobStatus.RUNNING)
        bench.execute(STEAL)
        wait_until(lambda: seen)
        assert seen == [True]
    assert (bench.status(job_id), bench.job(job_id).claimed_by) == ("running", "another")
    assert "the claim was lost while the handler ran" in caplog.text


def test_a_lost_claim_is_told_to_a_plain_handler_and_its_slot_is_free(bench: Bench) -> None:
    handlers = Handlers()
    seen: list[bool] = []
    end = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        if payload:
            wait_until(lambda: job.cancelled)
            seen.append(True)
            assert end.wait(20)

    job_id = bench.enqueue({"slow": True})
    with running(handlers, bench.url, stale_after=1, concurrency=1):
        bench.wait_for(job_id, JobStatus.RUNNING)
        bench.execute(STEAL)
        bench.wait_for(bench.enqueue(), JobStatus.DONE)
        wait_until(lambda: seen)
        end.set()
    assert bench.job(job_id).claimed_by == "another"


@pytest.mark.parametrize("trouble", ["gone", "silent"])
def test_a_claim_that_cannot_be_renewed_ends_with_its_lease(
    bench: Bench, proxy: Proxy, proxy_url: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    seen: list[bool] = []

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        wait_until(lambda: job.cancelled)
        seen.append(job.cancelled)

    job_id = bench.enqueue()
    with running(handlers, proxy_url, stale_after=1, shutdown_timeout=0.3):
        bench.wait_for(job_id, JobStatus.RUNNING)
        if trouble == "gone":
            proxy.go_away()
        else:
            proxy.stall()
        wait_until(lambda: seen)
    assert seen == [True]
    assert bench.job(job_id).status == "running"
    assert "could not be renewed in time" in caplog.text
    proxy.close()
    wait_until(lambda: not any(thread.name.startswith("jobqueue") for thread in threading.enumerate()))
