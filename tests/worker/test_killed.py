"""Workers that die by SIGKILL: jobs that kill them, and jobs that they had in hand."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from jobqueue import JobStatus
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess, Workers
from tests.worker.conftest import Bench

DEADLY = """
import os, signal
from jobqueue import Handlers

handlers = Handlers()


@handlers.register("reindex")
def kill(payload):
    os.kill(os.getpid(), signal.SIGKILL)


@handlers.register("bulk_import")
def live(payload):
    pass
"""


@pytest.mark.slow
def test_a_job_that_kills_its_worker_ends_in_dlq_when_its_attempts_are_used_up(bench: Bench, workers: Workers) -> None:
    workers.write_app(DEADLY)
    job_id = bench.enqueue(max_attempts=3)
    for attempt in (1, 2, 3):
        worker = workers.start()
        assert worker.wait() == -9
        assert (bench.job(job_id).status, bench.job(job_id).attempts) == ("running", attempt)
    worker = workers.start()
    job = bench.wait_for(job_id, JobStatus.DLQ)
    assert job.attempts == 3
    assert str(job.last_error).startswith("worker lost: ")
    assert "during attempt 3" in str(job.last_error)
    bench.wait_for(bench.enqueue(kind="bulk_import"), JobStatus.DONE)
    worker.terminate()
    assert worker.wait() == 0
    assert bench.audit() == ["job_dlq"]


TRANSACTIONAL = """
import asyncio, os, time
from sqlalchemy import text
from jobqueue import Handlers, enqueue

handlers = Handlers()
INSERT = text("INSERT INTO public.note (job_id, text) VALUES (:id, :text)")


@handlers.register("reindex")
def first(payload, job):
    write(job.session, job)
    time.sleep(0.01)


@handlers.register("bulk_import")
async def second(payload, job):
    await job.async_session.run_sync(write, job)
    await asyncio.sleep(0.01)


@handlers.register("virus_scan")
def follow_up(payload, job):
    job.session.execute(INSERT, {"id": job.id, "text": f"follow-up of {payload['of']}"})


def write(session, job):
    # No key of any sort: a repeat would be seen
    session.execute(INSERT, {"id": job.id, "text": f"{job.kind} {job.id} by {os.getpid()}"})
    enqueue(session, "virus_scan", {"of": str(job.id)}, tenant_id=job.tenant_id)
"""

JOBS = 300


def kill_with_jobs_in_hand(bench: Bench, worker: WorkerProcess) -> None:
    in_hand = "SELECT 1 FROM mdm.job WHERE status = 'running' AND claimed_by LIKE :worker"

    def caught() -> bool:
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)  # what it had sent to the server is done by then
        if bench.execute(in_hand, worker=f"%/{worker.process.pid}/%"):
            return True
        worker.process.send_signal(signal.SIGCONT)
        return False

    wait_until(caught)
    worker.kill()


@pytest.mark.slow
def test_what_handlers_write_with_their_outcome_is_there_once_after_a_kill(bench: Bench, workers: Workers) -> None:
    bench.execute("CREATE TABLE public.note (job_id uuid, text text)")
    workers.write_app(TRANSACTIONAL)
    parents = bench.enqueue_many(JOBS) + bench.enqueue_many(JOBS, kind="bulk_import")
    first = workers.start("--concurrency", "5")
    workers.start("--concurrency", "5")
    wait_until(lambda: bench.statuses().get("done", 0) > JOBS / 2, what="a quarter of the work")
    wait_until(lambda: bench.execute("SELECT 1 FROM public.note WHERE text LIKE :pid", pid=f"% by {first.process.pid}"))
    kill_with_jobs_in_hand(bench, first)
    done_at_kill = bench.statuses()["done"]
    wait_until(lambda: bench.statuses() == {"done": 4 * JOBS}, 90, what="the end of all jobs", every=0.1)

    assert done_at_kill < 4 * JOBS, "the worker was killed after the end, and not in the middle"
    notes = Counter(row.job_id for row in bench.execute("SELECT job_id FROM public.note"))
    assert set(notes.values()) == {1}
    assert len(notes) == 4 * JOBS
    followed = Counter(row.of for row in bench.execute(FOLLOWED))
    assert followed == dict.fromkeys(map(str, parents), 1)
    assert bench.execute("SELECT 1 FROM mdm.job WHERE attempts > 1"), "some jobs were in hand at the kill"


FOLLOWED = "SELECT payload->>'of' AS of FROM mdm.job WHERE job_kind = 'virus_scan'"
