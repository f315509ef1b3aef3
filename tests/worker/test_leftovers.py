"""A worker that has stopped leaves nothing: no thread, no connection, no file descriptor, no row of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from jobqueue import Handlers, JobContext, JobStatus
from jobqueue.errors import DatabaseUnavailable
from jobqueue.worker.fetcher import Fetcher
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.heartbeat import Heartbeat
from jobqueue.worker.maintenance import MaintenanceLoop
from jobqueue.worker.service import Service
from jobqueue.worker.watchdog import Watchdog
from tests.support.waiting import wait_until
from tests.support.worker import drain, make_worker, running
from tests.worker.conftest import Bench

CONNECTIONS = (
    "SELECT application_name FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'jobqueue%'"
)


def busy() -> Handlers:
    """Handlers that use all that a worker lends."""
    handlers = Handlers()

    @handlers.register("reindex")
    def plain(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(text("SELECT 1"))
        with job.separate_session() as session:
            session.execute(text("SELECT 1"))
        if payload:
            raise ValueError("odd")

    @handlers.register("bulk_import")
    async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
        await job.async_session.execute(text("SELECT 1"))
        await asyncio.to_thread(lambda: None)
        if payload:
            raise ValueError("odd")

    return handlers


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("jobqueue", "asyncio"))}


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def fill(bench: Bench) -> None:
    for kind in ("reindex", "bulk_import"):
        bench.enqueue_many(5, kind=kind)
        bench.enqueue_many(2, {"bad": True}, kind=kind, max_attempts=1)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors through /proc")
def test_a_stopped_worker_leaves_nothing(bench: Bench) -> None:
    fill(bench)
    bench.drain(busy())
    before = descriptors()
    for _ in range(20):
        fill(bench)
        bench.drain(busy())
        assert threads() == set()
    assert descriptors() <= before
    wait_until(lambda: bench.execute(CONNECTIONS) == [], what="the end of the worker's connections")
    assert bench.execute("SELECT 1 FROM mdm.job_worker") == []
    assert bench.statuses() == {"done": 210, "dlq": 84}


@pytest.mark.parametrize("stop", [lambda worker: worker.stop(), lambda worker: worker.worker.stop()])
def test_a_worker_that_is_stopped_at_once_leaves_nothing(bench: Bench, stop: Callable[[Any], None]) -> None:
    before = descriptors()
    for _ in range(5):
        with running(busy(), bench.url) as worker:
            stop(worker)
    assert threads() == set()
    assert descriptors() <= before
    wait_until(lambda: bench.execute(CONNECTIONS) == [])
    assert bench.execute("SELECT 1 FROM mdm.job_worker") == []


def test_a_worker_that_never_ran_or_could_not_start_leaves_nothing(database_url: str) -> None:
    before = descriptors()
    for _ in range(5):
        make_worker(busy(), database_url)
        with pytest.raises(DatabaseUnavailable):
            drain(busy(), "postgresql://127.0.0.1:1/db")
    assert threads() == set()
    assert descriptors() <= before


def test_stopping_a_worker_that_has_stopped_does_nothing(bench: Bench, tmp_path: Path) -> None:
    worker = make_worker(busy(), bench.url, drain=True)
    worker.run()
    files = [(tmp_path / str(n)).open("wb") for n in range(20)]
    worker.stop()
    for file in files:
        file.close()
    assert {(tmp_path / str(n)).read_bytes() for n in range(20)} == {b""}


def test_a_handler_that_is_left_behind_is_all_that_is_left(bench: Bench) -> None:
    handlers = Handlers()
    end = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        assert end.wait(30)

    job_id = bench.enqueue()
    with running(handlers, bench.url, shutdown_timeout=0.2):
        bench.wait_for(job_id, JobStatus.RUNNING)
    assert len(threads()) == 1
    assert bench.execute("SELECT 1 FROM mdm.job_worker") == []
    end.set()
    wait_until(lambda: threads() == set(), what="the end of the handler's thread")


def test_an_async_handler_that_cannot_be_cancelled_ends_the_loop_when_it_ends(bench: Bench) -> None:
    handlers = Handlers()
    end = threading.Event()

    @handlers.register("reindex")
    async def run(payload: dict[str, Any]) -> None:
        while not end.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue

    job_id = bench.enqueue()
    with running(handlers, bench.url, shutdown_timeout=0.2):
        bench.wait_for(job_id, JobStatus.RUNNING)
    assert threads() == {"jobqueue-loop"}
    end.set()
    wait_until(lambda: threads() == set(), what="the end of the loop's thread")


@pytest.mark.parametrize("part", [Fetcher, Finisher, Heartbeat, MaintenanceLoop, Watchdog])
def test_a_defect_in_one_part_stops_the_worker_and_is_raised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: type[Service]
) -> None:
    def fail(self: Service) -> None:
        raise ZeroDivisionError("a defect of jobqueue")

    monkeypatch.setattr(part, "run", fail)
    with pytest.raises(ZeroDivisionError):
        make_worker(busy(), bench.url, shutdown_timeout=0.2).run()
    assert threads() == set()
