"""The table ``mdm.job``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    DDL,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    event,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship, validates
from uuid_utils.compat import uuid7

from jobqueue.models.base import Base, JobKindType, job_status_type
from jobqueue.models.checks import check_column
from jobqueue.models.tenant import Tenant
from jobqueue.states import JobStatus

TIMES: Final = ("available_at", "claimed_at", "started_at", "completed_at", "created_at")
PENDING: Final = text("status = 'pending'")
RUNNING: Final = text("status = 'running'")

# A queue table turns over many times a day: vacuum it by its churn, not by its size, and without pausing
AUTOVACUUM: Final = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0.05",
}


class Job(Base):
    """One piece of work of one tenant.

    ``session.add(Job(tenant_id=..., job_kind=..., payload=...))`` enqueues it when the session commits;
    everything else has a default. Values are checked when they are assigned.

    :raises InvalidJob: (also ``PayloadError``) on assigning a value that cannot be stored as it is.
    """

    __tablename__ = "job"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7, server_default=func.gen_random_uuid())
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("mdm.tenant.id", name="job_tenant_fk"))
    job_kind: Mapped[str] = mapped_column(JobKindType())
    status: Mapped[JobStatus] = mapped_column(
        job_status_type, default=JobStatus.PENDING, server_default=text("'pending'")
    )
    payload: Mapped[dict[str, Any]] = mapped_column(JSONB, default=dict, server_default=text("'{}'::jsonb"))
    priority: Mapped[int] = mapped_column(SmallInteger, default=100, server_default=text("100"))
    available_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    attempts: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(Integer, default=8, server_default=text("8"))
    last_error: Mapped[str | None] = mapped_column(Text)
    claimed_by: Mapped[str | None] = mapped_column(Text)
    claimed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    completed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    idempotency_key: Mapped[str | None] = mapped_column(Text)
    dedup_key: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    created_by: Mapped[str | None] = mapped_column(Text)

    # Tells the unit of work that a new tenant is inserted before its jobs
    tenant: Mapped[Tenant] = relationship(lazy="raise")

    __table_args__ = (
        CheckConstraint("jsonb_typeof(payload) = 'object'", name="job_payload_is_object_chk"),
        CheckConstraint("attempts >= 0", name="job_attempts_nonneg_chk"),
        CheckConstraint("max_attempts >= 1", name="job_max_attempts_positive_chk"),
        CheckConstraint(
            "CASE WHEN status = 'running' THEN claimed_by IS NOT NULL AND claimed_at IS NOT NULL "
            "AND started_at IS NOT NULL WHEN status = 'pending' THEN claimed_by IS NULL AND claimed_at IS NULL "
            "ELSE true END",
            name="job_claim_chk",
        ),
        CheckConstraint("(status IN ('done', 'failed', 'dlq')) = (completed_at IS NOT NULL)", name="job_completed_chk"),
        # What Python can read: -infinity, or the year 10000, would fail every claim that meets it
        CheckConstraint(
            " AND ".join(f"{column} >= '0002-01-01Z' AND {column} < '9999-01-01Z'" for column in TIMES),
            name="job_times_chk",
        ),
        Index(
            "job_idempotency_uk",
            "tenant_id",
            "job_kind",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index(
            "job_dedup_uk",
            "tenant_id",
            "job_kind",
            "dedup_key",
            unique=True,
            postgresql_where=text("dedup_key IS NOT NULL AND status IN ('pending', 'running')"),
        ),
        Index("ix_job_dispatch", "status", "priority", "available_at", postgresql_where=PENDING),
        Index("ix_job_claimed_stale", "claimed_at", postgresql_where=RUNNING),
        Index("ix_job_tenant_kind", "tenant_id", "job_kind", "status"),
        Index("ix_job_tenant_dispatch", "tenant_id", "priority", "available_at", postgresql_where=PENDING),
        Index("ix_job_kind_dispatch", "job_kind", "priority", "available_at", postgresql_where=PENDING),
    )

    @validates(
        "tenant_id",
        "job_kind",
        "payload",
        "priority",
        "available_at",
        "max_attempts",
        "idempotency_key",
        "dedup_key",
        "created_by",
    )
    def _check(self, column: str, value: object) -> object:
        return check_column(column, value)


JOB: Table = Job.__table__  # type: ignore[assignment]  # declared as FromClause
"""The table, for statements that need nothing of the ORM."""

BOUND: Final = {"mapper": Job}
"""The ``bind_arguments`` of such statements: an application's session may have one database per declarative base."""

# Not `postgresql_with=`, which SQLAlchemy 2.0 does not know for tables
_set_autovacuum: Final = "ALTER TABLE mdm.job SET ({})".format(", ".join(f"{k} = {v}" for k, v in AUTOVACUUM.items()))
event.listen(JOB, "after_create", DDL(_set_autovacuum))  # type: ignore[no-untyped-call]
