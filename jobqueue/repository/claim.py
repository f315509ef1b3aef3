"""Claiming: the one statement that takes pending jobs for a worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Integer,
    Select,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import ReturningUpdate

from jobqueue.errors import InvalidJob
from jobqueue.models import JobKindType
from jobqueue.models.base import job_status_type
from jobqueue.models.checks import check_text
from jobqueue.models.job import BOUND, JOB
from jobqueue.models.known_kinds import require_kinds
from jobqueue.payload import read_json
from jobqueue.repository.tokens import Token
from jobqueue.states import JobStatus

_job = JOB.c
_MAX_INTEGER: Final = 2_147_483_647


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job as its attempt sees it."""

    token: Token
    tenant_id: UUID
    kind: str
    payload_json: str
    priority: int
    available_at: datetime
    attempt: int
    max_attempts: int
    created_at: datetime
    created_by: str | None
    idempotency_key: str | None

    @property
    def id(self) -> UUID:
        return self.token.id

    @property
    def payload(self) -> dict[str, Any]:
        """The payload, decoded at each use.

        :raises PayloadError: if it was written past jobqueue and Python cannot read it.
        """
        return read_json(self.payload_json)

    @property
    def exhausted(self) -> bool:
        """The job had no attempts left before this claim, as when its row was changed by hand: do not run it."""
        return self.attempt > self.max_attempts


def claim(
    session: Session,
    *,
    worker: str,
    limit: int,
    kinds: Collection[str] | None,
    tenants: Collection[UUID] | None,
) -> list[Claimed]:
    if type(limit) is not int or limit < 0:
        raise InvalidJob(f"limit must be an int of at least 0, got {limit!r}")
    parameters: dict[str, Any] = {"worker": check_text("worker", worker), "limit": limit}
    if kinds is not None:
        require_kinds(session, kinds)
        parameters["kinds"] = sorted(kinds)
    if tenants is not None:
        parameters["tenants"] = sorted(tenants)
    rows = session.execute(_STATEMENTS[kinds is not None, tenants is not None], parameters, bind_arguments=BOUND).all()
    claimed = [Claimed(Token(row.id, worker, row.started_at), *row[2:]) for row in rows]
    # RETURNING has no order of its own
    claimed.sort(key=lambda job: (job.priority, job.available_at, job.id))
    return claimed


def _statement(by_kind: bool, by_tenant: bool) -> ReturningUpdate[Any]:
    due = _due(by_kind, by_tenant)
    # MATERIALIZED: inlined, some plans run the sub-select once per row of the outer side and lock (and take)
    # more rows than asked for
    picked = due.cte("picked").prefix_with("MATERIALIZED")
    now = func.clock_timestamp()
    return (
        update(JOB)
        # Not a join, for which the planner may read the whole table: this goes by the primary key
        .where(_job.id == func.any(func.array(select(picked.c.id).scalar_subquery())))
        .values(
            status=JobStatus.RUNNING,
            claimed_by=bindparam("worker"),
            claimed_at=now,
            # Later than any earlier attempt's, even if the clock was set back: it is part of the fencing token
            started_at=func.greatest(now, _job.started_at + text("interval '1 microsecond'")),
            # Not beyond what the type holds, whatever somebody wrote there: it would fail the claim of the others
            attempts=func.least(_job.attempts, _MAX_INTEGER - 1) + 1,
        )
        .returning(
            _job.id,
            _job.started_at,
            _job.tenant_id,
            _job.job_kind,
            # As text: one payload that Python cannot read must not fail the claim of the others
            cast(_job.payload, Text),
            _job.priority,
            _job.available_at,
            _job.attempts,
            _job.max_attempts,
            _job.created_at,
            _job.created_by,
            _job.idempotency_key,
        )
    )


def _due(by_kind: bool, by_tenant: bool) -> Select[Any]:
    """The ids of due jobs, locked, most important first.

    A walk over the distinct priorities with a lateral select for each: it skips jobs that are delayed at a
    more important priority, which a plain ORDER BY priority, available_at would read one by one.
    """
    job = JOB.alias("candidate")
    filters: list[ColumnElement[bool]] = []
    if by_kind:
        filters.append(job.c.job_kind == func.any(bindparam("kinds", type_=ARRAY(JobKindType()))))
    if by_tenant:
        filters.append(job.c.tenant_id == func.any(bindparam("tenants", type_=ARRAY(Uuid()))))
    priorities = _priorities()
    due = (
        select(job.c.id)
        .where(
            job.c.status == _PENDING,
            job.c.priority == priorities.c.priority,
            # Stable within the statement, so that it can be an index condition, but not frozen for the transaction
            job.c.available_at <= func.statement_timestamp(),
            *filters,
        )
        .order_by(job.c.available_at)
        .limit(bindparam("limit", type_=Integer))
        .with_for_update(skip_locked=True, key_share=True)
        .lateral("due")
    )
    return (
        select(due.c.id)
        .select_from(priorities.join(due, literal(True)))
        .where(priorities.c.priority.is_not(None))
        .limit(bindparam("limit", type_=Integer))
    )


def _priorities() -> Any:
    """The distinct priorities of pending jobs, ascending, one index descent each; ends with a NULL."""
    job = JOB.alias("first")
    following = JOB.alias("following")
    walk = select(
        select(job.c.priority)
        .where(job.c.status == _PENDING)
        .order_by(job.c.status, job.c.priority)
        .limit(1)
        .scalar_subquery()
        .label("priority")
    ).cte("priorities", recursive=True)
    step = (
        select(following.c.priority)
        .where(
            following.c.status == _PENDING,
            # A row comparison. With `status = 'pending' AND priority > p` the planner drops the first condition
            # as implied by the partial index, and with it the way to descend
            tuple_(following.c.status, following.c.priority) > tuple_(cast(_PENDING, job_status_type), walk.c.priority),
        )
        .order_by(following.c.status, following.c.priority)
        .limit(1)
        .scalar_subquery()
    )
    return walk.union_all(select(step).where(walk.c.priority.is_not(None)))


# A literal, not a parameter: a generic plan must see that the partial indexes apply
_PENDING = text("'pending'")

_STATEMENTS = {(kinds, tenants): _statement(kinds, tenants) for kinds in (False, True) for tenants in (False, True)}
