"""Keeping a claim, and giving it back."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from jobqueue import JobRepository
from jobqueue.states import JobStatus
from tests.repository.steps import MINUTE, WORKER, change, claim, go_stale, row
from tests.support.factories import new_job


def test_renewing_moves_claimed_at_and_nothing_else(session: Session, repository: JobRepository) -> None:
    job = new_job()
    token = claim(session).token
    go_stale(session, job.id)
    before = row(session, job.id)
    assert repository.renew([token]).renewed == {job.id}
    after = row(session, job.id)
    assert after.pop("claimed_at") > before.pop("claimed_at")
    assert after == before
    assert repository.recover_stale(MINUTE) == []


def test_a_locked_row_is_neither_renewed_nor_lost_and_holds_up_no_other(engine: Engine, session: Session) -> None:
    for _ in range(3):
        new_job()
    tokens = [claimed.token for claimed in JobRepository(session).claim(worker=WORKER, limit=3)]
    session.commit()
    locked, *others = tokens
    with Session(engine) as operator:
        change(operator, locked.id, last_error="looked at")
        session.execute(text("SET LOCAL lock_timeout = '1s'"))
        renewal = JobRepository(session).renew(tokens)
        assert renewal.renewed == {token.id for token in others}
        assert renewal.lost == frozenset()


def test_lost_claims_are_told_from_held_ones(session: Session, repository: JobRepository) -> None:
    jobs = [new_job() for _ in range(3)]
    tokens = [claimed.token for claimed in repository.claim(worker=WORKER, limit=3)]
    repository.release([token for token in tokens if token.id == jobs[0].id])
    session.delete(jobs[1])
    session.flush()
    renewal = repository.renew(tokens)
    assert renewal.renewed == {jobs[2].id}
    assert renewal.lost == {jobs[0].id, jobs[1].id}


def test_a_released_job_is_pending_with_its_attempt_given_back(session: Session, repository: JobRepository) -> None:
    job = new_job(attempts=2, last_error="earlier")
    token = claim(session).token
    assert repository.release([token]) == [job.id]
    found = row(session, job.id)
    assert (found["status"], found["attempts"], found["last_error"]) == (JobStatus.PENDING, 2, "earlier")
    assert (found["claimed_by"], found["claimed_at"], found["available_at"]) == (None, None, job.available_at)


def test_releasing_never_counts_below_zero(session: Session, repository: JobRepository) -> None:
    job = new_job()
    token = claim(session).token
    change(session, job.id, attempts=0)
    repository.release([token])
    assert row(session, job.id)["attempts"] == 0


@pytest.mark.parametrize("count", [1, 50])
def test_many_are_renewed_and_released_at_once(session: Session, repository: JobRepository, count: int) -> None:
    for _ in range(count):
        new_job()
    tokens = [claimed.token for claimed in repository.claim(worker=WORKER, limit=count)]
    assert repository.renew(tokens).renewed == {token.id for token in tokens}
    assert set(repository.release(tokens[::-1])) == {token.id for token in tokens}
