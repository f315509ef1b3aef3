"""A late attempt, whose claim was taken over, cannot change the job by any path."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from tenacity.wait import wait_fixed

from jobqueue import Handlers, Job, JobContext, JobRepository, JobStatus, Snooze, Stop, enqueue
from jobqueue.repository import Claimed, Outcome
from jobqueue.states import Transition
from jobqueue.worker.attempt import Attempt
from jobqueue.worker.databases import Databases
from tests.support.worker import quick_settings, running
from tests.worker.conftest import Bench

WORKER = "host/1/5d1f6c1e-0000-4000-8000-000000000001"


@contextmanager
def repository(bench: Bench) -> Iterator[JobRepository]:
    with Session(bench.engine) as session, session.begin():
        yield JobRepository(session)


def claim(bench: Bench, worker: str = WORKER) -> Claimed:
    with repository(bench) as jobs:
        (claimed,) = jobs.claim(worker=worker)
        return claimed


def take_over(bench: Bench, worker: str, *, same_clock: bool) -> Claimed:
    """Recovery returns the job, and ``worker`` claims it."""
    before = bench.execute("SELECT claimed_at FROM mdm.job")[0].claimed_at
    with repository(bench) as jobs:
        (recovered,) = jobs.recover_stale(timedelta(0))
    assert recovered.status == "pending"
    claimed = claim(bench, worker)
    if same_clock:
        bench.execute("UPDATE mdm.job SET claimed_at = :before", before=before)
    return claimed


def row(bench: Bench) -> Any:
    return bench.execute("SELECT * FROM mdm.job WHERE job_kind = 'reindex'")


def finish(verb: Transition) -> Callable[[JobRepository, Claimed], object]:
    return lambda jobs, late: jobs.finish([Outcome(late.token, verb, "late", timedelta(hours=1))])


LATE: dict[str, Callable[[JobRepository, Claimed], object]] = {
    **{verb.value: finish(verb) for verb in (Transition.DONE, Transition.RETRY, Transition.SNOOZE, Transition.FAILED)},
    "dlq": finish(Transition.DLQ),
    "renew": lambda jobs, late: list(jobs.renew([late.token]).renewed),
    "release": lambda jobs, late: jobs.release([late.token]),
}


@pytest.mark.parametrize("same_clock", [False, True], ids=["", "same claimed_at"])
@pytest.mark.parametrize("second", ["another", WORKER], ids=["another worker", "the same worker"])
def test_a_late_attempt_changes_nothing(bench: Bench, second: str, same_clock: bool) -> None:
    bench.enqueue()
    late = claim(bench)
    take_over(bench, second, same_clock=same_clock)
    before = row(bench)
    for verb, write in LATE.items():
        with repository(bench) as jobs:
            assert write(jobs, late) == [], verb
        assert row(bench) == before, verb
    assert bench.audit() == []


def end_well(job: JobContext) -> None:
    job.session.execute(text("INSERT INTO public.note (text) VALUES ('late')"))
    enqueue(job.session, "bulk_import", tenant_id=job.tenant_id)


def fail(job: JobContext) -> None:
    end_well(job)
    raise ValueError("odd")


def snooze(job: JobContext) -> None:
    end_well(job)
    raise Snooze(timedelta(0))


def stop(job: JobContext) -> None:
    end_well(job)
    raise Stop("enough")


def change_the_row(job: JobContext) -> None:
    row = job.session.get_one(Job, job.id)
    row.status, row.claimed_by, row.claimed_at = JobStatus.PENDING, None, None


@pytest.mark.parametrize("end", [end_well, fail, snooze, stop, change_the_row])
@pytest.mark.parametrize("second", ["another", WORKER], ids=["another worker", "the same worker"])
def test_a_late_attempt_writes_no_rows_and_no_follow_up_jobs(
    bench: Bench, end: Callable[[JobContext], None], second: str
) -> None:
    bench.create_notes()
    handlers = Handlers()
    taken: list[Any] = []

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        take_over(bench, second, same_clock=True)
        taken.extend(row(bench))
        end(job)

    bench.enqueue()
    handler = handlers.get("reindex")
    assert handler is not None
    databases = Databases(quick_settings(bench.url).require_database_url(), 1)
    try:
        outcome = Attempt(claim(bench), handler, databases, float("inf")).run(timedelta(0))
    finally:
        databases.dispose()
    with repository(bench) as jobs:
        assert outcome is None or jobs.finish([outcome]) == []
    assert row(bench) == taken
    assert bench.notes() == []
    assert bench.execute("SELECT 1 FROM mdm.job WHERE job_kind = 'bulk_import'") == []


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_the_worker_of_a_late_attempt_says_that_the_claim_was_lost(
    bench: Bench, sort: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.create_notes()
    handlers = Handlers()
    insert = text("INSERT INTO public.note (text) VALUES ('late')")
    second: list[UUID] = []

    def steal(job: JobContext) -> None:
        second.append(take_over(bench, "another", same_clock=False).id)

    if sort == "plain":

        @handlers.register("reindex")
        def plain(payload: dict[str, Any], job: JobContext) -> None:
            steal(job)
            job.session.execute(insert)
    else:

        @handlers.register("reindex")
        async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
            steal(job)
            await job.async_session.execute(insert)

    job_id = bench.enqueue()
    bench.drain(handlers)
    assert second == [job_id]
    assert (bench.status(job_id), bench.job(job_id).claimed_by) == ("running", "another")
    assert bench.notes() == []
    assert "the claim was lost" in caplog.text


def test_a_late_outcome_without_a_session_is_dropped_and_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        take_over(bench, "another", same_clock=False)

    job_id = bench.enqueue()
    bench.drain(handlers)
    assert bench.job(job_id).claimed_by == "another"
    assert "its claim is gone" in caplog.text


def test_an_outcome_that_races_with_the_time_limit_is_written_once(bench: Bench) -> None:
    """The watchdog and the handler's end meet, again and again."""
    handlers = Handlers()

    @handlers.register("reindex", timeout=timedelta(milliseconds=40), wait=wait_fixed(3600))
    def run(payload: dict[str, Any], job: JobContext) -> None:
        threading.Event().wait(0.036 + payload["n"] % 12 / 1000)

    for n in range(24):
        bench.enqueue({"n": n})
    with running(handlers, bench.url, concurrency=8, drain=True) as worker:
        worker.wait()
    assert sum(bench.statuses().values()) == 24
    assert set(bench.statuses()) <= {"done", "pending"}
    assert bench.execute("SELECT DISTINCT attempts FROM mdm.job") == [(1,)]
    # One verdict each: what is done has no error, what is pending has the time limit's
    assert bench.execute("SELECT 1 FROM mdm.job WHERE (status = 'pending') != (last_error IS NOT NULL)") == []


def test_whoever_finds_the_voice_used_sees_at_once_who_used_it(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        pass

    bench.enqueue()
    claimed, handler = claim(bench), handlers.get("reindex")
    assert handler is not None
    databases = Databases(quick_settings(bench.url).require_database_url(), 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            attempt = Attempt(claimed, handler, databases, float("inf"))
            silencer = threading.Thread(target=attempt.silence)
            silencer.start()
            won = attempt.use_voice()
            assert won != attempt.silenced
            silencer.join()
    finally:
        sys.setswitchinterval(interval)
        databases.dispose()
