"""The table ``mdm.job_worker``: the worker processes that are, or lately were, alive."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, Boolean, DateTime, Integer, Text, Uuid, func, text
from sqlalchemy.orm import Mapped, mapped_column

from jobqueue.models.base import Base


class WorkerRecord(Base):
    """One start of a worker process. ``id`` is what its claims carry in ``job.claimed_by``."""

    __tablename__ = "job_worker"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(Integer)
    kinds: Mapped[list[str]] = mapped_column(ARRAY(Text))
    tenants: Mapped[list[UUID] | None] = mapped_column(ARRAY(Uuid))
    concurrency: Mapped[int] = mapped_column(Integer)
    hungry: Mapped[bool] = mapped_column(Boolean, default=False, server_default=text("false"))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    version: Mapped[str] = mapped_column(Text)
