"""Fixtures for databases that are migrated by the test itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, create_engine

REPOSITORY = Path(__file__).parent.parent.parent

Alembic = Callable[..., str]


@pytest.fixture
def empty_engine(empty_database_url: str) -> Iterator[Engine]:
    """An engine on a database without anything in it."""
    engine = create_engine(empty_database_url, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def alembic(empty_database_url: str) -> Alembic:
    """Runs the ``alembic`` command in the repository's root, on the empty database; returns what it printed."""

    def run(*arguments: str) -> str:
        finished = subprocess.run(
            [sys.executable, "-m", "alembic.config", *arguments],
            cwd=REPOSITORY,
            env=os.environ | {"DATABASE_URL": empty_database_url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run
