"""Recovery: what becomes of jobs whose worker was lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Integer, Interval, bindparam, case, func, insert, select, text, update
from sqlalchemy.orm import Session

from jobqueue.models import AuditEntry
from jobqueue.models.job import BOUND, JOB
from jobqueue.states import JobStatus

_NOW: Final = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class Recovered:
    """A job that was taken from a lost worker, and the status it has now: pending or dlq."""

    id: UUID
    tenant_id: UUID
    kind: str
    status: JobStatus
    attempts: int
    worker: str


def recover_stale(
    session: Session, stale_after: timedelta, *, limit: int, unaudited: Collection[str]
) -> list[Recovered]:
    rows = session.execute(_RECOVER, {"stale_after": stale_after, "limit": limit}, bind_arguments=BOUND)
    recovered = [Recovered(*row) for row in rows]
    entries = [
        {
            "tenant_id": job.tenant_id,
            "action": "job_dlq",
            "job_id": job.id,
            "actor": job.worker,
            "details": {"kind": job.kind, "attempts": job.attempts, "error": "worker lost"},
        }
        for job in recovered
        if job.status is JobStatus.DLQ and job.kind not in unaudited
    ]
    if entries:
        session.execute(insert(AuditEntry), entries)
    return recovered


def _statement() -> Any:
    stale_after = bindparam("stale_after", type_=Interval)
    stale = (
        select(JOB.c.id, JOB.c.claimed_by)
        .where(
            JOB.c.status == text("'running'"),
            # Stable within the statement, so that it can be an index condition
            JOB.c.claimed_at < func.statement_timestamp() - stale_after,
        )
        .order_by(JOB.c.claimed_at)
        .limit(bindparam("limit", type_=Integer))
        # SKIP LOCKED: a row that is locked is being finished, renewed or recovered by somebody at this moment
        .with_for_update(skip_locked=True, key_share=True)
        .cte("stale")
        .prefix_with("MATERIALIZED")
    )
    left = JOB.c.attempts < JOB.c.max_attempts
    return (
        update(JOB)
        # By the primary key first: for the join alone the planner may read the whole table
        .where(JOB.c.id == func.any(func.array(select(stale.c.id).scalar_subquery())), JOB.c.id == stale.c.id)
        .values(
            status=case((left, text("'pending'::mdm.job_status")), else_=text("'dlq'::mdm.job_status")),
            last_error=func.concat(
                "worker lost: ",
                func.left(stale.c.claimed_by, 500),
                " did not renew its claim during attempt ",
                JOB.c.attempts,
                "; it crashed, was killed or could not reach the database",
            ),
            completed_at=case((left, None), else_=_NOW),
            claimed_by=case((left, None), else_=JOB.c.claimed_by),
            claimed_at=case((left, None), else_=JOB.c.claimed_at),
        )
        .returning(JOB.c.id, JOB.c.tenant_id, JOB.c.job_kind, JOB.c.status, JOB.c.attempts, stale.c.claimed_by)
    )


_RECOVER: Final = _statement()
