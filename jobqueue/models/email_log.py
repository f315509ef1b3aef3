"""The table ``mdm.email_log``: what became of each mail. Kept longer than the jobs; never holds a mail's text."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Text,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from jobqueue.models.base import Base


class EmailLog(Base):
    """What a mail server said to one attempt to hand over one mail.

    ``outcome`` is ``accepted``, ``refused`` (for good) or ``deferred`` (tried again); ``code`` and ``reply`` are
    the server's, absent where it could not be reached. ``job_id`` becomes NULL when the job is purged.
    """

    __tablename__ = "email_log"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("mdm.job.id", name="email_log_job_fk", ondelete="SET NULL"))
    tenant_id: Mapped[UUID]
    message_id: Mapped[str] = mapped_column(Text)
    sender: Mapped[str] = mapped_column(Text)
    recipients: Mapped[list[str]] = mapped_column(ARRAY(Text))
    outcome: Mapped[str] = mapped_column(Text)
    code: Mapped[int | None] = mapped_column(Integer)
    reply: Mapped[str | None] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())

    __table_args__ = (
        CheckConstraint("outcome IN ('accepted', 'refused', 'deferred')", name="email_log_outcome_chk"),
        Index("ix_email_log_job", "job_id"),
        Index("ix_email_log_message", "message_id"),
    )
