"""The ways to enqueue one job, each under one signature, and what can be seen of it from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from jobqueue import Handlers, Job, JobRepository, NewJob, aenqueue, aenqueue_many, enqueue, enqueue_many

PAYLOAD = {"to": "ada@example.com", "copies": 2}

Way: TypeAlias = Callable[[Session, UUID], object]
AsyncWay: TypeAlias = Callable[[AsyncSession, UUID], Awaitable[object]]


class ModelPayload(BaseModel):
    to: str
    copies: int


@dataclass
class DataclassPayload:
    to: str
    copies: int


class TypedDictPayload(TypedDict):
    to: str
    copies: int


handlers = Handlers()


@handlers.register("email_send")
def takes_model(payload: ModelPayload) -> None: ...


@handlers.register("reindex")
def takes_dataclass(payload: DataclassPayload) -> None: ...


@handlers.register("bulk_import")
def takes_typed_dict(payload: TypedDictPayload) -> None: ...


@handlers.register("virus_scan")
def takes_dict(payload: dict[str, object]) -> None: ...


def _add(session: Session, tenant_id: UUID) -> None:
    session.add(Job(tenant_id=tenant_id, job_kind="email_send", payload=PAYLOAD))
    session.flush()


async def _add_async(session: AsyncSession, tenant_id: UUID) -> None:
    await session.run_sync(_add, tenant_id)


WAYS: dict[str, Way] = {
    "add": _add,
    "enqueue": lambda session, tenant: enqueue(session, "email_send", PAYLOAD, tenant_id=tenant),
    "enqueue_many": lambda session, tenant: enqueue_many(
        session, [NewJob(kind="email_send", payload=PAYLOAD, tenant_id=tenant)]
    ),
    "handler, model": lambda session, tenant: takes_model.enqueue(
        session, ModelPayload(to="ada@example.com", copies=2), tenant_id=tenant
    ),
    "handler, dataclass": lambda session, tenant: takes_dataclass.enqueue(
        session, DataclassPayload("ada@example.com", 2), tenant_id=tenant
    ),
    "handler, TypedDict": lambda session, tenant: takes_typed_dict.enqueue(
        session, TypedDictPayload(to="ada@example.com", copies=2), tenant_id=tenant
    ),
    "handler, dict": lambda session, tenant: takes_dict.enqueue(session, dict(PAYLOAD), tenant_id=tenant),
}

ASYNC_WAYS: dict[str, AsyncWay] = {
    "add": _add_async,
    "aenqueue": lambda session, tenant: aenqueue(session, "email_send", PAYLOAD, tenant_id=tenant),
    "aenqueue_many": lambda session, tenant: aenqueue_many(
        session, [NewJob(kind="email_send", payload=PAYLOAD, tenant_id=tenant)]
    ),
    "handler": lambda session, tenant: takes_model.aenqueue(
        session, ModelPayload(to="ada@example.com", copies=2), tenant_id=tenant
    ),
}


def jobs(engine: Engine) -> list[Job]:
    """What another session sees."""
    with Session(engine, expire_on_commit=False) as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


def payloads(engine: Engine) -> list[dict[str, Any]]:
    return [job.payload for job in jobs(engine)]


def claimable(engine: Engine) -> int:
    """How many jobs a worker would get now. Nothing is taken."""
    with Session(engine) as session:
        return len(JobRepository(session).claim(worker="looker", limit=100))
