"""An application that knows nothing of jobqueue: a base and a table of its own."""

from __future__ import annotations

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class HostBase(DeclarativeBase):
    pass


class Order(HostBase):
    """Names are unique, which is checked as late as the commit."""

    __tablename__ = "order"
    __table_args__ = (UniqueConstraint("name", deferrable=True, initially="DEFERRED"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
