"""The connection breaks between a handler's success and the written outcome."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from tenacity.wait import wait_fixed, wait_none

from jobqueue import Handlers, JobContext, JobStatus
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.worker import running
from tests.worker.conftest import Bench

CLAIM = b"priorities"
FINISH_DONE = b"completed_at=clock_timestamp()"
QUEUE = "jobqueue queue"


def counting(runs: list[UUID]) -> Handlers:
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        runs.append(job.id)

    return handlers


def test_an_outcome_is_written_when_the_database_is_back(bench: Bench, proxy: Proxy, proxy_url: str) -> None:
    runs: list[UUID] = []
    away = proxy.before(FINISH_DONE, proxy.go_away)
    job_id = bench.enqueue()
    with running(counting(runs), proxy_url, stale_after=30) as worker:
        assert away.hit.wait(20)
        time.sleep(0.7)  # how long the database is away, not a wait for something
        assert bench.job(job_id).claimed_by == worker.id
        proxy.come_back()
        bench.wait_for(job_id, JobStatus.DONE)
        # And the worker works on
        bench.wait_for(bench.enqueue(), JobStatus.DONE)
    assert len(runs) == 2
    assert bench.job(job_id).attempts == 1


def test_recovery_takes_a_job_whose_outcome_cannot_be_written_in_time(
    bench: Bench, proxy: Proxy, proxy_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is over then; the other worker's attempt counts, and the late outcome is dropped."""
    runs: list[UUID] = []
    other_runs: list[UUID] = []
    away = proxy.before(FINISH_DONE, proxy.go_away)
    job_id = bench.enqueue()
    with running(counting(runs), proxy_url, stale_after=1):
        assert away.hit.wait(20)
        with running(counting(other_runs), bench.url, stale_after=1) as other:
            bench.wait_for(job_id, JobStatus.DONE)
            proxy.come_back()
            wait_until(lambda: "writing outcomes works again" in caplog.text)
        assert bench.job(job_id).claimed_by == other.id
    assert (runs, other_runs) == ([job_id], [job_id])
    assert bench.job(job_id).attempts == 2


