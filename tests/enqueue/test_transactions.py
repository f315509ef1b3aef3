"""A job exists if and when the transaction that wrote it commits, whichever way it was written."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, Base, Job, Tenant, cancel, enqueue
from jobqueue.errors import JobNotFound, UnknownTenant
from tests.enqueue.host import HostBase, Order
from tests.enqueue.ways import ASYNC_WAYS, PAYLOAD, WAYS, AsyncWay, Way, claimable, payloads

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
every_async_way = pytest.mark.parametrize("way", ASYNC_WAYS.values(), ids=ASYNC_WAYS.keys())


@every_way
def test_no_worker_gets_a_job_before_the_commit(engine: Engine, way: Way) -> None:
    with Session(engine) as session:
        way(session, SYSTEM_TENANT_ID)
        assert claimable(engine) == 0
        session.commit()
    assert claimable(engine) == 1
    assert payloads(engine) == [PAYLOAD]


@every_way
def test_nothing_remains_after_a_rollback(engine: Engine, way: Way) -> None:
    with Session(engine) as session:
        way(session, SYSTEM_TENANT_ID)
        session.rollback()
        session.commit()
    assert payloads(engine) == []


@every_way
@pytest.mark.usefixtures("host_tables")
def test_a_savepoint_takes_its_job_along(engine: Engine, way: Way) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(name="kept"))
        with session.begin_nested() as lost:
            way(session, SYSTEM_TENANT_ID)
            lost.rollback()
        with session.begin_nested():
            enqueue(session, "reindex", {"of": "the live savepoint"}, tenant_id=SYSTEM_TENANT_ID)
    assert payloads(engine) == [{"of": "the live savepoint"}]
    with Session(engine) as session:
        assert session.query(Order).count() == 1


@every_way
@pytest.mark.usefixtures("host_tables")
def test_nothing_remains_of_a_commit_that_fails(engine: Engine, way: Way) -> None:
    with Session(engine) as session:
        session.add_all([Order(name="twice"), Order(name="twice")])
        way(session, SYSTEM_TENANT_ID)
        with pytest.raises(IntegrityError):
            session.commit()
    assert payloads(engine) == []


@every_way
def test_on_an_autocommit_connection_a_job_is_there_at_once(engine: Engine, way: Way) -> None:
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        way(session, SYSTEM_TENANT_ID)
        assert payloads(engine) == [PAYLOAD]


@every_async_way
async def test_an_async_job_commits_with_its_transaction(
    engine: Engine, any_async_engine: AsyncEngine, way: AsyncWay
) -> None:
    async with AsyncSession(any_async_engine) as session:
        await way(session, SYSTEM_TENANT_ID)
        await session.rollback()
        async with session.begin_nested() as lost:
            await way(session, SYSTEM_TENANT_ID)
            await lost.rollback()
        await session.commit()
        assert payloads(engine) == []
        async with session.begin():
            await way(session, SYSTEM_TENANT_ID)
            assert claimable(engine) == 0
    assert payloads(engine) == [PAYLOAD]


@pytest.mark.usefixtures("host_tables")
def test_rows_of_another_base_and_a_job_go_in_one_flush(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Job(tenant_id=SYSTEM_TENANT_ID, job_kind="email_send"), Order(name="one")])
    with Session(engine) as session:
        assert (session.query(Order).count(), session.query(Job).count()) == (1, 1)


def test_a_new_tenant_and_its_job_go_in_one_flush(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        tenant = Tenant(name="new")
        session.add(Job(tenant=tenant, job_kind="email_send"))
        session.add(tenant)
    assert len(payloads(engine)) == 1


@pytest.mark.parametrize("autoflush", [True, False])
def test_enqueue_sees_a_tenant_that_was_just_added(engine: Engine, autoflush: bool) -> None:
    with Session(engine, autoflush=autoflush) as session, session.begin():
        tenant = Tenant(id=uuid4(), name="new")
        session.add(tenant)
        if not autoflush:
            session.flush()
        enqueue(session, "email_send", tenant_id=tenant.id)
    assert len(payloads(engine)) == 1


def test_a_tenant_without_a_row_is_named(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(UnknownTenant, match=r"mdm\.tenant has no row"):
        enqueue(session, "email_send", tenant_id=uuid4())


@pytest.mark.parametrize("hook", ["before_flush", "after_flush"])
@pytest.mark.usefixtures("host_tables")
def test_a_flush_hook_may_enqueue(engine: Engine, hook: str) -> None:
    def on_flush(session: Session, *_rest: object) -> None:
        for order in [row for row in session.new if isinstance(row, Order)]:
            enqueue(session, "email_send", {"order": order.name}, tenant_id=SYSTEM_TENANT_ID, dedup_key=order.name)

    with Session(engine) as session, session.begin():
        event.listen(session, hook, on_flush)
        session.add(Order(name="one"))
    assert payloads(engine) == [{"order": "one"}]


def test_an_after_commit_hook_cannot_enqueue(engine: Engine) -> None:
    def on_commit(session: Session) -> None:
        enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID)

    with Session(engine) as session:
        event.listen(session, "after_commit", on_commit)
        enqueue(session, "email_send", {"of": "the commit"}, tenant_id=SYSTEM_TENANT_ID)
        with pytest.raises(InvalidRequestError):
            session.commit()
    assert payloads(engine) == [{"of": "the commit"}]


@pytest.mark.usefixtures("host_tables")
def test_a_session_may_be_bound_by_base(engine: Engine) -> None:
    with Session(binds={Base: engine, HostBase: engine}) as session, session.begin():
        session.add(Order(name="one"))
        first = enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, dedup_key="k")
        assert enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, dedup_key="k").id == first.id
    assert len(payloads(engine)) == 1


def test_a_session_may_be_bound_to_a_connection(engine: Engine) -> None:
    with engine.connect() as connection, Session(connection) as session:
        enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID)
        session.commit()
    assert len(payloads(engine)) == 1


def test_a_job_that_was_rolled_back_is_not_found(engine: Engine) -> None:
    with Session(engine) as session:
        job_id = enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID).id
        session.rollback()
        with pytest.raises(JobNotFound):
            cancel(session, job_id, actor="ada")
