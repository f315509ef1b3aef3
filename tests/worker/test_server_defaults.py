"""Servers whose defaults are not PostgreSQL's own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import text

from jobqueue import Handlers, JobContext, JobStatus, enqueue
from tests.support.waiting import wait_until
from tests.support.worker import running
from tests.worker.conftest import Bench

IDLE_IN_TRANSACTION = """
SELECT application_name, state FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'jobqueue%' AND state LIKE 'idle in transaction%'
   AND state_change < clock_timestamp() - interval '0.5 s'
"""


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_no_transaction_stands_open_while_a_handler_works_without_its_session(bench: Bench, sort: str) -> None:
    """The server would end it, and dead rows would pile up behind it."""
    bench.create_notes()
    bench.set_for_database("idle_in_transaction_session_timeout", "1s")
    handlers = Handlers()
    go = threading.Event()

    if sort == "plain":

        @handlers.register("reindex")
        def plain(payload: dict[str, Any], job: JobContext) -> None:
            assert go.wait(20)
            job.session.execute(text("INSERT INTO public.note (text) VALUES ('plain')"))

    else:

        @handlers.register("reindex")
        async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
            while not go.is_set():
                await job.async_session.run_sync(lambda _: None)  # touched, but not used
                await asyncio.sleep(0.02)
            await job.async_session.execute(text("INSERT INTO public.note (text) VALUES ('async')"))

    job_id = bench.enqueue(max_attempts=1)
    with running(handlers, bench.url):
        bench.wait_for(job_id, JobStatus.RUNNING)
        running_for = "SELECT clock_timestamp() - started_at > interval '1.6 s' AS enough FROM mdm.job"

        def worked_long_enough() -> bool:
            assert bench.execute(IDLE_IN_TRANSACTION) == []
            return bool(bench.execute(running_for)[0].enough)

        wait_until(worked_long_enough, every=0.1)
        go.set()
        bench.wait_for(job_id, JobStatus.DONE)
    assert bench.notes() == [sort]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_another_default_isolation_level_changes_nothing(bench: Bench, isolation: str) -> None:
    bench.create_notes()
    bench.set_for_database("default_transaction_isolation", isolation)
    handlers = Handlers()
    levels: set[str] = set()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        levels.add(str(job.session.scalar(text("SHOW transaction_isolation"))))
        job.session.execute(text("INSERT INTO public.note (text) VALUES (:text)"), {"text": str(job.id)})
        enqueue(job.session, "bulk_import", tenant_id=job.tenant_id)

    @handlers.register("bulk_import")
    async def follow_up(payload: dict[str, Any], job: JobContext) -> None:
        levels.add(str(await job.async_session.scalar(text("SHOW transaction_isolation"))))

    bench.enqueue_many(30)
    with running(handlers, bench.url), running(handlers, bench.url):
        wait_until(lambda: bench.statuses() == {"done": 60})
    assert levels == {"read committed"}
    assert len(bench.notes()) == 30
    assert bench.execute("SELECT DISTINCT attempts, last_error FROM mdm.job") == [(1, None)]
