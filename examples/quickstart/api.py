import asyncio
import os
from uuid import UUID

from jobs import InvoicePayload, invoice_create
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from jobqueue import Tenant, aenqueue


async def remind(session: AsyncSession, tenant_id: UUID, order_id: int, address: str) -> bool:
    """As a FastAPI endpoint would: whoever opened the session commits it."""
    mail = {"to": address, "subject": f"Order {order_id} waits", "text": "Please pay it."}
    # one reminder at a time: the key is free again when that job has ended
    reminder = await aenqueue(session, "email_send", mail, tenant_id=tenant_id, dedup_key=f"remind:{order_id}")
    await invoice_create.aenqueue(
        session, InvoicePayload(order_id=order_id), tenant_id=tenant_id, idempotency_key=f"invoice:{order_id}"
    )
    return reminder.created


async def main() -> None:
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with AsyncSession(engine) as session, session.begin():
        tenant_id = (await session.scalars(select(Tenant.id).where(Tenant.name == "Acme"))).one()
        print([await remind(session, tenant_id, 1, "ada@example.com") for _ in range(2)])  # [True, False]
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
