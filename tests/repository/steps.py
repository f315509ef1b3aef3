"""Small steps that most tests of the repository take, and what they look at afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobqueue import AuditEntry, Job, JobRepository
from jobqueue.models.job import JOB
from jobqueue.repository import Claimed, Outcome, Token
from jobqueue.states import JobStatus, Transition

WORKER = "host/1/00000000-0000-4000-8000-000000000001"
OTHER_WORKER = "host/2/00000000-0000-4000-8000-000000000002"
MINUTE = timedelta(minutes=1)


def claim(session: Session, worker: str = WORKER) -> Claimed:
    (claimed,) = JobRepository(session).claim(worker=worker)
    return claimed


def end(session: Session, token: Token, verb: Transition, **options: Any) -> JobStatus | None:
    """The status in which the attempt left its job; None if its claim was lost."""
    ended = JobRepository(session).finish([Outcome(token, verb, **options)])
    return ended[0].status if ended else None


def row(session: Session, job_id: UUID) -> dict[str, Any]:
    """The job as it is in the database."""
    return dict(session.execute(select(JOB).where(JOB.c.id == job_id)).one()._mapping)


def change(session: Session, job_id: UUID, **values: Any) -> None:
    """Change the row by hand."""
    session.execute(update(JOB).where(JOB.c.id == job_id).values(**values))


def statuses(session: Session) -> dict[UUID, JobStatus]:
    return {row.id: row.status for row in session.execute(select(JOB.c.id, JOB.c.status))}


def go_stale(session: Session, job_id: UUID) -> None:
    change(session, job_id, claimed_at=JOB.c.claimed_at - timedelta(days=1))


def audit(session: Session) -> list[tuple[str, UUID | None, str | None]]:
    """Action, job and actor of each audit row."""
    entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id))
    return [(entry.action, entry.job_id, entry.actor) for entry in entries]


def fresh(session: Session, job_id: UUID) -> Job:
    return session.get_one(Job, job_id, populate_existing=True)
