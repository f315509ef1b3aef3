"""Fixtures: always a real PostgreSQL server, one database for each test.

The server is embedded unless ``JOBQUEUE_TEST_DATABASE_URL`` names another. Under pytest-xdist each process has
its own embedded server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from jobqueue.models import Tenant
from tests.support.factories import factories_write_to
from tests.support.server import Databases, running_server

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Where databases come from; most tests take ``database_url``, which is one of them."""
    with running_server() as server:
        databases = Databases(server)
        yield databases
        databases.close()


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """URL of a migrated database of this test alone, for psycopg."""
    with databases.migrated() as url:
        yield rendered(url)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """URL of a database of this test alone, without anything in it."""
    with databases.empty() as url:
        yield rendered(url)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session, to which the factories write. What it did not commit is rolled back."""
    with Session(engine) as session, factories_write_to(session):
        yield session


@pytest.fixture
def tenant_id(engine: Engine) -> UUID:
    """The id of a tenant whose row is committed."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        tenant = Tenant(name="Acme")
        session.add(tenant)
    return tenant.id


@pytest.fixture
async def async_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on psycopg's asynchronous side."""
    engine = create_async_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def asyncpg_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(make_url(database_url).set(drivername="postgresql+asyncpg"))
    yield engine
    await engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def any_async_engine(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[AsyncEngine]:
    """Runs the test twice: on psycopg and on asyncpg."""
    engine = create_async_engine(make_url(database_url).set(drivername=f"postgresql+{request.param}"))
    yield engine
    await engine.dispose()


@pytest.fixture
def worker_environment(database_url: str) -> dict[str, str]:
    """The environment of a subprocess that works on the test's database, with this checkout importable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBQUEUE_", "DATABASE_"))}
    return kept | {"DATABASE_URL": database_url, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}


def rendered(url: URL) -> str:
    return url.render_as_string(hide_password=False)
