"""Which handlers run, how, and how many at once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import text

from jobqueue import Handlers, JobContext
from jobqueue.errors import JobQueueError
from tests.support.waiting import wait_until
from tests.support.worker import make_worker, running
from tests.worker.conftest import Bench

_tenant: ContextVar[str] = ContextVar("a variable of the application", default="nobody")


class Invoice(BaseModel):
    number: int


def test_plain_and_async_handlers_with_one_and_two_arguments(bench: Bench) -> None:
    handlers = Handlers()
    seen: dict[str, Any] = {}

    @handlers.register("reindex")
    def plain(payload: dict[str, Any]) -> None:
        seen["plain"] = payload

    @handlers.register("bulk_import")
    def plain_with_job(payload: Invoice, job: JobContext) -> None:
        seen["plain with job"] = (payload, job)

    @handlers.register("virus_scan")
    async def asynchronous(payload: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        seen["async"] = payload

    @handlers.register("index_sync")
    async def asynchronous_with_job(payload: Invoice, job: JobContext) -> None:
        seen["async with job"] = (payload, job)

    bench.enqueue({"n": 1})
    typed = bench.enqueue({"number": 2}, kind="bulk_import", created_by="ada", idempotency_key="i2")
    bench.enqueue({"n": 3}, kind="virus_scan")
    typed_async = bench.enqueue({"number": 4}, kind="index_sync")
    bench.drain(handlers)

    assert bench.statuses() == {"done": 4}
    assert seen["plain"] == {"n": 1}
    assert seen["async"] == {"n": 3}
    payload, job = seen["plain with job"]
    assert payload == Invoice(number=2)
    assert (job.id, job.tenant_id, job.kind, job.attempt, job.max_attempts, job.created_by, job.idempotency_key) == (
        typed,
        bench.tenant_id,
        "bulk_import",
        1,
        8,
        "ada",
        "i2",
    )
    assert job.remaining is not None
    payload, job = seen["async with job"]
    assert (payload, job.id) == (Invoice(number=4), typed_async)


class Gauge:
    """How many are inside at once, at most."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize("sorts", [{"plain"}, {"async"}, {"plain", "async"}], ids=["plain", "async", "both"])
def test_no_more_than_the_slots_run_at_once_and_all_slots_are_used(bench: Bench, sorts: set[str]) -> None:
    handlers = Handlers()
    gauge = Gauge()

    if "plain" in sorts:

        @handlers.register("reindex")
        def plain(payload: dict[str, Any]) -> None:
            with gauge:
                time.sleep(0.02)

        bench.enqueue_many(20)
    if "async" in sorts:

        @handlers.register("bulk_import")
        async def asynchronous(payload: dict[str, Any]) -> None:
            with gauge:
                await asyncio.sleep(0.02)

        bench.enqueue_many(20, kind="bulk_import")
    bench.drain(handlers, concurrency=3)
    assert bench.statuses() == {"done": 20 * len(sorts)}
    assert gauge.most == 3


def test_what_was_claimed_ahead_of_the_slots_goes_back_when_jobs_turn_slow(bench: Bench) -> None:
    handlers = Handlers()
    slow = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        if payload:
            slow.wait(20)

    bench.enqueue_many(300)
    bench.enqueue_many(200, {"slow": True})
    with running(handlers, bench.url, concurrency=2, shutdown_timeout=0.1):
        wait_until(lambda: bench.statuses() == {"done": 300, "running": 2, "pending": 198})
        slow.set()
        wait_until(lambda: bench.statuses() == {"done": 500})
    assert bench.execute("SELECT DISTINCT attempts FROM mdm.job") == [(1,)]


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_what_a_handler_leaves_in_a_context_variable_is_not_there_for_the_next_job(bench: Bench, sort: str) -> None:
    handlers = Handlers()
    found: list[str] = []

    def leave(value: str) -> None:
        found.append(_tenant.get())
        _tenant.set(value)

    if sort == "plain":

        @handlers.register("reindex")
        def plain(payload: dict[str, Any]) -> None:
            leave("plain")
    else:

        @handlers.register("reindex")
        async def asynchronous(payload: dict[str, Any]) -> None:
            leave("async")

    bench.enqueue_many(10)
    bench.drain(handlers, concurrency=1)
    assert found == ["nobody"] * 10


def test_an_async_handler_is_told_to_use_the_async_session_and_a_plain_one_the_plain(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    def plain(payload: dict[str, Any], job: JobContext) -> None:
        print(job.async_session)

    @handlers.register("bulk_import")
    async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
        print(job.session)

    jobs = [bench.enqueue(max_attempts=1), bench.enqueue(kind="bulk_import", max_attempts=1)]
    bench.drain(handlers)
    texts = [str(bench.job(job).last_error) for job in jobs]
    assert "uses job.session" in texts[0]
    assert "uses job.async_session" in texts[1]


def returns_a_coroutine(payload: dict[str, Any]) -> Any:
    async def work() -> None:
        pass

    return work()


def returns_a_generator(payload: dict[str, Any]) -> Any:
    return (number for number in range(3))


@pytest.mark.parametrize("function", [returns_a_coroutine, returns_a_generator])
def test_work_that_a_handler_only_returns_is_not_taken_for_done(bench: Bench, function: Any) -> None:
    handlers = Handlers()
    handlers.register("reindex")(function)
    job_id = bench.enqueue(max_attempts=1)
    bench.drain(handlers)
    job = bench.job(job_id)
    assert job.status == "dlq"
    assert "that nobody runs" in (job.last_error or "")


def test_a_child_that_a_handler_forked_has_no_say(bench: Bench) -> None:
    bench.create_notes()
    handlers = Handlers()

    @handlers.register("reindex")
    def fork(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(text("INSERT INTO public.note VALUES (:id, 'once')"), {"id": job.id})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, from Python 3.12 on
            child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0

    job_id = bench.enqueue()
    bench.drain(handlers)
    assert (bench.status(job_id), bench.notes()) == ("done", ["once"])


def test_a_worker_runs_once(bench: Bench) -> None:
    handlers = Handlers()
    handlers.register("reindex")(lambda payload: None)
    worker = make_worker(handlers, bench.url, drain=True)
    worker.run()
    with pytest.raises(JobQueueError, match="runs once"):
        worker.run()
