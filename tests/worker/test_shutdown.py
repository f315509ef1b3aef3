"""SIGTERM at any moment: what has not begun goes back unspent, nothing is left running with a dead owner."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobqueue import JobStatus
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.worker import Workers
from tests.worker.conftest import Bench
from tests.worker.test_lost_connection import CLAIM, QUEUE

APP = """
import asyncio, os, pathlib, time
from jobqueue import Handlers

handlers = Handlers()
go = pathlib.Path("go")


@handlers.register("reindex")
def wait_for_go(payload):
    pathlib.Path(f"begun-{time.monotonic_ns()}").touch()
    while not go.exists():
        time.sleep(0.01)


@handlers.register("bulk_import")
async def wait_for_go_async(payload):
    pathlib.Path(f"begun-{time.monotonic_ns()}").touch()
    while not go.exists():
        await asyncio.sleep(0.01)


@handlers.register("virus_scan")
async def swallow_cancellation(payload):
    pathlib.Path(f"begun-{time.monotonic_ns()}").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass


@handlers.register("index_sync")
async def block_the_loop(payload):
    pathlib.Path(f"begun-{time.monotonic_ns()}").touch()
    time.sleep(3600)


@handlers.register("outbox_dispatch")
async def hang_in_a_thread_of_asyncio(payload):
    pathlib.Path(f"begun-{time.monotonic_ns()}").touch()
    await asyncio.to_thread(time.sleep, 3600)


@handlers.register("gin_backfill")
def quick(payload):
    pass
