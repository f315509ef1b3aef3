"""Ends of an attempt: what each verb leaves behind, and what the database decides rather than the worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobqueue import AuditEntry, JobRepository
from jobqueue.repository import Outcome
from jobqueue.states import ENDED, JobStatus, Transition
from tests.repository.steps import MINUTE, OTHER_WORKER, WORKER, audit, change, claim, end, row, statuses
from tests.support.factories import new_job

ENDS = {
    Transition.DONE: JobStatus.DONE,
    Transition.RETRY: JobStatus.PENDING,
    Transition.SNOOZE: JobStatus.PENDING,
    Transition.FAILED: JobStatus.FAILED,
    Transition.DLQ: JobStatus.DLQ,
}


def clock(session: Session) -> datetime:
    now: datetime = session.scalars(text("SELECT clock_timestamp()")).one()
    return now


@pytest.mark.parametrize(("verb", "status"), ENDS.items())
def test_each_verb_leaves_its_status(session: Session, verb: Transition, status: JobStatus) -> None:
    job = new_job(last_error="earlier")
    claimed, before = claim(session), clock(session)
    error = None if verb in (Transition.DONE, Transition.SNOOZE) else "what went wrong"
    assert end(session, claimed.token, verb, error=error, delay=MINUTE) is status

    found = row(session, job.id)
    assert found["status"] is status
    assert found["attempts"] == (0 if verb is Transition.SNOOZE else 1)
    assert found["last_error"] == (error or "earlier")
    assert found["started_at"] == claimed.token.started_at
    if status in ENDED:
        assert before <= found["completed_at"] <= clock(session)
        assert found["claimed_by"] == WORKER
        assert found["available_at"] == job.available_at
    else:
        assert (found["completed_at"], found["claimed_by"], found["claimed_at"]) == (None, None, None)
        assert before + MINUTE <= found["available_at"] <= clock(session) + MINUTE


def test_the_last_retry_ends_in_dlq(session: Session) -> None:
    job = new_job(max_attempts=3)
    ends = []
    for attempt in (1, 2, 3):
        claimed = claim(session)
        assert claimed.attempt == attempt
        ends.append(end(session, claimed.token, Transition.RETRY, error=f"attempt {attempt}"))
    assert ends == [JobStatus.PENDING, JobStatus.PENDING, JobStatus.DLQ]
    assert row(session, job.id)["last_error"] == "attempt 3"
    assert row(session, job.id)["attempts"] == 3


@pytest.mark.parametrize(("limit", "status"), [(1, JobStatus.DLQ), (2, JobStatus.PENDING)])
def test_max_attempts_counts_as_it_is_at_the_end_of_the_attempt(
    session: Session, limit: int, status: JobStatus
) -> None:
    job = new_job(max_attempts=8 if limit == 1 else 1)
    token = claim(session).token
    change(session, job.id, max_attempts=limit)
    assert end(session, token, Transition.RETRY, error="failed") is status


def test_max_attempts_below_what_was_used_stops_nothing_but_the_job(session: Session) -> None:
    job = new_job(attempts=5)
    token = claim(session).token
    change(session, job.id, max_attempts=2)
    assert end(session, token, Transition.RETRY, error="failed") is JobStatus.DLQ
    assert row(session, job.id)["attempts"] == 6


def test_snoozing_for_ever_uses_no_attempt(session: Session) -> None:
    job = new_job(max_attempts=1)
    for _ in range(5):
        assert end(session, claim(session).token, Transition.SNOOZE) is JobStatus.PENDING
    assert row(session, job.id)["attempts"] == 0


def test_a_snooze_never_counts_below_zero(session: Session) -> None:
    job = new_job()
    token = claim(session).token
    change(session, job.id, attempts=0)
    assert end(session, token, Transition.SNOOZE) is JobStatus.PENDING
    assert row(session, job.id)["attempts"] == 0


def test_the_longest_delay_is_stored(session: Session) -> None:
    job = new_job()
    end(session, claim(session).token, Transition.SNOOZE, delay=timedelta(days=36_525))
    assert row(session, job.id)["available_at"] > datetime(2100, 1, 1, tzinfo=UTC)


def test_a_batch_ends_each_attempt_in_its_own_way(session: Session, repository: JobRepository) -> None:
    jobs = [new_job() for _ in range(10)]
    tokens = {
        claimed.id: claimed.token
        for claimed in repository.claim(worker=WORKER, limit=5) + repository.claim(worker=OTHER_WORKER, limit=5)
    }
    verbs = list(ENDS) * 2
    outcomes = [Outcome(tokens[job.id], verb, error=f"{verb}") for job, verb in zip(jobs, verbs, strict=True)]
    ended = repository.finish(outcomes[::-1])
    assert {end.id: end.status for end in ended} == statuses(session)
    assert [statuses(session)[job.id] for job in jobs] == [ENDS[verb] for verb in verbs]
    errors = [row(session, job.id)["last_error"] for job in jobs]
    assert errors == [None if verb is Transition.DONE else f"{verb}" for verb in verbs]


def test_an_empty_batch_is_nothing(repository: JobRepository) -> None:
    assert repository.finish([]) == []
    assert repository.release([]) == []
    assert repository.renew([]).lost == frozenset()


@pytest.mark.parametrize("verb", [verb for verb in Transition if verb not in ENDS])
def test_what_is_no_end_of_an_attempt_is_refused(session: Session, verb: Transition) -> None:
    new_job()
    with pytest.raises(ValueError, match="cannot end"):
        Outcome(claim(session).token, verb)


AUDITS: list[tuple[Transition, dict[str, Any], list[str]]] = [
    (Transition.DONE, {}, []),
    (Transition.DONE, {"audit": frozenset({JobStatus.DONE})}, ["job_done"]),
    (Transition.DONE, {"audit": frozenset(JobStatus)}, ["job_done"]),
    (Transition.DLQ, {}, ["job_dlq"]),
    (Transition.DLQ, {"audit": frozenset({JobStatus.DONE})}, []),
    (Transition.FAILED, {}, []),
    (Transition.RETRY, {}, []),
]


@pytest.mark.parametrize(("verb", "options", "actions"), AUDITS)
def test_an_end_is_audited_if_the_outcome_asks_for_it(
    session: Session, verb: Transition, options: dict[str, Any], actions: list[str]
) -> None:
    job = new_job(max_attempts=5)
    end(session, claim(session).token, verb, **options)
    assert audit(session) == [(action, job.id, WORKER) for action in actions]


def test_the_audit_row_of_a_dead_letter_says_why(session: Session) -> None:
    new_job(max_attempts=1)
    end(session, claim(session).token, Transition.RETRY, error="it broke")
    entry = session.query(AuditEntry).one()
    assert entry.details == {"kind": "email_send", "attempts": 1, "error": "it broke"}


def test_the_audit_row_goes_with_its_transaction(session: Session) -> None:
    job = new_job()
    session.commit()
    token = claim(session).token
    session.commit()
    end(session, token, Transition.DLQ, error="dead")
    session.rollback()
    assert audit(session) == []
    assert row(session, job.id)["status"] is JobStatus.RUNNING
