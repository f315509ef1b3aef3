"""The worker's own row, and the claims it may hold without knowing."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ARRAY, Uuid, bindparam, delete, func, null, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobqueue.models import WorkerRecord
from jobqueue.models.job import JOB
from jobqueue.states import JobStatus


def report_alive(session: Session, record: dict[str, Any]) -> None:
    """Write the worker's row, or renew ``seen_at`` (the row may have been cleaned up meanwhile)."""
    now = func.clock_timestamp()
    statement = insert(WorkerRecord).values(**record)
    session.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"seen_at": now}))


def report_gone(session: Session, worker: str) -> None:
    session.execute(delete(WorkerRecord).where(WorkerRecord.id == worker))


def forget_dead(session: Session, unseen_for: timedelta) -> None:
    """Remove the rows of workers that ended without saying so."""
    session.execute(delete(WorkerRecord).where(WorkerRecord.seen_at < func.statement_timestamp() - unseen_for))


def release_strays(session: Session, worker: str, known: Collection[UUID]) -> list[UUID]:
    """Return to pending what ``worker`` claimed but does not know of, with the attempt given back.

    A claim whose connection broke during the commit may have been committed all the same.
    """
    return list(session.scalars(_RELEASE_STRAYS, {"worker": worker, "known": sorted(known)}))


_RELEASE_STRAYS: Final = (
    update(JOB)
    .where(
        JOB.c.status == text("'running'"),
        JOB.c.claimed_by == bindparam("worker"),
        JOB.c.id != func.all(bindparam("known", type_=ARRAY(Uuid()))),
    )
    .values(
        status=JobStatus.PENDING,
        attempts=func.greatest(JOB.c.attempts - 1, 0),
        claimed_by=null(),
        claimed_at=null(),
    )
    .returning(JOB.c.id)
)
