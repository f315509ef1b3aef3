"""The table ``mdm.audit_log``: who did what to which job. Kept longer than the jobs; never holds payloads."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, Identity, Index, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobqueue.models.base import Base


class AuditEntry(Base):
    """One deed: ``replay``, ``discard``, ``cancel``, ``job_dlq``, ``job_done``, or what a handler adds.

    ``job_id`` and ``tenant_id`` are no foreign keys: the entry stays when the job is gone.
    """

    __tablename__ = "audit_log"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    tenant_id: Mapped[UUID | None]
    action: Mapped[str] = mapped_column(Text)
    job_id: Mapped[UUID | None]
    actor: Mapped[str | None] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())
    details: Mapped[dict[str, Any]] = mapped_column(JSONB, default=dict, server_default=text("'{}'::jsonb"))

    __table_args__ = (Index("ix_audit_log_job", "job_id"), Index("ix_audit_log_at", "at"))
