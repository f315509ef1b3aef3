"""What becomes of jobs whose worker was lost."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from jobqueue import JobRepository, enqueue
from jobqueue.states import JobStatus
from tests.repository.steps import MINUTE, audit, change, claim, row, statuses
from tests.support.factories import LONG_AGO, WORKER, new_job


def test_a_stale_job_returns_to_pending_while_attempts_are_left(session: Session, repository: JobRepository) -> None:
    job = new_job(stale=True, attempts=7)
    (recovered,) = repository.recover_stale(MINUTE)
    assert (recovered.id, recovered.status, recovered.attempts) == (job.id, JobStatus.PENDING, 7)
    assert (recovered.tenant_id, recovered.kind, recovered.worker) == (job.tenant_id, "email_send", WORKER)
    found = row(session, job.id)
    assert (found["status"], found["attempts"], found["claimed_by"], found["claimed_at"], found["completed_at"]) == (
        JobStatus.PENDING,
        7,
        None,
        None,
        None,
    )
    assert found["last_error"].startswith(f"worker lost: {WORKER} did not renew its claim during attempt 7")
    assert found["priority"] == job.priority
    assert audit(session) == []
    assert claim(session).attempt == 8


def test_a_stale_job_without_attempts_left_is_a_dead_letter(session: Session, repository: JobRepository) -> None:
    job = new_job(stale=True, attempts=3, max_attempts=3)
    (recovered,) = repository.recover_stale(MINUTE)
    assert recovered.status is JobStatus.DLQ
    found = row(session, job.id)
    assert found["completed_at"] is not None
    assert found["last_error"].startswith("worker lost")
    assert audit(session) == [("job_dlq", job.id, WORKER)]


def test_a_dead_letter_of_an_unaudited_kind_leaves_no_audit_row(session: Session, repository: JobRepository) -> None:
    new_job(stale=True, attempts=8)
    audited = new_job(stale=True, attempts=8, job_kind="reindex")
    assert len(repository.recover_stale(MINUTE, unaudited={"email_send"})) == 2
    assert audit(session) == [("job_dlq", audited.id, WORKER)]


def test_max_attempts_lowered_while_running_ends_in_dlq(session: Session, repository: JobRepository) -> None:
    job = new_job(stale=True, attempts=5)
    change(session, job.id, max_attempts=2)
    (recovered,) = repository.recover_stale(MINUTE)
    assert recovered.status is JobStatus.DLQ


def test_only_what_was_not_renewed_for_so_long_is_recovered(session: Session, repository: JobRepository) -> None:
    fresh, stale = new_job(running=True), new_job(stale=True)
    for status in ("done", "failed", "dlq"):
        new_job(**{status: True}, claimed_at=row(session, stale.id)["claimed_at"])
    new_job()
    assert repository.recover_stale(LONG_AGO + timedelta(hours=1)) == []
    assert [recovered.id for recovered in repository.recover_stale(MINUTE)] == [stale.id]
    assert statuses(session)[fresh.id] is JobStatus.RUNNING


def test_a_hundred_are_recovered_at_once_keys_or_not(session: Session, repository: JobRepository) -> None:
    jobs = [
        new_job(stale=True, dedup_key=f"d{n}", idempotency_key=f"i{n}", attempts=1 if n % 4 else 8) for n in range(100)
    ]
    result = enqueue(session, "email_send", tenant_id=jobs[1].tenant_id, dedup_key="d1")
    assert (result.id, result.created) == (jobs[1].id, False)
    assert len(repository.recover_stale(MINUTE)) == 100
    found = statuses(session)
    assert [found[job.id] for job in jobs] == [JobStatus.PENDING if n % 4 else JobStatus.DLQ for n in range(100)]
    assert repository.recover_stale(MINUTE) == []


def test_the_limit_takes_the_longest_lost(session: Session, repository: JobRepository) -> None:
    jobs = [new_job(stale=True) for _ in range(5)]
    for days, job in enumerate(jobs):
        change(session, job.id, claimed_at=text(f"now() - interval '{10 + days} days'"))
    assert {recovered.id for recovered in repository.recover_stale(MINUTE, limit=2)} == {jobs[3].id, jobs[4].id}


def test_two_recoveries_share_the_work_without_waiting(engine: Engine, session: Session) -> None:
    jobs = [new_job(stale=True) for _ in range(4)]
    session.commit()
    with Session(engine) as other:
        other.execute(text("SET LOCAL lock_timeout = '1s'"))
        first = JobRepository(session).recover_stale(MINUTE, limit=2)
        second = JobRepository(other).recover_stale(MINUTE)
        assert {job.id for job in first} | {job.id for job in second} == {job.id for job in jobs}
        assert len(second) == 2


def test_the_text_is_short_however_long_the_name_of_the_worker(session: Session, repository: JobRepository) -> None:
    job = new_job(stale=True, claimed_by="ä" * 5000)
    repository.recover_stale(MINUTE)
    assert len(row(session, job.id)["last_error"].encode()) <= 4096
