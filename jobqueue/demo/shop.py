"""The application: a shop that confirms each order by mail. ``jobqueue.demo.shop:handlers`` is what its worker runs."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tenacity import wait_fixed

from jobqueue.bundled import email
from jobqueue.bundled.email import Email
from jobqueue.handlers import Handlers, JobContext
from jobqueue.models import Job
from jobqueue.states import JobKind

RETRY_SECONDS: Final = 1


class ShopBase(DeclarativeBase):
    """The application's own base. Jobs live beside its tables, in the schema mdm."""


class ShopOrder(ShopBase):
    __tablename__ = "shop_order"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tenant_id: Mapped[UUID]
    customer: Mapped[str]


def key_of(number: int) -> str:
    """The idempotency key of an order's mail."""
    return f"order:{number}"


def place_order(session: Session, tenant_id: UUID, number: int, customer: str) -> None:
    """The order and its mail: the caller commits both, or neither."""
    mail = Email(to=customer, subject=f"Your order {number}", text="Thank you! We are packing it.\n")
    session.add(ShopOrder(number=number, tenant_id=tenant_id, customer=customer))
    session.add(
        Job(
            tenant_id=tenant_id,
            job_kind=JobKind.EMAIL_SEND,
            payload=mail.model_dump(mode="json", exclude_defaults=True),
            idempotency_key=key_of(number),
        )
    )


handlers: Final = Handlers()


# The bundled handler waits a minute or two before it tries again; nobody wants to watch that
@handlers.register(JobKind.EMAIL_SEND, wait=wait_fixed(RETRY_SECONDS), check=email.email_send.check)
def email_send(payload: Email, job: JobContext) -> None:
    email.email_send(payload, job)
