from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The application's own. Jobs live beside it, in the schema mdm."""


class Order(Base):
    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    email: Mapped[str]
    total_cents: Mapped[int]


class Invoice(Base):
    __tablename__ = "shop_invoice"

    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)
    text: Mapped[str]
