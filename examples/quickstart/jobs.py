from datetime import timedelta

from models import Invoice, Order
from pydantic import BaseModel
from tenacity import wait_exponential

from jobqueue import Handlers, JobContext
from jobqueue.bundled import email

handlers = Handlers()
handlers.include(email.handlers)  # the kind email_send


class InvoicePayload(BaseModel):
    order_id: int


@handlers.register(
    "invoice_create",
    timeout=timedelta(minutes=2),
    max_attempts=5,
    wait=wait_exponential(multiplier=1, exp_base=5, max=3600),  # 1 s, 5 s, 25 s, ...
)
def invoice_create(payload: InvoicePayload, job: JobContext) -> None:
    order = job.session.get_one(Order, payload.order_id)
    # Commits together with the job's `done`: there is exactly one invoice, whatever crashes when
    job.session.add(Invoice(order_id=order.id, text=f"Order {order.id}: {order.total_cents / 100:.2f} EUR"))
