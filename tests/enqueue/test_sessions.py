"""Whatever an application wraps its session in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from jobqueue import Job, JobFilter, JobRepository, NewJob, aenqueue, cancel, enqueue, enqueue_many
from jobqueue.errors import InvalidJob


def count_jobs(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


def test_a_scoped_session_enqueues_and_operates(engine: Engine, tenant_id: UUID) -> None:
    db_session = scoped_session(sessionmaker(engine))
    job = enqueue(db_session, "reindex", tenant_id=tenant_id)
    enqueue_many(db_session, [NewJob(kind="reindex", tenant_id=tenant_id, dedup_key=key) for key in "ab"])
    assert cancel(db_session, JobFilter(kinds=["reindex"]), actor="ada").refused == {}
    assert JobRepository(db_session).replay(job.id, actor="ada").ids == [job.id]
    db_session.commit()
    db_session.remove()
    assert count_jobs(engine) == 3


async def test_an_async_scoped_session_enqueues(any_async_engine: AsyncEngine, engine: Engine, tenant_id: UUID) -> None:
    db_session = async_scoped_session(async_sessionmaker(any_async_engine), scopefunc=lambda: 1)
    await aenqueue(db_session, "reindex", tenant_id=tenant_id)
    await db_session.commit()
    await db_session.remove()
    assert count_jobs(engine) == 1


async def test_an_async_session_is_told_what_to_call(async_engine: AsyncEngine, tenant_id: UUID) -> None:
    async with AsyncSession(async_engine) as session:
        wrong: Any = session
        with pytest.raises(InvalidJob, match="begins with an a"):
            enqueue(wrong, "reindex", tenant_id=tenant_id)


async def test_a_session_that_is_not_async_is_told_what_to_call(engine: Engine, tenant_id: UUID) -> None:
    with Session(engine) as session:
        wrong: Any = session
        with pytest.raises(InvalidJob, match="without the a"):
            await aenqueue(wrong, "reindex", tenant_id=tenant_id)


def test_many_keys_on_an_autocommit_connection(database_url: str, engine: Engine, tenant_id: UUID) -> None:
    autocommit = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session:
        jobs = [NewJob(kind="reindex", tenant_id=tenant_id, idempotency_key=key) for key in "aba"]
        first, second, again = enqueue_many(session, jobs)
    autocommit.dispose()
    assert (first.created, second.created, again.created, again.id) == (True, True, False, first.id)
    assert count_jobs(engine) == 2


@pytest.mark.parametrize("name", ["statuses", "kinds", "tenants"])
def test_a_text_is_no_collection_of_a_filter(name: str) -> None:
    wrong: Any = {name: "dlq"}
    with pytest.raises(InvalidJob, match=f"{name} must be a list"):
        JobFilter(**wrong)
