"""What an operator does to jobs: cancel, replay, discard; each guarded by the statuses that the verb leaves from.

The change and its audit rows are one statement.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    Delete,
    Text,
    Update,
    Uuid,
    cast,
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
from jobqueue.models.job import BOUND, JOB
from jobqueue.repository.selection import JobFilter, Which, listed, selected
from jobqueue.states import ACTIVE, DISCARDABLE, JobStatus, Transition, sources

_NOW: Final = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class Changed:
    """What a verb did: the ids it changed, and for each id that it refused why, as an exception to raise or show."""

    ids: list[UUID]
    refused: dict[UUID, JobQueueError] = field(default_factory=dict)


def cancel(session: Session, which: Which, *, actor: str, reason: str | None) -> Changed:
    which, statuses = listed(which), sources(Transition.CANCEL)
    text = f"cancelled by {check_text('actor', actor)}"
    if reason is not None:
        text += f": {check_text('reason', reason)}"
    change = update(JOB).values(status=JobStatus.FAILED, completed_at=_NOW, last_error=text)
    ids = _apply(session, change, _picked(which, statuses), "cancel", actor, reason)
    return Changed(ids, _refusals(session, which, ids, "cancelled", statuses))


def discard(session: Session, which: Which, *, actor: str) -> Changed:
    which = listed(which)
    ids = _apply(session, delete(JOB), _picked(which, DISCARDABLE), "discard", actor)
    return Changed(ids, _refusals(session, which, ids, "discarded", DISCARDABLE))


def replay(session: Session, which: Which, *, actor: str) -> Changed:
    """Jobs with a ``dedup_key`` go one by one, each in a savepoint: one that cannot come back stops no other."""
    which, statuses = listed(which), sources(Transition.REPLAY)
    change = update(JOB).values(
        status=JobStatus.PENDING,
        attempts=0,
        available_at=_NOW,
        completed_at=null(),
        claimed_by=null(),
        claimed_at=null(),
    )
    # Picked once, so that a filter's limit counts for jobs with and without a key together
    query = selected(which, statuses, JOB.c.dedup_key).with_for_update(key_share=True)
    picked = session.execute(query, bind_arguments=BOUND).all()
    plain = [row.id for row in picked if row.dedup_key is None]
    ids = _apply(session, change, _picked(plain, statuses), "replay", actor)
    taken: dict[UUID, JobQueueError] = {}
    for row in picked:
        if row.dedup_key is None:
            continue
        try:
            with session.begin_nested():
                ids += _apply(session, change, _picked(row.id, statuses), "replay", actor)
        except IntegrityError as error:
            if "job_dedup_uk" not in str(error.orig):
                raise
            taken[row.id] = DedupKeyTaken(row.id, row.dedup_key, _holder(session, row.id))
    return Changed(ids, taken | _refusals(session, which, [*ids, *taken], "replayed", statuses))


def _picked(which: Which, statuses: Collection[JobStatus]) -> CTE:
    """The jobs to change, locked: whoever else would change them waits, and then sees what became of them."""
    query = selected(which, statuses, JOB.c.status)
    return query.with_for_update(key_share=True).cte("picked").prefix_with("MATERIALIZED")


def _apply(
    session: Session, change: Update | Delete, picked: CTE, action: str, actor: str, reason: str | None = None
) -> list[UUID]:
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
            func.jsonb_strip_nulls(
                func.jsonb_build_object("kind", changed.c.job_kind, "was", changed.c.was, "reason", cast(reason, Text))
            ),
        ),
    )
    ids: list[UUID] = list(session.execute(entries.returning(AuditEntry.__table__.c.job_id)).scalars())
    _reload(session, ids)
    return ids


def _reload(session: Session, ids: Collection[UUID]) -> None:
    """Bring ``Job`` objects that the session already holds up to date: the statements went past them."""
    loaded = {job_id: job for job_id in ids if (job := session.identity_map.get(identity_key(Job, job_id)))}
    if loaded:
        query = select(Job).where(Job.id == func.any(literal(list(loaded), ARRAY(Uuid()))))
        for job in session.scalars(query.execution_options(populate_existing=True)):
            del loaded[job.id]
        # Discarded ones have no row: on the next look the session notices
        for job in loaded.values():
            session.expire(job)


def _refusals(
    session: Session,
    which: list[UUID] | JobFilter,
    settled: Collection[UUID],
    verb: str,
    statuses: Collection[JobStatus],
) -> dict[UUID, JobQueueError]:
    """Why ids that were named are not among the settled ones. (A filter names none: it takes what it finds.)"""
    missing = set() if isinstance(which, JobFilter) else set(which) - set(settled)
    if not missing:
        return {}
    # As an array: with an IN, ids would be limited to what a statement takes as parameters
    query = select(JOB.c.id, JOB.c.status).where(JOB.c.id == func.any(literal(sorted(missing), ARRAY(Uuid()))))
    found = {row.id: row.status for row in session.execute(query, bind_arguments=BOUND)}
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
        ),
        bind_arguments=BOUND,
    ).scalar()
