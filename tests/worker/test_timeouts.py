"""A time limit ends the attempt's say and frees its slot, whatever the handler makes of it."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from tenacity.wait import wait_fixed

from jobqueue import Handlers, JobContext, JobStatus
from tests.support.waiting import wait_until
from tests.support.worker import running
from tests.worker.conftest import Bench

LIMIT = timedelta(seconds=0.2)


def quick(handlers: Handlers) -> None:
    @handlers.register("bulk_import")
    def run(payload: dict[str, Any]) -> None:
        pass

    @handlers.register("virus_scan")
    async def run_async(payload: dict[str, Any]) -> None:
        pass


def assert_timed_out_once(bench: Bench) -> None:
    rows = bench.execute("SELECT status::text, attempts, last_error FROM mdm.job WHERE job_kind = 'reindex'")
    assert {(row.status, row.attempts) for row in rows} == {("pending", 1)}
    assert all("stopped at its time limit" in row.last_error for row in rows)


@pytest.mark.parametrize("swallows", ["once", "for ever"])
def test_an_async_handler_that_swallows_its_cancellation_has_timed_out(bench: Bench, swallows: str) -> None:
    handlers = Handlers()
    quick(handlers)
    swallowed = threading.Event()
    end = threading.Event()

    @handlers.register("reindex", timeout=LIMIT, wait=wait_fixed(3600))
    async def run(payload: dict[str, Any], job: JobContext) -> str:
        while not end.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed.set()
                if swallows == "once":
                    break
        return "all is well"

    bench.enqueue_many(2)
    with running(handlers, bench.url, concurrency=2) as worker:
        assert swallowed.wait(20)
        bench.wait_for(bench.enqueue(kind="virus_scan"), JobStatus.DONE)
        wait_until(lambda: not bench.statuses().get("running"))
        assert worker.alive
        end.set()
    assert_timed_out_once(bench)


def test_plain_handlers_that_ignore_the_limit_cost_no_slot(bench: Bench) -> None:
    """As many as there are slots; then a quick job."""
    handlers = Handlers()
    quick(handlers)
    end = threading.Event()
    cancelled: list[bool] = []
    bench.create_notes()

    @handlers.register("reindex", timeout=LIMIT, wait=wait_fixed(3600))
    def run(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(text("INSERT INTO public.note (text) VALUES (:text)"), {"text": str(job.id)})
        assert end.wait(20)
        cancelled.append(job.cancelled)

    bench.enqueue_many(3)
    with running(handlers, bench.url, concurrency=3):
        wait_until(lambda: bench.statuses() == {"pending": 3} or not bench.statuses().get("running"))
        wait_until(lambda: bench.execute("SELECT 1 FROM mdm.job WHERE attempts = 1 AND status = 'pending'"))
        for kind in ("bulk_import", "virus_scan"):
            bench.wait_for(bench.enqueue(kind=kind), JobStatus.DONE)
        end.set()
        wait_until(lambda: len(cancelled) == 3)
    assert cancelled == [True, True, True]
    assert bench.notes() == []
    assert_timed_out_once(bench)


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_concurrency_holds_after_time_limits(bench: Bench, sort: str) -> None:
    handlers = Handlers()
    now, most = [0], [0]
    lock = threading.Lock()

    def enter(change: int) -> None:
        with lock:
            now[0] += change
            most[0] = max(most[0], now[0])

    if sort == "plain":

        @handlers.register("reindex", timeout=LIMIT, wait=wait_fixed(3600))
        def plain(payload: dict[str, Any], job: JobContext) -> None:
            if payload:
                wait_until(lambda: job.cancelled)
            else:
                enter(1)
                threading.Event().wait(0.01)
                enter(-1)
    else:

        @handlers.register("reindex", timeout=LIMIT, wait=wait_fixed(3600))
        async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
            if payload:
                await asyncio.sleep(60)
            enter(1)
            await asyncio.sleep(0.01)
            enter(-1)

    bench.enqueue_many(6, {"slow": True})
    bench.enqueue_many(30)
    bench.drain(handlers, concurrency=3)
    assert bench.statuses() == {"pending": 6, "done": 30}
    assert most[0] == 3


def test_the_setting_is_the_limit_unless_the_handler_has_one_and_0_is_none(bench: Bench) -> None:
    handlers = Handlers()
    remaining: dict[str, timedelta | None] = {}

    def register(kind: str, timeout: timedelta | None) -> None:
        @handlers.register(kind, timeout=timeout)
        def run(payload: dict[str, Any], job: JobContext) -> None:
            remaining[kind] = job.remaining

    register("reindex", None)
    register("bulk_import", timedelta(hours=2))
    register("virus_scan", timedelta(0))
    for kind in handlers.kinds:
        bench.enqueue(kind=kind)
    bench.drain(handlers, timeout=60)
    assert remaining["virus_scan"] is None
    assert remaining["reindex"] is not None
    assert timedelta(seconds=30) < remaining["reindex"] <= timedelta(seconds=60)
    assert remaining["bulk_import"] is not None
    assert remaining["bulk_import"] > timedelta(hours=1)


def test_the_last_attempt_that_times_out_goes_to_dlq(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex", timeout=LIMIT)
    async def run(payload: dict[str, Any]) -> None:
        await asyncio.sleep(60)

    job_id = bench.enqueue(max_attempts=1)
    bench.drain(handlers)
    assert bench.status(job_id) == "dlq"
    assert bench.audit() == ["job_dlq"]
