"""The table ``mdm.tenant``: whose work a job is."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import DateTime, Text, func
from sqlalchemy.orm import Mapped, mapped_column
from uuid_utils.compat import uuid7

from jobqueue.models.base import Base

SYSTEM_TENANT_ID: Final = UUID(int=0)
"""The tenant of jobs that serve everybody, such as retention. The first migration inserts it."""


class Tenant(Base):
    """Whose work a job is. A host with a tenants table of its own may leave this one to the system tenant."""

    __tablename__ = "tenant"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7, server_default=func.gen_random_uuid())
    name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
