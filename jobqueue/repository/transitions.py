"""What an operator does to jobs: cancel, replay, discard; each guarded by the statuses that the verb leaves from.

The change and its audit rows are one statement.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Delete,
    Update,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key

from jobqueue.errors import DedupKeyTaken, JobNotFound, JobQueueError, TransitionRefused
from jobqueue.models import AuditEntry, Job
from jobqueue.models.checks import check_text
from jobqueue.models.job import JOB
from jobqueue.repository.selection import Which, ids_of, selected
from jobqueue.states import ACTIVE, DISCARDABLE, JobStatus, Transition, sources

_NOW: Final = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class Changed:
    """What a verb did: the ids it changed, and for each id that it refused why, as an exception to raise or show."""

    ids: list[UUID]
    refused: dict[UUID, JobQueueError] = field(default_factory=dict)


def cancel(session: Session, which: Which, *, actor: str, reason: str | None) -> Changed:
    statuses = sources(Transition.CANCEL)
    text = f"cancelled by {check_text('actor', actor)}"
    if reason is not None:
        text += f": {check_text('reason', reason)}"
    change = update(JOB).values(status=JobStatus.FAILED, completed_at=_NOW, last_error=text)
    ids = _apply(session, change, _picked(which, statuses), "cancel", actor)
    return Changed(ids, _refusals(session, which, ids, "cancelled", statuses))


def discard(session: Session, which: Which, *, actor: str) -> Changed:
    ids = _apply(session, delete(JOB), _picked(which, DISCARDABLE), "discard", actor)
    return Changed(ids, _refusals(session, which, ids, "discarded", DISCARDABLE))


def replay(session: Session, which: Which, *, actor: str) -> Changed:
    """Jobs with a ``dedup_key`` go one by one, each in a savepoint: one that cannot come back stops no other."""
    statuses = sources(Transition.REPLAY)
    change = update(JOB).values(
        status=JobStatus.PENDING,
        attempts=0,
        available_at=_NOW,
        completed_at=null(),
        claimed_by=null(),
        claimed_at=null(),
    )
    keyed = session.execute(selected(which, statuses, JOB.c.dedup_key, condition=JOB.c.dedup_key.is_not(None))).all()
    ids = _apply(session, change, _picked(which, statuses, JOB.c.dedup_key.is_(None)), "replay", actor)
    taken: dict[UUID, JobQueueError] = {}
    for row in keyed:
        try:
            with session.begin_nested():
                ids += _apply(session, change, _picked(row.id, statuses), "replay", actor)
        except IntegrityError as error:
            if "job_dedup_uk" not in str(error.orig):
                raise
            taken[row.id] = DedupKeyTaken(row.id, row.dedup_key, _holder(session, row.id))
    return Changed(ids, taken | _refusals(session, which, [*ids, *taken], "replayed", statuses))


def _picked(which: Which, statuses: Collection[JobStatus], condition: ColumnElement[bool] | None = None) -> CTE:
    """The jobs to change, locked: whoever else would change them waits, and then sees what became of them."""
    query = selected(which, statuses, JOB.c.status, condition=condition)
    return query.with_for_update().cte("picked").prefix_with("MATERIALIZED")


def _apply(session: Session, change: Update | Delete, picked: CTE, action: str, actor: str) -> list[UUID]:
    """Change the picked jobs and write an audit row for each, in one statement."""
    changed = (
        change.where(JOB.c.id == picked.c.id)
        .returning(JOB.c.id, JOB.c.tenant_id, JOB.c.job_kind, picked.c.status.label("was"))
        .cte("changed")
    )
    entries = insert(AuditEntry).from_select(
        ["tenant_id", "action", "job_id", "actor", "details"],
        select(
            changed.c.tenant_id,
            literal(action),
            changed.c.id,
            literal(check_text("actor", actor)),
            func.jsonb_build_object("kind", changed.c.job_kind, "was", changed.c.was),
        ),
    )
    ids: list[UUID] = list(session.execute(entries.returning(AuditEntry.__table__.c.job_id)).scalars())
    _reload(session, ids)
    return ids


def _reload(session: Session, ids: Collection[UUID]) -> None:
    """Bring ``Job`` objects that the session already holds up to date: the statements went past them."""
    loaded = [job_id for job_id in ids if identity_key(Job, job_id) in session.identity_map]
    if loaded:
        session.scalars(select(Job).where(Job.id.in_(loaded)).execution_options(populate_existing=True)).all()


def _refusals(
    session: Session, which: Which, settled: Collection[UUID], verb: str, statuses: Collection[JobStatus]
) -> dict[UUID, JobQueueError]:
    """Why ids that were named are not among the settled ones. (A filter names none: it takes what it finds.)"""
    missing = set(ids_of(which) or ()) - set(settled)
    if not missing:
        return {}
    found = dict(session.execute(select(JOB.c.id, JOB.c.status).where(JOB.c.id.in_(missing))).tuples().all())
    return {
        job_id: _refusal(job_id, found[job_id], verb, statuses) if job_id in found else JobNotFound(job_id)
        for job_id in sorted(missing)
    }


def _refusal(job_id: UUID, status: JobStatus, verb: str, statuses: Collection[JobStatus]) -> TransitionRefused:
    possible = " or ".join(sorted(statuses))
    return TransitionRefused(f"job {job_id} is {status.value}; only a {possible} job can be {verb}")


def _holder(session: Session, job_id: UUID) -> UUID | None:
    """The job that has the ``dedup_key`` of ``job_id`` now."""
    wanted = JOB.alias("wanted")
    return session.execute(
        select(JOB.c.id)
        .join(wanted, true())
        .where(
            wanted.c.id == job_id,
            JOB.c.tenant_id == wanted.c.tenant_id,
            JOB.c.job_kind == wanted.c.job_kind,
            JOB.c.dedup_key == wanted.c.dedup_key,
            JOB.c.status.in_(sorted(ACTIVE)),
        )
    ).scalar()
