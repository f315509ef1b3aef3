"""One database for this folder, emptied after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from jobqueue import JobRepository
from tests.conftest import rendered
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
def repository(session: Session) -> JobRepository:
    """On the session of the test, to which the factories write too."""
    return JobRepository(session)
