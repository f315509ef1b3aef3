"""A worker's name is new for each start, and processes do not share connections."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from jobqueue import Handlers, JobContext, JobStatus
from tests.support.waiting import wait_until
from tests.support.worker import Workers, make_worker, running
from tests.worker.conftest import Bench


def nothing() -> Handlers:
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        pass

    return handlers


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every container's worker has the same host name and pid."""
    monkeypatch.setattr("socket.gethostname", lambda: "app")
    monkeypatch.setattr("os.getpid", lambda: 1)


@pytest.mark.usefixtures("container")
def test_workers_of_the_same_host_and_pid_have_names_of_their_own(bench: Bench) -> None:
    handlers = Handlers()
    both = threading.Barrier(2)

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        both.wait(20)

    first, second = make_worker(handlers, bench.url), make_worker(handlers, bench.url)
    assert first.id.startswith("app/1/")
    assert second.id.startswith("app/1/")
    assert first.id != second.id
    jobs = bench.enqueue_many(2)
    with running(handlers, bench.url, concurrency=1) as one, running(handlers, bench.url, concurrency=1) as two:
        wait_until(lambda: bench.statuses() == {"done": 2})
        assert {bench.job(job).claimed_by for job in jobs} == {one.id, two.id}
        wait_until(lambda: len(bench.execute("SELECT 1 FROM mdm.job_worker")) == 2)


@pytest.mark.usefixtures("container")
def test_recovery_goes_by_the_claim_and_not_by_the_namesake_that_lives(bench: Bench) -> None:
    handlers = Handlers()
    go = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        assert go.wait(20)

    living = bench.enqueue()
    with running(handlers, bench.url, stale_after=1, concurrency=1) as first:
        bench.wait_for(living, JobStatus.RUNNING)
        lost = bench.enqueue()
        bench.execute(
            "UPDATE mdm.job SET status = 'running', attempts = 1, claimed_by = :dead, started_at = now(), "
            "claimed_at = now() - interval '1 h' WHERE id = :lost",
            dead=make_worker(handlers, bench.url).id,
            lost=lost,
        )
        with running(handlers, bench.url, stale_after=1, concurrency=1) as second:
            wait_until(lambda: bench.job(lost).claimed_by == second.id)
            assert bench.job(lost).attempts == 2
            go.set()
            wait_until(lambda: bench.statuses() == {"done": 2})
        assert (bench.job(living).claimed_by, bench.job(living).attempts) == (first.id, 1)


def test_a_killed_worker_that_starts_again_in_place_recovers_its_job_after_the_limit(
    bench: Bench, workers: Workers
) -> None:
    workers.write_app(
        "import pathlib, time\n"
        "from jobqueue import Handlers\n"
        "handlers = Handlers()\n"
        "@handlers.register('reindex')\n"
        "def run(payload, job):\n"
        "    if job.attempt == 1:\n"
        "        time.sleep(3600)\n"
    )
    job_id = bench.enqueue()
    first = workers.start()
    job = bench.wait_for(job_id, JobStatus.RUNNING)
    first.kill()
    second = workers.start()
    again = bench.wait_for(job_id, JobStatus.DONE)
    assert again.attempts == 2
    assert again.claimed_by != job.claimed_by
    second.terminate()
    assert second.wait() == 0
    assert "was recovered from the lost worker" in second.log


FORKING = """
import os, sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from uuid import UUID
from jobqueue import enqueue

engine = create_engine(os.environ["DATABASE_URL"])
tenant = UUID(sys.argv[1])


def work(who):
    for n in range(40):
        with Session(engine) as session, session.begin():
            enqueue(session, "reindex", {"who": who}, tenant_id=tenant, idempotency_key=f"{who}-{n}")


work("parent before")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        try:
            engine.dispose(close=False)
            work(f"child {number}")
        except BaseException:
            os._exit(1)
        os._exit(0)
    children.append(pid)
work("parent after")
engine.dispose()
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_server_that_forks_after_its_engine_was_made_enqueues_from_parent_and_children(
    bench: Bench, worker_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-c", FORKING, str(bench.tenant_id)]
    done = subprocess.run(command, env=worker_environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    counts = bench.execute("SELECT payload->>'who', count(*) FROM mdm.job GROUP BY 1 ORDER BY 1")
    assert counts == [(f"child {n}", 40) for n in range(3)] + [("parent after", 40), ("parent before", 40)]
    bench.drain(nothing())
    assert bench.statuses() == {"done": 200}