"""

PLAIN, ASYNC, SWALLOWING, BLOCKING, QUICK = "reindex", "bulk_import", "virus_scan", "index_sync", "gin_backfill"
TO_THREAD = "outbox_dispatch"


@pytest.fixture(autouse=True)
def app(workers: Workers) -> None:
    workers.write_app(APP)


@pytest.fixture
def begun(tmp_path: Path) -> Callable[[], int]:
    """How many handlers have begun."""
    return lambda: len(list(tmp_path.glob("begun-*")))


def proxied(proxy: Proxy) -> str:
    return proxy.url.render_as_string(hide_password=False)


def test_sigterm_while_the_claim_commits(
    bench: Bench, workers: Workers, proxy: Proxy, begun: Callable[[], int]
) -> None:
    worker = workers.start("--concurrency", "2", database_url=proxied(proxy))
    worker.wait_for("started")

    def terminate() -> None:
        worker.terminate()
        time.sleep(2)  # the answer is late by this

    rule = proxy.after(b"COMMIT", terminate, within=b"SET status=", app=QUEUE)
    bench.enqueue_many(2, max_attempts=1)
    assert worker.wait() == 0, worker.log
    assert rule.hit.is_set()
    assert begun() == 0
    assert bench.execute("SELECT DISTINCT status::text, attempts, claimed_by FROM mdm.job") == [("pending", 0, None)]
    assert bench.execute("SELECT 1 FROM mdm.job_worker") == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_sigterm_when_the_claim_has_just_lost_its_connection(
    bench: Bench, workers: Workers, proxy: Proxy, moment: str
) -> None:
    worker = workers.start(database_url=proxied(proxy))
    worker.wait_for("started")

    def terminate_and_cut() -> None:
        worker.terminate()
        time.sleep(0.5)  # for the worker to see the signal
        proxy.cut()

    getattr(proxy, moment)(b"COMMIT", terminate_and_cut, within=b"SET status=", app=QUEUE)
    bench.enqueue(max_attempts=1)
    assert worker.wait() == 0, worker.log
    assert bench.execute("SELECT status::text, attempts, claimed_by FROM mdm.job") == [("pending", 0, None)]


@pytest.mark.parametrize("kind", [PLAIN, ASYNC])
def test_sigterm_while_handlers_run_and_others_wait_for_a_slot(
    bench: Bench, workers: Workers, tmp_path: Path, begun: Callable[[], int], kind: str
) -> None:
    quick = bench.enqueue_many(300, kind=QUICK, priority=1)
    bench.enqueue_many(50, kind=kind)
    # One sort of handlers, so that jobs are claimed ahead of the slots
    kinds = "reindex,gin_backfill" if kind == PLAIN else "bulk_import"
    worker = workers.start("--concurrency", "2", "--kinds", kinds, stale_after=30)
    wait_until(lambda: begun() == 2)
    worker.terminate()
    wait_until(lambda: bench.statuses().get("running") == 2, what="the return of what has not begun")
    assert bench.execute("SELECT DISTINCT attempts FROM mdm.job WHERE status = 'pending'") == [(0,)]
    (tmp_path / "go").touch()
    assert worker.wait() == 0, worker.log
    assert bench.execute(
        "SELECT count(*) FROM mdm.job WHERE status = 'done' AND job_kind::text = :kind", kind=kind
    ) == [(2,)]
    assert "running" not in bench.statuses()
    assert begun() == 2
    assert kind == ASYNC or bench.job(quick[0]).status is JobStatus.DONE


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in (ASYNC, BLOCKING)]


@pytest.mark.parametrize("kind", [PLAIN, SWALLOWING, TO_THREAD, *SLOW])
def test_a_handler_that_hangs_cannot_keep_the_process(
    bench: Bench, workers: Workers, begun: Callable[[], int], kind: str
) -> None:
    job_id = bench.enqueue(kind=kind)
    worker = workers.start("--kinds", kind, shutdown_timeout="0.5", stale_after=1)
    wait_until(lambda: begun() == 1)
    told = time.monotonic()
    worker.terminate()
    assert worker.wait() == 0, worker.log
    assert time.monotonic() - told < 8, worker.log
    assert "still runs after" in worker.log
    assert "Traceback" not in worker.log
    assert "Warning:" not in worker.log
    job = bench.job(job_id)
    assert (job.status, job.attempts) == ("running", 1)
    recovering = workers.start("--kinds", QUICK)
    bench.wait_for(job_id, JobStatus.PENDING)
    recovering.terminate()
    assert recovering.wait() == 0, recovering.log


def test_ctrl_c_stops_like_sigterm(bench: Bench, workers: Workers, begun: Callable[[], int], tmp_path: Path) -> None:
    job_id = bench.enqueue()
    worker = workers.start(shutdown_timeout=20)
    wait_until(lambda: begun() == 1)
    worker.process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert worker.wait() == 0, worker.log
    assert bench.status(job_id) == "done"
    assert "Traceback" not in worker.log


def test_a_second_signal_ends_the_process_at_once(bench: Bench, workers: Workers, begun: Callable[[], int]) -> None:
    bench.enqueue()
    worker = workers.start(shutdown_timeout=60)
    wait_until(lambda: begun() == 1)
    worker.terminate()
    # It has seen the first when it has withdrawn its claim to new jobs: they stay
    wait_until(lambda: (bench.enqueue(), bench.statuses()["pending"] > 20)[1], what="jobs that nobody takes")
    worker.terminate()
    assert worker.wait(10) == 143


def test_a_database_that_does_not_answer_cannot_keep_a_stopping_worker(
    bench: Bench, workers: Workers, proxy: Proxy, begun: Callable[[], int]
) -> None:
    bench.enqueue()
    worker = workers.start(database_url=proxied(proxy), shutdown_timeout="0.5")
    wait_until(lambda: begun() == 1)
    proxy.stall()
    told = time.monotonic()
    worker.terminate()
    assert worker.wait() == 0, worker.log
    assert time.monotonic() - told < 10, worker.log


@pytest.mark.parametrize("moment", [CLAIM, b"completed_at=clock_timestamp()", b"INSERT INTO mdm.job_worker"])
def test_sigterm_in_the_middle_of_any_statement(bench: Bench, workers: Workers, proxy: Proxy, moment: bytes) -> None:
    worker = workers.start("--kinds", QUICK, database_url=proxied(proxy))
    worker.wait_for("started")
    rule = proxy.before(moment, worker.terminate, nth=3)
    for _ in range(3):
        bench.enqueue_many(3, kind=QUICK)
        if rule.hit.wait(0.3):
            break
    assert worker.wait() == 0, worker.log
    assert set(bench.statuses()) <= {"done", "pending"}
    assert bench.execute("SELECT 1 FROM mdm.job WHERE status = 'pending' AND attempts > 0") == []
    assert bench.execute("SELECT 1 FROM mdm.job_worker") == []
