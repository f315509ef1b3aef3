"""Reads for people: which jobs there are, what is known of one, and how the queue is doing. Changes nothing.

A payload is read only when it is asked for: it may be large, and it is nobody's business but the handler's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Text, cast, exists, false, func, literal, or_, select
from sqlalchemy.orm import Session, defer
from sqlalchemy.sql.selectable import Subquery

from jobqueue.models import AuditEntry, EmailLog, Job, WorkerRecord
from jobqueue.models.job import JOB
from jobqueue.repository.selection import JobFilter, Which, selected
from jobqueue.states import ACTIVE, JobStatus

LIVE: Final = timedelta(minutes=2)
"""A worker that was not seen for longer counts as gone."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs of a kind are in a status."""

    kind: str
    status: JobStatus
    count: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a verb would take, as a filter finds it now."""

    counts: Sequence[Count]
    keys_in_use: int
    """How many of the jobs could not go back to pending, since an active job has their ``dedup_key``."""

    @property
    def total(self) -> int:
        return sum(count.count for count in self.counts)


@dataclass(frozen=True, slots=True)
class History:
    """All that is known of one job. ``job`` is None when it was discarded or purged; its audit rows remain."""

    job: Job | None
    audit: Sequence[AuditEntry]
    emails: Sequence[EmailLog]


@dataclass(frozen=True, slots=True)
class Due:
    """The pending jobs of a kind whose time has come."""

    kind: str
    count: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Stats:
    """How the queue is doing, read at ``at``."""

    at: datetime
    counts: Sequence[Count]
    due: Sequence[Due]
    stale: int
    workers: Sequence[WorkerRecord]
    unhandled: Sequence[tuple[str, int]]
    """Kinds with pending jobs that no live worker takes, and how many of these jobs there are."""


def now(session: Session) -> datetime:
    """The database's clock, by which all times of a job are set."""
    clock: datetime = session.scalars(select(func.clock_timestamp())).one()
    return clock


def list_jobs(session: Session, which: JobFilter) -> list[Job]:
    """The jobs that match, newest first, without their payloads.

    By id, which is time-ordered and has an index; ``created_at`` has none. Ids that the server made, for rows
    that were inserted by hand, have no such order.
    """
    query = select(Job).where(*which.conditions()).order_by(Job.id.desc()).limit(which.limit)
    return list(session.scalars(query.options(_WITHOUT_PAYLOAD)))


def history(session: Session, job_id: UUID, *, payload: bool = False) -> History:
    """One job with its audit rows and mails, oldest first; its payload only if it is asked for."""
    query = select(Job).where(Job.id == job_id)
    return History(
        session.scalars(query if payload else query.options(_WITHOUT_PAYLOAD)).one_or_none(),
        session.scalars(select(AuditEntry).where(AuditEntry.job_id == job_id).order_by(AuditEntry.id)).all(),
        session.scalars(select(EmailLog).where(EmailLog.job_id == job_id).order_by(EmailLog.id)).all(),
    )


def matching_ids(session: Session, ids: Collection[UUID], which: JobFilter) -> list[UUID]:
    """Those of the ids that the filter matches too."""
    return list(session.scalars(select(Job.id).where(Job.id.in_(ids), *which.conditions())))


