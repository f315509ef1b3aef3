"""Which jobs an operator means: one id, several ids, or a filter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, Select, Text, Uuid, cast, func, literal, select
from sqlalchemy.sql import ColumnElement

from jobqueue.errors import InvalidJob
from jobqueue.models.checks import check_text
from jobqueue.models.job import JOB
from jobqueue.states import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Jobs by what they have in common; what is left at None does not count.

    ``older_than`` counts from ``created_at``. ``error`` is a text that ``last_error`` contains, in any case of
    letters. ``limit`` takes the oldest.
    """

    statuses: Collection[JobStatus] | None = None
    kinds: Collection[str] | None = None
    tenants: Collection[UUID] | None = None
    older_than: timedelta | None = None
    error: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("statuses", "kinds", "tenants"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise InvalidJob(f"{name} must be a list or another collection, got a str; pass [{value!r}]")

    def conditions(self) -> list[ColumnElement[bool]]:
        """The filter as conditions on ``mdm.job``, without the limit."""
        job = JOB.c
        found: list[ColumnElement[bool]] = []
        if self.statuses is not None:
            found.append(job.status.in_(list(self.statuses)))
        if self.kinds is not None:
            # As text: a kind that the enum lacks matches nothing, rather than fail the statement
            found.append(cast(job.job_kind, Text).in_(sorted(self.kinds)))
        if self.tenants is not None:
            found.append(job.tenant_id.in_(sorted(self.tenants)))
        if self.older_than is not None:
            found.append(job.created_at < func.statement_timestamp() - self.older_than)
        if self.error is not None:
            found.append(job.last_error.icontains(check_text("error", self.error), autoescape=True))
        return found


Which: TypeAlias = UUID | Iterable[UUID] | JobFilter


def listed(which: Which) -> list[UUID] | JobFilter:
    """``which`` in a form that can be read several times, as an iterator cannot.

    :raises InvalidJob: if something else than an id is among them.
    """
    if isinstance(which, JobFilter):
        return which
    ids = list(which) if isinstance(which, Iterable) else [which]
    for job_id in ids:
        if not isinstance(job_id, UUID):
            raise InvalidJob(f"a job id is a uuid.UUID, got {job_id!r}; pass UUID(...), or a JobFilter")
    return ids


def selected(which: Which, statuses: Collection[JobStatus], *columns: Any) -> Select[Any]:
    """The jobs of ``which`` that are in one of ``statuses``, oldest first.

    In the order of their ids, so that two operators who lock the same jobs cannot deadlock.
    """
    which = listed(which)
    query = select(JOB.c.id, *columns).where(JOB.c.status.in_(sorted(statuses))).order_by(JOB.c.id)
    if isinstance(which, JobFilter):
        return query.where(*which.conditions()).limit(which.limit)
    return query.where(JOB.c.id == func.any(literal(which, ARRAY(Uuid()))))
