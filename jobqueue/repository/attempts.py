"""What an attempt does to its own job: end, renew, release. Each is one UPDATE guarded by the attempt's whole token.

What it returns is what it changed. What is missing had lost its claim: the attempt that holds it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    DateTime,
    Interval,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.types import TypeEngine

from jobqueue.models import AuditEntry
from jobqueue.models.base import job_status_type
from jobqueue.models.job import BOUND, JOB
from jobqueue.repository.tokens import Ended, Outcome, Renewal, Token
from jobqueue.states import JobStatus, Transition

_NOW: Final = func.clock_timestamp()


def finish(session: Session, outcomes: Sequence[Outcome], *, skip_locked: bool = False) -> list[Ended]:
    """Most outcomes are done, without an audit row: they take the narrow statement, the others the wide one.

    With ``skip_locked``, jobs whose rows are locked are left as they are; ``still_held`` tells them from lost claims.
    """
    plain: list[Outcome] = []
    other: list[Outcome] = []
    for outcome in outcomes:
        is_plain = outcome.verb is Transition.DONE and JobStatus.DONE not in outcome.audit
        (plain if is_plain else other).append(outcome)
    ended: list[Ended] = []
    for worker, group in _by_worker(plain).items():
        ids = session.scalars(_FINISH_DONE[skip_locked], _tokens(worker, group), bind_arguments=BOUND).all()
        ended += [Ended(job_id, JobStatus.DONE) for job_id in ids]
    for worker, group in _by_worker(other).items():
        values = _tokens(worker, group) | _ends(group)
        rows = session.execute(_FINISH[skip_locked], values, bind_arguments=BOUND).all()
        _audit_ends(session, group, rows)
        ended += [Ended(row.id, row.status) for row in rows]
    return ended


def renew(session: Session, tokens: Collection[Token]) -> Renewal:
    renewed: set[UUID] = set()
    held: set[UUID] = set()
    for worker, group in _by_worker(tokens).items():
        renewed.update(session.scalars(_RENEW, _tokens(worker, group), bind_arguments=BOUND))
        missing = [token for token in group if token.id not in renewed]
        if missing:
            held.update(session.scalars(_HELD, _tokens(worker, missing), bind_arguments=BOUND))
    lost = {token.id for token in tokens} - renewed - held
    return Renewal(frozenset(renewed), frozenset(lost))


def release(session: Session, tokens: Collection[Token]) -> list[UUID]:
    released: list[UUID] = []
    for worker, group in _by_worker(tokens).items():
        released += session.scalars(_RELEASE, _tokens(worker, group), bind_arguments=BOUND)
    return released


def still_held(session: Session, tokens: Collection[Token]) -> set[UUID]:
    """Which of the attempts hold their claim now."""
    held: set[UUID] = set()
    for worker, group in _by_worker(tokens).items():
        held.update(session.scalars(_HELD, _tokens(worker, group), bind_arguments=BOUND))
    return held


def already_ended(session: Session, tokens: Collection[Token]) -> set[UUID]:
    """Which of the jobs rest as these attempts left them: ended, or returned to pending, by nobody else since.

    After a connection was lost in the middle of a commit, this tells "it was written" from "the claim was lost".
    """
    ended: set[UUID] = set()
    for worker, group in _by_worker(tokens).items():
        ended.update(session.scalars(_ENDED, _tokens(worker, group), bind_arguments=BOUND))
    return ended


_GIVEN: Final[dict[str, tuple[str, TypeEngine[Any]]]] = {
    "id": ("ids", Uuid()),
    "started_at": ("starts", DateTime(timezone=True)),
}
"""The attempts that a statement is about: column of the derived table -> array parameter and its element."""

_GIVEN_ENDS: Final[dict[str, tuple[str, TypeEngine[Any]]]] = _GIVEN | {
    "verb": ("verbs", Text()),
    "delay": ("delays", Interval()),
    "error": ("errors", Text()),
}


def _matching(
    given: Mapping[str, tuple[str, TypeEngine[Any]]],
    *conditions: ColumnElement[bool],
    lock: Callable[[Select[Any]], Select[Any]] = lambda job: job,
) -> Select[Any]:
    """The given attempts whose job is as ``conditions`` say, each found by the primary key.

    LATERAL with LIMIT 1, where a join would say the same: joined, the planner is free to read the whole table, or
    to compare each given attempt with each running job, and on a small or busy table it does.
    """
    attempt = (
        func.unnest(*(bindparam(name, type_=ARRAY(type_)) for name, type_ in given.values()))
        .table_valued(*(column(name, type_) for name, (_, type_) in given.items()))
        .render_derived(name="attempt")
    )
    job = select(JOB.c.id).where(JOB.c.id == attempt.c.id, JOB.c.started_at == attempt.c.started_at, *conditions)
    found = lock(job.limit(literal_column("1"))).lateral("found")
    return select(attempt).select_from(attempt.join(found, true()))


# As text, or the planner takes the "small" index of running jobs instead of the primary key, and walks all the
# dead entries in it
_status_text: Final[ColumnElement[str]] = cast(JOB.c.status, Text)
_HOLDS_CLAIM: Final = (_status_text == JobStatus.RUNNING.value, JOB.c.claimed_by == bindparam("worker"))


def _claims(given: Mapping[str, tuple[str, TypeEngine[Any]]], *, skip_locked: bool = False) -> CTE:
    """The given attempts that hold their claim, locked until the end of the transaction."""

    def lock(job: Select[Any]) -> Select[Any]:
        # NO KEY UPDATE, here and wherever a job is locked: a row of the application's that refers to the job must
        # not make it look busy, or an uncommitted one of the handler itself would keep its claim from being renewed
        return job.with_for_update(skip_locked=skip_locked, key_share=True)

    return _matching(given, *_HOLDS_CLAIM, lock=lock).cte("claims").prefix_with("MATERIALIZED")


def _among(claims: CTE) -> ColumnElement[bool]:
    """A condition for the primary key, whatever the planner thinks of a join with ``claims``."""
    return JOB.c.id == func.any(func.array(select(claims.c.id).scalar_subquery()))


def _finish_done(skip_locked: bool) -> ReturningUpdate[Any]:
    return (
        update(JOB)
        .where(_among(_claims(_GIVEN, skip_locked=skip_locked)))
        .values(status=JobStatus.DONE, completed_at=_NOW)
        .returning(JOB.c.id)
    )


def _finish(skip_locked: bool) -> ReturningUpdate[Any]:
    attempt = _claims(_GIVEN_ENDS, skip_locked=skip_locked)
    snoozed = attempt.c.verb == Transition.SNOOZE.value
    # Decided here, not by the worker: max_attempts may have changed since the claim
    retried = and_(attempt.c.verb == Transition.RETRY.value, JOB.c.attempts < JOB.c.max_attempts)
    returns = or_(snoozed, retried)
    return (
        update(JOB)
        .where(_among(attempt), JOB.c.id == attempt.c.id)
        .values(
            status=case(
                (returns, _status(JobStatus.PENDING)),
                (attempt.c.verb == Transition.DONE.value, _status(JobStatus.DONE)),
                (attempt.c.verb == Transition.FAILED.value, _status(JobStatus.FAILED)),
                else_=_status(JobStatus.DLQ),
            ),
            attempts=JOB.c.attempts - case((snoozed, func.least(JOB.c.attempts, 1)), else_=0),
            available_at=case((returns, _NOW + attempt.c.delay), else_=JOB.c.available_at),
            completed_at=case((returns, null()), else_=_NOW),
            last_error=func.coalesce(attempt.c.error, JOB.c.last_error),
            claimed_by=case((returns, null()), else_=JOB.c.claimed_by),
            claimed_at=case((returns, null()), else_=JOB.c.claimed_at),
        )
        .returning(JOB.c.id, JOB.c.started_at, JOB.c.status, JOB.c.tenant_id, JOB.c.job_kind, JOB.c.attempts)
    )


def _renew() -> ReturningUpdate[Any]:
    # SKIP LOCKED: one locked row (its own commit in progress, a curious operator) must not hold up the others
    claims = _claims(_GIVEN, skip_locked=True)
    return update(JOB).where(_among(claims)).values(claimed_at=_NOW).returning(JOB.c.id)


def _release() -> ReturningUpdate[Any]:
    return (
        update(JOB)
        .where(_among(_claims(_GIVEN)))
        .values(
            status=JobStatus.PENDING,
            attempts=func.greatest(JOB.c.attempts - 1, 0),
            claimed_by=null(),
            claimed_at=null(),
        )
        .returning(JOB.c.id)
    )


def _status(status: JobStatus) -> ColumnElement[JobStatus]:
    return cast(status.value, job_status_type)


_FINISH_DONE: Final = {skip_locked: _finish_done(skip_locked) for skip_locked in (False, True)}
_FINISH: Final = {skip_locked: _finish(skip_locked) for skip_locked in (False, True)}
_RENEW: Final = _renew()
_RELEASE: Final = _release()
_HELD: Final = _matching(_GIVEN, *_HOLDS_CLAIM)
# started_at is kept when a job returns to pending, so that it names the last attempt
_ENDED: Final = _matching(_GIVEN, _status_text != JobStatus.RUNNING.value)


def _by_worker(items: Collection[Any]) -> dict[str, list[Any]]:
    """Tokens, or outcomes, by worker (nearly always one), in the order of their ids against deadlocks."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        token = item if isinstance(item, Token) else item.token
        groups.setdefault(token.worker, []).append(item)
    for group in groups.values():
        group.sort(key=lambda item: (item if isinstance(item, Token) else item.token).id.int)
    return groups


def _tokens(worker: str, group: Sequence[Token | Outcome]) -> dict[str, Any]:
    tokens = [item if isinstance(item, Token) else item.token for item in group]
    return {
        "worker": worker,
        "ids": [token.id for token in tokens],
        "starts": [token.started_at for token in tokens],
    }


def _ends(group: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "verbs": [outcome.verb.value for outcome in group],
        "delays": [outcome.delay for outcome in group],
        "errors": [outcome.error for outcome in group],
    }


def _audit_ends(session: Session, outcomes: Sequence[Outcome], rows: Sequence[Any]) -> None:
    # Not by id alone: a batch may hold a late attempt of a job beside the one that has the claim
    by_attempt = {(outcome.token.id, outcome.token.started_at): outcome for outcome in outcomes}
    ends = [(row, by_attempt[row.id, row.started_at]) for row in rows]
    entries = [
        {
            "tenant_id": row.tenant_id,
            "action": f"job_{row.status.value}",
            "job_id": row.id,
            "actor": outcome.token.worker,
            "details": {"kind": row.job_kind, "attempts": row.attempts, "error": outcome.error},
        }
        for row, outcome in ends
        if row.status in outcome.audit
    ]
    if entries:
        session.execute(insert(AuditEntry), entries)