def existing_ids(session: Session, ids: Collection[UUID]) -> set[UUID]:
    """Those of the ids that belong to a job."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(ids))))


def preview(session: Session, which: Which, statuses: Collection[JobStatus], *, to_pending: bool = False) -> Preview:
    """Count what a verb that leaves from ``statuses`` would take; ``to_pending`` looks for keys in use too."""
    jobs = _would_take(which, statuses)
    blocked: ColumnElement[bool] = _key_in_use(jobs) if to_pending else false()
    rows = session.execute(
        select(jobs.c.job_kind, jobs.c.status, func.count(), func.count().filter(blocked))
        .group_by(jobs.c.job_kind, jobs.c.status)
        .order_by(jobs.c.job_kind, jobs.c.status)
    ).all()
    return Preview([Count(kind, status, count) for kind, status, count, _ in rows], sum(row[3] for row in rows))


def stats(session: Session, *, stale_after: timedelta) -> Stats:
    """Count the queue. Reads the whole of ``ix_job_tenant_kind``, and no rows where the table is well vacuumed."""
    return Stats(
        at=now(session),
        counts=_counts(session),
        due=_due(session),
        stale=_stale(session, stale_after),
        workers=session.scalars(
            select(WorkerRecord).where(_is_live()).order_by(WorkerRecord.started_at, WorkerRecord.id)
        ).all(),
        unhandled=_unhandled(session),
    )


_WITHOUT_PAYLOAD: Final = defer(Job.payload, raiseload=True)


def _would_take(which: Which, statuses: Collection[JobStatus]) -> Subquery:
    query = selected(which, statuses, JOB.c.tenant_id, JOB.c.job_kind, JOB.c.status, JOB.c.dedup_key)
    if not isinstance(which, JobFilter) or which.limit is None:
        # The order only decides what a limit takes; without one it would sort for nothing
        query = query.order_by(None)
    return query.subquery("jobs")


def _key_in_use(jobs: Subquery) -> ColumnElement[bool]:
    holder = JOB.alias("holder")
    return exists().where(
        holder.c.tenant_id == jobs.c.tenant_id,
        holder.c.job_kind == jobs.c.job_kind,
        holder.c.dedup_key == jobs.c.dedup_key,
        holder.c.status.in_(sorted(ACTIVE)),
    )


def _counts(session: Session) -> list[Count]:
    query = select(JOB.c.job_kind, JOB.c.status, func.count()).group_by(JOB.c.job_kind, JOB.c.status)
    return [Count(*row) for row in session.execute(query.order_by(JOB.c.job_kind, JOB.c.status))]


def _due(session: Session) -> list[Due]:
    query = (
        select(JOB.c.job_kind, func.count(), func.min(JOB.c.available_at))
        .where(JOB.c.status == JobStatus.PENDING, JOB.c.available_at <= func.statement_timestamp())
        .group_by(JOB.c.job_kind)
    )
    return [Due(*row) for row in session.execute(query.order_by(JOB.c.job_kind))]


def _stale(session: Session, stale_after: timedelta) -> int:
    query = select(func.count()).where(
        JOB.c.status == JobStatus.RUNNING, JOB.c.claimed_at < func.statement_timestamp() - stale_after
    )
    return session.scalars(query).one()


def _unhandled(session: Session) -> list[tuple[str, int]]:
    """A worker may be limited to tenants, so what it leaves is decided per kind and tenant."""
    pending = (
        select(JOB.c.tenant_id, JOB.c.job_kind, func.count().label("count"))
        .where(JOB.c.status == JobStatus.PENDING)
        .group_by(JOB.c.tenant_id, JOB.c.job_kind)
        .subquery("pending")
    )
    taken = exists().where(
        _is_live(),
        cast(pending.c.job_kind, Text) == func.any(WorkerRecord.kinds),
        or_(WorkerRecord.tenants.is_(None), pending.c.tenant_id == func.any(WorkerRecord.tenants)),
    )
    query = select(pending.c.job_kind, func.sum(pending.c.count)).where(~taken).group_by(pending.c.job_kind)
    return [(kind, int(count)) for kind, count in session.execute(query.order_by(pending.c.job_kind))]


def _is_live() -> ColumnElement[bool]:
    return WorkerRecord.seen_at > func.statement_timestamp() - literal(LIVE)


__all__ = [
    "LIVE",
    "Count",
    "Due",
    "History",
    "Preview",
    "Stats",
    "existing_ids",
    "history",
    "list_jobs",
    "matching_ids",
    "now",
    "preview",
    "stats",
]
