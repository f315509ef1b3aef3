"""Claiming: which jobs, in which order, how many, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, Job, JobRepository
from jobqueue.states import JobStatus
from tests.repository.steps import OTHER_WORKER, WORKER, change, claim, fresh, row, statuses
from tests.support.factories import new_job, new_tenant

PAST = datetime(2020, 1, 1, tzinfo=UTC)


def due(minutes: int) -> datetime:
    return PAST + timedelta(minutes=minutes)


def ids(jobs: Sequence[Job]) -> list[UUID]:
    return [job.id for job in jobs]


def test_the_most_important_come_first_then_those_due_longest(session: Session, repository: JobRepository) -> None:
    jobs = [
        new_job(priority=priority, available_at=due(minutes))
        for priority, minutes in [(100, 5), (-3, 9), (100, 1), (7, 2), (-3, 8), (32_767, 0), (-32_768, 10)]
    ]
    in_order = [6, 4, 1, 3, 2, 0, 5]
    taken = repository.claim(worker=WORKER, limit=3) + repository.claim(worker=WORKER, limit=10)
    assert [job.id for job in taken] == [jobs[n].id for n in in_order]


def test_a_claim_marks_the_row_and_returns_what_the_attempt_needs(session: Session) -> None:
    tenant = new_tenant()
    job = new_job(
        tenant_id=tenant.id,
        job_kind="reindex",
        payload={"a": 1},
        priority=3,
        max_attempts=5,
        attempts=2,
        created_by="ada",
        idempotency_key="k",
    )
    claimed = claim(session)
    found = fresh(session, job.id)
    assert (found.status, found.claimed_by, found.attempts) == (JobStatus.RUNNING, WORKER, 3)
    assert found.started_at == claimed.token.started_at
    assert found.claimed_at is not None
    assert (claimed.id, claimed.token.worker, claimed.tenant_id, claimed.kind) == (job.id, WORKER, tenant.id, "reindex")
    assert (claimed.payload, claimed.priority, claimed.attempt, claimed.max_attempts) == ({"a": 1}, 3, 3, 5)
    assert (claimed.created_by, claimed.idempotency_key) == ("ada", "k")
    assert (claimed.available_at, claimed.created_at) == (found.available_at, found.created_at)
    assert not claimed.exhausted


def test_a_job_for_later_is_not_claimed(session: Session, repository: JobRepository) -> None:
    new_job(priority=1, available_at=datetime(2900, 1, 1, tzinfo=UTC))
    now = new_job(priority=5, available_at=due(0))
    assert [job.id for job in repository.claim(worker=WORKER, limit=5)] == [now.id]


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.PENDING])
def test_only_pending_jobs_are_claimed(session: Session, repository: JobRepository, status: JobStatus) -> None:
    new_job(**{status.value: True})
    assert repository.claim(worker=WORKER, limit=5) == []


def test_kinds_and_tenants_limit_what_is_claimed(session: Session, repository: JobRepository) -> None:
    tenant, other = new_tenant(), new_tenant()
    jobs = {
        (kind, owner.id): new_job(job_kind=kind, tenant_id=owner.id, available_at=due(0)).id
        for kind in ("email_send", "reindex", "virus_scan")
        for owner in (tenant, other)
    }
    session.commit()

    def taken(**limits: object) -> set[UUID]:
        found = {job.id for job in repository.claim(worker=WORKER, limit=10, **limits)}  # type: ignore[arg-type]
        session.rollback()
        return found

    assert taken() == set(jobs.values())
    assert taken(kinds=[]) == set()
    assert taken(tenants=[]) == set()
    assert taken(kinds={"reindex"}) == {jobs["reindex", tenant.id], jobs["reindex", other.id]}
    assert taken(tenants={other.id}) == {job for (_, owner), job in jobs.items() if owner == other.id}
    assert taken(kinds=["reindex", "virus_scan"], tenants=[tenant.id]) == {
        jobs["reindex", tenant.id],
        jobs["virus_scan", tenant.id],
    }
    assert taken(tenants=[SYSTEM_TENANT_ID]) == set()


def test_kinds_that_are_not_claimed_cost_no_attempt(session: Session, repository: JobRepository) -> None:
    job = new_job(job_kind="reindex")
    assert repository.claim(worker=WORKER, kinds=["email_send"]) == []
    assert row(session, job.id)["attempts"] == 0


# What makes the IN (... LIMIT ...) form take all twenty
HOSTILE = ("hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize")


@pytest.mark.parametrize("kinds", [None, ["email_send", "reindex"]])
@pytest.mark.parametrize("priorities", [1, 4, 20])
@pytest.mark.parametrize("planner", ["as it is", "hostile", "no index scans"])
def test_a_claim_takes_exactly_what_was_asked_whatever_the_plan(
    engine: Engine, session: Session, planner: str, priorities: int, kinds: list[str] | None
) -> None:
    for n in range(20):
        new_job(priority=n % priorities, job_kind=["email_send", "reindex"][n % 2])
    session.commit()
    off = {"as it is": (), "hostile": HOSTILE, "no index scans": ("indexscan", "indexonlyscan", "bitmapscan")}
    session.execute(text("ANALYZE mdm.job"))
    for name in off[planner]:
        session.execute(text(f"SET LOCAL enable_{name} = off"))
    taken = JobRepository(session).claim(worker=WORKER, limit=3, kinds=kinds)
    assert len(taken) == 3
    assert list(statuses(session).values()).count(JobStatus.RUNNING) == 3


def test_two_sessions_claim_different_jobs_without_waiting(engine: Engine, session: Session) -> None:
    jobs = [new_job(priority=n % 2, available_at=due(n)) for n in range(6)]
    session.commit()
    with Session(engine) as other:
        other.execute(text("SET LOCAL lock_timeout = '1s'"))
        first = JobRepository(session).claim(worker=WORKER, limit=4)
        second = JobRepository(other).claim(worker=OTHER_WORKER, limit=4)
        assert [job.id for job in first] == ids([jobs[0], jobs[2], jobs[4], jobs[1]])
        assert [job.id for job in second] == ids([jobs[3], jobs[5]])
        assert JobRepository(other).claim(worker=OTHER_WORKER, limit=4) == []
        session.rollback()
        assert len(JobRepository(other).claim(worker=OTHER_WORKER, limit=10)) == 4


def test_a_claim_that_is_rolled_back_never_was(session: Session) -> None:
    job = new_job()
    session.commit()
    claim(session)
    session.rollback()
    assert (row(session, job.id)["status"], row(session, job.id)["attempts"]) == (JobStatus.PENDING, 0)


def test_an_old_transaction_claims_what_has_become_due_since(engine: Engine, session: Session) -> None:
    session.execute(text("SELECT now()"))
    with Session(engine) as other, other.begin():
        other.add(Job(tenant_id=SYSTEM_TENANT_ID, job_kind="email_send"))
    assert claim(session)


def test_started_at_grows_even_if_the_clock_was_set_back(session: Session) -> None:
    job = new_job()
    future = datetime(2900, 1, 1, tzinfo=UTC)
    change(session, job.id, started_at=future)
    for _ in range(3):
        token = claim(session).token
        assert token.started_at > future
        future = token.started_at
        JobRepository(session).release([token])
    assert row(session, job.id)["claimed_at"] is None


def test_a_row_without_attempts_left_is_claimed_as_exhausted_and_stops_no_other(
    session: Session, repository: JobRepository
) -> None:
    spent = new_job(available_at=due(0), attempts=8)
    other = new_job(available_at=due(1))
    claimed = {job.id: job for job in repository.claim(worker=WORKER, limit=5)}
    assert claimed[spent.id].exhausted
    assert not claimed[other.id].exhausted


def test_a_job_whose_priority_is_being_changed_is_left_for_the_next_claim(engine: Engine, session: Session) -> None:
    job = new_job()
    session.commit()
    with Session(engine) as other:
        change(other, job.id, priority=1)
        assert JobRepository(session).claim(worker=WORKER) == []
        other.commit()
    assert claim(session).priority == 1


def test_a_claim_of_nothing_takes_nothing(session: Session, repository: JobRepository) -> None:
    new_job()
    assert repository.claim(worker=WORKER, limit=0) == []