@pytest.mark.parametrize("outcome", ["done", "retry"])
def test_an_outcome_whose_answer_was_lost_counts_once(
    bench: Bench, proxy: Proxy, proxy_url: str, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    runs: list[int] = []

    @handlers.register("reindex", wait=wait_fixed(3600))
    def run(payload: dict[str, Any], job: JobContext) -> None:
        runs.append(job.attempt)
        if outcome == "retry":
            raise ValueError("odd")

    within = FINISH_DONE if outcome == "done" else b"claims.verb"
    lost = proxy.after(b"COMMIT", proxy.cut, within=within, app=QUEUE)
    job_id = bench.enqueue()
    with running(handlers, proxy_url, stale_after=30):
        assert lost.hit.wait(20)
        wait_until(lambda: "writing outcomes works again" in caplog.text)
        bench.wait_for(bench.enqueue(), JobStatus.DONE if outcome == "done" else JobStatus.PENDING)
    assert runs.count(1) == len(runs)
    assert (bench.status(job_id), bench.job(job_id).attempts) == ("done" if outcome == "done" else "pending", 1)
    assert "claim is gone" not in caplog.text


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_claim_whose_commit_is_unclear_is_given_back(bench: Bench, proxy: Proxy, proxy_url: str, lost: str) -> None:
    runs: list[UUID] = []
    rule = getattr(proxy, lost)(b"COMMIT", proxy.cut, within=b"SET status=", app=QUEUE)
    jobs = bench.enqueue_many(3, max_attempts=1)
    with running(counting(runs), proxy_url, stale_after=30):
        wait_until(lambda: bench.statuses() == {"done": 3})
    assert rule.hit.is_set()
    assert sorted(runs) == sorted(jobs)
    assert bench.execute("SELECT DISTINCT attempts FROM mdm.job") == [(1,)]


def test_a_handler_that_runs_on_while_the_database_is_away_is_not_given_back_as_unbegun(
    bench: Bench, proxy: Proxy, proxy_url: str
) -> None:
    """Its lease runs out, and with it its voice; recovery returns the job, and the attempt counts."""
    handlers = Handlers()
    begun, end = threading.Event(), threading.Event()
    seen: list[bool] = []

    @handlers.register("reindex", max_attempts=1)
    def run(payload: dict[str, Any], job: JobContext) -> None:
        begun.set()
        wait_until(lambda: job.cancelled, what="the loss of the claim")
        seen.append(job.cancelled)
        assert end.wait(20)

    job_id = bench.enqueue(max_attempts=1)
    with running(handlers, proxy_url, stale_after=1):
        assert begun.wait(20)
        proxy.go_away()
        wait_until(lambda: seen)
        proxy.come_back()
        job = bench.wait_for(job_id, JobStatus.DLQ)
        assert (job.attempts, "worker lost" in str(job.last_error)) == (1, True)
        end.set()
    assert seen == [True]


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("sort", ["plain", "async"])
def test_rows_of_the_job_session_are_there_once_when_the_answer_to_its_commit_is_lost(
    bench: Bench, proxy: Proxy, proxy_url: str, lost: str, sort: str
) -> None:
    bench.create_notes()
    handlers = Handlers()
    insert = text("INSERT INTO public.note (text) VALUES (:text)")

    if sort == "plain":

        @handlers.register("reindex", wait=wait_none())
        def plain(payload: dict[str, Any], job: JobContext) -> None:
            job.session.execute(insert, {"text": f"attempt {job.attempt}"})

    else:

        @handlers.register("reindex", wait=wait_none())
        async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
            await job.async_session.execute(insert, {"text": f"attempt {job.attempt}"})

    rule = getattr(proxy, lost)(b"COMMIT", proxy.cut, within=FINISH_DONE)
    job_id = bench.enqueue()
    with running(handlers, proxy_url, stale_after=30):
        assert rule.hit.wait(20)
        bench.wait_for(job_id, JobStatus.DONE)
        bench.wait_for(bench.enqueue(), JobStatus.DONE)
    first, *_ = bench.notes()
    assert len(bench.notes()) == 2
    assert (first, bench.job(job_id).attempts) == (("attempt 1", 1) if lost == "after" else ("attempt 1", 2))


def test_a_row_that_somebody_has_locked_holds_up_its_own_outcome_alone(bench: Bench) -> None:
    bench.set_for_database("lock_timeout", "50ms")
    handlers = Handlers()
    runs: list[UUID] = []
    locked = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        runs.append(job.id)
        if payload:
            assert locked.wait(20)

    held = bench.enqueue({"locked": True})
    with running(handlers, bench.url) as worker:
        bench.wait_for(held, JobStatus.RUNNING)
        with bench.engine.connect() as operator, operator.begin():
            operator.execute(text("SELECT 1 FROM mdm.job WHERE id = :id FOR UPDATE"), {"id": held})
            locked.set()
            for other in bench.enqueue_many(20):
                bench.wait_for(other, JobStatus.DONE)
            assert bench.status(held) == "running"
        bench.wait_for(held, JobStatus.DONE)
        assert worker.alive
    assert runs.count(held) == 1


def test_an_outcome_behind_a_lock_cannot_keep_a_stopping_worker(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    held = bench.enqueue()
    with bench.engine.connect() as operator, operator.begin():
        begun = threading.Event()
        slow = Handlers()

        @slow.register("reindex")
        def run(payload: dict[str, Any], job: JobContext) -> None:
            operator.execute(text("SELECT 1 FROM mdm.job WHERE id = :id FOR UPDATE"), {"id": job.id})
            begun.set()

        with running(slow, bench.url, shutdown_timeout=0.3):
            assert begun.wait(20)
    assert bench.status(held) == "running"
    assert "1 outcomes were not written" in caplog.text
