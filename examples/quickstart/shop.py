import os
from datetime import timedelta
from uuid import UUID

from jobs import InvoicePayload, invoice_create
from models import Order
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from jobqueue import Job, Tenant, enqueue


def place_order(session: Session, tenant_id: UUID, address: str, total_cents: int) -> Order:
    """The order, its mails and its invoice: the caller commits all of them, or none."""
    order = Order(tenant_id=tenant_id, email=address, total_cents=total_cents)
    session.add(order)
    session.flush()  # the order's id is known now
    mail = {"to": address, "subject": f"Your order {order.id}", "text": "Thank you! We are packing it."}
    session.add(Job(tenant_id=tenant_id, job_kind="email_send", payload=mail))

    # with a key and a delay; `.created` is False if the key was there already, and nothing was written
    reminder = {"to": address, "subject": f"How was order {order.id}?", "text": "Tell us."}
    key = f"reminder:{order.id}"
    enqueue(session, "email_send", reminder, tenant_id=tenant_id, delay=timedelta(days=14), idempotency_key=key)

    # through the handler: the payload is checked against its type, here and not in the worker
    invoice_create.enqueue(session, InvoicePayload(order_id=order.id), tenant_id=tenant_id)
    return order


if __name__ == "__main__":
    with Session(create_engine(os.environ["DATABASE_URL"])) as session, session.begin():
        tenant = session.scalars(select(Tenant).where(Tenant.name == "Acme")).first() or Tenant(name="Acme")
        session.add(tenant)
        session.flush()
        order = place_order(session, tenant.id, "ada@example.com", 4200)
        print(f"order {order.id}: committing it together with three jobs")
