"""One database for this folder; a host application's tables; what was sent to the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event

from tests.conftest import rendered
from tests.enqueue.host import HostBase
from tests.support.server import Databases
from tests.support.shared import empty


@pytest.fixture(scope="package")
def package_database_url(databases: Databases) -> Iterator[str]:
    with databases.migrated() as url:
        yield rendered(url)


@pytest.fixture
def database_url(package_database_url: str) -> Iterator[str]:
    yield package_database_url
    empty(package_database_url)


@pytest.fixture
def host_tables(engine: Engine) -> Iterator[None]:
    """The tables of an application with a declarative base of its own."""
    HostBase.metadata.create_all(engine)
    yield
    HostBase.metadata.drop_all(engine)


@pytest.fixture
def statements(engine: Engine) -> Iterator[list[str]]:
    """The text of what is sent to the server through ``engine``."""
    sent: list[str] = []

    def keep(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", keep)
    yield sent
    event.remove(engine, "before_cursor_execute", keep)
